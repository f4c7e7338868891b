"""What a run has trained on: the hashes of its images' contents, in trained_on.safetensors."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from ..data.batching import Batch, is_labelled
from ..data.contents import NO_HASHES, distinct, is_among
from ..runs.files import write_atomically
from ..runs.folder import TRAINED_ON
from ..training.distributed import WatchedAccelerator

LIMIT = 1_000_000  # images of a record


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
        found = load((folder / TRAINED_ON).read_bytes())
        return Record(found["images"], found["labels"], bool(found["complete"].all()))
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
        found = read(self.folder)
        self.record = found or Record(complete=step == 0)
        self.written = self._size() if found else None

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
    found = distinct(np.concatenate([NO_HASHES, *hashes]))
    return found[~is_among(found, known)][: LIMIT + 1]
