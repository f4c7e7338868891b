"""Where pictures come from: a data set's name or place -> a Source per split (embedded, shards, image folder, Hub)."""

from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np

from ..recipe import EMBEDDED, LEARNS_LABELS, OBJECTIVES, Data, Recipe, UserError, nearest
from . import formats, layout, shapes
from .formats import Found, Streams
from .layout import HELD_OUT
from .parts import Part, Sharded, ShardedPart, Source, Units
from .stream import FIRST, Stream

# Sets of which other divisions than their authors' are about: training pictures of the one that papers report on. Copies on
# the Hub train on 7,169 of the flowers, most of them the authors' test.
AUTHORS = {"flowers102": 1020}


class Shapes:
    """A split of the embedded set, drawn when asked for."""

    def __init__(self, split: str, size: int) -> None:
        self.split, self.size, self.classes, self.columns = split, size, list(shapes.CLASSES), ""

    @property
    def labels(self) -> tuple[int, int]:
        return 0, len(self.classes) - 1

    def __len__(self) -> int:
        return shapes.SIZES[self.split]

    def fetch(self, rows: np.ndarray) -> tuple[list[bytes | np.ndarray], np.ndarray]:
        return list(shapes.draw(rows, self.size, self.split)), shapes.label(rows, self.split)

    def label_of(self, rows: np.ndarray) -> np.ndarray:
        return shapes.label(rows, self.split)

    def units(self) -> Units:
        each_U = np.ones(len(self), np.int64)
        return Units(each_U, each_U * 3 * self.size**2)

    def forget(self) -> None:
        pass

    def name(self, row: int) -> str:
        return f"{self.split} picture {row}"


HELD_OUT_KEY, SHARE_KEY = 1, 3  # of the permutations by which a share is held out, and by which a subset is taken


class Splits(NamedTuple):
    train: Source
    validation: Source
    test: Source | None = None  # where it is asked for
    stream: Stream | None = None  # what is trained on, where it is one; `train` are then its first pictures
    told: tuple[str, ...] = ()  # what was taken for what, and what was left out
    guesses: tuple[str, ...] = ()  # each is worth a warning


def every_split(data: Data) -> Found:
    """Each split that a recipe's `data` names; with a window, in shards.

    Raises:
        UserError: a place that holds no pictures or, with a window, no shards.
    """
    if data.name == EMBEDDED and not (data.path or data.hub):
        return Found(_embedded(data), [], [])
    return formats.find(data)


def in_parquet(data: Data) -> bool:
    """Whether a recipe's `data` are parquet files here, which can be read in place."""
    return bool(data.path and formats.look(Path(data.path)).kind == "parquet")


def load(data: Data, test: bool = False, first: int = FIRST, seed: int = 0) -> Splits:
    """The training, the held-out and, if asked for, the test split that a recipe's `data` names. Of a stream, `first` pictures
    stand for a split, and `seed` permutes what is trained on.

    Raises:
        UserError: a place that holds no pictures, a split or a column that is not there, a split without pictures.
    """
    if data.stream:
        return _streamed(data, first, seed)
    found = every_split(data)
    splits = found.splits
    names = _named(data, test, splits)
    for key, name in names.items():
        if not len(splits[name]):
            raise UserError(
                f"{key}={name}: {_place(data)} has no pictures in that split; splits with pictures: {_filled(splits)}"
            )
    _check_authors(data, splits[names["data.train"]])
    train, validation = _held_out(_subset(splits[names["data.train"]], data), splits, data)
    tested = splits[names["data.test"]] if test else None
    told = _told(found, data, names, train, validation)
    return Splits(train, validation, tested, told=told, guesses=_guesses(found, data))


def _check_authors(data: Data, train: Source) -> None:
    """That a set of which other divisions are about is divided as its authors did.

    Raises:
        UserError: it is not.
    """
    wanted = AUTHORS.get(data.name)
    if wanted is not None and len(train) != wanted:
        raise UserError(
            f"data={data.name}: {_place(data)} has {len(train):,} training pictures, its authors' division {wanted:,}: "
            "results would not compare; leave data= out to train on these"
        )


def _named(data: Data, test: bool, splits: Collection[str]) -> dict[str, str]:
    """For the keys that name a split the split, which is there, by that or another name of its role."""
    names = {"data.train": data.train} | ({"data.test": data.test} if test else {})
    if isinstance(data.validation, str):
        names["data.validation"] = data.validation
    found: dict[str, str] = {}
    for key, name in names.items():
        chosen = layout.choose(name, splits)
        if chosen is None:
            more = ", or a share of train" if key == "data.validation" and not data.stream else ""
            raise UserError(f"{key}={name}: no such split; {nearest(name, splits)}{more}")
        found[key] = chosen
    return found


def _streamed(data: Data, first: int, seed: int) -> Splits:
    """Splits that are read from their beginning: the training pictures as a stream, and the first of both."""
    found = formats.streams(data)
    names = _named(data, False, found.splits)
    held_out = names.get("data.validation", data.validation)
    if held_out is None:
        held_out = next((name for name in HELD_OUT if name in found.splits), None)
    if held_out is None:
        choices = f"say one of {', '.join(found.splits)}, or 0 for none"
        raise UserError(f"data.validation=null: {formats.where(data)} has no split for it; {choices}")
    train = found.splits[names["data.train"]](seed)
    seen = found.splits[held_out](0) if isinstance(held_out, str) else train
    used = [names["data.train"], *([held_out] if isinstance(held_out, str) else [])]
    told = [f"{name}: a stream from {_place(data)}" for name in used]
    if unused := [name for name in found.splits if name not in used]:
        told.append(f"not used: {', '.join(unused)}")
    told += [f"left out: {', '.join(found.left)}"] if found.left else []
    guesses = _guesses(found, data)
    return Splits(train.take(first), seen.take(first), None, train, tuple(told), guesses)


def _guesses(found: Found | Streams, data: Data) -> tuple[str, ...]:
    return tuple(f"{formats.where(data)}: {text}" for text in dict.fromkeys(found.guesses))


def _told(found: Found, data: Data, names: dict[str, str], train: Source, validation: Source) -> tuple[str, ...]:
    """What was taken for what, a line each, and what was left out."""
    place, chosen = _place(data), names["data.train"]
    whole = found.splits[chosen]
    share = f", of which data.share={data.share:g}" if data.share != 1 else ""
    told = [f"train: {_many(whole)} from {place}{_under(chosen)}{share}"]
    held_out = _held_out_name(data, found.splits)
    if held_out is not None:
        told.append(f"validation: {_many(found.splits[held_out])} from {place}{_under(held_out)}")
    elif data.validation == 0:
        told.append(f"validation: none; {len(validation):,} of train are looked at, and trained on")
    else:
        told.append(f"validation: {len(validation):,} images taken from train, which keeps {len(train):,}")
    if "data.test" in names:
        tested = names["data.test"]
        told.append(f"test: {_many(found.splits[tested])} from {place}{_under(tested)}")
    used = {*names.values(), held_out}
    unused = [f"{name} ({len(x):,} images)" for name, x in found.splits.items() if name not in used]
    told += [f"not used: {', '.join(unused)}"] if unused else []
    told += [f"left out: {', '.join(found.left)}"] if found.left else []
    return tuple(told)


def _many(source: Source) -> str:
    classes = f" in {len(source.classes):,} classes" if source.classes else ""
    return f"{len(source):,} images{classes}"


def _under(split: str) -> str:
    return f", its split {split}"


def _place(data: Data) -> str:
    return data.path or data.hub or f"data={data.name}"


def _filled(splits: dict[str, Source]) -> str:
    return ", ".join(name for name, source in splits.items() if len(source)) or "none"


def _subset(train: Source, data: Data) -> Source:
    """The share of the training pictures that is asked for."""
    return train if data.share == 1 else _part(train, 0, max(1, round(data.share * len(train))), SHARE_KEY, data)


def _part(whole: Source, first: int, last: int, key: int, data: Data) -> Source:
    """Some rows of a source; with a window, some of every shard, so that they lie together.

    Raises:
        UserError: none.
    """
    if not data.window:
        return Part(whole, first, last, key)
    part = ShardedPart(cast(Sharded, whole), first, last, key)
    if not len(part):
        text = f"{last - first} of {len(whole)} pictures in {len(part.sizes_S)} shards come to none"
        raise UserError(f"data.window={data.window}: {text}; say a larger data.share=, or data.validation=")
    return part


def _held_out_name(data: Data, splits: dict[str, Source]) -> str | None:
    """The split that is held out; None where a share of train is, or nothing."""
    if isinstance(data.validation, str):
        return layout.choose(data.validation, splits)
    if data.validation is not None:
        return None
    return next((name for name in HELD_OUT if name in splits and len(splits[name])), None)


def _held_out(train: Source, splits: dict[str, Source], data: Data) -> tuple[Source, Source]:
    """What is trained on and what is held out of it: a split, a share of train, or with 0 nothing (then training pictures
    are looked at instead)."""
    name, held_out = _held_out_name(data, splits), data.validation
    if name is not None:
        return train, splits[name]
    count = round(held_out * len(train)) if isinstance(held_out, float) else 0
    count = count if held_out else min(len(train) // 100, 10_000)
    if held_out == 0:
        return train, _part(train, 0, max(1, count), HELD_OUT_KEY, data)
    if len(train) < 2:
        raise UserError(f"data.train={data.train}: {len(train)} pictures, at least 2 are needed")
    count = max(1, min(count, len(train) - 1))
    kept, taken = (_part(train, *ends, HELD_OUT_KEY, data) for ends in ((count, len(train)), (0, count)))
    return kept, taken


def _embedded(data: Data) -> dict[str, Source]:
    return {split: Shapes(split, data.size) for split in shapes.SIZES}


def classes(splits: Splits, recipe: Recipe) -> int:
    """How many classes the labels have; 0 where no objective asks for labels.

    Raises:
        UserError: labels are asked for and there are none, or one is out of range.
    """
    return known_classes(splits, recipe) if LEARNS_LABELS & set(OBJECTIVES[recipe.objective]) else 0


def known_classes(splits: Splits, recipe: Recipe) -> int:
    """How many classes the labels have.

    Raises:
        UserError: there are no labels, or one is out of range.
    """
    data = recipe.data
    named = {"train": splits.train, "validation": splits.validation} | ({"test": splits.test} if splits.test else {})
    for split, source in named.items():
        low, high = source.labels
        if high < 0:
            raise UserError(
                f"objective={recipe.objective}: data={data.name} has no labels in its {split} split{source.columns}"
            )
        known = data.classes or len(source.classes) or high + 1
        if low < -1 or high >= known:
            raise UserError(f"data={data.name}: labels from {low} to {high} in its {split} split, with {known} classes")
    return data.classes or len(splits.train.classes) or max(source.labels[1] for source in named.values()) + 1
