"""Images that come in a row and cannot be asked for by number: an `IterableDataset`, from the Hub
or a disk.

Second class beside sources that can: a stream goes on exactly where it stopped, but only on as many
processes.
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

WINDOW = 10_000  # images that are mixed at a time, where the recipe does not say
PREVIEW = 2048  # images that stand for all where some are looked at


class Cell(NamedTuple):
    """An image of a stream: encoded, with its label (-1: none) and where it lies."""

    image: bytes
    label: int
    shard: int
    row: int


class InMemoryImages:
    """Some images of a stream, kept in memory: a source as others."""

    def __init__(self, cells: list[Cell], classes: list[str], columns: str) -> None:
        self.cells, self.classes, self.columns = cells, classes, columns

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
        """Of as many as every recipe looks at."""
        size_U = np.array([len(cell.image) for cell in self.cells[:PREVIEW]], np.int64)
        return ReadUnits(np.ones_like(size_U), size_U)

    def clear_cache(self) -> None:
        pass

    def name(self, row: int) -> str:
        return f"shard {self.cells[row].shard}, image {self.cells[row].row}"


class Cursor(NamedTuple):
    """Where a process is: the epoch, which of its shards there, and which image of that comes
    next."""

    epoch: int = 0
    place: int = 0
    row: int = 0


class Stream:
    """A split that is read from its beginning, shard by shard, endlessly, each epoch's shards
    permuted by key.

    Process p of P takes the shards at places p, p+P, ... of each epoch, and cuts what it reads into
    windows. It holds a shard and two windows: one is read while the other is used.
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
        self.rows = rows.select_columns([image] + ([label] if label else [])).cast_column(
            image, datasets.Image(decode=False)
        )
        self.image, self.label, self.class_info, self.where, self.seed = (
            image,
            label,
            class_info,
            where,
            seed,
        )
        self.cursors: dict[int, Cursor] = {0: Cursor()}  # where the windows begin that were reached

    @property
    def shards(self) -> int:
        return self.rows.num_shards

    def take(self, count: int) -> InMemoryImages:
        """The first images as one process would read them; of fewer, all."""
        walk, once = self._walk(Cursor(), 0, 1), (lambda step: step[1].epoch == 0)
        return InMemoryImages(
            [cell for cell, _ in islice(takewhile(once, walk), count)], *self.class_info
        )

    def windows(self, numbers: range, size: int, rank: int, processes: int) -> Iterator[list[Cell]]:
        """This process's windows of `size` images, from one that was reached on, as they are read.

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
        """This process's images from there on, each with where the one behind it is."""
        epoch, place, row = at
        while True:
            mine, known = self._order(epoch)[rank::processes].tolist(), (place, row) != (0, 0)
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
            epoch, place = epoch + 1, 0

    def _order(self, epoch: int) -> np.ndarray:
        key = rng.stream(rng.key(self.seed, epoch), "shards")
        return rng.permute(np.arange(self.shards), self.shards, key)

    def _read(self, shard: int) -> list[Cell]:
        """A shard, whole: what stops amid a parquet file would end the process (apache/arrow issue
        45214)."""
        try:
            return [
                self._cell(cell, shard, i)
                for i, cell in enumerate(self.rows.shard(self.shards, shard))
            ]
        except Exception as error:  # whatever a network or a reader of foreign files may raise
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
    """A cell's encoded image; none where there is none, or it is a file on the Hub that cannot be
    fetched."""
    if isinstance(cell, dict) and cell["bytes"] is None and cell["path"]:
        try:
            with fsspec.open(cell["path"], "rb") as file:
                return file.read()
        except (OSError, ValueError):
            return b""
    return encoded_bytes(cell)
