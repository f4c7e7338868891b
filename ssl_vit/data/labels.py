"""Read the stored labels of any container as int64.

`read` takes all kinds of labels: named classes, whole numbers, texts, lists of class numbers, and
missing labels.

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
from ..formatting import format_image_count

UNLABELLED = -1  # fills the whole row of an image without a list
END = -2  # after the last label of a list
LIMIT = 2**63  # class numbers are below this number
# A column of texts holds captions and not classes if there are at least this many images, and more
# than half as many different texts. If data.label_column names the column, texts are classes
CAPTIONS = 100
LABEL_TYPES = {str, int, float, type(None)}  # of stored values; null and NaN mean no label
# Usual names of a column of labels, in the order in which columns are tried
LABEL_NAMES = ("label", "labels", "class", "target", "fine_label", "cls")
# Texts in a CSV column of numbers that mean no label
MISSING = {"nan", "na", "n/a", "null", "none"}
WHOLE = re.compile(r" *[-+]?[0-9]{1,4000} *")  # not 1_000, which Python reads as 1000
FRACTION = re.compile(r" *[-+]?([0-9]+\.[0-9]*|\.?[0-9]+)(e[-+]?[0-9]+)? *", re.IGNORECASE)


class LabelLists(NamedTuple):
    """Column and length of the lists of labels in a split.

    Attributes:
        column: Name of the column with the lists.
        longest: Number of labels in the longest list, at least 1.
        empty: Number of images with an empty list (in none of the classes).
    """

    column: str
    longest: int = 1
    empty: int = 0

    def describe(self) -> str:
        """Describe the length of the lists, such as ", up to 3 labels per image"."""
        text = f", up to {self.longest} labels per image"
        if self.empty:
            text += f", {format_image_count(self.empty)} with an empty list"
        return text


@dataclass(frozen=True, eq=False)
class Labels:
    """Labels of a split.

    Attributes:
        label_N: One label for each image, integers (N,), or lists of labels (N, L) from
            `pad_lists`.
        classes: Names of the classes, starting with label 0. Empty if classes have no names.
        source: A description of where the labels come from. Empty if there are no labels.
        columns: A description of the table's columns, for the error that there are no labels.
        lists: The length of the lists. None if each image has one label.
    """

    label_N: np.ndarray
    classes: list[str]
    source: str = ""
    columns: str = ""
    lists: LabelLists | None = None

    def of(self, rows: np.ndarray) -> np.ndarray:
        """Return the labels of some rows, int64 (B,), or lists of labels (B, L)."""
        return self.label_N[rows].astype(np.int64, copy=False)

    @cached_property
    def lowest_and_highest(self) -> tuple[int, int]:
        """Return the lowest and the highest label of all images.

        An image without a label has the label -1. A split without images has -1 and -1.
        """
        # lists of labels are padded with END, which is no label
        labels = self.label_N[self.label_N != END] if self.lists else self.label_N
        if not len(labels):
            return UNLABELLED, UNLABELLED
        return int(labels.min()), int(labels.max())


def no_labels(count: int, columns: str = "") -> Labels:
    """Return the Labels of `count` images that have no label."""
    return Labels(np.full(count, UNLABELLED, np.int8), [], "", columns)


class StoredLabels(NamedTuple):
    """Labels of a split, as the container stores them.

    Attributes:
        values: One value for each image, of a type that JSON, CSV or Arrow has.
        names: Class names for whole numbers, starting with 0. Empty if the container has no names.
        columns: See Labels.columns.
    """

    values: Sequence[Any]
    names: Sequence[str] = ()
    columns: str = ""


class LabelRules(NamedTuple):
    """Rules by which labels are read.

    Attributes:
        column: Name of the column with the labels, for errors.
        where: The folder or data set, for errors.
        source: See Labels.source.
        asked: Whether data.label_column names the column, so that lists and captions are used, too.
        typed: Whether the text "7" is a class name, as in a column of texts or a folder's name.
            False for CSV, where numbers are stored as texts.
        captions: Whether texts may be captions, which are no classes.
    """

    column: str
    where: str
    source: str
    asked: bool = False
    typed: bool = False
    captions: bool = True

    @property
    def prefix(self) -> str:
        """Return the beginning of errors: "data.label_column=label: data.path=photos"."""
        return f"data.label_column={self.column}: {self.where}"


def read(
    stored: Mapping[str, StoredLabels], rules: LabelRules, guesses: list[str], used: bool = True
) -> dict[str, Labels]:
    """Turn the stored labels of each split into class numbers.

    A text is the same class in all splits. Classes are sorted by name, or by number if all names
    are whole numbers.

    Args:
        stored: The stored labels of each split.
        rules: The rules by which labels are read.
        guesses: A list to which warnings about guesses are added.
        used: The value of data.labels. If labels are not used, there are no warnings and no errors.

    Returns:
        {split: labels}. If labels are not used and cannot be read, no image has a label.

    Raises:
        UserError: Labels are used, and a value is neither a label nor missing.
    """
    try:
        return _read(stored, rules, guesses if used else [])
    except UserError:
        if used:
            raise
        return _without_labels(stored)  # unused labels may be wrong


def _read(
    stored: Mapping[str, StoredLabels], rules: LabelRules, guesses: list[str]
) -> dict[str, Labels]:
    """Read labels like `read`, but raise errors even if labels are not used."""
    all_values = [value for column in stored.values() for value in column.values]
    num_lists = sum(isinstance(value, list) for value in all_values)
    if num_lists and rules.asked:
        return {name: _read_lists(column, rules) for name, column in stored.items()}
    if num_lists:
        guesses.append(
            f"labels are not used, because the labels of {format_image_count(num_lists)} are lists."
            f" To use the lists, set data.label_column={rules.column}"
        )
        return _without_labels(stored)
    texts = [label for label in all_values if isinstance(label, str) and label]
    list_text = next((label for label in texts if label.startswith("[")), None)
    if list_text is not None:
        guesses.append(
            f"the text {list_text[:40]} is used as the name of a class. To store lists of labels,"
            " use .jsonl, .json or .parquet"
        )
    # If some labels are numbers and others are texts, replace the numbers by class names. All
    # splits then share one list of names, and no number means two classes
    is_mixed = rules.typed and bool(texts) and any(type(label) is int for label in all_values)
    if is_mixed:
        all_values = [
            _name(value, column.names) for column in stored.values() for value in column.values
        ]
    all_labels, names = number_classes(all_values, rules.prefix, rules.typed)
    has_many_texts = len(all_values) >= CAPTIONS and 2 * len(names) > len(all_values)
    may_be_captions = rules.captions and not rules.asked and not is_mixed
    if has_many_texts and may_be_captions:
        guesses.append(
            f"labels are not used, because {format_image_count(len(all_values))} have"
            f" {len(names):,} different texts as labels. To use texts as classes, name the column"
            " with data.label_column="
        )
        return _without_labels(stored)
    labels_of = {}
    first = 0
    for split, column in stored.items():
        label_N = all_labels[first : first + len(column.values)]
        first += len(column.values)
        # a split without a label has the source ""
        source = rules.source if label_N.max(initial=UNLABELLED) >= 0 else ""
        classes = names or list(map(compose_unicode, column.names))
        labels_of[split] = Labels(label_N, classes, source, column.columns)
    return labels_of


def _name(value: Any, names: Sequence[str]) -> Any:
    """Replace a class number by the class name. Values of other types are returned unchanged.

    With the names ["cat", "dog"], 1 becomes "dog". A class without a name gets the number as name:
    2 becomes "2". A negative number becomes None.

    Args:
        value: A stored label.
        names: Names of the classes, starting with number 0.
    """
    if type(value) is not int:
        return value
    if value < 0:
        return None
    return names[value] if value < len(names) else str(value)


def _without_labels(stored: Mapping[str, StoredLabels]) -> dict[str, Labels]:
    """Return the Labels of splits whose labels are not used."""
    return {name: no_labels(len(column.values), column.columns) for name, column in stored.items()}


def same_numbers(classes: Sequence[Sequence[str]]) -> bool:
    """Return whether every class number has the same name in all lists of class names.

    Each list must be the beginning of the longest list. For example, ["cat"] and ["cat", "dog"]
    have the same numbers, but ["dog"] and ["cat", "dog"] do not.

    Args:
        classes: Lists of class names, such as one list for each split.
    """
    longest = max(classes, key=len, default=())
    return all(list(names) == list(longest[: len(names)]) for names in classes)


def usual_columns(columns: Iterable[str]) -> list[str]:
    """Return the columns named as in LABEL_NAMES, in the order of LABEL_NAMES.

    Names may have capital letters. For example, ["Class", "id", "Label", "label"] gives
    ["label", "Label", "Class"].
    """
    label_columns = [name for name in columns if name.lower() in LABEL_NAMES]

    def rank(name: str) -> tuple[int, bool]:
        return LABEL_NAMES.index(name.lower()), name != name.lower()

    return sorted(label_columns, key=rank)


def compose_unicode(text: str) -> str:
    """Return a text in composed Unicode (NFC), because macOS decomposes the names of files."""
    return unicodedata.normalize("NFC", text)


def sorted_names(names: set[str]) -> list[str]:
    """Sort class names, by number if all names are whole numbers: ["2", "10"]."""
    if names and all(map(WHOLE.fullmatch, names)):
        return sorted(names, key=lambda name: (int(name), name))
    return sorted(names)


def number_classes(
    values: Sequence[Any], where: str, texts_are_names: bool = False
) -> tuple[np.ndarray, list[str]]:
    """Turn stored labels into class numbers.

    If all values are whole numbers, they are the class numbers: [3, 0] stays [3, 0]. Texts such as
    "7" count as numbers, unless `texts_are_names`. If there is any other text, all values are class
    names, which are numbered in sorted order: ["dog", "cat", None] gives [1, 0, -1] and the names
    ["cat", "dog"].

    Args:
        values: One value for each image.
        where: The beginning of errors, such as "data.label_column=label: data.path=photos".
        texts_are_names: Whether the text "7" is the name of a class, and not the number 7.

    Returns:
        The class number of each image, int64 (N,), with -1 for no label (null, an empty text, NaN),
        and the class names, or [] if the values are class numbers.

    Raises:
        UserError: A value is neither a whole number nor a text, or does not fit into 64 bits.
    """
    if not {*map(type, values)} <= LABEL_TYPES:  # such as true, or nested JSON
        wrong_value = next(value for value in values if type(value) not in LABEL_TYPES)
        raise _no_label(wrong_value, where)
    # in the order of the images, so that an error names the first wrong value
    distinct = [value for value in dict.fromkeys(values) if not is_missing(value)]
    texts = [value for value in distinct if isinstance(value, str)]
    names: list[str] = []
    if texts_are_names:
        are_numbers = not texts
    else:
        are_numbers = all(map(_is_number, texts))
    if are_numbers:
        numbers = [value for value in distinct if str(value).strip().lower() not in MISSING]
        label_of = {value: _parse_whole(value, where) for value in numbers}
        largest = max(label_of.values(), key=abs, default=0)
        if abs(largest) >= LIMIT:
            raise UserError(f"{where} holds {largest}. Use class numbers below 2^63.")
    else:
        name_of = {}
        for value in distinct:
            # all values are class names: the number 7 is the class "7"
            name = value if isinstance(value, str) else str(_parse_whole(value, where))
            name_of[value] = compose_unicode(name)
        names = sorted_names({*name_of.values()})
        number_of = {name: number for number, name in enumerate(names)}
        label_of = {value: number_of[name] for value, name in name_of.items()}
    return np.array([label_of.get(value, UNLABELLED) for value in values], np.int64), names


def is_missing(value: Any) -> bool:
    """Return whether a stored value means "no label": null, an empty text or NaN."""
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def _is_number(text: str) -> bool:
    """Return whether a text in CSV is a number ("7", "7.0") or a missing number ("nan", "null")."""
    match = WHOLE.fullmatch(text) or FRACTION.fullmatch(text)
    return match is not None or text.strip().lower() in MISSING


def _parse_whole(value: Any, where: str) -> int:
    """Return a value such as 3, 3.0, "3" or "3.0" as a whole number.

    Args:
        value: A stored label. A text must be a number (`_is_number`).
        where: The beginning of the error, such as "data.label_column=label: data.path=photos".

    Raises:
        UserError: The value is no whole number.
    """
    # whole numbers are not read as float, because float rounds above 2^53
    if type(value) is int or (isinstance(value, str) and WHOLE.fullmatch(value)):
        return int(value)
    if isinstance(value, float | str):
        number = float(value)
        if math.isfinite(number) and number.is_integer():
            return int(number)
    raise _no_label(value, where)


def _no_label(value: Any, where: str) -> UserError:
    return UserError(
        f"{where} holds {str(value)[:100]}, which is neither a whole number nor the name of a"
        " class. If the values are no labels, use data.labels=false."
    )


def _read_lists(stored: StoredLabels, rules: LabelRules) -> Labels:
    """Read the labels of a split as lists of class numbers.

    Args:
        stored: The stored labels of the split.
        rules: The name of the column, and the description of where the labels come from.

    Raises:
        UserError: A value is no list of class numbers, or the lists seem to be multi-hot: a list
            has more than two numbers, and all numbers are 0 or 1.
    """
    label_NL = pad_lists(stored.values, rules.prefix)
    num_empty = int((label_NL[:, 0] == END).sum())
    lengths = (label_NL >= 0).sum(axis=1)
    # at least 1: even if all lists are empty, `label_NL` has one column, filled with END
    longest = int(lengths.max(initial=1))
    highest = label_NL.max(initial=UNLABELLED)
    # class numbers do not repeat in a list, so more than two zeros and ones must be multi-hot
    if longest > 2 and highest in (0, 1):
        raise UserError(
            f"data.label_column={rules.column}: the lists hold up to {longest} zeros and ones."
            " List the numbers of an image's classes, such as [0, 3] instead of [1, 0, 0, 1]."
        )
    if highest < 2**31:
        label_NL = label_NL.astype(np.int32)  # labels stay in memory
    lists = LabelLists(rules.column, longest, num_empty)
    names = list(map(compose_unicode, stored.names))
    return Labels(label_NL, names, rules.source, stored.columns, lists)


def pad_lists(values: Sequence[Any], where: str) -> np.ndarray:
    """Return lists of class numbers as one array, int64 (N, L).

    Each row has the labels of an image, padded with END (-2). For an image without a list (None or
    -1), the row is filled with UNLABELLED (-1). A single number counts as a list of one label. For
    example, [[3, 5], 7, [], None] gives [[3, 5], [7, -2], [-2, -2], [-1, -1]].

    Args:
        values: A list, a number or None for each image.
        where: The beginning of errors, such as "data.label_column=label: data.path=photos".

    Raises:
        UserError: A value is neither a list of class numbers, nor a class number, -1 or None.
    """
    lists: list[Any] = []
    for value in values:
        if value in (None, UNLABELLED):
            lists.append(None)
        else:
            lists.append(value if isinstance(value, list) else [value])
    longest = max((len(labels) for labels in lists if labels is not None), default=0)
    label_NL = np.full((len(lists), max(1, longest)), END, np.int64)
    for row, labels in enumerate(lists):
        if labels is None:
            label_NL[row] = UNLABELLED
        elif all(type(number) is int and 0 <= number < LIMIT for number in labels):
            label_NL[row, : len(labels)] = labels
        else:
            raise UserError(
                f"{where} holds {str(values[row])[:100]}. Use lists of class numbers, with 0 for"
                " the first class."
            )
    return label_NL
