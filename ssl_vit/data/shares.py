"""Take shares of a split: data.share, and the images cut off by data.test and data.validation.

Rows are computed once, with a fixed key for each share, and never from a run's seed.

Legend: N images, G groups of images.
"""

import hashlib
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .. import rng
from ..errors import UserError
from ..formatting import count_of_images, some
from ..recipe.images import Data
from ..recipe.split_counts import held_out_count, share_count
from .files import FOLDER, FileStore
from .labels import UNLABELLED, composed
from .layout import split_of_folder
from .source import Source, labelled_images

# Keys of the permutations by which a share is held out, data.share is taken, data.test is cut off
HELD_OUT_KEY = 1
SHARE_KEY = 3
TEST_KEY = 6


class Cut(NamedTuple):
    """Split in two parts: the kept images, the images cut off, and how the images were chosen."""

    kept: Source
    part: Source
    how: str = ""


def permuted(whole: Source, count: int, key: int) -> np.ndarray:
    """Return the first `count` rows of a permutation of all rows."""
    return rng.permute(np.arange(count), len(whole), rng.key(key))


def training_share(train: Source, data: Data) -> Source:
    """Return the share data.share of the training images. Smaller shares lie inside larger shares.

    Raises:
        UserError: data.share_seed is set, and images have no labels or lists of labels.
    """
    if data.share == 1:
        return train
    count = share_count(data.share, len(train))
    if data.share_seed is None:
        return train.subset(permuted(train, count, SHARE_KEY))
    if not _one_label(train):
        raise UserError(
            f"data.share_seed={data.share_seed}: a share of each class needs a single label per"
            " training image. Leave out data.share_seed=."
        )
    return train.subset(stratified_rows(train, rng.key(SHARE_KEY, data.share_seed))[:count])


def _one_label(source: Source) -> bool:
    """Return whether images have at most one label each, and some image has a label."""
    return source.labels.lists is None and source.labels.lowest_and_highest[1] >= 0


def cut_test(whole: Source, data: Data) -> Cut | None:
    """Cut the test share off all training images, or return None if data.test names a split.

    Images of a folder are chosen by name, so that the folder may grow. Other images are chosen by
    group if data.group is set, else by class if they have one label each.

    Raises:
        UserError: there are fewer than two images or groups, or all are on one side.
    """
    if isinstance(data.test, str):
        return None
    count = held_out_count(data.test, _at_least_two(whole, data))
    if isinstance(whole.store, FileStore):
        return _cut_by_name(whole, whole.store, data.test, data)
    if data.group is None and _one_label(whole):
        rows_N = stratified_rows(whole, rng.key(TEST_KEY))
        how = "the same share of each class" if data.labels else ""
        return Cut(whole.subset(rows_N[count:]), whole.subset(rows_N[:count]), how)
    return _cut(whole, count, TEST_KEY, data)


def _cut_by_name(whole: Source, files: FileStore, share: float, data: Data) -> Cut:
    """Cut off the images, or groups, with a hash of the name below the share.

    Files that are added later move none of the present files to the other side.

    Raises:
        UserError: all images are on one side, or as `_check_classes`.
    """
    names = _without_split(list(files.names()))
    how = "by name"
    if whole.groups is not None:
        number_N = whole.group_of(np.arange(len(whole)))
        known = whole.groups.names
        if data.group == FOLDER:
            known = _without_split([f"{name}/" for name in known])
        names = [
            composed(known[number]) if number < len(known) else name
            for number, name in zip(number_N.tolist(), names, strict=True)
        ]
        how = f"by name of data.group={data.group}"
    limit = share * 2.0**64
    inside = {name: _hash(name) < limit for name in dict.fromkeys(names)}
    inside_N = np.array([inside[name] for name in names])
    if inside_N.all() or not inside_N.any():
        side = "testing" if inside_N.any() else "training"
        raise UserError(
            f"data.test={share:g}: file names or groups decide which images are tested, and all"
            f" {len(names):,} images of {data.location} would be used for {side}. Use another"
            " share, or more images."
        )
    if whole.groups is not None and data.labels and _one_label(whole):
        _check_classes(whole, whole.label_of(np.arange(len(whole))), inside_N, data)
    return Cut(whole.subset(np.flatnonzero(~inside_N)), whole.subset(np.flatnonzero(inside_N)), how)


def _without_split(names: Sequence[str]) -> list[str]:
    """Return names of files without the folder that names their split, in composed Unicode.

    The result is the same whether the folder of the split is given or the folder around it, and in
    a copy of the folder.
    """
    parts = [composed(name).split("/") for name in names]
    depth = min((len(path) for path in parts), default=1) - 1
    level = next((i for i in range(depth) if all(split_of_folder(path[i]) for path in parts)), None)
    if level is None:
        return ["/".join(path) for path in parts]
    return ["/".join(path[:level] + path[level + 1 :]) for path in parts]


def _hash(name: str) -> int:
    """Return a 64-bit hash of a name."""
    encoded = name.encode(errors="surrogateescape")
    return int.from_bytes(hashlib.blake2b(encoded, digest_size=8).digest(), "big")


def cut_held_out(train: Source, data: Data) -> Cut:
    """Cut the share data.validation, by default 1%, off the training images.

    With data.validation_from=labelled only labelled images are held out. An image without a label
    is kept for training unless its group is held out.

    Raises:
        UserError: as `cut_test`.
    """
    share = data.validation if isinstance(data.validation, float) else None
    whole = labelled_images(train) if data.validation_from == "labelled" else train
    cut = _cut(whole, held_out_count(share, _at_least_two(whole, data)), HELD_OUT_KEY, data)
    if whole is train:
        return cut
    rows_N, taken_N = np.arange(len(train)), np.isin(train.store_rows(), cut.part.store_rows())
    if data.group is not None:
        groups = cut.part.group_of(np.arange(len(cut.part)))
        taken_N = np.isin(train.group_of(rows_N), groups)
    how = ", ".join(filter(None, [cut.how, "only images with a label"]))
    return Cut(train.subset(rows_N[~taken_N]), cut.part, how)


def _at_least_two(train: Source, data: Data) -> int:
    if len(train) < 2:
        raise UserError(
            f"data.train={data.train}: {count_of_images(len(train))} cannot be divided. Give at"
            " least 2 images."
        )
    return len(train)


def _cut(whole: Source, count: int, key: int, data: Data) -> Cut:
    if data.group is not None:
        return _cut_groups(whole, count, key, data)
    rows_N = permuted(whole, len(whole), key)
    return Cut(whole.subset(rows_N[count:]), whole.subset(rows_N[:count]))


def _cut_groups(whole: Source, count: int, key: int, data: Data) -> Cut:
    """Cut off whole groups with about `count` images.

    Groups are taken in an order in which each class appears in proportion to its number of groups.
    A group's class is its most frequent label.

    Raises:
        UserError: there is only one group, a class would have no images left to train on, or all
            groups are too large (`_fitting`).
    """
    rows_N = np.arange(len(whole))
    number_G, group_N, size_G = np.unique(
        whole.group_of(rows_N), return_inverse=True, return_counts=True
    )
    if len(number_G) < 2:
        raise UserError(
            f"data.group={data.group}: all {len(whole):,} images belong to a single group. Use"
            " another column, or leave out data.group=."
        )
    label_N = np.full(len(whole), UNLABELLED)
    if _one_label(whole):
        label_N = whole.label_of(rows_N)
    order_G = stratified(_most_frequent(label_N, group_N), number_G, rng.key(key))
    order_G = order_G[_fitting(size_G[order_G], count, key, data)]
    images_G = np.cumsum(size_G[order_G])
    last = min(len(order_G), len(number_G) - 1)  # one group is kept
    taken = 1 + int(np.abs(images_G[:last] - count).argmin())
    inside_N = np.isin(group_N, order_G[:taken])
    if data.labels:
        _check_classes(whole, label_N, inside_N, data)
    rows_N = rows_N[np.argsort(rng.bits(rng.key(key), rows_N), kind="stable")]
    inside_N = inside_N[rows_N]
    how = f"{taken:,} of {len(number_G):,} groups of data.group={data.group}"
    return Cut(whole.subset(rows_N[~inside_N]), whole.subset(rows_N[inside_N]), how)


def _fitting(size_G: np.ndarray, count: int, key: int, data: Data) -> np.ndarray:
    """Return the places of groups with at most twice the wanted number of images.

    With a larger group, a share could be most of the data. If no group fits the default share,
    which the user did not choose, return the first of the smallest groups.

    Raises:
        UserError: no group fits a share that the user chose.
    """
    fits = np.flatnonzero(size_G <= 2 * count)
    if len(fits):
        return fits
    name = "test" if key == TEST_KEY else "validation"
    share = getattr(data, name)
    if share is None:
        return np.array([size_G.argmin()])
    text = f"the smallest group of data.group={data.group} has {size_G.min():,} images"
    enough = math.ceil(1000 * size_G.min() / size_G.sum()) / 1000
    raise UserError(
        f"data.{name}={share:g}: {text}, more than twice the {count:,} wanted. Use"
        f" data.{name}={enough:g}, or smaller groups."
    )


def _most_frequent(label_N: np.ndarray, group_N: np.ndarray) -> np.ndarray:
    """Return the most frequent label of each group (G,), the lowest of equally frequent labels."""
    pair_M2, count_M = np.unique(np.stack([group_N, label_N], 1), axis=0, return_counts=True)
    order_M = np.lexsort((pair_M2[:, 1], -count_M, pair_M2[:, 0]))
    _, first_G = np.unique(pair_M2[order_M, 0], return_index=True)
    return pair_M2[order_M[first_G], 1]


def _check_classes(whole: Source, label_N: np.ndarray, inside_N: np.ndarray, data: Data) -> None:
    """Check that each class with images on the side that is cut off has images left for training.

    Raises:
        UserError: a class has none left, because its images are in too few groups.
    """
    gone = sorted({*label_N[inside_N].tolist()} - {*label_N[~inside_N].tolist()} - {UNLABELLED})
    if not gone:
        return
    raise UserError(
        f"data.group={data.group}: no training images would be left of {class_names(whole, gone)},"
        " which are in too few groups. Use smaller groups, or data.labels=false if the labels are"
        " no classes."
    )


def class_names(source: Source, numbers: Sequence[int]) -> str:
    names = source.classes
    return some([names[number] if number < len(names) else str(number) for number in numbers])


def stratified(label_N: np.ndarray, number_N: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Order places 0 to N-1 so that classes appear evenly, in proportion to size.

    The r-th image of a class of n images is placed at (r - 1/2) / n. The order within a class is
    drawn by `key` and the numbers of the images, and images with equal places are ordered by hash.
    Any beginning of the order has each class's share, rounded by Webster's and Sainte-Lague's
    method of apportionment.

    Args:
        label_N: the class of each image.
        number_N: a number of each image, for the hash.
        key: the key of the order.
    """
    hash_N = rng.bits(key, number_N)
    by_class_N = np.lexsort((hash_N, label_N))
    _, start_C, size_C = np.unique(label_N[by_class_N], return_index=True, return_counts=True)
    rank_N = np.arange(len(label_N)) - np.repeat(start_C, size_C)
    place_N = (rank_N + 0.5) / np.repeat(size_C, size_C)
    return by_class_N[np.lexsort((hash_N[by_class_N], place_N))]


def stratified_rows(whole: Source, key: np.ndarray) -> np.ndarray:
    """Return all rows of a source with one label an image, in the order of `stratified`."""
    rows_N = np.arange(len(whole))
    return stratified(whole.label_of(rows_N), rows_N, key)
