"""Whether a run's folder holds the run that a study planned under its name, or one copied there. No torch here."""

import functools
from pathlib import Path
from typing import Any

from .. import files
from ..recipe import UserError, computed, flatten
from ..runs import written_hash
from ..words import resolve

FROM_INIT = ("model.", "data.mean", "data.std", "data.eval_mode", "data.eval_crop")  # what the run before a task decides
OPEN = ("init", "compute.precision")  # where weights lie, and what auto became on that machine


def foreign(folder: Path, task: dict[str, Any], tasks: list[dict[str, Any]], result: dict[str, Any]) -> str:
    """Why a finished run is not the task of study.json; empty where it is, or where study.json says nothing of its words."""
    if not task.get("words"):
        return ""
    try:
        written = flatten(files.load(folder / "recipe.yaml"))
    except UserError:
        return "its recipe.yaml is missing or damaged"
    if written.get("name") != task["name"]:
        return f"its recipe.yaml is of a run called {written.get('name')}"
    if result.get("recipe") != written_hash(written):
        return "its result.json is of another recipe than its recipe.yaml"
    planned = _planned(task, tasks)
    differ = [key for key in planned if key in written and written[key] != planned[key]]
    return "; ".join(f"{key} {written[key]} there, {planned[key]} planned" for key in differ)


def _planned(task: dict[str, Any], tasks: list[dict[str, Any]]) -> dict[str, Any]:
    """{dotted key: value} of what the plan alone decides; empty where its words mean nothing here, as without the images."""
    begun = any(word.startswith("init={") for word in task["words"])
    chosen = {key for one in tasks if one["part"] == task.get("best") for key in one["values"]}
    words = tuple(word for word in task["words"] if "{" not in word and not word.startswith("init="))
    left = (*OPEN, *(FROM_INIT if begun else ()))
    known = {key: value for key, value in _meant(words).items() if key not in chosen and not key.startswith(left)}
    return known | {"seed": task["seed"]}


@functools.cache  # seeds have the same words
def _meant(words: tuple[str, ...]) -> dict[str, Any]:
    try:
        return computed(resolve([*words, "name=planned"]))
    except UserError:
        return {}
