"""What the parquet files of a split agree on: their columns, and what a label's number means."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import datasets
import pyarrow
import pyarrow.parquet

from ..errors import UserError
from ..recipe.schema import Data
from . import columns

READERS = 16  # files read at a time: on a network disk most of the time is waiting
DIFFERENT_CLASSES = "its files name different classes"


class SplitClasses(NamedTuple):
    """The names of a split's classes (none where its labels have no names), and why its labels
    cannot be used; "" where they can."""

    names: list[str]
    unusable: str


class _Columns(NamedTuple):
    """A file's columns: all, those of images and labels, and the classes of the labels."""

    every: frozenset[str]
    image: str
    label: str | None
    classes: tuple[str, ...]


def find_classes(
    files: Mapping[str, Sequence[Path]], data: Data, where: str
) -> dict[str, SplitClasses]:
    """The classes of each split, by the files themselves: `datasets` gives all splits the names of
    the first file that it opens. Where a split's files name different classes, as those of two data
    sets do, one number is two classes, and its labels cannot be used.

    Args:
        files: of each split.
        data: names the columns.
        where: opens errors.

    Raises:
        UserError: a file is damaged, or files of a split have different columns.
    """
    found: dict[str, SplitClasses] = {}
    for split, some in files.items():
        kinds = _kinds(some, data, where)
        images = {one.image for one in kinds}
        apart = {one.every for one in kinds}
        if len(images) > 1 or len(apart) > 1:
            texts = sorted(", ".join(sorted(one)) for one in apart)
            raise UserError(
                f"{where}: files of its split {split} have different columns: {' and '.join(texts)}"
            )
        classes = [one.classes for one in kinds]
        longest = max(classes, key=len, default=())
        agree = same_numbers(classes) and (not longest or all(classes))
        found[split] = SplitClasses(list(longest), "" if agree else DIFFERENT_CLASSES)
    return found


def check_same_columns(files: Mapping[str, Sequence[Path]], where: str) -> None:
    """Check that the splits have the same columns, as `datasets` needs them to.

    Raises:
        UserError: they have not.
    """
    names = {
        split: ", ".join(sorted(pyarrow.parquet.read_schema(some[0]).names))
        for split, some in files.items()
    }
    if len(set(names.values())) > 1:
        text = "; ".join(f"{split}: {columns}" for split, columns in sorted(names.items()))
        raise UserError(f"{where}: its splits have different columns: {text}; expected the same")


def same_numbers(classes: Sequence[Sequence[str]]) -> bool:
    """Whether a number is the same class in all lists of names: each is the beginning of the
    longest."""
    longest = max(classes, key=len, default=())
    return all(list(one) == list(longest[: len(one)]) for one in classes)


def _kinds(files: Sequence[Path], data: Data, where: str) -> set[_Columns]:
    """The different columns of files. Many have the same schema, which is parsed once: that of
    20,000 classes takes a tenth of a second."""
    with ThreadPoolExecutor(READERS) as pool:
        schemas = {
            (tuple(one.names), (one.metadata or {}).get(b"huggingface")): one
            for one in pool.map(_schema, files)
        }
    return {_columns(schema, data, where) for schema in schemas.values()}


def _schema(file: Path) -> pyarrow.Schema:
    try:
        return pyarrow.parquet.read_schema(file)
    except (OSError, pyarrow.ArrowException) as error:
        text = " ".join(str(error).split())[:300]
        raise UserError(f"data.path={file}: {text}") from None


def _columns(schema: pyarrow.Schema, data: Data, where: str) -> _Columns:
    features = datasets.Features.from_arrow_schema(schema)
    image, label = columns.find(features, data, where)
    classes = tuple(columns.class_names(features, label))
    return _Columns(frozenset(features), image, label, classes)
