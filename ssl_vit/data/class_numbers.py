"""How many classes the labels of a run's splits have."""

from collections.abc import Mapping

import numpy as np

from ..errors import UserError
from ..recipe import declaration
from ..recipe.schema import Data
from .source import Source
from .sources import Splits
from .tables import same_numbers

# Counted by the highest label alone. Above, at least half of the numbers must occur: one label of
# 999,999,999 would make a head of a billion classes.
MOST_BY_HIGHEST = 2**16


def num_classes(splits: Splits, data: Data, objective: str) -> int:
    """The number of classes, for an objective that uses labels; 0 for others. A stream, of which
    the first images alone were seen, refuses labels beyond it from then on.

    Raises:
        UserError: as `count_classes`.
    """
    if not declaration.objective(objective).labels:
        return 0
    classes = count_classes(splits, data, objective)
    if splits.stream:
        splits.stream.classes = classes
    return classes


def _check_same_classes(named: Mapping[str, Source], data: Data) -> None:
    """Check that a label's number is the same class in all splits that name their classes.

    Raises:
        UserError: it is not.
    """
    lists = {split: source.classes for split, source in named.items() if source.classes}
    if same_numbers(list(lists.values())):
        return
    parts = [f"{split}: {', '.join(classes[:3])} ..." for split, classes in lists.items()]
    raise UserError(f"data={data.name}: its splits name different classes; {'; '.join(parts)}")


def count_classes(splits: Splits, data: Data, objective: str) -> int:
    """The number of classes: data.classes, else the number of their names, else of the labels.

    Raises:
        UserError: a split has no labels, or one is out of range; the message names `objective`. Or
            as `_count`.
    """
    named = {"train": splits.train, "validation": splits.validation}
    if splits.test:
        named["test"] = splits.test
    _check_same_classes(named, data)
    for split, source in named.items():
        low, high = source.label_range
        if high < 0:
            raise UserError(
                f"objective={objective}: data={data.name} has no labels in its {split} split"
                f"{source.columns}; expected a folder for each class, a column of labels, or other"
                " images: data=, data.path=, data.hub="
            )
        known = data.classes or len(source.classes) or high + 1
        if low < -1 or high >= known:
            raise UserError(
                f"data={data.name}: labels from {low} to {high} in its {split} split, "
                f"with {known} classes"
            )
    classes = data.classes or len(splits.train.classes)
    return classes or _count(named, data)


def _count(named: Mapping[str, Source], data: Data) -> int:
    """The highest label of these splits, and one.

    Raises:
        UserError: these are more than MOST_BY_HIGHEST classes, of which less than half occur.
    """
    split, source = max(named.items(), key=lambda one: one[1].label_range[1])
    classes = source.label_range[1] + 1
    if classes > MOST_BY_HIGHEST:
        found = len(set().union(*map(_distinct, named.values())))
        if 2 * found < classes:
            expected = "expected numbers from 0 without such gaps, or data.classes="
            raise UserError(
                f"data={data.name}: labels up to {classes - 1} in its {split} split, but "
                f"{found:,} different ones in all; {expected}"
            )
    return classes


def _distinct(source: Source) -> set[int]:
    """The labels of a source; of a share, those of the whole, as its label_range."""
    label_N = np.unique(source.labels.label_N)
    return set(label_N[label_N >= 0].tolist())
