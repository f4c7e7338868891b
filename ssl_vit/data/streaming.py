"""Streams: splits that are read sequentially, from the Hub or a disk (an `IterableDataset` of
`datasets`), instead of by row.

Unlike with sources, the samples of a step depend on the number of processes, so a run resumes
exactly only on the same number.
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
from .base import ReadUnits
from .shards import encoded_bytes

WINDOW = 10_000  # images that are shuffled at a time, where data.window is null
PREVIEW = 2048  # the first images, where a stream is used like a source: baselines, fingerprints


class Cell(NamedTuple):
    """An encoded image of a stream, its label (-1: none), and its place."""

    image: bytes
    label: int
    shard: int
    row: int


class InMemoryImages:
    """A source of some images of a stream, kept in memory."""

    def __init__(self, cells: list[Cell], classes: list[str], columns: str) -> None:
        self.cells = cells
        self.classes = classes
        self.columns = columns

    @property
    def labels(self) -> tuple[int, int]:
        known = [cell.label for cell in self.cells]
        return min(known, default=-1), max(known, default=-1)

    def __len__(self) -> int:
        return len(self.cells)

    def fetch(self, rows: np.ndarray) -> tuple[list[bytes | np.ndarray], np.ndarray]:
        found = [self.cells[row] for row in rows.tolist()]
        return [cell.image for cell in found], np.array([cell.label for cell in found], np.int64)

    def units(self) -> ReadUnits:
        """Single images, at most PREVIEW, so that the fingerprint does not depend on how many were
        taken."""
        size_U = np.array([len(cell.image) for cell in self.cells[:PREVIEW]], np.int64)
        return ReadUnits(np.ones_like(size_U), size_U)

    def clear_cache(self) -> None:
        pass

    def name(self, row: int) -> str:
        return f"shard {self.cells[row].shard}, image {self.cells[row].row}"


class Cursor(NamedTuple):
    """A position of a process in its part of a stream: the epoch, the number of the shard among its
    shards of that epoch, and the next image of that shard."""

    epoch: int = 0
    place: int = 0
    row: int = 0


class Stream:
    """A split that is read shard by shard, in endless epochs whose shards are permuted by key.

    Process p of P takes the shards at places p, p+P, ... of each epoch, and cuts what it reads into
    windows. In memory are one shard and two windows: one is read while the other is used.
    """

    def __init__(
        self,
        rows: datasets.IterableDataset,
        image: str,
        label: str | None,
        class_info: tuple[list[str], str],
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
        self.cursors: dict[int, Cursor] = {0: Cursor()}  # where each window read so far begins

    @property
    def shards(self) -> int:
        return self.rows.num_shards

    def take(self, count: int) -> InMemoryImages:
        """The first images as one process would read them, at most one epoch."""
        walk = self._walk(Cursor(), 0, 1)
        first_epoch = takewhile(lambda step: step[1].epoch == 0, walk)
        cells = [cell for cell, _ in islice(first_epoch, count)]
        return InMemoryImages(cells, *self.class_info)

    def windows(self, numbers: range, size: int, rank: int, processes: int) -> Iterator[list[Cell]]:
        """This process's windows of `size` images with these numbers; the one before the first must
        have been read. The next window is read in a thread meanwhile.

        Raises:
            UserError: a shard cannot be read, or this process's shards hold no images.
        """
        walk = self._walk(self.cursors[numbers.start], rank, processes)
        with ThreadPoolExecutor(1) as ahead:
            reading = ahead.submit(_next, walk, size)
            for number in numbers:
                cells, self.cursors[number + 1] = reading.result()
                if number + 1 < numbers.stop:
                    reading = ahead.submit(_next, walk, size)
                yield cells

    def _walk(self, at: Cursor, rank: int, processes: int) -> Iterator[tuple[Cell, Cursor]]:
        """This process's images from `at` on, each with the position of the one after it."""
        epoch, place, row = at
        while True:
            mine = self._order(epoch)[rank::processes].tolist()
            known = (place, row) != (0, 0)  # whether there is any image in this epoch
            for at_place in range(place, len(mine)):
                cells = self._read(mine[at_place])
                for i in range(row, len(cells)):
                    known = True
                    yield cells[i], Cursor(epoch, at_place, i + 1)
                row = 0
            if not known:
                raise UserError(
                    f"{self.where}: the shards of process {rank} of {processes} hold no images"
                )
            epoch += 1
            place = 0

    def _order(self, epoch: int) -> np.ndarray:
        key = rng.stream(rng.key(self.seed, epoch), "shards")
        return rng.permute(np.arange(self.shards), self.shards, key)

    def _read(self, shard: int) -> list[Cell]:
        """All images of a shard. Stopping in the middle of a parquet file can crash the process at
        exit (apache/arrow issue 45214)."""
        try:
            rows = self.rows.shard(self.shards, shard)
            return [self._cell(cell, shard, row) for row, cell in enumerate(rows)]
        except Exception as error:  # whatever a network or a file written by others causes
            text = " ".join(str(error).split())[:300]
            raise UserError(
                f"{self.where}: shard {shard} of {self.shards} cannot be read: {text}"
            ) from None

    def _cell(self, cell: dict[str, Any], shard: int, row: int) -> Cell:
        label = cell[self.label] if self.label else None
        return Cell(_encoded(cell[self.image]), -1 if label is None else label, shard, row)


def _next(walk: Iterator[tuple[Cell, Cursor]], size: int) -> tuple[list[Cell], Cursor]:
    """A window, and where the next one begins."""
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
