"""Finds the splits at data.path= or on the Hub: image folders, parquet files, tars, `save_to_disk`
folders."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import datasets

from ..errors import UserError
from ..formatting import count_of
from ..recipe.schema import Data
from . import columns, image_files, layout, schemas, tars
from .array_cells import array_shape
from .base import Source
from .columns import FoundColumns
from .decoding import KINDS
from .label_lists import holds_lists
from .layout import ROLE, Tree
from .open_datasets import from_disk, load_files, location, open_splits
from .schemas import SplitClasses
from .streaming import Stream
from .table import TableSource

# files that `save_to_disk` writes: for several splits, or for one
SAVED = ({"dataset_dict.json"}, {"state.json", "dataset_info.json"})
OTHERS = {"tar": "tars", "images": "images", "arrays": ".npy files"}
IMAGE_KINDS = tuple(dict.fromkeys(("images", *KINDS.values())))  # a file each, by precedence
# From this many images on, texts of which more than half are different are captions, not classes,
# unless data.label_column names them
CAPTIONS = 100
NOTHING: Mapping[str, SplitClasses] = MappingProxyType({})


class FolderContents(NamedTuple):
    """The data of a folder or file: their kind (parquet, tar, images, saved), the parquet files or
    tars of each split, what was left out, and what was guessed."""

    kind: str
    files: dict[str, list[Path]]
    tree: Tree | None
    skipped: list[str]
    guesses: list[str]


class FoundSplits(NamedTuple):
    """Every split, what was left out, and what was guessed."""

    splits: dict[str, Source]
    skipped: list[str]
    guesses: list[str]


class FoundStreams(NamedTuple):
    """As FoundSplits, with functions seed -> stream."""

    splits: dict[str, Callable[[int], Stream]]
    skipped: list[str]
    guesses: list[str]


def inspect_path(place: Path) -> FolderContents:
    """Find the data at a path.

    Raises:
        UserError: there are no images, or it cannot be read.
    """
    if place.is_file():
        kind = place.suffix[1:].lower()
        if kind not in layout.SHARDS:
            text = "expected a parquet file, a tar, or a folder of them or of images"
            raise UserError(f"data.path={place}: {text}")
        named = [split for split in layout.splits_in_file(place.name) if ROLE[split] != "train"]
        guesses = [f"{place.name} is the only file: it is taken as train"] if named else []
        return FolderContents(kind, {"train": [place]}, None, [], guesses)
    if any(all((place / name).is_file() for name in names) for names in SAVED):
        return FolderContents("saved", {}, None, [], [])
    tree = layout.walk(place)
    kinds = [kind for kind in (*layout.SHARDS, *IMAGE_KINDS) if tree.holds(kind)]
    skipped = [count_of(count, what) for what, count in sorted(tree.skipped.items())]
    if not kinds:
        inside = f", only {', '.join(skipped)}" if skipped else ""
        unpack = "; unpack what is packed" if ".zip files" in tree.skipped else ""
        raise UserError(
            f"data.path={place}: no images, parquet files or tars in it{inside}{unpack}"
        )
    kind = kinds[0]
    found: dict[str, list[Path]] = {}
    guesses = []
    if kind not in IMAGE_KINDS:
        found, guesses = layout.shard_files(place, tree, kind)
        if tree.holds("metadata"):
            skipped.append(count_of(tree.count("metadata"), "metadata files"))
    if beside := [count_of(tree.count(other), OTHERS[other]) for other in kinds[1:]]:
        shown = "images" if kind == "images" else f"{kind} files"
        guesses.append(f"{' and '.join(beside)} beside {shown} are left out")
    return FolderContents(kind, found, tree, skipped, guesses)


def find_splits(data: Data) -> FoundSplits:
    """Every split at data.path or on the Hub.

    Raises:
        UserError: there are no images.
    """
    datasets.disable_progress_bars()
    if not data.path:
        opened = open_splits(lambda: datasets.load_dataset(data.hub), data)
        return _tables(opened, data, [], [])
    contents = inspect_path(Path(data.path))
    if contents.kind == "tar":
        return _tars(contents, data)
    if contents.kind in IMAGE_KINDS:
        return _images(contents, data)
    if contents.kind == "saved":
        saved, guesses = from_disk(data)
        return _tables(saved, data, contents.skipped, guesses)
    classes = _file_classes(contents, data)
    try:
        opened = open_splits(lambda: load_files("parquet", contents.files, stream=False), data)
    except UserError:
        schemas.check_same_columns(contents.files, location(data))
        raise
    return _tables(opened, data, contents.skipped, contents.guesses, classes)


def find_streams(data: Data) -> FoundStreams:
    """Every split at data.path or on the Hub as a stream.

    Raises:
        UserError: there are no images.
    """
    datasets.disable_progress_bars()
    skipped: list[str] = []
    guesses: list[str] = []
    classes: Mapping[str, SplitClasses] = NOTHING
    label_sources: dict[str, str] = {}
    if not data.path:
        opened = open_splits(lambda: datasets.load_dataset(data.hub, streaming=True), data)
    else:
        contents = inspect_path(Path(data.path))
        skipped = contents.skipped
        guesses = list(contents.guesses)
        if contents.kind in IMAGE_KINDS:
            found = _images(contents, data)
            guesses = found.guesses
            label_sources = {name: one.label_source for name, one in found.splits.items()}
            opened = {name: _image_stream(source) for name, source in found.splits.items()}
        elif contents.kind == "saved":
            tables, more = from_disk(data)
            guesses += more
            opened = {name: _as_stream(rows) for name, rows in tables.items()}
        else:
            kind = "parquet" if contents.kind == "parquet" else "webdataset"
            if kind == "parquet":
                classes = _file_classes(contents, data)
                guesses = list(contents.guesses)
            opened = open_splits(lambda: load_files(kind, contents.files, stream=True), data)

    def opener(name: str, rows: datasets.IterableDataset) -> Callable[[int], Stream]:
        of_files = label_sources.get(name)
        return lambda seed: _stream(rows, data, classes.get(name), guesses, seed, of_files)

    streams = {name: opener(name, rows) for name, rows in opened.items()}
    return FoundStreams(streams, skipped, guesses)


def _image_stream(source: Source) -> datasets.IterableDataset:
    if source.lists is not None:
        raise _streamed_lists(source.lists.column)
    return cast(image_files.Files, source).stream()


def _streamed_lists(column: str) -> UserError:
    return UserError(
        f"data.label_column={column}: holds a list of labels for each image, which a stream does"
        " not read; expected data.stream=false"
    )


def _as_stream(rows: datasets.Dataset) -> datasets.IterableDataset:
    return rows.to_iterable_dataset(num_shards=max(1, min(64, len(rows))))


def _images(contents: FolderContents, data: Data) -> FoundSplits:
    assert contents.tree is not None and data.path is not None
    place = Path(data.path)
    named = data.image_column, data.label_column, data.group, data.labels
    found, guesses = image_files.find(place, contents.tree, contents.kind, *named)
    splits: dict[str, Source] = dict(found)
    return FoundSplits(splits, contents.skipped, contents.guesses + guesses)


def _tars(contents: FolderContents, data: Data) -> FoundSplits:
    if data.image_column is not None:
        text = f"{location(data)} holds tars, which have no columns"
        raise UserError(f"data.image_column={data.image_column}: {text}")
    if data.group is not None:
        text = f"{location(data)} holds tars, which have no columns"
        raise UserError(f"data.group={data.group}: {text}")
    found = tars.open_splits(contents.files, data.label_column or "")
    if data.label_column and all(_has_no_label(source) for source in found.values()):
        text = f"no image in {location(data)} has such a label"
        choices = "expected cls, for the .cls files, or a key of the .json files"
        raise UserError(f"data.label_column={data.label_column}: {text}; {choices}")
    unused = sum(source.unused for source in found.values())
    guesses = list(contents.guesses)
    if unused:
        text = f"{unused:,} images have a label that is no whole number, which is not used"
        guesses.append(f"{text}; data.label_column=cls or =label takes lists of them")
    return FoundSplits(dict(found), contents.skipped, guesses)


def _has_no_label(source: tars.Tars) -> bool:
    return source.label_range[1] < 0 and not (source.lists and source.lists.empty)


def _file_classes(contents: FolderContents, data: Data) -> dict[str, SplitClasses]:
    """The classes of parquet files' splits; labels that cannot be used are noted as guesses."""
    found = schemas.find_classes(contents.files, data, location(data))
    contents.guesses.extend(
        f"split {split}: {one.unusable}: labels are not used"
        for split, one in found.items()
        if one.unusable
    )
    return found


def _columns(features: columns.Features, data: Data, known: SplitClasses | None) -> FoundColumns:
    """Of a split with these features; `known`: its classes by its files."""
    image, label = columns.find(features, data, location(data))
    masks = columns.find_masks(features, image, data, location(data))
    if known is None:
        known = SplitClasses(columns.class_names(features, label), "")
    about, shape = columns.described(features), array_shape(features[image])
    if known.unusable:
        label, known, about = None, SplitClasses([], ""), f" ({known.unusable})"
    return FoundColumns(image, label, known.names, about, masks, shape=shape)


def _tables(
    opened: dict[str, Any],
    data: Data,
    skipped: list[str],
    guesses: list[str],
    classes: Mapping[str, SplitClasses] = NOTHING,
) -> FoundSplits:
    """Splits read by `datasets`. Labels that are texts have the same classes in all splits."""
    train = layout.choose(data.train, opened)
    if data.group is not None and train is not None:
        columns.check_group(opened[train].features, data.group, location(data))
    named, more = _labelled(opened, data, classes)
    splits: dict[str, Source] = {
        name: TableSource(opened[name], one, data.group) for name, one in named.items()
    }
    return FoundSplits(splits, skipped, guesses + more)


def _labelled(
    opened: Mapping[str, Any], data: Data, classes: Mapping[str, SplitClasses]
) -> tuple[dict[str, FoundColumns], list[str]]:
    """The columns of each split, and what was guessed. Labels that are texts have the same classes
    in all splits, sorted; none where they look like captions.

    Args:
        opened: the splits.
        data: which columns are wanted.
        classes: of a split by its files, as far as it is known.
    """
    named = {
        name: _columns(rows.features, data, classes.get(name)) for name, rows in opened.items()
    }
    of_texts = {
        name: one.label
        for name, one in named.items()
        if one.label and columns.holds_texts(opened[name].features[one.label])
    }
    together = {text for name, label in of_texts.items() for text in opened[name].unique(label)}
    known = sorted(together - {None})
    rows = sum(len(opened[name]) for name in of_texts)
    guesses = []
    if not data.label_column and rows >= CAPTIONS and 2 * len(known) > rows:
        text = f"its labels are {len(known):,} different texts for {rows:,} images"
        guesses.append(f"{text}: they are not used; data.label_column= takes them as classes")
        known = []
    for name, label in of_texts.items():
        used = label if known else None
        named[name] = named[name]._replace(label=used, classes=known, texts=True)
    return named, guesses


def _stream(
    rows: datasets.IterableDataset,
    data: Data,
    known: SplitClasses | None,
    guesses: list[str],
    seed: int,
    of_files: str | None,
) -> Stream:
    """A split as a stream. Labels that are texts are refused or left out: their classes are known
    only when all are read. `of_files`: where labels of image files are from."""
    rows = rows if rows.features else rows._resolve_features()
    image, label, classes, about, *_ = _columns(rows.features, data, known)
    if array_shape(rows.features[image]):
        raise UserError(f"data.stream=true: column {image} holds arrays; expected false")
    if not data.labels:
        label = None
    if label and columns.holds_texts(rows.features[label]):
        text = "its labels are texts, which a stream cannot number before it has read all of them"
        if data.label_column:
            raise UserError(f"data.label_column={label}: {text}; expected data.stream=false")
        guesses.append(f"column {label}: {text}: they are not used")
        label = None
    if label and holds_lists(rows.features[label]):
        raise _streamed_lists(label)
    source = f"column {label}" if of_files is None else of_files
    class_info = classes if label else [], about, source if label else ""
    return Stream(rows, image, label, class_info, location(data), seed)
