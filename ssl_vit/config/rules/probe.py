"""Rules of what is measured of a frozen encoder."""

from collections.abc import Callable

from ..probe import SEGMENTATION
from ..schema import Recipe
from .rule import Rule, Text, value_of


def _own_feature(key: str) -> Rule:
    """That a hidden layer is read on the feature that it was trained on."""
    return Rule(
        "probe.feature",
        lambda r: r.probe.feature == "hidden" and value_of(r, key) is not None,
        lambda r: f"reads what its run trained it on; leave {key}={value_of(r, key)} out",
    )


def _of_patches(forbids: Callable[[Recipe], object], reason: Text) -> Rule:
    """What measuring patches needs."""
    return Rule(
        "probe.measures",
        lambda r: SEGMENTATION in r.probe.measures and forbids(r),
        reason,
        SEGMENTATION,
    )


MEASURES = (
    Rule(
        "probe.feature",
        lambda r: r.probe.feature == "hidden" and r.objective != "probe",
        "is read by tools/evaluate.py; objective={r.objective} has no use for it",
    ),
    _own_feature("probe.pool"),
    _own_feature("probe.layer"),
    _of_patches(
        lambda r: r.objective != "probe",
        "is measured by tools/evaluate.py; objective={r.objective} has no use for it",
    ),
    _of_patches(
        lambda r: r.model.convolutional,
        lambda r: f"needs patches; model={r.model.name or r.model.timm} has none",
    ),
    _of_patches(
        lambda r: r.probe.feature != "encoder",
        "reads the encoder's patches; probe.feature={r.probe.feature} is of images",
    ),
    Rule(
        "probe.pool",
        lambda r: {*r.probe.measures} == {SEGMENTATION} and r.probe.pool is not None,
        f"probe.measures={SEGMENTATION} reads patches and has no use for it",
    ),
)
