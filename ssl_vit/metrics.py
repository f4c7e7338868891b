"""What each metric and baseline is: one row, read by terminal, pages, index, card and reports. What
has no row is shown by its name. No torch here."""

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from types import MappingProxyType

SHARE = "share"  # of independent cases, in per cent: it has an interval
PIXEL_SHARE = "share of pixels"  # in per cent; pixels of an image are no independent cases
LOSS = "loss"
NUMBER = "number"  # says how training goes: runs are not compared by it
COUNT = "count"  # what a row of metrics.jsonl counts beside its metrics
HELD_OUT = "validation/"  # begins the name of a metric of held-out images, in metrics.jsonl
# Begins that of a probe while a run trains, in metrics.jsonl and in result.json
PROBE, PROBED = "probe/", "probe_"

# Kinds of corrupted patches, at the end of a metric's name; arms are compared by the first
KINDS = ("masked", "random", "kept")
MASKED = KINDS[0]
# Measured of a classifier on test images: nothing may be chosen by them
TESTED = ("top1", "top5", "real")
# Probes of a frozen encoder in the one order in which they are shown. The first that was measured
# heads reports, and has the verdict: few-shot depends on a draw of images, so it comes last
PROBES = ("linear", "attentive", "knn", "few_shot_5", "miou")
# Which stand in lists of runs, and after these an objective's own shares. The first that a run has
# stands in its line of the runs tool and in the first sentences of its page
MAIN = ("top1", *PROBES, "accuracy_masked", "accuracy")


@dataclass(frozen=True)
class Metric:
    """A metric.

    Attributes:
        name: a `*` at its end stands for any text.
        label: its name for readers, in which `*` is the text that the name's stands for; by
            default the name in words.
        higher: whether higher values are better.
        unit: SHARE, PIXEL_SHARE, LOSS, NUMBER or COUNT.
    """

    name: str
    label: str = ""
    higher: bool = True
    unit: str = NUMBER

    def __post_init__(self) -> None:
        if self.unit == LOSS and self.higher:
            raise ValueError(f"{self.name}: of a loss, expected higher=False")

    @property
    def words(self) -> str:
        return self.label or self.name.replace("_", " ")

    @property
    def in_per_cent(self) -> bool:
        return self.unit in (SHARE, PIXEL_SHARE)

    @property
    def kind(self) -> str:
        """Of which kind of corrupted patches it is; empty where of all."""
        last = self.name.rpartition("_")[2]
        return last if last in KINDS else ""

    @property
    def compared(self) -> bool:
        """Whether a report compares arms by it."""
        whole = not self.kind or (self.kind == MASKED and self.unit != LOSS)
        return whole and self.unit in (SHARE, PIXEL_SHARE, LOSS)

    def text(self, value: float, page: bool = False) -> str:
        """A value on the terminal, where lines stay as long as they are, or on a page."""
        if self.in_per_cent:
            return f"{value:.2%}" if page else f"{value:.1%}"
        return f"{value:.4g}" if page else f"{value:#.4g}".rstrip(".")


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
# images; and its name for readers. Without an encoder always the commonest class of these images
FRESH, START, PIXELS, COMMONEST = "fresh_", "start_", "pixels_", "commonest_"
COMMONEST_CLASS = "the commonest class"
PROBE_BASELINES = {
    FRESH: "fresh weights",
    START: "the initial weights",
    PIXELS: "the pixels at 8 x 8",
    COMMONEST: COMMONEST_CLASS,
}

Row = Metric | Baseline
# The package's rows, by name
_metrics: dict[str, Metric] = {}
_baselines: dict[str, Baseline] = {}
# Rows of plugins that come before the package's, by name; None where plugins disagree on a name
NO_ROWS: Mapping[str, Row | None] = MappingProxyType({})
_scope: ContextVar[Mapping[str, Row | None]] = ContextVar("rows of plugins", default=NO_ROWS)


def register(*rows: Row) -> None:
    """Add rows to the package's; the same row again is no error.

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


@contextmanager
def own_rows(*runs: Iterable[Row]) -> Iterator[None]:
    """Look names up among the rows of plugins first, then among the package's.

    A name has no row where runs disagree on it: the row of one run would be wrong for another one.

    Args:
        runs: the rows that are known by name in each run (`rows_of_run`).
    """
    found: dict[str, Row | None] = {}
    for rows in runs:
        for row in rows:
            found[row.name] = row if found.get(row.name, row) == row else None
    token = _scope.set(found)
    try:
        yield
    finally:
        _scope.reset(token)


def rows_of_run(own: Sequence[Row], measured: Iterable[str]) -> list[Row]:
    """Return the rows of a run: those that its plugin declares, and the package's rows of what else
    it has measured, so that `own_rows` sees where two runs mean different things by a name.

    Args:
        own: the rows that the run's plugin declares.
        measured: names of the run's metrics and baselines.
    """
    named = {row.name for row in own}
    others = sorted({_last(name) for name in measured} - named)
    metrics = [_metrics[name] for name in others if name in _metrics]
    return [*own, *metrics, *(_baselines[name] for name in others if name in _baselines)]


def all_metrics() -> list[Metric]:
    return [row for row in {**_metrics, **_scope.get()}.values() if isinstance(row, Metric)]


def all_baselines() -> list[Baseline]:
    return [row for row in {**_baselines, **_scope.get()}.values() if isinstance(row, Baseline)]


def _metric(name: str) -> Metric | None:
    """Return the metric of exactly that name."""
    row = _scope.get().get(name, _metrics.get(name))
    return row if isinstance(row, Metric) else None


def main_metrics() -> list[str]:
    """Those that lists of runs show, the loss, which every objective has, last."""
    own = [row.name for row in all_metrics() if row.unit == SHARE and row not in _TASK_METRICS]
    return [*MAIN, *own, "loss"]


def _ordered_as(name: str) -> str:
    """Return the name by which a measure is ordered: any number of shots counts as 5-shot, and a
    probe in a training run as the probe."""
    if is_few_shot(name):
        return "few_shot_5"
    measure = _last(name).removeprefix(PROBED)
    return measure if measure in MAIN else _last(name)


def place(name: str) -> float:
    """Return the place of a measure in the one order of measures: that of MAIN, then all others.
    More shots come before fewer: one shot is the noisiest measure."""
    measure = _ordered_as(name)
    if measure not in MAIN:
        return len(MAIN)
    shots = name.rpartition("_")[2] if is_few_shot(name) else ""
    return MAIN.index(measure) + (1 / (1 + int(shots)) if shots.isdecimal() else 0)


def is_few_shot(name: str) -> bool:
    """Return whether a measure is a few-shot accuracy, with any number of shots."""
    return _last(name).removeprefix(PROBED).startswith("few_shot_")


def is_of_frozen(name: str) -> bool:
    """Return whether a measure is a probe's of a frozen encoder, in a training run too. Such
    measures compare between objectives."""
    return _ordered_as(name) in PROBES


def in_order(names: Iterable[str]) -> list[str]:
    """Return the measures that lists of runs show, in the one order of measures; the loss comes
    last."""
    order = main_metrics()
    shown = [name for name in names if _ordered_as(name) in order]
    return sorted(shown, key=lambda name: (order.index(_ordered_as(name)), place(name), name))


def _find(name: str) -> Metric | None:
    """The row of a name without its part; of a kind of patches, or of a probe in a training run,
    that of the metric."""
    if row := _metric(name):
        return row
    stem, _, kind = name.rpartition("_")
    if kind in KINDS and (row := _metric(stem)):
        return replace(row, name=name, label=row.label and f"{row.label} {kind}")
    if name.startswith(PROBED) and (row := _find(name.removeprefix(PROBED))):
        return replace(row, name=name, label=row.words)
    for row in all_metrics():
        if row.name.endswith("*") and name.startswith(row.name[:-1]):
            rest = name.removeprefix(row.name[:-1]).replace("_", " ")
            return replace(row, name=name, label=row.label.replace("*", rest))
    return None


def find_metric(name: str) -> Metric:
    """The row of a full name; of one that has none a number, or a loss if it begins so."""
    last = _last(name)
    is_loss = last.startswith("loss")
    return _find(last) or Metric(last, higher=not is_loss, unit=LOSS if is_loss else NUMBER)


def has_row(name: str) -> bool:
    """Whether a full name is a registered metric's."""
    return _find(_last(name)) is not None


def has_direction(name: str) -> bool:
    """Whether it is known if higher values are better: of a metric with a row, and of any loss."""
    return has_row(name) or find_metric(name).unit == LOSS


def score(name: str, value: float) -> float:
    """A value of the metric, turned so that of two the larger is the better; -inf if not finite."""
    if not math.isfinite(value):
        return -math.inf
    return value if find_metric(name).higher else -value


def find_baseline(name: str) -> Baseline | None:
    """The row of a full name; None for a metric's."""
    last = _last(name)
    row = _scope.get().get(last)
    if row is None:
        for start, called in PROBE_BASELINES.items():
            if last.startswith(start):
                return Baseline(last, called, (last.removeprefix(start),))
        row = None if last in _scope.get() else _baselines.get(last)
    return row if isinstance(row, Baseline) else None


def is_of_model(name: str) -> bool:
    """Whether it is a metric, neither a baseline nor a count."""
    return find_baseline(name) is None and find_metric(name).unit != COUNT


def label(name: str) -> str:
    """A full name for readers."""
    before = name.removesuffix(_last(name))
    return before.replace("_", " ") + find_metric(name).words


def is_split(name: str, names: Container[str]) -> bool:
    """Whether a metric stands among others by kind of patch, which are shown in its place; but a
    loss, which is learned from as a whole, in theirs."""
    row = find_metric(name)
    return bool(row.kind) if row.unit == LOSS else f"{name}_{MASKED}" in names


def compared_with(baseline: str, names: Container[str]) -> str | None:
    """Which of the measured metrics a baseline is compared with: of its own part, else of the
    whole; where that is split by kind of patch that of masked ones, which baselines are of."""
    row, part = find_baseline(baseline), baseline.removesuffix(_last(baseline))
    known = row.compared_with if row else ()
    found = (name for stem in known for name in (part + stem, stem) if name in names)
    if (name := next(found, None)) is None:
        return None
    masked = f"{name}_{MASKED}"
    return masked if masked in names else name


def format_metrics(
    values: Mapping[str, float], baselines: Mapping[str, float] | None = None
) -> str:
    """The metrics among `values` ({name: value}, in joint training mpp/loss) that have a row, as
    text; of one that is split by kind of patch only the parts. With `baselines`, named alike, each
    metric that has one stands beside the best of its own."""
    compared: dict[str, list[float]] = {}
    for name, value in (baselines or {}).items():
        if (metric := compared_with(name, values)) is not None:
            compared.setdefault(metric, []).append(value)
    shown = [
        name
        for name in values
        if name in compared or (is_of_model(name) and has_row(name) and not is_split(name, values))
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


_TASK_METRICS = (
    Metric("top1", "top-1", unit=SHARE),
    Metric("top5", "top-5", unit=SHARE),
    Metric("real", "ReaL top-1", unit=SHARE),  # by ImageNet-ReaL's labels
    Metric("linear", unit=SHARE),
    Metric("attentive", unit=SHARE),
    Metric("few_shot_*", "*-shot", unit=SHARE),
    Metric("knn", "k-NN", unit=SHARE),
    Metric("miou", "mIoU", unit=PIXEL_SHARE),  # of a linear segmentation probe
    Metric("pixel_accuracy", unit=PIXEL_SHARE),
    Metric("accuracy", unit=SHARE),
    Metric("loss", higher=False, unit=LOSS),
    # RankMe: in how many directions features differ from their mean, and in how many they lie,
    # which falls to 1 where their mean outweighs all
    Metric("effective_rank", "effective rank of features"),
    Metric("rank", "rank of the probes' features, with their mean"),
    Metric("mean_cosine", "mean cosine of two images' features", higher=False),
    # what an image tells of its prototype: H(mean p) - mean H(p), of log K
    Metric("information", "information of prototypes"),
    Metric("patch_information", "information of patches' prototypes"),
    Metric("lr", "learning rate"),
    Metric("grad_norm", "norm of the gradient"),
    Metric("images_per_s", "images per second"),
    Metric("data_wait", "share of time waiting for data"),
    Metric("memory_gib", "memory, GiB"),
    # one file that is damaged is read once an epoch
    Metric("unreadable", "reads of images that failed", higher=False),
    *(Metric(name, unit=COUNT) for name in ("step", "images", "seconds", "corrupted")),
)
_PATCH_LOSS = ("loss_masked", "loss")
register(
    *_TASK_METRICS,
    Baseline("entropy", "the training colours' entropy", _PATCH_LOSS),
    Baseline("commonest", "the commonest colour", ("accuracy_masked",)),
    Baseline("neighbors", "the neighbours' mean", ("accuracy_masked",)),
    Baseline("variance", "the training mean", _PATCH_LOSS),
    Baseline("neighbors_error", "the neighbours' mean", _PATCH_LOSS),
    Baseline("zero", "a prediction of zero", _PATCH_LOSS),
    Baseline("chance_loss", "the loss of guessing", ("loss",)),
    Baseline("chance", "guessing", ("accuracy",)),
    Baseline("majority", COMMONEST_CLASS, ("accuracy",)),
    Baseline("majority_top1", COMMONEST_CLASS, ("top1",)),
    Baseline("majority_miou", COMMONEST_CLASS, ("miou",)),
    Baseline("majority_pixel_accuracy", COMMONEST_CLASS, ("pixel_accuracy",)),
)
