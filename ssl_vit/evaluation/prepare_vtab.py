"""The prepare tool: VTAB-1k's tasks as parquet files of squares, from TFDS's folders or from
parquet files with TFDS's features. Torch is imported late.

OUT/TASK/tune/{train,validation}.parquet    800 and 200 images
OUT/TASK/final/{train,test}.parquet         all 1,000 images, and the test split
OUT/TASK/prepare.json                       of what they were made, and their hashes
"""

import dataclasses
import importlib.util
import io
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from ..config.records import Record, Whole
from ..config.tool_options import parse
from ..config.tools import PrepareOptions
from ..errors import UserError, suggest
from ..formatting import shell_command, tool_command
from ..runs import output_folder
from ..runs.files import replacing, sync
from ..runs.output_folder import OutputFolder
from . import vtab, vtab_folder, vtab_labels
from .vtab_folder import FINAL, IMAGE, LABEL, TUNE

ROW_GROUP = 100  # images
RECORD = "prepare.json"
SPLIT = re.compile(r"(\w+)(?:\[(\d*)(%?):(\d*)\])?")
Row = dict[str, Any]  # of recipes/tables/vtab.yaml
# the examples of a split, in TFDS's notation: a name and perhaps [first:last]
Reader = Callable[[str], Iterator[vtab_labels.Example]]


class Prepared(Record):
    """prepare.json of a task: of which source and size it was made, and {name: hash}."""

    size: Whole
    source: str
    files: dict[str, str]


def task_names(options: PrepareOptions) -> list[str]:
    """The tasks to write.

    Raises:
        UserError: one is unknown.
    """
    every = list(vtab.tasks())
    for name in options.tasks or ():
        if name not in every:
            raise UserError(f"tasks={name}: unknown; {suggest(name, every)}")
    return options.tasks or every


def main(arguments: list[str]) -> int:
    """Write what the source has of the tasks; the exit status: 1 where it has none.

    Raises:
        UserError: an option is wrong, or the source is damaged or of another size.
    """
    options = parse(PrepareOptions, arguments)
    there = prepare(options)
    out = options.out.resolve()
    print(f"finished    {len(there)} of {len(task_names(options))} tasks: {out}")
    arguments = ["recipe=study/vtab", "init=RUN", f"data={out}"]
    print(f"next        {shell_command(sys.executable, *tool_command('study'), *arguments)}")
    return 0 if there else 1


def prepare(options: PrepareOptions) -> list[str]:
    """Write the tasks that are not there yet, one after the other; those that are there then.

    Raises:
        UserError: the source of one is damaged, lacks a feature or is of another size; one is there
            of another size or source, or is damaged; or another process writes the folder.
    """
    if not options.source.is_dir():
        raise UserError(f"source={options.source}: no such folder")
    options = dataclasses.replace(
        options, source=options.source.resolve(), out=options.out.resolve()
    )
    rows = vtab.tasks()
    there = []
    own = re.compile("|".join(rows))
    with OutputFolder[Prepared]("out", options.out, own).hold():
        for task in task_names(options):
            try:
                state = _prepare_task(options, task, rows[task])
            except OSError as error:
                raise UserError(f"out={options.out}: {error.strerror or error}") from None
            if state:
                print(f"task        {task}: {state}", flush=True)
                there.append(task)
    return there


def _prepare_task(options: PrepareOptions, task: str, row: Row) -> str:
    """Write a task into a folder of its own, which gets its name when it is whole, unless it is
    there; what was done. Empty where the source has nothing of it, which is printed."""
    final = options.out / task
    builder = row["source"].partition(":")[0]
    if (final.exists() or final.is_symlink()) and not _is_empty(final):
        return _check_there(final, options, row["classes"], options.source / builder)
    reader = find_reader(options.source, row["source"])
    if reader is None:
        print(f"missing     {task}: no {builder} in {options.source}")
        return ""
    from ..data.fingerprints import fingerprint_files

    with replacing(final) as beside:
        beside.mkdir()
        write_task(beside, task, row, reader, options.size)
        files = [path.relative_to(beside).as_posix() for path in sorted(beside.rglob("*.parquet"))]
        made = Prepared(
            size=options.size,
            source=fingerprint_files(options.source / builder),
            files=output_folder.hashes(beside, files),
        )
        _record_of(beside).write(made)
    return "made"


def _record_of(folder: Path) -> OutputFolder[Prepared]:
    own = re.compile("|".join(map(re.escape, (RECORD, *vtab_folder.SIZES))))
    return OutputFolder("out", folder, own, RECORD, Prepared)


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())


def _check_there(folder: Path, options: PrepareOptions, classes: int, source: Path) -> str:
    """Check that a task's folder is whole and what the options ask for; in which words it is there.

    Args:
        folder: of the task.
        classes: of the task.
        source: the builder's folder, which need not be there any more.

    Raises:
        UserError: it is of another size or source, is damaged, or holds something else.
    """
    other = "remove it, or give another out="
    if not folder.is_dir():
        kind = "a link to nothing" if folder.is_symlink() and not folder.exists() else "no folder"
        raise UserError(f"out={options.out}: {folder} is {kind}; {other}")
    path = folder / RECORD
    if not path.exists():  # of an earlier version, or of somebody else
        parts = (folder / vtab_folder.TUNE, folder / vtab_folder.FINAL)
        if lacking := next(filter(None, map(vtab_folder.missing, parts)), ""):
            raise UserError(f"out={options.out}: {folder} is not whole: {lacking}; {other}")
        for part in parts:
            vtab_folder.check(part, classes)
        return f"there already; without {RECORD}, so of which size= and source= is not known"
    was = _record_of(folder).read()
    assert was is not None
    if was.size != options.size:
        text = f"{folder} was made with size={was.size}"
        raise UserError(f"size={options.size}: {text}; {other}")
    output_folder.check_hashes(folder, was.files, whole=True)
    if not source.is_dir():
        return "there already; its source is not here, and was not compared"
    from ..data.fingerprints import fingerprint_files

    if was.source != fingerprint_files(source):
        text = f"{folder} was made of other files than those of {source}"
        raise UserError(f"source={options.source}: {text}; {other}")
    return "there already"


def write_task(folder: Path, task: str, row: Row, read: Reader, size: int) -> None:
    """Write a task's files.

    Raises:
        UserError: a split has too few images, an image cannot be read, or an example lacks a
            feature or has a label that is none of the task's classes.
    """

    def cells(split: str, limit: int | None = None) -> Iterator[dict[str, Any]]:
        found = 0
        for example in itertools.islice(read(row[split]), limit):
            found += 1
            yield _cell(example, task, row, size)
        if found < (limit or 1):
            wanted = f"{limit:,} images" if limit else "images"
            raise UserError(f"{task}: expected {wanted} in {row[split]}, there are {found:,}")

    sizes = vtab_folder.SIZES[TUNE]
    train = list(cells("train", sizes["train"]))
    validation = list(cells("validation", sizes["validation"]))
    _write(folder / TUNE / "train.parquet", train)
    _write(folder / TUNE / "validation.parquet", validation)
    _write(folder / FINAL / "train.parquet", [*train, *validation])
    _write(folder / FINAL / "test.parquet", cells("test"))


def _cell(example: vtab_labels.Example, task: str, row: Row, size: int) -> dict[str, Any]:
    try:
        label = vtab_labels.make_label(example, row["label"])
        image = square(example["image"], size)
    except KeyError as error:
        text = f"expected the feature {error.args[0]}; it has {', '.join(example)}"
        raise UserError(f"{task}: {row['source']}: {text}") from None
    except ValueError as error:
        raise UserError(f"{task}: {row['source']}: an image: {error}") from None
    if not 0 <= label < row["classes"]:
        text = f"a label is {label}, expected 0 to {row['classes'] - 1}"
        raise UserError(f"{task}: {row['source']}: {text}")
    return {IMAGE: {"bytes": image, "path": None}, LABEL: label}


def square(image: Any, size: int) -> bytes:
    """An image as a PNG of a square: resized to `size` whatever its aspect ratio, as the benchmark
    does, or as it is where it is a square and no larger.

    Args:
        image: uint8 (H, W) or (H, W, C), its encoded bytes, or {"bytes": them}.

    Raises:
        ValueError: it cannot be read.
    """
    import numpy as np
    from PIL import Image

    from ..data import transforms

    if isinstance(image, dict):
        image = image["bytes"]
    if isinstance(image, bytes):
        image = transforms.decode(image).permute(1, 2, 0).numpy()
    pixels = vtab_labels.pixels(np.asarray(image))
    height, width = pixels.shape[:2]
    if height != width or height > size:
        resized = transforms.eval_transform([transforms.decode(pixels)], size, "squash", 1.0)
        pixels = resized[0].permute(1, 2, 0).numpy()
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(file, "PNG")
    return file.getvalue()


def _write(path: Path, cells: Iterable[dict[str, Any]]) -> None:
    import datasets
    import pyarrow.parquet

    features = datasets.Features({IMAGE: datasets.Image(), LABEL: datasets.Value("int64")})
    schema = features.arrow_schema
    path.parent.mkdir(parents=True, exist_ok=True)
    with pyarrow.parquet.ParquetWriter(path, schema, compression="none") as writer:
        left = iter(cells)
        while rows := list(itertools.islice(left, ROW_GROUP)):
            writer.write_table(pyarrow.Table.from_pylist(rows, schema))
    sync(path)


def find_reader(source: Path, builder: str) -> Reader | None:
    """How a builder's examples are read; None where the folder has nothing of it.

    SOURCE/BUILDER[/CONFIG] holds parquet files that are named after TFDS's splits and have its
    features as columns, or else what tensorflow-datasets wrote.

    Raises:
        UserError: tensorflow-datasets wrote it and is not installed.
    """
    folder = source / builder.partition(":")[0]
    if not folder.is_dir():
        return None
    if any(folder.glob("*.parquet")):
        return lambda split: _of_parquet(folder, split)
    if not any(folder.glob("*/dataset_info.json")):
        return None
    if importlib.util.find_spec("tensorflow_datasets") is None:
        text = f"{folder.relative_to(source)} was written by tensorflow-datasets, which is missing"
        raise UserError(f"source={source}: {text}; pip install tensorflow-datasets tensorflow")
    return lambda split: _of_tfds(source, builder, split)


def _of_tfds(source: Path, builder: str, split: str) -> Iterator[vtab_labels.Example]:
    """A split as tensorflow-datasets reads it, unshuffled; nothing is downloaded."""
    import tensorflow_datasets as tfds

    try:
        found = tfds.load(
            builder, split=split, data_dir=str(source), shuffle_files=False, download=False
        )
    except (AssertionError, OSError, ValueError) as error:
        text = str(error).strip().splitlines()[0][:200]
        raise UserError(f"source={source}: {builder}, {split}: {text}") from None
    yield from tfds.as_numpy(found)


def _of_parquet(folder: Path, split: str) -> Iterator[vtab_labels.Example]:
    """The rows of a split's files SPLIT.parquet or SPLIT-*.parquet, sorted by name."""
    import pyarrow
    import pyarrow.parquet

    matched = SPLIT.fullmatch(split)
    assert matched, split  # of recipes/tables/vtab.yaml
    name = matched[1]
    files = [*folder.glob(f"{name}.parquet"), *sorted(folder.glob(f"{name}-*.parquet"))]
    if not files:
        raise UserError(f"{folder}: expected {name}.parquet or {name}-*.parquet for {split}")
    try:
        total = sum(pyarrow.parquet.read_metadata(path).num_rows for path in files)
        first, last = bounds(split, total)
        begun = 0
        for path in files:
            for batch in pyarrow.parquet.ParquetFile(path).iter_batches(ROW_GROUP):
                start = max(first - begun, 0)
                end = min(last - begun, len(batch))
                begun += len(batch)
                if start < end:
                    yield from batch.slice(start, end - start).to_pylist()
                if begun >= last:
                    return
    except (OSError, pyarrow.ArrowException) as error:
        text = str(error).splitlines()[0][:200]
        raise UserError(f"{folder}: {split}: cannot be read as parquet: {text}") from None


def bounds(split: str, total: int) -> tuple[int, int]:
    """The first row of a split in TFDS's notation and the one after its last, of `total` rows.

    >>> bounds("train[:800]", 1000), bounds("test[50%:]", 24), bounds("test", 7)
    ((0, 800), (12, 24), (0, 7))
    """
    matched = SPLIT.fullmatch(split)
    assert matched, split
    _, first, percent, last = matched.groups()
    scale = total / 100 if percent else 1
    ends = [round(scale * int(text)) if text else None for text in (first, last)]
    return min(ends[0] or 0, total), total if ends[1] is None else min(ends[1], total)
