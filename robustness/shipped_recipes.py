"""What the files of recipes/ mean: resolved values of recipes, planned tasks of studies.
tests/config/test_shipped_recipes.py holds their hashes; `baseline.py make` writes them down."""

import dataclasses
from typing import Any

import tree  # noqa: F401  so that ssl_vit is this checkout's

from ssl_vit.config.recipe_files import RECIPES, recipe_names, study_names
from ssl_vit.config.resolve import resolve
from ssl_vit.config.schema import dump
from ssl_vit.lab.studies import expand, read_study


def names() -> list[str]:
    """Names of recipes and studies."""
    return sorted([*recipe_names(), *study_names()])


def meaning(name: str) -> Any:
    """A recipe's values as YAML, or {"study": ..., "tasks": {name: fields}}."""
    if name.startswith("study/"):
        return _planned(name)
    return dump(resolve([f"recipe={name}"], here=False))


def _planned(name: str) -> dict[str, Any]:
    study = read_study.read(RECIPES / f"{name}.yaml")
    tasks = expand.tasks(study, {place: f"/{place}" for place in study.places}, {})
    kept = ("title", "places", "seeds", "arms", "report", "vary", "match")
    return {
        "study": {key: getattr(study, key) for key in kept},
        "tasks": {name: _record(task) for name, task in tasks.items()},
    }


def _record(task: expand.Task) -> dict[str, Any]:
    """A task's fields but where it lies; its options under the name that the hashes were made
    with."""
    record = dataclasses.asdict(task)
    record.pop("coordinates")
    return record | {"words": record.pop("options")}
