"""Evaluate an objective and its baselines on fixed held-out images with fixed corruption."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..callbacks import Row
from ..data import loaders
from ..data.batch_layout import BatchLayout
from ..data.batching import Batch, check_unreadable, is_labelled
from ..data.source import Source
from ..measurements import MetricKey, flat_name, read_flat_names
from ..objectives.base import Means, Metrics, Objective, Output, check_baselines, check_output
from ..recipe.schema import Data
from ..training.distributed import WatchedAccelerator
from ..training.loop import to_device
from ..training.metric_sums import Sums, add_metrics, means


def read_batches(
    source: Source,
    data: Data,
    batch_layout: BatchLayout,
    accelerator: WatchedAccelerator,
    most: int,
    **options: Any,
) -> list[Batch]:
    """Read held-out images into memory, an equal share on each process. Collective.

    Args:
        source: Split of the images.
        data: Preprocessing, and the share of images that may be unreadable.
        batch_layout: How batches are divided among the processes.
        accelerator: Processes that read images.
        most: Largest number of images to read, over all processes.
        **options: Further arguments of `loaders.held_out_batches`.

    Returns:
        The batches of this process.

    Raises:
        UserError: Too many images cannot be read.
    """
    batches = loaders.held_out_batches(source, data, batch_layout, most, **options)
    names: list[str] = []
    for batch in batches:
        names += batch.unreadable
    unreadable = accelerator.gather_parts(names)
    if unreadable:
        images = count_images(batches, accelerator) + len(unreadable)
        check_unreadable(len(unreadable), images, data, unreadable)
    return batches


def count_images(
    batches: list[Batch], accelerator: WatchedAccelerator, labelled: bool = False
) -> int:
    """Count the images of all processes. Collective.

    Args:
        batches: Batches of this process.
        accelerator: Processes that read images.
        labelled: Whether to count only images with a label or a list of labels.
    """
    if labelled:
        counts = [int(is_labelled(batch.label).sum()) for batch in batches]
    else:
        counts = [len(batch.key) for batch in batches]
    return sum(accelerator.gather_parts(counts))


class HeldOutEvaluator:
    """Evaluator of an objective on held-out images. Creating an evaluator is collective.

    Attributes:
        batches: Batches of this process, without empty batches.
        images: Number of measured images, over all processes.
        example: Batch of one or two images, the same on all processes.
        latest: {metric: (value, number of images)} of the last evaluation.
        baselines: {baseline: (value, number of images)} of the objective's baselines.
    """

    def __init__(self, batches: list[Batch], accelerator: WatchedAccelerator) -> None:
        self.batches = [batch for batch in batches if len(batch.key)]
        self.accelerator = accelerator
        self.images = count_images(batches, accelerator)
        # A process may have no image. All processes use the example of the lowest rank that has one
        local_examples = [batch.map(lambda values: values[:2]) for batch in self.batches[:1]]
        self.example = accelerator.gather_parts(local_examples)[0]
        self.latest: dict[MetricKey, tuple[float, int]] = {}
        self.baselines: dict[MetricKey, tuple[float, int]] = {}

    def measure_baselines(self, objective: Objective) -> Means:
        """Measure the objective's baselines on the held-out images, and return their values.

        Call this method once, before training. Most baselines depend only on the images. If the
        baselines change during training (`baselines_move`), for example with a teacher, each
        evaluation measures the baselines again.

        Raises:
            UserError: A baseline is not declared, or a share is not between 0 and 1.
        """
        baseline_means = self._means(objective, objective.baselines)
        check_baselines(objective, {name: value for name, (value, _) in baseline_means.items()})
        self.baselines = read_flat_names(baseline_means)
        return baseline_means

    def names(self, objective: Objective) -> list[str]:
        """Return the names of the objective's metrics, without baselines.

        Raises:
            UserError: The objective does not return a scalar loss and declared metrics.
        """
        output = objective(to_device(self.example, self.accelerator.device))
        check_output(objective, output)
        return list(output.metrics)

    def __call__(self, step: int, row: Row, objective: Objective) -> Iterator[tuple[str, float]]:
        self.latest = {}  # a failed evaluation must not leave older values
        measured = self._means(objective, lambda batch: _finite(objective(batch)))
        if objective.baselines_move:
            self.measure_baselines(objective)
        self.latest = read_flat_names(measured) | self.baselines
        for key, (value, _) in self.latest.items():
            yield flat_name(key._replace(is_held_out=True)), value

    def _means(self, objective: Objective, metrics_of: Callable[[Batch], Metrics]) -> Means:
        """Return the means of metrics over the held-out images of all processes. Collective.

        Args:
            objective: The objective, which may compute further metrics from the means.
            metrics_of: Function that computes the metrics of a batch.
        """
        sums: Sums = {}
        for batch in self.batches:
            add_metrics(sums, metrics_of(to_device(batch, self.accelerator.device)))
        return means(objective, sums, self.accelerator)


def _finite(output: Output) -> Metrics:
    """Return the metrics of a batch, or NaN for every metric if the loss is not finite.

    Otherwise an accuracy would look normal, because argmax of NaN logits also returns a class.
    """
    one_or_nan = torch.ones_like(output.loss).where(output.loss.isfinite(), torch.nan)
    return {name: (total * one_or_nan, count) for name, (total, count) in output.metrics.items()}
