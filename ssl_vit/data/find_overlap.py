"""The overlap tool: test images of a study, or a run, that are also among the images it trained
on."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..config import records
from ..config.recipe_files import read
from ..config.records.study import StudyPlan
from ..config.schema import Data, Recipe
from ..config.tool_options import parse
from ..config.tools import OverlapOptions
from ..errors import UserError
from ..formatting import option_text, shell_command, tool_command
from ..runs.files import write_atomically
from ..runs.folder import Run
from ..runs.identity import runs_before

if TYPE_CHECKING:
    from . import overlap
    from .base import Source

FILE = "overlap.json"
LISTED = 200  # pairs that the file names
# Keys on which a split's images depend; which share of them a run took does not matter here
PLACE = ("name", "path", "hub", "train", "test", "image_column", "label_column", "size", "group")


def main(arguments: list[str]) -> None:
    """Compare the splits that a study's runs trained on with those they were tested on; write
    overlap.json beside study.json, which the study's report shows. Of a run: what it and the runs
    before it trained on with what it is tested on.

    Raises:
        UserError: not one folder, neither study nor run, no finished run that was tested, or images
            that are not on this machine.
    """
    folder = parse(OverlapOptions, arguments).folder
    is_run = not (folder / "study.json").exists() and (folder / "recipe.yaml").exists()
    trained, tested = _splits_of_run(folder) if is_run else _splits(folder)
    known: dict[tuple[str, str], HashedSplit] = {}

    def hashed(data: Data, split: str) -> HashedSplit:
        key = (str(data), split)
        if key not in known:
            known[key] = _hash(data, split)
        return known[key]

    entries = [
        _entry(hashed(test, "test"), hashed(train, "train")) for test in tested for train in trained
    ]
    write_atomically(folder / FILE, json.dumps(entries, indent=1) + "\n")
    if not is_run:
        print(f"then type   {shell_command('python', *tool_command('report'), folder)}")


class HashedSplit(NamedTuple):
    """A split with its hashes and the fingerprint by which environment.json names it: of training
    images that of the whole split, of a share for testing that of the share."""

    name: str
    source: "Source"
    hashes: "overlap.Hashes"
    fingerprint: str


def _hash(data: Data, split: str) -> HashedSplit:
    from . import fingerprints, overlap, sources

    splits = sources.load(dataclasses.replace(data), test=split == "test")
    source = splits.test if split == "test" else splits.train
    assert source is not None
    print(f"hashing     {data.name}, {split}: {len(source):,} images", flush=True)
    hashes = overlap.hash_images(source)
    if split == "test":
        fingerprint = fingerprints.fingerprint_part(source)
    else:
        fingerprint = fingerprints.fingerprint_train(source, bool(data.group))
    return HashedSplit(data.name, source, hashes, fingerprint)


def _entry(test: HashedSplit, train: HashedSplit) -> dict[str, Any]:
    """What overlap.json says of two splits; a line of it is printed."""
    from . import overlap

    found = overlap.compare(train.hashes, test.hashes)
    exact, near = len(found.exact), len(found.near)
    print(
        f"overlap     {test.name}, test: {exact:,} of {len(test.source):,} images "
        f"are in {train.name}, train; {near:,} more are near one"
    )
    return {
        "train": {"data": train.name, "images": len(train.source), "print": train.fingerprint},
        "test": {"data": test.name, "images": len(test.source), "print": test.fingerprint},
        "exact": exact,
        "near": near,
        "bits": overlap.DISTANCE,
        "unreadable": int((~test.hashes.readable_N).sum()),
        "pairs": [
            {
                "test": test.source.name(one.test),
                "train": train.source.name(one.train),
                "bits": one.bits,
            }
            for one in (*found.exact, *found.near)[:LISTED]
        ],
    }


def _splits(folder: Path) -> tuple[list[Data], list[Data]]:
    """The different data that the finished runs of a study trained on, and were tested on."""
    study = records.require(folder / "study.json", StudyPlan, "expected a study's folder")
    trained: dict[str, Data] = {}
    tested: dict[str, Data] = {}
    for task in study["tasks"]:
        run = Run(Recipe(out=str(folder), name=task.name))
        result = run.result()
        if result is None:
            continue
        kept = _kept(run.folder, read(run.folder / "recipe.yaml").data)
        if task.tool != "evaluate":
            trained[str(kept)] = kept
        if any(entry.split == "test" for entry in result.metrics.values()):
            tested[str(kept)] = kept
    if not tested:
        raise UserError(f"{folder}: no finished run was measured on test images")
    return list(trained.values()), list(tested.values())


def _splits_of_run(folder: Path) -> tuple[list[Data], list[Data]]:
    """As `_splits`, of a run and those that its first weights come from."""
    recipe = read(folder / "recipe.yaml")
    made = list(runs_before(recipe.init))
    if recipe.declared.trains:
        made.insert(0, (folder, recipe))
    kept = [_kept(run, one.data) for run, one in made if one.data.path or one.data.hub]
    if not kept:
        raise UserError(f"{folder}: neither it nor a run before it was trained on images of files")
    return list({str(one): one for one in kept}.values()), [_kept(folder, recipe.data)]


def _kept(run: Path, data: Data) -> Data:
    """What of a run's data decides its splits.

    Raises:
        UserError: its images are not compared.
    """
    if not data.is_rgb:
        key = f"data.channels={data.channels}"
        if data.channels == 3:
            key = f"data.range={option_text(data.range)}"
        text = f"{run} is of other images than RGB of 8 bits, which are not compared"
        raise UserError(f"{key}: {text}")
    kept = Data(**{key: getattr(data, key) for key in PLACE}, validation=0.0)
    if not isinstance(data.test, str):
        kept.window = data.window  # decides which images the share has
    if data.group:
        kept.labels = data.labels  # folders are groups where they are no classes
    return kept
