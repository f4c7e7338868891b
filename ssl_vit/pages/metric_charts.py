"""Rows of metrics.jsonl -> charts. No torch here."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..metrics import (
    BY_KIND,
    HELD_OUT,
    OF_PARTS,
    all_baselines,
    all_metrics,
    find_metric,
    is_of_model,
    label,
)
from . import metric_tables
from .blocks import Chart, Line
from .curve_points import POINTS, averaged, thinned

Rows = Sequence[Mapping[str, Any]]
# Charts of several metrics that come first
FIRST = [f"{chart}{more}" for more in ("", BY_KIND, OF_PARTS) for chart in ("Loss", "Accuracy")]


def charts(rows: Rows) -> list[Chart]:
    """All metrics of a run that have more than one value: those that share a chart first, the
    others one by one. A metric of held-out images is in the chart of its namesake in training."""
    known = {name: one for name, one in series(rows).items() if not _has_one_value(one[1])}
    shared = [*FIRST, *(row.chart for row in all_metrics() if row.chart)]
    by_title: dict[str, list[str]] = {title: [] for title in shared}
    for name in known:
        by_title.setdefault(_title(name), []).append(name)
    found = []
    for title, members in by_title.items():
        lines = [_curve(name, *known[name]) for name in members]
        if lines:
            found.append(Chart(title, [*lines, *_levels(rows, title)]))
    return found


def numbers(rows: Rows) -> list[list[str]]:
    """The metrics that were measured once, or have the same value each time, as rows of a table:
    name, value, first and last step."""
    return [
        [written(name), metric_tables.number(name.removeprefix(HELD_OUT), values[0]), _span(steps)]
        for name, (steps, values) in series(rows).items()
        if _has_one_value(values)
    ]


def _has_one_value(values: Sequence[float]) -> bool:
    return len({value if math.isfinite(value) else None for value in values}) == 1


def _span(steps: Sequence[int]) -> str:
    return f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,}"


def _title(name: str) -> str:
    stem = name.removeprefix(HELD_OUT)
    row, part = find_metric(stem), stem.rpartition("/")[0]
    own = label(stem) if row.label else stem
    if part in ("", "probe"):
        return row.chart or own
    return row.chart + OF_PARTS if row.chart and row.compared else own


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
    return {name: each for name, each in found.items() if is_of_model(name)}


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
    return label(name.removeprefix(HELD_OUT)) + (", held out" if name.startswith(HELD_OUT) else "")


def _levels(rows: Rows, title: str) -> Iterator[Line]:
    """The baselines of a chart's metrics, as constants over its steps."""
    for baseline in all_baselines():
        if title not in map(_title, baseline.compared_with):
            continue
        name = f"{HELD_OUT}{baseline.name}"
        values = [row[name] for row in rows if name in row]
        if values and math.isfinite(values[-1]):
            ends = [rows[0]["step"], rows[-1]["step"]]
            yield Line(f"baseline: {baseline.called}", ends, [values[-1]] * 2, "level")
