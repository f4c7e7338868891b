"""Lists of class numbers: several labels an image.

Legend: N images, L the longest list.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import datasets
import numpy as np
import pyarrow
import pyarrow.compute

from ..errors import UserError

UNLABELLED = -1  # in the whole row of an image without a list
END = -2  # after the last label of a list
EXPECTED = "expected numbers of classes, from 0"


class LabelLists(NamedTuple):
    """What a split's lists are.

    Attributes:
        column: their name.
        longest: labels of the longest list, at least 1.
        empty: images whose list is empty: they have none of the classes.
        low: the lowest label; -1 where an image has no list, or no list a label.
        high: the highest label; -1 where no list has one.
    """

    column: str
    longest: int = 1
    empty: int = 0
    low: int = -1
    high: int = -1

    def describe(self) -> str:
        """How long they are, after the number of images."""
        empty = f", {self.empty:,} images of no class" if self.empty else ""
        return f", up to {self.longest} labels an image{empty}"


def check_numbers(lists: LabelLists) -> LabelLists:
    """The lists of a whole split, as they are.

    Raises:
        UserError: they are a 0 or a 1 for each class: numbers of two classes alone would stand
            there several times.
    """
    if lists.longest > 2 and lists.high in (0, 1):
        raise UserError(
            f"data.label_column={lists.column}: lists of up to {lists.longest} zeros and ones;"
            " expected the numbers of an image's classes, [0, 3] in place of [1, 0, 0, 1]"
        )
    return lists


def holds_lists(feature: Any) -> bool:
    """Whether a column of `datasets` holds lists of class numbers."""
    if not isinstance(feature, datasets.List | datasets.LargeList):
        return False
    inner = feature.feature
    numbers = isinstance(inner, datasets.Value) and inner.dtype.removeprefix("u").startswith("int")
    return numbers or isinstance(inner, datasets.ClassLabel)


def together(column: str, parts: Sequence[LabelLists]) -> LabelLists:
    """What the lists of all parts of a split are.

    Raises:
        UserError: as `check_numbers`.
    """
    if not parts:
        return LabelLists(column)
    whole = LabelLists(
        column,
        max(one.longest for one in parts),
        sum(one.empty for one in parts),
        min(one.low for one in parts),
        max(one.high for one in parts),
    )
    return check_numbers(whole)


def measure(column: str, lists: pyarrow.ChunkedArray) -> LabelLists:
    """What these lists are.

    Raises:
        UserError: a list holds what is no class number.
    """
    length_N = pyarrow.compute.list_value_length(lists)
    number = pyarrow.compute.list_flatten(lists).cast("int64", safe=False)
    number = pyarrow.compute.fill_null(number, -1)
    found = pyarrow.compute.min_max(number).as_py()
    lowest = -1 if found["min"] is None else found["min"]
    if len(number) and lowest < 0:
        row = next(i for i, one in enumerate(lists.to_pylist()) if one and not _is_right(one))
        raise UserError(f"data.label_column={column}: {lists[row].as_py()}: {EXPECTED}")
    return LabelLists(
        column,
        max(1, pyarrow.compute.max(length_N).as_py() or 0),
        pyarrow.compute.sum(pyarrow.compute.equal(length_N, 0)).as_py() or 0,
        -1 if length_N.null_count else lowest,
        -1 if found["max"] is None else found["max"],
    )


def _is_right(one: list[Any]) -> bool:
    return all(type(number) is int and 0 <= number < 2**63 for number in one)


def from_values(values: Sequence[Any]) -> np.ndarray:
    """Lists of class numbers, single ones, and None, as `padded`. A single number is a list of one,
    -1 is None.

    Raises:
        ValueError: another value.
    """
    none = None, UNLABELLED
    lists = [one if isinstance(one, list) else None if one in none else [one] for one in values]
    for one in lists:
        if one is not None and not _is_right(one):
            raise ValueError(f"{str(one)[:100]}: {EXPECTED}")
    longest = max((len(one) for one in lists if one is not None), default=0)
    return padded(pyarrow.array(lists, pyarrow.list_(pyarrow.int64())), max(1, longest))


def measure_padded(column: str, label_N: np.ndarray) -> LabelLists:
    """What padded lists (N, L), or single labels (N,), are.

    Raises:
        UserError: a single label is below -1.
    """
    if label_N.ndim == 1 and label_N.min() < UNLABELLED:
        raise UserError(f"data.label_column={column}: {label_N.min()}: {EXPECTED}")
    label_NL = label_N.reshape(len(label_N), -1)
    known = label_NL[label_NL != END]
    return LabelLists(
        column,
        int((label_NL >= 0).sum(axis=1).max(initial=1)),
        int((label_NL[:, 0] == END).sum()),
        int(known.min()) if len(known) else -1,
        int(known.max()) if len(known) else -1,
    )


def repadded(label_N: np.ndarray, longest: int) -> np.ndarray:
    """Padded lists (N, any), or single labels (N,), as (N, longest). No list has more labels."""
    label_NL = label_N.reshape(len(label_N), -1)[:, :longest]
    more = np.where(label_NL[:, :1] == UNLABELLED, UNLABELLED, END)
    return np.hstack([label_NL, np.repeat(more, longest - label_NL.shape[1], axis=1)])


def padded(lists: pyarrow.Array | pyarrow.ChunkedArray, longest: int) -> np.ndarray:
    """The lists as int64 (N, L): each image's labels followed by END; UNLABELLED for null."""
    length = pyarrow.compute.list_value_length(lists)
    length_N = pyarrow.compute.fill_null(length, 0).to_numpy(zero_copy_only=False)
    label_NL = np.full((len(lists), longest), END, np.int64)
    label_NL[np.arange(longest) < length_N[:, None]] = pyarrow.compute.list_flatten(lists)
    label_NL[pyarrow.compute.is_null(lists).to_numpy(zero_copy_only=False)] = UNLABELLED
    return label_NL
