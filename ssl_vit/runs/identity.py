"""Compare a run folder with a recipe: values, images, initial weights and files. No torch.

A folder records what its run was computed from (recipe/identity.py): the keys in recipe.yaml, and
the facts of images, initial weights and files in environment.json. environment.json and result.json
also have the recipe's hash, which names the run.
"""

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from .. import hub_files
from ..errors import UserError
from ..formatting import option_text
from ..recipe import records
from ..recipe.check import check_trunk_before_decay
from ..recipe.given import Given
from ..recipe.identity import (
    Difference,
    changes_experiment,
    computed_values,
    differences,
    experiment_values,
    facts,
    keys_with_effect,
)
from ..recipe.images import PIXEL_KEYS, Data, unmeasured
from ..recipe.init_source import COSTS, file_hash
from ..recipe.keys import Values
from ..recipe.load import resolve
from ..recipe.parsing import flatten, load_yaml
from ..recipe.recipe_files import read
from ..recipe.records import Kind
from ..recipe.records.run import Environment, RunEnvironment, WithRecipe
from ..recipe.schema import Recipe, defaults, sources
from . import lock
from .checkpoint_files import list_checkpoints, step_of

RECORDS = ("result.json", "environment.json")  # files that hold the recipe's hash
FOLDER_HINT = (
    "Use another name=, or remove this folder."  # what to do about a folder of another run
)
LENGTH = ("optim.steps", "optim.decay")  # keys that may differ between runs with the same beginning


def recipe_hash(recipe: Recipe) -> str:
    """Return the hash that identifies a run's computation. Equal hashes mean the same run.

    The hash ignores the path of local weights: environment.json has the hash of the weights.
    """
    return written_hash(recipe.values())


def written_hash(values: Mapping[str, Any], free: Collection[str] = ()) -> str:
    """Return the `recipe_hash` of the values in a recipe.yaml.

    Args:
        values: `{dotted key: value}`.
        free: Keys that do not change the computation; see `experiment_values`.
    """
    computed = experiment_values(values, free)
    for key, source in sources(computed).items():
        if source.is_local:
            computed[key] = "local"
    return hashlib.sha256(json.dumps(computed, sort_keys=True).encode()).hexdigest()[:16]


def free_keys(recipe: Recipe) -> list[str]:
    """Return the keys of the objective and the target that do not change the computation.

    environment.json records these keys for a plugin. Without the plugin the keys are unknown, and
    an unknown key counts as changing the computation.
    """
    return [
        key
        for key in recipe.values()
        if key.split(".")[0] in recipe.groups and not changes_experiment(key)
    ]


def result_options(recipe: Recipe) -> Values:
    """Return `{key: value}` of the keys that change only the result, not the computation.

    The user may change these keys until the run has finished.
    """
    values = defaults() | recipe.values()
    # decides from which evaluations the best checkpoint is chosen
    evaluations = ("eval.every",) if recipe.checkpoint.best else ()
    return {key: values[key] for key in (*keys_with_effect("result"), *evaluations)}


def file_hashes(recipe: Recipe) -> dict[str, Any]:
    """Return the hashes of a recipe's files for environment.json: {key: {kind: hash}}."""
    named = {"plugin": recipe.plugin, "real": recipe.eval.real}
    return {key: {"file": file_hash(Path(path))} for key, path in named.items() if path}


def read_record(path: Path, kind: type[Kind]) -> Kind:
    """Read a record of the run folder.

    Raises:
        UserError: The record is missing or damaged.
    """
    remedy = "Remove the file, or use another name=." if path.exists() else "Use another name=."
    return records.require(path, kind, remedy)


def read_recorded(folder: Path, key: str) -> dict[str, Any]:
    """Return what environment.json records under `key`, such as hashes of images.

    Raises:
        UserError: The file is damaged.
    """
    known = read_record(folder / "environment.json", RunEnvironment)
    return cast(dict[str, Any], known[key] or {})


def initial_weights(folder: Path) -> dict[str, Any]:
    """Return what environment.json records about the weights that a run began with.

    These are hashes (`init`, `teacher`) and the cost of training the weights (`before`).
    """
    path = folder / "environment.json"
    content = read_record(path, Environment).content() if path.exists() else {}
    keys = ("init", "teacher", "before")
    return {key: content[key] for key in keys if content.get(key) is not None}


def runs_before(recipe: Recipe) -> Iterator[tuple[Path, Recipe | None]]:
    """Yield each run that a recipe's initial weights and teachers come from, the latest run first.

    Yields:
        Folder and recipe of the run. The recipe is None if the run is missing or its recipe cannot
            be read. Earlier runs are then unknown.
    """
    yielded: set[Path] = set()
    waiting = [*recipe.sources().values()]
    while waiting:
        source = waiting.pop(0)
        try:
            run = source.locate().run
            if run is None or run.resolve() in yielded:
                continue
            recipe_before = read(run / "recipe.yaml")
        except UserError:
            yield Path(source.place), None
            continue
        yielded.add(run.resolve())
        yield run, recipe_before
        waiting += recipe_before.sources().values()


def upstream_cost(recipe: Recipe) -> dict[str, float | None]:
    """Return the cost of all runs that a run's initial weights and teachers come from.

    `InitSource.upstream_cost` gives the cost of a single source. If several sources are weights of
    the same run, that run counts once.

    Raises:
        UserError: As `InitSource.upstream_cost`.
    """
    source_by_run = {
        source.locate().run or source.key: source for source in recipe.sources().values()
    }
    total: dict[str, float | None] = dict.fromkeys(COSTS, 0.0)
    for source in source_by_run.values():
        for key, cost in source.upstream_cost().items():
            subtotal = total[key]
            total[key] = None if subtotal is None or cost is None else subtotal + cost
    return total


def _checkpoints(folder: Path) -> list[Path]:
    return list_checkpoints(folder / "checkpoints")


def is_begun(folder: Path) -> bool:
    """Return whether a run in a folder has begun, so that another run would destroy files.

    A run has begun once it has a checkpoint, a row of metrics, an export or a result. A run that
    failed earlier, for example because of a mistake in a plugin, leaves the folder free.
    """
    metrics, outputs = folder / "metrics.jsonl", (folder / "export", folder / "result.json")
    has_rows = metrics.is_file() and metrics.stat().st_size > 0
    return has_rows or any(path.exists() for path in (*outputs, *_checkpoints(folder)))


def reconcile(recipe: Recipe, folder: Path) -> Recipe:
    """Complete a recipe from the folder of its run, and check that the folder holds this run.

    `compute.precision=auto` becomes the folder's precision. `data.mean` and `data.std` become the
    values that the folder's run has measured. Weights on the Hub without a commit get the folder's
    commit or, in a new folder, the current commit.

    With resume=RUN@STEP, a run that has no checkpoint yet is completed from the other run. A folder
    in which no run has begun (`is_begun`) counts as new.

    Raises:
        UserError: The folder or the other run has another recipe (the message names the keys that
            differ), or the other run has no such step to begin at.
    """
    path, has_begun = folder / "recipe.yaml", is_begun(folder)
    if has_begun:
        _check_unedited(recipe, folder)
    is_resumable = _checkpoints(folder) or (folder / "result.json").exists()
    if recipe.trunk and not is_resumable:
        if not (recipe.trunk.folder / "recipe.yaml").exists():
            raise recipe.error("resume", f"{recipe.trunk.folder} holds no run. Check the path.")
        _check_unedited(recipe, recipe.trunk.folder)
        trunk_recipe = _completed_from(recipe.trunk.folder, recipe)
        check_trunk(recipe, trunk_recipe)
        _check_saved(recipe, trunk_recipe)
    if not path.exists() or not has_begun:
        _pin_revisions(recipe)
        return recipe
    if not recipe.resume:
        raise UserError(f"resume=false: {folder} already holds a run. {FOLDER_HINT}")
    recipe_before = _completed_from(folder, recipe)
    differing = differences(computed_values(recipe_before), computed_values(recipe))
    if differing:
        text = f"{folder} holds a run of another recipe: {', '.join(map(str, differing))}"
        # nobody should remove a folder while it is written
        hint = "Use another name=." if lock.is_held(folder) else FOLDER_HINT
        raise UserError(f"name={recipe.name}: {text}. {hint}")
    return recipe


def _completed_from(folder: Path, recipe: Recipe) -> Recipe:
    """Complete `recipe` from the recipe of a folder's run, and return the folder's recipe."""
    values = {"recipe": f"{folder}/recipe.yaml", "out": recipe.out}
    if recipe.plugin:
        values["plugin"] = recipe.plugin
    before = resolve(Given(values), here=False).recipe
    if recipe.compute.precision == "auto":
        recipe.compute.precision = before.compute.precision
    for key in unmeasured(recipe.data):
        setattr(recipe.data, key, getattr(before.data, key))
    _pin_revisions(recipe, before)
    _accept_moved_weights(recipe, before, folder)
    return before


def check_trunk(recipe: Recipe, trunk: Recipe) -> None:
    """Check that another run takes the same steps up to the step where a recipe's run begins.

    With resume=RUN@STEP a run begins at a checkpoint of another run, its trunk. With
    optim.schedule=wsd, nothing depends on the length of a run before the decay of the learning
    rate. Therefore a run that continues a trunk equals, to the bit, a run of the same length from
    the start, and has the same hash. The training state and result.json say where the run began.

    Args:
        recipe: Recipe of the run that begins at a step of the trunk.
        trunk: Recipe of the trunk.

    Raises:
        UserError: The recipes differ, or the other run decays before that step.
    """
    if differ := differences(computed_values(trunk), computed_values(recipe), LENGTH):
        text = f"this run has another recipe: {', '.join(map(str, differ))}"
        raise recipe.error("resume", f"{text}. Only {' and '.join(LENGTH)} may differ.")
    check_trunk_before_decay(recipe, trunk)


def _check_saved(recipe: Recipe, trunk_recipe: Recipe) -> None:
    """Check that the checkpoint that a recipe begins at exists.

    Raises:
        UserError: It does not exist; the message names the options that would have kept it.
    """
    assert recipe.trunk is not None
    folder, step = recipe.trunk
    saved = [step_of(path) for path in _checkpoints(folder)]
    if step not in saved:
        keys = options_to_keep(trunk_recipe, step)
        kept = f" To keep this step, the run needed {keys}." if keys else ""
        steps = ", ".join(map(str, saved)) or "none"
        raise recipe.error("resume", f"no checkpoint of this step. Steps to use: {steps}.{kept}")


def options_to_keep(trunk: Recipe, step: int) -> str:
    """Return the options with which a run keeps the checkpoint of a step until its end.

    The result is empty if the run's options already keep the checkpoint.

    Args:
        trunk: Recipe of the run.
        step: Step of the checkpoint.
    """
    settings, steps = trunk.checkpoint, trunk.optim.steps
    every = step if step % settings.every else settings.every
    # ceil(steps / every) checkpoints are saved, the last one after the last step
    keep = -(-steps // every) - step // every + 1
    if every == settings.every and keep <= settings.keep:
        return ""
    return f"checkpoint.every={every} checkpoint.keep={max(keep, settings.keep)}"


def planned_differences(
    values: Mapping[str, Any], planned: Mapping[str, Any], undecided: Collection[str]
) -> list[str]:
    """Describe the differences between recipe.yaml and a study's plan.

    Args:
        values: `{dotted key: value}` of recipe.yaml.
        planned: `{dotted key: value}` of the task's options.
        undecided: Keys that the plan does not decide.
    """
    written = {key: value for key, value in values.items() if key in planned}
    data = Data(**{key: planned[f"data.{key}"] for key in PIXEL_KEYS if f"data.{key}" in planned})
    # the run itself measures these keys of the images
    undecided = {*undecided, *(f"data.{key}" for key in unmeasured(data))}
    return [str(difference) for difference in differences(written, planned, undecided)]


def _check_unedited(recipe: Recipe, folder: Path) -> None:
    """Check that recipe.yaml is the file that the folder's run was made with.

    Raises:
        UserError: recipe.yaml was edited or removed, or another record belongs to another run.
    """
    path = folder / "recipe.yaml"
    for record in (folder / name for name in RECORDS):
        if not record.exists():
            continue
        expected = read_record(record, WithRecipe).recipe
        if not path.exists() or expected not in (None, written_hash(flatten(load_yaml(path)))):
            text = f"{path} is missing or has changed since {record.name} was written"
            raise UserError(f"name={recipe.name}: {text}. Restore the file, or use another name=.")


def _pin_revisions(recipe: Recipe, recipe_before: Recipe | None = None) -> None:
    """Replace the revisions of weights on the Hub by commits.

    The commits come from the folder's recipe if it has the same repository, else from the Hub.
    """
    known = recipe_before.sources() if recipe_before else {}
    for key, source in recipe.sources().items():
        place, before = source.place, known.get(key)
        if not source.is_on_hub or hub_files.is_pinned(place):
            continue
        if before and hub_files.split_place(before.place)[0] == hub_files.split_place(place)[0]:
            recipe.set(key, before.place)
        else:
            recipe.set(key, hub_files.pin(place, source.option))


def _accept_moved_weights(recipe: Recipe, recipe_before: Recipe, folder: Path) -> None:
    """Write new paths of local weights into the folder's recipe if the weights are the same.

    Args:
        recipe: Recipe that the user asks for.
        recipe_before: Recipe of the folder's run, which the function changes.
        folder: Folder of the run.
    """
    sources_before = recipe_before.sources()
    for key, source in recipe.sources().items():
        if key not in sources_before or sources_before[key] == source:
            continue
        now, before = source.identity(), initial_weights(folder).get(source.kind, {})
        is_same = not differences(facts(source.kind, before), facts(source.kind, now))
        if now and "file" in before and is_same:
            recipe_before.set(key, source.place)


def check_facts(recipe: Recipe, folder: Path, now: Mapping[str, Mapping[str, Any]]) -> None:
    """Check that the facts of files agree with a run folder's record, if both are known.

    Args:
        recipe: The recipe of the run.
        folder: The run's folder.
        now: {kind: {name: hash or value}}; the kinds are FACTS (recipe/identity.py) and `real`, the
            labels of ImageNet-ReaL.

    Raises:
        UserError: Some facts differ, or a plugin was added or left out.
    """
    for kind, facts_now in now.items():
        differ = differences(facts(kind, read_recorded(folder, kind)), facts(kind, facts_now))
        if not differ:
            continue
        images = f"data.path={recipe.data.path}" if recipe.data.path else f"data={recipe.data.name}"
        names = sorted(difference.name for difference in differ)
        weights = "the weights" if {"weights", "file"} & {*names} else ", ".join(names)
        options = {source.kind: source.option for source in recipe.sources().values()}
        text = {
            "data": f"{images}: the images of {', '.join(names)} differ",
            **{key: f"{option}: {weights} differ" for key, option in options.items()},
            "plugin": f"plugin={option_text(recipe.plugin)}: the file differs",
            "real": f"eval.real={recipe.eval.real}: the labels differ",
        }[kind]
        # the folder of another run that a run resumes from must not be removed
        is_trunk = recipe.trunk is not None and folder == recipe.trunk.folder
        remedy = "Leave out resume=." if is_trunk else FOLDER_HINT
        raise UserError(f"{text} between this command and the run in {folder}. {remedy}")


def changed_options(recipe: Recipe, folder: Path) -> list[Difference]:
    """Return the differences between the `result_options` of a finished run and of a recipe."""
    before = read_recorded(folder, "options")
    now = result_options(recipe)
    for values in (before, now):
        values["eval.real"] = bool(values.get("eval.real"))  # the file itself is compared by hash
    # a key that was not recorded counts as null
    return [
        Difference(key, before.get(key), now[key]) for key in now if now[key] != before.get(key)
    ]


def check_options(recipe: Recipe, folder: Path) -> None:
    """Check that a finished run's result contains what the recipe requests.

    Raises:
        UserError: The result was made with other values of `result_options`.
    """
    if differ := changed_options(recipe, folder):
        names = ", ".join(map(str, differ))
        text = f"the run in {folder} has finished with other values: {names}"
        raise UserError(f"name={recipe.name}: {text}. {FOLDER_HINT}")
