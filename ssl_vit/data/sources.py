"""The recipe's `data` -> one Source per split (embedded, shards, image folder, Hub)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .. import rng
from ..config.images import EMBEDDED, Data
from ..config.split_counts import held_out_count, share_count
from ..errors import UserError, suggest
from . import formats, layout, synthetic
from .base import (
    FullSource,
    Masks,
    PartlyLabelled,
    ReadUnits,
    ShardedSubset,
    Source,
    Stratified,
    Subset,
    View,
)
from .formats import FoundSplits, FoundStreams
from .layout import HELD_OUT
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
        each_U = np.ones(len(self), np.int64)
        return ReadUnits(each_U, each_U * 3 * self.size**2)

    def name(self, row: int) -> str:
        return f"{self.split} image {row}"


HELD_OUT_KEY = 1  # of the permutation by which a share is held out
SHARE_KEY = 3  # of that by which data.share is taken


class Splits(NamedTuple):
    """The splits of a run.

    Attributes:
        train: the training images; with a stream, its first ones.
        validation: the held-out images.
        test: the test split, where it was requested.
        stream: what is trained on, where data.stream=true.
        notes: what each split was read from, and what was left out.
        guesses: assumptions about the data; each is printed as a warning.
    """

    train: Source
    validation: Source
    test: Source | None = None
    stream: Stream | None = None
    notes: tuple[str, ...] = ()
    guesses: tuple[str, ...] = ()


def every_split(data: Data) -> FoundSplits:
    """Each split that a recipe's `data` names; with a window, in shards.

    Raises:
        UserError: a place that holds no images or, with a window, no shards.
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


def in_parquet(data: Data) -> bool:
    """Whether a recipe's `data` are local parquet files, which can be read in place."""
    return bool(data.path and formats.inspect_path(Path(data.path)).kind == "parquet")


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
    if _outside(data):
        kept, validation = _held_out(whole, splits, data)
        train = _subset(kept, data)
    else:
        train, validation = _held_out(_subset(whole, data), splits, data)
    train = _partly_labelled(train, data)
    tested = splits[names["data.test"]] if test else None
    notes = _notes(found, data, names, train, validation)
    return Splits(train, validation, tested, notes=notes, guesses=_guesses(found, data))


def _check_authors(data: Data, train: Source) -> None:
    """Check that a set of PUBLISHED_TRAIN_SIZES is split as its authors did.

    Raises:
        UserError: it is not.
    """
    wanted = PUBLISHED_TRAIN_SIZES.get(data.name)
    if wanted is not None and len(train) != wanted:
        raise UserError(
            f"data={data.name}: {_place(data)} has {len(train):,} training images, its "
            f"authors' division {wanted:,}: "
            "results would not compare; leave data= out to train on these"
        )


def _named(data: Data, test: bool, splits: Mapping[str, Any]) -> dict[str, str]:
    """{key: split} for the keys that name one: the split of that name or, where there is none, of
    another name for the same role.

    Raises:
        UserError: there is none.
    """
    names = {"data.train": data.train}
    if test:
        names["data.test"] = data.test
    if isinstance(data.validation, str):
        names["data.validation"] = data.validation
    found: dict[str, str] = {}
    for key, name in names.items():
        chosen = layout.choose(name, splits)
        if chosen is None:
            more = ", or a share of train" if key == "data.validation" and not data.stream else ""
            if key == "data.test":
                more = f"; {_place(data)} lacks {_untested(splits[found['data.train']])}"
            raise UserError(f"{key}={name}: no such split; {suggest(name, splits)}{more}")
        found[key] = chosen
    return found


def _untested(train: Source) -> str:
    """What images without a test split lack for a test: labels too, if they have no masks."""
    lacks = "test images (a folder test/ beside train/)"
    if train.label_range[1] >= 0 or train.masks.column:
        return f"{lacks}; fine-tuning goes without by eval.test=false"
    return f"labels (a folder for each class) and {lacks}"


def _streamed(data: Data, first: int, seed: int) -> Splits:
    """The training images as a stream, and the first images of it and of the held-out split."""
    found = formats.find_streams(data)
    names = _named(data, False, found.splits)
    held_out = names.get("data.validation", data.validation)
    if held_out is None:
        held_out = next((name for name in HELD_OUT if name in found.splits), None)
    if held_out is None:
        choices = f"expected one of {', '.join(found.splits)}, or 0 for none"
        raise UserError(
            f"data.validation=null: {formats.location(data)} has no split for it; {choices}"
        )
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
    return Splits(train.take(first), seen.take(first), None, train, tuple(notes), guesses)


def _guesses(found: FoundSplits | FoundStreams, data: Data) -> tuple[str, ...]:
    return tuple(f"{formats.location(data)}: {text}" for text in dict.fromkeys(found.guesses))


def _notes(
    found: FoundSplits, data: Data, names: dict[str, str], train: Source, validation: Source
) -> tuple[str, ...]:
    """What each split was read from, a line each, and what was left out."""
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
        notes.append(
            f"validation: none; {len(validation):,} of train are looked at, and trained on"
        )
    else:
        kept = f"which keeps {len(train):,}"
        if data.share != 1 and _outside(data):
            rest = len(whole) - len(validation)
            kept += f": data.share={data.share:g} of the other {rest:,}"
        notes.append(f"validation: {len(validation):,} images taken from train, {kept}")
    if isinstance(train, PartlyLabelled):
        notes.append(f"labels: shown for {len(train.shown):,} of {len(train):,} training images")
    if "data.test" in names:
        tested = names["data.test"]
        notes.append(f"test: {_many(found.splits[tested])} from {place}{_under(tested)}")
    used = {*names.values(), held_out}
    unused = [f"{name} ({len(x):,} images)" for name, x in found.splits.items() if name not in used]
    if unused:
        notes.append(f"not used: {', '.join(unused)}")
    if found.skipped:
        notes.append(f"left out: {', '.join(found.skipped)}")
    return tuple(notes)


def _outside(data: Data) -> bool:
    """Whether a held-out share is cut off all training images, not off those of data.share."""
    return data.validation_from == "train"


def _many(source: Source) -> str:
    classes = f" in {len(source.classes):,} classes" if source.classes else ""
    lists = source.lists.describe() if source.lists else ""
    return f"{len(source):,} images{classes}{lists}"


def _under(split: str) -> str:
    return f", its split {split}"


def _place(data: Data) -> str:
    return data.path or data.hub or f"data={data.name}"


def _subset(train: Source, data: Data) -> Source:
    """The share data.share of the training images."""
    if data.share == 1:
        return train
    return _drawn(train, data.share, data)


def _partly_labelled(train: Source, data: Data) -> Source:
    """The training images with labels for the share data.labelled alone: the images that
    data.share would take of them."""
    if data.labelled == 1:
        return train
    return PartlyLabelled(train, _drawn(train, data.labelled, data))


def _drawn(train: Source, share: float, data: Data) -> View:
    """A share of the training images: a smaller one lies inside a larger one.

    Raises:
        UserError: data.share_seed beside images without labels or with lists of them, or no rows.
    """
    count = share_count(share, len(train))
    if data.share_seed is None:
        return _part(train, 0, count, SHARE_KEY, data)
    if train.lists is not None or train.label_range[1] < 0:
        reason = "takes shares of classes, and the training images have not one label each"
        raise UserError(f"data.share_seed={data.share_seed}: {reason}")
    return Stratified(train, count, rng.key(SHARE_KEY, data.share_seed))


def labelled_images(train: Source) -> Source:
    """The training images whose labels are shown."""
    return train.shown if isinstance(train, PartlyLabelled) else train


def _part(whole: Source, first: int, last: int, key: int, data: Data) -> Subset | ShardedSubset:
    """Positions first .. last-1 of a permuted source; with a window, the same share of every shard.

    Raises:
        UserError: that are no rows.
    """
    if not data.window:
        return Subset(whole, first, last, key)
    part = ShardedSubset(whole, first, last, key)
    if not len(part):
        text = f"{last - first} of {len(whole)} images in {len(part.sizes_S)} shards come to none"
        raise UserError(
            f"data.window={data.window}: {text}; expected a larger data.share=, data.labelled= or"
            " data.validation="
        )
    return part


def _held_out_name(data: Data, splits: dict[str, Source]) -> str | None:
    """The split that is held out; None where it is a share of train, or nothing."""
    if isinstance(data.validation, str):
        return layout.choose(data.validation, splits)
    if data.validation is not None:
        return None
    return next((name for name in HELD_OUT if name in splits and len(splits[name])), None)


def _held_out(train: Source, splits: dict[str, Source], data: Data) -> tuple[Source, Source]:
    """The training images and the held-out ones: a split, or a share of train. With
    data.validation=0 nothing is held out, and evaluations see training images."""
    name = _held_out_name(data, splits)
    if name is not None:
        return train, splits[name]
    share = data.validation if isinstance(data.validation, float) and data.validation else None
    count = held_out_count(share, len(train))
    if data.validation == 0:
        return train, _part(train, 0, count, HELD_OUT_KEY, data)
    if len(train) < 2:
        raise UserError(f"data.train={data.train}: {len(train)} images; expected at least 2")
    kept = _part(train, count, len(train), HELD_OUT_KEY, data)
    return kept, _part(train, 0, count, HELD_OUT_KEY, data)
