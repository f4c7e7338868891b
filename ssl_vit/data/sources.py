"""The recipe's `data` -> one Source per split (embedded, files, Hub)."""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..errors import UserError, suggest
from ..formatting import count_of_images, some
from ..recipe.images import EMBEDDED, Data
from ..recipe.split_counts import held_out_count
from . import formats, layout, shares, synthetic
from .base import FullSource, Masks, ReadUnits, Rows, Source, Subset, WithoutLabels
from .formats import FoundSplits, FoundStreams
from .image_files import FOLDERS
from .label_lists import UNLABELLED
from .layout import HELD_OUT, ROLE
from .open_datasets import location
from .shares import Cut
from .streaming import PREVIEW, Stream

# Training images of the split that papers report on, for sets that are also published with another:
# copies of flowers102 on the Hub train on 7,169 images, most of them of the authors' test split.
PUBLISHED_TRAIN_SIZES = {"flowers102": 1020}


class SyntheticImages(FullSource):
    """A split of the embedded set; images are generated when they are fetched."""

    def __init__(self, split: str, size: int) -> None:
        self.split = split
        self.size = size
        self.classes = list(synthetic.CLASSES)
        self.label_source = "the kind of shape"
        self.masks = Masks("drawn", "", len(synthetic.MASK_CLASSES))

    def measured_range(self) -> tuple[int, int]:
        return 0, len(self.classes) - 1

    def __len__(self) -> int:
        return synthetic.SIZES[self.split]

    def fetch(self, rows: np.ndarray) -> tuple[list[bytes | np.ndarray], np.ndarray]:
        images = list(synthetic.render(rows, self.size, self.split))
        return images, synthetic.labels(rows, self.split)

    def label_of(self, rows: np.ndarray) -> np.ndarray:
        return synthetic.labels(rows, self.split)

    def fetch_masks(self, rows: np.ndarray) -> list[bytes | np.ndarray]:
        return list(synthetic.masks(rows, self.size, self.split))

    def units(self) -> ReadUnits:
        return ReadUnits(np.full(len(self), 3 * self.size**2))

    def name(self, row: int) -> str:
        return f"{self.split} image {row}"


class Splits(NamedTuple):
    """The splits of a run.

    Attributes:
        train: the training images; with a stream, its first ones.
        validation: the held-out images.
        test: the test split or share, where it was requested.
        stream: what is trained on, where data.stream=true.
        notes: what each split was read from, and what was left out.
        guesses: assumptions about the data; each is printed as a warning.
        label_source: what the training images have one label each of; empty where they have none,
            or lists.
    """

    train: Source
    validation: Source
    test: Source | None = None
    stream: Stream | None = None
    notes: tuple[str, ...] = ()
    guesses: tuple[str, ...] = ()
    label_source: str = ""
    clipped: Mapping[str, float] = {}


def every_split(data: Data) -> FoundSplits:
    """Each split that a recipe's `data` names.

    Raises:
        UserError: a place that holds no images.
    """
    if data.name == EMBEDDED and not (data.path or data.hub):
        if data.channels != 3:
            text = f"data={EMBEDDED} is drawn in 3; for other images data.path= or data.hub="
            raise UserError(f"data.channels={data.channels}: {text}")
        splits: dict[str, Source] = {
            split: SyntheticImages(split, data.size) for split in synthetic.SIZES
        }
        return FoundSplits(splits, [], [])
    return formats.find_splits(data)


def every_part(data: Data) -> FoundSplits:
    """Each split that a recipe's `data` names, as `load` divides them for testing: with a share in
    data.test, the training images without it, and it as a split of its own.

    Raises:
        UserError: as `every_split`, or no such training images.
    """
    found = every_split(data)
    splits = dict(found.splits)
    if not isinstance(data.test, str):
        train = _named(data, False, splits)["data.train"]
        cut = shares.cut_test(splits[train], data)
        assert cut is not None
        splits[train] = cut.kept
        splits[name_of_test_share(splits)] = cut.part
    return found._replace(splits={name: _shown(one, data) for name, one in splits.items()})


def name_of_test_share(splits: Collection[str]) -> str:
    """What the share of data.test is called among other splits."""
    return "test_share" if any(ROLE.get(name.lower()) == "test" for name in splits) else "test"


def _shown(source: Source, data: Data) -> Source:
    """The source, with data.labels=false without its labels."""
    return source if data.labels else WithoutLabels(source)


def load(data: Data, test: bool = False, first: int = PREVIEW, seed: int = 0) -> Splits:
    """The splits that a recipe's `data` names.

    Args:
        data: where images come from.
        test: load the test split too.
        first: of a stream, how many images `train` and `validation` have.
        seed: of a stream's order.

    Raises:
        UserError: a place without images, no such split or column, or a split without images.
    """
    if data.stream:
        return _streamed(data, first, seed)
    found = every_split(data)
    splits = found.splits
    names = _named(data, test, splits)
    for key, name in names.items():
        if not len(splits[name]):
            filled = ", ".join(other for other, source in splits.items() if len(source)) or "none"
            text = f"{_place(data)} has no images in that split; splits with images: {filled}"
            raise UserError(f"{key}={name}: {text}")
    _check_authors(data, splits[names["data.train"]])
    whole = splits[names["data.train"]]
    share = shares.cut_test(whole, data)
    rest = whole if share is None else share.kept
    if _outside(data):
        held_out = _held_out(rest, splits, data)
        train = shares.training_share(held_out.kept, data)
    else:
        held_out = _held_out(shares.training_share(rest, data), splits, data)
        train = held_out.kept
    tested = None
    if test:
        tested = splits[names["data.test"]] if share is None else share.part
    return Splits(
        _shown(train, data),
        _shown(held_out.part, data),
        None if tested is None else _shown(tested, data),
        notes=_notes(found, data, names, train, held_out, share),
        guesses=(*_guesses(found, data), *_same_held_out(data, names, splits)),
        label_source=whole.label_source if data.labels and whole.lists is None else "",
    )


def _check_authors(data: Data, train: Source) -> None:
    """Check that a set of PUBLISHED_TRAIN_SIZES is split as its authors did.

    Raises:
        UserError: it is not.
    """
    wanted = PUBLISHED_TRAIN_SIZES.get(data.name)
    if wanted is not None and len(train) != wanted:
        raise UserError(
            f"data={data.name}: {_place(data)} has {len(train):,} training images, its authors'"
            f" division {wanted:,}: results would not compare; leave data= out to train on these"
        )


def _named(data: Data, test: bool, splits: Mapping[str, Any]) -> dict[str, str]:
    """{key: split} for the keys that name one: the split of that name or, where there is none, of
    another name for the same role.

    Raises:
        UserError: there is none, or it is that of data.train.
    """
    names = {"data.train": data.train}
    if test and isinstance(data.test, str):
        names["data.test"] = data.test
    if isinstance(data.validation, str):
        names["data.validation"] = data.validation
    found: dict[str, str] = {}
    for key, name in names.items():
        chosen = layout.choose(name, splits)
        if chosen is None:
            more = ", or a share of train" if key == "data.validation" and not data.stream else ""
            text = f"{key}={name}: no such split; {suggest(name, splits)}"
            if key == "data.test":
                train = splits[found["data.train"]]
                labelled = (data.labels and train.label_range[1] >= 0) or bool(train.masks.column)
                lacks = "test images (a folder test/ beside train/)"
                if not labelled:
                    lacks = f"labels (a folder for each class) and {lacks}"
                share = f"or a share of train: data.test=0.2; {_place(data)} lacks {lacks}"
                raise layout.NoTestSplit(f"{text}, {share}", labelled)
            raise UserError(f"{text}{more}")
        if chosen == found.get("data.train"):
            others = ", ".join(split for split in splits if split != chosen)
            choices = f"{others}, or a share of train" if others else "a share of train"
            raise UserError(
                f"{key}={name}: is what data.train={data.train} names; choices: {choices}"
            )
        found[key] = chosen
    return found


def _same_held_out(data: Data, names: Mapping[str, str], splits: dict[str, Source]) -> list[str]:
    """A warning where the test images are the held-out ones."""
    if "data.test" not in names or names["data.test"] != _held_out_name(data, splits):
        return []
    what = "its images are the held-out ones too, on which hyperparameters may be chosen"
    return [f"data.test={data.test}: {what}"]


def _streamed(data: Data, first: int, seed: int) -> Splits:
    """The training images as a stream, and the first images of it and of the held-out split."""
    found = formats.find_streams(data)
    names = _named(data, False, found.splits)
    named = names.get("data.validation", data.validation)
    held_out = _by_default(data, found.splits) if named is None else named
    if held_out is None:
        choices = f"expected one of {', '.join(found.splits)}, or 0 for none"
        raise UserError(f"data.validation=null: {location(data)} has no split for it; {choices}")
    train = found.splits[names["data.train"]](seed)
    seen = train
    used = [names["data.train"]]
    if isinstance(held_out, str):
        seen = found.splits[held_out](0)
        used.append(held_out)
    notes = [f"{name}: a stream from {_place(data)}" for name in used]
    unused = [name for name in found.splits if name not in used]
    if unused:
        notes.append(f"not used: {', '.join(unused)}")
    if found.skipped:
        notes.append(f"left out: {', '.join(found.skipped)}")
    guesses = _guesses(found, data)
    preview = train.take(first)
    notes.append(f"labels: {describe_labels(preview, data)}")
    return Splits(preview, seen.take(first), None, train, tuple(notes), guesses)


def _guesses(found: FoundSplits | FoundStreams, data: Data) -> tuple[str, ...]:
    return tuple(f"{location(data)}: {text}" for text in dict.fromkeys(found.guesses))


def _notes(
    found: FoundSplits,
    data: Data,
    names: dict[str, str],
    train: Source,
    cut: Cut,
    test: Cut | None,
) -> tuple[str, ...]:
    """What each split was read from, a line each, what was left out, and what labels are.

    Args:
        found, data, names: every split, and the wanted ones.
        train: the training images.
        cut: the held-out images.
        test: the test images, where they are a share of the training images.
    """
    place = _place(data)
    chosen = names["data.train"]
    whole = found.splits[chosen]
    inside = data.share != 1 and not _outside(data)
    share = f", of which data.share={data.share:g}" if inside else ""
    notes = [f"train: {_many(whole)} from {place}{_under(chosen)}{share}"]
    held_out = _held_out_name(data, found.splits)
    if held_out is not None:
        notes.append(f"validation: {_many(found.splits[held_out])} from {place}{_under(held_out)}")
    elif data.validation == 0:
        notes.append(f"validation: none; {len(cut.part):,} of train are looked at, and trained on")
    else:
        kept = f"which keeps {len(train):,}"
        if data.share != 1 and _outside(data):
            rest = len(whole) - len(cut.part) - (len(test.part) if test else 0)
            kept += f": data.share={data.share:g} of the other {rest:,}"
        notes.append(f"validation: {_taken(cut)}, {kept}")
    if test is not None:
        notes.append(f"test: {_taken(test)}, which this run does not train on")
    if "data.test" in names:
        tested = names["data.test"]
        notes.append(f"test: {_many(found.splits[tested])} from {place}{_under(tested)}")
    used = {*names.values(), held_out}
    unused = [f"{name} ({_many(x)})" for name, x in found.splits.items() if name not in used]
    if unused:
        notes.append(f"not used: {', '.join(unused)}")
    if found.skipped:
        notes.append(f"left out: {', '.join(found.skipped)}")
    notes.append(f"labels: {describe_labels(whole, data)}")
    return tuple(notes)


def _taken(cut: Cut) -> str:
    """How many images were cut off, and how."""
    return f"{count_of_images(len(cut.part))} taken from train{f' ({cut.how})' if cut.how else ''}"


def describe_labels(source: Source, data: Data) -> str:
    """What was taken for labels, with the first classes' names."""
    if not data.labels:
        return "none, data.labels=false"
    if not source.label_source:
        return "none"
    text = source.label_source
    if source.classes:
        text += f", {len(source.classes):,} classes: {some(source.classes)}"
    unless = "; data.labels=false where they are none" if source.label_source == FOLDERS else ""
    return f"{text}{unless}"


def _outside(data: Data) -> bool:
    """Whether a held-out share is cut off all training images, not off those of data.share."""
    return data.validation_from == "train"


def _many(source: Source) -> str:
    return count_of_images(len(source)) + (source.lists.describe() if source.lists else "")


def _under(split: str) -> str:
    return f", its split {split}"


def _place(data: Data) -> str:
    return data.path or data.hub or f"data={data.name}"


def labelled_images(train: Source) -> Source:
    """The training images that have a label, or a list of them."""
    lowest, highest = train.label_range
    if lowest >= 0 or highest < 0:
        return train
    label_N = train.label_of(np.arange(len(train)))
    first_N = label_N if label_N.ndim == 1 else label_N[:, 0]
    return Rows(train, np.flatnonzero(first_N != UNLABELLED))


def _held_out_name(data: Data, splits: dict[str, Source]) -> str | None:
    """The split that is held out; None where it is a share of train, or nothing."""
    if isinstance(data.validation, str):
        return layout.choose(data.validation, splits)
    if data.validation is not None:
        return None
    return _by_default(data, {name for name, source in splits.items() if len(source)})


def _by_default(data: Data, splits: Collection[str]) -> str | None:
    """The split that data.validation=null holds out, never that which is trained on."""
    trained = layout.choose(data.train, splits)
    return next((name for name in HELD_OUT if name in splits and name != trained), None)


def _held_out(train: Source, splits: dict[str, Source], data: Data) -> Cut:
    """The training images and the held-out ones: a split, or a share of train. With
    data.validation=0 nothing is held out, and evaluations see training images."""
    name = _held_out_name(data, splits)
    if name is not None:
        return Cut(train, splits[name], "")
    if data.validation == 0:
        count = held_out_count(None, len(train))
        return Cut(train, Subset(train, 0, count, shares.HELD_OUT_KEY), "")
    return shares.cut_held_out(train, data)
