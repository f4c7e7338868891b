"""Whether a finished run's result can be returned for a recipe: the same values, images, initial
weights and files. No torch."""

import json
from functools import cache
from typing import Any

from ..errors import UserError
from ..recipe.check import check_place
from ..recipe.images import READING, SPLIT_KEYS, Data
from ..recipe.records.run import Result, Trunk
from ..recipe.schema import Recipe, measures_masks
from ..runs import identity
from ..runs.checkpoint_files import list_checkpoints, step_of
from ..runs.folder import Run

MEASURED_LAST = {"eval.test", "eval.real"}  # keys of what is measured after the last step


def check(run: Run) -> list[str]:
    """Check that a finished run, whose recipe `reconcile` has compared, has the recipe's images,
    initial weights and files; warnings about what could not be checked because it is not here.

    Raises:
        UserError: it has others; it names which. Or it began at a step of another run.
    """
    recipe, folder, result = run.recipe, run.folder, run.result()
    check_start(recipe, result.trunk if result else None)
    identity.check_options(recipe, folder)
    weights = {source: source.identity() for source in recipe.sources().values()}
    hashes = identity.file_hashes(recipe)
    files = {kind: hashes.get(kind) or {} for kind in ("plugin", "real")}
    known = {source.kind: digest for source, digest in weights.items()}
    identity.check_facts(recipe, folder, known | files)
    images, warning = _images(recipe)
    identity.check_facts(recipe, folder, {"data": images})
    warnings = [warning] if warning else []
    text = "is not here, so whether the weights are the same was not checked"
    gone = [source.option for source, digest in weights.items() if source.is_local and not digest]
    return [*(f"{option}: {text}" for option in gone), *warnings]


def check_start(recipe: Recipe, began: dict[str, Any] | Trunk | None) -> None:
    """Check that resume=RUN@STEP names what a run began at, by the name of that folder, which may
    have moved or gone.

    Args:
        recipe: of the run.
        began: the `run` and the `step`; None: it began at step 0, which to the bit is the same.

    Raises:
        UserError: it began at another step or run.
    """
    began_at, here = (began["run"], began["step"]) if began else None, recipe.trunk
    if began_at and here and began_at != (here.folder.name, here.step):
        text = (
            f"the run began at step {began_at[1]} of {began_at[0]}; expected that, or leave it out"
        )
        raise recipe.error("resume", text)


def check_unfinished(run: Run) -> None:
    """Check the plugin of a run that has begun and is to be resumed. Its images and initial weights
    are compared when they are read.

    Raises:
        UserError: its plugin is another.
    """
    if identity.is_begun(run.folder):
        plugin = identity.file_hashes(run.recipe).get("plugin") or {}
        identity.check_facts(run.recipe, run.folder, {"plugin": plugin})


def measured_again(run: Run) -> str:
    """A line that says what a finished training run is measured again on, with the weights that it
    has: its recipe asks for more measurements after the last step. Empty where it asks for none,
    for fewer or for others (held-out rows are of their steps), or the last checkpoint is gone."""
    recipe = run.recipe
    changed = identity.changed_options(recipe, run.folder)
    keys = {difference.key for difference in changed}
    more = keys <= MEASURED_LAST and all(difference.here for difference in changed)
    if not keys or not more or not recipe.trains:
        return ""
    saved = list_checkpoints(run.checkpoints)
    if not saved or step_of(saved[-1]) != recipe.optim.steps:
        return ""
    names = ", ".join(map(str, changed))
    return f"again       the run has finished and is measured again: {names}"


def finished(run: Run) -> Result | None:
    """The result that another process has written meanwhile; call it with the lock held, before
    anything is written. Prints the warnings of `check`.

    Raises:
        UserError: the folder now holds another run, or its result is of other images.
    """
    run.reconcile()
    result = run.result()
    if result is not None and measured_again(run):
        (run.folder / "result.json").unlink()  # what ends a run writes it anew
        return None
    if result is not None:
        for warning in check(run):
            print(f"warning: {warning}", flush=True)
    return result


def _images(recipe: Recipe) -> tuple[dict[str, str], str]:
    """The fingerprints of the images that a recipe names, or why there are none.

    Raises:
        UserError: they are here and cannot be read.
    """
    data = recipe.data
    if data.hub and not data.path:
        text = "is not read again, so whether its images are the same was not checked"
        return {}, f"data.hub={data.hub}: {text}"
    try:
        check_place(data)
    except UserError as error:
        return {}, f"{error}; whether the images are the same was not checked"
    # of whole splits, whatever part of them a run takes
    place = {key.removeprefix("data."): recipe.values()[key] for key in (*SPLIT_KEYS, *READING)}
    test = recipe.eval.test or recipe.objective == "probe"
    seed = recipe.seed if data.stream else 0
    return _fingerprints(json.dumps(place), test, seed, measures_masks(recipe)), ""


@cache  # the runs of a study share their images
def _fingerprints(place: str, test: bool, seed: int, masks: bool) -> dict[str, str]:
    from ..data import fingerprints, run_splits  # a second of imports

    data = Data(**json.loads(place))
    splits = run_splits.load(data, test, seed=seed)
    return fingerprints.fingerprint_splits(splits, data.path, masks, bool(data.group))
