"""How many classes there are where labels are numbers without names."""

from collections.abc import Mapping

import numpy as np

from ..config.schema import Data
from ..errors import UserError
from .base import Source, labels_of

# Counted by the highest label alone. Above, at least half of the numbers must occur: one label of
# 999,999,999 would make a head of a billion classes.
MOST_BY_HIGHEST = 2**16


def count(named: Mapping[str, Source], data: Data) -> int:
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
    if hasattr(source, "whole"):
        return _distinct(source.whole)
    label_N = np.unique(labels_of(source, np.arange(len(source))))
    return set(label_N[label_N >= 0].tolist())
