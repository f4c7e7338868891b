"""What a study's finished runs measured, as one table. No torch here.

What is left out is in no row, so nothing that reads the table can show it. Legend: M labelled test
images.
"""

import functools
import gc
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..config import records
from ..config.records.run import CountedResult, RunEnvironment
from ..errors import UserError
from . import engine
from .study.record import StudyRecord, TaskRecord, read

if TYPE_CHECKING:
    from pandas import DataFrame

# Columns of every table but those of its axes, which are texts
TYPES = {
    "run": "str",
    "seed": "int64",
    "tried": "str",
    "split": "str",
    "metric": "str",
    "value": "float64",
    "n": "Int64",
    "exaflop": "float64",
    "device_hours": "float64",
    "fingerprint": "str",
    "task": "str",
    "origin": "str",
}
HINT = "remove its folder and give the study's command again"


@dataclass(frozen=True)
class Results:
    """A study as far as it is finished.

    Attributes:
        folder: of the study.
        plan: study.json.
        table: one row a metric of a finished run: run, a column for each axis (empty where the run
            is not over it), seed, tried (of a run that tries values), split, metric, value, n
            (cases that the value is of), exaflop and device_hours (of the run and of all that its
            weights came through), fingerprint (of the test images), task (its folder), origin (the
            tasks that its weights came through).
        missing: tasks without a result.
        foreign: {task: why the run in its folder is left out}.
        correct: {task: booleans (M,), whether its first class is the label} of the test run, where
            all of its tasks have their predictions.
    """

    folder: Path
    plan: StudyRecord
    table: "DataFrame"
    missing: list[str]
    foreign: dict[str, str]
    correct: dict[str, np.ndarray]

    def rows(self, run: str, metric: str | None = None, split: str | None = None) -> "DataFrame":
        """The rows of a run, without those that try values for another."""
        found = self.table[(self.table["run"] == run) & (self.table["tried"] == "")]
        if metric is not None:
            found = found[found["metric"] == metric]
        return found if split is None else found[found["split"] == split]


def load(folder: Path) -> Results:
    """Read a study's folder.

    Raises:
        UserError: it is no study, a file in it is damaged, nothing is finished, or runs of the
            test were tested on different images.
    """
    if not (folder / "study.json").exists():
        raise UserError(f"{folder}: expected a study's folder, with study.json in it")
    plan = read(folder)
    tasks = {task.name: task for task in plan.tasks}
    finished: dict[str, tuple[CountedResult, RunEnvironment]] = {}
    missing, foreign = [], {}
    for task in plan.tasks:
        if not (folder / task.name / "result.json").exists():
            missing.append(task.name)
            continue
        why = engine.not_made_as_planned(folder, task)
        needed = next((name for name in task.needs if name in foreign), None)
        if why or needed:
            foreign[task.name] = why or f"it depends on {needed}"
            continue
        place = folder / task.name
        finished[task.name] = (
            records.require(place / "result.json", CountedResult, HINT),
            records.require(place / "environment.json", RunEnvironment, HINT),
        )
    if not finished:
        state = f"{len(missing)} of {len(tasks)} tasks are not finished"
        left = f"; left out: {_listed(foreign)}" if foreign else ""
        raise UserError(f"{folder}: no task has a result to show: {state}{left}")
    rows = [
        row
        for name, (result, environment) in finished.items()
        for row in _rows(tasks[name], result, environment, _origins(tasks, name))
    ]
    table = _frame(rows, list(plan.axes))
    tested = [one for one in plan.tasks if plan.rule and one.run == plan.rule.test]
    _check_same_images(folder, [one.name for one in tested if one.name in finished], finished)
    correct = _correct(folder, [one.name for one in tested if one.name in finished])
    return Results(folder, plan, table, missing, foreign, correct)


def _listed(foreign: Mapping[str, str]) -> str:
    return ", ".join(f"{name} ({why})" for name, why in foreign.items())


def _origins(tasks: Mapping[str, TaskRecord], name: str) -> list[str]:
    """The tasks that a task's weights came through: not those among which it chose values."""
    task = tasks[name]
    direct = [one for one in task.needs if one not in (task.best or ())]
    found = dict.fromkeys(direct)
    for one in direct:
        found |= dict.fromkeys(_origins(tasks, one))
    return list(found)


def _rows(
    task: TaskRecord, result: CountedResult, environment: RunEnvironment, origins: list[str]
) -> list[dict[str, Any]]:
    tried = ", ".join(f"{key}={value}" for key, value in task.tried.items())
    shared = {"run": task.run, **task.at, "seed": task.seed, "tried": tried, "task": task.name}
    shared["exaflop"] = math.nan if result.total_exaflop is None else result.total_exaflop
    shared["device_hours"] = (
        math.nan if result.total_device_hours is None else result.total_device_hours
    )
    shared["fingerprint"] = environment.data.get("test", "")
    shared["origin"] = " ".join(origins)
    return [
        shared | {"split": one.split, "metric": name, "value": one.value, "n": one.n}
        for name, one in result.metrics.items()
    ]


def _frame(rows: list[dict[str, Any]], axes: list[str]) -> "DataFrame":
    columns = ["run", *axes, *list(TYPES)[1:]]
    found = pandas().DataFrame(rows, columns=columns, dtype=object)
    for axis in axes:
        found[axis] = found[axis].fillna("").astype("str")
    return found.astype(TYPES)


@functools.cache
def pandas() -> Any:
    """The module; nothing but reports of studies waits for its import."""
    import pandas

    # passing over its modules in collections of garbage saves as much time as the import takes
    gc.freeze()
    return pandas


def _check_same_images(
    folder: Path, names: list[str], finished: Mapping[str, tuple[CountedResult, RunEnvironment]]
) -> None:
    """Raises UserError where two tasks of one place were tested on different images."""
    first: dict[str, str] = {}
    for name in names:
        test = finished[name][1].data.get("test")
        if test is None:
            continue
        other = first.setdefault(test, name)
        if len(first) > 1 and other == name:
            known = next(iter(first.values()))
            text = f"{folder / known} and {folder / name} were tested on different images"
            raise UserError(f"{text}; they cannot share a table")


def _correct(folder: Path, names: list[str]) -> dict[str, np.ndarray]:
    """Whether each test image's first class is its label; none where a task lacks predictions."""
    found = {}
    shared: tuple[np.ndarray, np.ndarray] | None = None
    for name in names:
        path = folder / name / "predictions.npz"
        if not path.exists():
            return {}
        index, label, correct = read_predictions(path)
        shared = shared or (index, label)
        if not (np.array_equal(index, shared[0]) and np.array_equal(label, shared[1])):
            raise UserError(f"{path}: its images are not those of {names[0]}; {HINT}")
        found[name] = correct[(label >= 0).any(1)]
    return found


def read_predictions(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The predictions.npz of a run: of every test image its index (M,), its labels (M, L), and
    whether the first class predicted is one of them (M,).

    Raises:
        UserError: it is damaged.
    """
    # numpy and zipfile raise errors of many kinds on damaged files
    with suppress(Exception), path.open("rb") as file, np.load(file) as arrays:
        index, label, top5 = arrays["index"], arrays["label"], arrays["top5"]
        whole = all(np.issubdtype(one.dtype, np.integer) for one in (index, label, top5))
        if whole and index.shape == label.shape[:1] == top5[:, 0].shape:
            label_ML = label.reshape(len(index), -1)
            return index, label_ML, (top5[:, :1] == label_ML).any(1)
    raise UserError(f"{path}: is damaged; {HINT}")
