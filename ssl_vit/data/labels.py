"""Read the stored labels of any container as int64.

One function reads all kinds of labels: classes with names, whole numbers, texts, lists of class
numbers, and images without labels.

Legend: N images, L labels of the longest list.
"""

import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ..errors import UserError
from ..formatting import count_of_images

UNLABELLED = -1  # fills the whole row of an image without a list
END = -2  # after the last label of a list
LIMIT = 2**63  # class numbers are below this number
# From this many images on, texts of which more than half are different are captions, not classes,
# unless data.label_column names their column
CAPTIONS = 100
PLAIN = {str, int, float, type(None)}  # types of values that may be labels or mean no label
# Usual names of a column of labels, in the order in which columns are tried
LABEL_NAMES = ("label", "labels", "class", "target", "fine_label", "cls")
MISSING = {
    "nan",
    "na",
    "n/a",
    "null",
    "none",
}  # texts in a CSV column of numbers that mean no label
WHOLE = re.compile(r" *[-+]?[0-9]{1,4000} *")  # not 1_000, which Python reads as 1000
FRACTION = re.compile(r" *[-+]?([0-9]+\.[0-9]*|\.?[0-9]+)(e[-+]?[0-9]+)? *", re.IGNORECASE)


class LabelLists(NamedTuple):
    """Size of the lists of labels in a split.

    Attributes:
        column: name of the column with the lists.
        longest: labels of the longest list, at least 1.
        empty: number of images with an empty list, which belong to none of the classes.
    """

    column: str
    longest: int = 1
    empty: int = 0

    def describe(self) -> str:
        """Describe the length of the lists, as a text that follows the number of images."""
        empty = f", {count_of_images(self.empty)} with an empty list" if self.empty else ""
        return f", up to {self.longest} labels per image{empty}"


@dataclass(frozen=True, eq=False)
class Labels:
    """Labels of a split.

    Attributes:
        label_N: one label for each image, integers (N,), or lists of labels (N, L) from `padded`.
        classes: names of the classes, starting with label 0; empty where classes have no names.
        source: a description of where the labels come from; empty where there are no labels.
        columns: a description of the columns, which ends the error that there are no labels.
        lists: the size of the lists; None where each image has one label.
    """

    label_N: np.ndarray
    classes: list[str]
    source: str = ""
    columns: str = ""
    lists: LabelLists | None = None

    def of(self, rows: np.ndarray) -> np.ndarray:
        """Return the labels of the given rows, int64 (B,) or (B, L)."""
        return self.label_N[rows].astype(np.int64, copy=False)

    @cached_property
    def lowest_and_highest(self) -> tuple[int, int]:
        """Return the lowest and the highest label, where an image without a label counts as -1.

        Both are -1 if there are no labels at all.
        """
        known = self.label_N[self.label_N != END] if self.lists else self.label_N
        return (int(known.min()), int(known.max())) if len(known) else (UNLABELLED, UNLABELLED)


def no_labels(count: int, columns: str = "") -> Labels:
    """Return the labels of `count` images without labels."""
    return Labels(np.full(count, UNLABELLED, np.int8), [], "", columns)


class Stored(NamedTuple):
    """Labels of a split, as the container stores them.

    Attributes:
        values: values of the types that JSON, CSV and Arrow have.
        names: names of the classes that whole numbers refer to; empty where the container has none.
        columns: as Labels.columns.
    """

    values: Sequence[Any]
    names: Sequence[str] = ()
    columns: str = ""


class Reading(NamedTuple):
    """Rules by which labels are read.

    Attributes:
        column: name of the labels' column, for errors.
        where: the place of the data, for errors.
        source: as Labels.source.
        asked: whether data.label_column names the column: then lists and captions are used too.
        typed: whether a text is the name of a class even if it is a number, as in a column of
            texts or a folder's name; in CSV all values are texts.
        captions: whether texts may be captions.
    """

    column: str
    where: str
    source: str
    asked: bool = False
    typed: bool = False
    captions: bool = True

    @property
    def prefix(self) -> str:
        return f"data.label_column={self.column}: {self.where}"


def read(
    stored: Mapping[str, Stored], reading: Reading, guesses: list[str], used: bool = True
) -> dict[str, Labels]:
    """Read the labels of each split.

    A text is the same class in all splits. Classes are sorted by name, or by number where all names
    are whole numbers.

    Args:
        stored: the stored labels of each split.
        reading: the rules by which labels are read.
        guesses: a list to which assumptions and omissions are added.
        used: false for data.labels=false: instead of errors and guesses there are no labels.

    Raises:
        UserError: a value is no label.
    """
    try:
        return _read(stored, reading, guesses if used else [])
    except UserError:
        if used:
            raise
        return _none(stored)


def _read(stored: Mapping[str, Stored], reading: Reading, guesses: list[str]) -> dict[str, Labels]:
    together = [value for column in stored.values() for value in column.values]
    count = sum(isinstance(value, list) for value in together)
    if count and reading.asked:
        return {name: _lists(column, reading) for name, column in stored.items()}
    if count:
        guesses.append(
            f"labels are not used, because the labels of {count_of_images(count)} are lists. To use"
            f" the lists, set data.label_column={reading.column}"
        )
        return _none(stored)
    texts = [label for label in together if isinstance(label, str) and label]
    list_text = next((label for label in texts if label.startswith("[")), None)
    if list_text is not None:
        guesses.append(
            f"the text {list_text[:40]} is used as the name of a class. To store lists of labels,"
            " use .jsonl, .json or .parquet"
        )
    # if the classes are numbers in some splits and texts in others, all splits share one list of
    # names, so that no number means two classes
    mixed = reading.typed and bool(texts) and any(type(label) is int for label in together)
    if mixed:
        together = [
            _name(value, column.names) for column in stored.values() for value in column.values
        ]
    number, names = encode(together, reading.prefix, reading.typed)
    captions = len(together) >= CAPTIONS and 2 * len(names) > len(together)
    if captions and reading.captions and not (reading.asked or mixed):
        guesses.append(
            f"labels are not used, because {count_of_images(len(together))} have {len(names):,}"
            " different texts as labels. To use texts as classes, name the column with"
            " data.label_column="
        )
        return _none(stored)
    labels = {}
    first = 0
    for name, values_of_split in stored.items():
        label_N = number[first : first + len(values_of_split.values)]
        first += len(values_of_split.values)
        source = reading.source if label_N.max(initial=UNLABELLED) >= 0 else ""
        classes = names or list(map(composed, values_of_split.names))
        labels[name] = Labels(label_N, classes, source, values_of_split.columns)
    return labels


def _name(value: Any, names: Sequence[str]) -> Any:
    """Return the name of the class with this number; a text is returned unchanged."""
    if type(value) is not int:
        return value
    if value < 0:
        return None
    return names[value] if value < len(names) else str(value)


def _none(stored: Mapping[str, Stored]) -> dict[str, Labels]:
    return {name: no_labels(len(column.values), column.columns) for name, column in stored.items()}


def same_numbers(classes: Sequence[Sequence[str]]) -> bool:
    """Return whether a number is the same class in all lists of names.

    This is the case if each list is the beginning of the longest list.
    """
    longest = max(classes, key=len, default=())
    return all(list(names) == list(longest[: len(names)]) for names in classes)


def usual_columns(columns: Iterable[str]) -> list[str]:
    """Return the columns called like one of LABEL_NAMES, in any case, in the order to try."""
    known = [name for name in columns if name.lower() in LABEL_NAMES]
    return sorted(known, key=lambda name: (LABEL_NAMES.index(name.lower()), name != name.lower()))


def composed(text: str) -> str:
    """Return a name in Unicode's composed form (NFC), because macOS decomposes names of files."""
    return unicodedata.normalize("NFC", text)


def sorted_names(names: set[str]) -> list[str]:
    """Sort names of classes: by number where all names are whole numbers, else by text."""
    if names and all(map(WHOLE.fullmatch, names)):
        return sorted(names, key=lambda name: (int(name), name))
    return sorted(names)


def encode(values: Sequence[Any], where: str, typed: bool = False) -> tuple[np.ndarray, list[str]]:
    """Turn labels into class numbers.

    Args:
        values: one value for each image.
        where: the beginning of error messages.
        typed: whether texts stay texts, even if all are numbers.

    Returns:
        int64 (N,), with -1 for no label (null, an empty text, NaN), and the names of the classes,
        which are empty where all values are whole numbers.

    Raises:
        UserError: a value is neither a whole number nor a text, or does not fit into 64 bits.
    """
    if not {*map(type, values)} <= PLAIN:  # such as true, or nested JSON
        raise _no_label(next(value for value in values if type(value) not in PLAIN), where)
    # in the order of the images, so that an error names the first wrong value
    distinct = [value for value in dict.fromkeys(values) if not is_missing(value)]
    if all(not isinstance(value, str) or (not typed and _number(value)) for value in distinct):
        distinct = [value for value in distinct if str(value).strip().lower() not in MISSING]
        number = {value: _whole(value, where) for value in distinct}
        if any(abs(value) >= LIMIT for value in number.values()):
            largest = max(number.values(), key=abs)
            raise UserError(f"{where} holds {largest}. Use class numbers below 2^63.")
        return np.array([number.get(value, UNLABELLED) for value in values], np.int64), []
    name_of = {
        value: composed(value if isinstance(value, str) else str(_whole(value, where)))
        for value in distinct
    }
    names = sorted_names({*name_of.values()})
    place = {name: i for i, name in enumerate(names)}
    number = {value: place[name] for value, name in name_of.items()}
    return np.array([number.get(value, UNLABELLED) for value in values], np.int64), names


def is_missing(value: Any) -> bool:
    """Return whether a value means no label: null, an empty text, NaN."""
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def _number(text: str) -> bool:
    """Return whether a text of CSV is a number, or what programs write for a missing number."""
    known = WHOLE.fullmatch(text) or FRACTION.fullmatch(text)
    return known is not None or text.strip().lower() in MISSING


def _whole(value: Any, where: str) -> int:
    """Return a value as a whole number.

    Raises:
        UserError: the value is no whole number.
    """
    if type(value) is int or (isinstance(value, str) and WHOLE.fullmatch(value)):
        return int(value)
    known = isinstance(value, float | str)
    if known and math.isfinite(float(value)) and float(value).is_integer():
        return int(float(value))
    raise _no_label(value, where)


def _no_label(value: Any, where: str) -> UserError:
    text = f"{str(value)[:100]}, which is neither a whole number nor the name of a class"
    return UserError(f"{where} holds {text}. If the values are no labels, use data.labels=false.")


def _lists(stored: Stored, reading: Reading) -> Labels:
    """Read lists of class numbers.

    Raises:
        UserError: a value is no list of class numbers, or lists seem to hold a 0 or a 1 for each
            class: they have more than two numbers, all 0 or 1, so that a class number would repeat.
    """
    label_NL = padded(stored.values, reading.prefix)
    empty = int((label_NL[:, 0] == END).sum())
    longest = int((label_NL >= 0).sum(axis=1).max(initial=1))
    highest = label_NL.max(initial=UNLABELLED)
    if longest > 2 and highest in (0, 1):
        raise UserError(
            f"data.label_column={reading.column}: the lists hold up to {longest} zeros and ones."
            " List the numbers of an image's classes, such as [0, 3] instead of [1, 0, 0, 1]."
        )
    if highest < 2**31:
        label_NL = label_NL.astype(np.int32)  # labels stay in memory
    lists = LabelLists(reading.column, longest, empty)
    names = list(map(composed, stored.names))
    return Labels(label_NL, names, reading.source, stored.columns, lists)


def padded(values: Sequence[Any], where: str) -> np.ndarray:
    """Pad lists of class numbers to int64 (N, L).

    The labels of each image are followed by END. None and -1 become a row of UNLABELLED, and a
    single number becomes a list of one label.

    Args:
        values: a list, a number or None for each image.
        where: the beginning of error messages.

    Raises:
        UserError: a value is something else.
    """
    known = [None if value in (None, UNLABELLED) else value for value in values]
    lists = [value if value is None or isinstance(value, list) else [value] for value in known]
    longest = max((len(value) for value in lists if value is not None), default=0)
    label_NL = np.full((len(lists), max(1, longest)), END, np.int64)
    for row, labels_of_row in enumerate(lists):
        if labels_of_row is None:
            label_NL[row] = UNLABELLED
        elif all(type(number) is int and 0 <= number < LIMIT for number in labels_of_row):
            label_NL[row, : len(labels_of_row)] = labels_of_row
        else:
            raise UserError(
                f"{where} holds {str(values[row])[:100]}. Use lists of class numbers, with 0 for"
                " the first class."
            )
    return label_NL
