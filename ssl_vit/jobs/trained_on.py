"""What a run has trained on: the hashes of its images' contents, in trained_on.safetensors."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from accelerate.utils import gather_object
from safetensors import SafetensorError
from safetensors.numpy import load, save

from ..data.batching import Batch, is_labelled
from ..data.contents import NO_HASHES, distinct, is_among
from ..runs.files import write_atomically
from ..runs.folder import TRAINED_ON

LIMIT = 1_000_000  # images of a record
WAITING = 2**16  # hashes that are collected before those that came twice are dropped


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

    def with_more(self, parts: Iterable["Record"]) -> "Record":
        """This one with what others have besides, up to LIMIT images."""
        images, labels = self.images, self.labels
        for part in parts:
            images = distinct(np.concatenate([images, part.images]))
            labels = distinct(np.concatenate([labels, part.labels]))
        if len(images) <= LIMIT:
            return Record(images, labels, self.complete)
        new = images[~is_among(images, self.images)]
        images = distinct(np.concatenate([self.images, new[: LIMIT - len(self.images)]]))
        return Record(images, labels[is_among(labels, images)], complete=False)


NOTHING = Record()


def read(folder: Path) -> Record | None:
    """The record in a run's folder; None where there is none that can be read."""
    try:
        found = load((folder / TRAINED_ON).read_bytes())
        images, labels, complete = (found[name] for name in Record._fields)
    except (OSError, SafetensorError, KeyError):
        return None
    if images.dtype != np.int64 or labels.dtype != np.int64:
        return None
    return Record(distinct(images.ravel()), distinct(labels.ravel()), bool(complete.all()))


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
    fresh: list[Record] = field(default_factory=list)  # of this process since; not yet `distinct`
    waiting: int = 0  # images in `fresh` that came after its first entry
    written: tuple[int, int, bool] | None = None  # `_size` of the record in the folder

    def load(self, step: int) -> None:
        """Go on from the folder's record; where there is none, what was trained on before this
        step is not known."""
        found = read(self.folder)
        self.record = found or Record(complete=step == 0)
        self.written = self._size() if found else None

    def watch(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The batches, each collected as it is taken, and without `content`, which no objective
        reads."""
        for batch in batches:
            self._add(batch)
            yield batch._replace(content=None)

    def _add(self, batch: Batch) -> None:
        is_full = len(self.record.images) >= LIMIT and not self.record.complete
        if batch.content is None or is_full:
            return
        learned = NO_HASHES
        if self.learns_labels:
            learned = batch.content[is_labelled(batch.label).numpy()]
        self.fresh.append(Record(batch.content.ravel(), learned.ravel()))
        self.waiting += batch.content.size
        if self.waiting >= WAITING:
            self._thin()

    def _thin(self) -> None:
        """Drop what is recorded already or came twice, and of the rest what is beyond the limit;
        that there is more is still seen then."""
        images = distinct(np.concatenate([NO_HASHES, *(one.images for one in self.fresh)]))
        labels = distinct(np.concatenate([NO_HASHES, *(one.labels for one in self.fresh)]))
        images = images[~is_among(images, self.record.images)][: LIMIT + 1]
        labels = labels[~is_among(labels, self.record.labels)][: LIMIT + 1]
        self.fresh = [Record(images, labels)]
        self.waiting = 0

    def gather(self) -> bool:
        """Record what every process has trained on; whether there are more images from here on than
        are recorded. Collective."""
        self._thin()
        was_complete = self.record.complete
        self.record = self.record.with_more(gather_object(self.fresh))
        self.fresh = []
        return was_complete and not self.record.complete

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
