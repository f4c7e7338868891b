"""Streams: splits of the Hub and of parquet files that are read shard by shard by `datasets` (an
`IterableDataset`), without a download or copy before, and without random access to rows.

Unlike with sources, the samples of a step depend on the number of processes, so exact resume needs
the same number.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

import fsspec
import numpy as np

from .. import rng
from ..errors import UserError, reason
from .labels import Labels
from .source import Missing, Raw, Source, Store

if TYPE_CHECKING:
    import datasets

WINDOW = 10_000  # images that are shuffled at a time
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
    """A position of one process in a stream, from which it can go on after a resume.

    Attributes:
        epoch: number of the epoch.
        place: number of the shard among the process's shards of that epoch.
        row: the next image of that shard.
    """

    epoch: int = 0
    place: int = 0
    row: int = 0


class Stream:
    """A split that is read shard by shard, in endless epochs whose shards are permuted by key.

    Process p of P takes shards p, p+P, ... of each epoch's order, and cuts the images it reads into
    windows of equal size, numbered from 0. In memory are one shard and two windows: one is read
    while the other is used.

    `cursors[n]` is where window n begins. A stream has no random access, so this is known only of
    windows up to the one after the last one read; a checkpoint stores the cursor it needs.
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

    def take(self, count: int) -> Source:
        """The first images as one process would read them, at most one epoch."""
        walk = self._walk(Cursor(), 0, 1)
        first_epoch = takewhile(lambda step: step[1].epoch == 0, walk)
        cells = [cell for cell, _ in islice(first_epoch, count)]
        return in_memory(cells, self.about)

    def windows(
        self, numbers: range, size: int, rank: int, processes: int
    ) -> Iterator[list[StreamedImage]]:
        """This process's windows `numbers`, of `size` images each. While one is used, a thread
        reads the next.

        Raises:
            KeyError: the first window's cursor is not known.
            UserError: a shard cannot be read, or this process's shards hold no images.
        """
        walk = self._walk(self.cursors[numbers.start], rank, processes)
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(_next_window, walk, size)
            for number in numbers:
                cells, end = reading.result()
                self.cursors[number + 1] = end
                if number + 1 < numbers.stop:
                    reading = pool.submit(_next_window, walk, size)
                yield cells

    def _walk(
        self, start: Cursor, rank: int, processes: int
    ) -> Iterator[tuple[StreamedImage, Cursor]]:
        """This process's images from `start` on, without end, each with the cursor of the one after
        it."""
        epoch, place, row = start
        while True:
            shards = self._order(epoch)[rank::processes].tolist()
            # shards without any image would be read in circles for ever
            has_images = (place, row) != (0, 0)
            for number in range(place, len(shards)):
                cells = self._read(shards[number])
                for i in range(row, len(cells)):
                    has_images = True
                    yield cells[i], Cursor(epoch, number, i + 1)
                row = 0  # only the first shard is entered in the middle
            if not has_images:
                raise UserError(
                    f"{self.where}: the shards of process {rank} of {processes} hold no images"
                )
            epoch += 1
            place = 0

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


def _next_window(
    walk: Iterator[tuple[StreamedImage, Cursor]], size: int
) -> tuple[list[StreamedImage], Cursor]:
    """The next `size` images, and the cursor after the last of them."""
    cells, cursors = zip(*islice(walk, size), strict=True)
    return list(cells), cursors[-1]


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
