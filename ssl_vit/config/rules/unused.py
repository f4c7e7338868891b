"""Which keys a recipe would ignore, and why. A key that is given and ignored is an error."""

from collections.abc import Callable
from typing import NamedTuple

from ...formatting import option_text
from ..fields import Option
from ..images import EMBEDDED
from ..schema import Recipe, all_groups, measures_masks
from .training import local_views

OptionText = str | Callable[[Recipe, Option], str]
OF_LABELS = ("data.classes", "data.label_column")
OF_FILES = {  # keys without a use for generated images, and what those lack
    "data.label_column": "columns",
    "data.image_column": "columns",
    "data.group": "columns",
    "data.mask_column": "columns",
}
OF_MASKS = (
    *("data.mask_column", "data.mask_ignore", "data.mask_classes"),
    "probe.mask_images",
)
OF_ONLINE_PROBES = ("probe.every", "probe.images")


class Unused(NamedTuple):
    """Options that a recipe would ignore.

    Attributes:
        of: whether a recipe ignores an option.
        reason: the end of the error.
    """

    of: Callable[[Recipe, Option], object]
    reason: OptionText


def _has_group(r: Recipe, key: str) -> bool:
    """Whether the objective uses the group of a key."""
    top = key.split(".")[0]
    if top == "probe":
        return r.objective == "probe" or r.probe.every is not None
    if top not in {one.name for one in all_groups()} | {"target"}:
        return True
    used = {group for one in r.declared.trained(r) for group in one.groups}
    own = r.declared.options
    return top in used or (own is not None and top == own.name)


def _reads_labels(r: Recipe) -> bool:
    if not isinstance(r.data.test, str):  # a share of each class
        return True
    return any(one.labels for one in r.declared.trained(r)) or r.probe.every is not None


def _of_other_objective(r: Recipe, one: Option) -> str:
    trained = {part.name for part in r.declared.trained(r)}
    parts = [part for part in r.declared.parts if part not in trained]
    untrained = f" with {r.objective}.{parts[0]}=0" if parts else ""  # of a sum of objectives
    return f"objective={r.objective} has no use for it{untrained}"


def _lacks_required(r: Recipe, one: Option) -> bool:
    return one.requires is not None and r.values().get(one.requires[0]) != one.requires[1]


def _required(r: Recipe, one: Option) -> str:
    assert one.requires is not None
    key = one.requires[0]
    return f"{key}={option_text(r.values().get(key))} has no use for it"


UNUSED = (
    Unused(
        lambda r, one: (
            not _has_group(r, one.key) or (one.key in OF_LABELS and not _reads_labels(r))
        ),
        _of_other_objective,
    ),
    Unused(
        lambda r, one: one.key in OF_FILES and r.data.name == EMBEDDED,
        lambda r, one: f"data={EMBEDDED} is generated and has no {OF_FILES[one.key]}",
    ),
    Unused(
        lambda r, one: one.key in OF_MASKS and not measures_masks(r),
        "is for masks, which probe.measures=[segmentation] of recipe=segment reads",
    ),
    Unused(
        lambda r, one: one.key in OF_ONLINE_PROBES and r.objective == "probe",
        "is for probes while pre-training; objective=probe has no use for it",
    ),
    Unused(
        lambda r, one: one.training and r.objective == "probe",
        "objective=probe trains nothing and has no use for it",
    ),
    Unused(
        lambda r, one: one.key.startswith("hub.") and one.key != "hub.repo" and not r.hub.repo,
        "has no use without hub.repo=USER/NAME",
    ),
    Unused(
        lambda r, one: one.key.startswith("views.local_") and not local_views(r),
        "there are no local views; add views.local=",
    ),
    Unused(_lacks_required, _required),
)
