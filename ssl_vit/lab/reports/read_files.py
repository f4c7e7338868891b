"""Reads the files of a study's folder that a report needs; a damaged one is an error. No torch
here.

Legend: M labelled test images.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from ...config import records
from ...config.fields import is_name
from ...config.records import Kind
from ...config.records.study import StudyPlan, Task
from ...errors import UserError
from .axes import CURVE_OF
from .results import TYPES


def read_plan(path: Path) -> StudyPlan:
    """A study.json whose tasks are in order, each with its coordinates.

    Raises:
        UserError: it is missing or damaged, or coordinates are not where the rest of it says or are
            named like a column of the results.
    """
    plan = read_record(path, StudyPlan)
    if not _in_order(plan.tasks) or not _right_shares(plan):
        raise damaged(path)
    _settle_coordinates(plan, path)
    return plan


def read_record(path: Path, kind: type[Kind]) -> Kind:
    """A JSON file of the study.

    Raises:
        UserError: it is missing or damaged.
    """
    return records.require(path, kind, _hint(path))


def read_predictions(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The predictions.npz of a run: of every test image its index (M,), its labels
    (M, L), and whether the first class predicted is one of them (M,).

    Raises:
        UserError: it is missing or damaged.
    """
    # numpy and zipfile raise errors of many kinds on damaged files
    with suppress(Exception), path.open("rb") as file, np.load(file) as arrays:
        index = arrays["index"]
        label = arrays["label"]
        top5 = arrays["top5"]
        if _integers(index, label, top5) and index.shape == label.shape[:1] == top5[:, 0].shape:
            label_ML = label.reshape(len(index), -1)
            return index, label_ML, (top5[:, :1] == label_ML).any(1)
    raise damaged(path)


def _integers(*arrays: np.ndarray) -> bool:
    return all(np.issubdtype(array.dtype, np.integer) for array in arrays)


def _in_order(tasks: list[Task]) -> bool:
    """Whether each task has a name of its own, which is a folder's, and comes after those that it
    needs."""
    known: set[str] = set()
    for task in tasks:
        new = task.name not in known and is_name(task.name)
        if not new or not known.issuperset(task.needs):
            return False
        known.add(task.name)
    return True


def _right_shares(plan: StudyPlan) -> bool:
    """Whether the places along the curve of a study.json are different, each with a part."""
    points = plan.labels or []
    parts = {task.part for task in plan.tasks}
    shares = [point.share for point in points]
    finals = {point.final for point in points}
    of = plan.curve
    most = np.inf if of == "compute" else 1
    fits = of in CURVE_OF and all(0 < share <= most for share in shares) and finals <= parts
    return fits and len(set(shares)) == len(finals) == len(points)


def _settle_coordinates(plan: StudyPlan, path: Path) -> None:
    """Give each task its coordinates, {axis: value}, where an older version did not record them.

    Raises:
        UserError: recorded ones are not where the part, the arm and the values of their task lie,
            or one is a column that every table of results has.
    """
    places = {part: one.share for one in plan.labels for part in (one.final, *one.extra)}
    named = _coordinates(plan, places)
    expected = _coordinates(plan, _parts_beside(plan) | places)
    axes = {axis for one in expected.values() for axis in one}  # others are of a later version
    for task in plan.tasks:
        whole = expected[task.name]
        if task.coordinates is None:
            task.coordinates = whole
        recorded = {axis: one for axis, one in task.coordinates.items() if axis in axes}
        # a part may be named like those beside the final ones and lie nowhere along the curve
        if recorded not in (whole, named[task.name]):
            text = f"{path}: {task.name}: coordinates {recorded}: its part, arm and values say"
            reason = f"{whole}; remove the file and give the study's command again"
            raise UserError(f"{text} {reason}")
        for axis in task.coordinates:
            if axis in TYPES:
                text = "is a column of the results, and no axis"
                raise UserError(f"{path}: {task.name}: coordinates: {axis} {text}; {_hint(path)}")


def _coordinates(plan: StudyPlan, places: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """{task: its coordinates}: the values of varied and of swept keys, the share or the steps along
    a curve (`labels`, `images` or `compute`), the `task` of a benchmark.

    Args:
        plan: study.json.
        places: {part: its share or steps}.
    """
    found = {}
    for task in plan.tasks:
        own = ({"task": task.arm} if plan.benchmark else {}) | (plan.vary or {}).get(task.arm, {})
        along = {plan.curve: places[task.part]} if task.part in places else {}
        found[task.name] = own | along | task.values
    return found


def _parts_beside(plan: StudyPlan) -> dict[str, float]:
    """{part: its place} of parts at every place along the curve, which are named like the final
    ones: sweep_0.01 and sweep_0.1 beside final_0.01 and final_0.1."""
    if not plan.labels:
        return {}
    parts = {task.part for task in plan.tasks}
    places = {one.final.rpartition("_")[2]: one.share for one in plan.labels}
    stems = {part.rpartition("_")[0] for part in parts}
    whole = [stem for stem in stems if all(f"{stem}_{end}" in parts for end in places)]
    return {f"{stem}_{end}": place for stem in whole for end, place in places.items()}


def damaged(path: Path) -> UserError:
    """The error of a missing or damaged file."""
    return UserError(f"{path} is missing or damaged; {_hint(path)}")


def _hint(path: Path) -> str:
    what = "it" if path.name == "study.json" else "its folder"
    return f"remove {what} and give the study's command again"
