"""Choose the images of a recipe's `data` that a run trains on, holds out and tests on."""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..errors import UserError, suggest
from ..formatting import TEST_SHARE, format_image_count, list_names
from ..recipe.images import Data
from ..recipe.split_counts import held_out_count
from . import layout
from .files import FOLDERS
from .layout import HELD_OUT, ROLE, NoTestSplitError
from .open import OpenedData, open_splits, open_streams
from .shares import (
    HELD_OUT_KEY,
    SplitCut,
    class_names,
    cut_held_out,
    cut_test,
    first_permuted_rows,
    training_share,
)
from .source import Source, labelled_images
from .streaming import PREVIEW, WINDOW_BYTES, Stream

# Size of the training split in papers, for data sets that are also published with another split.
# Copies of flowers102 on the Hub have 7,169 training images, mostly from the authors' test split
PUBLISHED_TRAIN_SIZES = {"flowers102": 1020}


class Splits(NamedTuple):
    """Splits of a run.

    Attributes:
        train: The training images, or the first images of a stream.
        validation: The held-out images.
        test: The test images, if requested.
        labelled_test: Number of test images with labels or masks, even if `test` is None.
        stream: The stream to train on, with data.stream=true.
        notes: Lines that say where each split comes from, and which files are not used.
        guesses: Assumptions about the data. Each is printed as a warning.
        label_source: Where the labels come from, such as "names of folders". Empty if training
            images have no labels, or have lists of labels.
    """

    train: Source
    validation: Source
    test: Source | None = None
    labelled_test: int = 0
    stream: Stream | None = None
    notes: tuple[str, ...] = ()
    guesses: tuple[str, ...] = ()
    label_source: str = ""


class Roles(NamedTuple):
    """Names of the splits that a run trains on, holds out and tests on.

    Attributes:
        train: The split to train on.
        validation: The held-out split. None to hold out a share of train, or nothing.
        test: The split to test on. None to test on a share of train, or not at all.
        validation_is_test: Whether the validation split is used for testing, because there is no
            test split.
    """

    train: str
    validation: str | None
    test: str | None
    validation_is_test: bool


def load(data: Data, test: bool = False, first: int = PREVIEW, seed: int = 0) -> Splits:
    """Open the images of a run, divided into training, held-out and test images.

    Args:
        data: The recipe's options of the images.
        test: Whether to return the test images, too.
        first: For a stream, the number of images in `train` and `validation`.
        seed: For a stream, the seed of the order of images.

    Raises:
        UserError: There are no images, a split or column does not exist, or a split has no images.
    """
    if data.stream:
        return _streamed(data, first, seed)
    opened = open_splits(data)
    roles = _choose_roles(data, test, opened.splits)
    train_split = opened.splits[roles.train]
    _check_published_size(data, train_split)
    # cut off the test share first: then data.validation and data.share do not change this share
    test_cut = cut_test(train_split, data)
    not_tested = train_split if test_cut is None else test_cut.kept
    # With data.validation_from=share, reduce the training images by data.share and then hold out
    # images. Otherwise, hold out images first
    if data.validation_from == "share":
        held_out = _hold_out(training_share(not_tested, data), roles, opened.splits, data)
        train = held_out.kept
    else:
        held_out = _hold_out(not_tested, roles, opened.splits, data)
        train = training_share(held_out.kept, data)
    if test_cut is None:
        test_split = split_to_test(data, opened.splits, roles.train)
        test_source = opened.splits.get(test_split or "")
    else:
        test_source = test_cut.cut_off
    requested_test = test_source if test else None
    guesses = [f"{data.location}: {guess}" for guess in dict.fromkeys(opened.guesses)]
    if data.labels:
        measured = {"held-out": held_out.cut_off, "test": requested_test}
        guesses += _missing_classes(not_tested, measured, test_cut is not None, data)
    if test and roles.test is not None and roles.test == roles.validation:
        guesses.append(
            f"data.test={data.test}: the test images are also the held-out images. If you choose a"
            " checkpoint or a learning rate on these images, the test accuracy is too high"
        )
    label_source = ""  # for no labels and for lists of labels
    if data.labels and train_split.labels.lists is None:
        label_source = train_split.labels.source
    return Splits(
        _drop_unused_labels(train, data),
        _drop_unused_labels(held_out.cut_off, data),
        None if requested_test is None else _drop_unused_labels(requested_test, data),
        0 if test_source is None else _count_labelled(test_source),
        notes=_notes(opened, data, roles, train, held_out, test_cut),
        guesses=tuple(guesses),
        label_source=label_source,
    )


def open_for_testing(data: Data) -> OpenedData:
    """Open all splits of the data, and divide the training split if data.test is a number.

    With data.test=0.1, for example, a tenth of the training images is moved to another split, named
    by `name_of_test_share`. With data.labels=false, the images have no labels.

    Args:
        data: The recipe's options of the images.

    Raises:
        UserError: There are no images, or data.train= names no split.
    """
    opened = open_splits(data)
    if not opened.splits:
        raise UserError(f"{data.location}: found no images. Use a folder or data set with images.")
    splits = dict(opened.splits)
    if not isinstance(data.test, str):
        train = _choose_roles(data, test=False, splits=splits).train
        cut = cut_test(splits[train], data)
        assert cut is not None
        splits[train] = cut.kept
        splits[name_of_test_share(splits)] = cut.cut_off
    return opened._replace(
        splits={name: _drop_unused_labels(source, data) for name, source in splits.items()}
    )


def name_of_test_share(splits: Collection[str]) -> str:
    """Return the name of the test share: "test", or "test_share" if there is a test split."""
    return "test_share" if any(ROLE.get(name.lower()) == "test" for name in splits) else "test"


def _drop_unused_labels(source: Source, data: Data) -> Source:
    """Return the images, without labels if data.labels=false."""
    return source if data.labels else source.without_labels()


def _check_published_size(data: Data, train: Source) -> None:
    """Check that a training split has as many images as in publications.

    Only data sets in PUBLISHED_TRAIN_SIZES are checked.

    Args:
        data: The recipe's options, with the name of the data set.
        train: The training images.

    Raises:
        UserError: The number of training images differs.
    """
    published_size = PUBLISHED_TRAIN_SIZES.get(data.name)
    if published_size is not None and len(train) != published_size:
        raise UserError(
            f"data={data.name}: {data.place} has {len(train):,} training images, but published"
            f" results use {published_size:,}. To train on these images, leave out"
            f" data={data.name}."
        )


def _choose_roles(data: Data, test: bool, splits: Mapping[str, Any]) -> Roles:
    """Choose the splits to train on, to hold out and to test on.

    - train: the split data.train.
    - test: the split data.test. If it does not exist, the validation split is used for testing, as
      is usual for ImageNet, unless data.validation= names a split.
    - validation: the split data.validation, by default the validation split. If the validation
      split is used for testing, a share of train is held out instead, because test images must not
      influence hyperparameters.

    Args:
        data: The options that name splits.
        test: Whether test images are requested.
        splits: All splits, by name.

    Raises:
        UserError: A named split does not exist, or is the split to train on.
    """
    train = _choose_split(data.train, "data.train", data, splits)
    test_split = split_to_test(data, splits, train)
    # a number in data.test names no split
    has_test_split = layout.choose(str(data.test), splits) is not None
    validation_is_test = test_split is not None and not has_test_split
    if test and isinstance(data.test, str) and not validation_is_test:
        # choose again, with an error if the split does not exist or is the training split
        test_split = _choose_split(data.test, "data.test", data, splits, train)
    validation = None  # a share of train, or nothing, is held out
    if isinstance(data.validation, str):
        validation = _choose_split(data.validation, "data.validation", data, splits, train)
    elif data.validation is None:
        validation = _default_validation_split(train, splits)
        if validation == test_split:  # images that are tested on are not held out
            validation = None
    # Without `test`, return no test split. An exception is a validation split that is used for
    # testing, so that the notes can explain why a share of train is held out
    if not test and not validation_is_test:
        test_split = None
    return Roles(train, validation, test_split, validation_is_test)


def split_to_test(data: Data, splits: Mapping[str, Any], train: str) -> str | None:
    """Return the split to test on, or None if data.test is a share or the split does not exist.

    If data.test is a usual name such as "test" and there is no test split, the validation split is
    returned. If data.validation= names a split to hold out, None is returned instead.

    Args:
        data: The options that name splits.
        splits: All splits, by name.
        train: The split to train on.
    """
    if not isinstance(data.test, str):
        return None
    test_split = layout.choose(data.test, splits)
    may_use_validation = ROLE.get(data.test) == "test" and not isinstance(data.validation, str)
    if test_split is None and may_use_validation:
        return _default_validation_split(train, splits)
    return test_split


def _choose_split(
    name: str, key: str, data: Data, splits: Mapping[str, Any], train: str | None = None
) -> str:
    """Return the split that an option names.

    If there is no split of this name, the only split with the same role (train, validation or test)
    is returned. For example, data.validation=validation chooses the split "val".

    Args:
        name: The value of the option.
        key: The option, such as "data.test".
        data: The recipe's options of the images.
        splits: All splits, by name.
        train: The training split, which data.validation and data.test may not name. None to choose
            the training split.

    Raises:
        UserError: The split does not exist, or is the training split.
    """
    if not splits:
        raise UserError(f"{data.location}: found no images. Use a folder or data set with images.")
    split = layout.choose(name, splits)
    share_hint = "data.validation=0" if data.stream else f"a share of train such as {key}=0.1"
    if split is None and key == "data.test":
        # data.test is chosen after data.train, so `train` is not None here
        raise _no_test_split(name, splits, splits[str(train)], data)
    if split is None:
        remedies = ["another split", share_hint] if key == "data.validation" else ["another split"]
        raise UserError(
            f"{key}={name}: no split with this name has images ({suggest(name, splits)}). Use"
            f" {' or '.join(remedies)}."
        )
    if split == train:
        remedies = [*(other for other in splits if other != train), share_hint]
        raise UserError(
            f"{key}={name}: this is the training split (data.train={data.train}). Use"
            f" {' or '.join(remedies)}."
        )
    return split


def _count_labelled(source: Source) -> int:
    """Count the images that have a label, or all images if the split has masks."""
    if source.masks.column:
        return len(source)
    return len(labelled_images(source)) if source.has_labels else 0


def _no_test_split(
    name: str, splits: Mapping[str, Any], train: Source, data: Data
) -> NoTestSplitError:
    """Return the error that there is no test split, with a remedy.

    If the training images have labels or masks, the remedy is to test on a share of these images.
    Otherwise the remedy is to add labels and test images.

    Args:
        name: The value of data.test.
        splits: All splits, by name.
        train: The split to train on.
        data: The recipe's options of the images.
    """
    has_labels = data.labels and train.has_labels
    if has_labels or train.masks.column:
        return NoTestSplitError(
            f"data.test={name}: no split with this name has images ({suggest(name, splits)}). Use a"
            f" share of train with data.test={TEST_SHARE}, or add test images, such as a folder"
            " test/ next to train/.",
            labelled=True,
        )
    return NoTestSplitError(
        f"data.test={name}: no split with this name has images ({suggest(name, splits)}). Add"
        " labels, such as a folder for each class, and test images, such as a folder test/ next to"
        " train/.",
        labelled=False,
    )


def _default_validation_split(train: str, splits: Mapping[str, Any]) -> str | None:
    """Return the split with a usual validation name, such as "val", or None.

    The training split is never returned.
    """
    return next((name for name in HELD_OUT if name in splits and name != train), None)


def _hold_out(train: Source, roles: Roles, splits: Mapping[str, Source], data: Data) -> SplitCut:
    """Return the training images and the held-out images.

    The held-out images are the validation split, or else a share that is cut off the training
    images. With data.validation=0, no images are held out: the run trains on all images, and
    measures on a random 1% of the training images.

    Args:
        train: The images to divide.
        roles: The names of the splits.
        splits: {name: images} of all splits.
        data: The recipe's options of the images.
    """
    if roles.validation is not None:
        return SplitCut(train, splits[roles.validation])
    if data.validation == 0:
        count = held_out_count(None, len(train))  # None for the default: 1%, at most 10,000 images
        rows = first_permuted_rows(train, count, HELD_OUT_KEY)
        return SplitCut(train, train.subset(rows))
    return cut_held_out(train, data)


def _missing_classes(
    train: Source, others: Mapping[str, Source | None], test_is_share: bool, data: Data
) -> list[str]:
    """Return warnings about classes without training images or without test images.

    Classes without test images are reported only if the test images are a share of train.

    Args:
        train: The images to train on, before data.share and before images are held out.
        others: {"held-out" or "test": images}, None for images that are not requested.
        test_is_share: Whether the test images are a share of the training split.
        data: The recipe's options, for the warnings.

    Raises:
        UserError: The test images and the training images have no class in common.
    """
    train_classes = _classes_of(train)
    warnings: list[str] = []
    if not train_classes:
        return warnings
    for name, source in others.items():
        if source is None:
            continue
        classes = _classes_of(source)
        if classes <= train_classes:
            continue
        unknown = class_names(source, sorted(classes - train_classes))
        if name == "test" and not classes & train_classes:
            raise UserError(
                f"data.test={data.test}: test images have the classes {unknown}, and training"
                f" images {class_names(train, sorted(train_classes))}. Use the same classes."
            )
        warnings.append(
            f"{data.location}: the training images lack classes of the {name} images: {unknown}"
        )
    test = others.get("test")
    if test_is_share and test is not None:
        lacking = sorted(train_classes - _classes_of(test))
        if lacking:
            warnings.append(
                f"data.test={data.test}: the test images lack the classes"
                f" {class_names(train, lacking)}"
            )
    return warnings


def _classes_of(source: Source) -> set[int]:
    """Return the set of class numbers in the labels of a source."""
    distinct_labels = np.unique(source.label_of(np.arange(len(source))))
    # negative numbers mean that there is no label, or fill the end of a list of labels
    return set(distinct_labels[distinct_labels >= 0].tolist())


def _streamed(data: Data, first: int, seed: int) -> Splits:
    """Open a stream to train on, and load the first training and held-out images.

    Args:
        data: The recipe's options of the images.
        first: The number of images in `train` and `validation`.
        seed: The seed of the order of images.

    Raises:
        UserError: There are no images, a split does not exist, or a stream cannot read the images
            or labels. Or there is no validation split, and data.validation is not 0.
    """
    opened = open_streams(data)
    train_split = _choose_split(data.train, "data.train", data, opened.splits)
    held_out: Any = data.validation  # a split, 0 for no held-out images, or None for the default
    if isinstance(held_out, str):
        held_out = _choose_split(held_out, "data.validation", data, opened.splits, train_split)
    elif held_out is None:
        held_out = _default_validation_split(train_split, opened.splits)
    if held_out is None:
        others = [f"data.validation={split}" for split in opened.splits if split != train_split]
        choices = " or ".join([*others, "data.validation=0 to hold out no images"])
        raise UserError(
            f"data.validation=null: {data.location} has no validation split. Use {choices}."
        )
    train = opened.splits[train_split](seed)
    used_splits = [train_split]
    guesses = [f"{data.location}: {guess}" for guess in dict.fromkeys(opened.guesses)]
    if data.validation is None and held_out == split_to_test(data, opened.splits, train_split):
        guesses.append(
            f"{data.location}: there is no test split, so {held_out} is both held out and tested on"
        )
    preview = train.take(first, WINDOW_BYTES)
    held_out_preview = preview  # for data.validation=0
    if isinstance(held_out, str):
        # the seed is always 0, so that runs with different seeds hold out the same images
        held_out_preview = opened.splits[held_out](0).take(first)
        used_splits.append(held_out)
    notes = [f"{name}: a stream from {data.place}" for name in used_splits]
    notes += _describe_unused(opened, used_splits, {name: name for name in opened.splits})
    notes.append(f"labels: {describe_labels(preview, data)}")
    return Splits(
        preview, held_out_preview, stream=train, notes=tuple(notes), guesses=tuple(guesses)
    )


def _describe_unused(
    opened: OpenedData, used: Collection[str], descriptions: Mapping[str, str]
) -> list[str]:
    """Return notes about splits and files that are not used.

    Args:
        opened: All splits, and the files that are not used.
        used: The names of the splits that are used.
        descriptions: {name: description} of all splits.
    """
    unused = [text for name, text in descriptions.items() if name not in used]
    notes = []
    if unused:
        notes.append(f"not used: {', '.join(unused)}")
    if opened.skipped:
        notes.append(f"left out: {', '.join(opened.skipped)}")
    return notes


def _notes(
    opened: OpenedData,
    data: Data,
    roles: Roles,
    train: Source,
    held_out: SplitCut,
    test: SplitCut | None,
) -> tuple[str, ...]:
    """Return lines that describe where each split comes from, what is not used, and the labels.

    Args:
        opened: All splits, and the files that are not used.
        data: The recipe's options of the images.
        roles: The names of the splits that are used.
        train: The training images.
        held_out: The images that are left for training, and the held-out images.
        test: The rest of the training split and the test images, if data.test is a share of the
            training split. None otherwise.
    """
    has_labels = data.labels and bool(opened.splits[roles.train].labels.source)

    def describe(name: str) -> str:
        return f"{_describe_count(opened.splits[name], has_labels)} from {data.place}, split {name}"

    train_note = f"train: {describe(roles.train)}"
    if data.share != 1:
        train_note += f", reduced to data.share={data.share:g}"
        if data.validation_from != "share":
            train_note += " after images are held out"
    notes = [train_note]
    if roles.validation is not None:
        notes.append(f"validation: {describe(roles.validation)}")
    elif data.validation == 0:
        count = len(held_out.cut_off)
        notes.append(f"validation: none, so training images are evaluated instead ({count:,})")
    else:
        notes.append(
            f"validation: {_describe_cut(held_out, has_labels)}, {len(train):,} left for training"
        )
    if test is not None:
        notes.append(f"test: {_describe_cut(test, has_labels)}, not used for training")
    if roles.validation_is_test:
        notes.append(
            f"test: {describe(str(roles.test))} (no test split, so a share of train is held out)"
        )
    elif roles.test is not None:
        notes.append(f"test: {describe(roles.test)}")
    descriptions = {
        name: f"{name} ({_describe_count(source, has_labels)})"
        for name, source in opened.splits.items()
    }
    used_splits = {str(name) for name in (roles.train, roles.validation, roles.test)}
    notes += _describe_unused(opened, used_splits, descriptions)
    notes.append(f"labels: {describe_labels(opened.splits[roles.train], data)}")
    return tuple(notes)


def _describe_cut(cut: SplitCut, with_labels: bool) -> str:
    """Describe how many images were cut off the training split, and how they were chosen.

    Args:
        cut: The two parts of the training split.
        with_labels: Whether to add the number of images with a label if others have no label.
    """
    text = f"{_describe_count(cut.cut_off, with_labels)} taken from train"
    return f"{text} ({cut.description})" if cut.description else text


def describe_labels(source: Source, data: Data) -> str:
    """Describe where labels come from, with the names of the first classes.

    Args:
        source: The images.
        data: The recipe's options, with data.labels.
    """
    if not data.labels:
        return "none (data.labels=false)"
    if not source.labels.source:
        return "none"
    description = source.labels.source
    if source.classes:
        description += f", {len(source.classes):,} classes: {list_names(source.classes)}"
    if source.labels.source == FOLDERS:
        description += ". If the folders are not classes, use data.labels=false"
    return description


def _describe_count(source: Source, with_labels: bool) -> str:
    """Describe how many images there are, such as "12 images (5 labelled)".

    Args:
        source: The images.
        with_labels: Whether to add the number of images with a label if others have no label.
    """
    description = format_image_count(len(source))
    # if no image has a label, `labelled_images` would return all images
    labelled = len(labelled_images(source)) if source.has_labels else 0
    if with_labels and labelled < len(source):
        description += f" ({labelled:,} labelled)"
    if source.labels.lists:
        description += source.labels.lists.describe()
    return description
