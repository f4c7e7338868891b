"""A split of an image folder: files that are read where they lie."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import numpy as np
import pyarrow

from ..errors import UserError, suggest
from . import layout, metadata
from .base import ReadUnits, file_bytes
from .layout import Tree
from .metadata import Metadata

GROUP = 256  # files of a stream that are read and mixed as one shard, at most


class _Image(NamedTuple):
    """An image file, by its path below the root; its split and, from its folders, its class ("" for
    none)."""

    path: str
    split: str
    label: str


class Files:
    """Image files and their labels. The names lie in one Arrow array: lists of a million texts
    would be copied into every data worker, page by page, as their references are counted."""

    def __init__(
        self, root: Path, names: list[str], label_N: np.ndarray, classes: list[str], columns: str
    ) -> None:
        self.root, self.label_N, self.classes, self.columns = root, label_N, classes, columns
        self.names = pyarrow.array(map(os.fsencode, names), pyarrow.large_binary())

    @property
    def labels(self) -> tuple[int, int]:
        if not len(self):
            return -1, -1
        return int(self.label_N.min()), int(self.label_N.max())

    def __len__(self) -> int:
        return len(self.names)

    def path(self, row: int) -> Path:
        return self.root / os.fsdecode(self.names[row].as_py())

    def fetch(self, rows: np.ndarray) -> tuple[list[bytes | np.ndarray], np.ndarray]:
        return [_content(self.path(row)) for row in rows.tolist()], self.label_N[rows]

    def label_of(self, rows: np.ndarray) -> np.ndarray:
        return self.label_N[rows]

    def units(self) -> ReadUnits:
        """Single files."""
        size_U = np.array([file_bytes(self.path(row)) for row in range(len(self))], np.int64)
        names = map(os.fsdecode, self.names.to_pylist())
        return ReadUnits(np.ones_like(size_U), size_U, lambda: names)

    def clear_cache(self) -> None:
        pass

    def name(self, row: int) -> str:
        return f"row {row} ({os.fsencode(self.path(row)).decode(errors='backslashreplace')})"

    def stream(self) -> datasets.IterableDataset:
        """The same as rows of {image, label} that come one after the other, in shards of up to
        GROUP files."""
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
    """The file; nothing where it is missing or forbidden, which no decoder takes."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def find(
    root: Path, tree: Tree, image_column: str | None, label_column: str | None
) -> tuple[dict[str, Files], list[str]]:
    """Every split of an image folder, and what was guessed. Labels are the metadata's, else the
    folders of classes.

    Raises:
        UserError: damaged metadata, or a column that is not there.
    """
    folders = [folder for folder in tree.folders if folder.images]
    division = layout.divide(folders)
    split = list(division.split)
    guesses = list(division.guesses)
    if len(folders) == 1 and split == ["train"]:
        of_image, more = layout.splits_of_images(folders[0].images)
        guesses += more
        images = [
            _Image(f"{folders[0].path}/{name}".lstrip("/"), part, "")
            for name, part in zip(folders[0].images, of_image, strict=True)
        ]
    else:
        images = [
            _Image(f"{folder.path}/{name}".lstrip("/"), part, label)
            for folder, part, label in zip(folders, split, division.label, strict=True)
            if part is not None
            for name in folder.images
        ]
    images.sort()
    metadata_rows = metadata.read(root, tree, label_column)
    _check_columns(
        root, metadata_rows, image_column, label_column, any(image.label for image in images)
    )
    if metadata_rows.column is None:
        classes = sorted({image.label for image in images} - {""})
        place = {name: i for i, name in enumerate(classes)}
        label_N = np.array([place.get(image.label, -1) for image in images], np.int64)
    else:
        label_N, classes = _by_metadata(root, images, metadata_rows, guesses)
    return _parted(root, images, label_N, classes, metadata_rows), guesses + metadata_rows.guesses


def _check_columns(
    root: Path,
    metadata_rows: Metadata,
    image_column: str | None,
    label_column: str | None,
    labelled: bool,
) -> None:
    """That the columns that are asked for are there: `datasets` calls them image and label."""
    known = {
        "data.image_column": (image_column, ["image"]),
        "data.label_column": (
            label_column,
            [*metadata_rows.columns, *(["label"] if labelled else [])],
        ),
    }
    for key, (name, there) in known.items():
        if name is not None and name not in there:
            text = f"{key}={name}: data.path={root} has no such column"
            raise UserError(f"{text}; {suggest(name, ['image', *there])}")


def _by_metadata(
    root: Path, images: list[_Image], metadata_rows: Metadata, guesses: list[str]
) -> tuple[np.ndarray, list[str]]:
    """The label of each image and the classes, as the metadata say them; what they do not say is
    counted."""
    there = {image.path for image in images}
    unknown = sum(image.path not in metadata_rows.label for image in images)
    gone = sum(path not in there for path in metadata_rows.label)
    if unknown:
        guesses.append(f"{unknown:,} images are not in the metadata and have no label")
    if gone:
        guesses.append(f"{gone:,} rows of the metadata name no image that is used")
    where = f"data.label_column={metadata_rows.column}: the metadata in data.path={root}"
    return metadata.encode_labels([metadata_rows.label.get(image.path) for image in images], where)


def _parted(
    root: Path,
    images: list[_Image],
    label_N: np.ndarray,
    classes: list[str],
    metadata_rows: Metadata,
) -> dict[str, Files]:
    columns = ""
    if metadata_rows.columns:
        columns = f" (columns of the metadata: {', '.join(metadata_rows.columns)}); say data.label_column="
    splits: dict[str, Files] = {}
    for name in dict.fromkeys(image.split for image in images):
        rows = [i for i, image in enumerate(images) if image.split == name]
        paths = [images[i].path for i in rows]
        splits[name] = Files(root, paths, label_N[rows], classes, columns)
    return splits
