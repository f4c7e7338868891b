"""What the lab reads in a run's folder beside its results: whether it is the run that a study
plans, and what it was trained and measured on. No torch here."""

import functools
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..formatting import option_text
from ..recipe import records, words
from ..recipe.identity import computed_values, counts, differences, facts
from ..recipe.images import EMBEDDED, OF_SPLITS, OF_TRAIN, PART
from ..recipe.init_source import SCRATCH, InitSource
from ..recipe.load import resolve
from ..recipe.parsing import flatten, load_yaml, yaml_value
from ..recipe.records.run import Environment, Result
from ..recipe.schema import Recipe, all_keys, defaults
from ..runs import identity

HINT = "remove its folder and give the study's command again"


def not_planned(run: Path, options: Sequence[str], undecided: Collection[str] = ()) -> str:
    """Why a run's folder does not hold the run that a study plans, finished or not: its recipe was
    another, it was copied there or edited, or it started from other weights. Empty where it holds
    that run, or none yet.

    Args:
        run: the folder.
        options: words KEY=VALUE of the task.
        undecided: keys whose values they do not tell, as those that are chosen among tries.

    Raises:
        UserError: its result.json or environment.json is damaged.
    """
    there = {name for name in ("recipe.yaml", *identity.RECORDS) if (run / name).exists()}
    if not there:
        return ""
    try:
        written = flatten(load_yaml(run / "recipe.yaml"))
    except UserError:
        return "its recipe.yaml is missing or damaged"
    if written.get("name") != run.name:
        return f"its recipe.yaml is of a run called {written.get('name')}"
    environment, finished = None, "result.json" in there
    if finished or "environment.json" in there:
        environment = records.require(run / "environment.json", Environment, HINT)
    free = environment.free if environment else []
    if finished:
        made = records.require(run / "result.json", Result, HINT).recipe
        if made != identity.written_hash(written, free):
            return "its result.json is of another recipe than its recipe.yaml"
    recipe, unknown = _resolved(options)
    planned = computed_values(recipe) if recipe else _named(options, written, free)
    if planned.get("compute.precision") == "auto":
        unknown.append("compute.precision")
    unknown += ["init", *undecided]
    if differ := identity.planned_differences(written, planned, unknown):
        return f"its recipe is not the planned one: {', '.join(differ)}"
    if finished and recipe:
        try:
            identity.check_options(recipe, run)
        except UserError as error:
            return str(error)
    if "init" in undecided:
        return ""
    recorded = environment.init if environment else None
    return _other_weights(words.parse(options).get("init", SCRATCH), written, recorded or {})


def _resolved(options: Sequence[str]) -> tuple[Recipe | None, list[str]]:
    """The recipe of options, and the keys that it does not tell because the initial weights are not
    here; None where options do not resolve here, as without a plugin."""
    with suppress(UserError):
        return resolve(options, here=False), []
    given = words.parse(options)
    of_data = [key for key in all_keys() if key.startswith("data.")]
    of_weights = [*identity.from_init(), *of_data]
    with suppress(UserError):
        recipe = resolve([word for word in options if not word.startswith("init=")], here=False)
        return recipe, [key for key in of_weights if key not in given]
    return None, []


def _read(text: str) -> Any:
    """The value of a key that is not known here, as without its plugin."""
    try:
        return yaml_value(text)
    except ValueError:
        return text


def _named(
    options: Sequence[str], written: Mapping[str, Any], free: Collection[str]
) -> dict[str, Any]:
    """{dotted key: value} of the keys that options name, of which recipe.yaml has a value."""
    found: dict[str, Any] = {}
    for key, text in words.parse(options).items():
        if not counts(key, free) or key not in written:
            continue
        same = option_text(written[key]) == text or _read(text) == written[key]
        found[key] = (
            words.typed({key: text})[key] if key in defaults() else written[key] if same else text
        )
    return found


def _other_weights(place: str, written: Mapping[str, Any], recorded: Mapping[str, Any]) -> str:
    """Why a run's initial weights are not those of `init=place`. Weights that are not here, or that
    no environment.json describes, are compared by their names."""
    there, source = InitSource(str(written.get("init", SCRATCH))), InitSource(place)
    here: dict[str, Any] = {}
    if source.is_local:
        path = Path(place)
        weights = path if path.is_file() else path / "export" / "model.safetensors"
        try:
            here = _identity(place, weights.stat().st_mtime_ns if weights.exists() else 0)
        except UserError as error:
            return f"its initial weights cannot be compared: {error}"
    if here and recorded:
        same = not differences(facts("init", recorded), facts("init", here))
        return "" if same else f"its initial weights are not those of {source.public_name}"
    # the recipe of weights on the Hub has their commit
    names = {one.public_name.partition("@")[0] for one in (there, source)}
    return "" if len(names) == 1 else f"its initial weights are those of init={there.public_name}"


@functools.lru_cache(maxsize=64)  # several tasks start from one run
def _identity(place: str, changed: int) -> dict[str, Any]:
    return InitSource(place).identity()


def training_images(run: Path) -> tuple[str, ...] | None:
    """The options that choose a run's training images, their labels and groups; None of a stream,
    of which only the first images are known."""
    written = flatten(load_yaml(run / "recipe.yaml"))
    if written.get("data.stream"):
        return None
    chosen = [*OF_TRAIN, "data.group"]
    if written.get("data.name") == EMBEDDED and not written.get("data.path"):
        chosen.append("data.size")  # at which they are drawn
    return tuple(f"{key}={written.get(key)}" for key in chosen)


def frozen_measure(run: Path) -> dict[str, Any]:
    """{dotted key: value} of what decides, beside the weights and the pooling, what an evaluation
    of a frozen encoder measures: its architecture, the labels it learns from and the probes."""
    written = flatten(load_yaml(run / "recipe.yaml"))
    own, left_out = (
        ("model.", "probe.", "data.size", "data.classes", *OF_SPLITS, *PART),
        ("model.name", "probe.pool"),
    )
    return {k: value for k, value in written.items() if k.startswith(own) and k not in left_out}
