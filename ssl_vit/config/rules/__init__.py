"""Relations between keys, one row each: what a recipe must not be (by subject), and which keys it
would ignore. Rules of one objective stand in its declaration. No torch here."""

from .channels import CHANNELS
from .images import HELD_OUT, LABELS, MIXING, STREAM
from .model import ENCODER, MODEL, SIZES, STAGES
from .probe import MEASURES
from .rule import Rule as Rule
from .rule import fewer_than as fewer_than
from .training import CORRUPTION, LENGTHS, VIEWS
from .unused import UNUSED as UNUSED
from .unused import Unused as Unused

# The first that is broken is the error
RULES = (
    *(*MODEL, *CHANNELS, *STAGES, *ENCODER, *MIXING, *STREAM, *HELD_OUT, *LABELS, *SIZES),
    *(*CORRUPTION, *VIEWS, *MEASURES, *LENGTHS),
)
