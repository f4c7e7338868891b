"""VTAB-1k's table of tasks (recipes/tables/vtab.yaml). No torch here."""

from typing import Any

import yaml

from ..recipe.recipe_files import TABLES


def tasks() -> dict[str, dict[str, Any]]:
    """{task: its row}: group, classes, source, label, splits, test_images, verified."""
    rows: dict[str, dict[str, Any]] = yaml.safe_load((TABLES / "vtab.yaml").read_text())
    return rows
