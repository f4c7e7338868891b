"""Labels of an image folder from metadata files beside the images, as `datasets` reads them: a row
per image, with its `file_name` below the file's folder.
"""

import csv
import io
import posixpath
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow
import pyarrow.parquet

from ..errors import UserError, suggest
from ..recipe.parsing import parse_json
from .columns import LABEL_NAMES
from .layout import Tree

FOLDER = "folder"  # data.group= of an image's folder
WHOLE = re.compile(r" *-?[0-9]{1,4000} *")  # not 1_000, which Python reads as 1000


class Metadata(NamedTuple):
    """The content of metadata files: the label of each image, by its path below the root; the
    columns; the one that holds the labels (None: no such column); what was guessed or not used;
    and the value of each image in the column of groups."""

    label: dict[str, Any]
    columns: list[str]
    column: str | None
    guesses: list[str]
    group: dict[str, Any]


def read(root: Path, tree: Tree, label_column: str | None, group: str | None) -> Metadata:
    """All metadata files of a folder. Where two name the same image, the one in the deeper folder
    counts.

    Raises:
        UserError: a file is damaged, or `label_column` or `group` is none of the columns.
    """
    tables: list[tuple[str, list[dict[str, Any]]]] = []
    guesses: list[str] = []
    for folder in tree.folders:  # sorted, so the outer ones come first
        for name in folder.metadata:
            file = f"{folder.path}/{name}".lstrip("/")
            rows = _rows(root / file)
            if rows and not isinstance(rows[0].get("file_name"), str):
                guesses.append(f"{file} has no column file_name and is not used")
            elif rows:
                tables.append((folder.path, rows))
    keys = dict.fromkeys(key for _, rows in tables for row in rows for key in row)
    columns = [key for key in keys if key not in (None, "file_name")]
    known = [label_column] if label_column is not None else LABEL_NAMES
    column = next((name for name in known if name in columns), None)
    if tables and label_column is not None and label_column not in columns:
        where = f"the metadata in data.path={root}"
        text = f"data.label_column={label_column}: {where} has no such column"
        raise UserError(f"{text}; {suggest(label_column, columns)}")
    if group is not None and group not in (FOLDER, *columns):
        text = f"data.group={group}: data.path={root} has no such column"
        raise UserError(f"{text}; {suggest(group, [FOLDER, *columns])}")
    if "split" in columns:
        guesses.append("the column split of the metadata is not used: folders tell the splits")
    label: dict[str, Any] = {}
    groups: dict[str, Any] = {}
    for path, rows in tables:
        found: dict[str, Any] = {}
        several: set[str] = set()  # images with rows that disagree
        for row in rows:
            file = posixpath.normpath(posixpath.join(path, str(row.get("file_name"))))
            value = row.get(column or "")
            if file in found and found[file] != value:
                several.add(file)
            found[file] = value
            groups[file] = row.get(group or "")
        if several:
            text = f"{len(several):,} images have several labels in the metadata, as {min(several)}"
            guesses.append(f"{text}: the last one counts")
        label |= found
    return Metadata(label, columns, column, guesses, groups)


def _rows(file: Path) -> list[dict[str, Any]]:
    """The rows of one file; a single empty one where it is JSON of another structure.

    Raises:
        UserError: it cannot be read.
    """
    try:
        if file.suffix.lower() == ".parquet":
            return pyarrow.parquet.read_table(file).to_pylist()
        text = file.read_text(encoding="utf-8-sig")
        if file.suffix.lower() == ".csv":
            return list(csv.DictReader(io.StringIO(text, newline="")))
        if file.suffix.lower() == ".jsonl":
            rows = [parse_json(line) for line in text.split("\n") if line.strip()]
        else:
            rows = parse_json(text)
    except (OSError, ValueError, csv.Error, pyarrow.ArrowException) as error:
        line = " ".join(str(getattr(error, "strerror", None) or error).split())[:200]
        raise UserError(f"data.path={file}: cannot be read: {line}") from None
    known = isinstance(rows, list) and all(isinstance(row, dict) for row in rows)
    return rows if known else [{}]


def encode_labels(values: Sequence[Any], where: str) -> tuple[np.ndarray, list[str]]:
    """Labels as int64 (-1 for none), and the names of the classes: no names where all values are
    whole numbers, as numbers or as text.

    Raises:
        UserError: a value is neither a whole number nor a text, or does not fit into 64 bits.
    """
    for value in values:
        fraction = isinstance(value, float) and not value.is_integer()
        if fraction or not isinstance(value, str | int | float | None):
            raise UserError(f"{where}: {value} is neither a whole number nor the name of a class")
    given = {value for value in values if value is not None and value != ""}
    number = {
        value: int(value) for value in given if not isinstance(value, str) or WHOLE.fullmatch(value)
    }
    names: list[str] = []
    if any(abs(value) >= 2**63 for value in number.values()):
        raise UserError(f"{where}: {max(number.values(), key=abs)} is no number of a class")
    if len(number) < len(given):
        names = sorted({str(value) for value in given})
        place = {name: i for i, name in enumerate(names)}
        number = {value: place[str(value)] for value in given}
    return np.array([number.get(value, -1) for value in values], np.int64), names
