"""Choose the images of a recipe's `data` that a run trains on, holds out and tests on."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..errors import UserError, suggest
from ..formatting import TEST_SHARE, count_of_images, some
from ..recipe.images import Data
from ..recipe.split_counts import held_out_count
from . import layout
from .files import FOLDERS
from .layout import HELD_OUT, ROLE, NoTestSplit
from .open import Found, open_splits, open_streams
from .shares import HELD_OUT_KEY, Cut, class_names, cut_held_out, cut_test, permuted, training_share
from .source import Source, labelled_images
from .streaming import PREVIEW, WINDOW_BYTES, Stream

# Size of the training split that papers report on, for sets that are also published with another
# split: copies of flowers102 on the Hub train on 7,169 images, most of them from the authors' test
# split
PUBLISHED_TRAIN_SIZES = {"flowers102": 1020}


class Splits(NamedTuple):
    """Splits of a run.

    Attributes:
        train: the training images; for a stream, its first images.
        validation: the held-out images.
        test: the test split or share, if requested.
        labelled_test: number of test images with labels or masks, requested or not.
        stream: the stream to train on, with data.stream=true.
        notes: the origin of each split, and what was left out.
        guesses: assumptions about the data; each is printed as a warning.
        label_source: where the labels come from, if training images have one label each; else
            empty.
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
    """Names of the splits by use.

    Attributes:
        train: the split to train on.
        validation: the held-out split; None if a share of train, or nothing, is held out.
        test: the split to test on; None for a share of train, or nothing.
        stands_in: whether the validation split is used for testing because there is no test split.
    """

    train: str
    validation: str | None
    test: str | None
    stands_in: bool


def load(data: Data, test: bool = False, first: int = PREVIEW, seed: int = 0) -> Splits:
    """Return the splits that a recipe's `data` names.

    Args:
        data: where images come from.
        test: whether to return the test split too.
        first: for a stream, the number of images in `train` and `validation`.
        seed: for a stream, the seed of its order.

    Raises:
        UserError: the place holds no images, a split or column does not exist, or a split has no
            images.
    """
    if data.stream:
        return _streamed(data, first, seed)
    opened = open_splits(data)
    roles = _roles(data, test, opened.splits)
    whole = opened.splits[roles.train]
    _check_authors(data, whole)
    share = cut_test(whole, data)
    rest = whole if share is None else share.kept
    inside = data.validation_from == "share"
    held_out = _held_out(training_share(rest, data) if inside else rest, roles, opened.splits, data)
    train = held_out.kept if inside else training_share(held_out.kept, data)
    to_test = opened.splits.get(split_to_test(data, opened.splits, roles.train) or "")
    if share is not None:
        to_test = share.part
    tested = to_test if test else None
    guesses = [f"{data.location}: {text}" for text in dict.fromkeys(opened.guesses)]
    if data.labels:
        named = {"held-out": held_out.part, "test": tested}
        guesses += _missing_classes(rest, named, share is not None, data)
    if test and roles.test is not None and roles.test == roles.validation:
        guesses.append(
            f"data.test={data.test}: the test images are also the held-out images. If you choose a"
            " checkpoint or a learning rate on these images, the test accuracy is too high"
        )
    return Splits(
        _shown(train, data),
        _shown(held_out.part, data),
        None if tested is None else _shown(tested, data),
        0 if to_test is None else _with_answers(to_test),
        notes=_notes(opened, data, roles, train, held_out, share),
        guesses=tuple(guesses),
        label_source=whole.labels.source if data.labels and whole.labels.lists is None else "",
    )


def every_part(data: Data) -> Found:
    """Open each split that a recipe's `data` names, divided for testing as by `load`.

    If data.test is a share, the training split has only the images without the share, and the share
    is a split of its own.

    Raises:
        UserError: as `open_splits`; or there are no images, or no such training images.
    """
    opened = open_splits(data)
    if not opened.splits:
        raise UserError(f"{data.location}: found no images. Use a folder or data set with images.")
    splits = dict(opened.splits)
    if not isinstance(data.test, str):
        train = _roles(data, False, splits).train
        cut = cut_test(splits[train], data)
        assert cut is not None
        splits[train] = cut.kept
        splits[name_of_test_share(splits)] = cut.part
    return opened._replace(splits={name: _shown(source, data) for name, source in splits.items()})


def name_of_test_share(splits: Collection[str]) -> str:
    """Return a name for the share of data.test that differs from the splits' names."""
    return "test_share" if any(ROLE.get(name.lower()) == "test" for name in splits) else "test"


def _shown(source: Source, data: Data) -> Source:
    """Return the source, without labels if data.labels=false."""
    return source if data.labels else source.without_labels()


def _check_authors(data: Data, train: Source) -> None:
    """Check that a data set of PUBLISHED_TRAIN_SIZES has its authors' training split.

    Raises:
        UserError: the number of training images differs.
    """
    wanted = PUBLISHED_TRAIN_SIZES.get(data.name)
    if wanted is not None and len(train) != wanted:
        raise UserError(
            f"data={data.name}: {data.place} has {len(train):,} training images, but published"
            f" results use {wanted:,}. To train on these images, leave out data={data.name}."
        )


def _roles(data: Data, test: bool, splits: Mapping[str, Any]) -> Roles:
    """Decide which split has which role.

    Without a test split, the validation split is used for testing, and a share of train is held
    out, as is usual for ImageNet: whatever chooses hyperparameters must not see test images.

    Raises:
        UserError: a split does not exist, or is the split to train on.
    """
    train = _split(data.train, "data.train", data, splits)
    default = _by_default(train, splits)
    tested = split_to_test(data, splits, train)
    stands_in = tested is not None and layout.choose(str(data.test), splits) is None
    if test and isinstance(data.test, str) and not stands_in:
        tested = _split(data.test, "data.test", data, splits, train)
    validation = default if data.validation is None and default != tested else None
    if isinstance(data.validation, str):
        validation = _split(data.validation, "data.validation", data, splits, train)
    return Roles(train, validation, tested if test or stands_in else None, stands_in)


def split_to_test(data: Data, splits: Mapping[str, Any], train: str) -> str | None:
    """Return the split that data.test= names, or the validation split in place of a missing one.

    The validation split is used if no split has the role of data.test and data.validation= names
    no split. Return None if there is no such split either, and if data.test is a share.
    """
    if not isinstance(data.test, str):
        return None
    named = layout.choose(data.test, splits)
    free = ROLE.get(data.test) == "test" and not isinstance(data.validation, str)
    return _by_default(train, splits) if named is None and free else named


def _split(
    name: str, key: str, data: Data, splits: Mapping[str, Any], train: str | None = None
) -> str:
    """Return the split of this name, or a split of another name for the same role.

    Args:
        name, key: the split, and the key that names it.
        data, splits: the options of the data, and all splits.
        train: the split to train on.

    Raises:
        UserError: there is no such split, or it is the split of data.train.
    """
    if not splits:
        raise UserError(f"{data.location}: found no images. Use a folder or data set with images.")
    chosen = layout.choose(name, splits)
    share = "data.validation=0" if data.stream else f"a share of train such as {key}=0.1"
    if chosen is None:
        text = f"{key}={name}: no split with this name has images ({suggest(name, splits)})"
        if key == "data.test":
            raise _no_test_split(text, splits[str(train)], data)
        more = f" or {share}" if key == "data.validation" else ""
        raise UserError(f"{text}. Use another split{more}.")
    if chosen == train:
        choices = " or ".join([*(split for split in splits if split != chosen), share])
        raise UserError(
            f"{key}={name}: this is the training split (data.train={data.train}). Use {choices}."
        )
    return chosen


def _with_answers(source: Source) -> int:
    """Count the images that have a label, or all images if the split has masks."""
    if source.masks.column:
        return len(source)
    return len(labelled_images(source)) if source.labels.lowest_and_highest[1] >= 0 else 0


def _no_test_split(text: str, train: Source, data: Data) -> NoTestSplit:
    labelled = (data.labels and train.labels.lowest_and_highest[1] >= 0) or bool(train.masks.column)
    add = "test images, such as a folder test/ next to train/"
    remedy = f"Use a share of train with data.test={TEST_SHARE}, or add {add}"
    if not labelled:  # a share of train would have no labels either
        remedy = f"Add labels, such as a folder for each class, and {add}"
    return NoTestSplit(f"{text}. {remedy}.", labelled)


def _by_default(train: str, splits: Mapping[str, Any]) -> str | None:
    """Return the first validation split that is not the split to train on."""
    return next((name for name in HELD_OUT if name in splits and name != train), None)


def _held_out(train: Source, roles: Roles, splits: Mapping[str, Source], data: Data) -> Cut:
    """Return the training images and the held-out images: a split, or a share of train.

    With data.validation=0 nothing is held out, and evaluations see training images.
    """
    if roles.validation is not None:
        return Cut(train, splits[roles.validation])
    if data.validation == 0:
        rows = permuted(train, held_out_count(None, len(train)), HELD_OUT_KEY)
        return Cut(train, train.subset(rows))
    return cut_held_out(train, data)


def _missing_classes(
    train: Source, others: Mapping[str, Source | None], share: bool, data: Data
) -> list[str]:
    """Return warnings about classes without training images, or without images in a test share.

    Args:
        train: the images to train on, before data.share and before images are held out.
        others: the held-out images and the test images.
        share: whether the test images are a share of the training split.
        data: options that name the place.

    Raises:
        UserError: no class of the test images has training images.
    """
    trained = _classes_of(train)
    warnings: list[str] = []
    if not trained:
        return warnings
    for name, source in others.items():
        known = set() if source is None else _classes_of(source)
        if source is None or not known - trained:
            continue
        unknown = class_names(source, sorted(known - trained))
        if name == "test" and not known & trained:
            text = f"test images have the classes {unknown}, and training images"
            text += f" {class_names(train, sorted(trained))}"
            raise UserError(f"data.test={data.test}: {text}. Use the same classes.")
        warnings.append(
            f"{data.location}: the training images lack classes of the {name} images: {unknown}"
        )
    tested = others.get("test")
    if share and tested is not None and (gone := sorted(trained - _classes_of(tested))):
        warnings.append(
            f"data.test={data.test}: the test images lack the classes {class_names(train, gone)}"
        )
    return warnings


def _classes_of(source: Source) -> set[int]:
    label_N = np.unique(source.label_of(np.arange(len(source))))
    return set(label_N[label_N >= 0].tolist())


def _streamed(data: Data, first: int, seed: int) -> Splits:
    """Return the stream of training images, and the first training and held-out images."""
    opened = open_streams(data)
    name = _split(data.train, "data.train", data, opened.splits)
    held_out: Any = data.validation
    if isinstance(held_out, str):
        held_out = _split(held_out, "data.validation", data, opened.splits, name)
    elif held_out is None:
        held_out = _by_default(name, opened.splits)
    if held_out is None:
        others = [f"data.validation={split}" for split in opened.splits if split != name]
        choices = " or ".join([*others, "data.validation=0 to hold out no images"])
        raise UserError(
            f"data.validation=null: {data.location} has no validation split. Use {choices}."
        )
    train = opened.splits[name](seed)
    used = [name]
    guesses = [f"{data.location}: {text}" for text in dict.fromkeys(opened.guesses)]
    if data.validation is None and held_out == split_to_test(data, opened.splits, name):
        guesses.append(
            f"{data.location}: there is no test split, so {held_out} is both held out and tested on"
        )
    seen = preview = train.take(first, WINDOW_BYTES)
    if isinstance(held_out, str):
        seen = opened.splits[held_out](0).take(first)
        used.append(held_out)
    notes = [f"{name}: a stream from {data.place}" for name in used]
    notes += _beside(opened, used, list(opened.splits))
    notes.append(f"labels: {describe_labels(preview, data)}")
    return Splits(preview, seen, stream=train, notes=tuple(notes), guesses=tuple(guesses))


def _beside(opened: Found, used: Collection[str], texts: Sequence[str]) -> list[str]:
    """Describe which splits are not used, in the words of `texts`, and what was left out."""
    unused = [text for name, text in zip(opened.splits, texts, strict=True) if name not in used]
    notes = [f"not used: {', '.join(unused)}"] if unused else []
    return notes + ([f"left out: {', '.join(opened.skipped)}"] if opened.skipped else [])


def _notes(
    opened: Found, data: Data, roles: Roles, train: Source, held_out: Cut, test: Cut | None
) -> tuple[str, ...]:
    """Describe the origin of each split in a line each, what was left out, and the labels."""
    labels = data.labels and bool(opened.splits[roles.train].labels.source)

    def split(name: str) -> str:
        return f"{_many(opened.splits[name], labels)} from {data.place}, split {name}"

    notes = [f"train: {split(roles.train)}"]
    if data.share != 1:
        rest = "" if data.validation_from == "share" else " after images are held out"
        notes[0] += f", reduced to data.share={data.share:g}{rest}"
    if roles.validation is not None:
        notes.append(f"validation: {split(roles.validation)}")
    elif data.validation == 0:
        count = len(held_out.part)
        notes.append(f"validation: none, so training images are evaluated instead ({count:,})")
    else:
        notes.append(f"validation: {_taken(held_out, labels)}, {len(train):,} left for training")
    if test is not None:
        notes.append(f"test: {_taken(test, labels)}, not used for training")
    if roles.test is not None:
        why = " (no test split, so a share of train is held out)" if roles.stands_in else ""
        notes.append(f"test: {split(roles.test)}{why}")
    texts = [f"{name} ({_many(source, labels)})" for name, source in opened.splits.items()]
    notes += _beside(opened, [str(name) for name in roles[:3]], texts)
    notes.append(f"labels: {describe_labels(opened.splits[roles.train], data)}")
    return tuple(notes)


def _taken(cut: Cut, labels: bool) -> str:
    """Describe how many images were cut off, and how."""
    how = f" ({cut.how})" if cut.how else ""
    return f"{_many(cut.part, labels)} taken from train{how}"


def describe_labels(source: Source, data: Data) -> str:
    """Describe where labels come from, with the names of the first classes."""
    if not data.labels:
        return "none (data.labels=false)"
    if not source.labels.source:
        return "none"
    text = source.labels.source
    if source.classes:
        text += f", {len(source.classes):,} classes: {some(source.classes)}"
    unless = ". If folders are no classes, use data.labels=false"
    return text + (unless if source.labels.source == FOLDERS else "")


def _many(source: Source, labels: bool) -> str:
    """Describe how many images there are and, with `labels`, how many have a label."""
    text, known = count_of_images(len(source)), source.labels.lowest_and_highest[1] >= 0
    labelled = len(labelled_images(source)) if known else 0
    if labels and labelled < len(source):
        text += f" ({labelled:,} labelled)"
    return text + (source.labels.lists.describe() if source.labels.lists else "")
