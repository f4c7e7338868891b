"""Which images a run has trained on: hashes of their contents, in trained_on.safetensors; and how
many of those that a run is measured on it, or one that its initial weights come from, has trained
on, wherever the images lie."""

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
from ..recipe.schema import Recipe, chosen_on_held_out
from ..runs import identity
from ..runs.files import write_atomically
from ..runs.folder import TRAINED_ON, Run
from ..training.distributed import WatchedAccelerator, on_main

LIMIT = 1_000_000  # images of a record
NO_RECORD = ": it has no record of its images"
NOT_HERE = ": it or its recipe is not here"
FIRST_STEPS = " for all: it has no record of its first steps"


class Record(NamedTuple):
    """
    Attributes:
        images: int64, as `distinct`: hashes of images that a run has trained on.
        labels: of those of them whose label it has learned.
        complete: whether these are all of its images.
    """

    images: np.ndarray = NO_HASHES
    labels: np.ndarray = NO_HASHES
    complete: bool = True


NOTHING = Record()


def read(folder: Path) -> Record | None:
    """The record in a run's folder; None where there is none that can be read."""
    try:
        arrays = load((folder / TRAINED_ON).read_bytes())
        return Record(arrays["images"], arrays["labels"], bool(arrays["complete"].all()))
    except (OSError, SafetensorError, KeyError):
        return None


@dataclass(eq=False, repr=False)
class TrainedOn:
    """Collects what all processes train on.

    Args:
        folder: the run's.
        learns_labels: whether the run learns the labels of images that have one.
    """

    folder: Path
    learns_labels: bool
    record: Record = NOTHING  # of all processes, as of the last `gather`
    images: list[np.ndarray] = field(default_factory=list)  # of this process since then
    labels: list[np.ndarray] = field(default_factory=list)  # of those of them whose label it learns
    written: tuple[int, int, bool] | None = None  # `_size` of the record in the folder

    def load(self, step: int) -> None:
        """Go on from the folder's record; where there is none, what was trained on before this
        step is not known."""
        stored = read(self.folder)
        self.record = stored or Record(complete=step == 0)
        self.written = self._size() if stored else None

    def watch(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The batches, each collected as it is taken, and without `content`, which no objective
        reads."""
        for batch in batches:
            is_full = len(self.record.images) >= LIMIT and not self.record.complete
            if batch.content is not None and not is_full:
                self.images.append(batch.content.ravel())
                if self.learns_labels:
                    labelled_B = is_labelled(batch.label).numpy()
                    self.labels.append(batch.content[labelled_B].ravel())
            yield batch._replace(content=None)

    def gather(self, accelerator: WatchedAccelerator) -> bool:
        """Record what every process has trained on; whether there are more images from here on than
        are recorded. Collective."""
        before = self.record
        new = [_new(self.images, before.images), _new(self.labels, before.labels)]
        self.images, self.labels = [], []
        parts = accelerator.gather_parts([new])
        images = distinct(np.concatenate([before.images, *(part[0] for part in parts)]))
        labels = distinct(np.concatenate([before.labels, *(part[1] for part in parts)]))
        is_over = len(images) > LIMIT
        if is_over:
            room = LIMIT - len(before.images)
            images = distinct(np.concatenate([before.images, _new([images], before.images)[:room]]))
            labels = labels[is_among(labels, images)]
        self.record = Record(images, labels, before.complete and not is_over)
        return before.complete and is_over

    def write(self) -> None:
        """Write the record, if it has grown.

        Raises:
            OSError: it cannot be written.
        """
        if self._size() != self.written:
            images, labels, complete = self.record
            arrays = {"images": images, "labels": labels, "complete": np.array([complete])}
            write_atomically(self.folder / TRAINED_ON, save(arrays))
            self.written = self._size()

    def _size(self) -> tuple[int, int, bool]:
        return len(self.record.images), len(self.record.labels), self.record.complete


def _new(hashes: list[np.ndarray], known: np.ndarray) -> np.ndarray:
    """The hashes that are not known, each once, up to one more than the limit: that there is more
    is still seen then."""
    hashes_now = distinct(np.concatenate([NO_HASHES, *hashes]))
    return hashes_now[~is_among(hashes_now, known)][: LIMIT + 1]


class MeasuredImages:
    """The test images of a run, and the held-out ones that it is measured on.

    Args:
        recipe: of the run.
        splits: its images.
    """

    def __init__(self, recipe: Recipe, splits: Splits) -> None:
        self.parts: dict[str, tuple[Source, np.ndarray]] = {}  # {split: images, rows of them}
        if splits.test is not None:
            tested = split_images.measured_images(recipe, splits.test)
            self.parts["test"] = tested, np.arange(len(tested))
        apart = split_images.held_out_split(recipe) == "validation"
        if apart and (recipe.trains or chosen_on_held_out(recipe)):
            held_out = splits.validation
            if not recipe.trains:
                held_out = split_images.measured_images(recipe, held_out)
            most = recipe.eval.images if recipe.trains else len(held_out)
            if recipe.checkpoint.best:  # k-NN takes others than those that chose (online.prepare)
                most *= 2
            self.parts["validation"] = held_out, loaders.held_out_rows(held_out, most)

    @cached_property
    def hashes(self) -> dict[str, np.ndarray]:
        """{split: the hash of each image}; they are read when they are first asked for."""
        return {split: hashes_of(*part) for split, part in self.parts.items()}

    def seen_by(self, run: str, record: Record | None) -> list[SeenImages]:
        """How many of them are in a run's record; nothing where there are none.

        Args:
            run: the run's folder.
            record: what it has trained on; None: it has no record.
        """
        if not self.parts:
            return []
        if record is None:
            return [SeenImages(run=run, unknown=NO_RECORD)]
        of = {split: len(rows) for split, (_, rows) in self.parts.items()}
        images, labels = (
            {
                split: int(is_among(split_hashes, known).sum())
                for split, split_hashes in self.hashes.items()
            }
            for known in (record.images, record.labels)
        )
        unknown = "" if record.complete else FIRST_STEPS
        if len(record.images) >= LIMIT and not record.complete:
            unknown = f" for all: it has more than {LIMIT:,}"
        return [SeenImages(run=run, of=of, images=images, labels=labels, unknown=unknown)]


def seen_before(
    run: Run, measured: MeasuredImages, facts: dict[str, Any], accelerator: WatchedAccelerator
) -> list[SeenImages]:
    """As `seen_images`, of the process that writes and prints it, and nothing of the others; what
    the folder of a run that has begun records of it, as the weights may be gone since. It is looked
    for again where test images have come, with eval.test since the run began.

    Args:
        run: the run that is measured.
        measured: the images that it is measured on.
        facts: of environment.json, with the fingerprints of the run's splits; gets what is found.
        accelerator: of its processes.
    """

    def find() -> list[SeenImages]:
        if identity.is_begun(run.folder) and (run.folder / "environment.json").exists():
            known = run.environment()
            if known.seen is not None and facts["data"].keys() <= known.data.keys():
                return known.seen
        return seen_images(run.recipe, measured)

    seen = on_main(accelerator, find) or []
    facts["seen"] = [images.content() for images in without_paths(seen)]
    return seen


def without_paths(seen: list[SeenImages]) -> list[SeenImages]:
    """What files have of it: no paths of this machine."""
    return [images.model_copy(update={"run": Path(images.run).name}) for images in seen]


def seen_images(recipe: Recipe, measured: MeasuredImages) -> list[SeenImages]:
    """What the runs that a run's initial weights and teachers come from have seen of the images
    that it is measured on, the latest first."""
    result: list[SeenImages] = []
    for run, before in identity.runs_before(recipe):
        if before:
            result += measured.seen_by(str(run), read(run))
        else:  # what is not here any more, or of a plugin, keeps nobody from going on
            result.append(SeenImages(run=str(run), unknown=NOT_HERE))
    return result
