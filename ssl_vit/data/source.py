"""A Source: the images of a split, their labels, groups and masks. A store knows where the images
are; all else is the same for every container.

Legend: N images of a store, B rows that are asked for, L labels of the longest list.
"""

import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import OPEN_FILES
from .labels import UNLABELLED, Labels, is_missing, no_labels

READERS = 16  # files opened at a time for their headers: on a network disk most of it is waiting


class Missing(bytes):
    """In place of an image that is not there: no bytes, and why."""

    reason: str

    def __new__(cls, reason: str) -> "Missing":
        made = super().__new__(cls)
        made.reason = reason
        return made

    def __reduce__(self) -> tuple[type["Missing"], tuple[str]]:
        return Missing, (self.reason,)


Raw = bytes | np.ndarray  # an encoded image, Missing among them, or an array (H, W, C)


class Store(ABC):
    """Where the images of a split are."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def fetch(self, rows: np.ndarray) -> list[Raw]:
        """The image of each row, in their order."""

    @abstractmethod
    def name(self, row: int) -> str:
        """Names a row in warnings and errors."""

    @abstractmethod
    def sizes(self) -> np.ndarray:
        """Bytes of each encoded image (N,), without reading them."""

    def names(self) -> Iterable[str]:
        """Names of the files below the folder that was given; none where images are no files."""
        return ()

    def file_of(self, row: int) -> str:
        """The file of a row's image, below the folder that was given; else the row's name."""
        return self.name(row)

    def path_of(self, row: int) -> Path | None:
        """The path of the file that a row's image is; None where images are no files."""
        return None

    @property
    def hashed_every(self) -> int | None:
        """Every how many images a fingerprint reads; None: as many as fit."""
        return None


class Masks(NamedTuple):
    """The masks of a split.

    Attributes:
        column: their name; "" where there are none.
        choices: where they could be, for errors.
        classes: the number of their classes, where it is known.
        store: where they are, a row for each image.
    """

    column: str
    choices: str
    classes: int | None = None
    store: Store | None = None


NO_MASKS = Masks("", "masks are read from a column of parquet files or of the Hub's tables")


class Groups(NamedTuple):
    """The group of each image, int64 (N,), and the names of the groups; an image without a group
    is a group of its own, whose number is above those with names."""

    number_N: np.ndarray
    names: list[str]

    @classmethod
    def by_value(cls, values: Sequence[Any]) -> "Groups":
        """By a value of each image: equal texts are one group; null, "" and NaN are none."""
        given = [None if is_missing(value) else str(value) for value in values]
        names = sorted({name for name in given if name is not None})
        number = {name: i for i, name in enumerate(names)}
        alone = iter(range(len(number), len(number) + len(values)))
        found = [next(alone) if name is None else number[name] for name in given]
        return cls(np.array(found, np.int64), names)


@dataclass(frozen=True, eq=False)
class Source:
    """The images of a split, or some of them (`subset`).

    Attributes:
        store: where the images are.
        labels: of all rows of the store.
        masks: of all rows of the store.
        groups: of all rows of the store; None where data.group= is not given.
        rows: those of the store that this is, in their order; None for all.
    """

    store: Store
    labels: Labels
    masks: Masks = NO_MASKS
    groups: Groups | None = None
    rows: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.store) if self.rows is None else len(self.rows)

    def fetch(self, rows: np.ndarray) -> tuple[list[Raw], np.ndarray]:
        """For each row its image, encoded or as an array, and its label, -1 for none: int64 (B,)
        or, of lists, (B, L) as `labels.padded`."""
        there = self._in_store(rows)
        return self.store.fetch(there), self.labels.of(there)

    def label_of(self, rows: np.ndarray) -> np.ndarray:
        """As `fetch`, without the images."""
        return self.labels.of(self._in_store(rows))

    def fetch_masks(self, rows: np.ndarray) -> list[Raw]:
        """Each row's mask, encoded or as an array of integers (H, W), of a split that has masks."""
        assert self.masks.store is not None
        return self.masks.store.fetch(self._in_store(rows))

    def group_of(self, rows: np.ndarray) -> np.ndarray:
        """Each row's group as an integer (B,), of a split that was read with data.group."""
        assert self.groups is not None
        return self.groups.number_N[self._in_store(rows)]

    def name(self, row: int) -> str:
        return self.store.name(self._row(row))

    def file_of(self, row: int) -> str:
        return self.store.file_of(self._row(row))

    def path_of(self, row: int) -> Path | None:
        return self.store.path_of(self._row(row))

    @property
    def classes(self) -> list[str]:
        """Names of the classes, of label 0 first; empty where labels have no names."""
        return self.labels.classes

    def subset(self, rows: np.ndarray) -> "Source":
        """These rows of it, in this order."""
        return replace(self, rows=self._in_store(rows))

    def whole(self) -> "Source":
        """All rows of its store."""
        return replace(self, rows=None)

    def without_labels(self) -> "Source":
        return replace(self, labels=no_labels(len(self.store), self.labels.columns))

    def store_rows(self) -> np.ndarray:
        """Its rows as rows of the store."""
        return np.arange(len(self.store)) if self.rows is None else self.rows

    def is_share(self) -> bool:
        """Whether the store has other images too."""
        return len(self) < len(self.store)

    def _in_store(self, rows: np.ndarray) -> np.ndarray:
        return rows if self.rows is None else self.rows[rows]

    def _row(self, row: int) -> int:
        return row if self.rows is None else int(self.rows[row])


def labelled_images(source: Source) -> Source:
    """The images that have a label, or a list of them."""
    lowest, highest = source.labels.lowest_and_highest
    if lowest >= 0 or highest < 0:
        return source
    label_N = source.label_of(np.arange(len(source)))
    first_N = label_N if label_N.ndim == 1 else label_N[:, 0]
    return source.subset(np.flatnonzero(first_N != UNLABELLED))


def without_lists(source: Source, what: str) -> Source:
    """The source, without its labels where they are lists, with a warning; `what` takes one label
    an image."""
    if source.labels.lists is None:
        return source
    text = f"data.label_column={source.labels.lists.column}: holds a list of labels for each image"
    print(f"warning: {text}: left out of {what}", flush=True)
    return source.without_labels()


def read_file(path: Path) -> bytes:
    """A regular file's bytes; Missing where it is none, or cannot be read. A pipe would be waited
    for, a device read for ever.

    Raises:
        OSError: too many files are open.
    """
    try:
        opened = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        if error.errno in OPEN_FILES:  # the image is not to blame
            raise
        return Missing(str(error.strerror))
    with os.fdopen(opened, "rb") as file:
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            return Missing("not a regular file")
        try:
            return file.read()
        except OSError as error:
            return Missing(str(error.strerror))


def file_bytes(path: Path) -> int:
    """A file's size; 0 where it is missing or may not be read: it then has no image."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
