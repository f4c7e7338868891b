"""Open the splits of an image folder, where each image is a file.

Images are read in place. Labels come from metadata files next to the images, else from the names of
class folders.
"""

import csv
import io
import os
import posixpath
import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow
import pyarrow.parquet

from ..errors import UserError, reason, suggest
from ..formatting import format_count, format_image_count, list_names
from ..recipe.images import Data
from ..recipe.parsing import parse_json
from . import labels, layout
from .labels import LabelRules, StoredLabels, compose_unicode
from .layout import Contents, Tree, join
from .source import Groups, Raw, Source, Store, file_bytes, read_file

FOLDERS = "names of folders"  # the source of labels, for users
FOLDER = "folder"  # data.group=folder: images of a folder are one group
DATE = re.compile(r"(19|20)\d\d([-_. ]?[01]\d([-_. ]?[0-3]\d)?)?")
# The part of a message that says why the folders may not be classes
DATES = "all folder names are years or dates"


class FileStore(Store):
    """Store of the images of a split that are one file each.

    Names are kept in one Arrow array. Forked data workers would copy a list of names page by page,
    because Python writes a reference count into each string.

    Args:
        root: The user's folder.
        names: Paths of the files below this folder.
    """

    def __init__(self, root: Path, names: Sequence[str]) -> None:
        self.root = root
        self.encoded_names = pyarrow.array(map(os.fsencode, names), pyarrow.large_binary())

    def __len__(self) -> int:
        return len(self.encoded_names)

    def fetch(self, rows: np.ndarray) -> list[Raw]:
        return [read_file(self.path_of(row)) for row in rows.tolist()]

    def path_of(self, row: int) -> Path:
        return self.root / os.fsdecode(self.encoded_names[row].as_py())

    def name(self, row: int) -> str:
        return f"row {row} ({os.fsencode(self.path_of(row)).decode(errors='backslashreplace')})"

    def file_of(self, row: int) -> str:
        return self.encoded_names[row].as_py().decode(errors="backslashreplace")

    def sizes(self) -> np.ndarray:
        return np.array([file_bytes(self.root / name) for name in self.names()], np.int64)

    def names(self) -> Iterable[str]:
        return map(os.fsdecode, self.encoded_names.to_pylist())


class _Image(NamedTuple):
    """Image file: path below the root, split, and class from folder names ("" for no class)."""

    path: str
    split: str
    label: str


class Metadata(NamedTuple):
    """Rows of the metadata files.

    Attributes:
        row_of: {path of an image below the root, in composed Unicode: row of the image}.
        replaced: (path, row) of each row that a later row for the same image replaced.
        columns: Names of the columns.
        unused: Metadata files that are not used, each with the reason.
    """

    row_of: dict[str, dict[str, Any]]
    replaced: list[tuple[str, dict[str, Any]]]
    columns: list[str]
    unused: list[str]


def open_files(contents: Contents, data: Data, guesses: list[str]) -> dict[str, Source]:
    """Open every split of the image folder data.path.

    Args:
        contents: What `layout.inspect` found in the folder.
        data: The recipe's options of the images.
        guesses: A list to which warnings are added.

    Returns:
        {name of the split: images with labels}.

    Raises:
        UserError: Metadata are damaged, a named column does not exist, or a value is no label.
    """
    assert data.path is not None
    root = Path(data.path)
    images, class_guesses = _find_images(contents.tree, contents.kind, guesses)
    metadata = read_metadata(root, contents.tree, guesses)
    if data.labels:
        guesses += _unused_columns(metadata, data)
    has_class_folders = any(image.label for image in images)
    _check_columns(root, metadata, data, has_class_folders)
    column = _find_label_column(metadata, data)
    images_of: dict[str, list[_Image]] = {}
    values: dict[str, Sequence[Any]]
    for image in images:
        images_of.setdefault(image.split, []).append(image)
    if column is None:  # the folders are the classes
        if data.labels:
            guesses += class_guesses
        rules = LabelRules("label", f"data.path={root}", FOLDERS, typed=True, captions=False)
        values = {
            split: [image.label for image in split_images]
            for split, split_images in images_of.items()
        }
        if data.labels and are_dates({image.label for image in images} - {""}):
            guesses.append(
                f"the folders are used as classes, but {DATES}. If the folders are no classes, use"
                " data.labels=false"
            )
    else:
        _warn_of_mismatches(images, metadata, column, guesses)
        where = f"the metadata in data.path={root}"
        source = f"column {column} of the metadata"
        rules = LabelRules(column, where, source, asked=data.label_column is not None)
        rows = metadata.row_of
        values = {
            split: [rows.get(compose_unicode(image.path), {}).get(column) for image in split_images]
            for split, split_images in images_of.items()
        }
    hint = _describe_columns(metadata)
    stored = {
        split: StoredLabels(split_values, columns=hint) for split, split_values in values.items()
    }
    labels_of = labels.read(stored, rules, guesses, data.labels)
    return {
        split: Source(
            FileStore(root, [image.path for image in split_images]),
            labels_of[split],
            groups=_groups(split_images, metadata, data.group),
        )
        for split, split_images in images_of.items()
    }


def are_dates(names: Collection[str]) -> bool:
    """Return whether all names are years, months or days, such as 2024-05. False for no names."""
    return bool(names) and all(map(DATE.fullmatch, names))


def _find_images(tree: Tree, kind: str, guesses: list[str]) -> tuple[list[_Image], list[str]]:
    """Return all images, sorted by path, and a list of warnings about classes.

    `layout.divide` finds the split and the class of each folder. Images in folders without a split
    are left out. If a single folder holds all images and belongs to train, file names such as
    test_01.png may name other splits.

    Args:
        tree: All folders with data below the user's folder.
        kind: The kind of files to use, "images" or "arrays".
        guesses: A list to which warnings about splits are added.
    """
    folders = [folder for folder in tree.folders if folder.files_of(kind)]
    division = layout.divide(folders, kind)
    guesses += division.guesses
    if len(folders) == 1 and division.split == ["train"]:
        # in a single folder, file names may begin with the name of a split
        names = folders[0].files_of(kind)
        splits, split_guesses = layout.splits_of_images(names)
        guesses += split_guesses
        images = [
            _Image(join(folders[0].path, name), split, "")
            for name, split in zip(names, splits, strict=True)
        ]
        return sorted(images), []
    images = []
    for folder, split, label in zip(folders, division.split, division.label, strict=True):
        if split is not None:
            images += [
                _Image(join(folder.path, name), split, label) for name in folder.files_of(kind)
            ]
    return sorted(images), division.class_guesses


def read_metadata(root: Path, tree: Tree, guesses: list[str]) -> Metadata:
    """Read all metadata files below a folder, in the format of `datasets`.

    The column `file_name` names the image of a row, relative to the folder of the metadata file. In
    train/metadata.csv, the name cat/1.png means the image train/cat/1.png. If two metadata files
    name the same image, the file in the deeper folder is used.

    Args:
        root: The user's folder.
        tree: All folders with data below `root`.
        guesses: A list to which warnings are added.

    Raises:
        UserError: A file is damaged.
    """
    row_of: dict[str, dict[str, Any]] = {}
    replaced: list[tuple[str, dict[str, Any]]] = []
    columns: dict[str, None] = {}  # only the keys are used: a set that keeps the order
    unused: list[str] = []
    for folder in tree.folders:  # sorted, so outer folders come first
        for name in folder.files_of("metadata"):
            rows = _read_rows(root / join(folder.path, name))
            if rows and not isinstance(rows[0].get("file_name"), str):
                unused.append(f"{join(folder.path, name)} has no column file_name and is not used")
                continue
            columns |= dict.fromkeys(key for row in rows for key in row)
            row_of_image: dict[str, dict[str, Any]] = {}  # in this metadata file
            for row in rows:
                file_name = str(row.get("file_name")).replace("\\", "/")  # as Windows writes paths
                path = compose_unicode(posixpath.normpath(posixpath.join(folder.path, file_name)))
                if path in row_of_image:
                    replaced.append((path, row_of_image[path]))
                row_of_image[path] = row
            row_of |= row_of_image
    if "split" in columns:
        guesses.append(
            "the metadata column split is not used. Use folders such as train/ and test/ as splits"
        )
    guesses += unused
    # csv.DictReader stores superfluous values of a row under the key None
    other_columns = [key for key in columns if key not in (None, "file_name")]
    return Metadata(row_of, replaced, other_columns, unused)


def _read_rows(file: Path) -> list[dict[str, Any]]:
    """Read the rows of a metadata file.

    Args:
        file: A file with the suffix of Parquet, CSV, JSON Lines or JSON.

    Returns:
        {column: value} for each row. A JSON file without a list of objects gives one empty row, so
        that the caller warns of the missing column file_name.

    Raises:
        UserError: The file cannot be read.
    """
    try:
        if file.suffix.lower() == ".parquet":
            return pyarrow.parquet.read_table(file).to_pylist()
        text = file.read_text(encoding="utf-8-sig")
        if file.suffix.lower() == ".csv":
            lines = csv.DictReader(io.StringIO(text, newline=""), skipinitialspace=True)
            if lines.fieldnames:
                lines.fieldnames = [name.strip() for name in lines.fieldnames]
            return list(lines)
        if file.suffix.lower() == ".jsonl":
            rows = [parse_json(line) for line in text.split("\n") if line.strip()]
        else:
            rows = parse_json(text)
    except (OSError, ValueError, csv.Error, pyarrow.ArrowException) as error:
        raise UserError(f"data.path={file}: cannot be read: {reason(error)}") from None
    is_table = isinstance(rows, list) and all(isinstance(row, dict) for row in rows)
    return rows if is_table else [{}]


def _check_columns(root: Path, metadata: Metadata, data: Data, has_class_folders: bool) -> None:
    """Check that the columns in data.image_column, data.label_column and data.group exist.

    As in the library `datasets`, an image folder has the column `image` and the columns of the
    metadata files. Without metadata, the names of class folders are the column `label`. data.group
    may also be `folder`.

    Args:
        root: The user's folder, for the error.
        metadata: The rows of the metadata files.
        data: The options that name columns.
        has_class_folders: Whether the names of folders are classes.

    Raises:
        UserError: The column that an option names does not exist.
    """
    label_choices = [*metadata.columns]
    if has_class_folders and not metadata.columns:
        label_choices.append("label")
    options = {
        "data.image_column": (data.image_column, ["image"]),
        "data.label_column": (data.label_column, label_choices),
        "data.group": (data.group, [FOLDER, *metadata.columns]),
    }
    for key, (name, choices) in options.items():
        if name is not None and name not in choices:
            unused_files = "".join(f" ({file_and_reason})" for file_and_reason in metadata.unused)
            raise UserError(
                f"{key}={name}: data.path={root} has no such column,"
                f" {suggest(name, choices)}{unused_files}"
            )


def _find_label_column(metadata: Metadata, data: Data) -> str | None:
    """Return the metadata column that holds labels, or None if folders are the classes.

    The column is data.label_column, else the first column with a usual name.

    Args:
        metadata: The rows of the metadata files.
        data: The options that name columns.
    """
    if data.label_column is None:
        return next(iter(labels.usual_columns(metadata.columns)), None)
    # `_check_columns` has refused unknown columns. A column that is not in the metadata can only
    # be `label`, which stands for the names of the folders
    return data.label_column if data.label_column in metadata.columns else None


def _unused_columns(metadata: Metadata, data: Data) -> list[str]:
    """Return a list with a warning if there are metadata columns but none is used for labels.

    Otherwise the list is empty. The columns `split` and data.group are not counted.

    Args:
        metadata: The rows of the metadata files.
        data: The options that name columns.
    """
    unused = [name for name in metadata.columns if name not in ("split", data.group)]
    if not unused or data.label_column is not None or labels.usual_columns(metadata.columns):
        return []
    if len(unused) == 1:
        return [
            f"the metadata column {unused[0]} is not used. To use the column as labels, set"
            f" data.label_column={unused[0]}"
        ]
    return [
        f"the metadata columns {list_names(unused)} are not used. To use a column as labels, name"
        " the column with data.label_column="
    ]


def _warn_of_mismatches(
    images: Sequence[_Image], metadata: Metadata, column: str, guesses: list[str]
) -> None:
    """Warn of images with several labels, images without a row and rows without an image.

    Args:
        images: All images.
        metadata: The rows of the metadata files.
        column: The column of labels.
        guesses: A list to which the warnings are added.
    """
    several_labels = {
        path
        for path, row in metadata.replaced
        if row.get(column) != metadata.row_of[path].get(column)
    }
    if several_labels:
        guesses.append(
            f"the metadata has several labels for {format_image_count(len(several_labels))}, such"
            f" as {min(several_labels)}. The last label is used"
        )
    paths = {compose_unicode(image.path) for image in images}
    without_row = sum(path not in metadata.row_of for path in paths)
    without_image = [path for path in metadata.row_of if path not in paths]
    if without_row:
        guesses.append(
            f"the metadata has no row for {format_image_count(without_row)}. Images without a row"
            " have no label"
        )
    if without_image:
        guesses.append(
            f"the metadata names {format_count(len(without_image), 'files')} not found among the"
            f" images: {list_names(without_image)}"
        )


def _describe_columns(metadata: Metadata) -> str:
    """Return a sentence with the metadata columns, for the error that there are no labels."""
    if not metadata.columns:
        return ""
    return f" The metadata columns are {', '.join(metadata.columns)}."


def _groups(images: Sequence[_Image], metadata: Metadata, group: str | None) -> Groups | None:
    """Group images by a metadata column, or by folder for data.group=folder.

    If the metadata have a column named folder, data.group=folder means this column.

    Args:
        images: The images of a split.
        metadata: The rows of the metadata files.
        group: The value of data.group, None for no groups.
    """
    if group is None:
        return None
    if group == FOLDER and FOLDER not in metadata.columns:
        return Groups.by_value([posixpath.dirname(image.path) or "." for image in images])
    rows = [metadata.row_of.get(compose_unicode(image.path), {}) for image in images]
    return Groups.by_value([row.get(group) for row in rows])
