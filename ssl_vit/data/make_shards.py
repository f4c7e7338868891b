"""The shards tool: any data set -> a folder of pre-resized parquet shards. Torch is imported late.

OUT/  shards.json (of what they are made, and how; hashes)  SPLIT-00000-of-00005.parquet ...
"""

import dataclasses
import math
import re
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

from pydantic import Field

from ..config.computed import differences
from ..config.records import Record, Whole
from ..config.resolve import resolve
from ..config.schema import Data
from ..config.tool_options import parse
from ..config.tools import ShardOptions
from ..errors import UserError
from ..formatting import count_of_images, shell_command, text_line, tool_command
from ..runs import output_folder
from ..runs.environment import cores
from ..runs.output_folder import OutputFolder

if TYPE_CHECKING:
    from .reshard import FinishedShard, PlannedShard

RECORD = "shards.json"
MANNER = ("size", "rows", "format", "quality")  # options on which a shard's bytes depend
OWN = re.compile(rf"{re.escape(RECORD)}|.+-\d{{5,}}-of-\d{{5,}}\.parquet")


class ShardsMade(Record):
    """shards.json: the fingerprints of the splits, and how their images are encoded."""

    data: dict[str, str] = Field(default_factory=dict)
    size: Whole = 0
    rows: Whole = 0
    format: str = ""
    quality: Whole = 0
    shards: dict[str, str] = Field(default_factory=dict)  # {name: hash}


def images(options: ShardOptions) -> Data:
    """The images to convert.

    Raises:
        UserError: they are not where the options say, or the shards would lie among them; or they
            are others than RGB of 8 bits.
    """
    given = options.overrides
    for key in {"data.channels", "data.range"} & given.keys():
        text = "shards hold RGB of 8 bits; others are read from their own files"
        raise UserError(f"{key}={given[key]}: {text}")
    recipe = "supervised" if "data.label_column" in given else "mpp"  # which uses no labels
    data = resolve([f"recipe={recipe}", *(f"{key}={text}" for key, text in given.items())]).data
    if data.path and options.out.is_relative_to(data.path):
        raise UserError(
            f"out={options.out}: lies in data.path={data.path}, where it would be taken for "
            f"images; say another folder"
        )
    return data


def main(arguments: list[str]) -> None:
    """Write the shards, or resume.

    Raises:
        UserError: an option is wrong, the folder holds something else, or too many images cannot be
            read.
    """
    options = parse(ShardOptions, arguments)
    options = dataclasses.replace(options, out=options.out.resolve())
    data = images(options)
    from . import check_range, fingerprints, sources
    from .workers import report_lost_workers

    # with a window parquet is read in place, not copied into the cache first
    data.window = options.rows if sources.in_parquet(data) else None
    found = sources.every_split(data)
    splits = {name: source for name, source in found.splits.items() if len(source)}
    _print_splits(found, splits)
    for text in check_range.check(splits, data, "shards hold 8").warnings:
        print(f"warning: {text}", flush=True)
    prints = {name: fingerprints.fingerprint_source(source) for name, source in splits.items()}
    output = OutputFolder("out", options.out, OWN, RECORD, ShardsMade)
    manner = {key: getattr(options, key) for key in MANNER}
    try:
        with output.hold():
            record = _open(output, ShardsMade(data=prints, **manner))
            with report_lost_workers():
                _make(options, data, splits, output, record)
    except OSError as error:  # one of a worker's carries its traceback along
        text = error.strerror or str(error).strip().splitlines()[-1]
        raise UserError(f"out={options.out}: {error.filename or 'not written'}: {text}") from None


def _open(output: OutputFolder[ShardsMade], now: ShardsMade) -> ShardsMade:
    """Write shards.json, or check that it describes these shards; its content.

    Raises:
        UserError: the folder holds others.
    """
    was = output.read() or now
    there = {key: was[key] for key in ("data", *MANNER) if was.has(key)}
    if differ := differences(there, now.content()):
        texts = ", ".join(map(str, differ))
        raise UserError(f"out={output.path}: holds other shards: {texts}; give another out=")
    now.shards = was.shards
    output.write(now)
    return now


def _make(
    options: ShardOptions,
    data: Data,
    splits: dict[str, Any],
    output: OutputFolder[ShardsMade],
    record: ShardsMade,
) -> None:
    """Write the missing shards in parallel, print each and add its hash to shards.json."""
    from torch.utils.data import DataLoader

    from . import batching, reshard
    from .workers import InterruptibleLoader

    shards = [shard for name, source in splits.items() for shard in _cut(name, source, options)]
    there, left = ([s for s in shards if s.file.exists() == exists] for exists in (True, False))
    record.shards = output.intact(record.shards, [shard.file.name for shard in shards])
    making = reshard.ShardMaker(
        left, reshard.Encoding(options.size, options.format, options.quality)
    )
    loader = DataLoader(
        making, batch_size=None, num_workers=min(options.workers or cores(), len(left))
    )
    seen = kept = size = 0
    with InterruptibleLoader(loader) as made:
        new = cast("Iterator[FinishedShard]", made)
        for done, one in enumerate(chain(map(reshard.finished_shard, there), new), 1):
            seen, kept, size = seen + one.requested, kept + one.images, size + one.bytes
            if one.file.name not in record.shards:
                made_now = output_folder.hashes(options.out, [one.file.name])
                record.shards = dict(sorted((record.shards | made_now).items()))
                output.write(record)
            _print_shard(
                one, f"{done}/{len(shards)} {'made' if done > len(there) else 'there already'}"
            )
            batching.check_unreadable(
                seen - kept,
                seen,
                data,
                one.unreadable[-1] if one.unreadable else f"in {one.file.name}",
            )
    print(f"finished    {kept:,} of {seen:,} images, {size / 1e6:.1f} MB: {options.out}")
    arguments = ["recipe=mpp", f"data.path={options.out}", f"data.window={10 * options.rows}"]
    command = shell_command("accelerate", "launch", *tool_command("pretrain"), *arguments)
    print(f"next        {command}")


def _print_splits(found: Any, splits: dict[str, Any]) -> None:
    """Print the splits, what was left out, and guesses."""
    for name, source in splits.items():
        # columns that could hold labels are left out of the shards, so they are named here
        unlabelled = f", without labels{source.columns}" if source.label_range[1] < 0 else ""
        print(f"split       {name}: {count_of_images(len(source))}{unlabelled}")
    if found.skipped:
        print(f"left out    {text_line(', '.join(found.skipped))}", flush=True)
    for text in found.guesses:
        print(f"warning: {text_line(text)}", flush=True)


def _print_shard(made: "FinishedShard", state: str) -> None:
    print(
        f"shard       {state}: {made.file.name}, {count_of_images(made.images)},"
        f" {made.bytes / 1e6:.1f} MB",
        flush=True,
    )
    for text in made.unreadable:
        print(f"warning: left out: {text_line(text)}", flush=True)


def _cut(split: str, source: Any, options: ShardOptions) -> Iterator["PlannedShard"]:
    """The shards of a split, with the Hub's names."""
    from .reshard import PlannedShard

    count = math.ceil(len(source) / options.rows)
    for i in range(count):
        last = min((i + 1) * options.rows, len(source))
        yield PlannedShard(
            source, i * options.rows, last, options.out / f"{split}-{i:05d}-of-{count:05d}.parquet"
        )
