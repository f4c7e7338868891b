"""Read splits of the Hub and of parquet files as streams, shard by shard.

A stream (an `IterableDataset` of `datasets`) is read without downloading or copying files first,
but has no random access to rows. The samples of a step depend on the number of processes, unlike
the samples of a Source, so exact resume needs the same number.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import fsspec
import numpy as np

from .. import rng
from ..errors import UserError, reason
from ..formatting import format_bytes, format_count, format_image_count
from .labels import Labels
from .source import Missing, Raw, Source, Store

if TYPE_CHECKING:
    import datasets

# The largest window (images that are shuffled at a time), in images and encoded bytes, of all
# processes together. 10,000 photographs of ImageNet have 1.1 GB
WINDOW, WINDOW_BYTES = 10_000, 2 * 2**30
PREVIEW = 2048  # first images of a stream that baselines and fingerprints use as a Source


class StreamedImage(NamedTuple):
    """Encoded image of a stream, with label (-1 for none), shard and row."""

    image: bytes
    label: int
    shard: int
    row: int


class MemoryStore(Store):
    """Images of a stream, kept in memory."""

    def __init__(self, images: Sequence[StreamedImage]) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def fetch(self, rows: np.ndarray) -> list[Raw]:
        return [self.images[row].image for row in rows.tolist()]

    def sizes(self) -> np.ndarray:
        """Return the bytes of at most PREVIEW images.

        The limit keeps a fingerprint independent of the number of images that were taken.
        """
        return np.array([len(streamed.image) for streamed in self.images[:PREVIEW]], np.int64)

    def name(self, row: int) -> str:
        return f"shard {self.images[row].shard}, image {self.images[row].row}"


def in_memory(images: Sequence[StreamedImage], label_template: Labels) -> Source:
    """Return images of a stream as a Source with random access.

    Args:
        images: The images with labels.
        label_template: `Labels` without images, but with class names and descriptions. The source
            has a copy with the labels of `images`.
    """
    label_N = np.array([streamed.label for streamed in images], np.int64)
    return Source(MemoryStore(images), replace(label_template, label_N=label_N))


class Cursor(NamedTuple):
    """Start of a window of one process, from which the process can resume.

    Attributes:
        epoch: Number of the epoch, from 0.
        position: Position of the shard among the shards that this process reads in the epoch.
        row: Row of the window's first image in the shard.
        window: Number of the window, from 0.
        image: Number of images that the process has read before the window.
    """

    epoch: int = 0
    position: int = 0
    row: int = 0
    window: int = 0
    image: int = 0


class Stream:
    """Split that is read shard by shard, in endless epochs with random orders of the shards.

    Process p of P reads the shards p, p+P, ... of each epoch's order, and divides the images into
    windows, which are shuffled in memory. A window ends with its epoch. A window also ends before
    an image that would exceed the limit of images or of encoded bytes. One shard and two windows
    are in memory: one window is read while the other is used.

    `cursors[n]` is the start of the window before which the process has read n images. Only windows
    that were read, and the next window, are in `cursors`. A checkpoint stores the cursor from which
    to resume.
    """

    def __init__(
        self,
        rows: "datasets.IterableDataset",
        image: str,
        label: str | None,
        read_file: Callable[[str | None], bytes],
        label_template: Labels,
        where: str,
        seed: int,
    ) -> None:
        """Select the columns of the stream.

        Args:
            rows: The table of images.
            image: Name of the column of images.
            label: Name of the column of labels, None for no labels.
            read_file: A function that reads the file named in a row.
            label_template: `Labels` without images, but with the class names.
            where: The beginning of error messages, such as "data.path=photos".
            seed: The seed of the order of shards.
        """
        import datasets  # imported only to train on a stream

        columns = [image, label] if label else [image]
        self.rows = rows.select_columns(columns).cast_column(image, datasets.Image(decode=False))
        self.image = image
        self.label = label
        self.read_file = read_file
        self.label_template = label_template
        self.where = where
        self.seed = seed
        self.classes: int | None = None  # set if the objective uses labels
        self.cursors: dict[int, Cursor] = {0: Cursor()}

    @property
    def shards(self) -> int:
        return self.rows.num_shards

    def take(self, count: int, most_bytes: float = math.inf) -> Source:
        """Load the first images of the first epoch, as a single process would read them.

        Args:
            count: The most images.
            most_bytes: The most encoded bytes. At least one image is loaded.
        """
        images, _ = next(self._read_windows(Cursor(), count, most_bytes, rank=0, processes=1))
        return in_memory(images, self.label_template)

    def windows(
        self, start: Cursor, stop: int, count: int, most_bytes: float, rank: int, processes: int
    ) -> Iterator[tuple[Cursor, list[StreamedImage]]]:
        """Yield (cursor, images) of this process's windows, from `start` up to image `stop` - 1.

        The cursor is the start of the yielded window. The cursor of the next window is recorded in
        `cursors`, so that training can resume there. While the caller uses a window, a thread reads
        the next window.

        Args:
            start: The cursor of the first window.
            stop: The number of the last needed image, plus 1. A process counts only the images that
                it reads, from 0.
            count: The most images in a window.
            most_bytes: The most encoded bytes in a window.
            rank: The number of this process.
            processes: The number of processes.

        Raises:
            UserError: A shard cannot be read, or this process's shards hold no images.
        """
        windows = self._read_windows(start, count, most_bytes, rank, processes)
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(next, windows)
            while start.image < stop:
                images, next_start = reading.result()
                self.cursors[next_start.image] = next_start
                if next_start.image < stop:
                    reading = pool.submit(next, windows)
                yield start, images
                start = next_start

    def _read_windows(
        self, start: Cursor, count: int, most_bytes: float, rank: int, processes: int
    ) -> Iterator[tuple[list[StreamedImage], Cursor]]:
        """Yield (images, cursor of the next window) of this process's windows, without end.

        Images are added to a window until the window is full or the epoch ends.

        Args:
            start: The cursor of the first window.
            count: The most images in a window.
            most_bytes: The most encoded bytes in a window. A single larger image is a window.
            rank: The number of this process.
            processes: The number of processes.

        Raises:
            UserError: A shard cannot be read, or this process's shards hold no images.
        """
        while True:  # an epoch
            epoch, first_position, first_row, window, num_read = start
            images: list[StreamedImage] = []  # of the current window
            window_bytes = 0
            shards = self._order(epoch)[rank::processes].tolist()
            for position in range(first_position, len(shards)):
                # `start` may be in the middle of a shard; later shards are read from row 0
                start_row = first_row if position == first_position else 0
                # The list from `_read` is assigned to no variable, so that Python frees the list
                # before the next shard is read
                for row, streamed in enumerate(self._read(shards[position])[start_row:], start_row):
                    window_bytes += len(streamed.image)
                    is_full = len(images) == count or window_bytes > most_bytes
                    if images and is_full:  # this image begins the next window
                        window += 1
                        num_read += len(images)
                        yield images, Cursor(epoch, position, row, window, num_read)
                        images = []
                        window_bytes = len(streamed.image)
                    images.append(streamed)
            if not images:  # without this error, the empty shards would be read for ever
                raise UserError(
                    f"{self.where}: all shards of process {rank} (of {processes}) are empty. Use"
                    " fewer processes, or other images."
                )
            start = Cursor(epoch + 1, 0, 0, window + 1, num_read + len(images))
            yield images, start

    def _order(self, epoch: int) -> np.ndarray:
        """Return all shards in the order of this epoch."""
        key = rng.stream(rng.key(self.seed, epoch), "shards")
        return rng.permute(np.arange(self.shards), self.shards, key)

    def _read(self, shard: int) -> list[StreamedImage]:
        """Read all images of a shard.

        A shard is always read to the end. A process that stops in the middle of a parquet file can
        crash at exit (apache/arrow issue 45214).

        Args:
            shard: The number of the shard.

        Raises:
            UserError: The shard cannot be read, or a label is not one of the run's classes.
        """
        try:
            rows = self.rows.shard(self.shards, shard)
            return [self._image_of_row(values, shard, row) for row, values in enumerate(rows)]
        except Exception as error:  # a network, or a file written by others, may cause any error
            raise UserError(
                f"{self.where}: shard {shard} of {self.shards} cannot be read: {reason(error)}"
            ) from None

    def _image_of_row(self, values: dict[str, Any], shard: int, row: int) -> StreamedImage:
        """Return the encoded image and the label of a row.

        The image of a row without an image is Missing, and counts as unreadable.

        Args:
            values: {column: value} of the row.
            shard: The number of the shard.
            row: The number of the row in the shard.

        Raises:
            ValueError: The label is not one of the run's classes.
        """
        label = values[self.label] if self.label else None
        if label is None:
            label = -1
        elif self.classes is not None and not -1 <= label < self.classes:
            raise ValueError(
                f"row {row} has label {label}, but with {format_count(self.classes, 'classes')} the"
                f" labels must be 0 to {self.classes - 1}, or -1 for no label. Correct the label,"
                " or set data.classes="
            )
        image = values[self.image]  # bytes, {bytes, path}, or nothing for a row without an image
        if not image:
            raw = self.read_file(None)  # Missing
        elif isinstance(image, bytes):
            raw = image
        elif image["bytes"] is None:
            raw = self.read_file(image["path"])
        else:
            raw = image["bytes"]
        return StreamedImage(raw, label, shard, row)


def describe_windows(preview: Source) -> str:
    """Describe about how many images and bytes are in memory at a time to be shuffled.

    The processes share the limits WINDOW and WINDOW_BYTES, so the numbers do not depend on the
    number of processes.

    Args:
        preview: The first images of the stream, whose mean size in bytes is used.
    """
    mean_bytes = max(1, preview.store.sizes().mean())
    count = min(WINDOW, max(1, int(WINDOW_BYTES / mean_bytes)))
    if len(preview) < PREVIEW:  # the stream has no further images, or images are very large
        count = min(count, len(preview))
    return f"windows of about {format_image_count(count)} ({format_bytes(count * mean_bytes)})"


def read_hub_file(path: str | None) -> bytes:
    """Read the file on the Hub that a row names, or return Missing (empty bytes) on failure."""
    if not path:
        return Missing("this row has no image")
    if "hf://" not in path:
        return Missing(f"{path} is not on the Hub, and images from elsewhere are not downloaded")
    try:
        with fsspec.open(path, "rb") as file:
            return file.read()
    except (OSError, ValueError) as error:
        return Missing(reason(error))
