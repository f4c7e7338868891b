"""Splits of an image folder; the files are read in place."""

import os
import posixpath
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import numpy as np
import pyarrow

from ..errors import UserError, suggest
from . import label_lists, layout, metadata
from .base import FullSource, ReadUnits, file_bytes
from .label_lists import UNLABELLED, LabelLists
from .layout import Tree
from .metadata import FOLDER, Metadata
from .shares import group_numbers

FOLDERS = "names of folders"  # as the source of labels
GROUP = 256  # files that form a shard of a stream, at most


class _Image(NamedTuple):
    """An image file: its path below the root, its split, and the class that its folders give (""
    for none)."""

    path: str
    split: str
    label: str


class Files(FullSource):
    """A split of image files. Their names are in one Arrow array: forked data workers would copy a
    list of a million strings page by page, as Python writes reference counts into each."""

    def __init__(
        self,
        root: Path,
        names: list[str],
        label_N: np.ndarray,
        classes: list[str],
        columns: str,
        lists: LabelLists | None = None,
        label_source: str = "",
        group_N: np.ndarray | None = None,
    ) -> None:
        self.root = root
        self.label_N = label_N
        self.lists = lists  # then label_N is (N, L), as `label_lists.padded`
        self.classes = classes
        self.columns = columns
        self.label_source = label_source if label_N.max(initial=UNLABELLED) >= 0 else ""
        self.group_N = group_N
        self.names = pyarrow.array(map(os.fsencode, names), pyarrow.large_binary())

    def __len__(self) -> int:
        return len(self.names)

    def path_of(self, row: int) -> Path:
        return self.root / os.fsdecode(self.names[row].as_py())

    def fetch(self, rows: np.ndarray) -> tuple[list[bytes | np.ndarray], np.ndarray]:
        return [_content(self.path_of(row)) for row in rows.tolist()], self.label_N[rows]

    def label_of(self, rows: np.ndarray) -> np.ndarray:
        return self.label_N[rows]

    def group_of(self, rows: np.ndarray) -> np.ndarray:
        assert self.group_N is not None
        return self.group_N[rows]

    def units(self) -> ReadUnits:
        size_U = np.array([file_bytes(self.path_of(row)) for row in range(len(self))], np.int64)
        names = map(os.fsdecode, self.names.to_pylist())
        return ReadUnits(size_U, lambda: names)

    def name(self, row: int) -> str:
        return f"row {row} ({os.fsencode(self.path_of(row)).decode(errors='backslashreplace')})"

    def file_of(self, row: int) -> str:
        return self.names[row].as_py().decode(errors="backslashreplace")

    def stream(self) -> datasets.IterableDataset:
        """The same images as a stream of {image, label}, in shards of up to GROUP files."""
        size = max(1, min(GROUP, len(self) // 64))
        names = map(os.fsdecode, self.names.to_pylist())
        cells = list(zip(names, self.label_N.tolist(), strict=True))
        groups = [cells[first : first + size] for first in range(0, len(cells), size)]
        label = datasets.ClassLabel(names=self.classes) if self.classes else datasets.Value("int64")
        features = datasets.Features({"image": datasets.Image(), "label": label})
        settings = {"groups": groups, "root": [str(self.root)] * len(groups)}
        return datasets.IterableDataset.from_generator(_rows, features, gen_kwargs=settings)


def _rows(groups: list[list[tuple[str, int]]], root: list[str]) -> Iterator[dict[str, Any]]:
    for group, place in zip(groups, root, strict=True):
        for name, label in group:
            path = str(Path(place) / name)
            yield {"image": {"path": path, "bytes": None}, "label": None if label < 0 else label}


def _content(path: Path) -> bytes:
    """The file's bytes; b"", which no decoder reads, where it is missing or may not be read."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def find(
    root: Path,
    tree: Tree,
    kind: str,
    image_column: str | None,
    label_column: str | None,
    group: str | None,
    labels: bool,
) -> tuple[dict[str, Files], list[str]]:
    """Every split of an image folder, and what was guessed. Labels come from metadata files, else
    from the folders of classes. `kind`: which of the folder's files they are (ImageFormat);
    `group`: as data.group; `labels`: whether guesses about classes are of use.

    Raises:
        UserError: damaged metadata, or no such column.
    """
    images, guesses, of_classes = _images(tree, kind)
    metadata_rows = metadata.read(root, tree, label_column, group)
    labelled = any(image.label for image in images)
    _check_columns(root, metadata_rows, image_column, label_column, labelled)
    if metadata_rows.column is None:
        guesses += of_classes if labels else []
        classes = sorted({image.label for image in images} - {""})
        place = {name: i for i, name in enumerate(classes)}
        label_N = np.array([place.get(image.label, -1) for image in images], np.int64)
    else:
        label_N, classes = _by_metadata(root, images, metadata_rows, label_column, guesses)
    parts = _parted(root, images, label_N, classes, metadata_rows, group)
    return parts, guesses + metadata_rows.guesses


def _images(tree: Tree, kind: str) -> tuple[list[_Image], list[str], list[str]]:
    """The images that belong to a split, sorted, and what was guessed, about classes apart."""
    folders = [folder for folder in tree.folders if getattr(folder, kind)]
    division = layout.divide(folders, kind)
    guesses = list(division.guesses)
    images: list[_Image] = []
    if len(folders) == 1 and list(division.split) == ["train"]:
        # the only folder: the names of its images may begin with splits
        names = getattr(folders[0], kind)
        splits, more = layout.splits_of_images(names)
        guesses += more
        for name, split in zip(names, splits, strict=True):
            images.append(_Image(_join(folders[0].path, name), split, ""))
        return sorted(images), guesses, []
    for folder, part, label in zip(folders, division.split, division.label, strict=True):
        if part is not None:
            images += [
                _Image(_join(folder.path, name), part, label) for name in getattr(folder, kind)
            ]
    return sorted(images), guesses, division.of_classes


def _join(folder: str, name: str) -> str:
    """A path below the root, whose own path is ""."""
    return f"{folder}/{name}".lstrip("/")


def _check_columns(
    root: Path,
    metadata_rows: Metadata,
    image_column: str | None,
    label_column: str | None,
    labelled: bool,
) -> None:
    """Check that data.image_column and data.label_column exist. As in `datasets`, the columns of an
    image folder are image, label (the folders' names), and those of the metadata."""
    of_labels = [*metadata_rows.columns]
    if labelled:
        of_labels.append("label")
    known = {
        "data.image_column": (image_column, ["image"]),
        "data.label_column": (label_column, of_labels),
    }
    for key, (name, there) in known.items():
        if name is not None and name not in there:
            text = f"{key}={name}: data.path={root} has no such column"
            raise UserError(f"{text}; {suggest(name, ['image', *there])}")


def _by_metadata(
    root: Path,
    images: list[_Image],
    metadata_rows: Metadata,
    label_column: str | None,
    guesses: list[str],
) -> tuple[np.ndarray, list[str]]:
    """The label of each image, or its list of labels as `label_lists.padded`, and the classes, from
    the metadata. Images without metadata, metadata without an image, and lists that no
    data.label_column= names are counted in `guesses`."""
    there = {image.path for image in images}
    unknown = sum(image.path not in metadata_rows.label for image in images)
    gone = sum(path not in there for path in metadata_rows.label)
    if unknown:
        guesses.append(f"{unknown:,} images are not in the metadata and have no label")
    if gone:
        guesses.append(f"{gone:,} rows of the metadata name no image that is used")
    column = metadata_rows.column
    where = f"data.label_column={column}: the metadata in data.path={root}"
    values = [metadata_rows.label.get(image.path) for image in images]
    count = sum(isinstance(value, list) for value in values)
    if not count:
        text = next((one for one in values if isinstance(one, str) and one.startswith("[")), None)
        if text is not None:
            guesses.append(f"{text[:40]} names a class; .jsonl, .json and .parquet hold lists")
        return metadata.encode_labels(values, where)
    if label_column is None:
        text = f"{count:,} images have a list of labels in the metadata, and labels are not used"
        guesses.append(f"{text}; data.label_column={column} takes lists")
        return np.full(len(images), UNLABELLED), []
    try:
        return label_lists.from_values(values), []
    except ValueError as error:
        raise UserError(f"{where}: {error}") from None


def _parted(
    root: Path,
    images: list[_Image],
    label_N: np.ndarray,
    classes: list[str],
    metadata_rows: Metadata,
    group: str | None,
) -> dict[str, Files]:
    """A source for each split."""
    columns = ""
    source = FOLDERS
    if metadata_rows.column is not None:
        source = f"column {metadata_rows.column} of the metadata"
    if metadata_rows.columns:
        listed = ", ".join(metadata_rows.columns)
        columns = f" (columns of the metadata: {listed}); data.label_column= takes one of them"
    splits: dict[str, Files] = {}
    for name in dict.fromkeys(image.split for image in images):
        rows = [i for i, image in enumerate(images) if image.split == name]
        paths = [images[i].path for i in rows]
        label, lists = label_N[rows], None
        if label.ndim > 1:
            lists = label_lists.measure_padded(str(metadata_rows.column), label)
            label = label_lists.repadded(label, label_lists.check_numbers(lists).longest)
        group_N = None
        if group is not None:
            of_image = metadata_rows.group
            folders = group == FOLDER and FOLDER not in metadata_rows.columns
            values = [
                posixpath.dirname(path) or "." if folders else of_image.get(path) for path in paths
            ]
            group_N = group_numbers(values)
        splits[name] = Files(root, paths, label, classes, columns, lists, source, group_N)
    return splits
