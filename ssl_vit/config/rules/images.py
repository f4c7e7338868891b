"""Rules of the images and their labels: how they are mixed, read and held out."""

from collections.abc import Callable

from .. import declaration
from ..schema import Recipe, learns_labels, uses_labels
from .rule import Rule, Text


def _mixed(r: Recipe) -> float:
    return max(r.data.mixup, r.data.cutmix)


def _held_out_share(r: Recipe) -> bool:
    """Whether the held-out images are a share of the training images, as they may be by default."""
    validation = r.data.validation
    return validation is None or (isinstance(validation, float) and validation > 0)


def _cuts_share(r: Recipe) -> bool:
    """Whether held-out or test images are a share of the training images."""
    return _held_out_share(r) or not isinstance(r.data.test, str)


def _learns_none(r: Recipe) -> str:
    """That an objective learns no labels; of a sum of objectives with the part that would."""
    learning = [part for part in r.declared.parts if declaration.objective(part).labels]
    untrained = "".join(f" with {r.objective}.{part}=0" for part in learning)
    return f"objective={r.objective}{untrained} learns no labels"


def _classifies(r: Recipe) -> bool:
    return r.eval.test or (r.objective == "probe" and "top1" in r.probe.measures)


def _of_stream(
    key: str, forbids: Callable[[Recipe], object], expected: str, value: Text | None = None
) -> Rule:
    """What needs all images, of which a stream shows the next one alone."""
    reason = f"expected {expected} beside data.stream=true"
    return Rule(key, lambda r: r.data.stream and forbids(r), reason, value)


MIXING = (
    Rule(
        "data.mixup, .cutmix",
        lambda r: _mixed(r) and not r.declared.mixes,
        "objective={r.objective} has no use for mixed images",
        lambda r: str(_mixed(r)),
    ),
    _of_stream("data.mixup, .cutmix", _mixed, "0", lambda r: str(_mixed(r))),
)
STREAM = (  # is only trained on, and whole
    Rule(
        "data.stream",
        lambda r: r.data.stream and r.data.hub is None and r.data.path is None,
        "data={r.data.name} is generated, not read",
    ),
    Rule(
        "objective",
        lambda r: r.data.stream and not r.declared.trains,
        "data.stream=true is for training only",
    ),
    Rule(
        "eval.test",
        lambda r: r.data.stream and r.eval.test,
        "data.stream=true is for training only; expected eval.test=false",
    ),
    # which images a share has depends on their number, known only after reading all
    _of_stream("data.share", lambda r: r.data.share != 1, "1"),
    _of_stream(
        "data.validation",
        lambda r: r.data.validation is not None and _held_out_share(r),
        "a split, or 0 for none,",
    ),
    _of_stream("data.test", lambda r: not isinstance(r.data.test, str), "a split's name"),
)
HELD_OUT = (
    Rule(
        "data.share_seed",
        lambda r: r.data.stream and r.data.share_seed is not None,
        "takes shares of classes, and data.stream does not know labels beforehand",
    ),
    Rule(
        "data.group",
        lambda r: r.data.group is not None and r.data.stream,
        "keeps groups on one side of a share, and data.stream takes no whole groups",
    ),
    Rule(
        "data.group",
        lambda r: r.data.group is not None and not _cuts_share(r),
        "has no use without a share: expected null, or data.validation= or data.test= with one",
    ),
    Rule(
        "data.validation_from",
        lambda r: r.data.validation_from == "train" and not _held_out_share(r),
        "expected data.validation=null or a share above 0 beside it, not {r.data.validation}",
    ),
    Rule(
        "checkpoint.best",
        lambda r: r.checkpoint.best is not None and r.data.validation == 0,
        "data.validation=0 holds out no images to choose on; expected null, or a share above 0",
    ),
    Rule(
        "checkpoint.best",
        lambda r: r.checkpoint.best in r.declared.no_measure,
        "of objective={r.objective}, collapsed features may have the best; expected a probe's"
        " accuracy, such as probe/knn with probe.every=",
    ),
)
LABELS = (
    Rule(
        "data.labels",
        lambda r: not r.data.labels and uses_labels(r),
        "the run learns labels or is measured on them; expected true",
    ),
    Rule("eval.test", lambda r: r.eval.test and not learns_labels(r), _learns_none),
    Rule(
        "eval.real",
        lambda r: r.eval.real and not _classifies(r),
        "no use without eval.test=true or probe.measures=[top1]",
    ),
)
