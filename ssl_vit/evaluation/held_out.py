"""Evaluate an objective and its baselines on fixed held-out images with fixed corruption."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..callbacks import Row
from ..data import loaders
from ..data.batch_layout import BatchLayout
from ..data.batching import Batch, check_unreadable, is_labelled
from ..data.source import Source
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
    """Read this process's share of at most `most` held-out images (see `loaders.held_out_batches`).

    Collective.

    Raises:
        UserError: Too many images cannot be read.
    """
    batches = loaders.held_out_batches(source, data, batch_layout, most, **options)
    unreadable = accelerator.gather_parts([text for b in batches for text in b.unreadable])
    if unreadable:
        seen = count_images(batches, accelerator) + len(unreadable)
        check_unreadable(len(unreadable), seen, data, unreadable)
    return batches


def count_images(
    batches: list[Batch], accelerator: WatchedAccelerator, labelled: bool = False
) -> int:
    """Count all processes' images, or only the labelled images. Collective."""
    counts = [int(is_labelled(b.label).sum()) if labelled else len(b.key) for b in batches]
    return sum(accelerator.gather_parts(counts))


class HeldOutEvaluator:
    """Evaluator of an objective on held-out images. Create it on all processes at the same time.

    Attributes:
        batches: Batches of this process that have a readable image.
        images: Number of images that all processes measure, each image once.
        example: One or two images, also on a process without a batch.
        latest: {name: (value, n)} of the last evaluation.
        baselines: {name: (value, n)} of the baselines.
    """

    def __init__(self, batches: list[Batch], accelerator: WatchedAccelerator) -> None:
        self.batches = [batch for batch in batches if len(batch.key)]
        self.accelerator = accelerator
        self.images = count_images(batches, accelerator)
        first = [batch.map(lambda values: values[:2]) for batch in self.batches[:1]]
        self.example = accelerator.gather_parts(first)[0]
        self.latest: Means = {}
        self.baselines: Means = {}

    def measure_baselines(self, objective: Objective) -> Means:
        """Compute the objective's baselines.

        Since the images never change, once is enough, unless the objective's baselines move.

        Raises:
            UserError: See `check_baselines`.
        """
        self.baselines = self._means(objective, objective.baselines)
        check_baselines(objective, {name: value for name, (value, _) in self.baselines.items()})
        return self.baselines

    def names(self, objective: Objective) -> list[str]:
        """Return the names of the objective's metrics, without baselines.

        Raises:
            UserError: See `check_output`.
        """
        output = objective(to_device(self.example, self.accelerator.device))
        check_output(objective, output)
        return list(output.metrics)

    def __call__(self, step: int, row: Row, objective: Objective) -> Iterator[tuple[str, float]]:
        self.latest = {}  # a failed evaluation must not leave older values
        measured = self._means(objective, lambda batch: _finite(objective(batch)))
        if objective.baselines_move:
            self.measure_baselines(objective)
        self.latest = measured | self.baselines
        for name, (value, _) in self.latest.items():
            yield f"validation/{name}", value

    def _means(self, objective: Objective, metrics_of: Callable[[Batch], Metrics]) -> Means:
        """Return the means of metrics over all processes' batches."""
        sums: Sums = {}
        for batch in self.batches:
            add_metrics(sums, metrics_of(to_device(batch, self.accelerator.device)))
        return means(objective, sums, self.accelerator)


def _finite(output: Output) -> Metrics:
    """Return the metrics of a batch, all NaN if the loss is not finite.

    Otherwise an accuracy would look normal, because the highest of NaN logits is some class.
    """
    factor = torch.ones_like(output.loss).where(output.loss.isfinite(), torch.nan)
    return {name: (a * factor, count) for name, (a, count) in output.metrics.items()}
