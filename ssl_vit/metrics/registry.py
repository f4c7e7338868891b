"""Rows of metrics and baselines, by name. No torch here.

A full name may have more before it, the split (`validation/loss`) and the part of a joint
objective (`mpp/loss`), and a kind of patch after it (`loss_masked`), which needs no row of its own.
`register` adds rows; a name without one is shown as a plain number.
"""

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace

SHARE = "share"  # in per cent
LOSS = "loss"
NUMBER = "number"
COUNT = "count"  # what a row of metrics.jsonl counts beside its metrics
HELD_OUT = "validation/"  # begins the name of a metric of held-out images, in metrics.jsonl

# Kinds of corrupted patches; of a metric by kind, arms are compared by the first
KINDS = {
    "masked": "of patches under the mask token",
    "random": "of patches replaced by another",
    "kept": "of corrupted patches that were left as they are",
}
MASKED = next(iter(KINDS))
# What follows the title of a chart
BY_KIND = " by kind of patch"
OF_PARTS = " of each part"


@dataclass(frozen=True)
class Metric:
    """A metric.

    Attributes:
        name: a `*` at its end stands for any text.
        unit: SHARE, LOSS, NUMBER or COUNT.
        sentence: what it is.
        higher: whether higher values are better.
        label: its name for readers, in which `*` is the text that the name's stands for; by
            default the name in words.
        independent: of a share, whether its cases are independent, so that it has an interval.
        listed: whether it stands in a run's results on the terminal and in the Hub's model-index.
        compared: whether a report compares arms by it, of held-out images.
        by_kind: whether its kinds of patches stand in its place there.
        short: its name in a running run's line; empty where it is not in it.
        column: its column in the index of runs; empty without one. The first that a run has stands
            in its line of the runs tool.
        title: its name in the first sentences of a page, which have the first that was measured;
            empty where it is not in them.
        main: its place in the order by which a study that names no measure is judged; 0: in none.
        chart: the title of the chart that it shares with others; empty where it has its own.
        tested: of a metric of test images by their labels, its name in a study's report, which
            compares final parts by it; nothing may be chosen by it.
    """

    name: str
    unit: str = NUMBER
    sentence: str = ""
    higher: bool = True
    label: str = ""
    independent: bool = False
    listed: bool = True
    compared: bool = True
    by_kind: bool = False
    short: str = ""
    column: str = ""
    title: str = ""
    main: int = 0
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
        called: its name for readers.
        guess: what it predicts.
        to_beat: how its value is written before training.
        compared_with: metrics; the model's is the first of these that was measured.
    """

    name: str
    called: str
    guess: str
    to_beat: str
    compared_with: tuple[str, ...]


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
    return _baselines.get(_last(name))


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
    """The baselines among `values` ({name: value}, in joint training mpp/entropy) as text."""
    return ", ".join(
        f"{name.rpartition('/')[0]} {row.to_beat.format(value)}".lstrip()
        for name, value in values.items()
        if (row := find_baseline(name))
    )


def _last(name: str) -> str:
    return name.rpartition("/")[2]


def names_of(row: Metric) -> list[str]:
    """A metric's name, and those of its kinds of patches."""
    return [row.name, *(f"{row.name}_{kind}" for kind in KINDS if row.by_kind)]


def _of_kind(row: Metric, kind: str) -> Metric:
    """The row of a metric of one kind of patches."""
    main = row.by_kind and kind == MASKED
    return replace(
        row,
        name=f"{row.name}_{kind}",
        label=f"{row.label} {kind}" if row.label else "",
        sentence=f"{row.sentence or '-'}, {KINDS[kind]}",
        listed=row.listed and row.by_kind,
        compared=row.compared and main,
        by_kind=False,
        short=kind if row.short and main else "",
        column=f"{row.column}, {kind} patches" if row.column and main else "",
        title="",
        main=0,
        chart=row.chart if kind == MASKED or not row.chart else row.chart + BY_KIND,
    )


def _unknown(name: str) -> Metric:
    """The row of a name that has none."""
    stem, _, kind = name.partition("_")
    return Metric(
        name,
        unit=LOSS if stem == "loss" else NUMBER,
        higher=not name.startswith("loss"),
        sentence=f"-, {KINDS[kind]}" if kind in KINDS else "",
        listed=False,
        compared=False,
        chart=_metrics[stem].chart + BY_KIND if stem in ("loss", "accuracy") else "",
    )
