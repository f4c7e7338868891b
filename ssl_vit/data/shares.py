"""Shares of a split: data.share, and what is cut off for testing (data.test) and held out
(data.validation). Each is drawn by a key of its own, never by a run's seed.

Legend: N images, G groups of them.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import rng
from ..errors import UserError
from ..formatting import some
from ..recipe.images import Data
from ..recipe.split_counts import held_out_count, share_count
from .base import (
    Rows,
    Source,
    Subset,
    stratified,
    stratified_rows,
)
from .label_lists import UNLABELLED

HELD_OUT_KEY = 1  # of the permutation by which a share is held out
SHARE_KEY = 3  # of that by which data.share is taken
TEST_KEY = 6  # of that by which data.test is cut off


class Cut(NamedTuple):
    """A split in two: what is kept, what is cut off it, and how that was chosen, in words."""

    kept: Source
    part: Source
    how: str


def training_share(train: Source, data: Data) -> Source:
    """The share data.share of the training images: a smaller one lies inside a larger one.

    Raises:
        UserError: data.share_seed beside images without labels or with lists of them.
    """
    if data.share == 1:
        return train
    count = share_count(data.share, len(train))
    if data.share_seed is None:
        return Subset(train, 0, count, SHARE_KEY)
    if not _one_label(train):
        reason = "takes shares of classes, and the training images have not one label each"
        raise UserError(f"data.share_seed={data.share_seed}: {reason}")
    return Rows(train, stratified_rows(train, rng.key(SHARE_KEY, data.share_seed))[:count])


def _one_label(source: Source) -> bool:
    """Whether images have one label each; some may have none."""
    return source.lists is None and source.label_range[1] >= 0


def cut_test(whole: Source, data: Data) -> Cut | None:
    """The test share cut off all training images: by group where data.group names them, else by
    class where they have one label each; None where data.test names a split.

    Raises:
        UserError: there are fewer than two images or groups.
    """
    if isinstance(data.test, str):
        return None
    count = held_out_count(data.test, _at_least_two(whole, data))
    if data.group is None and _one_label(whole):
        rows_N = stratified_rows(whole, rng.key(TEST_KEY))
        how = "of each class alike" if data.labels else ""
        return Cut(Rows(whole, rows_N[count:]), Rows(whole, rows_N[:count]), how)
    return _cut(whole, count, TEST_KEY, data)


def cut_held_out(train: Source, data: Data) -> Cut:
    """The share data.validation, by default 1%, cut off the training images.

    Raises:
        UserError: as `cut_test`.
    """
    share = data.validation if isinstance(data.validation, float) else None
    count = held_out_count(share, _at_least_two(train, data))
    return _cut(train, count, HELD_OUT_KEY, data)


def _at_least_two(train: Source, data: Data) -> int:
    if len(train) < 2:
        raise UserError(f"data.train={data.train}: {len(train)} images; expected at least 2")
    return len(train)


def _cut(whole: Source, count: int, key: int, data: Data) -> Cut:
    if data.group is not None:
        return _cut_groups(whole, count, key, data)
    return Cut(Subset(whole, count, len(whole), key), Subset(whole, 0, count, key), "")


def _cut_groups(whole: Source, count: int, key: int, data: Data) -> Cut:
    """Whole groups, about `count` images, in an order in which each class has as many groups as it
    has there; a group's class is its most frequent label.

    Raises:
        UserError: there is one group alone, a class would have no images left to train on, or all
            groups are too large (`_fitting`).
    """
    rows_N = np.arange(len(whole))
    number_G, group_N, size_G = np.unique(
        whole.group_of(rows_N), return_inverse=True, return_counts=True
    )
    if len(number_G) < 2:
        text = f"all {len(whole):,} images are of one group; expected at least 2 groups"
        raise UserError(f"data.group={data.group}: {text}")
    label_N = np.full(len(whole), UNLABELLED)
    if _one_label(whole):
        label_N = whole.label_of(rows_N)
    order_G = stratified(_most_frequent(label_N, group_N), number_G, rng.key(key))
    order_G = order_G[_fitting(size_G[order_G], count, key, data)]
    images_G = np.cumsum(size_G[order_G])
    last = min(len(order_G), len(number_G) - 1)  # one group stays
    taken = 1 + int(np.abs(images_G[:last] - count).argmin())
    inside_N = np.isin(group_N, order_G[:taken])
    if data.labels:
        _check_classes(whole, label_N, inside_N, data)
    rows_N = rows_N[np.argsort(rng.bits(rng.key(key), rows_N), kind="stable")]
    inside_N = inside_N[rows_N]
    how = f"{taken:,} of {len(number_G):,} groups of data.group={data.group}"
    return Cut(Rows(whole, rows_N[~inside_N]), Rows(whole, rows_N[inside_N]), how)


def _fitting(size_G: np.ndarray, count: int, key: int, data: Data) -> np.ndarray:
    """Places of the groups that are no more than twice the images that are wanted: with others a
    share could be most of the data. Of the default share, which nobody has asked for, where there
    are none, the first of the smallest groups.

    Raises:
        UserError: there are none.
    """
    fits = np.flatnonzero(size_G <= 2 * count)
    if len(fits):
        return fits
    name = "test" if key == TEST_KEY else "validation"
    share = getattr(data, name)
    if share is None:
        return np.array([size_G.argmin()])
    text = f"the smallest group of data.group={data.group} has {size_G.min():,} images"
    raise UserError(
        f"data.{name}={share:g}: {text}, more than twice the {count:,} wanted; expected a larger"
        " share or smaller groups"
    )


def _most_frequent(label_N: np.ndarray, group_N: np.ndarray) -> np.ndarray:
    """The most frequent label of each group (G,); of equals the lowest."""
    pair_M2, count_M = np.unique(np.stack([group_N, label_N], 1), axis=0, return_counts=True)
    order_M = np.lexsort((pair_M2[:, 1], -count_M, pair_M2[:, 0]))
    _, first_G = np.unique(pair_M2[order_M, 0], return_index=True)
    return pair_M2[order_M[first_G], 1]


def _check_classes(whole: Source, label_N: np.ndarray, inside_N: np.ndarray, data: Data) -> None:
    """Check that a class with images on the side that is cut off has others to learn from.

    Raises:
        UserError: one has none; its images are of too few groups.
    """
    gone = sorted({*label_N[inside_N].tolist()} - {*label_N[~inside_N].tolist()} - {UNLABELLED})
    if not gone:
        return
    names = [whole.classes[label] if whole.classes else str(label) for label in gone]
    text = f"no training images would be left of {some(names)}, whose images are of too few"
    choices = "expected smaller groups, or data.labels=false where these are no classes"
    raise UserError(f"data.group={data.group}: {text} groups; {choices}")


def group_numbers(values: Sequence[Any]) -> np.ndarray:
    """The group (N,) of each image by a value of it. Images without a value are groups of one."""
    number = {text: i for i, text in enumerate(sorted({str(one) for one in values if _given(one)}))}
    alone = iter(range(len(number), len(number) + len(values)))
    return np.array([number[str(one)] if _given(one) else next(alone) for one in values], np.int64)


def _given(value: Any) -> bool:
    return value is not None and value != ""
