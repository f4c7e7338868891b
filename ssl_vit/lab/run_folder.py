"""What the lab reads in a run's folder beside its results: whether it is the run that a study
plans, and what it was trained and measured on. No torch here."""

import functools
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..config import records, values
from ..config.computed import computed_values, counts, differences, facts, keys
from ..config.init_source import SCRATCH, InitSource
from ..config.parsing import flatten, load_yaml
from ..config.records.run import Environment, Result
from ..config.resolve import resolve
from ..config.schema import defaults
from ..errors import UserError
from ..formatting import option_text
from ..runs.identity import planned_differences, written_hash


def not_made_as_planned(
    run: Path, options: Sequence[str], seed: int, chosen: Collection[str] = ()
) -> str:
    """Why a finished run in a study's folder is not the one that study.json plans: it was copied
    there, its recipe.yaml was edited, or it started from other weights; empty where it is.

    Args:
        run: its folder.
        options: of its task, KEY=VALUE; {TASK} is the folder of another task's run.
        seed: of the task.
        chosen: keys whose values were chosen among tries, which the plan does not know.

    Raises:
        UserError: its result.json or environment.json is damaged.
    """
    try:
        written = flatten(load_yaml(run / "recipe.yaml"))
    except UserError:
        return "its recipe.yaml is missing or damaged"
    hint = "remove its folder and give the study's command again"
    environment = records.require(run / "environment.json", Environment, hint)
    recipe = records.require(run / "result.json", Result, hint).recipe
    if written.get("name") != run.name:
        return f"its recipe.yaml is of a run called {written.get('name')}"
    if recipe != written_hash(written, environment.free):
        return "its result.json is of another recipe than its recipe.yaml"
    here = [option.replace("{", f"{run.parent}/").replace("}", "") for option in options]
    planned = _planned([*here, f"seed={seed}"], written, environment.free)
    undecided = {"init", "compute.precision", *chosen}
    if differ := planned_differences(written, planned, undecided):
        return f"its recipe is not the planned one: {', '.join(differ)}"
    if "init" in chosen:
        return ""
    return _other_weights(values.parse(here).get("init", SCRATCH), written, environment)


def _planned(
    options: Sequence[str], written: Mapping[str, Any], free: Collection[str]
) -> dict[str, Any]:
    """{dotted key: value} of a task's options. Where they do not resolve here, as without the
    weights or a plugin (which a report does not run), only of those keys that they name."""
    given = values.parse(option for option in options if not option.startswith("plugin="))
    try:
        words = [f"{key}={text}" for key, text in given.items()]
        return computed_values(resolve([*words, "name=planned"], here=False))
    except UserError:
        named = {key: text for key, text in given.items() if counts(key, free) and key in written}
    for key, text in named.items():
        if key in defaults():
            named[key] = values.typed(key, text)
        elif values.scalar(text) == written[key] or option_text(written[key]) == text:
            named[key] = written[key]
    return named


def _other_weights(place: str, written: Mapping[str, Any], environment: Environment) -> str:
    """Why a run's initial weights are not those of `init=place`; empty where they are, or where
    those of a folder are gone."""
    if not InitSource(place).is_local:
        there = str(written.get("init", SCRATCH))
        # the recipe of weights on the Hub has their commit
        same = there.partition("@")[0] == place.partition("@")[0]
        return "" if same else f"its initial weights are those of init={there}"
    weights = Path(place) / "export" / "model.safetensors"
    changed = weights.stat().st_mtime_ns if weights.exists() else 0
    try:
        here = _identity(place, changed)
    except UserError as error:
        return f"its initial weights cannot be compared: {error}"
    if differences(facts("init", environment.init or {}), facts("init", here)):
        return f"its initial weights are not those of {Path(place).name}"
    return ""


@functools.lru_cache(maxsize=64)  # several tasks start from one run
def _identity(place: str, changed: int) -> dict[str, Any]:
    return InitSource(place).identity()


def training_images(run: Path) -> tuple[str, ...] | None:
    """The options that choose a run's training images, their labels and groups; None of a stream,
    of which only the first images are known."""
    written = flatten(load_yaml(run / "recipe.yaml"))
    if written.get("data.stream"):
        return None
    chosen = [*keys(lambda one: "train" in one.splits), "data.group"]
    return tuple(f"{key}={written.get(key)}" for key in chosen)


def frozen_measure(run: Path) -> dict[str, Any]:
    """{dotted key: value} of what decides, beside the weights and the pooling, what an evaluation
    of a frozen encoder measures: its architecture, the labels it learns from and the probes."""
    written = flatten(load_yaml(run / "recipe.yaml"))
    images = ("data.name", "data.size", "data.share", "data.train", "data.classes")
    own, left_out = ("model.", "probe.", *images), ("model.name", "probe.pool")
    return {k: value for k, value in written.items() if k.startswith(own) and k not in left_out}
