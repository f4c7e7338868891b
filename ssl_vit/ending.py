"""What a run leaves when it has trained: the test, the export, the pictures, result.json."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from . import (
    compute,
    engine,
    figures,
    inits,
    weights,
)
from .assembly import Job
from .data import batches, loaders, sources
from .evaluate import classify
from .objectives import Objective
from .runs import recipe_hash
from .tracking import Notes


def finish(job: Job) -> dict[str, Any]:
    """The export, the picture, result.json, and what to type next."""
    if job.probes and not job.probes.looked:  # resumed after the last step
        audience = engine.Audience([Notes(job.run)])
        engine.observe(job.probes, job.state, {}, job.recipe, job.accelerator, audience)
    with job.state.watched() as trained:
        if not job.held_out.latest:  # resumed after the last step
            with torch.no_grad(), engine.autocast(job.recipe, job.accelerator):
                dict(job.held_out(job.state.step, {}, trained.eval()))
        told = _test(job, trained.eval())
        return _concluded(job, trained, told) if job.accelerator.is_main_process else {}


def _concluded(job: Job, trained: Objective, told: dict[str, tuple[float, int]]) -> dict[str, Any]:
    run = job.run
    run.check_place()
    export(job, trained, run.export)
    _draw(job, trained)
    result = _result(job, told)
    run.finish(result)
    run.note("finished")
    if job.pusher:
        job.pusher.finish()
    return result


def export(job: Job, trained: Objective, folder: Path) -> None:
    """The encoder as timm reads it, and the objective's heads beside it, into a folder."""
    recipe = job.recipe
    heads = {name: value for name, value in trained.state_dict().items() if "encoder." not in name}
    linear = recipe.objective == "supervised" and not recipe.supervised.hidden and not recipe.model.convolutional
    classes = _class_names(job.splits, len(heads["head.bias"])) if linear else []
    weights.export(folder, trained.encoder, heads, recipe.model, recipe.data, trained.pool, classes)


def _test(job: Job, trained: Objective) -> dict[str, tuple[float, int]]:
    """{name: (value, n)} on every picture of the test split, if it is asked for; predictions.npz tells who was right where."""
    source, recipe = job.splits.test, job.recipe
    if source is None:
        return {}
    loader = loaders.every(source, recipe.data, job.spread, job.workers)
    with engine.autocast(recipe, job.accelerator), loaders.Patient(loader) as test:
        told = classify.predict(trained, job.accelerator.reading(test), job.accelerator)
    for text in told.unread:
        job.run.note(f"warning: a test picture is left out: {text}")
        job.accelerator.print(f"warning: a test picture is left out: {text}")
    if told.unread:
        batches.check_unread(len(told.unread), len(told.index), recipe.data, told.unread[-1])
    if job.accelerator.is_main_process:
        told.save(job.run.predictions)
    classes = sources.classes(job.splits, recipe)
    return classify.measure(told, classes) | (classify.real(told, source, recipe.eval.real) if recipe.eval.real else {})


def _class_names(splits: sources.Splits, count: int) -> list[str]:
    names = splits.train.classes
    return names if len(names) == count else [str(number) for number in range(count)]


def _draw(job: Job, trained: Objective) -> None:
    """The pictures; without them the run is finished all the same."""
    try:
        with engine.autocast(job.recipe, job.accelerator):
            few = engine.to_device(job.held_out.batches[0], job.accelerator.device)
            figures.draw(trained, few, job.run.figures)
    except Exception as error:
        job.run.note(f"warning: no pictures: {error!r}")
        print(f"warning: no pictures: {error!r}", flush=True)


def _result(job: Job, told: dict[str, tuple[float, int]]) -> dict[str, Any]:
    """What result.json says; the totals count the runs that the first weights came from."""
    state = job.state
    images = state.step * job.recipe.optim.batch
    before = job.run.begun().get("before") or inits.spent(inits.find(job.recipe.init))
    took = {"exaflop": compute.exaflop(job.recipe, images), "device_hours": state.device_seconds / 3600}
    watched = "train" if job.recipe.data.validation == 0 else "validation"
    probed = {f"probe_{name}": pair for name, pair in job.probes.latest.items()} if job.probes else {}
    measured = {watched: job.held_out.latest | probed, "test": told}
    return {
        "steps": state.step,
        "images": images,
        **took,
        **{f"total_{name}": value + before[name] for name, value in took.items()},
        "seconds": state.seconds,
        "metrics": {
            name: {"value": value, "n": n, "split": split}
            for split, values in measured.items()
            for name, (value, n) in values.items()
        },
        "recipe": recipe_hash(job.recipe),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }
