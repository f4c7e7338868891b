"""study.json: what a study has planned, and by which rule its report will speak.

It is written before the first task. A changed study may be given again in its folder: finished
runs that it still asks for are kept; where a folder holds another run, the task takes the next
free name (pretrain-mpp-0-2), and the other run stays and is listed.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

from ...config import records
from ...config.fields import is_name
from ...config.records import Record, Scalar, Whole
from ...errors import UserError
from ...runs.files import write_atomically
from .. import engine
from ..compare import Comparison, Rule, comparisons
from .read import REFERENCE, Study, compared
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
    untrained: str | None = None  # the run of fresh weights that the study has added


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
    asked = ()
    if report.pairs or report.baseline or not report.mean_over:
        asked = comparisons(arms, places, report.pairs, report.baseline)
    measure = report.measures[0] if report.measures else None
    axis = run.over[0] if run.over else None
    return Rule(report.test, axis, arms, tuple(places), asked, measure)


def content(study: Study, tasks: Tasks, untrained: str | None = None) -> dict[str, Any]:
    """study.json of a study and its tasks."""
    rule = rule_of(study)
    report = dataclasses.asdict(study.report)
    return {
        "title": study.title,
        "axes": {name: list(axis.settings) for name, axis in study.axes.items()},
        "seeds": list(study.seeds),
        "report": {key: value for key, value in report.items() if value},
        "rule": None if rule is None else _rule_content(rule),
        "untrained": untrained,
        "tasks": [_task_content(task) for task in tasks.values()],
    }


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
    return {
        "name": task.name,
        "run": task.run,
        "tool": task.tool,
        "at": task.at,
        "seed": task.seed,
        "tried": task.tried,
        "needs": list(task.needs),
        "best": None if among is None else list(among),
        "by": by,
        "options": [f"{key}={value}" for key, value in task.options.items()],
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


def settle(tasks: Tasks, folder: Path) -> tuple[Tasks, list[str]]:
    """The tasks with the names of the folders that hold them, or that are free.

    Args:
        tasks: as planned.
        folder: of the study.

    Returns:
        The tasks, and the folders there that hold another run than the planned one.
    """
    settled: Tasks = {}
    names: dict[str, str] = {}  # {planned: settled}
    others: list[str] = []
    for task in tasks.values():
        moved = _renamed(task, names)
        place, number = moved.name, 1
        while (folder / place).exists() and engine.not_planned(folder, place, moved, settled):
            others.append(place)
            number += 1
            place = f"{moved.name}-{number}"
        names[task.name] = place
        settled[place] = dataclasses.replace(moved, name=place)
    return settled, others


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
    return dataclasses.replace(task, options=options, needs=needs, best=best)
