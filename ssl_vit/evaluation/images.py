"""Read the images of an evaluation on all processes."""

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
class EvaluationImages:
    """Splits of an evaluation, and methods that read them in batches.

    Unreadable images are left out and reported, each image once, after the last batch of a split.
    A UserError is raised if there are more unreadable images than data.unreadable allows.

    Attributes:
        recipe: Recipe of the evaluation.
        splits: Splits of the evaluation.
        classes: Number of classes of the labels, 0 if no labels are read.
        accelerator: Processes of the evaluation.
        batch_layout: How batches are divided among the processes.
        workers: Data loading processes of each process.
        warn: Receives a line for each image that is left out, on rank 0.
        should_stop: Returns whether this process stops waiting for images.
        forwarded: Number of images that all processes have requested so far.
        reported: Unreadable images that were already reported.
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
    reported: set[str] = field(default_factory=set)

    @property
    def test(self) -> Source:
        """Return the test images, which every evaluation has."""
        assert self.splits.test is not None
        return self.splits.test

    def not_counted(self) -> "EvaluationImages":
        """Return a copy that reads images for a baseline, with a count `forwarded` of its own."""
        return replace(self)

    def read_batches(self, source: Source, rows: np.ndarray | None = None) -> Iterator[Batch]:
        """Yield this process's batches of a split, with images cropped as for evaluation.

        Args:
            source: Split to read.
            rows: Rows to read. None: all rows.
        """
        images = len(source) if rows is None else len(rows)
        loader = loaders.evaluation_loader(
            source, self.recipe.data, self.batch_layout, self.workers, rows
        )
        return self._read_with_progress(loader, images, split_images=len(source))

    def read_batches_with_masks(self, source: Source, classes: int | None) -> Iterator[Batch]:
        """Yield this process's batches of a split, with images and segmentation masks.

        Args:
            source: Split to read.
            classes: Number of classes in the masks. None: unknown.
        """
        loader = masks.loader(source, self.recipe.data, self.batch_layout, self.workers, classes)
        images = len(source)
        return self._read_with_progress(loader, images, split_images=images)

    def _read_with_progress(
        self, loader: DataLoader, images: int, split_images: int
    ) -> Iterator[Batch]:
        """Yield batches with progress lines, and report unreadable images after the last batch.

        Args:
            loader: Loader of this process's batches.
            images: Number of images that all processes read.
            split_images: Number of images of the split.

        Raises:
            UserError: The unreadable images are a larger share of the split than data.unreadable
                allows.
        """
        names: list[str] = []
        # result.json has the number of requested images, including unreadable images
        self.forwarded += images
        with InterruptibleLoader(loader, self.should_stop) as batches:
            watched = self.accelerator.watch_loader(batches)
            what = f"batches of {images:,} images"
            for batch in console.with_progress(watched, len(loader), what):
                names += batch.unreadable
                if len(batch.key):
                    yield batch
        unreadable = self.accelerator.gather_parts(names)
        for name in unreadable:
            if self.accelerator.is_main_process and name not in self.reported:
                self.warn(f"left out: {name}")
        self.reported.update(unreadable)
        if unreadable:
            check_unreadable(len(unreadable), split_images, self.recipe.data, unreadable)

    def autocast(self) -> torch.autocast:
        return loop.autocast(self.recipe.compute.precision, self.accelerator)
