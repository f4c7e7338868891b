"""The images of an evaluation, read by all of its processes."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.data import DataLoader

from ..data import loaders, masks, sources
from ..data.batch_layout import BatchLayout
from ..data.batching import Batch
from ..data.source import Source
from ..data.workers import InterruptibleLoader
from ..recipe.schema import Recipe
from ..training import loop
from ..training.distributed import WatchedAccelerator


@dataclass(frozen=True)
class FrozenImages:
    """The splits of an evaluation; images are forwarded under `autocast`. `classes`: of their
    labels, 0 where none are read."""

    recipe: Recipe
    splits: sources.Splits
    classes: int
    accelerator: WatchedAccelerator
    batch_layout: BatchLayout

    def batches(self, source: Source, rows: np.ndarray | None = None) -> Iterator[Batch]:
        """This process's share of these rows, by default of all."""
        data, workers = self.recipe.data, self.recipe.compute.workers or 0
        loader = loaders.evaluation_loader(source, data, self.batch_layout, workers, rows)
        return self._watched(loader)

    def with_masks(self, source: Source, classes: int | None) -> Iterator[Batch]:
        """This process's share of all images and their masks, of so many classes if that is
        known."""
        data, workers = self.recipe.data, self.recipe.compute.workers or 0
        return self._watched(masks.loader(source, data, self.batch_layout, workers, classes))

    def _watched(self, loader: DataLoader) -> Iterator[Batch]:
        with InterruptibleLoader(loader) as batches:
            yield from self.accelerator.watch_loader(batches)

    def autocast(self) -> torch.autocast:
        return loop.autocast(self.recipe.compute.precision, self.accelerator)
