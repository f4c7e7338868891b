"""Rows of metrics.jsonl -> charts. No torch here."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..formatting import COMPARED_WITH
from .blocks import POINTS, Chart, Line, averaged, thinned
from .metric_tables import BASELINES

Rows = Sequence[Mapping[str, Any]]
HELD_OUT = "validation/"


class ChartGroup(NamedTuple):
    """Metrics of one chart: those whose name, without `validation/`, matches."""

    title: str
    pattern: re.Pattern[str]


GROUPS = (
    ChartGroup("Loss", re.compile(r"loss|loss_masked")),
    ChartGroup("Accuracy", re.compile(r"accuracy|accuracy_masked")),
    ChartGroup("Loss by kind of patch", re.compile(r"loss_\w+")),
    ChartGroup("Accuracy by kind of patch", re.compile(r"accuracy_\w+")),
    ChartGroup("Loss of each part", re.compile(r"\w+/loss")),
    ChartGroup("Accuracy of each part", re.compile(r"\w+/(accuracy|accuracy_masked)")),
    ChartGroup(
        "Probes of the frozen features", re.compile(r"(probe[/_])?(few_shot_\d+|linear|knn)")
    ),
    ChartGroup("Learning rate", re.compile(r"lr")),
    ChartGroup("Norm of the gradient", re.compile(r"grad_norm")),
    ChartGroup("Images per second", re.compile(r"images_per_s")),
    ChartGroup("Share of time waiting for data", re.compile(r"data_wait")),
    ChartGroup("Memory, GiB", re.compile(r"memory_gib")),
)
# No curves: what counts along, or is the same at each step
LEFT_OUT = ("step", "images", "seconds", "corrupted")


def charts(rows: Rows) -> list[Chart]:
    """All metrics of a run: groups of them in the order of GROUPS, the others one by one. A metric
    of held-out images is in the chart of its namesake in training."""
    known = series(rows)
    by_title: dict[str, list[str]] = {group.title: [] for group in GROUPS}
    for name in known:
        by_title.setdefault(_title(name), []).append(name)
    found = []
    for title, members in by_title.items():
        lines = [_curve(name, *known[name]) for name in members]
        if lines:
            found.append(Chart(title, [*lines, *_levels(rows, title)]))
    return found


def _title(name: str) -> str:
    stem = name.removeprefix(HELD_OUT)
    return next((group.title for group in GROUPS if group.pattern.fullmatch(stem)), stem)


def series(rows: Rows) -> dict[str, tuple[list[int], list[float]]]:
    """{metric that has a curve: its steps and values}, in one pass: a file of others may have more
    metrics than can each be looked for in every row."""
    found: dict[str, tuple[list[int], list[float]]] = {}
    for row in rows:
        for name, value in row.items():
            if name not in found:
                found[name] = [], []
            steps, values = found[name]
            steps.append(row["step"])
            values.append(value)
    left_out = (*LEFT_OUT, *BASELINES)
    return {name: each for name, each in found.items() if name.rpartition("/")[2] not in left_out}


def _curve(name: str, steps: list[int], values: list[float]) -> Line:
    """A metric by step."""
    return Line(written(name), *thinned(steps, values), _kind(steps))


def mean_curve(label: str, steps: list[int], values: list[float], most: int) -> Line:
    """A metric by step as means of at most `most` stretches."""
    return Line(label, *averaged(steps, values, most), _kind(steps))


def _kind(steps: Sequence[int]) -> str:
    return "points" if len(steps) <= POINTS else "line"


def written(name: str) -> str:
    """A metric's name for readers."""
    held_out = name.startswith(HELD_OUT)
    return name.removeprefix(HELD_OUT).replace("_", " ") + (", held out" if held_out else "")


def _levels(rows: Rows, title: str) -> Iterator[Line]:
    """The baselines of a chart's metrics, as constants over its steps."""
    for name, metrics in COMPARED_WITH.items():
        if title not in map(_title, metrics):
            continue
        known = [row for row in rows if f"{HELD_OUT}{name}" in row]
        values = [row[f"{HELD_OUT}{name}"] for row in known]
        if values and math.isfinite(values[-1]):
            ends = [rows[0]["step"], rows[-1]["step"]]
            called = f"baseline: {BASELINES[name].called}"
            yield Line(called, ends, [values[-1]] * 2, "level")
