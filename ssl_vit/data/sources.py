"""Where pictures come from: a data set's name or place -> a Source per split (embedded, shards, image folder, Hub)."""

import glob
import hashlib
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple, cast

import datasets
import numpy as np
import pyarrow.compute
import pyarrow.parquet

from ..recipe import EMBEDDED, LEARNS_LABELS, OBJECTIVES, Data, Recipe, UserError, nearest
from . import columns, shapes, shards
from .parts import Part, Sharded, ShardedPart, Source
from .stream import FIRST, Stream

HELD_OUT = ("validation", "valid", "val", "dev")


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

    def name(self, row: int) -> str:
        return f"{self.split} picture {row}"


class Table:
    """A split of a `datasets.Dataset` whose pictures stay encoded until they are wanted."""

    def __init__(self, rows: datasets.Dataset, image: str, label: str | None) -> None:
        self.classes = columns.class_names(rows.features, label)
        self.rows = rows.select_columns([image] + ([label] if label else [])).cast_column(image, datasets.Image(decode=False))
        self.image, self.label = image, label
        self.columns = columns.described(rows.features)

    @property
    def labels(self) -> tuple[int, int]:
        if self.label is None:
            return -1, -1
        found = pyarrow.compute.min_max(pyarrow.compute.fill_null(self.rows.data.column(self.label), -1)).as_py()
        return found["min"], found["max"]

    def __len__(self) -> int:
        return len(self.rows)

    def fetch(self, rows: np.ndarray) -> tuple[list[bytes | np.ndarray], np.ndarray]:
        got = self.rows[rows.tolist()]
        images: list[bytes | np.ndarray] = [shards.encoded(cell) for cell in got[self.image]]
        labels = got[self.label] if self.label else [-1] * len(rows)
        return images, np.array([-1 if x is None else x for x in labels], np.int64)

    def label_of(self, rows: np.ndarray) -> np.ndarray:
        if self.label is None:
            return np.full(len(rows), -1, np.int64)
        got = self.rows.select_columns([self.label])[rows.tolist()][self.label]
        return np.array([-1 if x is None else x for x in got], np.int64)

    def name(self, row: int) -> str:
        cell = self.rows[row][self.image] or {"path": None}
        return f"row {row}" + (f" ({cell['path']})" if cell["path"] else "")


HELD_OUT_KEY, SHARE_KEY = 1, 3  # of the permutations by which a share is held out, and by which a subset is taken


class Splits(NamedTuple):
    train: Source
    validation: Source
    test: Source | None = None  # where it is asked for
    stream: Stream | None = None  # what is trained on, where it is one; `train` are then its first pictures


def every_split(data: Data) -> dict[str, Source]:
    """Each split that a recipe's `data` names; with a window, in shards.

    Raises:
        UserError: a place that holds no pictures or, with a window, no shards.
    """
    return _embedded(data) if data.name == EMBEDDED and not (data.path or data.hub) else _tables(data)


def in_parquet(data: Data) -> bool:
    """Whether a recipe's `data` are parquet files here, which can be read in place."""
    return bool(data.path and _shards(Path(data.path), "parquet"))


def load(data: Data, test: bool = False, first: int = FIRST, seed: int = 0) -> Splits:
    """The training, the held-out and, if asked for, the test split that a recipe's `data` names. Of a stream, `first` pictures
    stand for a split, and `seed` permutes what is trained on.

    Raises:
        UserError: a place that holds no pictures, a split or a column that is not there, a split without pictures.
    """
    if data.stream:
        return _streamed(data, first, seed)
    splits = every_split(data)
    for key, name in _named(data, test, splits).items():
        if not len(splits[name]):
            raise UserError(
                f"{key}={name}: {_place(data)} has no pictures in that split; splits with pictures: {_filled(splits)}"
            )
    train, validation = _held_out(_subset(splits[data.train], data), splits, data)
    return Splits(train, validation, splits[data.test] if test else None)


def _named(data: Data, test: bool, splits: Collection[str]) -> dict[str, str]:
    """The keys that name a split, all of which are there."""
    names = {"data.train": data.train} | ({"data.test": data.test} if test else {})
    if isinstance(data.validation, str):
        names["data.validation"] = data.validation
    for key, name in names.items():
        if name not in splits:
            more = ", or a share of train" if key == "data.validation" and not data.stream else ""
            raise UserError(f"{key}={name}: no such split; {nearest(name, splits)}{more}")
    return names


def _streamed(data: Data, first: int, seed: int) -> Splits:
    """Splits that are read from their beginning: the training pictures as a stream, and the first of both."""
    datasets.disable_progress_bars()
    where = _where(data)
    found = _opened(data, _shards(Path(data.path), "parquet") if data.path else {}, where)
    _named(data, False, found)
    held_out = next((name for name in HELD_OUT if name in found), None) if data.validation is None else data.validation
    if held_out is None:
        raise UserError(f"data.validation=null: {where} has no split for it; say one of {', '.join(found)}, or 0 for none")
    train = _stream(found[data.train], data, where, seed)
    seen = _stream(found[held_out], data, where, 0) if isinstance(held_out, str) else train
    return Splits(train.take(first), seen.take(first), stream=train)


def _stream(rows: datasets.IterableDataset, data: Data, where: str, seed: int) -> Stream:
    rows = rows if rows.features else rows._resolve_features()
    image, label = columns.find(rows.features, data, where)
    told = columns.class_names(rows.features, label), columns.described(rows.features)
    return Stream(rows, image, label, told, where, seed)


def _where(data: Data) -> str:
    return f"data.path={data.path}" if data.path else f"data.hub={data.hub}"


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


def _held_out(train: Source, splits: dict[str, Source], data: Data) -> tuple[Source, Source]:
    """What is trained on and what is held out of it: a split, a share of train, or with 0 nothing (then training pictures
    are looked at instead)."""
    held_out = data.validation
    if held_out is None:
        held_out = next((name for name in HELD_OUT if name in splits and len(splits[name])), None)
    if isinstance(held_out, str):
        return train, splits[held_out]
    count = min(len(train) // 100, 10_000) if not held_out else round(held_out * len(train))
    if held_out == 0:
        return train, _part(train, 0, max(1, count), HELD_OUT_KEY, data)
    if len(train) < 2:
        raise UserError(f"data.train={data.train}: {len(train)} pictures, at least 2 are needed")
    count = max(1, min(count, len(train) - 1))
    kept, taken = (_part(train, *ends, HELD_OUT_KEY, data) for ends in ((count, len(train)), (0, count)))
    return kept, taken


def _embedded(data: Data) -> dict[str, Source]:
    return {split: Shapes(split, data.size) for split in shapes.SIZES}


def _tables(data: Data) -> dict[str, Source]:
    """Every split of the data set at data.path or of the Hub's data.hub."""
    datasets.disable_progress_bars()
    where = _where(data)
    parquet, tars = (_shards(Path(data.path), kind) if data.path else {} for kind in ("parquet", "tar"))
    if tars and not parquet:
        return _tars(tars, data, where)
    shards.indexed([file for files in parquet.values() for file in files], shards.groups)  # names one that is cut off
    if data.window:
        return _in_place(parquet, data, where)
    found = _opened(data, parquet, where)
    return {name: Table(rows, *columns.find(rows.features, data, where)) for name, rows in found.items()}


def _tars(files: dict[str, list[Path]], data: Data, where: str) -> dict[str, Source]:
    for key, name in (("data.image_column", data.image_column), ("data.label_column", data.label_column)):
        if name is not None:
            raise UserError(f"{key}={name}: {where} holds tars, which have no columns")
    return {name: shards.Tars(some) for name, some in files.items()}


def _in_place(files: dict[str, list[Path]], data: Data, where: str) -> dict[str, Source]:
    """Parquet files that are read where they lie, a window of them at a time."""
    if not files:
        raise UserError(f"data.window={data.window}: {where} holds no shards, which are parquet files or tars")
    splits: dict[str, Source] = {}
    for name, some in files.items():
        features = datasets.Features.from_arrow_schema(pyarrow.parquet.read_schema(some[0]))
        image, label = columns.find(features, data, where)
        told = columns.class_names(features, label), columns.described(features)
        splits[name] = shards.Parquet(some, image, label, *told)
    return splits


def _opened(data: Data, parquet: dict[str, list[Path]], where: str) -> dict[str, Any]:
    """Each split as `datasets` has it: a Dataset, or an IterableDataset of a stream."""
    try:
        return _open(data, parquet)
    except Exception as error:  # whatever a reader of foreign files may raise
        text = " ".join(str(error).split())[:300]
        if empty := re.search(r'Instruction "(\w+)" corresponds to no data', text):
            text = f"its split {empty[1]} has no pictures; take its files away, or unpack them"
        raise UserError(f"{where}: {text}") from None


def _open(data: Data, parquet: dict[str, list[Path]]) -> dict[str, Any]:
    if not data.path:
        return datasets.load_dataset(data.hub, streaming=data.stream)
    tars = {} if parquet else _shards(Path(data.path), "tar")
    if parquet or tars:
        files = {split: [glob.escape(str(file)) for file in some] for split, some in (parquet or tars).items()}
        return datasets.load_dataset("parquet" if parquet else "webdataset", data_files=files, streaming=data.stream)
    if Path(data.path).is_file():
        raise ValueError("a parquet file, a tar, or a folder of them or of pictures is asked for")
    return datasets.load_dataset("imagefolder", data_dir=glob.escape(data.path), streaming=data.stream)


def _shards(place: Path, kind: str) -> dict[str, list[Path]]:
    """Files of a kind by the first split named in their path (train-00000-of-00002.parquet, test/0.parquet); else train."""
    if place.is_file():
        return {"train": [place]} if place.suffix == f".{kind}" else {}
    splits: dict[str, list[Path]] = {}
    for file in sorted(place.rglob(f"*.{kind}")):
        parts = re.split(r"[^a-z]+", str(file.relative_to(place)).lower())
        split = next((part for part in parts if part in ("train", "test", *HELD_OUT)), "train")
        splits.setdefault(split, []).append(file)
    return splits


def fingerprint(source: Source, probes: int = 64) -> str:
    """What the data are, wherever they lie: a hash of their number, their classes and some rows' pictures and labels."""
    rows = np.unique(np.linspace(0, len(source) - 1, probes).astype(np.int64))
    images, labels = source.fetch(rows)
    digest = hashlib.sha256(f"{len(source)} {source.classes} {labels.tolist()}".encode())
    for image in images:
        digest.update(image if isinstance(image, bytes) else image.tobytes())
    return digest.hexdigest()[:16]


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
