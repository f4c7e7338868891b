"""Splits in shards that are read in place: row groups of parquet files, and WebDataset tars
(key.jpg with key.cls or key.json)."""

import hashlib
import os
import tarfile
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.compute
import pyarrow.parquet

from ..errors import UserError
from . import label_lists
from .array_cells import array_cell
from .base import FullSource, ReadUnits, relative_paths
from .columns import FoundColumns
from .label_lists import UNLABELLED
from .shard_index import (
    READERS,
    UNUSED,
    error_text,
    group_bytes,
    group_rows,
    index_files,
    tar_images,
)

RECENT = 32  # row groups, or indices of tars, that are kept in memory at least


class LRUCache:
    """The last `most` results of a function of whole numbers. Not functools.lru_cache, as `most`
    changes and is per instance."""

    def __init__(self, load: Callable[[int], Any], most: int) -> None:
        self.load = load
        self.most = most
        self.kept: OrderedDict[int, Any] = OrderedDict()

    def __call__(self, number: int) -> Any:
        if number not in self.kept:
            self.kept[number] = self.load(number)
            if len(self.kept) > self.most:
                self.kept.popitem(last=False)
        self.kept.move_to_end(number)
        return self.kept[number]


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


class Shards(FullSource):
    """A split in shards of `sizes_S` rows."""

    def __init__(self, sizes_S: np.ndarray, classes: list[str], columns: str) -> None:
        self.sizes_S = sizes_S
        self.classes = classes
        self.columns = columns
        self.end_S = np.cumsum(sizes_S)
        self._recent = LRUCache(self._load, RECENT)

    def __len__(self) -> int:
        return int(self.sizes_S.sum())

    def set_cache_size(self, rows: int, streams: int) -> None:
        """Keep in memory the shards of so many rows, read side by side in so many streams."""
        # each stream begins and ends inside of a shard
        shards = rows * len(self.sizes_S) // len(self) + 2 * streams
        self._recent.most = max(RECENT, shards)

    def clear_cache(self) -> None:
        self._recent.kept.clear()

    def _by_shard(self, rows: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """For each shard: which of `rows` lie in it, and their places there."""
        shard = np.searchsorted(self.end_S, rows, side="right")
        for s in np.unique(shard).tolist():
            requested = np.flatnonzero(shard == s)
            yield s, requested, rows[requested] - (self.end_S[s] - self.sizes_S[s])

    def fetch(self, rows: np.ndarray) -> tuple[list[bytes | np.ndarray], np.ndarray]:
        images: list[bytes | np.ndarray] = [b""] * len(rows)
        labels = self.unlabelled(len(rows))
        for shard, requested, places in self._by_shard(rows):
            for i, (image, label) in zip(
                requested.tolist(), self._read(shard, places.tolist()), strict=True
            ):
                images[i] = image
                labels[i] = label
        return images, labels

    def label_of(self, rows: np.ndarray) -> np.ndarray:
        labels = self.unlabelled(len(rows))
        for shard, requested, places in self._by_shard(rows):
            labels[requested] = self._labels(shard)[places]
        return labels

    @abstractmethod
    def _labels(self, shard: int) -> np.ndarray:
        """The label of each of a shard's rows."""

    @abstractmethod
    def _load(self, shard: int) -> Any:
        """What is cached of a shard: a row group's cells, a tar's index."""

    @abstractmethod
    def _read(
        self, shard: int, places: list[int]
    ) -> Iterator[tuple[bytes | np.ndarray, int | np.ndarray]]:
        """The image, as `fetch`, and the label or the row of labels at each of a shard's places."""


@contextmanager
def _parquet(file: Path) -> Iterator[pyarrow.parquet.ParquetFile]:
    """The open file.

    Raises:
        UserError: it cannot be read.
    """
    try:
        with pyarrow.parquet.ParquetFile(file) as opened:
            yield opened
    except (OSError, pyarrow.ArrowException, KeyError) as error:
        raise UserError(f"data.path={file}: cannot be read: {error_text(error)}") from None


def column_of(file: Path, name: str) -> pyarrow.ChunkedArray:
    """A column of a parquet file.

    Raises:
        UserError: the file is damaged.
    """
    with _parquet(file) as opened:
        return opened.read([name], use_threads=False).select([name]).column(0)


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


class Parquet(Shards):
    """Row groups of parquet files. With `several` labels are lists of class numbers.

    Raises:
        UserError: a file that is cut off or is no parquet file; a label or a list that holds no
            class numbers.
    """

    def __init__(self, files: list[Path], columns: FoundColumns, several: bool = False) -> None:
        found = index_files(files, group_rows)
        self.files = files
        self.image = columns.image
        self.label = label = columns.label
        self.masks = columns.masks
        self.shape = columns.shape
        self._recent_masks = LRUCache(self._load_masks, RECENT)
        numbers = {name: i for i, name in enumerate(columns.classes)}
        self.number = numbers if columns.texts else None
        self.file_S = np.repeat(np.arange(len(files)), [len(rows) for rows in found])
        self.group_S = np.concatenate([np.arange(len(rows)) for rows in found])
        super().__init__(np.concatenate(found), columns.classes, columns.about)
        self.label_source = f"column {label}" if label else ""
        if label is not None and several:
            with ThreadPoolExecutor(READERS) as pool:
                parts = pool.map(self._measure_lists, files)
                self.lists = label_lists.together(label, list(parts))
        elif label and pyarrow.parquet.read_schema(files[0]).field(label).type == pyarrow.uint64():
            _ = self.label_range  # only these can be too large for a label

    def measured_range(self) -> tuple[int, int]:
        if self.label is None:
            return UNLABELLED, UNLABELLED
        with ThreadPoolExecutor(READERS) as pool:
            ranges = [found for found in pool.map(self._label_range, self.files) if found]
        lowest = min((low for low, _ in ranges), default=-1)
        highest = max((high for _, high in ranges), default=-1)
        return lowest, highest

    def units(self) -> ReadUnits:
        """Row groups: none can be read in part."""
        sizes = np.concatenate(index_files(self.files, group_bytes))
        names = relative_paths(map(str, self.files))
        return ReadUnits(
            self.sizes_S,
            sizes,
            lambda: [f"{names[f]} {n}" for f, n in zip(self.file_S, self.sizes_S, strict=True)],
        )

    def _measure_lists(self, file: Path) -> label_lists.LabelLists:
        column = str(self.label)
        return label_lists.measure(column, column_of(file, column))

    def _label_range(self, file: Path) -> tuple[int, int] | None:
        column = column_of(file, str(self.label))
        if self.number is not None:
            column = class_indices(column, self.classes)
        return lowest_and_highest(str(self.label), column)

    def _image(self, table: pyarrow.Table, place: int) -> bytes | np.ndarray:
        column = table.column(self.image)
        if self.shape is None:
            return encoded_bytes(column[place].as_py())
        return array_cell(column.slice(place, 1).combine_chunks(), self.shape)

    def _read(
        self, shard: int, places: list[int]
    ) -> Iterator[tuple[bytes | np.ndarray, int | np.ndarray]]:
        table = self._recent(shard)
        if self.lists is not None:
            images = (self._image(table, place) for place in places)
            lists = table.column(self.label).take(places)
            yield from zip(images, label_lists.padded(lists, self.lists.longest), strict=True)
            return
        for place in places:
            label = table.column(self.label)[place].as_py() if self.label else None
            if self.number is not None:
                label = None if label is None else self.number[label]
            yield (
                self._image(table, place),
                -1 if label is None else label,
            )

    def fetch_masks(self, rows: np.ndarray) -> list[bytes | np.ndarray]:
        found: list[bytes | np.ndarray] = [b""] * len(rows)
        for shard, requested, places in self._by_shard(rows):
            cells = self._recent_masks(shard)
            for i, place in zip(requested.tolist(), places.tolist(), strict=True):
                found[i] = encoded_bytes(cells[place].as_py())
        return found

    def _load_masks(self, shard: int) -> pyarrow.ChunkedArray:
        column = self.masks.column
        with _parquet(self.files[self.file_S[shard]]) as opened:
            group = int(self.group_S[shard])
            return opened.read_row_group(group, [column], use_threads=False).column(column)

    def clear_cache(self) -> None:
        super().clear_cache()
        self._recent_masks.kept.clear()

    def _labels(self, shard: int) -> np.ndarray:
        if self.label is None:
            return self.unlabelled(int(self.sizes_S[shard]))
        with _parquet(self.files[self.file_S[shard]]) as opened:
            group = int(self.group_S[shard])
            column = (
                opened.read_row_group(group, [self.label], use_threads=False)
                .select([self.label])
                .column(0)
            )
        if self.number is not None:
            column = class_indices(column, self.classes)
        if self.lists is not None:
            return label_lists.padded(column, self.lists.longest)
        return pyarrow.compute.fill_null(column.cast("int64"), -1).to_numpy()

    def _load(self, shard: int) -> pyarrow.Table:
        columns = [name for name in (self.image, self.label) if name]
        with _parquet(self.files[self.file_S[shard]]) as opened:
            group = int(self.group_S[shard])
            return opened.read_row_group(group, columns, use_threads=False).select(columns)

    def name(self, row: int) -> str:
        ((shard, _, (place,)),) = self._by_shard(np.array([row]))
        return (
            f"{self.files[self.file_S[shard]].name}, row group {self.group_S[shard]}, row {place}"
        )


class Tars(Shards):
    """WebDataset tars. Any image is read directly, at its offset. `column`: where its label is, a
    key of key.json, or cls; then labels may be lists. `unused` images have other labels than whole
    numbers otherwise.

    Raises:
        UserError: a file that ends early, is no tar, holds no images or, in `column`, a label that
            is neither a number of a class nor a list of them.
    """

    def __init__(self, files: list[Path], column: str = "") -> None:
        self.files = files
        self.column = column
        found = index_files(files, tar_images, column)
        each = [members["label"] for members in found]
        used = [self._used(label_N) for label_N in each]
        self.ends = (
            min(int(label_N.min()) for label_N in used),
            max(int(label_N.max()) for label_N in used),
        )
        self.unused = sum(int((label_N == UNUSED).sum()) for label_N in each)
        if any(label_N.ndim > 1 for label_N in each):
            self.take_lists()
        super().__init__(
            np.array([len(members) for members in found]),
            [],
            "; a tar has them as key.cls or key.json with a whole number or, named by"
            " data.label_column=, lists of class numbers",
        )
        if self.ends[1] >= 0:
            self.label_source = f"{column} of the tars" if column else ".cls and .json of the tars"

    def take_lists(self) -> None:
        """Return lists from now on, single labels as lists of one.

        Raises:
            UserError: a label is no number of a class, or as `label_lists.check_numbers`.
        """
        each = [members["label"] for members in index_files(self.files, tar_images, self.column)]
        parts = [label_lists.measure_padded(self.column, label_N) for label_N in each]
        self.lists = label_lists.together(self.column, parts)

    def measured_range(self) -> tuple[int, int]:
        return self.ends

    def _labels(self, shard: int) -> np.ndarray:
        return self._used(self._recent(shard)["label"])

    def _used(self, label_N: np.ndarray) -> np.ndarray:
        """Labels of the index as `fetch` returns them."""
        if self.lists is not None:
            return label_lists.repadded(label_N, self.lists.longest)
        return np.where(label_N == UNUSED, UNLABELLED, label_N)

    def units(self) -> ReadUnits:
        """Single images."""
        found = index_files(self.files, tar_images, self.column)
        names = relative_paths(map(str, self.files))
        known = zip(names, found, strict=True)
        sizes = np.concatenate([members["size"] for members in found])
        labels = (
            f"{name} {hashlib.sha256(self._used(members['label']).tobytes()).hexdigest()}"
            for name, members in known
        )
        return ReadUnits(np.ones_like(sizes), sizes, lambda: labels)

    def _load(self, shard: int) -> np.ndarray:
        return index_files([self.files[shard]], tar_images, self.column)[0]

    def _read(self, shard: int, places: list[int]) -> Iterator[tuple[bytes, int | np.ndarray]]:
        members = self._recent(shard)[places]
        labels = self._used(members["label"])
        try:
            with self.files[shard].open("rb", buffering=0) as file:
                for offset, size, label in zip(
                    members["offset"].tolist(), members["size"].tolist(), labels, strict=True
                ):
                    yield os.pread(file.fileno(), size, offset), label
        except OSError as error:
            raise UserError(
                f"data.path={self.files[shard]}: cannot be read: {error_text(error)}"
            ) from None

    def name(self, row: int) -> str:
        ((shard, _, (place,)),) = self._by_shard(np.array([row]))
        at = int(self._recent(shard)["offset"][place]) - tarfile.BLOCKSIZE
        try:
            with self.files[shard].open("rb") as file:
                header = os.pread(file.fileno(), tarfile.BLOCKSIZE, at)
            name = tarfile.TarInfo.frombuf(header, "utf-8", "replace").name
        except (OSError, tarfile.TarError):  # the file changed since it was indexed
            name = f"row {place}"
        return f"{self.files[shard].name}, {name}"
