"""Check whether a folder holds the planned run, and read which images the run used.

The module does not import torch.
"""

import functools
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..jobs import reuse
from ..recipe import records, schema
from ..recipe.given import from_values
from ..recipe.identity import differences, experiment_values, facts
from ..recipe.images import TRAIN_SPLIT_KEYS
from ..recipe.init_source import SCRATCH, InitSource
from ..recipe.keys import Values
from ..recipe.load import resolve
from ..recipe.parsing import flatten, load_yaml
from ..recipe.recipe_files import read
from ..recipe.records.run import Environment, Result
from ..recipe.schema import all_keys
from ..runs import identity
from ..runs.folder import Run

HINT = "remove the run's folder and type the study's command again"


def why_not_planned(
    run: Path, values: Values, options: Values, undecided: Collection[str] = ()
) -> str:
    """Return why a folder does not hold the run that a study plans, or an empty text.

    The folder may hold a run of another recipe, a copied or edited run, or a run that started from
    other weights. The run need not have finished. A folder in which no run has begun is free for
    the planned run, so the result is empty too.

    Args:
        run: Folder of the run.
        values: `{dotted key: value}` of the task that decide its computation and its result.
        options: `{dotted key: value}` of the task. Values chosen among tries appear only here.
        undecided: Keys whose values are not chosen yet.

    Raises:
        UserError: result.json or environment.json in the folder is damaged.
    """
    files = {name for name in ("recipe.yaml", *identity.RECORDS) if (run / name).exists()}
    if not files or not identity.is_begun(run):
        return ""
    try:
        written = flatten(load_yaml(run / "recipe.yaml"))
    except UserError:
        return "recipe.yaml is missing or damaged"
    if written.get("name") != run.name:
        return f"recipe.yaml belongs to a run called {written.get('name')}"
    environment, is_finished = None, "result.json" in files
    if is_finished or "environment.json" in files:
        environment = records.require(run / "environment.json", Environment, HINT)
    free = environment.free if environment else []
    if is_finished:
        recipe_hash = records.require(run / "result.json", Result, HINT).recipe
        if recipe_hash != identity.written_hash(written, free):
            return "result.json was made with another recipe.yaml"
    recipe_keys = all_keys()
    sources = schema.sources({"init": SCRATCH, **options})
    planned = experiment_values(
        {key: value for key, value in options.items() if key in recipe_keys and key not in sources}
    )
    # keys that change only the result may change until the run has finished
    planned |= values if is_finished else experiment_values(values, free)
    if planned.get("compute.precision") == "auto":
        undecided = [*undecided, "compute.precision"]
    result_options = (environment and environment.options) or {}
    actual = {**written, **result_options}
    differing = identity.planned_differences(actual, planned, undecided)
    if differing:
        return f"recipe.yaml differs from the plan: {', '.join(differing)}"
    for key, source in sources.items():
        if key in undecided:
            continue
        recorded = environment[source.kind] if environment else None
        difference = _other_weights(source, written, recorded or {})
        if difference:
            return difference
    return ""


def _other_weights(
    source: InitSource, written: Mapping[str, Any], recorded: Mapping[str, Any]
) -> str:
    """Return why the weights that a run began with are not the planned weights, or an empty text.

    The hashes of the weights are compared. If the weights are not on this machine, or if
    environment.json does not describe them, only their names are compared.

    Args:
        source: Planned weights.
        written: `{dotted key: value}` of recipe.yaml.
        recorded: Facts about the weights in environment.json, or empty.
    """
    recorded_source = InitSource(str(written.get(source.key, SCRATCH)), source.key)
    weights_text = "initial weights" if source.key == "init" else f"{source.kind}'s weights"
    planned: dict[str, Any] = {}
    if source.is_local:
        path = Path(source.place)
        weights = path if path.is_file() else path / "export" / "model.safetensors"
        try:
            planned = _identity(source, weights.stat().st_mtime_ns if weights.exists() else 0)
        except UserError as error:
            # the caller ends the sentence
            return f"the {weights_text} cannot be compared: {str(error).rstrip('.')}"
    if planned and recorded:
        if differences(facts(source.kind, recorded), facts(source.kind, planned)):
            return f"the {weights_text} differ from the weights of {source.public_name}"
        return ""
    # recipes name weights on the Hub together with a commit
    names = {compared.public_name.partition("@")[0] for compared in (recorded_source, source)}
    if len(names) == 1:
        return ""
    recorded_place = f"{recorded_source.key}={recorded_source.public_name}"
    return f"the {weights_text} come from {recorded_place} and not from {source.public_name}"


@functools.lru_cache(maxsize=64)  # several tasks start from one run
def _identity(source: InitSource, changed: int) -> dict[str, Any]:
    return source.identity()


def training_images(run: Path) -> tuple[str, ...]:
    """Return the options that choose a run's training images, labels and groups.

    The result is empty for a stream, because only the first images of a stream are known.
    """
    written = flatten(load_yaml(run / "recipe.yaml"))
    # the embedded images are drawn at the size data.size
    keys = [*TRAIN_SPLIT_KEYS, "data.group", *([] if written.get("data.path") else ["data.size"])]
    return () if written.get("data.stream") else tuple(f"{key}={written.get(key)}" for key in keys)


def warn_about_changes(run: Path, options: Values) -> list[str]:
    """Check that the images, weights and files of a finished run have not changed since the run.

    Args:
        run: Folder of the run.
        options: `{dotted key: value}` that resolves to the recipe of the run.

    Returns:
        Lines about what could not be checked.

    Raises:
        UserError: The images, weights or files have changed.
    """
    try:
        recipe = resolve(from_values(options), here=False).recipe
    except UserError:  # the initial weights of the run no longer exist
        recipe = read(run / "recipe.yaml")
        recipe.out = str(run.parent)
    return reuse.check_finished(Run(recipe))
