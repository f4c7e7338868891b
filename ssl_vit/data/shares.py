"""Take shares of a split: data.share, and the images cut off by data.test and data.validation.

The images of a share are drawn with a fixed key, so runs with different seeds use the same share.

Legend: N images, G groups of images.
"""

import hashlib
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .. import rng
from ..errors import UserError
from ..formatting import format_image_count, list_names
from ..recipe.images import Data
from ..recipe.split_counts import held_out_count, share_count
from .files import FOLDER, FileStore
from .labels import UNLABELLED, compose_unicode
from .layout import split_of_folder
from .source import Source, labelled_images

# Keys of the random orders for data.validation, data.share and data.test
HELD_OUT_KEY = 1
SHARE_KEY = 3
TEST_KEY = 6


class SplitCut(NamedTuple):
    """Split that is divided into two parts.

    Attributes:
        kept: The images that stay.
        cut_off: The images that are held out or tested on.
        description: How the images were chosen, for a note. Empty for a random choice.
    """

    kept: Source
    cut_off: Source
    description: str = ""


def first_permuted_rows(source: Source, count: int, key: int) -> np.ndarray:
    """Return `count` different random rows, int64 (count,).

    Calls with the same `key` return the same rows.
    """
    return rng.permute(np.arange(count), len(source), rng.key(key))


def training_share(train: Source, data: Data) -> Source:
    """Draw the share data.share of the training images, such as 0.1 for a tenth.

    A larger share contains all images of a smaller share. With data.share_seed, the same share is
    drawn from each class. Different values of data.share_seed draw different images.

    Args:
        train: The training images.
        data: The recipe's options, with data.share and data.share_seed.

    Raises:
        UserError: data.share_seed is set, but the images have lists of labels or no labels.
    """
    if data.share == 1:
        return train
    count = share_count(data.share, len(train))
    if data.share_seed is None:
        return train.subset(first_permuted_rows(train, count, SHARE_KEY))
    if not _one_label(train):
        raise UserError(
            f"data.share_seed={data.share_seed}: this option draws a share of each class, which"
            " needs labels, and at most one per training image. Leave out data.share_seed=."
        )
    return train.subset(stratified_rows(train, rng.key(SHARE_KEY, data.share_seed))[:count])


def _one_label(source: Source) -> bool:
    """Return whether images have single labels. Lists of labels do not count."""
    return source.labels.lists is None and source.has_labels


def cut_test(source: Source, data: Data) -> SplitCut | None:
    """Divide the training split into images to train on and images to test on.

    data.test is the share of test images. The choice depends on the data:

    - If each image is a file: by a hash of the file's or the group's name, so that new files do not
      change the choice of other files.
    - Else if data.group is not set and each image has one label: the same share of each class.
    - Else: whole groups if data.group is set, and random images otherwise.

    Args:
        source: The training split.
        data: The recipe's options, with data.test.

    Returns:
        The two parts, or None if data.test is the name of a split and not a share.

    Raises:
        UserError: There are fewer than two images or groups, or one part would be empty.
    """
    if isinstance(data.test, str):
        return None
    count = held_out_count(data.test, _count_at_least_two(source, data))
    if isinstance(source.store, FileStore):
        return _cut_by_name(source, source.store, data.test, data)
    if data.group is None and _one_label(source):
        # the first rows have about the class shares of all images
        rows_N = stratified_rows(source, rng.key(TEST_KEY))
        description = "the same share of each class" if data.labels else ""
        return SplitCut(source.subset(rows_N[count:]), source.subset(rows_N[:count]), description)
    return _cut(source, count, TEST_KEY, data)


def _cut_by_name(source: Source, files: FileStore, share: float, data: Data) -> SplitCut:
    """Cut off the images whose hashed name, as a number from 0 to 1, is below the share.

    With data.group, the name of the group is hashed instead of the name of the file. A name decides
    alone whether the image is cut off, so new files do not change the choice of other files.

    Args:
        source: The images to divide.
        files: The store of these images.
        share: The share of names to cut off, between 0 and 1.
        data: The recipe's options.

    Raises:
        UserError: One part would be empty, or a class would have no training images.
    """
    names = _without_split(list(files.names()))
    how = "by name"
    if source.groups is not None:
        group_N = source.group_of(np.arange(len(source)))
        group_names = source.groups.names
        if data.group == FOLDER:
            group_names = _without_split([f"{name}/" for name in group_names])
        # An image without a group has a group number without a name. For such an image, the name of
        # the file is hashed
        names = [
            compose_unicode(group_names[group]) if group < len(group_names) else name
            for group, name in zip(group_N.tolist(), names, strict=True)
        ]
        how = f"by name of data.group={data.group}"
    limit = share * 2.0**64  # hashes have 64 bits
    is_cut_off = {name: _hash(name) < limit for name in dict.fromkeys(names)}
    is_cut_off_N = np.array([is_cut_off[name] for name in names])
    # if all images are cut off, none is left for training; if none is cut off, none for testing
    if is_cut_off_N.all() or not is_cut_off_N.any():
        purpose = "training" if is_cut_off_N.any() else "testing"
        raise UserError(
            f"data.test={share:g}: with this share, none of the {len(names):,} images of"
            f" {data.location} would be used for {purpose}. The names of files or groups"
            " decide which images are tested. Use another share, or more images."
        )
    if source.groups is not None and data.labels and _one_label(source):
        _check_classes(source, source.label_of(np.arange(len(source))), is_cut_off_N, data)
    kept = source.subset(np.flatnonzero(~is_cut_off_N))
    return SplitCut(kept, source.subset(np.flatnonzero(is_cut_off_N)), how)


def _without_split(names: Sequence[str]) -> list[str]:
    """Remove the split's folder from names of files: `train/cat/1.png` becomes `cat/1.png`.

    Then names do not depend on whether the user gives the folder `photos` or `photos/train`. The
    first level is removed at which the folder of every file names a split. Names are returned in
    composed Unicode, to be the same on every machine.

    Args:
        names: Paths of files below the user's folder.
    """
    paths = [compose_unicode(name).split("/") for name in names]
    # the number of folders that every path has; the last part of a path is the file's name
    depth = min((len(path) for path in paths), default=1) - 1
    for level in range(depth):
        if all(split_of_folder(path[level]) for path in paths):
            return ["/".join(path[:level] + path[level + 1 :]) for path in paths]
    return ["/".join(path) for path in paths]


def _hash(name: str) -> int:
    """Return a hash of a name, from 0 to 2^64 - 1."""
    encoded = name.encode(errors="surrogateescape")
    return int.from_bytes(hashlib.blake2b(encoded, digest_size=8).digest(), "big")


def cut_held_out(train: Source, data: Data) -> SplitCut:
    """Cut off the images to hold out: the share data.validation, by default 1%.

    With data.validation_from=labelled, only images with a label are held out. Images without a
    label stay training images. With data.group, whole groups are held out, and no image of a
    held-out group is trained on. So the images without a label in a held-out group are not used.

    Args:
        train: The training images.
        data: The recipe's options.

    Raises:
        UserError: There are fewer than two images or groups, or a class would have no training
            images.
    """
    share = data.validation if isinstance(data.validation, float) else None
    candidates = labelled_images(train) if data.validation_from == "labelled" else train
    count = held_out_count(share, _count_at_least_two(candidates, data))
    cut = _cut(candidates, count, HELD_OUT_KEY, data)
    if candidates is train:
        return cut
    held_out = cut.cut_off
    rows_N = np.arange(len(train))
    if data.group is None:
        is_removed_N = np.isin(train.store_rows(), held_out.store_rows())
    else:
        held_out_groups = held_out.group_of(np.arange(len(held_out)))
        is_removed_N = np.isin(train.group_of(rows_N), held_out_groups)
    description = "chosen from the images with a label"
    if cut.description:
        description = f"{cut.description}, {description}"
    return SplitCut(train.subset(rows_N[~is_removed_N]), held_out, description)


def _count_at_least_two(train: Source, data: Data) -> int:
    """Return the number of images, after a check that two parts are possible.

    Raises:
        UserError: There are fewer than two images.
    """
    if len(train) < 2:
        raise UserError(
            f"data.train={data.train}: {format_image_count(len(train))} cannot be divided. Give at"
            " least 2 images."
        )
    return len(train)


def _cut(source: Source, count: int, key: int, data: Data) -> SplitCut:
    """Cut off `count` random images.

    If data.group is set, cut off random groups with about `count` images in total instead.

    Raises:
        UserError: The groups cannot be divided: there is only one group, a class would have no
            training images, or all groups are too large.
    """
    if data.group is not None:
        return _cut_groups(source, count, key, data)
    rows_N = first_permuted_rows(source, len(source), key)
    return SplitCut(source.subset(rows_N[count:]), source.subset(rows_N[:count]))


def _cut_groups(source: Source, count: int, key: int, data: Data) -> SplitCut:
    """Cut off random groups with about `count` images in total.

    About the same share of groups is cut off from each class. A group's class is the most frequent
    label of its images.

    Args:
        source: The images to divide.
        count: The wanted number of images.
        key: The key of the random choice.
        data: The recipe's options.

    Raises:
        UserError: There is only one group, a class would have no training images, or all groups
            are too large.
    """
    rows_N = np.arange(len(source))
    number_G, group_N, size_G = np.unique(
        source.group_of(rows_N), return_inverse=True, return_counts=True
    )
    if len(number_G) < 2:
        raise UserError(
            f"data.group={data.group}: all {len(source):,} images belong to a single group. Use"
            " another column, or leave out data.group=."
        )
    label_N = np.full(len(source), UNLABELLED)
    if _one_label(source):
        label_N = source.label_of(rows_N)
    class_G = _most_frequent(label_N, group_N)
    order_G = stratified(class_G, number_G, rng.key(key))
    order_G = order_G[_find_small_groups(size_G[order_G], count, key == TEST_KEY, data)]
    # Cut off the first groups of the order. The number of groups is chosen so that their number of
    # images is closest to `count`
    total_G = np.cumsum(size_G[order_G])
    most_groups = min(len(order_G), len(number_G) - 1)  # leave one group for training
    num_cut_off = 1 + int(np.abs(total_G[:most_groups] - count).argmin())
    is_cut_off_N = np.isin(group_N, order_G[:num_cut_off])
    if data.labels:
        _check_classes(source, label_N, is_cut_off_N, data)
    # shuffle, so that the first held-out images are not all of one group
    rows_N = rows_N[np.argsort(rng.bits(rng.key(key), rows_N), kind="stable")]
    is_cut_off_N = is_cut_off_N[rows_N]
    description = f"{num_cut_off:,} of {len(number_G):,} groups of data.group={data.group}"
    kept = source.subset(rows_N[~is_cut_off_N])
    return SplitCut(kept, source.subset(rows_N[is_cut_off_N]), description)


def _find_small_groups(size_G: np.ndarray, count: int, for_testing: bool, data: Data) -> np.ndarray:
    """Return the positions of the groups that are small enough to be held out or tested on.

    Groups may have at most twice the wanted number of images, because a larger group could be most
    of the data. If all groups are larger and the user did not set the share, only the smallest
    group is returned.

    Args:
        size_G: The number of images of each of the G groups.
        count: The wanted number of images.
        for_testing: True to take test images (data.test), False to hold out images
            (data.validation).
        data: The recipe's options.

    Returns:
        Positions in `size_G`, integers.

    Raises:
        UserError: All groups are larger than this limit, and the user has set the share.
    """
    fits = np.flatnonzero(size_G <= 2 * count)
    if len(fits):
        return fits
    name = "test" if for_testing else "validation"
    share = getattr(data, name)
    if share is None:
        return np.array([size_G.argmin()])
    # the share of the smallest group, rounded up to three decimals
    enough = math.ceil(1000 * size_G.min() / size_G.sum()) / 1000
    raise UserError(
        f"data.{name}={share:g}: the smallest group of data.group={data.group} has"
        f" {size_G.min():,} images, more than twice the {count:,} images of this share. Use"
        f" data.{name}={enough:g}, or smaller groups."
    )


def _most_frequent(label_N: np.ndarray, group_N: np.ndarray) -> np.ndarray:
    """Return the most frequent label of each group, int64 (G,).

    Of equally frequent labels, the lowest is returned.

    Args:
        label_N: The label of each image, integers.
        group_N: The group of each image, from 0 to G - 1.
    """
    # the M different pairs (group, label), and the number of images of each pair
    pair_M2, count_M = np.unique(np.stack([group_N, label_N], 1), axis=0, return_counts=True)
    # sort by group, then by falling count, then by label
    sorted_M2 = pair_M2[np.lexsort((pair_M2[:, 1], -count_M, pair_M2[:, 0]))]
    # the first pair of each group has the group's most frequent label
    _, first_G = np.unique(sorted_M2[:, 0], return_index=True)
    return sorted_M2[first_G, 1]


def _check_classes(
    source: Source, label_N: np.ndarray, is_cut_off_N: np.ndarray, data: Data
) -> None:
    """Check that every class still has training images after images are cut off.

    Args:
        source: The images that are divided.
        label_N: The label of each image, integers.
        is_cut_off_N: Whether each image is cut off, bool.
        data: The recipe's options, for the error.

    Raises:
        UserError: A class has no training images left, because its images are in too few groups.
    """
    kept_labels = {UNLABELLED, *label_N[~is_cut_off_N].tolist()}
    lost_labels = sorted({*label_N[is_cut_off_N].tolist()} - kept_labels)
    if lost_labels:
        raise UserError(
            f"data.group={data.group}: the classes {class_names(source, lost_labels)} would have no"
            " training images, because their images belong to too few groups. Use smaller groups,"
            " or data.labels=false if the labels are not classes."
        )


def class_names(source: Source, numbers: Sequence[int]) -> str:
    """List the names of classes as a text, from labels. A class without a name is a number."""
    names = source.classes
    return list_names([names[number] if number < len(names) else str(number) for number in numbers])


def stratified(label_N: np.ndarray, number_N: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Return a random order whose first k images have about the class shares of all images.

    This holds for every k. Each class is shuffled, and the r-th of n images of a class (r = 1 to n)
    gets the position (r - 1/2) / n between 0 and 1. All images are sorted by position, and images
    with equal positions by hash. This is apportionment by Webster's and Sainte-Lague's method.

    For example, four images of class a get the positions 1/8, 3/8, 5/8 and 7/8, and two images of
    class b get 1/4 and 3/4. The classes in the new order are a, b, a, a, b, a.

    Args:
        label_N: The class of each image, integers.
        number_N: A different number for each image, which is hashed to shuffle.
        key: The key of the random order.

    Returns:
        The positions 0 to N - 1 in the new order, int64 (N,).
    """
    hash_N = rng.bits(key, number_N)
    by_class_N = np.lexsort((hash_N, label_N))  # sorted by class, and in each class by hash
    _, start_C, size_C = np.unique(label_N[by_class_N], return_index=True, return_counts=True)
    # the rank of an image in its class is r - 1, from 0 to n - 1
    rank_N = np.arange(len(label_N)) - np.repeat(start_C, size_C)
    position_N = (rank_N + 0.5) / np.repeat(size_C, size_C)
    return by_class_N[np.lexsort((hash_N[by_class_N], position_N))]


def stratified_rows(source: Source, key: np.ndarray) -> np.ndarray:
    """Return all rows of a source with single labels, in the random order of `stratified`."""
    rows_N = np.arange(len(source))
    return stratified(source.label_of(rows_N), rows_N, key)
