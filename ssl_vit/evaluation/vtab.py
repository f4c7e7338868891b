"""VTAB-1k's table of tasks (recipes/tables/vtab.yaml) and its scores. No torch here."""

from collections.abc import Mapping
from statistics import fmean
from typing import Any, NamedTuple

import yaml

from ..config.recipe_files import TABLES

MEAN = "mean"  # over all tasks


def tasks() -> dict[str, dict[str, Any]]:
    """{task: its row}: group, classes, source, label, splits, verified."""
    rows: dict[str, dict[str, Any]] = yaml.safe_load((TABLES / "vtab.yaml").read_text())
    return rows


class PartialMean(NamedTuple):
    """A mean over `tasks`, out of `of` tasks."""

    value: float
    tasks: list[str]
    of: int


def partial_means(accuracy: Mapping[str, float]) -> dict[str, PartialMean]:
    """{group or "mean": mean over those of its tasks that are there}; none of a group without one.
    "mean" is over tasks, not over groups."""
    rows = tasks()
    groups = dict.fromkeys(row["group"] for row in rows.values())
    members = {group: [t for t, row in rows.items() if row["group"] == group] for group in groups}
    found = {}
    for name, every in (members | {MEAN: list(rows)}).items():
        there = [task for task in every if task in accuracy]
        if there:
            value = fmean(accuracy[task] for task in there)
            found[name] = PartialMean(value, there, len(every))
    return found
