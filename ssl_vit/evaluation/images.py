"""The images of an evaluation, read by all of its processes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch.utils.data import DataLoader

from ..data import loaders, masks, run_splits
from ..data.batch_layout import BatchLayout
from ..data.batching import Batch, check_unreadable
from ..data.source import Source
from ..data.workers import InterruptibleLoader
from ..recipe.schema import Recipe
from ..runs import console
from ..training import loop
from ..training.distributed import WatchedAccelerator


@dataclass
class Images:
    """The splits of an evaluation; images are forwarded under `autocast`. After the last batch
    images that cannot be read, which nothing is measured on, are named, each once (`said`); more
    than data.unreadable are a UserError.

    Attributes:
        recipe, splits, accelerator, batch_layout: of the evaluation.
        classes: of the labels; 0 where none are read.
        workers: data loading processes of each process.
        warn: takes a line for each image that is left out, on rank 0.
        should_stop: whether to wait no longer for images that do not come, on one process.
        forwarded: how many images of all processes were asked for so far.
    """

    recipe: Recipe
    splits: run_splits.Splits
    classes: int
    accelerator: WatchedAccelerator
    batch_layout: BatchLayout
    workers: int
    warn: Callable[[str], None]
    should_stop: Callable[[], bool] = lambda: False
    forwarded: int = 0
    said: set[str] = field(default_factory=set)

    @property
    def test(self) -> Source:
        """The test images, which an evaluation has."""
        assert self.splits.test is not None
        return self.splits.test

    def not_counted(self) -> "Images":
        """The same, to be read for another network than the encoder: not in `forwarded`."""
        return replace(self)

    def batches(self, source: Source, rows: np.ndarray | None = None) -> Iterator[Batch]:
        """This process's share of these rows, by default of all."""
        wanted = len(source) if rows is None else len(rows)
        loader = loaders.evaluation_loader(
            source, self.recipe.data, self.batch_layout, self.workers, rows
        )
        return self._watched(loader, wanted, len(source))

    def with_masks(self, source: Source, classes: int | None) -> Iterator[Batch]:
        """This process's share of all images and their masks, of so many classes if that is
        known."""
        loader = masks.loader(source, self.recipe.data, self.batch_layout, self.workers, classes)
        return self._watched(loader, len(source), len(source))

    def _watched(self, loader: DataLoader, wanted: int, images: int) -> Iterator[Batch]:
        """The batches of so many wanted images of a split; of its `images`, a share may be
        unreadable (data.unreadable)."""
        own: list[str] = []
        self.forwarded += wanted
        with InterruptibleLoader(loader, self.should_stop) as batches:
            watched = self.accelerator.watch_loader(batches)
            if self.accelerator.is_main_process:
                watched = console.told(watched, len(loader), f"batches of {wanted:,} images")
            for batch in watched:
                own += batch.unreadable
                if len(batch.key):
                    yield batch
        unreadable = self.accelerator.gather_parts(own)
        for text in unreadable:
            if self.accelerator.is_main_process and text not in self.said:
                self.warn(f"left out: {text}")
        self.said.update(unreadable)
        if unreadable:
            check_unreadable(len(unreadable), images, self.recipe.data, unreadable)

    def autocast(self) -> torch.autocast:
        return loop.autocast(self.recipe.compute.precision, self.accelerator)
