"""Read what a study or a plan must know about images before a run starts: the number, the labels
and the size of the images of each split.

The modules that read images take a second to import, so they are imported when they are needed.
"""

import functools
import json
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import costs
from ..errors import UserError
from ..formatting import few_images
from ..recipe import schema
from ..recipe.images import PART, READING, SPLIT_KEYS
from ..recipe.parsing import exists
from ..recipe.records.run import TrainingCopies
from ..recipe.schema import Data, Recipe, uses_labels

if TYPE_CHECKING:
    from ..data.run_splits import Splits
    from ..data.source import Source

SAMPLE_SIZE = 16  # number of images whose sides are measured
# Most pairs of images that a study compares before it starts, which takes about ten seconds on a
# CPU, and most bytes of images
MOST_PAIRS, MOST_BYTES = 2_000_000, 2**27


def splits_of(data: Data, test: bool) -> "Splits":
    """Return the splits of a recipe's data, with the test split if `test` is set.

    Raises:
        UserError: The images cannot be read, or a split does not exist.
    """
    from ..data import run_splits

    return run_splits.load(data, test)


def has_labels(recipe: Recipe) -> bool:
    """Return whether a recipe's images have labels.

    The result is True for images on another machine and for streamed images, because their labels
    can only be read when the run starts.

    Raises:
        UserError: The images cannot be read.
    """
    data = recipe.data
    if not data.path or not exists(data.path) or data.stream:
        return True
    return bool(splits_of(data, test=False).train.labels.source)


def few_image_lines(
    recipe: Recipe, chosen: Sequence[str], tested: bool, known: dict[str, Any]
) -> list[str]:
    """Return a line for each split on which a run measures few images.

    The list is empty if the images are streamed or not on this machine.

    Args:
        recipe: Recipe of the run.
        chosen: Choices that other tasks make on the run's held-out images, in words, such as "the
            best tried values".
        tested: Whether the run must measure test images.
        known: Cache of splits and classes. With the same dictionary in several calls, each data set
            is read once.

    Raises:
        UserError: A split does not exist, images cannot be read, or labels are missing or not among
            the classes.
    """
    data = recipe.data
    if not data.path or not exists(data.path) or data.stream:
        return []
    from ..data import class_numbers
    from ..data.layout import NoTestSplitError
    from ..evaluation import split_images

    test = recipe.eval.test or recipe.objective == "probe"
    deciding_keys = {*SPLIT_KEYS, *PART, *READING, "eval.images"}
    values = {key: value for key, value in recipe.values().items() if key in deciding_keys}
    # data.share_seed decides which images are drawn, not how many: one cache entry for all seeds
    splits_key = str((test, values | {"data.share_seed": 0}))
    if splits_key not in known:
        try:
            known[splits_key] = splits_of(data, test)
        except NoTestSplitError as error:
            raise UserError(split_images.explain_missing_test(recipe, error, not tested)) from None
    classes_key = f"{splits_key} {recipe.objective} {data.classes}"
    if uses_labels(recipe) and classes_key not in known:
        splits = known[splits_key]
        # the call raises an error for missing or unknown labels
        known[classes_key] = class_numbers.num_classes(splits, data, recipe.objective)
    counts = split_images.count_measured_images(
        recipe, split_images.drop_unlabelled(recipe, known[splits_key])
    )
    return few_images(
        counts,
        [*schema.describe_held_out_choices(recipe), *chosen],
        schema.option_for_more_held_out(recipe),
        data.group,
    )


class ImageCounts(NamedTuple):
    """Numbers of images of a run.

    Attributes:
        trained: Training images, or None if unknown.
        seen: Images that the run sends through the encoder, or None if unknown.
        source: Words that say where the number of training images comes from.
    """

    trained: int | None
    seen: int | None
    source: str


def count_images(recipe: Recipe, train_images: int | None) -> ImageCounts:
    """Return how many images a run trains on, and how many it sends through the encoder.

    The training images are counted if they are in a folder on this machine. Otherwise the published
    number of the data set is used.

    Args:
        recipe: Recipe of the run.
        train_images: Number of training images to use instead, or None.
    """
    num_training = costs.training_images(recipe.data, train_images)
    seen = costs.images_seen(recipe, train_images)
    path = recipe.data.path
    if train_images is None and path and exists(path) and not recipe.data.stream:
        # data.share_seed decides which images belong to data.share, not how many. With one seed for
        # all runs, the cache of `_count_split_images` counts the images only once
        data = recipe.data.model_dump() | {"share_seed": 0}
        num_training, total = _count_split_images(json.dumps(data), test=not recipe.trains)
        if not recipe.trains:  # an evaluation also sends the validation and test images
            seen = costs.evaluated_images(recipe, train=num_training, others=total - num_training)
        return ImageCounts(num_training, seen, "on this machine")
    # If a part of the published images is left out of training, the source is, for example, "of
    # 50,000 as published"
    published = train_images or costs.PUBLISHED.get(recipe.data.name, {}).get("train")
    source = "given by images=" if train_images else "as published"
    if num_training != published:
        source = f"of {published:,} {source}"
    return ImageCounts(num_training, seen, source)


@functools.cache  # many tasks of a study have the same images
def _count_split_images(data: str, test: bool) -> tuple[int, int]:
    """Return the number of training images, and the number of images of all splits together.

    Args:
        data: Keys of `data` as JSON, because the cache needs a hashable argument.
        test: Whether the test split counts.
    """
    keys = json.loads(data)
    splits = splits_of(Data(**keys), test)
    num_training = total = len(splits.train)
    # with data.validation=0, the validation images are training images, which are counted already
    if keys["validation"] != 0:
        total += len(splits.validation)
    if splits.test is not None:
        total += len(splits.test)
    return num_training, total


class SplitLabels(NamedTuple):
    """Labels of the images of each split, and the splits.

    For N images, the labels have shape (N,), or (N, L) if each image has a list of L labels. -1
    stands for no label. `test` is None if there are no test images.
    """

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray | None
    splits: "Splits"


def split_labels(data: Data) -> SplitLabels:
    """Return the labels of each split.

    Raises:
        UserError: The images cannot be read.
    """
    from ..data.layout import NoTestSplitError

    try:
        splits = splits_of(data, True)
    except NoTestSplitError:
        splits = splits_of(data, False)
    sources = splits.train, splits.validation
    train, validation = (source.label_of(np.arange(len(source))) for source in sources)
    test = None if splits.test is None else splits.test.label_of(np.arange(len(splits.test)))
    return SplitLabels(train, validation, test, splits)


def count_copies(data: Data) -> tuple[TrainingCopies | None, str]:
    """Count the labelled test images that are copies of training images.

    Returns:
        The numbers of images, and a page that shows the copies as HTML, "" without copies. None and
        "" if there are too many images to compare before a study starts.
    """
    splits = splits_of(data, test=True)
    assert splits.test is not None
    parts = splits.train, splits.test
    num_bytes = sum(part.store.sizes()[part.store_rows()].sum() for part in parts)
    if len(splits.train) * len(splits.test) > MOST_PAIRS or num_bytes > MOST_BYTES:
        return None, ""
    import torch

    from ..data.source import labelled_images
    from ..jobs import training_copies

    test = training_copies.Images(labelled_images(splits.test), data)
    train = training_copies.Images(splits.train, data)
    return training_copies.measure(test, [train], [], {}, False, torch.device("cpu"))


def shorter_side(images: "Source", data: Data) -> int:
    """Return the median of the shorter sides, in pixels, of `SAMPLE_SIZE` images of a split.

    The sampled images are evenly spaced in the split, and images that cannot be read are skipped.

    Raises:
        UserError: None of the images can be read.
    """
    from ..data.pixel_values import decoder

    decode = decoder(data)
    sides: list[int] = []
    rows = np.linspace(0, len(images) - 1, min(SAMPLE_SIZE, len(images))).astype(int)
    encoded_images, _ = images.fetch(rows)  # without the labels
    for encoded_image in encoded_images:
        with suppress(ValueError):  # an image that cannot be read
            _, height, width = decode(encoded_image).shape
            sides.append(min(height, width))
    if not sides:
        raise UserError(f"{data.place}: no image can be read (tried {len(rows)}). Check the files.")
    return int(np.median(sides))
