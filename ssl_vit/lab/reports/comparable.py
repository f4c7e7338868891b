"""Which runs belong to a study, and which of their metrics may stand in one table. No torch here.

A folder can hold a run that was copied there, made from an edited recipe or started from other
weights; its numbers look like any others. And two losses can be answers to different questions.
"""

import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...config import declaration, parsing, values
from ...config.computed import computed_values, counts, differences, facts
from ...config.init_source import SCRATCH, InitSource
from ...config.parsing import flatten
from ...config.recipe_images import names_images, of_images
from ...config.records.run import Environment, Result
from ...config.records.study import Task
from ...config.resolve import resolve
from ...config.schema import RENAMED, defaults
from ...errors import UserError
from ...formatting import option_text
from ...runs.identity import from_init, planned_differences, written_hash

# Where the first weights are, and what `auto` became on that machine
UNDECIDED = ("init", "compute.precision")
INIT = re.compile(r"init=\{(.+)\}")


def foreign(
    folder: Path, task: Task, tasks: list[Task], result: Result, environment: Environment
) -> str:
    """Why a finished run is not the task of study.json.

    Args:
        folder: the run's folder.
        task, tasks: the task and all tasks of study.json.
        result, environment: the run's result.json and environment.json.

    Returns:
        Empty where it is the task, or where study.json does not say with which options it ran.
    """
    if not task.options:
        return ""
    try:
        written = flatten(parsing.load_yaml(folder / "recipe.yaml"))
    except UserError:
        return "its recipe.yaml is missing or damaged"
    if written.get("name") != task.name:
        return f"its recipe.yaml is of a run called {written.get('name')}"
    if result.recipe != written_hash(written, environment.free):
        return "its result.json is of another recipe than its recipe.yaml"
    inits = [option for option in task.options if option.startswith("init=")]
    from_weights = any(option != f"init={SCRATCH}" for option in inits)
    undecided = (*UNDECIDED, *(from_init() if from_weights else ()))
    followed = []  # the weights' run, where its images are this run's
    if from_weights and not names_images(task.options):
        followed = _runs_of_weights(folder, task)
        if not followed:
            undecided += tuple(of_images())
    planned = _planned(task, tasks, environment.free, followed)
    for key, text in planned.items():
        # of a plugin that is not here: its value's type is not known, so its text compares
        if key not in defaults() and key in written and _is_typed(written[key], str(text)):
            planned[key] = written[key]
    differ = planned_differences(written, planned, undecided)
    if differ:
        return f"its recipe is not the planned one: {', '.join(differ)}"
    return _other_weights(folder, task, environment.init or {})


def _other_weights(folder: Path, task: Task, recorded: Mapping[str, Any]) -> str:
    """Why the first weights are not those of the run that the plan names; empty where they are, or
    where they are not here any more."""
    for run in _runs_of_weights(folder, task):
        try:
            here = _weights(run)
        except UserError as error:
            return f"its first weights cannot be compared: {error}"
        if differences(facts("init", recorded), facts("init", here)):
            return f"its first weights are not those of {run.name}"
    return ""


def _runs_of_weights(folder: Path, task: Task) -> list[Path]:
    """The folder of the task that the plan takes the first weights from; none of other weights."""
    found = (INIT.fullmatch(option) for option in task.options or ())
    return [folder.parent / one[1] for one in found if one]


@functools.cache  # a probe and a fine-tuning start from the same run
def _weights(folder: Path) -> dict[str, Any]:
    return InitSource(str(folder)).identity()


def _planned(
    task: Task, tasks: list[Task], free: Sequence[str], followed: Sequence[Path]
) -> dict[str, Any]:
    """{dotted key: value} of a task's options and seed, without what a sweep chose; with the images
    of the run that is `followed`. Where they do not resolve here, as without a plugin, only the
    keys that the options name, with the texts of those that are not known here."""
    chosen = {key for one in tasks if one.part == task.best for key in one.values}
    options = [
        _current(option)
        for option in task.options or ()
        if "{" not in option and not option.startswith(("init=", "plugin="))
    ]
    options += [f"init={run}" for run in followed]
    resolved = _resolved(tuple(options), tuple(free))
    planned = {key: value for key, value in resolved.items() if key not in chosen}
    return planned | {"seed": task.seed}


def _current(option: str) -> str:
    """An option with its key's present name."""
    key, equals, value = option.partition("=")
    return RENAMED.get(key, key) + equals + value


@functools.cache  # seeds have the same options
def _resolved(options: tuple[str, ...], free: tuple[str, ...]) -> dict[str, Any]:
    try:
        return computed_values(resolve([*options, "name=planned"], here=False))
    except UserError:
        named = (option.partition("=") for option in options)
        given = {key: text for key, _, text in named if counts(key, free)}
        known = {key: values.typed(key, text) for key, text in given.items() if key in defaults()}
        return {key: text for key, text in given.items() if "." in key} | known


def _is_typed(value: Any, text: str) -> bool:
    """Whether an option's text gives a value, whatever the option's type."""
    if option_text(value) == text.replace(", ", ","):
        return True
    if isinstance(value, list):
        parts = text.strip().removeprefix("[").removesuffix("]").split(",") if text.strip() else []
        texts = [part.strip().strip("'\"") for part in parts]
        return len(texts) == len(value) and all(map(_is_typed, value, texts))
    read = values.scalar(text)
    return type(value) is not bool and type(read) is not bool and read == value


def differing_keys(recipes: Sequence[Mapping[str, Any]]) -> set[str]:
    """Keys of which two of these recipes, as {dotted key: value}, have different values."""
    return {one.key for recipe in recipes[1:] for one in differences(recipes[0], recipe)}


def question_keys(
    name: str, recipes: Sequence[Mapping[str, Any]], free: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Why a held-out metric of pre-training does not compare between recipes.

    Args:
        name: of the metric: `loss`, `accuracy_masked`, in joint training `mpp/loss`.
        recipes: of the arms, as {dotted key: value}.
        free: as in `counts`.

    Returns:
        The keys that differ and make it another question; and the keys of the corruption that
        differ, so that each arm is measured at its own difficulty. Of an objective that does not
        say what its question is, all keys that differ.
    """
    part, _, last = name.rpartition("/")
    differ = differing_keys(recipes)
    its_question = declaration.known_or_bare(part or str(recipes[0].get("objective"))).question(
        last
    )
    if its_question is None:
        return sorted(key for key in differ if counts(key, free)), []
    keys = (*([] if part else ["objective"]), *its_question.keys)
    return _among(keys, differ), sorted(_among(its_question.difficulty, differ))


def _among(keys: Sequence[str], differ: set[str]) -> list[str]:
    """Those keys, and members of the groups among them (`views.`), that differ."""
    members = (sorted(one for one in differ if one.startswith(key)) for key in keys)
    found = zip(keys, members, strict=True)
    return [one for key, some in found for one in some if key.endswith(".") or one == key]
