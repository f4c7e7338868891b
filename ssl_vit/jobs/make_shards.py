"""The shards tool: any data set -> a folder of pre-resized parquet shards. Torch is imported late.

OUT/  shards.json (what they are made from, and how)  SPLIT-00000-of-00005.parquet ...
"""

import dataclasses
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config.parsing import parse_path, read_json
from ..config.resolve import resolve
from ..config.schema import Data, Recipe
from ..config.values import parse
from ..errors import UserError, suggest
from ..formatting import tool_command, typed
from ..runs.environment import cores
from ..runs.files import write_atomically
from ..runs.folder import Run

if TYPE_CHECKING:
    from ..data.reshard import FinishedShard, Shard

FORMATS = ("jpeg", "webp")
# The tool's own numbers -> default, largest value, message of the error
NUMBERS: dict[str, tuple[int, float, str]] = {
    "size": (256, 2**14, "expected the shorter side in pixels, 1 to 16,384"),
    "rows": (10_000, 2**31, "expected images to a shard, at least 1"),
    "quality": (90, 100, "expected a whole number from 1 to 100"),
    "workers": (cores(), 4096, "expected processes, 1 to 4,096"),
}


@dataclass(frozen=True)
class ShardOptions:
    """The shards to write."""

    data: Data
    out: Path
    size: int
    rows: int
    quality: int
    workers: int
    format: str


def parse_options(arguments: list[str]) -> ShardOptions:
    """The options, typed and checked.

    Raises:
        UserError: an option is wrong.
    """
    given = parse(arguments)
    own = {key: given.pop(key) for key in ("out", "format", *NUMBERS) if key in given}
    if other := [key for key in given if key != "data" and not key.startswith("data.")]:
        raise UserError(
            f"{other[0]}={given[other[0]]}: unknown; "
            f"{suggest(other[0], ['data', 'data.*', 'out', 'format', *NUMBERS])}"
        )
    if "out" not in own:
        raise UserError("out= is missing; expected the folder that the shards are written to")
    numbers = {
        key: _number(key, own.get(key, str(default))) for key, (default, _, _) in NUMBERS.items()
    }
    form = own.get("format", FORMATS[0])
    if form not in FORMATS:
        raise UserError(f"format={form}: unknown; {suggest(form, FORMATS)}")
    recipe = "supervised" if "data.label_column" in given else "mpp"  # which uses no labels
    data = resolve([f"recipe={recipe}", *(f"{key}={text}" for key, text in given.items())]).data
    out = parse_path(own["out"], "out").resolve()
    if data.path and out.is_relative_to(data.path):
        raise UserError(
            f"out={own['out']}: lies in data.path={data.path}, where it would be taken for "
            f"images; say another folder"
        )
    return ShardOptions(data, out, **numbers, format=form)


def _number(key: str, text: str) -> int:
    _, most, message = NUMBERS[key]
    if not (text.isascii() and text.isdecimal() and len(text) < 20) or not 1 <= int(text) <= most:
        raise UserError(f"{key}={text}: {message}")
    return int(text)


def main(arguments: list[str]) -> None:
    """Write the shards, or resume.

    Raises:
        UserError: an option is wrong, the folder holds something else, or too many images cannot be
            read.
    """
    options = parse_options(arguments)
    from ..data import fingerprints, sources
    from ..data.workers import report_lost_workers

    # with a window parquet is read in place, not copied into the cache first
    window = options.rows if sources.in_parquet(options.data) else None
    found = sources.every_split(dataclasses.replace(options.data, window=window))
    splits = {name: source for name, source in found.splits.items() if len(source)}
    _print_splits(found, splits)
    prints = {name: fingerprints.fingerprint_source(source) for name, source in splits.items()}
    manner = {key: getattr(options, key) for key in ("size", "rows", "format", "quality")}
    try:
        _check_folder(options.out)
        with Run(Recipe(name=options.out.name, out=str(options.out.parent))).lock():
            _open(options.out, {"data": prints, **manner})
            with report_lost_workers():
                _make(options, splits)
    except OSError as error:  # one of a worker's carries its traceback along
        text = error.strerror or str(error).strip().splitlines()[-1]
        raise UserError(f"out={options.out}: {error.filename or 'not written'}: {text}") from None


def _check_folder(out: Path) -> None:
    """Check that the folder is new, empty or one of shards."""
    if (
        out.exists()
        and not (out / "shards.json").exists()
        and {path.name for path in out.iterdir()} - {"lock"}
    ):
        raise UserError(f"out={out}: holds something else; say another folder")


def _open(out: Path, now: dict[str, Any]) -> None:
    """Write shards.json, or check that it describes these shards."""
    path = out / "shards.json"
    try:
        was = read_json(path, {}) if path.exists() else now
    except ValueError:
        raise UserError(f"out={out}: {path} is damaged; say another folder") from None
    if differ := [
        f"{key} ({was.get(key)} there, {now[key]} here)" for key in now if was.get(key) != now[key]
    ]:
        raise UserError(f"out={out}: holds other shards: {', '.join(differ)}; say another folder")
    write_atomically(path, json.dumps(now, indent=2) + "\n")
    for torn in out.glob(".*.part"):
        torn.unlink()


def _make(options: ShardOptions, splits: dict[str, Any]) -> None:
    """Write the missing shards in parallel, and print each."""
    from torch.utils.data import DataLoader

    from ..data import batching, reshard

    shards = [shard for name, source in splits.items() for shard in _cut(name, source, options)]
    there, left = ([s for s in shards if s.file.exists() == exists] for exists in (True, False))
    making = reshard.ShardMaker(
        left, reshard.Encoding(options.size, options.format, options.quality)
    )
    made = DataLoader(making, batch_size=None, num_workers=min(options.workers, len(left)))
    seen = kept = size = 0
    for done, one in enumerate(chain(map(reshard.finished_shard, there), made), 1):
        seen, kept, size = seen + one.requested, kept + one.images, size + one.bytes
        _print_shard(
            one, f"{done}/{len(shards)} {'made' if done > len(there) else 'there already'}"
        )
        batching.check_unreadable(
            seen - kept,
            seen,
            options.data,
            one.unreadable[-1] if one.unreadable else f"in {one.file.name}",
        )
    print(f"finished    {kept:,} of {seen:,} images, {size / 1e6:.1f} MB: {options.out}")
    arguments = ["recipe=mpp", f"data.path={options.out}", f"data.window={10 * options.rows}"]
    print(f"next        {typed('accelerate', 'launch', *tool_command('pretrain'), *arguments)}")


def _print_splits(found: Any, splits: dict[str, Any]) -> None:
    """Print the splits, what was left out, and guesses."""
    for name, source in splits.items():
        # columns that could hold labels are left out of the shards, so they are named here
        unlabelled = f", without labels{source.columns}" if source.label_range[1] < 0 else ""
        print(f"split       {name}: {len(source):,} images{unlabelled}")
    if found.skipped:
        print(f"left out    {', '.join(found.skipped)}", flush=True)
    for text in found.guesses:
        print(f"warning: {text}", flush=True)


def _print_shard(made: "FinishedShard", state: str) -> None:
    print(
        f"shard       {state}: {made.file.name}, {made.images:,} images, {made.bytes / 1e6:.1f} MB",
        flush=True,
    )
    for text in made.unreadable:
        print(f"warning: left out: {text}", flush=True)


def _cut(split: str, source: Any, options: ShardOptions) -> Iterator["Shard"]:
    """The shards of a split, with the Hub's names."""
    from ..data.reshard import Shard

    count = math.ceil(len(source) / options.rows)
    for i in range(count):
        last = min((i + 1) * options.rows, len(source))
        yield Shard(
            source, i * options.rows, last, options.out / f"{split}-{i:05d}-of-{count:05d}.parquet"
        )
