"""Decide whether two runs are the same: what a run is computed from, and how two runs differ.

The identity of a run is one mapping. It holds {dotted key: value} for the keys that change what is
computed, and {"KIND:NAME": hash or value} for facts about the files that those keys name; FACTS
lists the kinds. A run folder records the keys in recipe.yaml and the facts in environment.json,
under their kind. environment.json and result.json also have the recipe's hash, which names the run.

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

# Kinds of facts: about images, initial weights, the weights of a teacher, and a plugin
FACTS = ("data", "init", "teacher", "plugin")
# stands for the value of a key that is missing on one side and has no default
UNKNOWN = "not known"
RECORDS = ("result.json", "environment.json")  # files that hold the recipe's hash
# what to do about a folder of another run
FOLDER_HINT = "Use another name=, or remove this folder."
STUDY_HINT = "remove the run's folder and type the study's command again"
LENGTH = ("optim.steps", "optim.decay")  # keys that may differ between runs with the same beginning
MEASURED_LAST = {"eval.test", "eval.real"}  # keys of measurements after the last step

# Returns {"train": hash, ...} of a recipe's images, or {} and why they were not compared
Fingerprint = Callable[[Recipe], tuple[dict[str, str], str]]


class Difference(NamedTuple):
    """Key or fact that differs between two runs, with the two values.

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
        """Kind of the fact, or an empty string for a key."""
        return self.key.partition(":")[0] if ":" in self.key else ""

    @property
    def name(self) -> str:
        """Name of the fact without the kind, or the key."""
        return self.key.rpartition(":")[2]


def facts(kind: str, values: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return {"KIND:NAME": value} for the facts that environment.json has under a kind.

    Whether a run has a plugin is a fact too.
    """
    named = {f"{kind}:{name}": value for name, value in (values or {}).items()}
    return named | ({"plugin:": bool(values)} if kind == "plugin" else {})


def differences(
    before: Mapping[str, Any], here: Mapping[str, Any], undecided: Collection[str] = ()
) -> list[Difference]:
    """Return how two identities differ.

    An identity has an entry for each key of the recipe, such as `optim.lr`, and for each fact about
    a file, such as `data:train`, the hash of the training images. A key that is missing on one side
    counts with its default: keys come and go with versions and with objectives. A fact is compared
    only if both sides have it: earlier versions recorded fewer facts, and deleted files have none.

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

    Two runs have comparable losses only if these keys have the same values. The keys are those of
    the objective's groups, such as `views.jitter`, and the sizes of images and patches. With
    several views of an image, the batch and the preprocessing are added.

    An objective is unknown if, for example, its plugin is not loaded. Then the result has all keys
    of the groups in `values` that only some objectives use, and of the groups that ssl_vit does not
    know.

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
    # objectives with views distinguish the images of a batch
    return [*keys, "optim.batch", *PREPROCESSING] if "views" in groups else keys


def recipe_hash(recipe: Recipe) -> str:
    """Return the hash that identifies a run's computation. Equal hashes mean the same run.

    The hash ignores the path of local weights: environment.json has the hash of the weights.
    """
    return written_hash(recipe.values())


def written_hash(values: Mapping[str, Any], without_effect: Collection[str] = ()) -> str:
    """Return the `recipe_hash` of the values in a recipe.yaml.

    Every path of local weights counts as the same word, because moved weights are the same weights;
    environment.json has their hash.

    Args:
        values: `{dotted key: value}`.
        without_effect: Keys of a plugin that do not change the computation; see
            `keys_without_effect`. The hash ignores them.
    """
    computed = experiment_values(values, without_effect)
    for key, source in sources(computed).items():
        if source.is_local:
            computed[key] = "local"
    return hashlib.sha256(json.dumps(computed, sort_keys=True).encode()).hexdigest()[:16]


def keys_without_effect(recipe: Recipe) -> list[str]:
    """Return the keys of the objective and the target that do not change the computation.

    environment.json records these keys if the objective or the target comes from a plugin. Without
    the plugin the keys are unknown, and an unknown key counts as changing the computation.
    """
    # recipe.groups has the groups of keys that the objective and the target use
    keys = [key for key in recipe.values() if key.split(".")[0] in recipe.groups]
    return [key for key in keys if not changes_experiment(key)]


def result_options(recipe: Recipe) -> Values:
    """Return `{key: value}` of the keys that change the result, but not the training.

    The user may change these keys until the run has finished. An example is `eval.test`. With
    `checkpoint.best` the result is measured on the weights of the best evaluation, so that
    `eval.every` belongs to these keys, too.
    """
    values = defaults() | recipe.values()
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

    The result has hashes of the weights under `init` and `teacher`. Under `before` it has the cost
    of all training before this run, which has made the weights.
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
    the same run, that run counts once. If the cost of one source is not known, the sum is None.

    Returns:
        `{"exaflop": ..., "device_hours": ...}`, each a number or None.

    Raises:
        UserError: As `InitSource.upstream_cost`.
    """
    source_by_run: dict[Path | str, InitSource] = {}
    for source in recipe.sources().values():
        run = source.locate().run
        source_by_run[run or source.key] = source  # weights of no run count on their own
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
    metrics, outputs = folder / "metrics.jsonl", (folder / "export", folder / "result.json")
    has_rows = metrics.is_file() and metrics.stat().st_size > 0
    checkpoints = list_checkpoints(folder / "checkpoints")
    return has_rows or any(path.exists() for path in (*outputs, *checkpoints))


def reconcile(recipe: Recipe, folder: Path) -> Recipe:
    """Complete a recipe from the folder of its run, and check that the folder holds this run.

    `compute.precision=auto` becomes the folder's precision. `data.mean` and `data.std` become the
    values that the folder's run has measured. Weights on the Hub without a commit get the folder's
    commit or, in a new folder, the current commit.

    With resume=RUN@STEP, a run that has no checkpoint yet is completed from the other run. A folder
    in which no run has begun (`is_begun`) counts as new. The first check is whether recipe.yaml was
    edited, because everything else is compared with recipe.yaml.

    Returns:
        The same recipe, completed in place.

    Raises:
        UserError: The folder or the other run has another recipe (the message names the keys that
            differ), or the other run has no such step to begin at.
    """
    has_begun = is_begun(folder)
    if has_begun:
        _check_unedited(recipe, folder)
    # `is_begun` is also true for a run with rows of metrics only. Such a run without a checkpoint
    # starts again, so it is completed from the other run
    has_state = list_checkpoints(folder / "checkpoints") or (folder / "result.json").exists()
    if recipe.trunk and not has_state:
        _complete_from_trunk(recipe, recipe.trunk.folder)
    # without result.json and environment.json, `_check_unedited` allows recipe.yaml to be missing
    if not (folder / "recipe.yaml").exists() or not has_begun:
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


def _complete_from_trunk(recipe: Recipe, trunk: Path) -> None:
    """Complete a recipe that has resume=RUN@STEP with values of RUN, and check that RUN fits.

    Args:
        recipe: Recipe to complete.
        trunk: Folder of RUN, at whose checkpoint the recipe's run begins.

    Raises:
        UserError: There is no such run, its recipe was edited or differs, or it has no checkpoint
            of the step.
    """
    if not (trunk / "recipe.yaml").exists():
        raise recipe.error("resume", f"{trunk} holds no run. Check the path.")
    _check_unedited(recipe, trunk)
    trunk_recipe = _completed_from(trunk, recipe)
    check_trunk(recipe, trunk_recipe)
    _check_saved(recipe, trunk_recipe)


def _completed_from(folder: Path, recipe: Recipe) -> Recipe:
    """Complete `recipe` from the recipe of a folder's run, and return the folder's recipe.

    Both recipes are changed. `recipe` takes over the precision if it is "auto", the measured mean
    and standard deviation of the images, and the commits of weights on the Hub. The folder's recipe
    takes over new paths of local weights that were moved.
    """
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
        UserError: The recipes differ in other keys than the length of the run (`optim.steps`,
            `optim.decay`), or the other run decays before that step.
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
    """Check that the checkpoint that a recipe begins at exists.

    Raises:
        UserError: It does not exist; the message names the options that would have kept it.
    """
    assert recipe.trunk is not None
    folder, step = recipe.trunk
    saved = [step_of(path) for path in list_checkpoints(folder / "checkpoints")]
    if step not in saved:
        keys = options_to_keep(trunk_recipe, step)
        kept = f" To keep this step, the run needed {keys}." if keys else ""
        steps = ", ".join(map(str, saved)) or "none"
        text = f"the run has no checkpoint of this step. Steps to use: {steps}.{kept}"
        raise recipe.error("resume", text)


def options_to_keep(trunk: Recipe, step: int) -> str:
    """Return the options with which a run keeps the checkpoint of a step until its end.

    A run saves a checkpoint at every multiple of `checkpoint.every` and after the last step, and
    keeps the latest `checkpoint.keep` of them. The result is for example
    `checkpoint.every=600 checkpoint.keep=3`, or empty if the run's options keep the checkpoint.

    Args:
        trunk: Recipe of the run.
        step: Step of the checkpoint.
    """
    settings, steps = trunk.checkpoint, trunk.optim.steps
    # if the run does not save this step, checkpoint.every=step saves this step as the first
    every = settings.every if step % settings.every == 0 else step
    num_saved = -(-steps // every)  # ceil(steps / every), as the last step is saved, too
    num_earlier = step // every - 1  # checkpoints before this step, which may be removed
    keep = num_saved - num_earlier
    if every == settings.every and keep <= settings.keep:
        return ""
    return f"checkpoint.every={every} checkpoint.keep={max(keep, settings.keep)}"


def planned_differences(
    values: Mapping[str, Any], planned: Mapping[str, Any], undecided: Collection[str]
) -> list[str]:
    """Describe the differences between recipe.yaml and a study's plan.

    The mean and the standard deviation of the images are not compared if the plan leaves them open,
    because then the run itself measures them.

    Args:
        values: `{dotted key: value}` of recipe.yaml.
        planned: `{dotted key: value}` of the options that the study gives the run.
        undecided: Keys that the plan does not decide.

    Returns:
        A text for each difference, such as `optim.lr (0.1 there, 0.2 here)`.
    """
    written = {key: value for key, value in values.items() if key in planned}
    pixel_values = {key: planned[f"data.{key}"] for key in PIXEL_KEYS if f"data.{key}" in planned}
    # `unmeasured` returns which of "mean" and "std" the run has to measure
    measured_keys = {f"data.{key}" for key in unmeasured(Data(**pixel_values))}
    differing = differences(written, planned, measured_keys.union(undecided))
    return [str(difference) for difference in differing]


def _check_unedited(recipe: Recipe, folder: Path) -> None:
    """Check that recipe.yaml is the file that the folder's run was made with.

    result.json and environment.json hold the hash of the recipe. A record without a hash, which an
    earlier version wrote, only requires that recipe.yaml exists.

    Raises:
        UserError: recipe.yaml was edited or removed, or result.json or environment.json was written
            with another recipe.
    """
    path = folder / "recipe.yaml"
    for record in (folder / name for name in RECORDS):
        if not record.exists():
            continue
        recorded_hash = read_record(record, WithRecipe).recipe
        is_unedited = path.exists() and (
            recorded_hash in (None, written_hash(flatten(load_yaml(path))))
        )
        if not is_unedited:
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
    """Accept other paths of local weights if the weights have the recorded hashes.

    The weights were then moved or copied. Their new paths replace the old paths in
    `recipe_before`, so that comparing the recipes finds no difference. No file is written.

    Args:
        recipe: Recipe that the user asks for.
        recipe_before: Recipe of the folder's run, which the function changes.
        folder: Folder of the run.
    """
    sources_before = recipe_before.sources()
    for key, source in recipe.sources().items():
        if key not in sources_before or sources_before[key] == source:
            continue
        # hashes of the weights by name, empty if the weights are not local
        hashes_now = source.identity()
        # local weights have the hash of their file under "file"
        hashes_before = initial_weights(folder).get(source.kind, {})
        differing = differences(facts(source.kind, hashes_before), facts(source.kind, hashes_now))
        if hashes_now and "file" in hashes_before and not differing:
            recipe_before.set(key, source.place)


def check_facts(recipe: Recipe, folder: Path, now: Mapping[str, Mapping[str, Any]]) -> None:
    """Check that files are the same as when a run was made, by their hashes in environment.json.

    The files are images, initial weights, a plugin and labels. A file that is missing now, or that
    environment.json does not mention, is not compared.

    Args:
        recipe: The recipe of the run.
        folder: The run's folder.
        now: `{kind: {name: hash or value}}`. The kinds are `data` (images), `init` and `teacher`
            (weights), `plugin`, and `real` (the labels of ImageNet-ReaL).

    Raises:
        UserError: Some facts differ, or a plugin was added or left out.
    """
    for kind, facts_now in now.items():
        # `facts` writes the kind in front of each name, such as "data:train"
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
            # "weights" and "file" are hashes of weights. Other names, such as pool, are options of
            # the network, which the message names
            files = "weights" if {"weights", "file"} & {*names} else ", ".join(names)
        # the folder of another run that a run resumes from must not be removed
        is_trunk = recipe.trunk is not None and folder == recipe.trunk.folder
        remedy = "Leave out resume=." if is_trunk else FOLDER_HINT
        raise UserError(
            f"{option}: this command and the run in {folder} have different {files}. {remedy}"
        )


def changed_options(recipe: Recipe, folder: Path) -> list[Difference]:
    """Return how a recipe differs from a finished run in the keys that change only the result.

    `result_options` lists these keys. `eval.real` is the path of a file of labels. This function
    only compares whether it is set, because `check_facts` compares the hash of the file.
    """
    before = read_recorded(folder, "options")
    now = result_options(recipe)
    for values in (before, now):
        values["eval.real"] = bool(values.get("eval.real"))
    # a key that was not recorded counts as null
    return [
        Difference(key, before.get(key), now[key]) for key in now if now[key] != before.get(key)
    ]


def check_options(recipe: Recipe, folder: Path) -> None:
    """Check that a finished run's result contains what the recipe requests.

    Raises:
        UserError: The run finished with other values of the keys that change only the result, such
            as `eval.test`.
    """
    changed = changed_options(recipe, folder)
    if changed:
        names = ", ".join(map(str, changed))
        text = f"the run in {folder} has finished with other values: {names}"
        raise UserError(f"name={recipe.name}: {text}. {FOLDER_HINT}")


def check_finished(run: "Run", fingerprint: Fingerprint) -> list[str]:
    """Check that a finished run had the images, weights and files that its recipe now names.

    `Run.reconcile` has already compared the recipe.

    Args:
        run: The finished run.
        fingerprint: Function that returns the fingerprints of the recipe's images.

    Returns:
        Warnings about images and weights that are missing on this machine, and so were not checked.

    Raises:
        UserError: The run has other images, weights or files, which the message names, or the run
            was continued from another run, or from another step, than resume= says.
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
            text = "the weights were not found, so they were not compared with the finished run"
            warnings.append(f"{source.option}: {text}")
    if image_warning:
        warnings.append(image_warning)
    return warnings


def check_start(recipe: Recipe, began: dict[str, Any] | Trunk | None) -> None:
    """Check that resume=RUN@STEP names the run and the step that the run was continued from.

    A run that began at step 0 fits every RUN@STEP, because it has the same weights to the bit as a
    run that was continued from RUN. For the same reason, a recipe without resume=RUN@STEP fits
    every run. Runs are compared by the name of the folder, because the folder may have been moved
    or removed.

    Args:
        recipe: Recipe of the run, with resume=RUN@STEP or without.
        began: Where the run began, as its result.json says: the name `run` of the other run, and
            its `step`. None for a run that began at step 0.

    Raises:
        UserError: The run was continued from another run or another step.
    """
    trunk = recipe.trunk
    if not began or not trunk:
        return
    run, step = began["run"], began["step"]
    if (run, step) != (trunk.folder.name, trunk.step):
        text = f"this run has begun already, from step {step} of run {run}. Leave out resume=."
        raise recipe.error("resume", text)


def check_same_plugin(run: "Run") -> None:
    """Check, before a run is resumed, that its plugin file has not changed.

    Images and initial weights are compared later, when they are read.

    Raises:
        UserError: The plugin differs.
    """
    if is_begun(run.folder):
        plugin = file_hashes(run.recipe).get("plugin") or {}
        check_facts(run.recipe, run.folder, {"plugin": plugin})


def describe_remeasurement(run: "Run") -> str:
    """Return a line to print if a finished training run must be measured again, else "".

    A run is measured again, with the same weights, if the recipe now sets `eval.test` or
    `eval.real`, which measure after the last step, and nothing else has changed. The checkpoint of
    the last step is needed.
    """
    recipe = run.recipe
    changed = changed_options(recipe, run.folder)
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
    """Return the result that another process has written in the meantime, or None.

    The caller holds the run's lock, and has written nothing yet. Warnings of `check_finished` are
    printed. If the run is to be measured again, result.json is removed and None is returned.

    Raises:
        UserError: The folder now holds another run, or the result is for other images.
    """
    run.reconcile()
    result = run.result()
    if result is not None and describe_remeasurement(run):
        (run.folder / "result.json").unlink()  # written again when the run ends
        return None
    if result is not None:
        for warning in check_finished(run, fingerprint):
            print(f"warning: {warning}", flush=True)
    return result


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
    files = {name for name in ("recipe.yaml", *RECORDS) if (run / name).exists()}
    if not files or not is_begun(run):
        return ""
    try:
        written = flatten(load_yaml(run / "recipe.yaml"))
    except UserError:
        return "recipe.yaml is missing or damaged"
    if written.get("name") != run.name:
        return f"recipe.yaml belongs to a run called {written.get('name')}"
    environment, is_finished = None, "result.json" in files
    if is_finished or "environment.json" in files:
        environment = records.require(run / "environment.json", Environment, STUDY_HINT)
    without_effect = environment.free if environment else []
    if is_finished:
        recorded_hash = records.require(run / "result.json", Result, STUDY_HINT).recipe
        if recorded_hash != written_hash(written, without_effect):
            return "result.json was made with another recipe.yaml"
    recipe_keys = all_keys()
    weights = sources({"init": SCRATCH, **options})
    planned = experiment_values(
        {key: value for key, value in options.items() if key in recipe_keys and key not in weights}
    )
    # keys that change only the result may change until the run has finished
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

    The hashes of the weights are compared. They are computed again only if the file was modified
    since. If the weights are not on this machine, or if environment.json does not describe them,
    only their names are compared.

    Args:
        source: Planned weights, the value of `init` or of a teacher.
        written: `{dotted key: value}` of recipe.yaml.
        recorded: Hashes of the weights in environment.json, or empty.

    Returns:
        A sentence without a full stop, because the caller ends the sentence.
    """
    recorded_source = InitSource(str(written.get(source.key, SCRATCH)), source.key)
    weights_text = "initial weights" if source.key == "init" else f"{source.kind}'s weights"
    hashes: dict[str, Any] = {}
    if source.is_local:
        path = Path(source.place)
        weights = path if path.is_file() else path / "export" / "model.safetensors"
        modified_ns = weights.stat().st_mtime_ns if weights.exists() else 0
        try:
            hashes = _hashes_of_weights(source, modified_ns)
        except UserError as error:
            return f"the {weights_text} cannot be compared: {str(error).rstrip('.')}"
    if hashes and recorded:
        if differences(facts(source.kind, recorded), facts(source.kind, hashes)):
            return f"the {weights_text} differ from the weights of {source.public_name}"
        return ""
    # recipes name weights on the Hub together with a commit
    recorded_name, name = (
        compared.public_name.partition("@")[0] for compared in (recorded_source, source)
    )
    if recorded_name == name:
        return ""
    recorded_place = f"{recorded_source.key}={recorded_source.public_name}"
    return f"the {weights_text} come from {recorded_place} and not from {source.public_name}"


@functools.lru_cache(maxsize=64)  # several runs of a study start from the same weights
def _hashes_of_weights(source: InitSource, modified_ns: int) -> dict[str, Any]:
    """Return `source.identity()`, computed again only if the file was modified at another time."""
    return source.identity()


def training_images(run: Path) -> tuple[str, ...]:
    """Return the options that choose a run's training images, labels and groups.

    A group holds images that belong together, such as those of one patient (data.group). The
    result is empty for a stream, because only the first images of a stream are known.
    """
    written = flatten(load_yaml(run / "recipe.yaml"))
    if written.get("data.stream"):
        return ()
    keys = [*TRAIN_SPLIT_KEYS, "data.group"]
    if not written.get("data.path"):
        keys.append("data.size")  # generated images, without a path, are drawn at this size
    return tuple(f"{key}={written.get(key)}" for key in keys)
