"""Represent the images of a split with labels, groups and masks as a Source.

A Store reads the images of one kind of container, and a Source is the same for all containers.

Legend: N images of a store, B requested rows, L labels of the longest list.
"""

import itertools
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

READERS = 16  # threads that read headers of files; most of the time they wait on a network disk


class Missing(bytes):
    """Empty bytes in place of a missing image, with the reason."""

    reason: str

    def __new__(cls, reason: str) -> "Missing":
        missing = super().__new__(cls)
        missing.reason = reason
        return missing

    def __reduce__(self) -> tuple[type["Missing"], tuple[str]]:
        return Missing, (self.reason,)  # so that the reason is pickled, too


Raw = bytes | np.ndarray  # an encoded image (or Missing), or an array (H, W, C)


class Store(ABC):
    """Access to the images of a split in a container.

    A store holds no open files, because data workers get a copy by fork or pickle.
    """

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def fetch(self, rows: np.ndarray) -> list[Raw]:
        """Return the image of each row, in the order of `rows`.

        An image that cannot be read is Missing.
        """

    @abstractmethod
    def name(self, row: int) -> str:
        """Return a name of a row for warnings and errors."""

    @abstractmethod
    def sizes(self) -> np.ndarray:
        """Return the size of each encoded image in bytes, integers (N,), without reading images."""

    def names(self) -> Iterable[str]:
        """Return the name of each image's file below the user's folder, such as "cat/1.png".

        If the images have no file names, the result is ().
        """
        return ()

    def file_of(self, row: int) -> str:
        """Return the name of a row's file below the user's folder.

        If the images are no files, the row's name for warnings and errors is returned.
        """
        return self.name(row)

    def path_of(self, row: int) -> Path | None:
        """Return the path of the file of a row's image, or None if images are no files."""
        return None

    @property
    def hashed_every(self) -> int | None:
        """Return n if a fingerprint hashes every n-th image.

        For None, the fingerprint chooses n by the size of all images in bytes.
        """
        return None


class Masks(NamedTuple):
    """Masks of a split.

    Attributes:
        column: Name of the column of masks, "" for no masks.
        choices: Sentence on columns that could hold masks, for errors.
        classes: Number of classes, if known.
        store: Store with a mask for each image.
    """

    column: str
    choices: str
    classes: int | None = None
    store: Store | None = None


NO_MASKS = Masks("", "Masks are read from a column of parquet files or of a data set on the Hub")


class Groups(NamedTuple):
    """Group of each image, int64 (N,), and names of the groups.

    Each image without a group has a number of its own, above the numbers of groups with names.
    """

    number_N: np.ndarray
    names: list[str]

    @classmethod
    def by_value(cls, values: Sequence[Any]) -> "Groups":
        """Put images with the same value into one group.

        Groups are numbered from 0 in the alphabetical order of the values. Each image without a
        value gets a higher number of its own. For example, the values "b", null, "a", "b" give the
        numbers 1, 2, 0, 1 and the names "a" and "b".

        Args:
            values: One value for each image, such as the name of a patient. null, "" or NaN mean no
                value.
        """
        names = sorted({str(value) for value in values if not is_missing(value)})
        number_of = {name: number for number, name in enumerate(names)}
        unused_numbers = itertools.count(len(names))  # for images without a value
        numbers = [
            next(unused_numbers) if is_missing(value) else number_of[str(value)] for value in values
        ]
        return cls(np.array(numbers, np.int64), names)


@dataclass(frozen=True, eq=False)
class Source:
    """Images of a split, or some of the images (`subset`).

    Attributes:
        store: Access to the images.
        labels: Labels of all rows of the store.
        masks: Masks of all rows of the store.
        groups: Groups of all rows of the store. None without data.group=.
        rows: Rows of the store that belong to the source, in order. None for all rows.
    """

    store: Store
    labels: Labels
    masks: Masks = NO_MASKS
    groups: Groups | None = None
    rows: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.store) if self.rows is None else len(self.rows)

    def fetch(self, rows: np.ndarray) -> tuple[list[Raw], np.ndarray]:
        """Return the images (encoded or arrays) and the labels of rows.

        Single labels are int64 (B,), and -1 means no label. Lists of labels are int64 (B, L),
        padded as by `labels.pad_lists`.
        """
        stored_rows = self._in_store(rows)
        return self.store.fetch(stored_rows), self.labels.of(stored_rows)

    def label_of(self, rows: np.ndarray) -> np.ndarray:
        """Return the labels of rows, of the same form as from `fetch`, without reading images."""
        return self.labels.of(self._in_store(rows))

    def fetch_masks(self, rows: np.ndarray) -> list[Raw]:
        """Return each row's mask, encoded or as an array of integers (H, W).

        The split must have masks.
        """
        assert self.masks.store is not None
        return self.masks.store.fetch(self._in_store(rows))

    def group_of(self, rows: np.ndarray) -> np.ndarray:
        """Return each row's group as an integer (B,).

        The split must have been read with data.group.
        """
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
        """Return the names of the classes, starting with label 0, or [] for bare numbers."""
        return self.labels.classes

    @property
    def has_labels(self) -> bool:
        """Return whether any row of the store has a label, also rows outside of the source."""
        return self.labels.lowest_and_highest[1] >= 0

    def subset(self, rows: np.ndarray) -> "Source":
        """Return a source of the given rows of this source, in the given order."""
        return replace(self, rows=self._in_store(rows))

    def all_rows(self) -> "Source":
        """Return a source of all rows of the store."""
        return replace(self, rows=None)

    def without_labels(self) -> "Source":
        return replace(self, labels=no_labels(len(self.store), self.labels.columns))

    def store_rows(self) -> np.ndarray:
        """Return the rows of the store that belong to the source."""
        return np.arange(len(self.store)) if self.rows is None else self.rows

    def is_share(self) -> bool:
        """Return whether the store has images that are not in the source."""
        return len(self) < len(self.store)

    def _in_store(self, rows: np.ndarray) -> np.ndarray:
        """Return the store's rows for rows of this source."""
        return rows if self.rows is None else self.rows[rows]

    def _row(self, row: int) -> int:
        return row if self.rows is None else int(self.rows[row])


def labelled_images(source: Source) -> Source:
    """Return a source of the images that have a label or a list of labels.

    If no image has a label, all images are returned.
    """
    lowest, highest = source.labels.lowest_and_highest
    # lowest >= 0: all images have a label. highest < 0: no image has a label
    if lowest >= 0 or highest < 0:
        return source
    label_N = source.label_of(np.arange(len(source)))
    if label_N.ndim == 2:  # lists: the row of an image without a list is filled with UNLABELLED
        label_N = label_N[:, 0]
    return source.subset(np.flatnonzero(label_N != UNLABELLED))


def without_lists(source: Source, use: str) -> Source:
    """Drop the labels of images with lists of labels, and print a warning.

    Images with single labels are returned unchanged.

    Args:
        source: The images.
        use: What the caller makes from the images, as a plural noun for the warning, such as "the
            figures".
    """
    if source.labels.lists is None:
        return source
    print(
        f"warning: data.label_column={source.labels.lists.column}: this column holds lists of"
        f" labels, so {use} have no labels",
        flush=True,
    )
    return source.without_labels()


def read_file(path: Path) -> bytes | Missing:
    """Read a regular file, or return Missing for an unreadable file, a pipe or a device.

    Reading a pipe or a device might never end.

    Raises:
        OSError: Too many files are open (EMFILE or ENFILE). The file does not count as missing,
            because it may be readable later.
    """
    try:
        opened = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        if error.errno in OPEN_FILES:
            raise
        return Missing(str(error.strerror))
    with os.fdopen(opened, "rb") as file:
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            return Missing("the path is not a regular file")
        try:
            return file.read()
        except OSError as error:
            return Missing(str(error.strerror))


def file_bytes(path: Path) -> int:
    """Return a file's size in bytes, or 0 for a missing or inaccessible file."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
