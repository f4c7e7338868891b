"""Open the tables that `datasets` reads: parquet files, `save_to_disk` folders, the Hub.

Images stay encoded, and are read from the memory-mapped Arrow table.
"""

import errno
import glob
import json
import math
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import huggingface_hub
import numpy as np
import pyarrow
import pyarrow.compute
import pyarrow.parquet

from .. import hub_files
from ..errors import UserError, reason
from ..recipe.images import Data
from . import columns, labels, layout
from .columns import Features, array_shape
from .labels import LabelRules, StoredLabels, same_numbers
from .layout import Contents
from .source import (
    READERS,
    Groups,
    Masks,
    Missing,
    Raw,
    Source,
    Store,
    file_bytes,
    read_file,
)

FIRST_ROWS = 100  # rows whose files are checked before a run begins
NOT_WRITABLE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENOENT}


class TableStore(Store):
    """Images in a column of a table: encoded, as names of files, or as arrays.

    Args:
        rows: The table.
        column: Name of the column of images.
        roots: Folders below which files are read. A row that names another file has no image.
    """

    def __init__(self, rows: datasets.Dataset, column: str, roots: Sequence[Path]) -> None:
        self.rows = rows.select_columns([column])
        self.column = column
        self.roots = [root.resolve() for root in roots]
        self.shape = array_shape(rows.features[column])

    def __len__(self) -> int:
        return len(self.rows)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out `cells` when the store is pickled for a spawned data worker.

        Pickling `cells` would copy all images. Pickling `rows` copies no images, because `datasets`
        pickles only the names of the table's files.
        """
        return {key: value for key, value in self.__dict__.items() if key != "cells"}

    @cached_property
    def cells(self) -> "Cells":
        assert self.rows._indices is None  # tables opened here are never selections of rows
        return Cells.from_column(self.rows.data.column(self.column))

    def fetch(self, rows: np.ndarray) -> list[Raw]:
        images = self.cells.images
        if self.shape is not None:
            return [array_cell(images.slice(row, 1), self.shape) for row in rows.tolist()]
        raw_images: list[Raw] = []
        for row in rows.tolist():
            content = images[row].as_py()
            if content is None:
                content = read_below(self._path_of(row), self.roots)
            raw_images.append(content)
        return raw_images

    def check_files(self, where: str) -> None:
        """Check that files can be read if the table stores names of files instead of images.

        Only the first 100 rows are checked. If these rows hold images, nothing is checked.

        Args:
            where: The beginning of the error message, such as "data.path=photos".

        Raises:
            UserError: The first rows name files, and none of the files can be read.
        """
        first_rows = np.arange(min(len(self), FIRST_ROWS))
        if not any(map(self._path_of, first_rows.tolist())):
            return
        images = self.fetch(first_rows)
        missing = [image for image in images if isinstance(image, Missing)]
        if len(missing) == len(images):
            raise UserError(
                f"{where}: cannot read the files that column {self.column} names, such as"
                f" {self._path_of(0)} ({missing[0].reason}). Store the images in the table, or"
                " put the files below data.path=."
            )

    def _path_of(self, row: int) -> str | None:
        """Return the file name in a row, or None."""
        return None if self.cells.paths is None else self.cells.paths[row].as_py()

    def path_of(self, row: int) -> Path | None:
        if self.shape is not None or self.cells.images[row].is_valid:
            return None
        place = place_below(self._path_of(row), self.roots)
        return None if isinstance(place, Missing) else place

    def file_of(self, row: int) -> str:
        is_file = self.path_of(row) is not None
        return self._path_of(row) or "" if is_file else self.name(row)

    def sizes(self) -> np.ndarray:
        if self.shape is not None:  # for every row the mean size of a row, rounded up
            return np.full(len(self), -(-self.rows.data.nbytes // len(self)))
        encoded = self.cells.images
        if pyarrow.types.is_null(encoded.type):
            encoded = encoded.cast(pyarrow.binary())
        # -1 for a row that only names a file
        size_N = pyarrow.compute.fill_null(pyarrow.compute.binary_length(encoded), -1)
        size_N = size_N.to_numpy().astype(np.int64)
        for row in np.flatnonzero(size_N < 0).tolist():
            place = place_below(self._path_of(row), self.roots)
            size_N[row] = 0 if isinstance(place, Missing) else file_bytes(place)
        return size_N

    def names(self) -> Iterable[str]:
        if self.cells.paths is None:
            return ()
        return (path or "" for path in self.cells.paths.to_pylist())

    def name(self, row: int) -> str:
        path = self._path_of(row)
        return f"row {row} ({path})" if path else f"row {row}"


def place_below(path: str | None, roots: Sequence[Path]) -> Path | Missing:
    """Return the path of the file that a row names, or Missing for a file outside all folders.

    Args:
        path: The file name in the row, None or "" for no name.
        roots: The resolved folders. The returned path lies in the first folder for which this is
            possible, even if the file does not exist there. A name with "../" may lead outside of
            a folder.
    """
    if not path:
        return Missing("this row has no image")
    if "://" in path:
        return Missing(f"{path} is a web address, and images are not downloaded")
    for root in roots:
        try:
            place = (root / path).resolve()
        except (OSError, ValueError, RuntimeError) as error:  # a link to itself; a zero byte
            return Missing(f"{path}: {error}")
        if place.is_relative_to(root):
            return place
    return Missing(f"{path} is outside the folder of the data set")


def read_below(path: str | None, roots: Sequence[Path]) -> bytes:
    """Read the file that a row names, or return Missing on failure."""
    place = place_below(path, roots)
    return place if isinstance(place, Missing) else read_file(place)


class Cells(NamedTuple):
    """Column of images as Arrow arrays, to read single cells.

    `Table.take` would copy whole chunks.

    Attributes:
        images: Encoded images or arrays. null in a row that names a file.
        paths: Names of files. None for a column without file names.
    """

    images: pyarrow.ChunkedArray
    paths: pyarrow.ChunkedArray | None

    @classmethod
    def from_column(cls, column: pyarrow.ChunkedArray) -> "Cells":
        if not pyarrow.types.is_struct(column.type):
            return cls(column, None)
        images = pyarrow.compute.struct_field(column, "bytes")
        return cls(images, pyarrow.compute.struct_field(column, "path"))


def array_cell(cell: pyarrow.ChunkedArray, shape: tuple[int | None, ...]) -> Raw:
    """Return the array in a cell of a column of `datasets.Array3D`.

    Args:
        cell: The part of the column with only this row.
        shape: The lengths of the three axes. None as first length if arrays differ in this length.

    Returns:
        The array with three axes, or Missing if the row has no array of this shape.
    """
    (stored,) = cell.chunks
    if isinstance(stored, pyarrow.ExtensionArray):
        stored = stored.storage
    if stored.null_count:
        return Missing("this row has no image")
    # an array is stored as three levels of lists, and each `flatten` removes one level
    flat = stored.flatten().flatten().flatten().to_numpy(zero_copy_only=False)
    # None as second or third length counts as 0, so that the array is refused
    # the number of values for each index of the first axis
    row_size = math.prod(length or 0 for length in shape[1:])
    has_shape = row_size > 0 and len(flat) % row_size == 0
    if has_shape and shape[0] is not None:
        has_shape = len(flat) == shape[0] * row_size
    if not has_shape:
        return Missing(f"an array of {len(flat)} values does not have the shape {shape}")
    return np.array(flat.reshape(-1, *shape[1:]))


def _read_footer(file: Path) -> pyarrow.parquet.FileMetaData:
    """Read the metadata at the end of a parquet file.

    Raises:
        UserError: The file cannot be read.
    """
    try:
        return pyarrow.parquet.read_metadata(file)
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError(f"data.path={file}: cannot be read: {reason(error)}") from None


class Parquet(NamedTuple):
    """Parquet files of a split.

    Attributes:
        files: The files that have rows.
        classes: Names of the classes.
        has_usable_labels: Whether a label means the same class in all files of the split.
    """

    files: list[Path]
    classes: list[str]
    has_usable_labels: bool


def split_files(
    files: Mapping[str, Sequence[Path]], data: Data, guesses: list[str]
) -> dict[str, Parquet]:
    """Read the class names of each split from the metadata of the parquet files.

    If the files of a split name different classes, the labels are not used, because a number would
    mean two classes. `datasets` would apply the names in the first file to all files.

    Args:
        files: {split: parquet files}.
        data: The options that name columns.
        guesses: A list to which warnings are added.

    Raises:
        UserError: Files of a split have different columns or no images, or are damaged.
    """
    splits: dict[str, Parquet] = {}
    for split, paths in files.items():
        with ThreadPoolExecutor(READERS) as pool:
            footers = zip(paths, pool.map(_read_footer, paths), strict=True)
            schema_of = {
                file: footer.schema.to_arrow_schema() for file, footer in footers if footer.num_rows
            }
        if not schema_of:
            guesses.append(f"split {split} has no images and is left out")
            continue
        # parse equal schemas of files once, because parsing takes 0.1 s for 20,000 classes
        different_schemas = {
            (tuple(schema.names), (schema.metadata or {}).get(b"huggingface")): schema
            for schema in schema_of.values()
        }
        parsed = [
            datasets.Features.from_arrow_schema(schema) for schema in different_schemas.values()
        ]
        column_lists = {f"({', '.join(sorted(features))})" for features in parsed}
        if len(column_lists) > 1:
            raise UserError(
                f"{data.location}: files of split {split} have different columns,"
                f" {' and '.join(sorted(column_lists))}. Use the same columns in all files."
            )
        label_columns = [columns.find_columns(features, data)[1] for features in parsed]
        class_lists = list(map(columns.class_names, parsed, label_columns))
        longest = max(class_lists, key=len, default=[])
        # Labels can be used if a class number never has two names, and if either all files or no
        # files have names
        all_or_no_names = not longest or all(class_lists)
        has_usable_labels = same_numbers(class_lists) and all_or_no_names
        if not has_usable_labels:
            guesses.append(
                f"labels of split {split} are not used, because the files of the split name"
                " different classes"
            )
        splits[split] = Parquet(list(schema_of), longest, has_usable_labels)
    return splits


def load_parquet(files: Sequence[Path], data: Data, stream: bool = False) -> Any:
    """Load the rows of a split's parquet files with `datasets`.

    `datasets` copies the images to a cache, and later runs read this cache. For a stream, images
    are not copied, and the cache is a temporary folder with a few file names.

    Args:
        files: The parquet files.
        data: The recipe's options, for errors.
        stream: Whether to return an `IterableDataset`, and not a `Dataset` copied to the cache.

    Raises:
        UserError: A file is damaged, or the cache cannot be written.
    """
    datasets.disable_progress_bars()
    patterns = {"train": [glob.escape(str(file)) for file in files]}
    try:
        # the folder may be deleted at the return: a stream reads the parquet files themselves
        with tempfile.TemporaryDirectory() as temporary_cache:
            cache = temporary_cache if stream else None  # None: the usual cache
            return datasets.load_dataset(
                "parquet", data_files=patterns, split="train", streaming=stream, cache_dir=cache
            )
    except Exception as error:  # a file written by others may cause any error
        for file in files:
            _check_whole(file)  # the error then names a damaged file
        if isinstance(error, OSError) and error.errno in NOT_WRITABLE:
            raise UserError(
                f"{data.location}: cannot write to {datasets.config.HF_DATASETS_CACHE}"
                f" ({error.strerror}). Set HF_HOME to another folder."
            ) from None
        raise _user_error(error, data) from None


def _check_whole(file: Path) -> None:
    """Raise UserError if a parquet file cannot be read to the end."""
    try:
        with pyarrow.parquet.ParquetFile(file) as opened:
            for _ in opened.iter_batches():
                pass
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError(
            f"data.path={file}: this file is damaged ({reason(error)}). Copy the file again, or"
            " remove the file."
        ) from None


def open_parquet(contents: Contents, data: Data, guesses: list[str]) -> dict[str, Source]:
    """Open every split of parquet files.

    Args:
        contents: The parquet files of each split.
        data: The recipe's options of the images.
        guesses: A list to which warnings are added.

    Raises:
        UserError: A file is damaged, files of a split have different columns, or a column does not
            exist or holds no images or labels.
    """
    parquet_of = split_files(contents.files, data, guesses)
    opened = {name: load_parquet(parquet.files, data) for name, parquet in parquet_of.items()}
    return open_tables(opened, data, parquet_of, guesses)


def open_saved(contents: Contents, data: Data, guesses: list[str]) -> dict[str, Source]:
    """Open every split that `save_to_disk` wrote.

    Args:
        contents: The files at data.path, not used.
        data: The recipe's options of the images.
        guesses: A list to which warnings are added.

    Raises:
        UserError: The splits cannot be read, or a column does not exist or holds no images or
            labels.
    """
    return open_tables(load_saved(data, guesses), data, {}, guesses)


def load_hub(data: Data, stream: bool = False) -> dict[str, Any]:
    """Load the splits of a data set on the Hub, {name: table}.

    Args:
        data: The options of the images, with data.hub.
        stream: Whether to return each table as an `IterableDataset`, without downloading it first.

    Raises:
        UserError: The data set cannot be read.
    """
    return _call_datasets(lambda: dict(datasets.load_dataset(data.hub, streaming=stream)), data)


def load_saved(data: Data, guesses: list[str]) -> dict[str, Any]:
    """Load the splits of a `save_to_disk` folder, {name: table}.

    The folder may hold a single table. The name of its split is then read from the metadata. For a
    part of a split, such as "train[:10%]", the name is "train". Joined splits, such as
    "train+test", are used as train, with a warning.

    Args:
        data: The options of the images, with data.path.
        guesses: A list to which warnings are added.

    Raises:
        UserError: The splits cannot be read.
    """
    assert data.path is not None
    root = Path(data.path)
    if (root / "dataset_dict.json").is_file():
        return _call_datasets(lambda: _load_dictionary(root, guesses), data)
    saved = _call_datasets(lambda: datasets.load_from_disk(data.path), data)
    saved_split = str(saved.split or "train")
    name = re.match(r"[\w.]+", saved_split)  # the beginning, up to "[" or "+"
    if name is None or "+" in saved_split:
        guesses.append(f"the rows of {saved_split} are used as train")
        return {"train": saved}
    return {name[0]: saved}


def _load_dictionary(root: Path, guesses: list[str]) -> dict[str, datasets.Dataset]:
    """Load the splits of a saved `DatasetDict`, without empty splits, which `datasets` cannot load.

    Args:
        root: The folder that `save_to_disk` wrote.
        guesses: A list to which warnings about empty splits are added.
    """
    tables = {}
    for name in json.loads((root / "dataset_dict.json").read_text())["splits"]:
        if json.loads((root / name / "state.json").read_text())["_data_files"]:
            tables[name] = datasets.load_from_disk(str(root / name))
        else:
            guesses.append(f"split {name} has no images and is left out")
    return tables


def _call_datasets(load: Callable[[], Any], data: Data) -> Any:
    """Return the result of `load`, and turn any error into a UserError that names the data.

    Args:
        load: A function that loads data with the library `datasets`. No progress bars are shown.
        data: The recipe's options, for the error.

    Raises:
        UserError: `load` raised an error.
    """
    datasets.disable_progress_bars()
    try:
        return load()
    except Exception as error:  # a file written by others may cause any error
        raise _user_error(error, data) from None


def _user_error(error: Exception, data: Data) -> UserError:
    """Return the UserError for an error of the library `datasets`.

    If the machine is offline or a split has no images, the new message says what to do. Otherwise
    the new message contains the message of `datasets`.
    """
    # prefer the cause, because the error may only say that "An error occurred while generating the
    # dataset"
    message = reason(error.__cause__ or error)
    if "OfflineModeIsEnabled" in message:
        return UserError(f"{data.location}: {hub_files.NOT_CACHED}")
    empty_split = re.search(r'Instruction "(\w+)" corresponds to no data', message)
    if empty_split is None:
        return UserError(f"{data.location}: {message}")
    return UserError(
        f"{data.location}: split {empty_split[1]} has no images. Unpack or remove the files of this"
        " split."
    )


class Columns(NamedTuple):
    """Columns of a split.

    Attributes:
        image: Name of the column of images.
        label: Name of the column of labels, None for no labels.
        classes: Names of the classes.
        no_labels_hint: Sentences for the error that there are no labels.
        masks: The column of masks.
    """

    image: str
    label: str | None
    classes: list[str]
    no_labels_hint: str
    masks: Masks


def find_columns(features: Features, data: Data, parquet: Parquet | None) -> Columns:
    """Find the columns of images, labels and masks in a split.

    Args:
        features: {column: type}.
        data: The options that name columns.
        parquet: The classes of the split's parquet files, None for other tables.

    Raises:
        UserError: A column that an option names does not exist, or holds something else.
    """
    image, label = columns.find_columns(features, data)
    masks = columns.find_masks(features, image, data)
    hint = columns.list_columns(features)
    if parquet is None:
        return Columns(image, label, columns.class_names(features, label), hint, masks)
    if parquet.has_usable_labels:
        return Columns(image, label, parquet.classes, hint, masks)
    why_unused = " Labels are not used, because the files of the split name different classes."
    return Columns(image, None, [], why_unused, masks)


def open_tables(
    opened: Mapping[str, datasets.Dataset],
    data: Data,
    parquet_of: Mapping[str, Parquet],
    guesses: list[str],
) -> dict[str, Source]:
    """Turn tables of `datasets` into sources, and leave out splits without rows.

    Args:
        opened: {split: table}.
        data: The recipe's options of the images.
        parquet_of: {split: classes of its parquet files}, empty for other tables.
        guesses: A list to which warnings are added.

    Raises:
        UserError: A column does not exist, or holds no images or labels.
    """
    guesses += [
        f"split {name} has no images and is left out"
        for name, rows in opened.items()
        if not len(rows)
    ]
    opened = {name: rows for name, rows in opened.items() if len(rows)}
    train = layout.choose(data.train, opened)
    if data.group is not None and train is not None:
        columns.check_group(opened[train].features, data)
    columns_by_split = {
        name: find_columns(rows.features, data, parquet_of.get(name))
        for name, rows in opened.items()
    }
    stored = {
        name: StoredLabels(
            _label_values(opened[name], found.label), found.classes, found.no_labels_hint
        )
        for name, found in columns_by_split.items()
    }
    # the name for messages: the label column of the first split that has one
    column = next((found.label for found in columns_by_split.values() if found.label), "label")
    asked = data.label_column is not None
    rules = LabelRules(column, data.location, f"column {column}", asked, typed=True)
    labels_by_split = labels.read(stored, rules, guesses, data.labels)
    folders = file_roots(data)
    splits = {}
    for name, rows in opened.items():
        store = TableStore(rows, columns_by_split[name].image, folders)
        store.check_files(data.location)
        masks = columns_by_split[name].masks
        if masks.column:
            masks = masks._replace(store=TableStore(rows, masks.column, folders))
        groups = None
        if data.group in rows.features:  # only the training split must have this column
            groups = Groups.by_value(rows.select_columns([data.group])[:][data.group])
        splits[name] = Source(store, labels_by_split[name], masks, groups)
    return splits


def _label_values(rows: datasets.Dataset, column: str | None) -> list[Any]:
    """Return the stored label of each row. Without a column, all labels are None."""
    if column is None:
        return [None] * len(rows)
    values: list[Any] = rows.select_columns([column]).with_format("arrow")[:].column(0).to_pylist()
    return values


def file_roots(data: Data) -> list[Path]:
    """Return the folders of files that rows may name: data.path, or the caches of the Hub."""
    if data.path:
        place = Path(data.path)
        return [place if place.is_dir() else place.parent]
    caches = (
        datasets.config.HF_DATASETS_CACHE,
        datasets.config.DOWNLOADED_DATASETS_PATH,
        huggingface_hub.constants.HF_HUB_CACHE,
    )
    return list(map(Path, caches))
