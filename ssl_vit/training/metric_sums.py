"""Add up the metrics of batches and processes as sums and counts.

Only `means` turns sums into means, so that no metric is a mean of means.
"""

import torch
from torch import Tensor

from ..objectives.base import Means, Metrics, Objective
from .distributed import WatchedAccelerator

# Maps the rows, each named by (name of the metric, index among the values of the metric), to sums
# and counts (rows, 2) on the device. Batches with different metrics have separate entries.
Sums = dict[tuple[tuple[str, int], ...], Tensor]


def add_metrics(sums: Sums, metrics: Metrics, skipped: Tensor | None = None) -> None:
    """Add the metrics of a batch to the sums, on the device.

    Args:
        sums: Changed in place.
        metrics: {name: (sums, count)}; the sums are a scalar or (C,).
        skipped: Bool scalar; if true, the batch adds nothing.
    """
    names = tuple((name, place) for name, (a, _) in metrics.items() for place in range(a.numel()))
    if not names:
        return
    rows = torch.cat(
        [
            torch.stack([a.double().flatten(), count.double().expand(a.numel())], 1)
            for a, count in metrics.values()
        ]
    )
    if skipped is not None:
        rows = rows.masked_fill(skipped, 0)
    sums[names] = sums[names] + rows if names in sums else rows


def add_processes(sums: Sums, accelerator: WatchedAccelerator) -> Sums:
    """Add up the sums of all processes on the CPU. Collective.

    Processes may have different metrics.
    """
    total: Sums = {}
    parts = [(names, rows.cpu()) for names, rows in sums.items()]
    for names, rows in accelerator.gather_parts(parts):
        total[names] = total[names] + rows if names in total else rows
    return total


def means(objective: Objective, sums: Sums, accelerator: WatchedAccelerator) -> Means:
    """Return the means of an objective's metrics over all processes, except metrics with count 0.

    A metric with several sums (C,) gets the largest of its means. Then the objective computes what
    follows from the means of several metrics (`combine_means`). Collective; the host waits for the
    device.
    """
    totals: dict[tuple[str, int], tuple[float, float]] = {}
    for names, rows in add_processes(sums, accelerator).items():
        for key, (a, count) in zip(names, rows.tolist(), strict=True):
            known_sum, known_count = totals.get(key, (0.0, 0.0))
            totals[key] = known_sum + a, known_count + count
    result: Means = {}
    for (name, _), (a, count) in totals.items():
        if count and (name not in result or a / count > result[name][0]):
            result[name] = a / count, round(count)
    return objective.combine_means(result)
