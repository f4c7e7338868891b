"""Add up the metrics of batches and processes as sums and counts.

Only `means` turns sums into means, so that no metric is a mean of means.
"""

import torch
from torch import Tensor

from ..objectives.base import Means, Metrics, Objective
from .distributed import WatchedAccelerator

# {names of rows: rows}, for example {(("loss", 0), ("accuracy", 0)): [[5.1, 8.0], [3.0, 8.0]]}. A
# row is (sum, count) of one value of a metric. The name of a row is (metric, index of the value),
# because a metric may have several values. The rows of an entry are one float64 tensor (rows, 2) on
# the device. Batches with different metrics have separate entries.
Sums = dict[tuple[tuple[str, int], ...], Tensor]


def add_metrics(sums: Sums, metrics: Metrics, skipped: Tensor | None = None) -> None:
    """Add the metrics of a batch to the sums, on the device.

    Args:
        sums: Sums so far, changed in place (for the format, see `Sums`).
        metrics: {name: (sum, count)} of the batch. The sum is a scalar, or has shape (C,) for a
            metric with C values. The count is a scalar.
        skipped: Bool scalar on the device. If true, the batch adds nothing.
    """
    names: list[tuple[str, int]] = []
    parts = []
    for name, (total, count) in metrics.items():
        num_values = total.numel()
        names += [(name, index) for index in range(num_values)]
        parts.append(torch.stack([total.double().flatten(), count.double().expand(num_values)], 1))
    if not names:
        return
    rows = torch.cat(parts)
    if skipped is not None:
        rows = rows.masked_fill(skipped, 0)
    key = tuple(names)
    sums[key] = sums[key] + rows if key in sums else rows


def add_processes(sums: Sums, accelerator: WatchedAccelerator) -> Sums:
    """Add up the sums of all processes, on the CPU of every process. Collective.

    Each process gathers the entries of all processes. Entries with the same row names are added, in
    the order of ranks.

    Args:
        sums: Sums of this process. Processes may have different metrics.
        accelerator: Processes of the run.
    """
    total: Sums = {}
    parts = [(names, rows.cpu()) for names, rows in sums.items()]
    for names, rows in accelerator.gather_parts(parts):
        total[names] = total[names] + rows if names in total else rows
    return total


def means(objective: Objective, sums: Sums, accelerator: WatchedAccelerator) -> Means:
    """Return the mean and the count of each metric over all processes. Collective.

    The sums and counts of all batches and processes are added before the division. For a metric
    with several values, the largest mean is returned. For example, the baseline "majority" has a
    value for each class: the accuracy of naming this class for every image. The largest mean is the
    accuracy of naming the commonest class. Metrics with count 0 are left out. The host waits for
    the device.

    Args:
        objective: Objective, which may compute further metrics from the means (`combine_means`).
        sums: Sums of this process.
        accelerator: Processes of the run.

    Returns:
        {metric: (mean, count)}.
    """
    totals: dict[tuple[str, int], tuple[float, float]] = {}
    for names, rows in add_processes(sums, accelerator).items():
        for name_and_index, (row_sum, row_count) in zip(names, rows.tolist(), strict=True):
            total, count = totals.get(name_and_index, (0.0, 0.0))
            totals[name_and_index] = total + row_sum, count + row_count
    result: Means = {}
    for (name, _), (total, count) in totals.items():
        if not count:
            continue
        mean = total / count
        if name not in result or mean > result[name][0]:
            result[name] = mean, round(count)
    return objective.combine_means(result)
