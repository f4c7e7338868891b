"""Compares a run folder with a recipe: values, images, initial weights and files. No torch.

A folder records what its run was computed from (recipe/identity.py): the keys in recipe.yaml, the
facts of images, initial weights and files in environment.json. That file and result.json also have
the recipe's hash, its name.
"""

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from .. import hub_files
from ..errors import UserError
from ..recipe import records
from ..recipe.check import check_stable
from ..recipe.identity import (
    Difference,
    computed_values,
    counted,
    counts,
    differences,
    facts,
    of_effect,
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
TAKEN = "take another name= or remove that folder"  # what to do about a folder of another run
LENGTH = ("optim.steps", "optim.decay")  # in which runs that share their beginning may differ


def recipe_hash(recipe: Recipe) -> str:
    """Hash of what is computed: runs with equal hashes are the same run.

    The path of local weights is not part of it; environment.json has the hash of the weights.
    """
    return written_hash(recipe.values())


def written_hash(values: Mapping[str, Any], free: Collection[str] = ()) -> str:
    """The `recipe_hash` of {dotted key: value} as recipe.yaml has them; `free` as in `counts`."""
    computed = counted(values, free)
    for key, source in sources(computed).items():
        if source.is_local:
            computed[key] = "local"
    return hashlib.sha256(json.dumps(computed, sort_keys=True).encode()).hexdigest()[:16]


def free_keys(recipe: Recipe) -> list[str]:
    """Keys of the objective's own group, or the target's, that do not change what is computed: of
    a plugin's they are not known without it, and a key that is not known counts."""
    return [
        key for key in recipe.values() if key.split(".")[0] in recipe.groups and not counts(key)
    ]


def result_options(recipe: Recipe) -> Values:
    """{key: value} of the keys that change what the result contains but not what is computed: they
    may differ while a run goes on, not once it has finished."""
    values = defaults() | recipe.values()
    # which evaluations there are to choose among
    chosen = ("eval.every",) if recipe.checkpoint.best else ()
    return {key: values[key] for key in (*of_effect("result"), *chosen)}


def file_hashes(recipe: Recipe) -> dict[str, Any]:
    """What environment.json records about the files that a recipe names: {key: {kind: hash}}."""
    named = {"plugin": recipe.plugin, "real": recipe.eval.real}
    return {key: {"file": file_hash(Path(path))} for key, path in named.items() if path}


def read_record(path: Path, kind: type[Kind]) -> Kind:
    """A record of the run folder.

    Raises:
        UserError: it is missing or damaged.
    """
    remove = "remove it, or " if path.exists() else ""
    return records.require(path, kind, f"{remove}take another name=")


def recorded(folder: Path, key: str) -> dict[str, Any]:
    """What environment.json records under `key`: hashes of images, initial weights or a file.

    Raises:
        UserError: it is damaged.
    """
    known = read_record(folder / "environment.json", RunEnvironment)
    return cast(dict[str, Any], known[key] or {})


def initial_weights(folder: Path) -> dict[str, Any]:
    """What environment.json records about the weights that a run began with: their hashes (`init`,
    `teacher`) and what it cost to train them (`before`)."""
    path = folder / "environment.json"
    known = read_record(path, Environment).content() if path.exists() else {}
    keys = ("init", "teacher", "before")
    return {key: known[key] for key in keys if known.get(key) is not None}


def runs_before(recipe: Recipe) -> Iterator[tuple[Path, Recipe | None]]:
    """The runs that a run's initial weights and teachers come from and their recipes, the latest
    first, each once. None in place of the recipe where one is not here any more, or its recipe
    cannot be read: then nothing is known of what it comes from."""
    known: set[Path] = set()
    left = [*recipe.sources().values()]
    while left:
        source = left.pop(0)
        try:
            run = source.locate().run
            if run is None or run.resolve() in known:
                continue
            before = read(run / "recipe.yaml")
        except UserError:
            yield Path(source.place), None
            continue
        known.add(run.resolve())
        yield run, before
        left += before.sources().values()


def upstream_cost(recipe: Recipe) -> dict[str, float | None]:
    """What the runs took that a run's initial weights and teachers come from, as
    `InitSource.upstream_cost`; of one run that several come from at once, once.

    Raises:
        UserError: as there.
    """
    sources_of = {one.locate().run or one.key: one for one in recipe.sources().values()}
    total: dict[str, float | None] = dict.fromkeys(COSTS, 0.0)
    for one in sources_of.values():
        for key, more in one.upstream_cost().items():
            known = total[key]
            total[key] = None if known is None or more is None else known + more
    return total


def _checkpoints(folder: Path) -> list[Path]:
    return list_checkpoints(folder / "checkpoints")


def is_begun(folder: Path) -> bool:
    """Whether a run's folder holds what another run in it would lose: a checkpoint, a row of
    metrics, an export or a result. One that failed before has none of them, as of a plugin with a
    mistake, and the next run may be another."""
    metrics, ends = folder / "metrics.jsonl", (folder / "export", folder / "result.json")
    has_rows = metrics.is_file() and metrics.stat().st_size > 0
    return has_rows or any(path.exists() for path in (*ends, *_checkpoints(folder)))


def reconcile(recipe: Recipe, folder: Path) -> Recipe:
    """Complete a recipe from the folder that it resumes, and check that the folder holds its run.

    `compute.precision=auto` becomes the folder's precision, and what is measured on training images
    (data.mean, data.std) what the folder's run has measured; weights on the Hub without
    a commit get the folder's commit, or in a new folder the current one.

    A run that has yet to begin at a step of another (resume=RUN@STEP) is completed from that one
    first. A folder in which no run has begun is as none (`is_begun`).

    Raises:
        UserError: the folder holds a run of another recipe; it names the keys that differ. Or the
            other run does, or has no such step to begin at.
    """
    path, begun = folder / "recipe.yaml", is_begun(folder)
    if begun:
        _check_unedited(recipe, folder)
    if recipe.trunk and not (_checkpoints(folder) or (folder / "result.json").exists()):
        if not (recipe.trunk.folder / "recipe.yaml").exists():
            raise recipe.error("resume", f"{recipe.trunk.folder}: expected a run's folder")
        _check_unedited(recipe, recipe.trunk.folder)
        there = _completed_from(recipe.trunk.folder, recipe)
        check_trunk(recipe, there)
        _check_saved(recipe, there)
    if not path.exists() or not begun:
        _pin(recipe)
        return recipe
    if not recipe.resume:
        raise UserError(f"resume=false: {folder} holds a run already; {TAKEN}")
    there = _completed_from(folder, recipe)
    if differ := differences(computed_values(there), computed_values(recipe)):
        text = f"{folder} holds another recipe: {', '.join(map(str, differ))}"
        # while it is written nobody is told to remove it
        hint = "take another name=" if lock.is_held(folder) else TAKEN
        raise UserError(f"name={recipe.name}: {text}; {hint}")
    return recipe


def _completed_from(folder: Path, recipe: Recipe) -> Recipe:
    """The recipe of a folder's run, from which `recipe` is completed."""
    plugin = [f"plugin={recipe.plugin}"] if recipe.plugin else []
    there = resolve([f"recipe={folder}/recipe.yaml", f"out={recipe.out}", *plugin], here=False)
    if recipe.compute.precision == "auto":
        recipe.compute.precision = there.compute.precision
    for key in unmeasured(recipe.data):
        setattr(recipe.data, key, getattr(there.data, key))
    _pin(recipe, there)
    _accept_moved_weights(recipe, there, folder)
    return there


def check_trunk(recipe: Recipe, there: Recipe) -> None:
    """Check that the run `there` takes the same steps up to the one that a recipe begins at
    (resume=RUN@STEP).

    Before its decay nothing in a run of optim.schedule=wsd depends on its length. One that goes on
    from another's checkpoint is therefore, to the bit, the run of its own length and has that run's
    identity; its training state and its result.json say where it began.

    Raises:
        UserError: it is of another recipe, or decays before that step.
    """
    if differ := differences(computed_values(there), computed_values(recipe), LENGTH):
        text = f"is of another recipe: {', '.join(map(str, differ))}"
        raise recipe.error("resume", f"{text}; expected the same but for {' and '.join(LENGTH)}")
    check_stable(recipe, there)


def _check_saved(recipe: Recipe, there: Recipe) -> None:
    """Check that the checkpoint that a recipe begins at is there.

    Raises:
        UserError: it is not; it names the keys that keep it.
    """
    assert recipe.trunk is not None
    folder, step = recipe.trunk
    saved = [step_of(path) for path in _checkpoints(folder)]
    if step not in saved:
        keys = keeping(there, step)
        kept = f"; {keys} of that run would have kept it" if keys else ""
        text = f"expected a step of its checkpoints: {', '.join(map(str, saved)) or 'none'}"
        raise recipe.error("resume", text + kept)


def keeping(there: Recipe, step: int) -> str:
    """The options with which a run still has the checkpoint of a step when it has finished; empty
    where it has it as it is."""
    own, steps = there.checkpoint, there.optim.steps
    every = step if step % own.every else own.every
    keep = -(-steps // every) - step // every + 1  # the last step is saved too
    if every == own.every and keep <= own.keep:
        return ""
    return f"checkpoint.every={every} checkpoint.keep={max(keep, own.keep)}"


def planned_differences(
    there: Mapping[str, Any], planned: Mapping[str, Any], undecided: Collection[str]
) -> list[str]:
    """Descriptions of what differs between recipe.yaml and what a study planned.

    Args:
        there: {dotted key: value} of recipe.yaml.
        planned: {dotted key: value} of the task's options.
        undecided: keys that the plan does not decide.
    """
    known = {key: value for key, value in there.items() if key in planned}
    data = Data(**{key: planned[f"data.{key}"] for key in PIXEL_KEYS if f"data.{key}" in planned})
    undecided = {*undecided, *(f"data.{key}" for key in unmeasured(data))}
    return [str(one) for one in differences(known, planned, undecided)]


def _check_unedited(recipe: Recipe, folder: Path) -> None:
    """Check that recipe.yaml is the one that the folder's run was made with.

    Raises:
        UserError: it was edited or removed since, or another file is another run's.
    """
    path = folder / "recipe.yaml"
    for record in (folder / name for name in RECORDS):
        if not record.exists():
            continue
        expected = read_record(record, WithRecipe).recipe
        if not path.exists() or expected not in (None, written_hash(flatten(load_yaml(path)))):
            text = f"{path} is missing or not the recipe that {record.name} was made with"
            raise UserError(f"name={recipe.name}: {text}; restore it, or take another name=")


def _pin(recipe: Recipe, there: Recipe | None = None) -> None:
    """Replace the revisions of weights on the Hub by commits: those of the folder's recipe if it
    has the same repository, else the current ones."""
    known = there.sources() if there else {}
    for key, source in recipe.sources().items():
        place, before = source.place, known.get(key)
        if not source.is_on_hub or hub_files.pinned(place):
            continue
        if before and hub_files.split(before.place)[0] == hub_files.split(place)[0]:
            recipe.set(key, before.place)
        else:
            recipe.set(key, hub_files.pin(place, source.option))


def _accept_moved_weights(recipe: Recipe, there: Recipe, folder: Path) -> None:
    """Accept another path of local weights if the weights are the same."""
    before = there.sources()
    for key, source in recipe.sources().items():
        if key not in before or before[key] == source:
            continue
        known, was = source.identity(), initial_weights(folder).get(source.kind, {})
        same = not differences(facts(source.kind, was), facts(source.kind, known))
        if known and "file" in was and same:
            there.set(key, source.place)


def check_facts(recipe: Recipe, folder: Path, now: Mapping[str, Mapping[str, Any]]) -> None:
    """Check that the facts of files agree with what a run folder records, as far as both are known.

    Args:
        now: {kind: {name: hash or value}}; the kinds are those of FACTS (recipe/identity.py) and
            `real`, the labels of ImageNet-ReaL.

    Raises:
        UserError: some differ, or a plugin was added or left out.
    """
    for kind, found in now.items():
        differ = differences(facts(kind, recorded(folder, kind)), facts(kind, found))
        if not differ:
            continue
        images = f"data.path={recipe.data.path}" if recipe.data.path else f"data={recipe.data.name}"
        names = sorted(one.name for one in differ)
        weights = "the weights" if {"weights", "file"} & {*names} else ", ".join(names)
        options = {one.kind: one.option for one in recipe.sources().values()}
        text = {
            "data": f"{images}: the images of {', '.join(names)} differ",
            **{key: f"{option}: {weights} differ" for key, option in options.items()},
            "plugin": f"plugin={recipe.plugin}: the file differs",
            "real": f"eval.real={recipe.eval.real}: the labels differ",
        }[kind]
        raise UserError(f"{text} from what {folder} was made with; {TAKEN}")


def changed_options(recipe: Recipe, folder: Path) -> list[Difference]:
    """In what a finished run's result was made otherwise than the recipe requests."""
    was = recorded(folder, "options")
    now = result_options(recipe)
    for values in (was, now):
        values["eval.real"] = bool(values.get("eval.real"))  # the file itself is compared by hash
    # a key that was not recorded counts as null
    return [Difference(key, was.get(key), now[key]) for key in now if now[key] != was.get(key)]


def check_options(recipe: Recipe, folder: Path) -> None:
    """Check that a finished run's result contains what the recipe requests.

    Raises:
        UserError: it was made with other values of `result_options`.
    """
    if differ := changed_options(recipe, folder):
        found = ", ".join(map(str, differ))
        text = f"{folder} has finished with other values: {found}; {TAKEN}"
        raise UserError(f"name={recipe.name}: {text}")
