"""Indices of shards: rows and bytes of a parquet file's row groups, and the images of a WebDataset
tar. Each file is read through once; its index is cached in the cache of `datasets` (HF_HOME) until
the file changes."""

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Callable, Iterator, Sized
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow
import pyarrow.parquet

from ..errors import UserError
from ..runs.files import write_atomically
from . import label_lists
from .image_formats import IMAGES

UNUSED = -(2**63)  # in place of a label that is no whole number, where no column is named
VERSION = 4  # of what is read from a tar: indices of another version are not used
LONGEST_LABEL = 2**20  # bytes of a label's file; a longer file is something else
READERS = 16  # shards read at a time: on a network disk most of the time is waiting


def index_files(
    files: list[Path], index: Callable[..., np.ndarray], *options: str
) -> list[np.ndarray]:
    """What `index` (group_rows, group_bytes or tar_images) returns for each file and these options,
    cached.

    Raises:
        UserError: a file is damaged, or the cache cannot be written.
    """
    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(lambda file: _cached(file, index, options), files))


def _cached(file: Path, index: Callable[..., np.ndarray], options: tuple[str, ...]) -> np.ndarray:
    cache = Path(datasets.config.HF_DATASETS_CACHE) / "ssl_vit"
    try:
        stat = file.stat()
        made = f"{index.__name__} {VERSION} {json.dumps(options)}"
        key = f"{made} {file.resolve()} {stat.st_size} {stat.st_mtime_ns}"
        path = cache / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.npy"
        known = _read_cache(path)
        if known is not None:
            return known
        found = index(file, *options)
    except (OSError, ValueError, OverflowError, tarfile.TarError, pyarrow.ArrowException) as error:
        raise UserError(f"data.path={file}: {error_text(error)}") from None
    try:
        _write_cache(path, found)
    except OSError as error:
        raise UserError(
            f"data.path={file}: its index cannot be kept in {cache}: {error.strerror}; set HF_HOME"
        ) from None
    return found


def _read_cache(path: Path) -> np.ndarray | None:
    """An index of the cache; None where there is none, or it is damaged."""
    try:
        return np.load(path)
    except (OSError, ValueError, EOFError, SystemError):
        # Up to Python 3.11.7, threads that parse headers at once can raise SystemError (gh-106905)
        return None


def _write_cache(path: Path, array: np.ndarray) -> None:
    """Atomically: other processes may write the same index."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    np.save(content, array)
    write_atomically(path, content.getvalue())


def group_rows(file: Path) -> np.ndarray:
    """Rows of each row group of a parquet file, from its footer."""
    known = pyarrow.parquet.read_metadata(file)
    return np.array([known.row_group(i).num_rows for i in range(known.num_row_groups)], np.int64)


def group_bytes(file: Path) -> np.ndarray:
    """Bytes of each row group as it lies in a parquet file, from its footer."""
    known = pyarrow.parquet.read_metadata(file)
    sizes = []
    for group in map(known.row_group, range(known.num_row_groups)):
        columns = map(group.column, range(group.num_columns))
        sizes.append(sum(column.total_compressed_size for column in columns))
    return np.array(sizes, np.int64)


def tar_images(file: Path, column: str = "") -> np.ndarray:
    """Offset, size and label of each image of a tar, from its headers: a record of int64. Labels
    are those of the .cls files, else of the key `label` of the .json files, UNUSED for a list or a
    text. With `column` they are of that key alone (`cls`: of the .cls files), and where one is a
    list, all are, each as a row of `label_lists.padded`.

    Raises:
        ValueError: it does not end as a tar does, is damaged, or has no images; with `column`, a
            label is neither a number of a class nor a list of them.
    """
    found: dict[str, tuple[int, int]] = {}
    labels: dict[str, dict[str, Any]] = {}
    with tarfile.open(file, "r:") as tar, file.open("rb") as raw:
        try:
            for member in _forward(tar, file.stat().st_size, found):
                key, kind = _key(member.name)
                if member.isreg() and kind in IMAGES:
                    if key in found:
                        raise ValueError(f"{member.name}: a second image of {key}")
                    found[key] = member.offset_data, member.size
                elif member.isreg() and kind in ("cls", "json") and member.size <= LONGEST_LABEL:
                    text = os.pread(raw.fileno(), member.size, member.offset_data)
                    labels.setdefault(key, {})[kind] = _label(kind, text, column or "label")
        except (MemoryError, RecursionError, LookupError) as error:  # from damaged headers
            raise ValueError(f"damaged after {len(found)} images: {type(error).__name__}") from None
        if os.pread(raw.fileno(), tarfile.BLOCKSIZE, tar.offset) != bytes(tarfile.BLOCKSIZE):
            raise ValueError(f"cut off or damaged at byte {tar.offset}, after {len(found)} images")
    if not found:
        raise ValueError("no images in it (key.jpg, key.png, ...)")
    kinds = {"": ("cls", "json"), "cls": ("cls",)}.get(column, ("json",))
    known = [_chosen(labels.get(key, {}), kinds) for key in found]
    if column and any(isinstance(label, list) for label in known):
        label_N = label_lists.from_values(known)
    else:
        label_N = np.array([_single(label, column) for label in known], np.int64)
    label = ("label", "<i8", label_N.shape[1:])
    images = np.empty(len(found), np.dtype([("offset", "<i8"), ("size", "<i8"), label]))
    images["offset"], images["size"] = np.array(list(found.values()), np.int64).T
    images["label"] = label_N
    return images


def _chosen(labels: dict[str, Any], kinds: tuple[str, ...]) -> Any:
    """The label of the first of these kinds that there is."""
    return next((labels[kind] for kind in kinds if kind in labels), None)


def _forward(tar: tarfile.TarFile, length: int, found: Sized) -> Iterator[tarfile.TarInfo]:
    """The members, each after the one before it: a damaged size could lead back, and into an
    endless loop.

    Raises:
        ValueError: a member lies before the last one, or not wholly in the file.
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
        # else tarfile keeps them all, which may be millions
        tar.members.clear()  # type: ignore[attr-defined]


def _key(name: str) -> tuple[str, str]:
    """WebDataset's convention: the path up to the first dot of the file's name is the sample's key,
    the rest the kind."""
    folder, slash, file = name.rpartition("/")
    key, _, kind = file.partition(".")
    return folder + slash + key, kind.lower()


def _single(label: Any, column: str) -> int:
    if label is None:
        return label_lists.UNLABELLED
    if type(label) is int and abs(label) < 2**63:
        return label
    if column or type(label) is int:
        raise ValueError(f"{str(label)[:100]}: {label_lists.EXPECTED}")
    return UNUSED


def _label(kind: str, text: bytes, key: str) -> Any:
    """What is in a .cls file, or in a .json file under the key; None where there is nothing, the
    text where it is no JSON."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return " ".join(text.decode(errors="replace").split()) or None
    if kind == "json":
        return value.get(key) if isinstance(value, dict) else None
    return value


def error_text(error: Exception) -> str:
    """An error in one line, without the file's name."""
    return " ".join(str(getattr(error, "strerror", None) or error).split())[:300]
