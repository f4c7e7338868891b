"""Read and write study.json, which holds the plan of a study and the rule of the report.

The study writes study.json before the first task starts. The user may change a study and start the
study again in the same folder. Finished runs that still belong to the study are used again. If the
folder of a task already has another run, the task takes the next free name, such as
`pretrain-mpp-0-2`. The other run stays in its folder.
"""

import itertools
import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PlainValidator, TypeAdapter

from ...errors import UserError
from ...formatting import list_names
from ...recipe import records
from ...recipe.names import is_name
from ...recipe.records import MayLack, Record, Whole
from ...recipe.schema import Recipe
from ...runs import identity
from ...runs.files import write_atomically
from ...runs.folder import Run
from ...runs.shared import STUDY
from ..compare import Comparison, Rule, list_comparisons
from .hours import Group
from .launch import RESULT, planned_options
from .read import Study, fill_references
from .tasks import Task, Tasks

FILE = STUDY
# keys of a report that change only what a reader sees, and no comparison
READER_KEYS = {"beside", "paper", "notes", "explain", "next", "condition", "question"}


class StudyRecord(Record):
    """Content of study.json."""

    title: str
    axes: dict[str, list[str]]
    report: dict[str, Any]
    rule: Annotated[Rule | None, PlainValidator(TypeAdapter(Rule | None).validate_python)]
    tasks: Annotated[list[Task], PlainValidator(TypeAdapter(list[Task]).validate_python)]
    # set if the hours of the study may leave groups of tasks out
    order: MayLack[list[Group]] = None
    decides: dict[str, Any]  # values from `deciding_values`
    # arguments that repeat the study; none if it came from a Python dictionary
    words: list[str] = Field(default=[])
    typed_in: str = ""  # folder to which paths in `words` are relative
    # fields of `History`
    changes: list[str] = Field(default=[])
    ends: Whole = 1
    dropped: list[str] = Field(default=[])

    @property
    def by_name(self) -> Tasks:
        return {task.name: task for task in self.tasks}

    @property
    def compared_tasks(self) -> list[str]:
        """Names of the tasks whose results the report compares."""
        return [task.name for task in self.tasks if self.rule and task.run == self.rule.test]


def rule_of(study: Study) -> Rule | None:
    """Return the rule by which the report compares runs, or None if the study compares nothing.

    The report compares arms, such as `mae` and `scratch`. The arms are the names on the first axis
    of run `report.test`. The report compares the arms separately at each place. A place is a
    combination of names on the other axes, for example `(("share", "10%"),)`.
    """
    report, arms = study.report, study.compared
    if report.test is None:
        return None
    axes = study.runs[report.test].over
    names_on_other_axes = [
        [(axis, name) for name in study.names(report.test, axis)] for axis in axes[1:]
    ]
    places = tuple(itertools.product(*names_on_other_axes))
    comparisons: tuple[Comparison, ...] = ()
    # If the study averages over an axis, it compares only the pairs or the baseline of its file.
    # Without pairs and baseline, such a study compares nothing.
    if report.pairs or report.baseline or not report.mean_over:
        comparisons = list_comparisons(arms, places, report.pairs, report.baseline)
    return Rule(
        test=report.test,
        axis=axes[0] if axes else None,
        arms=arms,
        places=places,
        asked=comparisons,
        measure=report.measures[0] if report.measures else None,
    )


def deciding_values(study: Study) -> dict[str, Any]:
    """Return `{dotted key: JSON value}` of every study key that can change a result or a claim.

    A claim is a sentence of the report about a difference between two arms. For example, the values
    may be `{"seeds": [0, 1, 2], "runs.final.tool": "finetune", "report.test": "final"}`.
    """
    excluded: Any = {"title": True, "places": True, "report": READER_KEYS}
    # through JSON, so that the values are equal to the values read from a study.json
    sections = json.loads(json.dumps(study.model_dump(exclude=excluded)))
    flat = {key: sections.pop(key) for key in ("seeds", "match")}
    sections |= {f"runs.{name}": values for name, values in sections.pop("runs").items()}
    for section, values in sections.items():
        for key, value in values.items():
            # a study file spells the key `try`, which cannot name an attribute in Python
            key_in_file = key.replace("tries", "try")
            flat[f"{section}.{key_in_file}"] = value
    return flat


@dataclass(frozen=True)
class History:
    """Describe how the plan of a study was changed after results were known.

    Such changes weaken the claims of the study.

    Attributes:
        changes: One sentence for each change.
        ends: Number of planned ends at which the study makes claims: the number of changes plus 1.
        dropped: Unfinished tasks of the compared run that a change dropped.
    """

    changes: tuple[str, ...] = ()
    ends: int = 1
    dropped: tuple[str, ...] = ()


def lock(folder: Path) -> AbstractContextManager[None]:
    """Lock a study's folder against further writers.

    Raises:
        UserError: A live process is writing in the folder.
    """
    return Run(Recipe(name=folder.name, out=str(folder.parent))).lock()


def update_history(folder: Path, study: Study, tasks: Tasks) -> History:
    """Compare a study with the study.json in the folder and return the updated history.

    A user who has seen results can change the plan until a wished claim holds. So a change after a
    run has finished counts as another planned end of the study. More planned ends weaken the
    claims. Only a change that can affect a result or a claim counts, such as another seed.

    Args:
        folder: Folder of the study, with or without a study.json.
        study: Study as planned now.
        tasks: Tasks of the study, as `assign_folders` names the tasks.

    Returns:
        The history, with all earlier changes.
    """
    if not (folder / FILE).exists():
        return History()
    recorded, values = read(folder), deciding_values(study)
    finished = {task.name for task in recorded.tasks if (folder / task.name / RESULT).exists()}
    all_keys = {**recorded.decides, **values}
    changed = [key for key in all_keys if recorded.decides.get(key) != values.get(key)]
    once_planned = (*recorded.dropped, *recorded.compared_tasks)
    dropped = [name for name in once_planned if name not in {*tasks, *finished}]
    changes, ends = recorded.changes, recorded.ends
    if finished and changed:
        count = f"{len(finished)} of {len(recorded.tasks)} runs had finished"
        changes = [*changes, f"The study was changed after {count}: {list_names(changed)}."]
        ends += 1
    # before a run has finished, nobody has seen results, so dropped tasks do not weaken the claims
    return History(tuple(changes), ends, tuple(dropped) if finished else ())


def content(
    study: Study,
    tasks: Tasks,
    history: History | None = None,
    order: Sequence[Group] = (),
    words: Sequence[str] = (),
    typed_in: str = "",
) -> dict[str, Any]:
    """Return the content of study.json: the plan of a study, the tasks, and changes of the plan.

    The key `decides` has the values from `deciding_values`. The key `rule` has the rule from
    `rule_of`.

    Args:
        study: Study as planned.
        tasks: Tasks of the study.
        history: Changes of the plan after results were known. Default: no changes.
        order: Groups of tasks in the order in which they are started, if hours limit the study.
        words: Arguments of the study tool that repeat the study.
        typed_in: Folder to which paths in `words` are relative.
    """
    rule = rule_of(study)
    groups = {"order": [group.model_dump() for group in order]} if order else {}
    return {
        "title": study.title,
        "axes": {axis: list(names) for axis, names in study.axes.items()},
        "report": {key: value for key, value in study.report.model_dump().items() if value},
        "rule": None if rule is None else asdict(rule),
        "tasks": [asdict(task) for task in tasks.values()],
        **groups,
        "decides": deciding_values(study),
        "words": [*words],
        "typed_in": typed_in,
        **asdict(history or History()),
    }


def read(folder: Path) -> StudyRecord:
    """Read and check the study.json of a folder.

    Raises:
        UserError: study.json is missing or damaged.
    """
    recorded = records.require(folder / FILE, StudyRecord, "remove the file, or use another name=")
    names: set[str] = set()
    for task in recorded.tasks:
        if task.name in names or not is_name(task.name) or not names.issuperset(task.needs):
            raise UserError(
                f"{folder / FILE} is damaged: task {task.name} has an invalid or repeated name, or"
                " comes before a task that it needs. Remove the file."
            )
        names.add(task.name)
    return recorded


def write(folder: Path, content: dict[str, Any]) -> None:
    """Write study.json if the content has changed."""
    text = json.dumps(content, indent=1) + "\n"
    path = folder / FILE
    if not path.exists() or path.read_text(errors="replace") != text:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)


def assign_folders(tasks: Tasks, folder: Path) -> tuple[Tasks, dict[str, str]]:
    """Give each task a folder: the folder that already holds the task's run, or a free folder.

    The folder has the task's name. If this folder already holds another run, for example because
    the study has changed, the task gets a new name with a number. For example, `mae-0` becomes
    `mae-0-2`.

    Args:
        tasks: Tasks as planned.
        folder: Folder of the study.

    Returns:
        The tasks in the same order under their final names, and `{folder: reason}` for every run in
            the study's folder that belongs to no task.
    """
    settled_tasks: Tasks = {}  # tasks under their final names
    final_names: dict[str, str] = {}  # {planned name: final name}
    # {folder: why the run in the folder is not the planned run of the task with this name}
    other_runs: dict[str, str] = {}
    for task in tasks.values():
        renamed = _renamed(task, final_names)
        name = renamed.name
        for number in itertools.count(2):
            candidate = replace(renamed, name=name)
            options, undecided = planned_options(candidate, settled_tasks, folder)
            why = identity.why_not_planned(folder / name, candidate.values, options, undecided)
            if not why and name not in settled_tasks:  # the folder is free or holds the task's run
                break
            # `why` is empty if an earlier task has taken the folder. The result below leaves out
            # the folders of tasks, and so this entry
            other_runs[name] = why
            name = f"{renamed.name}-{number}"
        final_names[task.name] = name
        settled_tasks[name] = candidate
    for path in sorted(folder.glob("*/recipe.yaml")):
        other_runs.setdefault(path.parent.name, "the study has no task of this name")
    return settled_tasks, {
        name: why for name, why in other_runs.items() if name not in settled_tasks
    }


def _renamed(task: Task, names: Mapping[str, str]) -> Task:
    """Return the task with the final names of the tasks that it refers to.

    Args:
        task: Task as planned.
        names: `{planned name: final name}`.
    """
    references = {planned: f"{{{final}}}" for planned, final in names.items()}
    options = fill_references(task.options, references)
    needs = tuple(names[name] for name in task.needs)
    best = None
    if task.best:
        tries, measure = task.best
        best = tuple(names[name] for name in tries), measure
    return replace(task, options=options, needs=needs, best=best)
