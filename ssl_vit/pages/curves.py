"""metrics.jsonl -> curves -> charts. A file is read once, row by row, and a page holds as many
points of a curve as a screen shows. No torch here."""

import itertools
import math
from array import array
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..metrics import (
    HELD_OUT,
    MASKED,
    PROBE,
    find_baseline,
    find_metric,
    is_of_model,
    label,
    main_metrics,
)
from ..runs.folder import parse_row
from .blocks import Chart, Line

# Points of a line in a page: two for each of the screen's columns that a chart is wide
DRAWN = 600
POINTS = 20  # values up to which each is drawn as a point
# Charts that come first
FIRST = ("Loss", "Accuracy")


class Curve(NamedTuple):
    """A metric by step: steps (N,), rising, and values (N,)."""

    steps: np.ndarray
    values: np.ndarray

    @property
    def is_constant(self) -> bool:
        """Whether it was measured once, has the same value each time, or is never finite."""
        finite = np.isfinite(self.values)
        return not finite.any() or bool(finite.all() and self.values.min() == self.values.max())


Curves = Mapping[str, Curve]


class Rows(NamedTuple):
    """What metrics.jsonl holds.

    Attributes:
        steps: of its rows (R,), rising.
        curves: {metric: its curve}, in the order of their first rows.
        damaged: lines that are left out, as they are no rows, or of no later step than the row
            before; but for a last one that is being written. A run that is resumed removes the rows
            of steps that it makes again.
    """

    steps: np.ndarray
    curves: dict[str, Curve]
    damaged: int = 0


def read(path: Path) -> Rows:
    """The rows of a file; none of one that is not there or no regular file.

    Raises:
        OSError: it cannot be read.
    """
    steps = array("q")
    columns: dict[str, tuple[array[int], array[float]]] = {}
    damaged = 0
    if not path.is_file():  # reading a pipe would block
        return Rows(np.empty(0, np.int64), {})
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            row = parse_row(line)
            if row is None or (steps and row["step"] <= steps[-1]):
                damaged += line.endswith("\n")
                continue
            step = row.pop("step")
            steps.append(step)
            for name, value in row.items():
                if name not in columns:
                    columns[name] = array("q"), array("d")
                at, values = columns[name]
                at.append(step)
                values.append(value)
    curves = {name: Curve(*map(np.array, column)) for name, column in columns.items()}
    return Rows(np.array(steps), curves, damaged)


def of_model(curves: Curves) -> dict[str, Curve]:
    """The curves of metrics, without baselines and counts."""
    return {name: curve for name, curve in curves.items() if is_of_model(name)}


def of_table(names: Container[str]) -> list[str]:
    """Of these names of curves the held-out metrics that lists of runs show, in their order."""
    shown = (f"{HELD_OUT}{name}" for name in main_metrics())
    return [name for name in shown if name in names]


def charts(curves: Curves) -> list[Chart]:
    """All metrics of a run that have more than one value, the loss first. A metric of held-out
    images is in the chart of its namesake in training."""
    by_title: dict[str, list[Line]] = {title: [] for title in FIRST}
    for name, curve in of_model(curves).items():
        if not curve.is_constant:
            by_title.setdefault(_title(name), []).append(line(written(name), thinned(curve)))
    levels = [*_levels(curves)]
    return [
        Chart(title, [*lines, *(level for its_title, level in levels if its_title == title)])
        for title, lines in by_title.items()
        if lines
    ]


def numbers(curves: Curves) -> list[list[str]]:
    """The metrics that were measured once, or have the same value each time, as rows of a table:
    name, value, first and last step."""
    rows = []
    for name, (steps, values) in of_model(curves).items():
        if Curve(steps, values).is_constant:
            span = f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,}"
            value = find_metric(name.removeprefix(HELD_OUT)).text(values[0], page=True)
            rows.append([written(name), value, span])
    return rows


def _title(name: str) -> str:
    """The title of a metric's chart."""
    stem = name.removeprefix(HELD_OUT)
    if stem.startswith(PROBE):
        return "Probes of the frozen features"
    if kind := find_metric(stem).kind:
        stem = stem.removesuffix(f"_{kind}")
    title = label(stem) + (" by kind of patch" if kind not in ("", MASKED) else "")
    # a name that somebody has spelled stays as it is: k-NN, mIoU, a part of joint training
    first = title.split()[0]
    spelled = "/" in title or first != first.lower()
    return title if spelled else title[0].upper() + title[1:]


def line(name: str, curve: Curve) -> Line:
    """A curve as a line of a chart; one of few values has a point at each."""
    kind = "points" if len(curve.steps) <= POINTS else "line"
    return Line(name, curve.steps.tolist(), curve.values.tolist(), kind)


def written(name: str) -> str:
    """A metric's name for readers."""
    return label(name.removeprefix(HELD_OUT)) + (", held-out" if name.startswith(HELD_OUT) else "")


def _levels(curves: Curves) -> Iterator[tuple[str, Line]]:
    """The baselines with the titles of the charts of the metrics that they are compared with, as
    constants over the run's steps; as curves those that move."""
    for name, known in curves.items():
        baseline = find_baseline(name)
        if baseline is None or not name.startswith((HELD_OUT, PROBE)):
            continue
        value, part = float(known.values[-1]), name.rpartition("/")[0]
        if not math.isfinite(value):
            continue
        first = min(int(one.steps[0]) for one in curves.values())
        last = max(int(one.steps[-1]) for one in curves.values())
        called = f"baseline: {baseline.called}"
        if name.startswith(PROBE):  # of several probes in one chart
            called += f", {label(baseline.compared_with[0])}"
        level = Line(called, [first, last], [value] * 2, "level")
        for title in dict.fromkeys(_title(f"{part}/{one}") for one in baseline.compared_with):
            yield title, level if known.is_constant else line(called, thinned(known))


def thinned(curve: Curve, most: int = DRAWN) -> Curve:
    """At most `most` points of a curve, more than 4: its ends, and of each stretch of equally many
    points the lowest and the highest, so that no peak is lost; what is not finite counts as a peak
    too."""
    last = len(curve.steps) - 1
    if last < most:
        return curve
    height = np.where(np.isfinite(curve.values), curve.values, np.inf)
    stretches = (most - 2) // 2
    kept = {0, last}
    for start, end in itertools.pairwise(1 + np.arange(stretches + 1) * (last - 1) // stretches):
        kept |= {int(start + find(height[start:end])) for find in (np.argmin, np.argmax)}
    chosen = sorted(kept)
    return Curve(curve.steps[chosen], curve.values[chosen])
