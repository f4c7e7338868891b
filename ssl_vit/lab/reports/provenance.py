"""How the runs of a report were made: commands, machines, versions, dates. No torch here."""

from ...config.records.study import Task
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


def seen(study: StudyResults, numbers: Numbers) -> Values | None:
    """Test images that the runs which weights come from have seen."""
    if not numbers.seen:
        return None
    head = ["part", "arm", "test images", "seen", "with labels"]
    rows = [
        [one.part, arm_label(one.arm, numbers.settings), whole(one.of), *_counts(one)]
        for one in numbers.seen
    ]
    return {"seen": captioned(Table(head, rows, labels=2), "seen", study, numbers)}


def _counts(one: SeenTest) -> list[str]:
    """How many images and labels; not known where that of a run is not."""
    if one.unknown:
        return [f"{whole(count)} or more" for count in (one.images, one.labels)]
    return [whole(one.images), whole(one.labels)]


def commands(tasks: list[Task]) -> Commands:
    """The command of the first task of each part and arm."""
    found: dict[tuple[str, str], str] = {}
    for task in tasks:
        if task.options:
            command = shell_command("python", *tool_command(task.tool), *task.options)
            found.setdefault((task.part, task.arm), command)
    return Commands(list(found.values()))
