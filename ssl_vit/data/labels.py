"""Labels as they are stored, in any container -> int64. One function reads them all: classes with
names, whole numbers, texts, lists of class numbers, and none.

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

UNLABELLED = -1  # also in the whole row of an image without a list
END = -2  # after the last label of a list
LIMIT = 2**63  # no number of a class is as high
# From this many images on, texts of which more than half are different are captions, not classes,
# unless data.label_column names them
CAPTIONS = 100
PLAIN = {str, int, float, type(None)}  # types of values that may be labels, or none
# Usual names of a column of labels, those that are looked for first
LABEL_NAMES = ("label", "labels", "class", "target", "fine_label", "cls")
EXPECTED = "expected numbers of classes, from 0"
MISSING = {"nan", "na", "n/a", "null", "none"}  # among numbers, in CSV, for none
WHOLE = re.compile(r" *[-+]?[0-9]{1,4000} *")  # not 1_000, which Python reads as 1000
FRACTION = re.compile(r" *[-+]?([0-9]+\.[0-9]*|\.?[0-9]+)(e[-+]?[0-9]+)? *", re.IGNORECASE)


class LabelLists(NamedTuple):
    """What a split's lists are.

    Attributes:
        column: their name.
        longest: labels of the longest list, at least 1.
        empty: images whose list is empty: they have none of the classes.
    """

    column: str
    longest: int = 1
    empty: int = 0

    def describe(self) -> str:
        """How long they are, after the number of images."""
        empty = f", {self.empty:,} images of no class" if self.empty else ""
        return f", up to {self.longest} labels an image{empty}"


@dataclass(frozen=True, eq=False)
class Labels:
    """The labels of a split.

    Attributes:
        label_N: a label each, integers (N,), or as `padded` (N, L).
        classes: names of the classes, of label 0 first; empty where they have none.
        source: what they were taken from, in words; empty where there are none.
        columns: which columns there are: ends the error that there are no labels.
        lists: what the lists are; None of one label an image.
    """

    label_N: np.ndarray
    classes: list[str]
    source: str = ""
    columns: str = ""
    lists: LabelLists | None = None

    def of(self, rows: np.ndarray) -> np.ndarray:
        """The labels of these rows, int64 (B,) or (B, L)."""
        return self.label_N[rows].astype(np.int64, copy=False)

    @cached_property
    def lowest_and_highest(self) -> tuple[int, int]:
        """Of all labels; -1 for an image without, and where there is none."""
        known = self.label_N[self.label_N != END] if self.lists else self.label_N
        return (int(known.min()), int(known.max())) if len(known) else (UNLABELLED, UNLABELLED)


def no_labels(count: int, columns: str = "") -> Labels:
    """Of so many images without labels."""
    return Labels(np.full(count, UNLABELLED, np.int8), [], "", columns)


class Stored(NamedTuple):
    """The labels of a split as its container has them.

    Attributes:
        values: what JSON, CSV and Arrow know.
        names: of the classes that whole numbers are of; empty where the container has none.
        columns: as Labels.columns.
    """

    values: Sequence[Any]
    names: Sequence[str] = ()
    columns: str = ""


class Reading(NamedTuple):
    """How labels are to be read.

    Attributes:
        column: their name, for errors.
        where: the place, for errors.
        source: as Labels.source.
        asked: whether data.label_column names them: then lists and captions are used too.
        typed: whether a text is the name of a class even if it is a number, as in a column of
            texts or a folder's name; in CSV everything is a text.
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
    """The labels of each split. Texts are the same classes in all splits, sorted by name, or by
    number where all are whole numbers.

    Args:
        stored: of each split.
        reading: what they are called and may be.
        guesses: what was assumed or left out is added.
        used: false (data.labels=false): none in place of errors and guesses.

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
    together = [value for one in stored.values() for value in one.values]
    count = sum(isinstance(value, list) for value in together)
    if count and reading.asked:
        return {name: _lists(one, reading) for name, one in stored.items()}
    if count:
        text = f"{count:,} images have a list of labels in {reading.where}, and labels are not used"
        guesses.append(f"{text}; data.label_column={reading.column} takes lists")
        return _none(stored)
    texts = [one for one in together if isinstance(one, str) and one]
    list_text = next((one for one in texts if one.startswith("[")), None)
    if list_text is not None:
        guesses.append(f"{list_text[:40]} names a class; .jsonl, .json and .parquet hold lists")
    # of a split whose classes are numbers beside one whose classes are texts: one list of names
    # for all, lest a number be two classes
    mixed = reading.typed and bool(texts) and any(type(one) is int for one in together)
    if mixed:
        together = [_name(value, one.names) for one in stored.values() for value in one.values]
    number, names = encode(together, reading.prefix, reading.typed)
    captions = len(together) >= CAPTIONS and 2 * len(names) > len(together)
    if captions and reading.captions and not (reading.asked or mixed):
        text = f"its labels are {len(names):,} different texts for {len(together):,} images"
        guesses.append(f"{text}: they are not used; data.label_column= takes them as classes")
        return _none(stored)
    found = {}
    first = 0
    for name, one in stored.items():
        label_N = number[first : first + len(one.values)]
        first += len(one.values)
        source = reading.source if label_N.max(initial=UNLABELLED) >= 0 else ""
        classes = names or list(map(composed, one.names))
        found[name] = Labels(label_N, classes, source, one.columns)
    return found


def _name(value: Any, names: Sequence[str]) -> Any:
    """The name of the class of that number; a text as it is."""
    if type(value) is not int:
        return value
    if value < 0:
        return None
    return names[value] if value < len(names) else str(value)


def _none(stored: Mapping[str, Stored]) -> dict[str, Labels]:
    return {name: no_labels(len(one.values), one.columns) for name, one in stored.items()}


def same_numbers(classes: Sequence[Sequence[str]]) -> bool:
    """Whether a number is the same class in all lists of names: each is the beginning of the
    longest."""
    longest = max(classes, key=len, default=())
    return all(list(one) == list(longest[: len(one)]) for one in classes)


def usual_columns(columns: Iterable[str]) -> list[str]:
    """The columns that have one of LABEL_NAMES, in any case, those first that are looked for
    first."""
    known = [name for name in columns if name.lower() in LABEL_NAMES]
    return sorted(known, key=lambda name: (LABEL_NAMES.index(name.lower()), name != name.lower()))


def composed(text: str) -> str:
    """A name in Unicode's composed form (NFC): macOS decomposes names of files."""
    return unicodedata.normalize("NFC", text)


def sorted_names(names: set[str]) -> list[str]:
    """Names of classes in their order: by number where all are whole numbers, else by text."""
    if names and all(map(WHOLE.fullmatch, names)):
        return sorted(names, key=lambda name: (int(name), name))
    return sorted(names)


def encode(values: Sequence[Any], where: str, typed: bool = False) -> tuple[np.ndarray, list[str]]:
    """Labels as int64 (N,), -1 for none (null, an empty text, NaN), and the names of the classes:
    no names where all values are whole numbers.

    Args:
        values: of the images.
        where: opens errors.
        typed: whether texts stay texts, even if all are numbers.

    Raises:
        UserError: a value is neither a whole number nor a text, or does not fit into 64 bits.
    """
    if not {*map(type, values)} <= PLAIN:  # true, and what JSON nests
        raise _no_label(next(one for one in values if type(one) not in PLAIN), where)
    # in their order, so that the first that is wrong is named
    given = [one for one in dict.fromkeys(values) if not is_missing(one)]
    if all(not isinstance(value, str) or (not typed and _number(value)) for value in given):
        given = [value for value in given if str(value).strip().lower() not in MISSING]
        number = {value: _whole(value, where) for value in given}
        if any(abs(one) >= LIMIT for one in number.values()):
            raise UserError(f"{where}: {max(number.values(), key=abs)} is no number of a class")
        return np.array([number.get(one, UNLABELLED) for one in values], np.int64), []
    name_of = {
        value: composed(value if isinstance(value, str) else str(_whole(value, where)))
        for value in given
    }
    names = sorted_names({*name_of.values()})
    place = {name: i for i, name in enumerate(names)}
    number = {value: place[name] for value, name in name_of.items()}
    return np.array([number.get(one, UNLABELLED) for one in values], np.int64), names


def is_missing(value: Any) -> bool:
    """Whether a value says that there is none: null, an empty text, NaN."""
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def _number(text: str) -> bool:
    """Whether a text of CSV is a number, or what programs write for a missing one."""
    known = WHOLE.fullmatch(text) or FRACTION.fullmatch(text)
    return known is not None or text.strip().lower() in MISSING


def _whole(value: Any, where: str) -> int:
    """The whole number that a value is.

    Raises:
        UserError: it is none.
    """
    if type(value) is int or (isinstance(value, str) and WHOLE.fullmatch(value)):
        return int(value)
    known = isinstance(value, float | str)
    if known and math.isfinite(float(value)) and float(value).is_integer():
        return int(float(value))
    raise _no_label(value, where)


def _no_label(value: Any, where: str) -> UserError:
    text = f"{str(value)[:100]} is neither a whole number nor the name of a class"
    return UserError(f"{where}: {text}; data.labels=false where these are no labels")


def _lists(stored: Stored, reading: Reading) -> Labels:
    """
    Raises:
        UserError: another value stands among them; or they are a 0 or a 1 for each class: numbers
            of two classes alone would stand there several times.
    """
    label_NL = padded(stored.values, reading.prefix)
    empty = int((label_NL[:, 0] == END).sum())
    longest = int((label_NL >= 0).sum(axis=1).max(initial=1))
    highest = label_NL.max(initial=UNLABELLED)
    if longest > 2 and highest in (0, 1):
        raise UserError(
            f"data.label_column={reading.column}: lists of up to {longest} zeros and ones;"
            " expected the numbers of an image's classes, [0, 3] in place of [1, 0, 0, 1]"
        )
    if highest < 2**31:
        label_NL = label_NL.astype(np.int32)  # they stay in memory
    lists = LabelLists(reading.column, longest, empty)
    names = list(map(composed, stored.names))
    return Labels(label_NL, names, reading.source, stored.columns, lists)


def padded(values: Sequence[Any], where: str) -> np.ndarray:
    """Lists of class numbers, single ones, and None, as int64 (N, L): each image's labels followed
    by END; UNLABELLED for None. A single number is a list of one, -1 is None.

    Raises:
        UserError: another value; it begins with `where`.
    """
    known = [None if one in (None, UNLABELLED) else one for one in values]
    lists = [one if one is None or isinstance(one, list) else [one] for one in known]
    longest = max((len(one) for one in lists if one is not None), default=0)
    label_NL = np.full((len(lists), max(1, longest)), END, np.int64)
    for row, one in enumerate(lists):
        if one is None:
            label_NL[row] = UNLABELLED
        elif all(type(number) is int and 0 <= number < LIMIT for number in one):
            label_NL[row, : len(one)] = one
        else:
            raise UserError(f"{where}: {str(values[row])[:100]}: {EXPECTED}")
    return label_NL
