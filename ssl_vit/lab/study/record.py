"""study.json: what a study has planned, and by which rule its report will speak.

It is written before the first task. A changed study may be given again in its folder: finished
runs that it still asks for are kept; where a folder holds another run, the task takes the next
free name (pretrain-mpp-0-2), and the other run stays and is listed.
"""

import itertools
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pydantic import Field

from ...config import records
from ...config.fields import is_name
from ...config.records import Record, Scalar, Whole
from ...errors import UserError
from ...runs.files import write_atomically
from .. import engine
from ..compare import Comparison, Rule, comparisons
from .launch import planned
from .read import REFERENCE, UNTRAINED, Study, compared
from .tasks import Task, Tasks

FILE = "study.json"


class TaskRecord(Record):
    """A task of study.json."""

    name: str
    run: str
    tool: str
    at: dict[str, str]
    seed: Whole
    tried: dict[str, Scalar | list[Scalar]]
    needs: list[str]
    best: list[str] | None = None  # the tasks that it chooses among
    by: str | None = None
    options: list[str]  # as on a command line
    # {key: value} of its resolved recipe that not all tasks of the run have
    recipe: dict[str, Any] = Field(default_factory=dict)


class RuleRecord(Record):
    """verdict.Rule as JSON."""

    test: str
    axis: str | None
    arms: list[str]
    places: list[dict[str, str]]
    asked: list[list[Any]]  # [A, B, {axis: name}]
    measure: str | None = None


class StudyRecord(Record):
    """study.json."""

    title: str
    axes: dict[str, list[str]]
    seeds: list[Whole]
    report: dict[str, Any]
    rule: RuleRecord | None
    tasks: list[TaskRecord]
    # {run: {key: value} that all of its tasks have}
    recipes: dict[str, dict[str, Any]] = Field(default_factory=dict)
    untrained: str | None = None  # the run of fresh weights that the study has added

    def values(self, task: TaskRecord) -> dict[str, Any]:
        """{dotted key: value} of a task's resolved recipe that decide what it computes and what its
        result is of, as far as they were known before the study started."""
        return self.recipes.get(task.run, {}) | task.recipe


def rule_of(study: Study) -> Rule | None:
    """The rule by which the study's report speaks; None of a study that compares nothing."""
    report = study.report
    if report.test is None:
        return None
    run = study.runs[report.test]
    arms = compared(study, report.test)
    places: list[tuple[tuple[str, str], ...]] = [()]
    for axis in run.over[1:]:
        places = [(*one, (axis, name)) for one in places for name in study.names(run, axis)]
    asked: tuple[Comparison, ...] = ()
    if report.pairs or report.baseline or not report.mean_over:
        asked = comparisons(arms, places, report.pairs, report.baseline)
    measure = report.measures[0] if report.measures else None
    compares = run.over[0] if run.over else None
    return Rule(report.test, compares, arms, tuple(places), asked, measure)


def content(
    study: Study, tasks: Tasks, values: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, Any]:
    """study.json of a study.

    Args:
        study, tasks: the study and its tasks.
        values: {task: {dotted key: value} of its resolved recipe}.
    """
    values, rule = values or {}, rule_of(study)
    report = asdict(study.report)
    runs = dict.fromkeys(task.run for task in tasks.values())
    shared = {run: _shared(run, tasks, values) for run in runs}
    return {
        "title": study.title,
        "axes": {name: list(axis.settings) for name, axis in study.axes.items()},
        "seeds": list(study.seeds),
        "report": {key: value for key, value in report.items() if value},
        "rule": None if rule is None else _rule_content(rule),
        "untrained": UNTRAINED if UNTRAINED in shared else None,
        "recipes": shared,
        "tasks": [
            _task_content(task) | {"recipe": _beyond(values.get(task.name, {}), shared[task.run])}
            for task in tasks.values()
        ],
    }


def _shared(run: str, tasks: Tasks, values: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What all tasks of a run have in common."""
    first, *others = (values.get(task.name, {}) for task in tasks.values() if task.run == run)
    return {
        key: value
        for key, value in first.items()
        if all(key in one and one[key] == value for one in others)
    }


def _beyond(values: Mapping[str, Any], shared: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in shared}


def _rule_content(rule: Rule) -> dict[str, Any]:
    return {
        "test": rule.test,
        "axis": rule.axis,
        "arms": list(rule.arms),
        "places": [dict(place) for place in rule.places],
        "asked": [[one.a, one.b, dict(one.at)] for one in rule.asked],
        "measure": rule.measure,
    }


def _task_content(task: Task) -> dict[str, Any]:
    among, by = task.best or (None, None)
    options = [f"{key}={text}" for key, text in task.options.items()]
    return asdict(task) | {"best": among, "by": by, "options": options}


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


def tasks_from(found: StudyRecord) -> Tasks:
    """The tasks that study.json has."""
    tasks = {}
    for one in found.tasks:
        best = None if one.best is None else (tuple(one.best), one.by or "")
        options = dict(option.split("=", 1) for option in one.options)
        shared = (one.name, one.run, one.tool, one.at, one.seed, options, one.tried)
        tasks[one.name] = Task(*shared, tuple(one.needs), best)
    return tasks


def write(folder: Path, found: dict[str, Any]) -> None:
    """Write study.json where it has changed."""
    text = json.dumps(found, indent=1) + "\n"
    path = folder / FILE
    if not path.exists() or path.read_text(errors="replace") != text:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)


def rule_from(found: RuleRecord) -> Rule:
    """The rule that study.json has."""
    return Rule(
        found.test,
        found.axis,
        tuple(found.arms),
        tuple(tuple(place.items()) for place in found.places),
        tuple(Comparison(a, b, tuple(at.items())) for a, b, at in found.asked),
        found.measure,
    )


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
            why = _not_planned(folder, replace(moved, name=place), settled)
            if not why and place not in settled:
                break
            others[place] = why
            place = f"{moved.name}-{number}"
        names[task.name] = place
        settled[place] = replace(moved, name=place)
    for path in sorted(folder.glob("*/recipe.yaml")):
        others.setdefault(path.parent.name, "the study does not ask for it")
    return settled, {name: why for name, why in others.items() if name not in settled}


def _not_planned(folder: Path, task: Task, settled: Tasks) -> str:
    """Why the folder of a task's name holds another run; empty where it holds the task's or none.

    Args:
        folder: of the study.
        task: with the name of that folder.
        settled: the tasks that it needs.
    """
    if not (folder / task.name).exists():
        return ""
    options, undecided = planned(task, settled, folder)
    return engine.not_planned(folder / task.name, options, undecided)


def _renamed(task: Task, names: dict[str, str]) -> Task:
    """The task with the settled names of those that it needs."""
    options = {
        key: REFERENCE.sub(lambda found: f"{{{names.get(found[1], found[1])}}}", text)
        for key, text in task.options.items()
    }
    best = None
    if task.best:
        best = tuple(names[name] for name in task.best[0]), task.best[1]
    needs = tuple(names[name] for name in task.needs)
    return replace(task, options=options, needs=needs, best=best)
