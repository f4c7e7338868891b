"""What each metric and baseline is: one row, read by terminal, pages, index, card and reports. What
has no row is shown by its name. No torch here."""

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import Any

SHARE = "share"  # in per cent
LOSS = "loss"
NUMBER = "number"
COUNT = "count"  # what a row of metrics.jsonl counts beside its metrics
HELD_OUT = "validation/"  # begins the name of a metric of held-out images, in metrics.jsonl
# Begins that of a probe while a run trains, in metrics.jsonl and in result.json
PROBE, PROBED = "probe/", "probe_"

# Kinds of corrupted patches; of a metric by kind, arms are compared by the first
KINDS = ("masked", "random", "kept")
MASKED = KINDS[0]
# What follows the title of a chart
BY_KIND = " by kind of patch"


@dataclass(frozen=True)
class Metric:
    """A metric.

    Attributes:
        name: a `*` at its end stands for any text.
        unit: SHARE, LOSS, NUMBER or COUNT.
        label: its name for readers, in which `*` is the text that the name's stands for; by
            default the name in words.
        higher: whether higher values are better.
        independent: of a share, whether its cases are independent, so that it has an interval.
        listed: whether it stands in a run's results on the terminal and in the Hub's model-index.
        compared: whether a report compares arms by it, of held-out images.
        by_kind: whether its kinds of patches stand in its place there.
        column: its column in the index of runs; empty without one. The first that a run has stands
            in its line of the runs tool, in the first sentences of its page, and in a running run's
            line.
        chart: the title of the chart that it shares with others; empty where it has its own.
        tested: of a metric of test images by their labels, its name in a study's report, which
            compares final parts by it; nothing may be chosen by it.
    """

    name: str
    unit: str = NUMBER
    label: str = ""
    higher: bool = True
    independent: bool = False
    listed: bool = True
    compared: bool = True
    by_kind: bool = False
    column: str = ""
    chart: str = ""
    tested: str = ""

    def __post_init__(self) -> None:
        if self.unit == LOSS and self.higher:
            raise ValueError(f"{self.name}: of a loss, expected higher=False")

    @property
    def words(self) -> str:
        return self.label or self.name.replace("_", " ")

    def text(self, value: float) -> str:
        """A value on the terminal."""
        return f"{value:.1%}" if self.unit == SHARE else f"{value:.3f}"


@dataclass(frozen=True)
class Baseline:
    """A prediction without learning, measured under a name of its own.

    Attributes:
        name: of its metric.
        called: what it predicts, its name for readers.
        compared_with: metrics; the model's is the first of these that was measured.
    """

    name: str
    called: str
    compared_with: tuple[str, ...]


# What begins the name of a probe's baseline: what is measured in the encoder's place, on the same
# images; and its name for readers
FRESH, START, PIXELS, GUESSING = "fresh_", "start_", "pixels_", "guess_"
IN_ITS_PLACE = {
    FRESH: "fresh weights",
    START: "the initial weights",
    PIXELS: "the pixels at 8 x 8",
    GUESSING: "guessing",
}

_metrics: dict[str, Metric] = {}
_baselines: dict[str, Baseline] = {}


def register(*rows: Metric | Baseline) -> None:
    """Add rows; the same one again is no error.

    Raises:
        ValueError: the name is another row's.
    """
    for row in rows:
        before = _metrics.get(row.name) or _baselines.get(row.name)
        if before not in (None, row):
            raise ValueError(f"{row.name}: the name of another metric or baseline")
        if isinstance(row, Metric):
            _metrics[row.name] = row
        else:
            _baselines[row.name] = row


def all_metrics() -> list[Metric]:
    """Every row in the order registered, before one by kind of patch those kinds; the loss, which
    every objective has, last."""
    found: list[Metric] = []
    for row in sorted(_metrics.values(), key=lambda row: row.name == "loss"):
        found += [_of_kind(row, kind) for kind in KINDS if row.by_kind]
        found.append(row)
    return found


def all_baselines() -> list[Baseline]:
    return list(_baselines.values())


def find_metric(name: str) -> Metric:
    """The row of a full name."""
    last = _last(name)
    stem, _, kind = last.rpartition("_")
    if last in _metrics:
        return _metrics[last]
    if stem in _metrics and kind in KINDS:
        return _of_kind(_metrics[stem], kind)
    for row in _metrics.values():
        if row.name.endswith("*") and last.startswith(row.name[:-1]):
            rest = last.removeprefix(row.name[:-1]).replace("_", " ")
            return replace(row, name=last, label=row.label.replace("*", rest))
    return _unknown(last)


def score(name: str, value: float) -> float:
    """A value of the metric, turned so that of two the larger is the better; -inf if not finite."""
    if not math.isfinite(value):
        return -math.inf
    return value if find_metric(name).higher else -value


def find_baseline(name: str) -> Baseline | None:
    """The row of a full name; None for a metric's."""
    last = _last(name)
    for start, called in IN_ITS_PLACE.items():
        if last.startswith(start):
            return Baseline(last, called, (last.removeprefix(start),))
    return _baselines.get(last)


def is_of_model(name: str) -> bool:
    """Whether it is a metric, neither a baseline nor a count."""
    return find_baseline(name) is None and find_metric(name).unit != COUNT


def label(name: str) -> str:
    """A full name for readers."""
    before = name.removesuffix(_last(name))
    return before.replace("_", " ") + find_metric(name).words


def is_split(name: str, names: Container[str]) -> bool:
    """Whether a metric stands among others by kind of patch, which are shown in its place."""
    return find_metric(name).by_kind and f"{name}_{MASKED}" in names


def compared_with(baseline: str, names: Container[str]) -> str | None:
    """Which of the measured metrics a baseline is compared with: of its own part, else of the
    whole."""
    row, part = find_baseline(baseline), baseline.removesuffix(_last(baseline))
    known = row.compared_with if row else ()
    return next(
        (name for stem in known for name in (part + stem, stem) if name in names),
        None,
    )


def format_metrics(
    values: Mapping[str, float], baselines: Mapping[str, float] | None = None
) -> str:
    """The listed metrics among `values` ({name: value}, in joint training mpp/loss) as text; of one
    that is split by kind of patch only the parts. With `baselines`, named alike, each metric that
    has one stands beside the best of its own."""
    compared: dict[str, list[float]] = {}
    for name, value in (baselines or {}).items():
        if (metric := compared_with(name, values)) is not None:
            compared.setdefault(metric, []).append(value)
    shown = [
        name
        for name in values
        if name in compared or (find_metric(name).listed and not is_split(name, values))
    ]
    return ", ".join(_format_metric(name, values[name], compared.get(name, [])) for name in shown)


def _format_metric(name: str, value: float, baselines: list[float]) -> str:
    row = find_metric(name)
    text = f"{label(name)} {row.text(value)}"
    if not baselines:
        return text
    return f"{text} (to beat {row.text(max(baselines) if row.higher else min(baselines))})"


def format_baselines(values: Mapping[str, float]) -> str:
    """The baselines among `values` ({name: value}, in joint training mpp/entropy) as text: of each
    the metric that it is compared with, its value and its name."""
    return ", ".join(
        f"{name.removesuffix(_last(name))}{metric.words} {metric.text(value)} ({row.called})"
        for name, value in values.items()
        if (row := find_baseline(name)) and (metric := find_metric(row.compared_with[0]))
    )


def _last(name: str) -> str:
    return name.rpartition("/")[2]


def _of_kind(row: Metric, kind: str) -> Metric:
    """The row of a metric of one kind of patches."""
    main = row.by_kind and kind == MASKED
    return replace(
        row,
        name=f"{row.name}_{kind}",
        label=f"{row.label} {kind}" if row.label else "",
        listed=row.listed and row.by_kind,
        compared=row.compared and main,
        by_kind=False,
        column=f"{row.column}, {kind} patches" if row.column and main else "",
        chart=row.chart if kind == MASKED or not row.chart else row.chart + BY_KIND,
    )


def _unknown(name: str) -> Metric:
    """The row of a name that has none."""
    is_loss = name.startswith("loss")
    unit = LOSS if is_loss else NUMBER
    return Metric(name, unit, higher=not is_loss, listed=False, compared=False)


_TRAINING = {
    "lr": "Learning rate",
    "grad_norm": "Norm of the gradient",
    "images_per_s": "Images per second",
    "data_wait": "Share of time waiting for data",
    "memory_gib": "Memory, GiB",
}
_PROBES = {"linear": "linear probe", "few_shot_5": "5-shot", "few_shot_*": "", "knn": "k-NN"}
_PROBE = Metric(
    "probe_*", SHARE, "*", independent=True, listed=False, chart="Probes of the frozen features"
)
_SHOWN: dict[str, Any] = {"listed": False, "compared": False}  # in charts alone
# Earlier ones come first in the index, the runs tool and the sentences of a page
register(
    Metric("top1", SHARE, independent=True, column="test top-1", tested="top-1"),
    Metric("top5", SHARE, independent=True, tested="top-5"),
    Metric("real", SHARE, independent=True, tested="ReaL top-1"),  # by ImageNet-ReaL's labels
    *(replace(_PROBE, name=name, label="", column=column) for name, column in _PROBES.items()),
    _PROBE,
    # of a linear segmentation probe; pixels of an image are no independent cases
    Metric("miou", SHARE, column="segmentation mIoU"),
    Metric("pixel_accuracy", SHARE),
    Metric(
        "accuracy",
        SHARE,
        independent=True,
        by_kind=True,
        column="held-out accuracy",
        chart="Accuracy",
    ),
    Metric("loss", LOSS, higher=False, column="held-out loss", chart="Loss"),
    # RankMe: in how many directions features differ from their mean, and in how many they lie,
    # which falls to 1 where their mean outweighs all
    Metric("effective_rank", label="effective rank of features", **_SHOWN),
    Metric("rank", label="rank of the probes' features, with their mean", **_SHOWN),
    Metric("mean_cosine", label="mean cosine of two images' features", higher=False, **_SHOWN),
    # what an image tells of its prototype: H(mean p) - mean H(p), of log K
    Metric("information", SHARE, "information of prototypes", **_SHOWN),
    Metric("patch_information", SHARE, "information of patches' prototypes", **_SHOWN),
    *(Metric(name, chart=chart, **_SHOWN) for name, chart in _TRAINING.items()),
    *(Metric(name, COUNT, **_SHOWN) for name in ("step", "images", "seconds", "corrupted")),
)

_PATCH_LOSS = ("loss_masked", "loss")
register(
    Baseline("entropy", "the training colours' entropy", _PATCH_LOSS),
    Baseline("commonest", "the commonest colour", ("accuracy_masked",)),
    Baseline("neighbors", "the neighbours' mean", ("accuracy_masked",)),
    Baseline("variance", "the training mean", _PATCH_LOSS),
    Baseline("neighbors_error", "the neighbours' mean", _PATCH_LOSS),
    Baseline("zero", "each patch's own mean", _PATCH_LOSS),
    Baseline("chance_loss", "the loss of guessing", ("loss",)),
    Baseline("chance", "guessing", ("top1", "accuracy")),
    Baseline("majority_miou", "the commonest class", ("miou",)),
    Baseline("majority_pixel_accuracy", "the commonest class", ("pixel_accuracy",)),
)
