"""Decide whether the result of a finished run can be returned for a recipe.

It can if values, images, initial weights and files are the same. No torch.
"""

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

NOT_COMPARED = "the images were not compared with the images of the finished run"
MEASURED_LAST = {"eval.test", "eval.real"}  # keys of measurements after the last step


def check_finished(run: Run) -> list[str]:
    """Check that a finished run had the images, weights and files that its recipe now names.

    `Run.reconcile` has already compared the recipe.

    Returns:
        Warnings about images and weights that are missing on this machine, and so were not checked.

    Raises:
        UserError: The run has other images, weights or files, which the message names, or the run
            began at another step or run than the recipe says.
    """
    recipe, folder, result = run.recipe, run.folder, run.result()
    check_start(recipe, result.trunk if result else None)
    identity.check_options(recipe, folder)
    hashes_by_source = {source: source.identity() for source in recipe.sources().values()}
    weights = {source.kind: hashes for source, hashes in hashes_by_source.items()}
    file_hashes = identity.file_hashes(recipe)
    files = {kind: file_hashes.get(kind) or {} for kind in ("plugin", "real")}
    identity.check_facts(recipe, folder, weights | files)
    images, image_warning = _images(recipe)
    identity.check_facts(recipe, folder, {"data": images})
    warnings = []
    for source, hashes in hashes_by_source.items():
        if source.is_local and not hashes:
            text = "not found, so the weights were not compared with the finished run"
            warnings.append(f"{source.option}: {text}")
    if image_warning:
        warnings.append(image_warning)
    return warnings


def check_start(recipe: Recipe, began: dict[str, Any] | Trunk | None) -> None:
    """Check that resume=RUN@STEP names the run and the step that the run began at.

    Runs are compared by the name of the folder, because the folder may have been moved or removed.

    Args:
        recipe: Recipe of the run.
        began: Entry `trunk` of the run, with the `run` and the `step` that it began at. None for a
            run that began at step 0: its weights are the same to the bit, so any resume= is
            accepted.

    Raises:
        UserError: The run began at another step or run.
    """
    trunk = recipe.trunk
    if not began or not trunk:
        return
    run, step = began["run"], began["step"]
    if (run, step) != (trunk.folder.name, trunk.step):
        text = f"the run began at step {step} of run {run}. Leave out resume=."
        raise recipe.error("resume", text)


def check_unfinished(run: Run) -> None:
    """Check that a run that is to be resumed has the same plugin as before.

    Images and initial weights are compared when they are read.

    Raises:
        UserError: The plugin differs.
    """
    if identity.is_begun(run.folder):
        plugin = identity.file_hashes(run.recipe).get("plugin") or {}
        identity.check_facts(run.recipe, run.folder, {"plugin": plugin})


def describe_remeasurement(run: Run) -> str:
    """Return a line to print if a finished training run must be measured again, else "".

    A run is measured again, with the same weights, if the recipe now has further measurements after
    the last step, and nothing else has changed. The checkpoint of the last step is needed.
    """
    recipe = run.recipe
    changed = identity.changed_options(recipe, run.folder)
    keys = {difference.key for difference in changed}
    adds_measurements = keys <= MEASURED_LAST and all(difference.wanted for difference in changed)
    if not keys or not adds_measurements or not recipe.trains:
        return ""
    checkpoints = list_checkpoints(run.checkpoints)
    if not checkpoints or step_of(checkpoints[-1]) != recipe.optim.steps:
        return ""
    names = ", ".join(map(str, changed))
    return f"again       the run has finished and is measured again with other values: {names}"


def read_finished(run: Run) -> Result | None:
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
        for warning in check_finished(run):
            print(f"warning: {warning}", flush=True)
    return result


def _images(recipe: Recipe) -> tuple[dict[str, str], str]:
    """Return the fingerprint of each split that a recipe names, or why there are none.

    Raises:
        UserError: The images exist on this machine and cannot be read.
    """
    data = recipe.data
    if data.hub and not data.path:
        return {}, f"data.hub={data.hub}: {NOT_COMPARED}"
    try:
        check_place(data)
    except UserError as error:
        return {}, f"{error} ({NOT_COMPARED})"
    # fingerprints are of whole splits, even if a run uses only a part
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
