"""What a source of images is, and how a share of one is cut off without a list of rows.

Legend: S shards.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from .. import rng


class Source(Protocol):
    """A split: `fetch(rows)` gives each row's image, encoded (bytes) or drawn (uint8 HWC), and its
    label, -1 for none."""

    classes: list[str]
    columns: str  # where labels may be, for the error that there are none

    @property
    def labels(self) -> tuple[int, int]:
        """The least and the greatest label; -1 for none."""
        ...

    def __len__(self) -> int: ...
    def fetch(self, rows: np.ndarray) -> tuple[list[bytes | np.ndarray], np.ndarray]: ...

    def name(self, row: int) -> str:
        """What a person finds a row by."""
        ...


def labels_of(source: Source, rows: np.ndarray) -> np.ndarray:
    """Each row's label, -1 for none; without reading the images where the source can."""
    read = getattr(source, "label_of", None)
    return read(rows) if read else source.fetch(rows)[1]


class ReadUnits(NamedTuple):
    """What a whole split is read in: single images, or row groups of them. U units.

    `names` gives the relative paths of the files, where images lie in files; they are asked for in
    large sets only.
    """

    rows_U: np.ndarray  # rows in each
    bytes_U: np.ndarray  # bytes of their encoded images, without reading them
    names: Callable[[], Iterable[str]] = list


class FullSource(Source, Protocol):
    """A split that is no share of another."""

    def units(self) -> ReadUnits: ...

    def clear_cache(self) -> None:
        """Drop what was kept in memory of the rows that were read."""
        ...


def relative_paths(files: Iterable[str]) -> list[str]:
    """Paths below the folder that all have in common, so that a moved copy has the same ones."""
    known = list(files)
    common = os.path.commonpath(known) if known and all(map(os.path.isabs, known)) else ""
    return [os.path.relpath(file, common) if common else file for file in known]


def file_bytes(path: str | Path | None) -> int:
    """A file's size; 0 where it is missing or forbidden, as it then has no image."""
    try:
        return Path(path or "").stat().st_size
    except OSError:
        return 0


class ShardedSource(Source, Protocol):
    """A source whose rows lie in shards, one after the other."""

    sizes_S: np.ndarray

    def set_cache_size(self, rows: int, streams: int) -> None:
        """Keep in memory what so many rows lie in, which are read side by side in so many
        streams."""
        ...


class _View(ABC):
    """Some rows of a source, told by `_rows`."""

    def __init__(self, whole: Source, length: int) -> None:
        self.whole, self.length, self.classes, self.columns = (
            whole,
            length,
            whole.classes,
            whole.columns,
        )

    @property
    def labels(self) -> tuple[int, int]:
        return self.whole.labels

    def __len__(self) -> int:
        return self.length

    def fetch(self, rows: np.ndarray) -> tuple[list[bytes | np.ndarray], np.ndarray]:
        return self.whole.fetch(self._rows(rows))

    def label_of(self, rows: np.ndarray) -> np.ndarray:
        return labels_of(self.whole, self._rows(rows))

    def name(self, row: int) -> str:
        return self.whole.name(int(self._rows(np.array([row]))[0]))

    @abstractmethod
    def _rows(self, rows: np.ndarray) -> np.ndarray:
        """Their places in the whole."""


class Subset(_View):
    """Positions `first` to `last` of a keyed permutation of a source."""

    def __init__(self, whole: Source, first: int, last: int, key: int) -> None:
        super().__init__(whole, last - first)
        self.first, self.key = first, rng.key(key)

    def _rows(self, rows: np.ndarray) -> np.ndarray:
        return rng.permute(self.first + rows, len(self.whole), self.key)


class ShardedSubset(_View):
    """The same share of every shard, each by a keyed permutation of its own: about `last - first`
    rows (exactly so many where the shards are of one size), which lie in shards as the whole does.
    A share holds every smaller one."""

    def __init__(self, whole: ShardedSource, first: int, last: int, key: int) -> None:
        self.sharded, self.of_S, self.key = whole, whole.sizes_S, key
        self.first_S = self._cut(first / len(whole))
        self.sizes_S = self._cut(last / len(whole)) - self.first_S
        super().__init__(whole, int(self.sizes_S.sum()))
        self.start_S, self.end_S = np.cumsum(self.of_S) - self.of_S, np.cumsum(self.sizes_S)

    def set_cache_size(self, rows: int, streams: int) -> None:
        self.sharded.set_cache_size(rows * len(self.sharded) // len(self), streams)

    def _cut(self, share: float) -> np.ndarray:
        """How many rows of each shard this share is: rounded up in some and down in others, so that
        the sum is right."""
        count = len(self.of_S)
        upwards_S = (rng.permute(np.arange(count), count, rng.key(self.key)) + 0.5) / count
        return np.minimum(np.floor(share * self.of_S + upwards_S).astype(np.int64), self.of_S)

    def _rows(self, rows: np.ndarray) -> np.ndarray:
        shard, found = np.searchsorted(self.end_S, rows, side="right"), np.empty_like(rows)
        for s in np.unique(shard).tolist():
            place = rows[shard == s] - (self.end_S[s] - self.sizes_S[s]) + self.first_S[s]
            found[shard == s] = self.start_S[s] + rng.permute(
                place, int(self.of_S[s]), rng.key(self.key, s)
            )
        return found
