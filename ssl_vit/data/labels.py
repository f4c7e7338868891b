"""Labels as they are stored, in any container -> int64. One function reads them all: classes with
names, whole numbers, texts, lists of class numbers, and none.

Legend: N images, L labels of the longest list.
"""

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow
import pyarrow.compute

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
        values: a column of Arrow, or a list of what JSON and CSV know.
        names: of the classes that whole numbers are of; empty where the container has none.
        columns: as Labels.columns.
    """

    values: pyarrow.ChunkedArray | Sequence[Any]
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


def read(stored: Mapping[str, Stored], reading: Reading, guesses: list[str]) -> dict[str, Labels]:
    """The labels of each split. Texts are the same classes in all splits, sorted by name, or by
    number where all are whole numbers.

    Args:
        stored: of each split.
        reading: what they are called and may be.
        guesses: what was assumed or left out is added.

    Raises:
        UserError: a value is no label.
    """
    found: dict[str, Labels] = {}
    rest: dict[str, Stored] = {}
    for name, one in stored.items():
        if _is_column(one, pyarrow.types.is_integer):
            found[name] = _numbers(one, reading)
        elif _is_column(one, _is_list):
            found[name] = _arrow_lists(one, reading)
        else:
            rest[name] = one
    others = chain.from_iterable(_plain(one.values) for one in rest.values())
    if found and not all(map(is_missing, others)):
        # one list of names for all, lest a number be two classes
        rest |= {name: _as_names(one) for name, one in stored.items() if name in found}
        found = {}
        reading = reading._replace(captions=False)
    found |= _of_values(rest, reading, guesses)
    return {name: found[name] for name in stored}


def _as_names(stored: Stored) -> Stored:
    """Whole numbers beside a split whose labels are texts: the names of their classes. Lists stay:
    texts beside them are an error."""
    if _is_column(stored, _is_list):
        return stored
    names = stored.names
    values = [
        None if one is None or one < 0 else names[one] if one < len(names) else str(one)
        for one in _plain(stored.values)
    ]
    return Stored(values, (), stored.columns)


def _of_values(
    stored: Mapping[str, Stored], reading: Reading, guesses: list[str]
) -> dict[str, Labels]:
    """As `read`, of texts, of what JSON and CSV know, and of splits without labels."""
    values = {name: _plain(one.values) for name, one in stored.items()}
    together = [value for some in values.values() for value in some]
    count = sum(isinstance(value, list) for value in together)
    if count and reading.asked:
        return {
            name: _lists(from_values(some, reading.prefix), stored[name], reading)
            for name, some in values.items()
        }
    if count:
        text = f"{count:,} images have a list of labels in {reading.where}, and labels are not used"
        guesses.append(f"{text}; data.label_column={reading.column} takes lists")
        return _none(stored)
    texts = (one for one in together if isinstance(one, str))
    list_text = next((one for one in texts if one.startswith("[")), None)
    if list_text is not None:
        guesses.append(f"{list_text[:40]} names a class; .jsonl, .json and .parquet hold lists")
    number, names = encode(together, reading.prefix, reading.typed)
    if reading.captions and not reading.asked and _are_captions(len(together), names):
        text = f"its labels are {len(names):,} different texts for {len(together):,} images"
        guesses.append(f"{text}: they are not used; data.label_column= takes them as classes")
        return _none(stored)
    found = {}
    first = 0
    for name, some in values.items():
        label_N = number[first : first + len(some)]
        first += len(some)
        source = reading.source if label_N.max(initial=UNLABELLED) >= 0 else ""
        found[name] = Labels(label_N, names, source, stored[name].columns)
    return found


def read_or_none(
    stored: Mapping[str, Stored], reading: Reading, guesses: list[str], used: bool
) -> dict[str, Labels]:
    """As `read`; where labels are not used (data.labels=false), none in place of the errors and
    guesses about them."""
    if used:
        return read(stored, reading, guesses)
    try:
        return read(stored, reading, [])
    except UserError:
        return _none(stored)


def _none(stored: Mapping[str, Stored]) -> dict[str, Labels]:
    return {name: no_labels(len(one.values), one.columns) for name, one in stored.items()}


def _are_captions(images: int, names: Sequence[str]) -> bool:
    return images >= CAPTIONS and 2 * len(names) > images


def _is_column(stored: Stored, of_kind: Any) -> bool:
    return isinstance(stored.values, pyarrow.ChunkedArray) and of_kind(stored.values.type)


def _is_list(kind: pyarrow.DataType) -> bool:
    return pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind)


def _plain(values: pyarrow.ChunkedArray | Sequence[Any]) -> Sequence[Any]:
    """As Python's values."""
    return values.to_pylist() if isinstance(values, pyarrow.ChunkedArray) else values


def same_numbers(classes: Sequence[Sequence[str]]) -> bool:
    """Whether a number is the same class in all lists of names: each is the beginning of the
    longest."""
    longest = max(classes, key=len, default=())
    return all(list(one) == list(longest[: len(one)]) for one in classes)


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
    if not {*map(type, values)} <= PLAIN:
        values = list(map(_hashable, values))
    # in their order, so that the first that is wrong is named
    given = [one for one in dict.fromkeys(values) if not is_missing(one)]
    if not typed and all(not isinstance(value, str) or _number(value) for value in given):
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


def _hashable(value: Any) -> Any:
    """A value that can be looked up; of what is no label (true, what JSON nests) its text."""
    return value if type(value) in PLAIN else _NoLabel(repr(value))


class _NoLabel(NamedTuple):
    text: str


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
    shown = value.text if isinstance(value, _NoLabel) else value
    text = f"{str(shown)[:100]} is neither a whole number nor the name of a class"
    raise UserError(f"{where}: {text}; data.labels=false where these are no labels")


def _numbers(stored: Stored, reading: Reading) -> Labels:
    """Of a column of integers.

    Raises:
        UserError: one does not fit into 64 bits.
    """
    column = stored.values
    assert isinstance(column, pyarrow.ChunkedArray)
    try:
        whole = pyarrow.compute.fill_null(column.cast("int64"), UNLABELLED)
    except pyarrow.ArrowInvalid:
        highest = pyarrow.compute.max(column).as_py()
        text = f"{highest} is no number of a class"
        raise UserError(f"data.label_column={reading.column}: {text}") from None
    names = list(map(composed, stored.names))
    return Labels(whole.to_numpy(), names, reading.source, stored.columns)


def _arrow_lists(stored: Stored, reading: Reading) -> Labels:
    """Of a column of lists of integers.

    Raises:
        UserError: a list holds what is no class number.
    """
    column = stored.values
    assert isinstance(column, pyarrow.ChunkedArray)
    number = pyarrow.compute.list_flatten(column).cast("int64", safe=False)
    number = pyarrow.compute.fill_null(number, UNLABELLED)
    if len(number) and pyarrow.compute.min(number).as_py() < 0:
        wrong = next(one for one in column.to_pylist() if one and not _is_right(one))
        raise UserError(f"data.label_column={reading.column}: {wrong}: {EXPECTED}")
    longest = pyarrow.compute.max(pyarrow.compute.list_value_length(column)).as_py() or 0
    return _lists(padded(column, max(1, longest)), stored, reading)


def _lists(label_NL: np.ndarray, stored: Stored, reading: Reading) -> Labels:
    """
    Raises:
        UserError: the lists are a 0 or a 1 for each class: numbers of two classes alone would
            stand there several times.
    """
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


def _is_right(one: list[Any]) -> bool:
    return all(type(number) is int and 0 <= number < LIMIT for number in one)


def from_values(values: Sequence[Any], where: str) -> np.ndarray:
    """Lists of class numbers, single ones, and None, as `padded`. A single number is a list of one,
    -1 is None.

    Raises:
        UserError: another value; it begins with `where`.
    """
    none = None, UNLABELLED
    lists = [one if isinstance(one, list) else None if one in none else [one] for one in values]
    for one, value in zip(lists, values, strict=True):
        if one is not None and not _is_right(one):
            raise UserError(f"{where}: {str(value)[:100]}: {EXPECTED}")
    longest = max((len(one) for one in lists if one is not None), default=0)
    return padded(pyarrow.array(lists, pyarrow.list_(pyarrow.int64())), max(1, longest))


def padded(lists: pyarrow.Array | pyarrow.ChunkedArray, longest: int) -> np.ndarray:
    """The lists as int64 (N, L): each image's labels followed by END; UNLABELLED for null."""
    length = pyarrow.compute.list_value_length(lists)
    length_N = pyarrow.compute.fill_null(length, 0).to_numpy(zero_copy_only=False)
    label_NL = np.full((len(lists), longest), END, np.int64)
    label_NL[np.arange(longest) < length_N[:, None]] = pyarrow.compute.list_flatten(lists)
    label_NL[pyarrow.compute.is_null(lists).to_numpy(zero_copy_only=False)] = UNLABELLED
    return label_NL
