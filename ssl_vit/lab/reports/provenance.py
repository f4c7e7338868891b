"""How the runs of a report were made: commands, machines, versions, dates. No torch here."""

from collections.abc import Iterator

from ...config import records
from ...config.records import Overlap, Task
from ...errors import UserError
from ...formatting import tool_command, typed
from ...pages.blocks import Block, Commands, Listing, Table, Text
from ...pages.run_wording import machine
from .numbers import Numbers
from .results import StudyResults


def section(study: StudyResults, numbers: Numbers) -> Iterator[Block]:
    """Commands, where study.json has them; hardware and versions; when."""
    yield from commands(study.plan.tasks)
    runs = list(study.finished.values())
    yield Listing(sorted({machine(run.environment) for run in runs}))
    finished = sorted(run.result.finished for run in runs)
    hours = sum(run.result.device_hours for run in runs)
    yield Text(
        f"{len(finished)} runs, {hours:.3g} device-hours, "
        f"finished between {finished[0]} and {finished[-1]}."
    )


def overlap(study: StudyResults, numbers: Numbers) -> Iterator[Block]:
    """Test images that are also among training images, where tools/overlap.py has looked; what it
    found of other images than these runs' is left out."""
    path = study.folder / "overlap.json"
    if not path.exists():
        return
    try:
        entries = records.read(path, list[Overlap])
    except (OSError, ValueError):
        raise UserError(f"{path} is damaged; remove it, or give tools/overlap.py again") from None
    data = [run.environment.data for run in study.finished.values()]
    train = {one.get("train") for one in data}
    test = {one.get("test") for one in data}
    rows = [
        [
            f"{one.test.data}, test",
            f"{one.train.data}, train",
            f"{one.test.images:,}",
            f"{one.exact:,}",
            f"{one.near:,}",
        ]
        for one in entries
        if one.train.print in train and one.test.print in test
    ]
    if not rows:
        return
    yield Table(["test split", "training split", "test images", "same pixels", "near"], rows, 2)
    yield Text(
        "Test images that are also in a training split: with the same pixels, and others whose "
        f"perceptual hash differs from a training image's by at most {entries[0].bits} of 64 "
        "bits, as they are or mirrored. Training splits are looked through whole, whatever share "
        "of them a run took. overlap.json names the pairs."
    )


def commands(tasks: list[Task]) -> Iterator[Block]:
    """The command of the first task of each part and arm."""
    found: dict[tuple[str, str], str] = {}
    for task in tasks:
        if task.options:
            command = typed("python", *tool_command(task.tool), *task.options)
            found.setdefault((task.part, task.arm), command)
    if found:
        yield Text(
            "The first run of each part and arm. {NAME} is that run's folder; seed=, and what a "
            "sweep chose, are added:"
        )
        yield Commands(list(found.values()))
