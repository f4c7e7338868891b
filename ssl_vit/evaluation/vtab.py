"""VTAB-1k's table of tasks (recipes/vtab.yaml) and its scores. No torch here."""

from collections.abc import Mapping
from statistics import fmean
from typing import Any

import yaml

from ..config.recipe_files import RECIPES
from ..errors import UserError


def tasks() -> dict[str, dict[str, Any]]:
    """{task: its row}: group, classes, source, label, splits, verified."""
    rows: dict[str, dict[str, Any]] = yaml.safe_load((RECIPES / "vtab.yaml").read_text())
    return rows


def vtab_means(accuracy: Mapping[str, float]) -> dict[str, float]:
    """{group: mean over its tasks, "mean": mean over the 19 tasks} of {task: accuracy}, in the
    accuracies' own unit.

    Raises:
        UserError: a task that is missing or unknown.
    """
    rows = tasks()
    for what, names in (
        ("unknown", set(accuracy) - set(rows)),
        ("missing", set(rows) - set(accuracy)),
    ):
        if names:
            raise UserError(
                f"VTAB: {what} tasks: {', '.join(sorted(names))}; the 19 are {', '.join(rows)}"
            )
    groups = dict.fromkeys(row["group"] for row in rows.values())
    means = {
        group: fmean(accuracy[task] for task, row in rows.items() if row["group"] == group)
        for group in groups
    }
    return means | {"mean": fmean(accuracy.values())}
