"""Turn metrics.jsonl into curves, and curves into charts.

A file is read once, row by row. A page has only as many points of a curve as a screen can show.
This module does not import torch.
"""

import itertools
import math
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..measurements import MASKED, UNRANKED, MetricKey, find_baseline, find_metric, read_flat_names
from ..metrics import is_model_metric, metric_label, metrics_to_compare
from ..runs.folder import parse_row
from .blocks import Chart, Line

# Points of a line on a page: two for each pixel column of a chart
DRAWN = 600
POINTS = 20  # a line with at most this many values has a point at each value
# titles of the charts that come first
FIRST_TITLES = ("Loss", "Accuracy")


class Curve(NamedTuple):
    """Metric by step: steps (N,), rising, and values (N,)."""

    steps: np.ndarray
    values: np.ndarray

    @property
    def is_constant(self) -> bool:
        """Whether the values never change, or no value is finite."""
        finite = np.isfinite(self.values)
        return not finite.any() or bool(finite.all() and self.values.min() == self.values.max())


Curves = Mapping[str, Curve]


class MetricRows(NamedTuple):
    """Content of metrics.jsonl.

    Attributes:
        steps: Steps of the rows (R,), rising.
        curves: {metric: curve}, in the order in which the metrics first appear.
        damaged: Number of lines that are left out. A line is left out if it is not a row, or if its
            step is not later than the step of the row before. (A run that resumes removes the rows
            of repeated steps.) An unfinished last line does not count.
    """

    steps: np.ndarray
    curves: dict[str, Curve]
    damaged: int = 0


def read(path: Path) -> MetricRows:
    """Read the rows of metrics.jsonl as curves.

    Without such a file, or if the path is no regular file, the result has no rows.

    Raises:
        OSError: The file cannot be read.
    """
    steps = array("q")
    columns: dict[str, tuple[array[int], array[float]]] = {}  # {metric: (steps, values)}
    damaged = 0
    if not path.is_file():  # reading a pipe would block
        return MetricRows(np.empty(0, np.int64), {})
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            row = parse_row(line)
            if row is None or (steps and row["step"] <= steps[-1]):
                # count the line, unless it has no line break and so is still being written
                damaged += line.endswith("\n")
                continue
            step = row.pop("step")
            steps.append(step)
            for name, value in row.items():
                if name not in columns:
                    columns[name] = array("q"), array("d")
                metric_steps, values = columns[name]
                metric_steps.append(step)
                values.append(value)
    curves = {name: Curve(*map(np.array, column)) for name, column in columns.items()}
    return MetricRows(np.array(steps), curves, damaged)


def model_curves(curves: Curves) -> dict[MetricKey, Curve]:
    """Return `{metric: curve}` of the model's metrics, without baselines and counts."""
    by_key = read_flat_names(curves)
    return {key: curve for key, curve in by_key.items() if is_model_metric(key)}


def charts(curves: Curves) -> list[Chart]:
    """Return charts of all metrics whose values change.

    A chart shows related metrics, such as the loss on training images and the loss on held-out
    images, and the baselines of these metrics. The charts of loss and accuracy come first.
    """
    by_title: dict[str, list[Line]] = {title: [] for title in FIRST_TITLES}
    for key, curve in model_curves(curves).items():
        if not curve.is_constant:
            by_title.setdefault(_chart_title(key), []).append(
                line(metric_title(key), thin_curve(curve))
            )
    titles_with_lines = {title for title, lines in by_title.items() if lines}
    for title, baseline_line in _baseline_lines(curves):
        if title in titles_with_lines:
            by_title[title].append(baseline_line)
    return [Chart(title, lines) for title, lines in by_title.items() if lines]


def constant_rows(curves: Curves) -> list[list[str]]:
    """Return the metrics that were measured once or are constant, as rows of a table.

    A row has the metric's name, its value, and the steps from the first to the last measurement.
    """
    rows = []
    for key, curve in model_curves(curves).items():
        if curve.is_constant:
            steps = f"{curve.steps[0]:,}"
            if len(curve.steps) > 1:
                steps = f"{curve.steps[0]:,} to {curve.steps[-1]:,}"
            value = find_metric(key).text(curve.values[0], page=True)
            rows.append([metric_title(key), value, steps])
    return rows


def _chart_title(key: MetricKey) -> str:
    """Return the title of the chart that shows a metric.

    Metrics with the same title share a chart:
    - "Loss": the loss on training images and on held-out images.
    - "Probes of the frozen features": all accuracies of probes. A measure without labels has a
      chart of its own.
    - "Accuracy": all patches and masked patches (`accuracy` and `accuracy_masked`).
    - "Accuracy by kind of patch": patches that were corrupted in another way than by masking
      (`accuracy_random` and `accuracy_kept`).
    """
    if key.is_probe and key.is_held_out and find_metric(key).unit != UNRANKED:
        return "Probes of the frozen features"
    title = metric_label(key._replace(patches=""))
    if key.patches not in ("", MASKED):
        title = f"{title} by kind of patch"
    # k-NN, mIoU, and names of the parts of a joint objective keep their spelling
    first_word = title.split()[0]
    if "/" in title or first_word != first_word.lower():
        return title
    return title[0].upper() + title[1:]


def line(name: str, curve: Curve) -> Line:
    """Return a curve as a line of a chart, with a point at each value if there are few values."""
    kind = "points" if len(curve.steps) <= POINTS else "line"
    return Line(name, curve.steps.tolist(), curve.values.tolist(), kind)


def metric_title(key: MetricKey) -> str:
    """Return the name of a metric for readers."""
    label = metric_label(key)
    if key.is_probe and key.is_held_out:
        return f"probe/{label}"
    return f"{label}, held-out" if key.is_held_out else label


def _baseline_lines(curves: Curves) -> Iterator[tuple[str, Line]]:
    """Yield the lines of baselines, each as (title of a chart, line).

    The line of a baseline is yielded for each chart with a metric that is compared with the
    baseline. A constant baseline becomes a level from the first to the last step of the run. A
    baseline that changes becomes a curve.
    """
    for key, curve in read_flat_names(curves).items():
        baseline = find_baseline(key)
        if baseline is None or not key.is_held_out:
            continue
        value = float(curve.values[-1])
        if not math.isfinite(value):
            continue
        label = f"baseline: {baseline.called}"  # such as "baseline: the commonest class"
        if key.is_probe:  # several probes share one chart
            label = f"{label}, {metric_label(key)}"
        baseline_line = line(label, thin_curve(curve))
        if curve.is_constant:
            first = min(int(any_curve.steps[0]) for any_curve in curves.values())
            last = max(int(any_curve.steps[-1]) for any_curve in curves.values())
            baseline_line = Line(label, [first, last], [value] * 2, "level")
        for title in dict.fromkeys(map(_chart_title, metrics_to_compare(key))):
            yield title, baseline_line


def thin_curve(curve: Curve, max_points: int = DRAWN) -> Curve:
    """Return a curve with fewer points, without losing a peak.

    The first and the last point are kept. The points between them are divided into stretches of
    about equal length. The lowest and the highest point of each stretch are kept. A value that is
    not finite counts as the highest.

    Args:
        curve: Curve with N points.
        max_points: Largest number of points of the result, above 4.
    """
    last = len(curve.steps) - 1
    if last < max_points:
        return curve
    height_N = np.where(np.isfinite(curve.values), curve.values, np.inf)
    # each stretch keeps two points, in addition to the first and the last point of the curve
    num_stretches = (max_points - 2) // 2
    # Stretch i goes from bounds[i] to bounds[i + 1]. All stretches cover the points 1 to last - 1
    bounds = 1 + np.arange(num_stretches + 1) * (last - 1) // num_stretches
    positions = {0, last}
    for start, end in itertools.pairwise(bounds):
        stretch = height_N[start:end]
        positions |= {int(start + stretch.argmin()), int(start + stretch.argmax())}
    kept = sorted(positions)
    return Curve(curve.steps[kept], curve.values[kept])
