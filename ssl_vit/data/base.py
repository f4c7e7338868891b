"""The Source interface, and shares of a source, which are computed and need no list of rows."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar, cast

import numpy as np

from .. import rng
from .label_lists import UNLABELLED, LabelLists

Raw = TypeVar("Raw")
Read = TypeVar("Read")


class Masks(NamedTuple):
    """Whether a split has masks: their column, "" for none; where they could be, for errors; and
    the number of their classes, where it is known."""

    column: str
    choices: str
    classes: int | None = None


NO_MASKS = Masks("", "masks are read from a column of parquet files or of the Hub's tables")


class Source(ABC):
    """A split of images.

    Attributes:
        classes: names of the classes, of label 0 first; empty where labels have no names.
        columns: which columns there are: ends the error that there are no labels.
        label_source: what the labels were taken from, in words; empty where there are none.
        lists: where each image has a list of labels; None: one label an image.
        masks: where they are.
    """

    classes: list[str]
    columns: str = ""
    label_source: str = ""
    lists: LabelLists | None = None
    masks: Masks = NO_MASKS

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def fetch(self, rows: np.ndarray) -> tuple[list[bytes | np.ndarray], np.ndarray]:
        """For each row its image, encoded or as an array (uint8 (H, W, 3)), and its label, -1 for
        none: int64 (B,) or, of lists, (B, L) as `label_lists.padded`."""

    @abstractmethod
    def name(self, row: int) -> str:
        """Names a row in warnings and errors, such as by its file."""

    def label_of(self, rows: np.ndarray) -> np.ndarray:
        """Each row's label or list of labels, as `fetch`; without reading images where the source
        can."""
        return self.fetch(rows)[1]

    def unlabelled(self, count: int) -> np.ndarray:
        """What `label_of` gives of so many images without labels."""
        shape = (count,) if self.lists is None else (count, self.lists.longest)
        return np.full(shape, UNLABELLED, np.int64)

    @property
    def label_range(self) -> tuple[int, int]:
        """The lowest and the highest label; -1 for none."""
        if self.lists is not None:
            return self.lists.low, self.lists.high
        return self.measured_range() if len(self) else (UNLABELLED, UNLABELLED)

    def measured_range(self) -> tuple[int, int]:
        """`label_range` of a split with one label an image, and at least one image."""
        label_N = self.label_of(np.arange(len(self)))
        return int(label_N.min()), int(label_N.max())

    def fetch_masks(self, rows: np.ndarray) -> list[bytes | np.ndarray]:
        """Each row's mask, encoded or as an array of integers (H, W), of a split that has masks."""
        raise NotImplementedError

    def group_of(self, rows: np.ndarray) -> np.ndarray:
        """Each row's group as an integer (B,), of a split that was read with data.group."""
        raise NotImplementedError

    def file_of(self, row: int) -> str:
        """The file of a row's image, below the folder that was given; the row's name where images
        are no files."""
        return self.name(row)

    def path_of(self, row: int) -> Path | None:
        """The path of the file that a row's image is; None where images are no files."""
        return None


def read_each(
    source: Source,
    rows: np.ndarray,
    raw: Iterable[Raw],
    read: Callable[[Raw], Read],
    unreadable: list[str],
) -> Iterator[tuple[int, Read]]:
    """Of what was fetched for each row, its place and what `read` makes of it. Where `read` raises
    ValueError, the row is left out, and named with the reason in `unreadable`."""
    for place, (row, one) in enumerate(zip(rows.tolist(), raw, strict=True)):
        try:
            found = read(one)
        except ValueError as error:
            unreadable.append(f"{source.name(row)}: {error}")
        else:
            yield place, found


class ReadUnits(NamedTuple):
    """The U images of a whole split, without reading them.

    `names` returns the relative paths of the files, where images are files; it is called for large
    sets only.
    """

    bytes_U: np.ndarray  # bytes of each encoded image
    names: Callable[[], Iterable[str]] = list


class FullSource(Source):
    """A split that is not a share of another."""

    @abstractmethod
    def units(self) -> ReadUnits: ...


def relative_paths(files: Iterable[str]) -> list[str]:
    """Paths relative to the deepest folder that holds all: a moved copy has the same ones."""
    known = list(files)
    common = os.path.commonpath(known) if known and all(map(os.path.isabs, known)) else ""
    return [os.path.relpath(file, common) if common else file for file in known]


def file_bytes(path: str | Path | None) -> int:
    """A file's size; 0 where it is missing or may not be read: it then has no image."""
    try:
        return Path(path or "").stat().st_size
    except OSError:
        return 0


class View(Source):
    """A source that consists of some rows of another, given by `_rows`. Its `label_range` is that
    of the other."""

    def __init__(self, whole: Source, length: int) -> None:
        self.whole = whole
        self.length = length
        self.classes = whole.classes
        self.columns = whole.columns
        self.label_source = whole.label_source
        self.lists = whole.lists
        self.masks = whole.masks

    @property
    def label_range(self) -> tuple[int, int]:
        return self.whole.label_range

    def __len__(self) -> int:
        return self.length

    def fetch(self, rows: np.ndarray) -> tuple[list[bytes | np.ndarray], np.ndarray]:
        return self.whole.fetch(self._rows(rows))

    def label_of(self, rows: np.ndarray) -> np.ndarray:
        return self.whole.label_of(self._rows(rows))

    def fetch_masks(self, rows: np.ndarray) -> list[bytes | np.ndarray]:
        return self.whole.fetch_masks(self._rows(rows))

    def group_of(self, rows: np.ndarray) -> np.ndarray:
        return self.whole.group_of(self._rows(rows))

    def name(self, row: int) -> str:
        return self.whole.name(self._row(row))

    def file_of(self, row: int) -> str:
        return self.whole.file_of(self._row(row))

    def path_of(self, row: int) -> Path | None:
        return self.whole.path_of(self._row(row))

    def _row(self, row: int) -> int:
        return int(self._rows(np.array([row]))[0])

    def whole_rows(self) -> np.ndarray:
        """All rows of this view as rows of the whole."""
        return self._rows(np.arange(len(self)))

    def full_rows(self) -> np.ndarray:
        """All rows of this view as rows of the source that it is a share of a share of."""
        rows = self.whole_rows()
        return self.whole.full_rows()[rows] if isinstance(self.whole, View) else rows

    @abstractmethod
    def _rows(self, rows: np.ndarray) -> np.ndarray:
        """Rows of this view -> rows of the whole."""


def origin(source: Source) -> FullSource:
    """The source that a share, or a share of a share, is cut from."""
    while isinstance(source, View):
        source = source.whole
    return cast(FullSource, source)


class WithoutLabels(View):
    """A source whose labels are left out."""

    def __init__(self, whole: Source) -> None:
        super().__init__(whole, len(whole))
        self.classes = []
        self.label_source = ""
        self.lists = None

    @property
    def label_range(self) -> tuple[int, int]:
        return UNLABELLED, UNLABELLED

    def fetch(self, rows: np.ndarray) -> tuple[list[bytes | np.ndarray], np.ndarray]:
        return super().fetch(rows)[0], self.label_of(rows)

    def label_of(self, rows: np.ndarray) -> np.ndarray:
        return self.unlabelled(len(rows))

    def _rows(self, rows: np.ndarray) -> np.ndarray:
        return rows


def without_lists(source: Source, what: str) -> Source:
    """The source, without its labels where they are lists, with a warning; `what` takes one label
    an image."""
    if source.lists is None:
        return source
    text = f"data.label_column={source.lists.column}: holds a list of labels for each image"
    print(f"warning: {text}: left out of {what}", flush=True)
    return WithoutLabels(source)


class Subset(View):
    """Positions first .. last-1 of a keyed permutation of a source."""

    def __init__(self, whole: Source, first: int, last: int, key: int) -> None:
        super().__init__(whole, last - first)
        self.first = first
        self.key = rng.key(key)

    def _rows(self, rows: np.ndarray) -> np.ndarray:
        return rng.permute(self.first + rows, len(self.whole), self.key)


class Rows(View):
    """The rows of a source that `rows` names."""

    def __init__(self, whole: Source, rows: np.ndarray) -> None:
        super().__init__(whole, len(rows))
        self.rows = rows

    def _rows(self, rows: np.ndarray) -> np.ndarray:
        return self.rows[rows]


def stratified(label_N: np.ndarray, number_N: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Places 0 .. N-1 in an order in which each class comes as often as it is there: the r-th of a
    class's n, in an order drawn by `key` and each one's number, comes at (r - 1/2) / n, and equals
    by their hash. So the first of them have each class's share, rounded as Webster's and
    Sainte-Lague's method of apportionment does.
    """
    hash_N = rng.bits(key, number_N)
    by_class_N = np.lexsort((hash_N, label_N))
    _, start_C, size_C = np.unique(label_N[by_class_N], return_index=True, return_counts=True)
    rank_N = np.arange(len(label_N)) - np.repeat(start_C, size_C)
    place_N = (rank_N + 0.5) / np.repeat(size_C, size_C)
    return by_class_N[np.lexsort((hash_N[by_class_N], place_N))]


def stratified_rows(whole: Source, key: np.ndarray) -> np.ndarray:
    """All rows of a source with one label an image, as `stratified`."""
    rows_N = np.arange(len(whole))
    return stratified(whole.label_of(rows_N), rows_N, key)
