"""Splits that `datasets` reads: parquet files, `save_to_disk` folders, the Hub."""

from functools import cached_property
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow
import pyarrow.compute

from ..errors import UserError
from . import label_lists
from .array_cells import array_cell
from .base import FullSource, ReadUnits, file_bytes, relative_paths
from .columns import FoundColumns
from .label_lists import UNLABELLED
from .shares import group_numbers


def encoded_bytes(cell: bytes | dict[str, Any] | None) -> bytes:
    """A cell's encoded image; b"", which no decoder reads, where the cell or its file is missing or
    may not be read."""
    if isinstance(cell, bytes):
        return cell
    if cell is None or (cell["bytes"] is None and not cell["path"]):
        return b""
    try:
        return cell["bytes"] if cell["bytes"] is not None else Path(cell["path"]).read_bytes()
    except OSError:
        return b""


def class_indices(texts: pyarrow.ChunkedArray, classes: list[str]) -> pyarrow.ChunkedArray:
    """The index of each text among the classes."""
    known = pyarrow.array(classes, pyarrow.large_string())
    return pyarrow.compute.index_in(texts.cast(pyarrow.large_string()), value_set=known)


def lowest_and_highest(name: str, column: pyarrow.ChunkedArray) -> tuple[int, int] | None:
    """Of labels, -1 where there is none; None of a column without rows.

    Raises:
        UserError: one does not fit into 64 bits; it names the column.
    """
    try:
        whole = pyarrow.compute.fill_null(column.cast("int64"), -1)  # -1 is no unsigned number
    except pyarrow.ArrowInvalid:
        highest = pyarrow.compute.max(column).as_py()
        raise UserError(f"data.label_column={name}: {highest} is no number of a class") from None
    found = pyarrow.compute.min_max(whole).as_py()
    return (found["min"], found["max"]) if len(column) else None


class TableSource(FullSource):
    """A split of a `datasets.Dataset`; images stay encoded."""

    def __init__(
        self, rows: datasets.Dataset, found: FoundColumns, group: str | None = None
    ) -> None:
        image, label, masks = found.image, found.label, found.masks
        self.classes = found.classes
        self.number = {name: i for i, name in enumerate(self.classes)} if found.texts else None
        kept = [image] + ([label] if label else [])
        self.rows = rows.select_columns(kept)
        self.shape = found.shape
        if self.shape is None:
            self.rows = self.rows.cast_column(image, datasets.Image(decode=False))
        self.image = image
        self.label = label
        self.label_source = f"column {label}" if label else ""
        self.groups = rows.select_columns([group]) if group in rows.features else None
        self.columns = found.about
        self.masks = masks
        if label and label_lists.holds_lists(rows.features[label]):
            lists = label_lists.measure(label, self.rows.data.column(label))
            self.lists = label_lists.check_numbers(lists)
        elif label and not found.texts:
            _ = self.label_range  # checks that labels are numbers of classes
        if masks.column:  # beside the images, which are read without their masks
            alone = rows.select_columns([masks.column])
            self.mask_rows = alone.cast_column(masks.column, datasets.Image(decode=False))

    def measured_range(self) -> tuple[int, int]:
        if self.label is None:
            return UNLABELLED, UNLABELLED
        column = self.rows.data.column(self.label)
        if self.number is not None:
            column = class_indices(column, self.classes)
        return lowest_and_highest(self.label, column) or (-1, -1)

    def __len__(self) -> int:
        return len(self.rows)

    def fetch(self, rows: np.ndarray) -> tuple[list[bytes | np.ndarray], np.ndarray]:
        if self.shape is not None:
            return self._arrays(rows, self.shape), self.label_of(rows)
        got = self.rows[rows.tolist()]
        images: list[bytes | np.ndarray] = [encoded_bytes(cell) for cell in got[self.image]]
        labels = self._numbers(got[self.label]) if self.label else self.unlabelled(len(rows))
        return images, labels

    def _arrays(self, rows: np.ndarray, shape: tuple[int | None, ...]) -> list[bytes | np.ndarray]:
        alone = self.rows.select_columns([self.image]).with_format("arrow")
        column = alone[rows.tolist()].column(0).combine_chunks()
        return [array_cell(column.slice(row, 1), shape) for row in range(len(rows))]

    def fetch_masks(self, rows: np.ndarray) -> list[bytes | np.ndarray]:
        cells = self.mask_rows[rows.tolist()][self.masks.column]
        return [encoded_bytes(cell) for cell in cells]

    def label_of(self, rows: np.ndarray) -> np.ndarray:
        if self.label is None:
            return self.unlabelled(len(rows))
        return self._numbers(self.rows.select_columns([self.label])[rows.tolist()][self.label])

    @cached_property
    def _group_N(self) -> np.ndarray:
        assert self.groups is not None
        (column,) = self.groups.column_names
        return group_numbers(self.groups[:][column])

    def group_of(self, rows: np.ndarray) -> np.ndarray:
        return self._group_N[rows]

    def _numbers(self, labels: list[Any]) -> np.ndarray:
        if self.number is not None:
            labels = [None if text is None else self.number[text] for text in labels]
        if self.lists is not None:
            lists = pyarrow.array(labels, pyarrow.list_(pyarrow.int64()))
            return label_lists.padded(lists, self.lists.longest)
        return np.array([-1 if x is None else x for x in labels], np.int64)

    def units(self) -> ReadUnits:
        """Of images in the table or in files."""
        if self.shape is not None:
            return ReadUnits(np.full(len(self), -(-self.rows.data.nbytes // max(1, len(self)))))
        column = self.rows.data.column(self.image)
        inside = pyarrow.compute.binary_length(pyarrow.compute.struct_field(column, "bytes"))
        paths = pyarrow.compute.struct_field(column, "path").to_pylist()
        size_U = pyarrow.compute.fill_null(inside, -1).to_numpy().astype(np.int64)
        outside = np.flatnonzero(size_U < 0)
        size_U[outside] = [file_bytes(paths[row]) for row in outside]
        return ReadUnits(size_U, lambda: relative_paths(paths[row] or "" for row in outside))

    def name(self, row: int) -> str:
        if self.shape is not None:
            return f"row {row}"
        cell = self.rows[row][self.image] or {"path": None}
        return f"row {row}" + (f" ({cell['path']})" if cell["path"] else "")
