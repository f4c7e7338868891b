"""How the runs of a report were made: commands, machines, versions, dates. No torch here."""

from ...config import records
from ...config.records.study import Overlap, Task
from ...formatting import shell_command, tool_command
from ...pages.blocks import Commands, Table
from ...pages.run_wording import machine
from .formats import whole
from .results import StudyResults
from .statistics import Numbers
from .texts import Values


def section(study: StudyResults, numbers: Numbers) -> Values:
    """Commands, where study.json has them; hardware and versions; when."""
    runs = list(study.finished.values())
    return {
        "commands": commands(study.plan.tasks),
        "machines": sorted({machine(run.environment) for run in runs}),
        "finished": sorted(run.result.finished for run in runs),
        "hours": sum(run.result.device_hours for run in runs),
    }


def overlap(study: StudyResults, numbers: Numbers) -> Values | None:
    """Test images that are also among training images, where tools/overlap.py has looked; what it
    found of other images than these runs' is left out."""
    path = study.folder / "overlap.json"
    if not path.exists():
        return None
    entries = records.require(path, list[Overlap], "remove it, or give tools/overlap.py again")
    data = [run.environment.data for run in study.finished.values()]
    train = {one.get("train") for one in data}
    test = {one.get("test") for one in data}
    rows = [
        [
            f"{one.test.data}, test",
            f"{one.train.data}, train",
            whole(one.train.images),
            whole(one.test.images),
            whole(one.exact),
            whole(one.near),
        ]
        for one in entries
        if one.train.print in train and one.test.print in test
    ]
    if not rows:
        return None
    head = ["test split", "training split", "training images", "test images"]
    head += ["same pixels", "near"]
    counts = Table(head, rows, labels=2)
    return {"counts": counts, "bits": entries[0].bits}


def commands(tasks: list[Task]) -> Commands:
    """The command of the first task of each part and arm."""
    found: dict[tuple[str, str], str] = {}
    for task in tasks:
        if task.options:
            command = shell_command("python", *tool_command(task.tool), *task.options)
            found.setdefault((task.part, task.arm), command)
    return Commands(list(found.values()))
