"""Reads the files of a study's folder that a report needs; a damaged one is an error. No torch
here.

Legend: M labelled test images.
"""

from contextlib import suppress
from pathlib import Path

import numpy as np

from ...config import records
from ...config.fields import is_name
from ...config.records import Kind
from ...config.records.study import StudyPlan, Task
from ...errors import UserError
from .axes import CURVE_OF


def read_plan(path: Path) -> StudyPlan:
    """A study.json whose tasks are in order.

    Raises:
        UserError: it is missing or damaged.
    """
    plan = read_record(path, StudyPlan)
    if _in_order(plan.tasks) and _right_shares(plan):
        return plan
    raise damaged(path)


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


def damaged(path: Path) -> UserError:
    """The error of a missing or damaged file."""
    return UserError(f"{path} is missing or damaged; {_hint(path)}")


def _hint(path: Path) -> str:
    what = "it" if path.name == "study.json" else "its folder"
    return f"remove {what} and give the study's command again"
