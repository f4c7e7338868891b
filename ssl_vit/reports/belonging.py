"""Whether a run's folder holds the run that a study planned under its name, or one copied there. No
torch here."""

import functools
import re
from pathlib import Path
from typing import Any

from ..config import parsing
from ..config.init_source import InitSource
from ..config.parsing import flatten
from ..config.resolve import resolve
from ..config.schema import RENAMED, computed_values
from ..errors import UserError
from ..runs.identity import written_hash

# what the run before a task decides
FROM_INIT = ("model.", "data.mean", "data.std", "data.eval_mode", "data.eval_crop")
INIT = re.compile(r"init=\{(.+)\}")
OPEN = ("init", "compute.precision")  # where weights lie, and what auto became on that machine


def foreign(
    folder: Path, task: dict[str, Any], tasks: list[dict[str, Any]], result: dict[str, Any]
) -> str:
    """Why a finished run is not the task of study.json; empty where it is, or where study.json says
    nothing of its words."""
    if not task.get("words"):
        return ""
    try:
        written = flatten(parsing.load_yaml(folder / "recipe.yaml"))
    except UserError:
        return "its recipe.yaml is missing or damaged"
    if written.get("name") != task["name"]:
        return f"its recipe.yaml is of a run called {written.get('name')}"
    if result.get("recipe") != written_hash(written):
        return "its result.json is of another recipe than its recipe.yaml"
    planned = _planned(task, tasks)
    differ = [key for key in planned if key in written and written[key] != planned[key]]
    if differ:
        return "; ".join(f"{key} {written[key]} there, {planned[key]} planned" for key in differ)
    return _other_weights(folder, task)


def _other_weights(folder: Path, task: dict[str, Any]) -> str:
    """Why its first weights are not those of the run that the plan names; empty where they are, or
    are not here any more."""
    found = (INIT.fullmatch(word) for word in task["words"])
    for before in (one[1] for one in found if one):
        environment = parsing.read_json(folder / "environment.json", parsing.ENVIRONMENT)
        was, now = (environment.get("init") or {}).get("file"), _weights(folder.parent / before)
        if was and now and was != now:
            return f"its first weights are not those of {before}"
    return ""


@functools.cache  # a probe and a fine-tuning have the same
def _weights(folder: Path) -> str | None:
    return InitSource(str(folder)).weights_hash()


def _planned(task: dict[str, Any], tasks: list[dict[str, Any]]) -> dict[str, Any]:
    """{dotted key: value} of what the plan alone decides; empty where its words mean nothing here,
    as without the images."""
    begun = any(word.startswith("init={") for word in task["words"])
    chosen = {key for one in tasks if one["part"] == task.get("best") for key in one["values"]}
    words = tuple(
        _current(word) for word in task["words"] if "{" not in word and not word.startswith("init=")
    )
    left = (*OPEN, *(FROM_INIT if begun else ()))
    known = {
        key: value
        for key, value in _meant(words).items()
        if key not in chosen and not key.startswith(left)
    }
    return known | {"seed": task["seed"]}


def _current(word: str) -> str:
    """A word by its key's name of today."""
    key, equals, value = word.partition("=")
    return RENAMED.get(key, key) + equals + value


@functools.cache  # seeds have the same words
def _meant(words: tuple[str, ...]) -> dict[str, Any]:
    try:
        return computed_values(resolve([*words, "name=planned"]))
    except UserError:
        return {}
