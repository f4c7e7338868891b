"""Decide whether two runs are the same: what a run is computed from, and how two runs differ.

The identity of a run is a mapping. It has {dotted key: value} for the keys that change what is
computed, and {"KIND:NAME": hash or value} for facts about the files that the keys name, such as
"data:train". FACTS lists the kinds. A run folder records the keys in recipe.yaml, and the facts in
environment.json, under the kind. environment.json and result.json also have the recipe's hash.

`differences` compares two identities. Resuming a run, returning the result of a finished run,
refusing a folder of another run, changing a study and pushing to the Hub all use this comparison.
No torch.
"""

import functools
import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from .. import hub_files
from ..errors import UserError
from ..formatting import option_text
from ..recipe import declaration, records
from ..recipe.check import check_trunk_before_decay
from ..recipe.given import Given
from ..recipe.images import PIXEL_KEYS, PREPROCESSING, TRAIN_SPLIT_KEYS, Data, unmeasured
from ..recipe.init_source import COSTS, SCRATCH, InitSource, file_hash
from ..recipe.keys import Values
from ..recipe.load import resolve
from ..recipe.parsing import flatten, load_yaml
from ..recipe.recipe_files import read
from ..recipe.records import Kind
from ..recipe.records.run import Environment, Result, RunEnvironment, Trunk, WithRecipe
from ..recipe.schema import (
    DEFAULT_TARGET,
    Recipe,
    all_keys,
    changes_experiment,
    computed_values,
    defaults,
    experiment_values,
    keys_with_effect,
    optional_groups,
    sources,
)
from . import lock
from .checkpoint_files import list_checkpoints, step_of

if TYPE_CHECKING:
    from .folder import Run

# Kinds of facts: images, initial weights, the weights of a teacher, and a plugin
FACTS = ("data", "init", "teacher", "plugin")
# the value of a key that one of two runs does not have, if the key has no default
UNKNOWN = "not known"
RECORDS = ("result.json", "environment.json")  # files that hold the recipe's hash
# remedy in an error about a folder of another run
FOLDER_HINT = "Use another name=, or remove this folder."
STUDY_HINT = "remove the run's folder and type the study's command again"
LENGTH = ("optim.steps", "optim.decay")  # runs with the same first steps may differ in these keys
MEASURED_LAST = {"eval.test", "eval.real"}  # keys of measurements after the last step

# Function that returns the hashes of a recipe's images, {"train": hash, ...}, and a text. If the
# images cannot be compared, the hashes are {} and the text is the reason.
Fingerprint = Callable[[Recipe], tuple[dict[str, str], str]]


class Difference(NamedTuple):
    """Key or fact in which two runs differ, with the two values.

    Attributes:
        key: Dotted key, or KIND:NAME of a fact.
        recorded: Value in the run that exists.
        wanted: Value in the run that is wanted.
    """

    key: str
    recorded: Any
    wanted: Any

    def __str__(self) -> str:
        return f"{self.key} ({self.recorded} there, {self.wanted} here)"

    @property
    def kind(self) -> str:
        """Kind of the fact, such as "data" for "data:train", or an empty string for a key."""
        return self.key.partition(":")[0] if ":" in self.key else ""

    @property
    def name(self) -> str:
        """Name of the fact without the kind, or the key."""
        return self.key.rpartition(":")[2]


def facts(kind: str, values: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return {"KIND:NAME": value} for the facts {NAME: value} of a kind.

    For the kind "plugin", the fact "plugin:" says whether the run has a plugin.
    """
    prefixed = {f"{kind}:{name}": value for name, value in (values or {}).items()}
    if kind == "plugin":
        prefixed["plugin:"] = bool(values)
    return prefixed


def differences(
    before: Mapping[str, Any], here: Mapping[str, Any], undecided: Collection[str] = ()
) -> list[Difference]:
    """Return the differences between the identities of two runs.

    An identity has an entry for each key of the recipe, such as `optim.lr`. It also has an entry
    for each fact about a file: `data:train` is the hash of the training images.

    If one run lacks a key, the default of the key is compared instead, because versions and
    objectives have different keys. If one run lacks a fact, the fact is not compared, because
    earlier versions recorded fewer facts, and deleted files have no facts.

    Args:
        before: `{key or fact: value}` of the run that exists.
        here: `{key or fact: value}` of the run that is wanted.
        undecided: Keys to leave out of the comparison.
    """
    default_values = defaults()
    differing = []
    for key in {**before, **here}:
        is_fact = ":" in key
        if key in undecided or (is_fact and not (key in before and key in here)):
            continue
        default = default_values.get(key, UNKNOWN)
        difference = Difference(key, before.get(key, default), here.get(key, default))
        if difference.recorded != difference.wanted:
            differing.append(difference)
    return differing


def keys_of_prediction(values: Mapping[str, Any]) -> list[str]:
    """Return the keys that decide what an objective predicts and how difficult the prediction is.

    The losses of two runs are comparable only if these keys have the same values. The keys are
    those of the objective's groups, such as `views.jitter`, and the sizes of images and patches. An
    objective with several views of an image adds the batch and the preprocessing.

    If the objective is unknown, for example because its plugin is not loaded, its groups are also
    unknown. The result then has the keys of all groups in `values` that only some objectives use,
    and of all groups with a key that ssl_vit does not know.

    Args:
        values: `{dotted key: value}` of the recipe.
    """
    declared = declaration.objectives().get(str(values.get("objective")))
    target = str(values.get("target", DEFAULT_TARGET))
    if declared:
        groups = {*declared.groups_with(target)}
    else:
        plugin_keys = values.keys() - all_keys().keys()  # keys that ssl_vit does not know
        groups = optional_groups() & {key.split(".")[0] for key in values}
        groups |= {key.split(".")[0] for key in plugin_keys}
    keys = [key for key in {**defaults(), **values} if key.split(".")[0] in groups]
    keys += ["objective", "data.size", "model.patch"]
    if "views" in groups:  # objectives with views distinguish the images of a batch
        keys += ["optim.batch", *PREPROCESSING]
    return keys


def recipe_hash(recipe: Recipe) -> str:
    """Return the hash that identifies a run's computation. Equal hashes mean the same run.

    The hash ignores the paths of local weights. environment.json has hashes of the weights.
    """
    return written_hash(recipe.values())


def written_hash(values: Mapping[str, Any], without_effect: Collection[str] = ()) -> str:
    """Return the `recipe_hash` of the values in a recipe.yaml.

    Args:
        values: `{dotted key: value}`.
        without_effect: Keys of a plugin that the hash ignores (`keys_without_effect`).
    """
    computed = experiment_values(values, without_effect)
    for key, source in sources(computed).items():
        if source.is_local:
            computed[key] = "local"  # for any path, because moved weights are the same weights
    return hashlib.sha256(json.dumps(computed, sort_keys=True).encode()).hexdigest()[:16]


def keys_without_effect(recipe: Recipe) -> list[str]:
    """Return the keys of the objective and the target that do not change the computation.

    For a plugin, environment.json records these keys. A process that has not loaded the plugin does
    not know the keys, and without the record would take them for keys that change the computation.
    """
    # `recipe.groups` are the groups of keys that the objective and the target use
    keys = [key for key in recipe.values() if key.split(".")[0] in recipe.groups]
    return [key for key in keys if not changes_experiment(key)]


def result_options(recipe: Recipe) -> Values:
    """Return `{key: value}` of the keys that change the result but not the training.

    An example is `eval.test`. The user may change these keys until the run has finished.
    """
    values = defaults() | recipe.values()
    keys = keys_with_effect("result")
    if recipe.checkpoint.best:  # the result is measured on the weights of the best evaluation
        keys.append("eval.every")
    return {key: values[key] for key in keys}


def file_hashes(recipe: Recipe) -> dict[str, Any]:
    """Return {kind: {"file": hash}} of the plugin and of the labels in eval.real."""
    paths = {"plugin": recipe.plugin, "real": recipe.eval.real}
    return {kind: {"file": file_hash(Path(path))} for kind, path in paths.items() if path}


def read_record(path: Path, kind: type[Kind]) -> Kind:
    """Read a record of the run folder.

    Raises:
        UserError: The record is missing or damaged.
    """
    if path.exists():
        return records.require(path, kind, "Remove the file, or use another name=.")
    return records.require(path, kind, "Use another name=.")


def read_recorded(folder: Path, key: str) -> dict[str, Any]:
    """Return what environment.json records under `key`, such as hashes of images.

    Raises:
        UserError: The file is damaged.
    """
    known = read_record(folder / "environment.json", RunEnvironment)
    return cast(dict[str, Any], known[key] or {})


def initial_weights(folder: Path) -> dict[str, Any]:
    """Return the records of environment.json about the weights that a run began with.

    The keys `init` and `teacher` have hashes of the weights. The key `before` has the cost of the
    earlier runs that made the weights.
    """
    path = folder / "environment.json"
    content = read_record(path, Environment).content() if path.exists() else {}
    keys = ("init", "teacher", "before")
    return {key: content[key] for key in keys if content.get(key) is not None}


def runs_before(recipe: Recipe) -> Iterator[tuple[Path, Recipe | None]]:
    """Yield the earlier runs that made a recipe's initial weights and teachers, latest run first.

    Yields:
        Folder and recipe of a run. If the run is missing or its recipe cannot be read, the recipe
            is None, and the runs before this run are not yielded.
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
    """Return the cost of all earlier runs that made a run's initial weights and teachers.

    If several weights come from the same run, the cost of this run counts once.

    Returns:
        `{"exaflop": ..., "device_hours": ...}`, each a number, or None if the cost of a source is
            unknown.

    Raises:
        UserError: As `InitSource.upstream_cost`.
    """
    source_by_run: dict[Path | str, InitSource] = {}
    for source in recipe.sources().values():
        run = source.locate().run
        # weights that no run made are listed under the key of the recipe, so they count separately
        source_by_run[run or source.key] = source
    total: dict[str, float | None] = dict.fromkeys(COSTS, 0.0)
    for source in source_by_run.values():
        for key, cost in source.upstream_cost().items():
            subtotal = total[key]
            total[key] = None if subtotal is None or cost is None else subtotal + cost
    return total


def is_begun(folder: Path) -> bool:
    """Return whether a run in a folder has begun, so that another run would destroy files.

    A run has begun once it has a checkpoint, a row of metrics, an export or a result. A run that
    failed earlier, for example because of a mistake in a plugin, leaves the folder free.
    """
    metrics = folder / "metrics.jsonl"
    has_rows = metrics.is_file() and metrics.stat().st_size > 0
    checkpoints = list_checkpoints(folder / "checkpoints")
    outputs = (folder / "export", folder / "result.json", *checkpoints)
    return has_rows or any(path.exists() for path in outputs)


def reconcile(recipe: Recipe, folder: Path) -> Recipe:
    """Check that a folder holds the run of a recipe, and fill in the recipe's open values.

    A recipe can leave values open, such as `compute.precision=auto`. They get the values of the run
    in the folder (`_fill_open_values`). In a new folder, only the commits of weights on the Hub are
    filled in. A folder in which no run has begun (`is_begun`) counts as new.

    With resume=RUN@STEP, a run that has no checkpoint yet gets the values of RUN.

    Returns:
        The same recipe, changed in place.

    Raises:
        UserError: The folder or RUN has another recipe (the message names the keys that differ), or
            RUN has no checkpoint of STEP.
    """
    has_begun = is_begun(folder)
    if has_begun:  # check this first, because all further checks rely on recipe.yaml
        _check_unedited(recipe, folder)
    # A run without a checkpoint or result starts again from the trunk (RUN of resume=RUN@STEP). It
    # is treated like a new run, even if it has rows of metrics
    has_state = list_checkpoints(folder / "checkpoints") or (folder / "result.json").exists()
    if recipe.trunk and not has_state:
        _prepare_continuation(recipe, recipe.trunk.folder)
    # Nothing to compare with. A run that has begun may lack recipe.yaml if it also lacks RECORDS,
    # because only then `_check_unedited` raises no error
    if not (folder / "recipe.yaml").exists() or not has_begun:
        _pin_revisions(recipe)
        return recipe
    if not recipe.resume:
        raise UserError(f"resume=false: {folder} already holds a run. {FOLDER_HINT}")
    recipe_before = _read_recipe(folder, recipe)
    _fill_open_values(recipe, recipe_before)
    _accept_moved_weights(recipe, recipe_before, folder)
    differing = differences(computed_values(recipe_before), computed_values(recipe))
    if differing:
        keys = ", ".join(map(str, differing))
        # do not recommend to remove a folder that another process is writing
        if lock.is_held(folder):
            raise UserError(
                f"name={recipe.name}: {folder} holds a run of another recipe: {keys}. "
                "Use another name=."
            )
        raise UserError(
            f"name={recipe.name}: {folder} holds a run of another recipe: {keys}. {FOLDER_HINT}"
        )
    return recipe


def _prepare_continuation(recipe: Recipe, trunk: Path) -> None:
    """Check that a run can continue RUN of resume=RUN@STEP, and fill in its open values from RUN.

    Args:
        recipe: Recipe of the run with resume=RUN@STEP, changed in place (`_fill_open_values`).
        trunk: Folder of RUN.

    Raises:
        UserError: RUN does not exist, has a different or edited recipe, or has no checkpoint of
            STEP.
    """
    if not (trunk / "recipe.yaml").exists():
        raise recipe.error("resume", f"{trunk} holds no run. Check the path.")
    _check_unedited(recipe, trunk)
    trunk_recipe = _read_recipe(trunk, recipe)
    _fill_open_values(recipe, trunk_recipe)
    _accept_moved_weights(recipe, trunk_recipe, trunk)
    check_trunk(recipe, trunk_recipe)
    _check_saved(recipe, trunk_recipe)


def _read_recipe(folder: Path, recipe: Recipe) -> Recipe:
    """Read the recipe.yaml of an earlier run.

    Args:
        folder: Folder of the earlier run.
        recipe: Recipe of the present run. Its plugin, if any, is used to read recipe.yaml.
    """
    values = {"recipe": f"{folder}/recipe.yaml", "out": recipe.out}
    if recipe.plugin:
        values["plugin"] = recipe.plugin
    return resolve(Given(values), here=False).recipe


def _fill_open_values(recipe: Recipe, recipe_before: Recipe) -> None:
    """Fill in the values that a recipe leaves open, with the values of an earlier run.

    These values can be open:

    - `compute.precision`, if it is "auto".
    - `data.mean` and `data.std`, if the images do not have 3 channels and the recipe sets no values
      for them. The earlier run has measured these values.
    - The commits of weights on the Hub. If the earlier run used another repository, the current
      commit on the Hub is filled in.

    Args:
        recipe: Recipe to fill in, changed in place.
        recipe_before: Recipe of the earlier run.
    """
    if recipe.compute.precision == "auto":
        recipe.compute.precision = recipe_before.compute.precision
    for key in unmeasured(recipe.data):
        setattr(recipe.data, key, getattr(recipe_before.data, key))
    _pin_revisions(recipe, recipe_before)


def check_trunk(recipe: Recipe, trunk: Recipe) -> None:
    """Check that a run with resume=RUN@STEP would take the same steps as RUN up to STEP.

    RUN is called the trunk. With optim.schedule=wsd, the steps before the decay of the learning
    rate do not depend on the length of the run. Therefore a run that continues a trunk has, to the
    bit, the same weights as a run of the same length from step 0. Both have the same hash.

    Args:
        recipe: Recipe of the run with resume=RUN@STEP.
        trunk: Recipe of RUN.

    Raises:
        UserError: The recipes differ in other keys than the length of the run (`optim.steps`,
            `optim.decay`), or RUN decays before STEP.
    """
    differing = differences(computed_values(trunk), computed_values(recipe), undecided=LENGTH)
    if differing:
        keys = ", ".join(map(str, differing))
        raise recipe.error(
            "resume",
            f"this command and the run to continue have different recipes: {keys}. "
            f"Only {' and '.join(LENGTH)} may differ.",
        )
    check_trunk_before_decay(recipe, trunk)


def _check_saved(recipe: Recipe, trunk_recipe: Recipe) -> None:
    """Check that RUN has a checkpoint of STEP, for a recipe with resume=RUN@STEP.

    Raises:
        UserError: The checkpoint is missing. The message names the options that would have kept the
            checkpoint.
    """
    assert recipe.trunk is not None
    folder, step = recipe.trunk
    saved = [step_of(path) for path in list_checkpoints(folder / "checkpoints")]
    if step not in saved:
        keys = options_to_keep(trunk_recipe, step)
        steps = ", ".join(map(str, saved)) or "none"
        if keys:
            raise recipe.error(
                "resume",
                f"the run has no checkpoint of this step. Steps with a checkpoint: {steps}. To keep"
                f" this step, the run would have needed {keys}.",
            )
        raise recipe.error(
            "resume", f"the run has no checkpoint of this step. Steps with a checkpoint: {steps}."
        )


def options_to_keep(trunk: Recipe, step: int) -> str:
    """Return the options with which a run still has the checkpoint of a step at the end.

    A run saves a checkpoint at every multiple of `checkpoint.every` and after the last step, and
    keeps the latest `checkpoint.keep` checkpoints. An example of the result is
    `checkpoint.every=600 checkpoint.keep=3`. The result is empty if the run's options are enough.

    Args:
        trunk: Recipe of the run.
        step: Step of the checkpoint.
    """
    settings, steps = trunk.checkpoint, trunk.optim.steps
    # if the run does not save this step, use checkpoint.every=step, so that this step is the first
    every = settings.every if step % settings.every == 0 else step
    num_saved = -(-steps // every)  # ceil(steps / every), because the last step is saved, too
    # Only earlier checkpoints may be removed. With steps=2400, every=600 and step=1200, there are 4
    # checkpoints, of which 1 is earlier, so 3 must be kept
    num_earlier = step // every - 1
    keep = num_saved - num_earlier
    if every == settings.every and keep <= settings.keep:
        return ""
    return f"checkpoint.every={every} checkpoint.keep={max(keep, settings.keep)}"


def planned_differences(
    values: Mapping[str, Any], planned: Mapping[str, Any], undecided: Collection[str]
) -> list[str]:
    """Describe the differences between recipe.yaml and a study's plan.

    If the plan does not set the mean and the standard deviation of the images, the run measures
    these values, and they are not compared.

    Args:
        values: `{dotted key: value}` of recipe.yaml.
        planned: `{dotted key: value}` of the options that the study gives the run.
        undecided: Keys that the plan does not decide.

    Returns:
        A text for each difference, such as `optim.lr (0.1 there, 0.2 here)`.
    """
    written = {key: value for key, value in values.items() if key in planned}
    pixel_values = {key: planned[f"data.{key}"] for key in PIXEL_KEYS if f"data.{key}" in planned}
    # keys of the values ("mean", "std") that the plan leaves open, so the run measures the values
    measured_keys = {f"data.{key}" for key in unmeasured(Data(**pixel_values))}
    differing = differences(written, planned, measured_keys.union(undecided))
    return [str(difference) for difference in differing]


def _check_unedited(recipe: Recipe, folder: Path) -> None:
    """Check that recipe.yaml has not changed since the folder's run was made.

    recipe.yaml is compared with the hashes of the recipe in result.json and environment.json. If
    one of these files has no hash, because an earlier version wrote the file, recipe.yaml only has
    to exist.

    Raises:
        UserError: recipe.yaml was edited or removed, or result.json or environment.json was written
            with another recipe.
    """
    path = folder / "recipe.yaml"
    for record in (folder / name for name in RECORDS):
        if not record.exists():
            continue
        recorded_hash = read_record(record, WithRecipe).recipe
        is_unedited = False
        if path.exists():
            hash_now = written_hash(flatten(load_yaml(path)))
            is_unedited = recorded_hash in (None, hash_now)
        if not is_unedited:
            raise UserError(
                f"name={recipe.name}: {path} is missing or has changed since {record.name} was "
                "written. Restore the file, or use another name=."
            )


def _pin_revisions(recipe: Recipe, recipe_before: Recipe | None = None) -> None:
    """Replace the revisions of weights on the Hub by commits, so that the weights cannot change.

    For example, hf-hub:USER/NAME@main becomes hf-hub:USER/NAME@COMMIT. The commit comes from
    `recipe_before` if this recipe names the same repository. Otherwise, it is the current commit on
    the Hub.

    Args:
        recipe: Recipe with the weights, changed in place.
        recipe_before: Recipe of an earlier run, or None.
    """
    sources_before = recipe_before.sources() if recipe_before else {}
    for key, source in recipe.sources().items():
        place, before = source.place, sources_before.get(key)
        if not source.is_on_hub or hub_files.is_pinned(place):
            continue
        if before and hub_files.split_place(before.place)[0] == hub_files.split_place(place)[0]:
            recipe.set(key, before.place)
        else:
            recipe.set(key, hub_files.pin(place, source.option))


def _accept_moved_weights(recipe: Recipe, recipe_before: Recipe, folder: Path) -> None:
    """Accept that local weights were moved or copied since the run in a folder was made.

    The weights count as moved if they have the hashes that the run recorded. Then the new path
    replaces the old path in `recipe_before`, so that the two recipes do not differ in the path. No
    file is written.

    Args:
        recipe: Recipe with the new paths.
        recipe_before: Recipe of the folder's run, changed in place.
        folder: Folder of the run.
    """
    sources_before = recipe_before.sources()
    for key, source in recipe.sources().items():
        if key not in sources_before or sources_before[key] == source:
            continue
        hashes_now = source.identity()  # {name: hash}, empty if the weights are not local
        # for local weights, the name "file" has the hash of the file
        hashes_before = initial_weights(folder).get(source.kind, {})
        differing = differences(facts(source.kind, hashes_before), facts(source.kind, hashes_now))
        if hashes_now and "file" in hashes_before and not differing:
            recipe_before.set(key, source.place)


def check_facts(recipe: Recipe, folder: Path, now: Mapping[str, Mapping[str, Any]]) -> None:
    """Check that images, weights, plugin and labels have the hashes recorded in environment.json.

    A file that is missing now, or that environment.json does not mention, is not compared.

    Args:
        recipe: The recipe of the run.
        folder: The run's folder.
        now: `{kind: {name: hash or value}}`. The kinds are `data` (images), `init` and `teacher`
            (weights), `plugin`, and `real` (the labels of ImageNet-ReaL).

    Raises:
        UserError: Some facts differ, or a plugin was added or left out.
    """
    for kind, facts_now in now.items():
        # `facts` puts the kind in front of each name, such as "data:train"
        differing = differences(facts(kind, read_recorded(folder, kind)), facts(kind, facts_now))
        if not differing:
            continue
        names = sorted(difference.name for difference in differing)
        if kind == "data":
            option, files = recipe.data.location, f"images ({', '.join(names)})"
        elif kind == "plugin":
            option, files = f"plugin={option_text(recipe.plugin)}", "plugin files"
        elif kind == "real":
            option, files = f"eval.real={recipe.eval.real}", "labels"
        else:
            options = {source.kind: source.option for source in recipe.sources().values()}
            option = options[kind]
            # Two cases: a hash of the weights differs, whose name is "weights" or "file". Or only
            # options of the network differ, such as pool, which the message lists
            files = "weights" if {"weights", "file"} & {*names} else ", ".join(names)
        # do not recommend to remove the folder if it is another run, named in resume=RUN@STEP
        if recipe.trunk is not None and folder == recipe.trunk.folder:
            raise UserError(
                f"{option}: this command and the run in {folder} have different {files}. "
                "Leave out resume=."
            )
        raise UserError(
            f"{option}: this command and the run in {folder} have different {files}. {FOLDER_HINT}"
        )


def changed_options(recipe: Recipe, folder: Path) -> list[Difference]:
    """Return how a recipe differs from a finished run in the keys of `result_options`.

    These keys change the result but not the training.
    """
    before = read_recorded(folder, "options")
    now = result_options(recipe)
    # compare only whether eval.real is set, because `check_facts` compares the hash of the file
    for values in (before, now):
        values["eval.real"] = bool(values.get("eval.real"))
    # `before.get` is None for a key that was not recorded
    return [
        Difference(key, before.get(key), now[key]) for key in now if now[key] != before.get(key)
    ]


def check_options(recipe: Recipe, folder: Path) -> None:
    """Check that a finished run has the recipe's values of `result_options`, such as `eval.test`.

    Raises:
        UserError: The run has other values.
    """
    changed = changed_options(recipe, folder)
    if changed:
        names = ", ".join(map(str, changed))
        raise UserError(
            f"name={recipe.name}: the run in {folder} has finished with other values: {names}. "
            f"{FOLDER_HINT}"
        )


def check_finished(run: "Run", fingerprint: Fingerprint) -> list[str]:
    """Check that a finished run was made with the images, weights and files of the recipe.

    `Run.reconcile` must have compared the recipe before.

    Args:
        run: The finished run.
        fingerprint: Function that returns the hashes of the recipe's images.

    Returns:
        Warnings about images and weights that were not checked, because they are missing on this
        machine.

    Raises:
        UserError: The run was made with other images, weights, files or options, which the message
            names. Or the run was continued from another run or step than resume= says.
    """
    recipe, folder, result = run.recipe, run.folder, run.result()
    check_start(recipe, result.trunk if result else None)
    check_options(recipe, folder)
    weights = [(source, source.identity()) for source in recipe.sources().values()]
    hashes_of_files = file_hashes(recipe)
    check_facts(recipe, folder, {source.kind: hashes for source, hashes in weights})
    for kind in ("plugin", "real"):
        check_facts(recipe, folder, {kind: hashes_of_files.get(kind) or {}})
    image_hashes, image_warning = fingerprint(recipe)
    check_facts(recipe, folder, {"data": image_hashes})
    warnings = []
    for source, hashes in weights:
        if source.is_local and not hashes:
            warnings.append(
                f"{source.option}: the weights were not found, so they were not compared with the "
                "finished run"
            )
    if image_warning:
        warnings.append(image_warning)
    return warnings


def check_start(recipe: Recipe, began: dict[str, Any] | Trunk | None) -> None:
    """Check that a run began where resume=RUN@STEP says.

    A continued run has the same weights, to the bit, as a run from step 0. Therefore a run that
    began at step 0 passes the check for every RUN@STEP, and every run passes if the recipe has no
    resume=RUN@STEP. Of RUN, only the name of the folder is compared, because the folder may have
    been moved or removed.

    Args:
        recipe: Recipe of the run, with or without resume=RUN@STEP.
        began: Other run and step at which the run began, as in result.json: `{"run": name, "step":
            step}`. None for a run that began at step 0.

    Raises:
        UserError: The run was continued from another run or another step.
    """
    trunk = recipe.trunk
    if not began or not trunk:
        return
    run, step = began["run"], began["step"]
    if (run, step) != (trunk.folder.name, trunk.step):
        raise recipe.error(
            "resume",
            f"this run has begun already, from step {step} of run {run}. Leave out resume=.",
        )


def check_same_plugin(run: "Run") -> None:
    """Check that the plugin file has not changed since the run began.

    Images and initial weights are compared later, when they are read.

    Raises:
        UserError: The plugin differs.
    """
    if is_begun(run.folder):
        plugin = file_hashes(run.recipe).get("plugin") or {}
        check_facts(run.recipe, run.folder, {"plugin": plugin})


def describe_remeasurement(run: "Run") -> str:
    """Return a line to print if a finished training run is to be measured again, otherwise "".

    A run is measured again, with the same weights, if the recipe now also sets `eval.test` or
    `eval.real`, which measure after the last step. Nothing else may have changed, and the
    checkpoint of the last step must exist.
    """
    recipe = run.recipe
    changed = changed_options(recipe, run.folder)
    # True if each change sets eval.test or eval.real, and no change removes one
    adds_only_measurements = all(
        difference.key in MEASURED_LAST and difference.wanted for difference in changed
    )
    if not changed or not adds_only_measurements or not recipe.trains:
        return ""
    checkpoints = list_checkpoints(run.checkpoints)
    if not checkpoints or step_of(checkpoints[-1]) != recipe.optim.steps:
        return ""
    names = ", ".join(map(str, changed))
    return f"again       the run has finished and is measured again with other values: {names}"


def read_finished(run: "Run", fingerprint: Fingerprint) -> Result | None:
    """Return the result if another process has finished the run in the meantime, or None.

    Call this function with the run's lock, before anything is written. Warnings of `check_finished`
    are printed. If the run is to be measured again, remove result.json and return None.

    Raises:
        UserError: The folder now holds another run, or a result for other images.
    """
    run.reconcile()
    result = run.result()
    if result is None:
        return None
    if describe_remeasurement(run):
        (run.folder / "result.json").unlink()  # written again when the run ends
        return None
    for warning in check_finished(run, fingerprint):
        print(f"warning: {warning}", flush=True)
    return result


def why_not_planned(
    run: Path, values: Values, options: Values, undecided: Collection[str] = ()
) -> str:
    """Return why a folder holds another run than a study plans, or an empty text.

    The folder may hold a run of another recipe, a copied or edited run, or a run that started from
    other weights. The result is empty if the folder holds the planned run, finished or not, or if
    no run has begun in the folder.

    Args:
        run: Folder of the run.
        values: `{dotted key: value}` of the planned run that decide its computation and its result.
        options: `{dotted key: value}` of all options of the planned run. Values that the study has
            chosen among several tries are only here.
        undecided: Keys whose values are not chosen yet.

    Raises:
        UserError: result.json or environment.json in the folder is damaged.
    """
    existing = {name for name in ("recipe.yaml", *RECORDS) if (run / name).exists()}
    if not existing or not is_begun(run):
        return ""
    try:
        written = flatten(load_yaml(run / "recipe.yaml"))
    except UserError:
        return "recipe.yaml is missing or damaged"
    if written.get("name") != run.name:
        return f"recipe.yaml belongs to a run called {written.get('name')}"
    environment, is_finished = None, "result.json" in existing
    if is_finished or "environment.json" in existing:
        environment = records.require(run / "environment.json", Environment, STUDY_HINT)
    without_effect = environment.free if environment else []
    if is_finished:
        recorded_hash = records.require(run / "result.json", Result, STUDY_HINT).recipe
        if recorded_hash != written_hash(written, without_effect):
            return "result.json was made with another recipe.yaml"
    # weights are compared last, by their hashes
    weights = sources({"init": SCRATCH, **options})
    keys_to_compare = all_keys().keys() - weights.keys()
    planned = experiment_values(
        {key: value for key, value in options.items() if key in keys_to_compare}
    )
    # the user may change keys that change only the result until the run has finished
    planned |= values if is_finished else experiment_values(values, without_effect)
    if planned.get("compute.precision") == "auto":
        undecided = [*undecided, "compute.precision"]
    recorded_options = (environment and environment.options) or {}
    actual = {**written, **recorded_options}
    differing = planned_differences(actual, planned, undecided)
    if differing:
        return f"recipe.yaml differs from the plan: {', '.join(differing)}"
    for key, source in weights.items():
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

    The hashes of the weights are compared. If there are no hashes, because the planned weights are
    not on this machine or environment.json has none, the names of the weights are compared instead.

    Args:
        source: Planned weights, the value of `init` or of a teacher.
        written: `{dotted key: value}` of recipe.yaml.
        recorded: Hashes of the weights in environment.json, or empty.

    Returns:
        A sentence without the full stop, such as `the initial weights differ from the weights of
        NAME`.
    """
    recorded_source = InitSource(str(written.get(source.key, SCRATCH)), source.key)
    weights_text = "initial weights" if source.key == "init" else f"{source.kind}'s weights"
    hashes: dict[str, Any] = {}
    if source.is_local:
        path = Path(source.place)
        file = path if path.is_file() else path / "export" / "model.safetensors"
        modified_ns = file.stat().st_mtime_ns if file.exists() else 0
        try:
            hashes = _hashes_of_weights(source, modified_ns)
        except UserError as error:
            return f"the {weights_text} cannot be compared: {str(error).rstrip('.')}"
    if hashes and recorded:
        if differences(facts(source.kind, recorded), facts(source.kind, hashes)):
            return f"the {weights_text} differ from the weights of {source.public_name}"
        return ""
    recorded_name, name = recorded_source.public_name, source.public_name
    # compare names on the Hub without revisions, because recipe.yaml has a commit
    if recorded_name.partition("@")[0] == name.partition("@")[0]:
        return ""
    return f"the {weights_text} come from {recorded_source.key}={recorded_name} and not from {name}"


@functools.lru_cache(maxsize=64)  # several runs of a study start from the same weights
def _hashes_of_weights(source: InitSource, modified_ns: int) -> dict[str, Any]:
    """Return `source.identity()`, cached until the time of the file's modification changes."""
    return source.identity()


def training_images(run: Path) -> tuple[str, ...]:
    """Return the options that choose a run's training images, labels and groups.

    Each option is a text such as `data.size=224`.

    A group (data.group) is a set of images that belong together, such as the images of a patient.
    The result is empty for a stream, because only the first images of a stream are known.
    """
    written = flatten(load_yaml(run / "recipe.yaml"))
    if written.get("data.stream"):
        return ()
    keys = [*TRAIN_SPLIT_KEYS, "data.group"]
    if not written.get("data.path"):
        keys.append("data.size")  # images without a path are generated at this size
    return tuple(f"{key}={written.get(key)}" for key in keys)
