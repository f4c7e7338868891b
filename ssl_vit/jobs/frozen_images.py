"""The images of an evaluation, read by all of its processes."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from accelerate.utils import gather_object
from torch.utils.data import DataLoader

from ..data import loaders, masks, sources
from ..data.batch_layout import BatchLayout
from ..data.batching import Batch, check_unreadable
from ..data.source import Source
from ..data.workers import InterruptibleLoader
from ..recipe.schema import Recipe
from ..training import loop
from ..training.distributed import WatchedAccelerator


@dataclass(frozen=True)
class FrozenImages:
    """The splits of an evaluation; images are forwarded under `autocast`. `classes`: of their
    labels, 0 where none are read. After the last batch images that cannot be read, which nothing is
    measured on, are named, each once (`said`); more than data.unreadable are a UserError."""

    recipe: Recipe
    splits: sources.Splits
    classes: int
    accelerator: WatchedAccelerator
    batch_layout: BatchLayout
    said: set[str] = field(default_factory=set)

    def batches(self, source: Source, rows: np.ndarray | None = None) -> Iterator[Batch]:
        """This process's share of these rows, by default of all."""
        data, workers = self.recipe.data, self.recipe.compute.workers or 0
        loader = loaders.evaluation_loader(source, data, self.batch_layout, workers, rows)
        return self._watched(loader, len(source))

    def with_masks(self, source: Source, classes: int | None) -> Iterator[Batch]:
        """This process's share of all images and their masks, of so many classes if that is
        known."""
        data, workers = self.recipe.data, self.recipe.compute.workers or 0
        loader = masks.loader(source, data, self.batch_layout, workers, classes)
        return self._watched(loader, len(source))

    def _watched(self, loader: DataLoader, images: int) -> Iterator[Batch]:
        own: list[str] = []
        with InterruptibleLoader(loader) as batches:
            for batch in self.accelerator.watch_loader(batches):
                own += batch.unreadable
                yield batch
        unreadable = gather_object(own)
        for text in unreadable:
            if self.accelerator.is_main_process and text not in self.said:
                print(f"warning: left out: {text}", flush=True)
        self.said.update(unreadable)
        if unreadable:
            check_unreadable(len(unreadable), images, self.recipe.data, unreadable[-1])

    def autocast(self) -> torch.autocast:
        return loop.autocast(self.recipe.compute.precision, self.accelerator)
