"""Open the splits of an image folder, with a file for each image.

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
from ..formatting import count_of, count_of_images, some
from ..recipe.images import Data
from ..recipe.parsing import parse_json
from . import labels, layout
from .labels import Reading, Stored, composed
from .layout import Contents, Tree, join
from .source import Groups, Raw, Source, Store, file_bytes, read_file

FOLDERS = "names of folders"  # as the source of labels
FOLDER = "folder"  # data.group=folder: images of a folder are one group
DATE = re.compile(r"(19|20)\d\d([-_. ]?[01]\d([-_. ]?[0-3]\d)?)?")
DATES = "all folder names are years or dates"  # why folders may be no classes


class FileStore(Store):
    """Images that are files.

    The names are in one Arrow array: forked data workers would copy a list of a million texts page
    by page, because Python writes reference counts into each text.

    Args:
        root: the folder that the user gave.
        names: paths of the files below this folder.
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
    """Image file: path below the root, split, and class from the names of folders ("" for none)."""

    path: str
    split: str
    label: str


class Metadata(NamedTuple):
    """Rows of the metadata files.

    Attributes:
        row_of: the row of each image, by the image's path (`composed`) below the root.
        replaced: path and row for each row that a later row of the same file replaced.
        columns: names of the columns.
        unused: files that are not used, each with the reason.
    """

    row_of: dict[str, dict[str, Any]]
    replaced: list[tuple[str, dict[str, Any]]]
    columns: list[str]
    unused: list[str]


def open_files(root: Path, contents: Contents, data: Data, guesses: list[str]) -> dict[str, Source]:
    """Open every split of an image folder.

    Args:
        root: the folder.
        contents: what `layout.inspect` found in the folder.
        data: options of the images.
        guesses: a list to which assumptions are added.

    Raises:
        UserError: metadata are damaged, a named column does not exist, or its values are no labels.
    """
    images, of_classes = _images(contents.tree, contents.kind, guesses)
    metadata = read_metadata(root, contents.tree, guesses)
    if data.labels:
        guesses += _unused_columns(metadata, data)
    labelled = any(image.label for image in images)
    column = _label_column(root, metadata, data, labelled)
    of_split: dict[str, list[_Image]] = {}
    values: dict[str, Sequence[Any]]
    for image in images:
        of_split.setdefault(image.split, []).append(image)
    if column is None:
        guesses += of_classes if data.labels else []
        reading = Reading("label", f"data.path={root}", FOLDERS, typed=True, captions=False)
        values = {name: [image.label for image in some] for name, some in of_split.items()}
        if data.labels and are_dates({image.label for image in images} - {""}):
            guesses.append(
                f"the folders are used as classes, but {DATES}. If the folders are no classes, use"
                " data.labels=false"
            )
    else:
        _compare(images, metadata, column, guesses)
        where = f"the metadata in data.path={root}"
        source = f"column {column} of the metadata"
        reading = Reading(column, where, source, asked=data.label_column is not None)
        rows = metadata.row_of
        values = {
            name: [rows.get(composed(image.path), {}).get(column) for image in some]
            for name, some in of_split.items()
        }
    about = _about(metadata)
    stored = {name: Stored(split_values, columns=about) for name, split_values in values.items()}
    split_labels = labels.read(stored, reading, guesses, data.labels)
    return {
        name: Source(
            FileStore(root, [image.path for image in some]),
            split_labels[name],
            groups=_groups(root, some, metadata, data.group),
        )
        for name, some in of_split.items()
    }


def are_dates(names: Collection[str]) -> bool:
    """Return whether all names, at least one, are names of years, months or days."""
    return bool(names) and all(map(DATE.fullmatch, names))


def _images(tree: Tree, kind: str, guesses: list[str]) -> tuple[list[_Image], list[str]]:
    """Return the images that belong to a split, sorted, and what was guessed about classes."""
    folders = [folder for folder in tree.folders if folder.of(kind)]
    division = layout.divide(folders, kind)
    guesses += division.guesses
    if len(folders) == 1 and division.split == ["train"]:
        # the only folder: names of images may begin with the name of a split
        names = folders[0].of(kind)
        splits, more = layout.splits_of_images(names)
        guesses += more
        alone = zip(names, splits, strict=True)
        return sorted(_Image(join(folders[0].path, name), split, "") for name, split in alone), []
    images = [
        _Image(join(folder.path, name), split, label)
        for folder, split, label in zip(folders, division.split, division.label, strict=True)
        if split is not None
        for name in folder.of(kind)
    ]
    return sorted(images), division.of_classes


def read_metadata(root: Path, tree: Tree, guesses: list[str]) -> Metadata:
    """Read all metadata files of a folder, in the format that `datasets` reads.

    Each image has a row, with a `file_name` relative to the folder of the metadata file. Where two
    files name the same image, the file in the deeper folder counts.

    Raises:
        UserError: a file is damaged.
    """
    rows_by_file: dict[str, dict[str, Any]] = {}
    replaced: list[tuple[str, dict[str, Any]]] = []
    columns: dict[str, None] = {}
    unused: list[str] = []
    for folder in tree.folders:  # sorted, so the outer ones come first
        for name in folder.of("metadata"):
            rows = _rows(root / join(folder.path, name))
            if rows and not isinstance(rows[0].get("file_name"), str):
                unused.append(f"{join(folder.path, name)} has no column file_name and is not used")
                continue
            columns |= dict.fromkeys(key for row in rows for key in row)
            rows_here: dict[str, dict[str, Any]] = {}
            for row in rows:
                file_name = str(row.get("file_name")).replace("\\", "/")  # as Windows writes paths
                file = composed(posixpath.normpath(posixpath.join(folder.path, file_name)))
                if file in rows_here:
                    replaced.append((file, rows_here[file]))
                rows_here[file] = row
            rows_by_file |= rows_here
    if "split" in columns:
        guesses.append(
            "the metadata column split is not used. Use folders such as train/ and test/ as splits"
        )
    guesses += unused
    own_columns = [key for key in columns if key not in (None, "file_name")]
    return Metadata(rows_by_file, replaced, own_columns, unused)


def _rows(file: Path) -> list[dict[str, Any]]:
    """Read the rows of a metadata file, or a single empty row if JSON has another structure.

    Raises:
        UserError: the file cannot be read.
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
    known = isinstance(rows, list) and all(isinstance(row, dict) for row in rows)
    return rows if known else [{}]


def _label_column(root: Path, metadata: Metadata, data: Data, labelled: bool) -> str | None:
    """Return the column of the metadata that holds labels, or None if folders give the labels.

    As in `datasets`, an image folder has the columns image, label (the folders' names), and the
    columns of the metadata.

    Raises:
        UserError: the column that an option names does not exist.
    """
    of_labels = [*metadata.columns]
    if labelled and not metadata.columns:
        of_labels.append("label")
    known = {
        "data.image_column": (data.image_column, ["image"]),
        "data.label_column": (data.label_column, of_labels),
        "data.group": (data.group, [FOLDER, *metadata.columns]),
    }
    for key, (name, is_complete) in known.items():
        if name is not None and name not in is_complete:
            reasons = [f"{key}={name}: data.path={root} has no such column", *metadata.unused]
            raise UserError(", ".join([*reasons, suggest(name, is_complete)]))
    if data.label_column is not None:
        return data.label_column if data.label_column in metadata.columns else None
    return next(iter(labels.usual_columns(metadata.columns)), None)


def _unused_columns(metadata: Metadata, data: Data) -> list[str]:
    """Return a warning if metadata have columns, but no column is named or called like labels."""
    unused = [name for name in metadata.columns if name not in ("split", data.group)]
    if not unused or data.label_column is not None or labels.usual_columns(metadata.columns):
        return []
    if len(unused) == 1:
        text = f"the metadata column {unused[0]} is not used"
        return [f"{text}. To use the column as labels, set data.label_column={unused[0]}"]
    text = f"the metadata columns {some(unused)} are not used"
    return [f"{text}. To use a column as labels, name the column with data.label_column="]


def _compare(images: Sequence[_Image], metadata: Metadata, column: str, guesses: list[str]) -> None:
    """Report images with several labels or without metadata, and metadata without an image."""
    several = {
        path
        for path, row in metadata.replaced
        if row.get(column) != metadata.row_of[path].get(column)
    }
    if several:
        guesses.append(
            f"the metadata has several labels for {count_of_images(len(several))}, such as"
            f" {min(several)}. The last label is used"
        )
    paths = {composed(image.path) for image in images}
    unknown = sum(path not in metadata.row_of for path in paths)
    gone = [path for path in metadata.row_of if path not in paths]
    if unknown:
        guesses.append(
            f"the metadata has no row for {count_of_images(unknown)}. Images without a row have no"
            " label"
        )
    if gone:
        guesses.append(
            f"the metadata names {count_of(len(gone), 'files')} not found among the images:"
            f" {some(gone)}"
        )


def _about(metadata: Metadata) -> str:
    if not metadata.columns:
        return ""
    listed = ", ".join(metadata.columns)
    return f" The metadata columns are {listed}."


def _groups(
    root: Path, images: Sequence[_Image], metadata: Metadata, group: str | None
) -> Groups | None:
    if group is None:
        return None
    folders = group == FOLDER and FOLDER not in metadata.columns
    return Groups.by_value(
        [
            posixpath.dirname(image.path) or "."
            if folders
            else metadata.row_of.get(composed(image.path), {}).get(group)
            for image in images
        ]
    )
