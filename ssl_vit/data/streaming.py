"""Streams: splits that are read sequentially, from the Hub or a disk (an `IterableDataset` of
`datasets`), without random access to rows.

Unlike with sources, the samples of a step depend on the number of processes, so exact resume needs
the same number.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, takewhile
from typing import Any, NamedTuple

import datasets
import fsspec
import numpy as np

from .. import rng
from ..errors import UserError
from .base import FullSource, ReadUnits
from .table import encoded_bytes

WINDOW = 10_000  # images that are shuffled at a time
PREVIEW = 2048  # the first images, where a stream is used like a source: baselines, fingerprints


class StreamedImage(NamedTuple):
    """An encoded image of a stream, its label (-1: none), and the shard and row it is from."""

    image: bytes
    label: int
    shard: int
    row: int


class InMemoryImages(FullSource):
    """A source of some images of a stream, kept in memory."""

    def __init__(
        self, cells: list[StreamedImage], classes: list[str], columns: str, label_source: str
    ) -> None:
        self.cells = cells
        self.classes = classes
        self.columns = columns
        self.label_source = label_source

    def __len__(self) -> int:
        return len(self.cells)

    def fetch(self, rows: np.ndarray) -> tuple[list[bytes | np.ndarray], np.ndarray]:
        return [self.cells[row].image for row in rows.tolist()], self.label_of(rows)

    def label_of(self, rows: np.ndarray) -> np.ndarray:
        return np.array([self.cells[row].label for row in rows.tolist()], np.int64)

    def units(self) -> ReadUnits:
        """Of at most PREVIEW images, so that the fingerprint does not depend on how many were
        taken."""
        size_U = np.array([len(cell.image) for cell in self.cells[:PREVIEW]], np.int64)
        return ReadUnits(size_U)

    def name(self, row: int) -> str:
        return f"shard {self.cells[row].shard}, image {self.cells[row].row}"


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
        rows: datasets.IterableDataset,
        image: str,
        label: str | None,
        class_info: tuple[list[str], str, str],
        where: str,
        seed: int,
    ) -> None:
        kept = [image] + ([label] if label else [])
        self.rows = rows.select_columns(kept).cast_column(image, datasets.Image(decode=False))
        self.image = image
        self.label = label
        self.class_info = class_info
        self.where = where
        self.seed = seed
        self.classes: int | None = None  # their number, where labels are learned from
        self.cursors: dict[int, Cursor] = {0: Cursor()}

    @property
    def shards(self) -> int:
        return self.rows.num_shards

    def take(self, count: int) -> InMemoryImages:
        """The first images as one process would read them, at most one epoch."""
        walk = self._walk(Cursor(), 0, 1)
        first_epoch = takewhile(lambda step: step[1].epoch == 0, walk)
        cells = [cell for cell, _ in islice(first_epoch, count)]
        return InMemoryImages(cells, *self.class_info)

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
            text = " ".join(str(error).split())[:300]
            raise UserError(
                f"{self.where}: shard {shard} of {self.shards} cannot be read: {text}"
            ) from None

    def _cell(self, cell: dict[str, Any], shard: int, row: int) -> StreamedImage:
        label = cell[self.label] if self.label else None
        if isinstance(label, int) and not self._may_be(label):
            text = f"label {label} in row {row} is none of {self.classes or 'any'} classes"
            raise ValueError(f"{text}; data.classes= says how many there are")
        return StreamedImage(_encoded(cell[self.image]), -1 if label is None else label, shard, row)

    def _may_be(self, label: int) -> bool:
        """Whether it is a number of a class, or one that nobody learns from."""
        if self.classes is None:
            return label < 2**63
        return -1 <= label < self.classes


def _next_window(
    walk: Iterator[tuple[StreamedImage, Cursor]], size: int
) -> tuple[list[StreamedImage], Cursor]:
    """The next `size` images, and the cursor after the last of them."""
    cells, cursors = zip(*islice(walk, size), strict=True)
    return list(cells), cursors[-1]


def _encoded(cell: Any) -> bytes:
    """A cell's encoded image; b"" where it has none, or names a file of the Hub that cannot be
    fetched."""
    if isinstance(cell, dict) and cell["bytes"] is None and cell["path"]:
        try:
            with fsspec.open(cell["path"], "rb") as file:
                return file.read()
        except (OSError, ValueError):
            return b""
    return encoded_bytes(cell)
