"""study.json: what a study has planned, and by which rule its report will speak.

It is written before the first task. A changed study may be given again in its folder: finished
runs that it still asks for are kept; where a folder holds another run, the task takes the next
free name (pretrain-mpp-0-2), and the other run stays and is listed.
"""

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PlainValidator, TypeAdapter

from ...errors import UserError
from ...formatting import some
from ...recipe import records
from ...recipe.names import is_name
from ...recipe.records import MayLack, Record, Whole
from ...runs.files import write_atomically
from ...runs.shared import STUDY
from .. import run_folder
from ..compare import Comparison, Rule, comparisons
from .hours import Group
from .launch import RESULT, planned
from .read import REFERENCE, Study
from .tasks import Task, Tasks

FILE = STUDY
FOR_READERS = {"beside", "paper", "notes", "condition", "question"}  # of a report


class StudyRecord(Record):
    """study.json."""

    title: str
    axes: dict[str, list[str]]
    report: dict[str, Any]
    rule: Annotated[Rule | None, PlainValidator(TypeAdapter(Rule | None).validate_python)]
    tasks: Annotated[list[Task], PlainValidator(TypeAdapter(list[Task]).validate_python)]
    order: MayLack[list[Group]] = None  # of a study whose hours may leave groups of tasks out
    decides: dict[str, Any]  # as `decides` gives it
    changes: list[str] = Field(default=[])  # as in History
    ends: Whole = 1
    dropped: list[str] = Field(default=[])

    @property
    def by_name(self) -> Tasks:
        return {task.name: task for task in self.tasks}

    @property
    def compared_tasks(self) -> list[str]:
        """The names of the tasks whose results the report compares."""
        return [task.name for task in self.tasks if self.rule and task.run == self.rule.test]


def rule_of(study: Study) -> Rule | None:
    """The rule by which the study's report speaks; None of a study that compares nothing."""
    report, arms = study.report, study.compared
    if report.test is None:
        return None
    first, *others = study.runs[report.test].over or (None,)
    named = ([(axis, name) for name in study.names(report.test, axis)] for axis in others if axis)
    places = tuple(itertools.product(*named))
    asked: tuple[Comparison, ...] = ()
    if report.pairs or report.baseline or not report.mean_over:
        asked = comparisons(arms, places, report.pairs, report.baseline)
    measure = report.measures[0] if report.measures else None
    return Rule(report.test, first, arms, places, asked, measure)


def decides(study: Study) -> dict[str, Any]:
    """{dotted key of the file: value, as JSON has it}, of what its readers alone need not."""
    apart: Any = {"title": True, "places": True, "report": FOR_READERS}
    found = json.loads(json.dumps(study.model_dump(exclude=apart)))
    flat = {key: found.pop(key) for key in ("seeds", "match")}
    found |= {f"runs.{name}": own for name, own in found.pop("runs").items()}
    for place, own in found.items():
        flat |= {f"{place}.{key.replace('tries', 'try')}": one for key, one in own.items()}
    return flat


@dataclass(frozen=True)
class History:
    """How a study's plan was changed after results were known, which weakens its claims.

    Attributes:
        changes: a sentence for each change.
        ends: planned ends at which the study has made or will make its claims: one more than the
            number of changes.
        dropped: tasks of the compared run that a change dropped before they had finished.
    """

    changes: tuple[str, ...] = ()
    ends: int = 1
    dropped: tuple[str, ...] = ()


def update_history(folder: Path, study: Study, tasks: Tasks) -> History:
    """Compare a study with the study.json of its folder and return the updated history.

    Whoever has seen results can change the plan towards a wished claim. Any change of what decides
    after a run has finished therefore counts as another planned end.

    Args:
        folder: the study's folder, with or without a study.json.
        study: the study as it is planned now.
        tasks: its tasks, as `settle` names them.
    """
    if not (folder / FILE).exists():
        return History()
    before, after = read(folder), decides(study)
    finished = {task.name for task in before.tasks if (folder / task.name / RESULT).exists()}
    keys = [key for key in {**before.decides, **after} if before.decides.get(key) != after.get(key)]
    planned_before = (*before.dropped, *before.compared_tasks)
    dropped = [name for name in planned_before if name not in {*tasks, *finished}]
    changes, ends = before.changes, before.ends
    if finished and keys:
        count = f"{len(finished)} of {len(before.tasks)} runs had finished"
        changes = [*changes, f"The study was changed after {count}: {some(keys)}."]
        ends += 1
    return History(tuple(changes), ends, tuple(dropped) if finished else ())


def content(
    study: Study, tasks: Tasks, history: History | None = None, order: Sequence[Group] = ()
) -> dict[str, Any]:
    """Return the content of study.json for a study, its tasks, the history of its plan, and the
    order in which tasks are left out if the hours end."""
    rule = rule_of(study)
    return {
        "title": study.title,
        "axes": {axis: list(names) for axis, names in study.axes.items()},
        "report": {key: value for key, value in study.report.model_dump().items() if value},
        "rule": None if rule is None else asdict(rule),
        "tasks": [asdict(task) for task in tasks.values()],
        **({"order": [group.model_dump() for group in order]} if order else {}),
        "decides": decides(study),
        **asdict(history or History()),
    }


def read(folder: Path) -> StudyRecord:
    """The study.json of a folder.

    Raises:
        UserError: it is missing or damaged.
    """
    found = records.require(folder / FILE, StudyRecord, "remove it, or take another name=")
    known: set[str] = set()
    for task in found.tasks:
        if task.name in known or not is_name(task.name) or not known.issuperset(task.needs):
            text = "has no folder's name of its own, or needs a task that does not come before it"
            raise UserError(f"{folder / FILE} is damaged: task {task.name} {text}")
        known.add(task.name)
    return found


def write(folder: Path, found: dict[str, Any]) -> None:
    """Write study.json where it has changed."""
    text = json.dumps(found, indent=1) + "\n"
    path = folder / FILE
    if not path.exists() or path.read_text(errors="replace") != text:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)


def settle(tasks: Tasks, folder: Path) -> tuple[Tasks, dict[str, str]]:
    """The tasks with the names of the folders that hold them, or that are free.

    Args:
        tasks: as planned.
        folder: of the study.

    Returns:
        The tasks, in the same order; and {folder there: why it is none of theirs}.
    """
    settled: Tasks = {}
    names: dict[str, str] = {}  # {planned: settled}
    others: dict[str, str] = {}
    for task in tasks.values():
        moved = _renamed(task, names)
        place = moved.name
        for number in itertools.count(2):
            here = replace(moved, name=place)
            words, undecided = planned(here, settled, folder)
            why = run_folder.not_planned(folder / place, here.values, words, undecided)
            if not why and place not in settled:
                break
            others[place] = why
            place = f"{moved.name}-{number}"
        names[task.name] = place
        settled[place] = here
    for path in sorted(folder.glob("*/recipe.yaml")):
        others.setdefault(path.parent.name, "the study does not ask for it")
    return settled, {name: why for name, why in others.items() if name not in settled}


def _renamed(task: Task, names: Mapping[str, str]) -> Task:
    """The task with the settled names of those that it needs."""
    options = {
        key: REFERENCE.sub(lambda found: f"{{{names.get(found[1], found[1])}}}", text)
        for key, text in task.options.items()
    }
    needs = tuple(names[name] for name in task.needs)
    best = task.best and (tuple(names[name] for name in task.best[0]), task.best[1])
    return replace(task, options=options, needs=needs, best=best)
