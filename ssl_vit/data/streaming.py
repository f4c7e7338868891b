"""Streams: splits of the Hub and of parquet files that are read shard by shard by `datasets` (an
`IterableDataset`), without a download or copy before, and without random access to rows.

Unlike with sources, the samples of a step depend on the number of processes, so exact resume needs
the same number.
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
from ..formatting import count_of_images, format_bytes
from .labels import Labels
from .source import Missing, Raw, Source, Store

if TYPE_CHECKING:
    import datasets

# What is shuffled at a time, of all processes: at most so many images, with so many encoded bytes.
# 10,000 photographs of ImageNet have 1.1 GB
WINDOW, WINDOW_BYTES = 10_000, 2 * 2**30
PREVIEW = 2048  # the first images, where a stream is used like a source: baselines, fingerprints


class StreamedImage(NamedTuple):
    """An encoded image of a stream, its label (-1: none), and the shard and row it is from."""

    image: bytes
    label: int
    shard: int
    row: int


class MemoryStore(Store):
    """Images of a stream, kept in memory."""

    def __init__(self, cells: Sequence[StreamedImage]) -> None:
        self.cells = cells

    def __len__(self) -> int:
        return len(self.cells)

    def fetch(self, rows: np.ndarray) -> list[Raw]:
        return [self.cells[row].image for row in rows.tolist()]

    def sizes(self) -> np.ndarray:
        """Of at most PREVIEW images, so that the fingerprint does not depend on how many were
        taken."""
        return np.array([len(cell.image) for cell in self.cells[:PREVIEW]], np.int64)

    def name(self, row: int) -> str:
        return f"shard {self.cells[row].shard}, image {self.cells[row].row}"


def in_memory(cells: Sequence[StreamedImage], about: Labels) -> Source:
    """Some images of a stream as a source; `about`: what was known of its labels before."""
    label_N = np.array([cell.label for cell in cells], np.int64)
    return Source(MemoryStore(cells), replace(about, label_N=label_N))


class Cursor(NamedTuple):
    """Where a window of one process begins, from which the process can go on after a resume.

    Attributes:
        epoch: number of the epoch.
        place: number of the shard among the process's shards of that epoch.
        row: the next image of that shard.
        window: number of the window.
        image: how many images the process read before.
    """

    epoch: int = 0
    place: int = 0
    row: int = 0
    window: int = 0
    image: int = 0


class Stream:
    """A split that is read shard by shard, in endless epochs whose shards are permuted by key.

    Process p of P takes shards p, p+P, ... of each epoch's order, and cuts the images it reads into
    windows, numbered from 0. A window ends with its epoch, and before the image that would be one
    too many or would bring its encoded images above a number of bytes, so that windows depend on
    the data alone. In memory are one shard and two windows: one is read while the other is used.

    `cursors[n]` is where the window begins whose first image is the process's n-th. A stream has no
    random access, so this is known only of windows up to the one after the last one read; a
    checkpoint stores the cursor it needs.
    """

    def __init__(
        self,
        rows: "datasets.IterableDataset",
        image: str,
        label: str | None,
        read_file: Callable[[str | None], bytes],
        about: Labels,
        where: str,
        seed: int,
    ) -> None:
        """
        Args:
            rows: the images.
            image, label: its columns; without a label None.
            read_file: what reads the file that a row names.
            about: its labels, of no image yet.
            where: opens errors.
            seed: of the order of its shards.
        """
        import datasets  # of training on a stream alone

        kept = [image] + ([label] if label else [])
        self.rows = rows.select_columns(kept).cast_column(image, datasets.Image(decode=False))
        self.image = image
        self.label = label
        self.read_file = read_file
        self.about = about
        self.where = where
        self.seed = seed
        self.classes: int | None = None  # their number, where labels are learned from
        self.cursors: dict[int, Cursor] = {0: Cursor()}

    @property
    def shards(self) -> int:
        return self.rows.num_shards

    def take(self, count: int, most_bytes: float = math.inf) -> Source:
        """Return the first images of the first epoch as one process would read them: at most
        `count` images with at most `most_bytes` encoded bytes, but at least one image."""
        cells, _ = next(self._windows(Cursor(), count, most_bytes, 0, 1))
        return in_memory(cells, self.about)

    def windows(
        self, start: Cursor, last: int, count: int, most_bytes: float, rank: int, processes: int
    ) -> Iterator[tuple[Cursor, list[StreamedImage]]]:
        """Yield this process's windows from `start` up to its image `last`, each after its cursor.
        While one is used, a thread reads the next.

        Args:
            start: the first window's cursor.
            last: number of the first image that is not needed.
            count, most_bytes: limits of a window.
            rank, processes: which process this is, of how many.

        Raises:
            UserError: a shard cannot be read, or this process's shards hold no images.
        """
        windows = self._windows(start, count, most_bytes, rank, processes)
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(next, windows)
            while start.image < last:
                cells, end = reading.result()
                self.cursors[end.image] = end
                if end.image < last:
                    reading = pool.submit(next, windows)
                yield start, cells
                start = end

    def _windows(
        self, start: Cursor, count: int, most_bytes: float, rank: int, processes: int
    ) -> Iterator[tuple[list[StreamedImage], Cursor]]:
        """Yield this process's windows from `start` on, without end, each with the cursor of the
        next."""
        while True:
            epoch, first_place, first_row, window, image = start
            cells: list[StreamedImage] = []
            held = 0
            shards = self._order(epoch)[rank::processes].tolist()
            for place in range(first_place, len(shards)):
                # only the first shard is entered in the middle
                skipped = first_row if place == first_place else 0
                for row, cell in enumerate(self._read(shards[place])[skipped:], skipped):
                    held += len(cell.image)
                    if cells and (len(cells) == count or held > most_bytes):
                        window, image = window + 1, image + len(cells)
                        yield cells, Cursor(epoch, place, row, window, image)
                        cells, held = [], len(cell.image)
                    cells.append(cell)
            # shards without any image would be read in circles for ever
            if not cells:
                raise UserError(
                    f"{self.where}: the shards of process {rank} of {processes} hold no images"
                )
            start = Cursor(epoch + 1, 0, 0, window + 1, image + len(cells))
            yield cells, start

    def _order(self, epoch: int) -> np.ndarray:
        """All shards, as permuted in this epoch."""
        key = rng.stream(rng.key(self.seed, epoch), "shards")
        return rng.permute(np.arange(self.shards), self.shards, key)

    def _read(self, shard: int) -> list[StreamedImage]:
        """All images of a shard. It is read whole, because stopping in the middle of a parquet file
        can crash the process at exit (apache/arrow issue 45214)."""
        try:
            rows = self.rows.shard(self.shards, shard)
            return [self._cell(cell, shard, row) for row, cell in enumerate(rows)]
        except Exception as error:  # whatever a network or a file written by others causes
            text = f"shard {shard} of {self.shards} cannot be read: {reason(error)}"
            raise UserError(f"{self.where}: {text}") from None

    def _cell(self, cell: dict[str, Any], shard: int, row: int) -> StreamedImage:
        label = cell[self.label] if self.label else None
        if label is not None and self.classes is not None and not -1 <= label < self.classes:
            text = f"label {label} in row {row} is none of {self.classes} classes"
            raise ValueError(f"{text}; data.classes= says how many there are")
        image = cell[self.image] or {"bytes": None, "path": None}
        raw = image if isinstance(image, bytes) else image["bytes"]
        raw = self.read_file(image["path"]) if raw is None else raw
        return StreamedImage(raw, -1 if label is None else label, shard, row)


def window_text(preview: Source) -> str:
    """Describe how large the windows of a stream are, all processes together, from the mean size of
    its first images. If there are fewer than PREVIEW, they are the whole epoch."""
    mean = max(1, preview.store.sizes().mean())
    count = min(WINDOW, max(1, int(WINDOW_BYTES / mean)))
    if len(preview) < PREVIEW:
        count = min(count, len(preview))
    return f"windows of about {count_of_images(count)} ({format_bytes(count * mean)})"


def read_hub_file(path: str | None) -> bytes:
    """The file of the Hub that a row names; Missing where it cannot be fetched."""
    if not path:
        return Missing("there is no image in this row")
    if "hf://" not in path:
        return Missing(f"{path} is an address outside of the Hub, and images are not downloaded")
    try:
        with fsspec.open(path, "rb") as file:
            return file.read()
    except (OSError, ValueError) as error:
        return Missing(reason(error))
