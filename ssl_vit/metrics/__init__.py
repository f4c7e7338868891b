"""What each metric is: one row, read by terminal, pages, index, card and reports. No torch here."""

from . import rows as rows
from .registry import BY_KIND as BY_KIND
from .registry import HELD_OUT as HELD_OUT
from .registry import KINDS as KINDS
from .registry import LOSS as LOSS
from .registry import NUMBER as NUMBER
from .registry import OF_PARTS as OF_PARTS
from .registry import SHARE as SHARE
from .registry import Baseline as Baseline
from .registry import Metric as Metric
from .registry import all_baselines as all_baselines
from .registry import all_metrics as all_metrics
from .registry import compared_with as compared_with
from .registry import find_baseline as find_baseline
from .registry import find_metric as find_metric
from .registry import format_baselines as format_baselines
from .registry import format_metrics as format_metrics
from .registry import is_of_model as is_of_model
from .registry import is_split as is_split
from .registry import label as label
from .registry import names_of as names_of
from .registry import register as register
from .registry import score as score
