"""What a run leaves when it has trained: the test, the export, the images, result.json."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from .. import costs, inspection
from ..data import batching, loaders, sources
from ..data.workers import InterruptibleLoader
from ..evaluation import classify
from ..models import weights
from ..objectives import Objective
from ..runs.identity import initial_weights, recipe_hash
from ..runs.trackers import WarningLog
from ..training import loop
from .setup import Job, loop_settings


def finish(job: Job) -> dict[str, Any]:
    """The export, the image, result.json, and what to type next."""
    if job.probes and not job.probes.has_run:  # resumed after the last step
        callbacks = loop.Callbacks([WarningLog(job.run)])
        loop.evaluate(
            job.probes, job.state, {}, loop_settings(job.recipe), job.accelerator, callbacks
        )
    with job.state.evaluation_model() as trained:
        if not job.held_out.latest:  # resumed after the last step
            with torch.no_grad(), loop.autocast(job.recipe.compute.precision, job.accelerator):
                dict(job.held_out(job.state.step, {}, trained.eval()))
        test_metrics = _test(job, trained.eval())
        return _concluded(job, trained, test_metrics) if job.accelerator.is_main_process else {}


def _concluded(
    job: Job, trained: Objective, test_metrics: dict[str, tuple[float, int]]
) -> dict[str, Any]:
    run = job.run
    run.check_not_moved()
    export(job, trained, run.export)
    _draw(job, trained)
    result = _result(job, test_metrics)
    run.finish(result)
    run.write_log("finished")
    if job.pusher:
        job.pusher.finish()
    return result


def export(job: Job, trained: Objective, folder: Path) -> None:
    """The encoder as timm reads it, and the objective's heads beside it, into a folder."""
    recipe = job.recipe
    heads = {name: value for name, value in trained.state_dict().items() if "encoder." not in name}
    linear = (
        recipe.objective == "supervised"
        and not recipe.supervised.hidden
        and not recipe.model.convolutional
    )
    classes = _class_names(job.splits, len(heads["head.bias"])) if linear else []
    weights.export(folder, trained.encoder, heads, recipe.model, recipe.data, trained.pool, classes)


def _test(job: Job, trained: Objective) -> dict[str, tuple[float, int]]:
    """{name: (value, n)} on every image of the test split, if it is signals for; predictions.npz
    tells who was right where."""
    source, recipe = job.splits.test, job.recipe
    if source is None:
        return {}
    loader = loaders.evaluation_loader(source, recipe.data, job.batch_layout, job.workers)
    with (
        loop.autocast(recipe.compute.precision, job.accelerator),
        InterruptibleLoader(loader) as test,
    ):
        predictions = classify.predict(trained, job.accelerator.watch_loader(test), job.accelerator)
    for text in predictions.unreadable:
        job.run.write_log(f"warning: a test image is left out: {text}")
        job.accelerator.print(f"warning: a test image is left out: {text}")
    if predictions.unreadable:
        batching.check_unreadable(
            len(predictions.unreadable),
            len(predictions.index),
            recipe.data,
            predictions.unreadable[-1],
        )
    if job.accelerator.is_main_process:
        predictions.save(job.run.predictions)
    classes = sources.num_classes(job.splits, recipe.data, recipe.objective)
    return classify.accuracies(predictions, classes) | (
        classify.real_accuracy(predictions, source, recipe.eval.real) if recipe.eval.real else {}
    )


def _class_names(splits: sources.Splits, count: int) -> list[str]:
    names = splits.train.classes
    return names if len(names) == count else [str(number) for number in range(count)]


def _draw(job: Job, trained: Objective) -> None:
    """The images; without them the run is finished all the same."""
    try:
        with loop.autocast(job.recipe.compute.precision, job.accelerator):
            few = loop.to_device(job.held_out.batches[0], job.accelerator.device)
            inspection.save_figures(trained, few, job.run.figures)
    except Exception as error:
        job.run.write_log(f"warning: no images: {error!r}")
        print(f"warning: no images: {error!r}", flush=True)


def _result(job: Job, test_metrics: dict[str, tuple[float, int]]) -> dict[str, Any]:
    """What result.json says; the totals count the runs that the first weights came from."""
    state = job.state
    images = state.step * job.recipe.optim.batch
    known = initial_weights(job.run.folder).get("before")
    before = known or job.recipe.init_source.upstream_cost()
    took = {
        "exaflop": costs.exaflop(job.recipe, images),
        "device_hours": state.device_seconds / 3600,
    }
    watched = "train" if job.recipe.data.validation == 0 else "validation"
    probed = (
        {f"probe_{name}": pair for name, pair in job.probes.latest.items()} if job.probes else {}
    )
    measured = {watched: job.held_out.latest | probed, "test": test_metrics}
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
