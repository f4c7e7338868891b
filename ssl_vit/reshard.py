"""The words of tools/shards.py, and a set of pictures -> a folder of pre-resized parquet shards. Torch comes in late.

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

from .files import place, read_json
from .recipe import Data, Recipe, UserError, nearest
from .runs import Run, cores, write_atomically
from .summary import tool, typed
from .words import parse, resolve

if TYPE_CHECKING:
    from .data.resize import Made, Shard

FORMATS = ("jpeg", "webp")
# The tool's own numbers -> what is taken without a word, the most, and how both are said
NUMBERS: dict[str, tuple[int, float, str]] = {
    "size": (256, 2**14, "the shorter side in pixels, 1 to 16,384, is asked for"),
    "rows": (10_000, 2**31, "pictures to a shard, at least 1, are asked for"),
    "quality": (90, 100, "a whole number from 1 to 100 is asked for"),
    "workers": (cores(), 4096, "processes, 1 to 4,096, are asked for"),
}


@dataclass(frozen=True)
class Asked:
    """Shards as the command line asks for them."""

    data: Data
    out: Path
    size: int
    rows: int
    quality: int
    workers: int
    format: str


def ask(words: list[str]) -> Asked:
    """The words, typed and checked.

    Raises:
        UserError: a mistake in them.
    """
    given = parse(words)
    own = {key: given.pop(key) for key in ("out", "format", *NUMBERS) if key in given}
    if other := [key for key in given if key != "data" and not key.startswith("data.")]:
        raise UserError(
            f"{other[0]}={given[other[0]]}: unknown; {nearest(other[0], ['data', 'data.*', 'out', 'format', *NUMBERS])}"
        )
    if "out" not in own:
        raise UserError("out= is missing; say the folder that the shards are to be written to")
    numbers = {key: _number(key, own.get(key, str(default))) for key, (default, _, _) in NUMBERS.items()}
    form = own.get("format", FORMATS[0])
    if form not in FORMATS:
        raise UserError(f"format={form}: unknown; {nearest(form, FORMATS)}")
    data = resolve(["recipe=mpp", *(f"{key}={text}" for key, text in given.items())]).data
    out = place(own["out"], "out").resolve()
    if data.path and out.is_relative_to(data.path):
        raise UserError(
            f"out={own['out']}: lies in data.path={data.path}, where it would be taken for pictures; say another folder"
        )
    return Asked(data, out, **numbers, format=form)


def _number(key: str, text: str) -> int:
    _, most, said = NUMBERS[key]
    if not (text.isascii() and text.isdecimal() and len(text) < 20) or not 1 <= int(text) <= most:
        raise UserError(f"{key}={text}: {said}")
    return int(text)


def main(words: list[str]) -> None:
    """Make the shards that the words ask for, or go on making them.

    Raises:
        UserError: a mistake in the words, a folder that holds something else, or too many pictures that cannot be read.
    """
    asked = ask(words)
    from .data import fingerprints, loaders, sources

    window = asked.rows if sources.in_parquet(asked.data) else None  # then they are not copied into the cache first
    found = sources.every_split(dataclasses.replace(asked.data, window=window))
    splits = {name: source for name, source in found.splits.items() if len(source)}
    _tell_found(found, splits)
    prints = {name: fingerprints.fingerprint(source) for name, source in splits.items()}
    manner = {key: getattr(asked, key) for key in ("size", "rows", "format", "quality")}
    try:
        _check_folder(asked.out)
        with Run(Recipe(name=asked.out.name, out=str(asked.out.parent))).lock():
            _open(asked.out, {"data": prints, **manner})
            with loaders.workers_named():
                _make(asked, splits)
    except OSError as error:  # one of a worker's carries its traceback along
        text = error.strerror or str(error).strip().splitlines()[-1]
        raise UserError(f"out={asked.out}: {error.filename or 'not written'}: {text}") from None


def _check_folder(out: Path) -> None:
    """That nobody's files lie there."""
    if out.exists() and not (out / "shards.json").exists() and {path.name for path in out.iterdir()} - {"lock"}:
        raise UserError(f"out={out}: holds something else; say another folder")


def _open(out: Path, now: dict[str, Any]) -> None:
    """Say in the folder what its shards are, or check that they are these."""
    path = out / "shards.json"
    try:
        was = read_json(path, {}) if path.exists() else now
    except ValueError:
        raise UserError(f"out={out}: {path} is damaged; say another folder") from None
    if differ := [f"{key} ({was.get(key)} there, {now[key]} here)" for key in now if was.get(key) != now[key]]:
        raise UserError(f"out={out}: holds other shards: {', '.join(differ)}; say another folder")
    write_atomically(path, json.dumps(now, indent=2) + "\n")
    for torn in out.glob(".*.part"):
        torn.unlink()


def _make(asked: Asked, splits: dict[str, Any]) -> None:
    """Every shard that is not there yet, several at once; each is told when it is finished."""
    from torch.utils.data import DataLoader

    from .data import batches, resize

    shards = [shard for name, source in splits.items() for shard in _cut(name, source, asked)]
    there, left = ([s for s in shards if s.file.exists() == exists] for exists in (True, False))
    making = resize.Making(left, resize.Manner(asked.size, asked.format, asked.quality))
    made = DataLoader(making, batch_size=None, num_workers=min(asked.workers, len(left)))
    seen = kept = size = 0
    for done, one in enumerate(chain(map(resize.found, there), made), 1):
        seen, kept, size = seen + one.asked, kept + one.pictures, size + one.bytes
        _tell(one, f"{done}/{len(shards)} {'made' if done > len(there) else 'there already'}")
        batches.check_unread(seen - kept, seen, asked.data, one.unread[-1] if one.unread else f"in {one.file.name}")
    print(f"finished    {kept:,} of {seen:,} pictures, {size / 1e6:.1f} MB: {asked.out}")
    words = ["recipe=mpp", f"data.path={asked.out}", f"data.window={10 * asked.rows}"]
    print(f"next        {typed('accelerate', 'launch', tool('pretrain'), *words)}")


def _tell_found(found: Any, splits: dict[str, Any]) -> None:
    """What was taken for what, what was left out, and what was guessed."""
    for name, source in splits.items():
        print(f"split       {name}: {len(source):,} images")
    if found.left:
        print(f"left out    {', '.join(found.left)}", flush=True)
    for text in found.guesses:
        print(f"warning: {text}", flush=True)


def _tell(made: "Made", state: str) -> None:
    print(f"shard       {state}: {made.file.name}, {made.pictures:,} pictures, {made.bytes / 1e6:.1f} MB", flush=True)
    for text in made.unread:
        print(f"warning: left out: {text}", flush=True)


def _cut(split: str, source: Any, asked: Asked) -> Iterator["Shard"]:
    """The shards of a split, named as the Hub names them."""
    from .data.resize import Shard

    count = math.ceil(len(source) / asked.rows)
    for i in range(count):
        last = min((i + 1) * asked.rows, len(source))
        yield Shard(source, i * asked.rows, last, asked.out / f"{split}-{i:05d}-of-{count:05d}.parquet")
