"""How the runs of a report were made: commands, machines, versions, dates. No torch here."""

from ...config import records
from ...config.records.study import Overlap, Task
from ...formatting import shell_command, tool_command
from ...pages.blocks import Commands, Table
from ...pages.run_wording import machine
from .axes import arm_label
from .formats import whole
from .results import StudyResults
from .seen_test_images import SeenTest
from .statistics import Numbers
from .texts import Values, captioned


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
    """Test images that the runs which weights come from have seen, and those that are also among
    training images, where tools/overlap.py has looked."""
    counts, bits = _counts(study)
    head = ["part", "arm", "test images", "seen", "with labels"]
    rows = [
        [one.part, arm_label(one.arm, numbers.settings), whole(one.of), *_seen(one)]
        for one in numbers.seen
    ]
    seen = captioned(Table(head, rows, labels=2), "seen", study, numbers) if rows else ""
    if isinstance(counts, Table):
        counts = captioned(counts, "overlap", study, numbers, bits=bits)
    return {"seen": seen, "counts": counts, "bits": bits} if seen or counts else None


def _seen(one: SeenTest) -> list[str]:
    """How many images and labels; not known where that of a run is not."""
    if one.unknown:
        return [f"{whole(count)} or more" for count in (one.images, one.labels)]
    return [whole(one.images), whole(one.labels)]


def _counts(study: StudyResults) -> tuple[Table | str, int]:
    """What tools/overlap.py found of these runs' images, and by how many bits near ones differ;
    what it found of other images is left out."""
    path = study.folder / "overlap.json"
    if not path.exists():
        return "", 0
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
        return "", 0
    head = ["test split", "training split", "training images", "test images"]
    head += ["same pixels", "near"]
    return Table(head, rows, labels=2), entries[0].bits


def commands(tasks: list[Task]) -> Commands:
    """The command of the first task of each part and arm."""
    found: dict[tuple[str, str], str] = {}
    for task in tasks:
        if task.options:
            command = shell_command("python", *tool_command(task.tool), *task.options)
            found.setdefault((task.part, task.arm), command)
    return Commands(list(found.values()))
