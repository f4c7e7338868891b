"""Every split of what lies at data.path= or on the Hub: image folders, parquet, tars, `save_to_disk` folders."""

import glob
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, cast

import datasets
import pyarrow.parquet

from ..recipe import Data, UserError
from . import columns, files, layout, shards
from .layout import ROLE, Tree
from .parts import Source
from .stream import Stream
from .table import Table

SAVED = ({"dataset_dict.json"}, {"state.json", "dataset_info.json"})  # by `save_to_disk`: several splits, or one
OTHERS = {"tar": "tars", "images": "images"}
CAPTIONS = 100  # texts of which more than half are different: no classes, unless a column is named


class Lying(NamedTuple):
    """What lies at a place: its kind (parquet, tar, images, saved), the files of each split where it is shards, what was left
    out, and what was guessed."""

    kind: str
    files: dict[str, list[Path]]
    tree: Tree | None
    left: list[str]
    guesses: list[str]


class Found(NamedTuple):
    """Every split, what was left out, and what was guessed."""

    splits: dict[str, Source]
    left: list[str]
    guesses: list[str]


class Streams(NamedTuple):
    """Every split as a stream that is opened when it is needed, and as in Found."""

    splits: dict[str, Callable[[int], Stream]]
    left: list[str]
    guesses: list[str]


def where(data: Data) -> str:
    return f"data.path={data.path}" if data.path else f"data.hub={data.hub}"


def look(place: Path) -> Lying:
    """What lies at a place.

    Raises:
        UserError: nothing that holds images, or it cannot be read.
    """
    if place.is_file():
        kind = place.suffix[1:].lower()
        if kind not in layout.SHARDS:
            text = "a parquet file, a tar, or a folder of them or of images is expected"
            raise UserError(f"data.path={place}: {text}")
        named = [split for split in layout.splits_in_file(place.name) if ROLE[split] != "train"]
        guesses = [f"{place.name} is the only file: it is taken as train"] if named else []
        return Lying(kind, {"train": [place]}, None, [], guesses)
    if any(all((place / name).is_file() for name in names) for names in SAVED):
        return Lying("saved", {}, None, [], [])
    tree = layout.walk(place)
    kinds = [kind for kind in (*layout.SHARDS, "images") if tree.holds(kind)]
    left = [f"{count:,} {what}" for what, count in sorted(tree.left.items())]
    if not kinds:
        inside = f", only {', '.join(left)}" if left else ""
        unpack = "; unpack what is packed" if ".zip files" in tree.left else ""
        raise UserError(f"data.path={place}: no images, parquet files or tars in it{inside}{unpack}")
    kind = kinds[0]
    if kind == "images":
        return Lying(kind, {}, tree, left, [])
    found, guesses = layout.shard_files(place, tree, kind)
    if tree.holds("metadata"):
        left.append(f"{tree.count('metadata'):,} metadata files")
    beside = [f"{tree.count(other):,} {OTHERS[other]}" for other in kinds[1:]]
    if beside:
        guesses.append(f"{' and '.join(beside)} beside {kind} files are left out")
    return Lying(kind, found, tree, left, guesses)


def find(data: Data) -> Found:
    """Every split that lies at data.path or on the Hub; with a window, in shards.

    Raises:
        UserError: a place that holds no pictures or, with a window, no shards.
    """
    datasets.disable_progress_bars()
    if not data.path:
        opened = _opened(lambda: datasets.load_dataset(data.hub), data)
        return _tables(opened, data, [], [])
    lying = look(Path(data.path))
    if lying.kind == "tar":
        return _tars(lying, data)
    if data.window and lying.kind != "parquet":
        text = "holds no shards, which are parquet files or tars"
        raise UserError(f"data.window={data.window}: {where(data)} {text}")
    if lying.kind == "images":
        return _images(lying, data)
    if lying.kind == "saved":
        saved, guesses = _from_disk(data)
        return _tables(saved, data, lying.left, guesses)
    everything = [file for some in lying.files.values() for file in some]
    shards.indexed(everything, shards.groups)  # names one that is cut off
    if data.window:
        return _in_place(lying, data)
    opened = _opened(lambda: _load("parquet", lying.files, stream=False), data)
    return _tables(opened, data, lying.left, lying.guesses)


def streams(data: Data) -> Streams:
    """Every split that lies at data.path or on the Hub, to be read from its beginning.

    Raises:
        UserError: a place that holds no pictures.
    """
    datasets.disable_progress_bars()
    left: list[str] = []
    guesses: list[str] = []
    if not data.path:
        opened = _opened(lambda: datasets.load_dataset(data.hub, streaming=True), data)
    else:
        lying = look(Path(data.path))
        left, guesses = lying.left, list(lying.guesses)
        if lying.kind == "images":
            found = _images(lying, data)
            guesses = found.guesses
            opened = {name: _image_stream(source) for name, source in found.splits.items()}
        elif lying.kind == "saved":
            tables, more = _from_disk(data)
            guesses += more
            opened = {name: _as_stream(rows) for name, rows in tables.items()}
        else:
            kind = "parquet" if lying.kind == "parquet" else "webdataset"
            opened = _opened(lambda: _load(kind, lying.files, stream=True), data)

    def opener(rows: datasets.IterableDataset) -> Callable[[int], Stream]:
        return lambda seed: _stream(rows, data, guesses, seed)

    return Streams({name: opener(rows) for name, rows in opened.items()}, left, guesses)


def _image_stream(source: Source) -> datasets.IterableDataset:
    return cast(files.Files, source).stream()


def _as_stream(rows: datasets.Dataset) -> datasets.IterableDataset:
    return rows.to_iterable_dataset(num_shards=max(1, min(64, len(rows))))


def _load(kind: str, found: dict[str, list[Path]], stream: bool) -> dict[str, Any]:
    names = {split: [glob.escape(str(file)) for file in some] for split, some in found.items()}
    return datasets.load_dataset(kind, data_files=names, streaming=stream)


def _opened(load: Callable[[], dict[str, Any]], data: Data) -> dict[str, Any]:
    """Each split as `datasets` has it: a Dataset, or an IterableDataset of a stream."""
    try:
        return load()
    except Exception as error:  # whatever a reader of foreign files may raise
        text = " ".join(str(error).split())[:300]
        if empty := re.search(r'Instruction "(\w+)" corresponds to no data', text):
            text = f"its split {empty[1]} has no pictures; take its files away, or unpack them"
        raise UserError(f"{where(data)}: {text}") from None


def _from_disk(data: Data) -> tuple[dict[str, Any], list[str]]:
    """The splits of a `save_to_disk` folder, and what was guessed. One that was saved alone keeps its split's name."""
    found: Any = _opened(lambda: datasets.load_from_disk(data.path), data)
    if isinstance(found, datasets.DatasetDict):
        return dict(found), []
    was = str(found.split or "train")
    name = re.match(r"[\w.]+", was)
    if name is None or "+" in was:
        return {"train": found}, [f"its rows are those of {was}: taken as train"]
    return {name[0]: found}, []


def _images(lying: Lying, data: Data) -> Found:
    assert lying.tree is not None and data.path is not None
    place = Path(data.path)
    found, guesses = files.find(place, lying.tree, data.image_column, data.label_column)
    splits: dict[str, Source] = dict(found)
    return Found(splits, lying.left, lying.guesses + guesses)


def _tars(lying: Lying, data: Data) -> Found:
    for key, name in (
        ("data.image_column", data.image_column),
        ("data.label_column", data.label_column),
    ):
        if name is not None:
            raise UserError(f"{key}={name}: {where(data)} holds tars, which have no columns")
    splits: dict[str, Source] = {name: shards.Tars(some) for name, some in lying.files.items()}
    return Found(splits, lying.left, lying.guesses)


def _tables(opened: dict[str, Any], data: Data, left: list[str], guesses: list[str]) -> Found:
    """Splits of `datasets`. Labels that are texts are numbered alike in all of them."""
    named = {name: columns.find(rows.features, data, where(data)) for name, rows in opened.items()}
    found = {
        name: set(rows.unique(label))
        for name, rows in opened.items()
        if (label := named[name][1]) and columns.holds_texts(rows.features[label])
    }
    count = sum(len(opened[name]) for name in found)
    texts, more = _text_classes(found, count, data)
    splits: dict[str, Source] = {}
    for name, rows in opened.items():
        image, label = named[name]
        if name in found:
            splits[name] = Table(rows, image, label if texts else None, texts)
        else:
            splits[name] = Table(rows, image, label)
    return Found(splits, left, guesses + more)


def _text_classes(found: dict[str, set[Any]], rows: int, data: Data) -> tuple[list[str], list[str]]:
    """The classes of labels that are texts, sorted: none where they look like captions. And what was guessed."""
    together: set[Any] = set().union(*found.values())
    texts = sorted(together - {None})
    if not data.label_column and rows >= CAPTIONS and 2 * len(texts) > rows:
        text = f"its labels are {len(texts):,} different texts for {rows:,} images"
        return [], [f"{text}: they are not used; data.label_column= takes them as classes"]
    return texts, []


def _in_place(lying: Lying, data: Data) -> Found:
    """Parquet files that are read where they lie, a window of them at a time."""
    features = {
        name: datasets.Features.from_arrow_schema(pyarrow.parquet.read_schema(some[0])) for name, some in lying.files.items()
    }
    named = {name: columns.find(known, data, where(data)) for name, known in features.items()}
    found: dict[str, set[Any]] = {}
    for name, some in lying.files.items():
        label = named[name][1]
        if label and columns.holds_texts(features[name][label]):
            with ThreadPoolExecutor(shards.READERS) as pool:
                each = pool.map(lambda file, of=label: shards.column_of(file, of).unique(), some)
                found[name] = {text for values in each for text in values.to_pylist()}
    rows = sum(int(n) for name in found for n in map(sum, shards.indexed(lying.files[name], shards.groups)))
    texts, more = _text_classes(found, rows, data)
    splits: dict[str, Source] = {}
    for name, some in lying.files.items():
        image, label = named[name]
        told = columns.class_names(features[name], label), columns.described(features[name])
        if name in found:
            told = texts, told[1]
            label = label if texts else None
        splits[name] = shards.Parquet(some, image, label, *told, texts=name in found)
    return Found(splits, lying.left, lying.guesses + more)


def _stream(rows: datasets.IterableDataset, data: Data, guesses: list[str], seed: int) -> Stream:
    """A split as a stream. Labels that are texts are refused or left: their classes are known only when all are read."""
    rows = rows if rows.features else rows._resolve_features()
    image, label = columns.find(rows.features, data, where(data))
    if label and columns.holds_texts(rows.features[label]):
        text = "its labels are texts, which a stream cannot number before it has read all of them"
        if data.label_column:
            raise UserError(f"data.label_column={label}: {text}; say data.stream=false")
        guesses.append(f"column {label}: {text}: they are not used")
        label = None
    told = columns.class_names(rows.features, label), columns.described(rows.features)
    return Stream(rows, image, label, told, where(data), seed)
