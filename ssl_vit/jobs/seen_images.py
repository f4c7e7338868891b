"""Record which images a run trains on, and count how many of the measured images were seen.

The record, trained_on.safetensors, holds hashes of the contents of images, so an image is
recognised wherever the file lies. Measured images are compared with the records of the run and of
the runs that made the initial weights.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from ..data import loaders
from ..data.batching import Batch, is_labelled
from ..data.contents import NO_HASHES, distinct, hashes_of, is_among
from ..data.run_splits import Splits
from ..data.source import Source
from ..evaluation import split_images
from ..recipe.records.run import SeenImages
from ..recipe.schema import Recipe, describe_held_out_choices
from ..runs import identity
from ..runs.files import write_atomically
from ..runs.folder import TRAINED_ON, Run
from ..training.distributed import WatchedAccelerator, on_main

LIMIT = 1_000_000  # largest number of images in a record
# Reasons why the training images of a run are not all known
NO_RECORD = "the run has no record of its training images"
NOT_HERE = "the folder of this run, or the recipe in it, is missing"
FIRST_STEPS = "the run has no record of the images of its first steps"


class SeenRecord(NamedTuple):
    """Images that a run has trained on.

    Attributes:
        images: Hashes of the images, int64, sorted and without repetition as from `distinct`.
        labels: Hashes of the images whose labels the run has learned, in the same form.
        complete: Whether the record has all training images of the run.
    """

    images: np.ndarray = NO_HASHES
    labels: np.ndarray = NO_HASHES
    complete: bool = True


NOTHING = SeenRecord()


def read(folder: Path) -> SeenRecord | None:
    """Read the record in a run's folder. Return None if the record is missing or damaged."""
    try:
        arrays = load((folder / TRAINED_ON).read_bytes())
        return SeenRecord(arrays["images"], arrays["labels"], bool(arrays["complete"].all()))
    except (OSError, SafetensorError, KeyError):
        return None


@dataclass(eq=False, repr=False)
class TrainedImages:
    """Collector of the images that all processes train on.

    Args:
        folder: The run's folder.
        learns_labels: Whether the run learns the labels of labelled images.
    """

    folder: Path
    learns_labels: bool
    record: SeenRecord = NOTHING  # images of all processes up to the last `gather`
    # Hashes that this process has collected since the last `gather`, as in SeenRecord
    images: list[np.ndarray] = field(default_factory=list)
    labels: list[np.ndarray] = field(default_factory=list)
    written_size: tuple[int, int, bool] | None = None  # `_size` of the record in the folder

    def load(self, step: int) -> None:
        """Continue the record in the folder when training starts at `step`.

        If there is no record and `step` is not 0, the images of the first steps are unknown, so the
        new record is incomplete.
        """
        stored = read(self.folder)
        self.record = stored or SeenRecord(complete=step == 0)
        self.written_size = self._size() if stored else None

    def watch(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the batches, and collect the hashes of their images until the record is full.

        A record is full if it has LIMIT images and is no longer complete. The yielded batches have
        no hashes (`content`), because no objective reads hashes.
        """
        for batch in batches:
            is_full = len(self.record.images) >= LIMIT and not self.record.complete
            if batch.content is not None and not is_full:
                self.images.append(batch.content.ravel())
                if self.learns_labels:
                    labelled_B = is_labelled(batch.label).numpy()
                    self.labels.append(batch.content[labelled_B].ravel())
            yield batch._replace(content=None)

    def gather(self, accelerator: WatchedAccelerator) -> bool:
        """Add to the record the images that all processes have collected since the last call.

        All processes must call this method. The record holds at most LIMIT images. If there are
        more images, the record keeps all earlier images and as many new images as fit. The record
        is then no longer complete.

        Returns:
            Whether this call made a complete record incomplete.
        """
        before = self.record
        new_here = [
            _new_hashes(self.images, before.images),
            _new_hashes(self.labels, before.labels),
        ]
        # `gather_parts` joins the lists of all processes. Here each list has one pair of arrays
        new_of_processes = accelerator.gather_parts([new_here])
        new_images, new_labels = zip(*new_of_processes, strict=True)
        self.images, self.labels = [], []
        images = distinct(np.concatenate([before.images, *new_images]))
        labels = distinct(np.concatenate([before.labels, *new_labels]))
        has_overflowed = len(images) > LIMIT
        if has_overflowed:
            room = LIMIT - len(before.images)
            fitting = _new_hashes([images], before.images)[:room]
            images = distinct(np.concatenate([before.images, fitting]))
            labels = labels[is_among(labels, images)]
        self.record = SeenRecord(images, labels, before.complete and not has_overflowed)
        return before.complete and has_overflowed

    def write(self) -> None:
        """Write the record if it has changed since the last call.

        A record only grows or becomes incomplete, so a changed record has another `_size`.

        Raises:
            OSError: The file cannot be written.
        """
        if self._size() != self.written_size:
            images, labels, complete = self.record
            arrays = {"images": images, "labels": labels, "complete": np.array([complete])}
            write_atomically(self.folder / TRAINED_ON, save(arrays))
            self.written_size = self._size()

    def _size(self) -> tuple[int, int, bool]:
        """Return the numbers of hashes, and whether the record is complete."""
        return len(self.record.images), len(self.record.labels), self.record.complete


def _new_hashes(hashes: list[np.ndarray], recorded: np.ndarray) -> np.ndarray:
    """Return the hashes that are not in `recorded`, sorted and without repetition.

    At most LIMIT + 1 hashes are returned, which is enough to notice that the record is full.
    """
    distinct_hashes = distinct(np.concatenate([NO_HASHES, *hashes]))
    return distinct_hashes[~is_among(distinct_hashes, recorded)][: LIMIT + 1]


class MeasuredImages:
    """Test images of a run, and the held-out images that the run is measured on.

    Args:
        recipe: Recipe of the run.
        splits: Images of the run.

    Attributes:
        parts: {split: (images, rows that are measured)}.
    """

    def __init__(self, recipe: Recipe, splits: Splits) -> None:
        self.parts: dict[str, tuple[Source, np.ndarray]] = {}
        if splits.test is not None:
            test = split_images.measured_images(recipe, splits.test)
            self.parts["test"] = test, np.arange(len(test))
        has_held_out = split_images.held_out_split(recipe) == "validation"
        # An evaluation measures held-out images only to choose something, such as a learning rate
        if has_held_out and (recipe.trains or describe_held_out_choices(recipe)):
            held_out = splits.validation
            if recipe.trains:
                num_images = recipe.eval.images
            else:
                held_out = split_images.measured_images(recipe, held_out)
                num_images = len(held_out)
            # k-NN may use as many further images, which did not choose the best checkpoint
            # (online.prepare)
            if recipe.checkpoint.best:
                num_images *= 2
            self.parts["validation"] = held_out, loaders.held_out_rows(held_out, num_images)

    @cached_property
    def hashes(self) -> dict[str, np.ndarray]:
        """Return {split: hash of each measured image}. The images are read at the first use."""
        return {split: hashes_of(*part) for split, part in self.parts.items()}

    def count_seen(self, run: str, record: SeenRecord | None) -> list[SeenImages]:
        """Count how many of the measured images a run has trained on.

        The counts of an incomplete record may be too small. The entry then gives the reason: the
        record is full, or the file of the record was missing when the run was resumed.

        Args:
            run: Name or folder of the run.
            record: Images that the run has trained on. None: the run has no record.

        Returns:
            A list with one entry, the counts for the run. Empty if no images are measured.
        """
        if not self.parts:
            return []
        if record is None:
            return [SeenImages(run=run, unknown=NO_RECORD)]

        def counts(recorded: np.ndarray) -> dict[str, int]:
            """Return {split: number of measured images whose hash is among `recorded`}."""
            return {
                split: int(is_among(hashes, recorded).sum())
                for split, hashes in self.hashes.items()
            }

        if record.complete:
            why_incomplete = ""
        elif len(record.images) >= LIMIT:
            why_incomplete = f"the record of its training images ends after {LIMIT:,} images"
        else:
            why_incomplete = FIRST_STEPS
        return [
            SeenImages(
                run=run,
                of={split: len(rows) for split, (_, rows) in self.parts.items()},
                images=counts(record.images),
                labels=counts(record.labels),
                unknown=why_incomplete,
            )
        ]


def load_or_count_seen(
    run: Run, measured: MeasuredImages, facts: dict[str, Any], accelerator: WatchedAccelerator
) -> list[SeenImages]:
    """Count the measured images that earlier runs have trained on, and add the counts to `facts`.

    If the run has begun before, the counts are read from environment.json, because the folders of
    earlier runs may be gone. If test images were added since then (eval.test), the images are
    counted again. All processes must call this function, and rank 0 counts.

    Args:
        run: Run that is measured.
        measured: Images that the run is measured on.
        facts: Entries for environment.json, with the fingerprints of the splits. The counts are
            added as `seen`, with names of runs instead of paths.
        accelerator: Processes of the run.

    Returns:
        An entry for each earlier run on rank 0. Empty on other processes.
    """

    def find() -> list[SeenImages]:
        if identity.is_begun(run.folder) and (run.folder / "environment.json").exists():
            recorded = run.environment()
            has_all_splits = facts["data"].keys() <= recorded.data.keys()
            if recorded.seen is not None and has_all_splits:
                return recorded.seen
        return seen_images(run.recipe, measured)

    seen = on_main(accelerator, find) or []  # None on processes other than rank 0
    facts["seen"] = [images.content() for images in without_paths(seen)]
    return seen


def without_paths(seen: list[SeenImages]) -> list[SeenImages]:
    """Replace the path of each run by the name of the folder. Paths belong to this machine."""
    return [images.model_copy(update={"run": Path(images.run).name}) for images in seen]


def seen_images(recipe: Recipe, measured: MeasuredImages) -> list[SeenImages]:
    """Count the measured images that earlier runs have trained on.

    Earlier runs are those that trained the initial weights and teachers of this run, and the runs
    before them.

    Args:
        recipe: Recipe of the run.
        measured: Images that the run is measured on.

    Returns:
        An entry for each earlier run, the latest first.
    """
    counts: list[SeenImages] = []
    for run, run_recipe in identity.runs_before(recipe):
        if run_recipe:
            counts += measured.count_seen(str(run), read(run))
        else:  # a run that is missing, or that needs a plugin, must not stop this run
            counts.append(SeenImages(run=str(run), unknown=NOT_HERE))
    return counts
