"""Images in shards, read where they lie: row groups of parquet files, and WebDataset tars (key.jpg
and key.cls or key.json).

A shard is indexed once, in the cache of `datasets` (HF_HOME), for as long as the file stays as it
is.
"""

import hashlib
import json
import os
import tarfile
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sized
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow
import pyarrow.compute
import pyarrow.parquet

from ..errors import UserError
from .base import ReadUnits, relative_paths
from .layout import IMAGES

MEMBER = np.dtype([("offset", "<i8"), ("size", "<i8"), ("label", "<i8")])  # of an image in a tar
INDEXED = 2  # which files of a tar are images, as of which version: an older index is not used
LONGEST = 2**20  # bytes of a label's file; a longer one is something else
READERS = 16  # shards indexed at a time, which on a mounted disk is waiting
RECENT = 32  # row groups, or indices of tars, that are kept in memory anyway


class LRUCache:
    """The last few answers of a function of whole numbers, kept for the next time."""

    def __init__(self, load: Callable[[int], Any], most: int) -> None:
        self.load, self.most = load, most
        self.kept: OrderedDict[int, Any] = OrderedDict()

    def __call__(self, number: int) -> Any:
        if number not in self.kept:
            self.kept[number] = self.load(number)
            if len(self.kept) > self.most:
                self.kept.popitem(last=False)
        self.kept.move_to_end(number)
        return self.kept[number]


def encoded_bytes(cell: bytes | dict[str, Any] | None) -> bytes:
    """A cell's encoded image; none where the cell or its file is missing or forbidden, which no
    decoder takes."""
    if isinstance(cell, bytes):
        return cell
    if cell is None or (cell["bytes"] is None and not cell["path"]):
        return b""
    try:
        return cell["bytes"] if cell["bytes"] is not None else Path(cell["path"]).read_bytes()
    except OSError:
        return b""


class Shards(ABC):
    """A split in shards of `sizes_S` rows."""

    def __init__(self, sizes_S: np.ndarray, classes: list[str], columns: str) -> None:
        self.sizes_S, self.classes, self.columns = sizes_S, classes, columns
        self.end_S = np.cumsum(sizes_S)
        self._recent = LRUCache(self._load, RECENT)

    def __len__(self) -> int:
        return int(self.sizes_S.sum())

    def set_cache_size(self, rows: int, streams: int) -> None:
        """Keep in memory what so many rows lie in, which are read side by side in so many
        streams."""
        # a stretch begins and ends amid one
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
        labels = np.full(len(rows), -1, np.int64)
        for shard, requested, places in self._by_shard(rows):
            for i, (image, label) in zip(
                requested.tolist(), self._read(shard, places.tolist()), strict=True
            ):
                images[i], labels[i] = image, label
        return images, labels

    def label_of(self, rows: np.ndarray) -> np.ndarray:
        labels = np.full(len(rows), -1, np.int64)
        for shard, requested, places in self._by_shard(rows):
            labels[requested] = self._labels(shard)[places]
        return labels

    @abstractmethod
    def _labels(self, shard: int) -> np.ndarray:
        """The label of each of a shard's rows."""

    @abstractmethod
    def _load(self, shard: int) -> Any:
        """What is worth keeping of a shard: a row group's cells, a tar's index."""

    @abstractmethod
    def _read(self, shard: int, places: list[int]) -> Iterator[tuple[bytes, int]]:
        """The encoded image and the label at each of a shard's places."""


@contextmanager
def _parquet(file: Path) -> Iterator[pyarrow.parquet.ParquetFile]:
    """The open file; what is wrong with it is said in one line."""
    try:
        with pyarrow.parquet.ParquetFile(file) as opened:
            yield opened
    except (OSError, pyarrow.ArrowException, KeyError) as error:
        raise UserError(f"data.path={file}: cannot be read: {_line(error)}") from None


def column_of(file: Path, name: str) -> pyarrow.ChunkedArray:
    """A column of a parquet file.

    Raises:
        UserError: the file is damaged.
    """
    with _parquet(file) as opened:
        return opened.read([name], use_threads=False).select([name]).column(0)


def class_indices(texts: pyarrow.ChunkedArray, classes: list[str]) -> pyarrow.ChunkedArray:
    """Of each text its place among the classes."""
    known = pyarrow.array(classes, pyarrow.large_string())
    return pyarrow.compute.index_in(texts.cast(pyarrow.large_string()), value_set=known)


class Parquet(Shards):
    """Row groups of parquet files. With `texts` the labels are texts, each the name of its class.

    Raises:
        UserError: a file that is cut off or is no parquet file.
    """

    def __init__(
        self,
        files: list[Path],
        image: str,
        label: str | None,
        classes: list[str],
        columns: str,
        texts: bool = False,
    ) -> None:
        found = index_files(files, group_rows)
        self.files, self.image, self.label = files, image, label
        self.number = {name: i for i, name in enumerate(classes)} if texts else None
        self.file_S = np.repeat(np.arange(len(files)), [len(rows) for rows in found])
        self.group_S = np.concatenate([np.arange(len(rows)) for rows in found])
        super().__init__(np.concatenate(found), classes, columns)

    @property
    def labels(self) -> tuple[int, int]:
        if self.label is None:
            return -1, -1
        with ThreadPoolExecutor(READERS) as pool:
            ranges = [r for r in pool.map(self._label_range, self.files) if r]
        return min((low for low, _ in ranges), default=-1), max(
            (high for _, high in ranges), default=-1
        )

    def units(self) -> ReadUnits:
        """Row groups, of which none can be read in part."""
        sizes = np.concatenate(index_files(self.files, group_bytes))
        names = relative_paths(map(str, self.files))
        return ReadUnits(
            self.sizes_S,
            sizes,
            lambda: [f"{names[f]} {n}" for f, n in zip(self.file_S, self.sizes_S, strict=True)],
        )

    def _label_range(self, file: Path) -> tuple[int, int] | None:
        column = column_of(file, str(self.label))
        if self.number is not None:
            column = class_indices(column, self.classes)
        found = pyarrow.compute.min_max(pyarrow.compute.fill_null(column, -1)).as_py()
        return (found["min"], found["max"]) if len(column) else None

    def _read(self, shard: int, places: list[int]) -> Iterator[tuple[bytes, int]]:
        table = self._recent(shard)
        for place in places:
            label = table.column(self.label)[place].as_py() if self.label else None
            if self.number is not None:
                label = None if label is None else self.number[label]
            yield (
                encoded_bytes(table.column(self.image)[place].as_py()),
                -1 if label is None else label,
            )

    def _labels(self, shard: int) -> np.ndarray:
        if self.label is None:
            return np.full(int(self.sizes_S[shard]), -1, np.int64)
        with _parquet(self.files[self.file_S[shard]]) as opened:
            group = int(self.group_S[shard])
            column = (
                opened.read_row_group(group, [self.label], use_threads=False)
                .select([self.label])
                .column(0)
            )
        if self.number is not None:
            column = class_indices(column, self.classes)
        return pyarrow.compute.fill_null(column, -1).to_numpy()

    def _load(self, shard: int) -> pyarrow.Table:
        columns = [name for name in (self.image, self.label) if name]
        with _parquet(self.files[self.file_S[shard]]) as opened:
            return opened.read_row_group(
                int(self.group_S[shard]), columns, use_threads=False
            ).select(columns)

    def name(self, row: int) -> str:
        ((shard, _, (place,)),) = self._by_shard(np.array([row]))
        return (
            f"{self.files[self.file_S[shard]].name}, row group {self.group_S[shard]}, row {place}"
        )


class Tars(Shards):
    """WebDataset tars, of which any image is read without what lies before it.

    Raises:
        UserError: a file that ends early, is no tar, or holds no images.
    """

    def __init__(self, files: list[Path]) -> None:
        found = index_files(files, _members)
        self.files = files
        each = [members["label"] for members in found]
        self.labels = (
            min(int(labels.min()) for labels in each),
            max(int(labels.max()) for labels in each),
        )
        super().__init__(
            np.array([len(members) for members in found]),
            [],
            "; a tar has them as key.cls or key.json with a whole number",
        )

    def _labels(self, shard: int) -> np.ndarray:
        return self._recent(shard)["label"]

    def units(self) -> ReadUnits:
        """Single images."""
        found = index_files(self.files, _members)
        names = relative_paths(map(str, self.files))
        known = zip(names, found, strict=True)
        sizes = np.concatenate([members["size"] for members in found])
        labels = (
            f"{name} {hashlib.sha256(members['label'].tobytes()).hexdigest()}"
            for name, members in known
        )
        return ReadUnits(np.ones_like(sizes), sizes, lambda: labels)

    def _load(self, shard: int) -> np.ndarray:
        return index_files([self.files[shard]], _members)[0]

    def _read(self, shard: int, places: list[int]) -> Iterator[tuple[bytes, int]]:
        members = self._recent(shard)
        try:
            with self.files[shard].open("rb", buffering=0) as file:
                for offset, size, label in members[places].tolist():
                    yield os.pread(file.fileno(), size, offset), label
        except OSError as error:
            raise UserError(
                f"data.path={self.files[shard]}: cannot be read: {_line(error)}"
            ) from None

    def name(self, row: int) -> str:
        ((shard, _, (place,)),) = self._by_shard(np.array([row]))
        at = int(self._recent(shard)["offset"][place]) - tarfile.BLOCKSIZE
        try:
            with self.files[shard].open("rb") as file:
                header = os.pread(file.fileno(), tarfile.BLOCKSIZE, at)
            name = tarfile.TarInfo.frombuf(header, "utf-8", "replace").name
        except (OSError, tarfile.TarError):  # it has changed since it was indexed
            name = f"row {place}"
        return f"{self.files[shard].name}, {name}"


def index_files(files: list[Path], walk: Callable[[Path], np.ndarray]) -> list[np.ndarray]:
    """What `walk` finds in each file, remembered in the cache.

    Raises:
        UserError: a file that `walk` finds damaged, with its name.
    """
    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(lambda file: _remembered(file, walk), files))


def _remembered(file: Path, walk: Callable[[Path], np.ndarray]) -> np.ndarray:
    cache = Path(datasets.config.HF_DATASETS_CACHE) / "ssl_vit"
    try:
        stat = file.stat()
        known = f"{walk.__name__} {INDEXED} {file.resolve()} {stat.st_size} {stat.st_mtime_ns}"
        kept = cache / f"{hashlib.sha256(known.encode()).hexdigest()[:32]}.npy"
        if (found := _kept(kept)) is not None:
            return found
        found = walk(file)
    except (OSError, ValueError, OverflowError, tarfile.TarError, pyarrow.ArrowException) as error:
        raise UserError(f"data.path={file}: {_line(error)}") from None
    try:
        _keep(kept, found)
    except OSError as error:
        raise UserError(
            f"data.path={file}: its index cannot be kept in {cache}: {error.strerror}; set HF_HOME"
        ) from None
    return found


def _kept(path: Path) -> np.ndarray | None:
    """An index of the cache; None where there is none, or it is damaged."""
    try:
        return np.load(path)
    except (OSError, ValueError, EOFError):
        return None


def _keep(path: Path, array: np.ndarray) -> None:
    """Whole or not at all, whoever else writes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.stem}.{os.getpid()}.npy")
    np.save(beside, array)
    beside.replace(path)


def group_rows(file: Path) -> np.ndarray:
    """Rows of each row group of a parquet file, from its footer."""
    known = pyarrow.parquet.read_metadata(file)
    return np.array([known.row_group(i).num_rows for i in range(known.num_row_groups)], np.int64)


def group_bytes(file: Path) -> np.ndarray:
    """Bytes of each row group as it lies in a parquet file, from its footer."""
    known = pyarrow.parquet.read_metadata(file)
    found = [known.row_group(i) for i in range(known.num_row_groups)]
    return np.array(
        [sum(g.column(c).total_compressed_size for c in range(g.num_columns)) for g in found],
        np.int64,
    )


def _members(file: Path) -> np.ndarray:
    """The images of a tar, from its headers.

    Raises:
        ValueError: it does not end as a tar does, is damaged, or has no images.
    """
    found: dict[str, tuple[int, int]] = {}
    labels: dict[str, dict[str, int]] = {}
    with tarfile.open(file, "r:") as tar, file.open("rb") as raw:
        try:
            for member in _forward(tar, file.stat().st_size, found):
                key, kind = _key(member.name)
                if member.isreg() and kind in IMAGES:
                    if key in found:
                        raise ValueError(f"{member.name}: a second image of {key}")
                    found[key] = member.offset_data, member.size
                elif member.isreg() and kind in ("cls", "json") and member.size <= LONGEST:
                    text = os.pread(raw.fileno(), member.size, member.offset_data)
                    labels.setdefault(key, {})[kind] = _label(kind, text)
        except (MemoryError, RecursionError, LookupError) as error:  # of headers that say nonsense
            raise ValueError(f"damaged after {len(found)} images: {type(error).__name__}") from None
        if os.pread(raw.fileno(), tarfile.BLOCKSIZE, tar.offset) != bytes(tarfile.BLOCKSIZE):
            raise ValueError(f"cut off or damaged at byte {tar.offset}, after {len(found)} images")
    if not found:
        raise ValueError("no images in it (key.jpg, key.png, ...)")
    label_files = [labels.get(key, {}) for key in found]
    best = [label.get("cls", label.get("json", -1)) for label in label_files]
    return np.array(
        [(*place, label) for place, label in zip(found.values(), best, strict=True)], MEMBER
    )


def _forward(tar: tarfile.TarFile, length: int, found: Sized) -> Iterator[tarfile.TarInfo]:
    """The members, each behind the one before: a damaged size may lead back, and round for ever.

    Raises:
        ValueError: one does not lie so, or not in the file.
    """
    reached = -1
    while (member := tar.next()) is not None:
        fits = 0 <= member.size <= length - member.offset_data or not member.isreg()
        if member.offset <= reached or not fits:
            raise ValueError(
                f"cut off or damaged at byte {member.offset}, after {len(found)} images"
            )
        reached = member.offset
        yield member
        tar.members.clear()  # type: ignore[attr-defined]  # there may be millions


def _key(name: str) -> tuple[str, str]:
    """As WebDataset: before the first dot of the file's name stands the sample's key, behind it the
    kind."""
    folder, slash, file = name.rpartition("/")
    key, _, kind = file.partition(".")
    return folder + slash + key, kind.lower()


def _label(kind: str, text: bytes) -> int:
    """The whole number in a .cls file, or in a .json file under `label`; -1 where there is none."""
    try:
        value = json.loads(text)
    except ValueError:
        return -1
    if kind == "json":
        value = value.get("label") if isinstance(value, dict) else None
    return value if type(value) is int else -1


def _line(error: Exception) -> str:
    return " ".join(str(getattr(error, "strerror", None) or error).split())[:300]
