"""Finishes a trained run: test, export, figures, result.json."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import torch

from .. import costs, inspection
from ..data import batching, class_numbers, loaders
from ..data.workers import InterruptibleLoader
from ..evaluation import classify
from ..models import weights
from ..objectives.base import Objective
from ..recipe.records.run import Best, Measured, Result, Trunk
from ..recipe.schema import Recipe
from ..runs.folder import Run
from ..runs.identity import initial_weights, recipe_hash, upstream_cost
from ..runs.trackers import WarningLog
from ..training import loop
from ..training.preemption import StopConsensus
from . import best_checkpoint, seen_images, split_images
from .setup import Job, loop_settings

Metrics = dict[str, tuple[float, int]]  # name -> value, number of cases


def finish(job: Job, consensus: StopConsensus) -> Result | None:
    """Test and export the trained objective, draw the figures and write result.json; its content,
    on other processes than rank 0 None. A signal ends only the wait for test images that
    do not come, on one process, and for uploads.

    Raises:
        Interrupted: by a signal.
        UserError: as `best_checkpoint.restore`.
    """
    best = best_checkpoint.restore(job)
    # resumed after the last step, or with the best one's weights
    if job.online and not job.online.probes.has_run:
        callbacks = loop.Callbacks([WarningLog(job.run)])
        loop.evaluate(job.online.probes, job.state, {}, loop_settings(job.recipe), callbacks)
    with job.state.evaluation_model() as trained:
        if not job.held_out.latest:  # a failure ends the run: a result has held-out metrics
            with torch.no_grad(), loop.autocast(job.recipe.compute.precision, job.accelerator):
                dict(job.held_out(job.state.step, {}, trained.eval()))
        tested = _test(job, trained.eval(), consensus.alone)
        if not job.accelerator.is_main_process:
            return None
        result = _write(job, trained, tested, best)
        if job.pusher:
            job.pusher.finish(consensus.is_requested)
        return result


def _test(job: Job, trained: Objective, should_stop: Callable[[], bool]) -> Metrics:
    """{name: (value, n)} on every image of the test split, with eval.test; writes
    predictions.npz."""
    source = job.splits.test
    recipe = job.recipe
    if source is None:
        return {}
    loader = loaders.evaluation_loader(source, recipe.data, job.batch_layout, job.workers)
    with (
        loop.autocast(recipe.compute.precision, job.accelerator),
        InterruptibleLoader(loader, should_stop) as test,
    ):
        predictions = classify.predict(trained, job.accelerator.watch_loader(test), job.accelerator)
    if job.accelerator.is_main_process:
        predictions.save(job.run.predictions, source)
        for text in predictions.unreadable:
            job.warn(f"a test image is left out: {text}")
    if unreadable := predictions.unreadable:
        count = len(predictions.index)
        batching.check_unreadable(len(unreadable), count, recipe.data, unreadable[-1])
    classes = class_numbers.num_classes(job.splits, recipe.data, recipe.objective)
    metrics = classify.accuracies(predictions, classes)
    if recipe.eval.real:
        metrics |= classify.real_accuracy(predictions, source, recipe.eval.real)
    return metrics


def _write(job: Job, trained: Objective, tested: Metrics, best: Best | None) -> Result:
    """Write the export, the figures, result.json and the page; the content of result.json."""
    run, recipe, state = job.run, job.recipe, job.state
    run.check_not_moved()
    export(job, trained, run.export)
    with (
        _failures_as_warnings(run, "figures"),
        loop.autocast(recipe.compute.precision, job.accelerator),
    ):
        few = loop.to_device(job.held_out.batches[0], job.accelerator.device)
        inspection.save_figures(trained, few, run.figures)
    if job.trackers:
        values = {name: value for name, (value, _) in tested.items()}
        job.trackers.finish(state.step, values)
    split = split_images.held_out_split(recipe)
    probed = job.online.probes.metrics(split) if job.online else {}
    images = state.step * recipe.optim.batch
    trunk = state.trunk or {"step": 0, "seconds": 0.0, "device_seconds": 0.0}
    before = initial_weights(run.folder).get("before") or upstream_cost(recipe)
    shared = costs.exaflop(recipe, trunk["step"] * recipe.optim.batch)
    result = result_record(
        recipe,
        measured(job.held_out.latest, split) | probed | measured(tested, "test"),
        steps=state.step,
        images=images,
        exaflop=costs.exaflop(recipe, images - trunk["step"] * recipe.optim.batch),
        seconds=state.seconds - trunk["seconds"],
        device_seconds=state.device_seconds - trunk["device_seconds"],
        before={
            "exaflop": _added(before["exaflop"], shared),
            "device_hours": _added(before["device_hours"], trunk["device_seconds"] / 3600),
        },
    )
    if state.trunk:
        result.trunk = Trunk(run=trunk["run"], step=trunk["step"])
    result.measured_on = split_images.measured_on(recipe, job.splits)
    seen = [*job.measured.seen_by(run.folder.name, job.trained_on.record), *job.seen]
    if seen:
        result.seen = seen_images.without_paths(seen)
    if best:
        result.best = best
    if job.not_compared:
        result.not_compared = job.not_compared
    run.finish(result)
    run.write_log("finished")
    write_page(run)
    return result


def export(job: Job, trained: Objective, folder: Path) -> None:
    """Write the encoder as timm reads it, and the objective's heads, into a folder."""
    recipe, heads = job.recipe, trained.heads()
    classes: list[str] = []
    if getattr(trained, "has_linear_head", False):
        count = len(heads["head.bias"])
        names = job.splits.train.classes
        classes = names if len(names) == count else [str(number) for number in range(count)]
    weights.export(folder, trained.exported, heads, recipe.model, recipe.data, recipe.pool, classes)


def write_page(run: Run) -> None:
    """Write report.html; a failure is a warning."""
    with _failures_as_warnings(run, "report.html"):
        from ..pages import run_page  # half a second of imports, which only the end needs

        run_page.write(run.folder)


@contextmanager
def _failures_as_warnings(run: Run, what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        run.write_log(f"warning: no {what}: {error!r}")
        print(f"warning: no {what}: {error!r}", flush=True)


def measured(metrics: Metrics, split: str) -> dict[str, Measured]:
    """Metrics of a split as result.json has them."""
    return {name: Measured(value=value, n=n, split=split) for name, (value, n) in metrics.items()}


def result_record(
    recipe: Recipe,
    metrics: dict[str, Measured],
    images: int,
    exaflop: float | None,
    seconds: float,
    device_seconds: float,
    before: dict[str, float | None],
    steps: int = 0,
) -> Result:
    """The content of result.json.

    Args:
        recipe: of the run.
        metrics: by their names.
        images: that the encoder forwarded.
        exaflop: of the run; None: not counted, and so is what is added to it.
        seconds: of the run.
        device_seconds: seconds times processes.
        before: exaflop and device_hours of the runs that the initial weights come from, and of the
            steps before its first.
        steps: of the optimiser.
    """
    hours = device_seconds / 3600
    return Result(
        steps=steps,
        images=images,
        exaflop=exaflop,
        device_hours=hours,
        total_exaflop=_added(exaflop, before["exaflop"]),
        total_device_hours=_added(hours, before["device_hours"]),
        seconds=seconds,
        metrics=metrics,
        recipe=recipe_hash(recipe),
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _added(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other
