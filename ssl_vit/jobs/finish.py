"""Finishes a trained run: test, export, figures, result.json."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from .. import costs, inspection
from ..data import class_numbers
from ..data.run_splits import Splits
from ..evaluation import classify, split_images
from ..evaluation.images import Images
from ..formatting import count_of_images
from ..models import weights
from ..objectives.base import Objective
from ..recipe.records.run import Best, Measured, Result, SeenImages, Trunk
from ..runs.folder import Run
from ..runs.identity import initial_weights, recipe_hash, upstream_cost
from ..runs.trackers import WarningLog
from ..training import loop
from ..training.preemption import StopConsensus
from . import best_checkpoint, seen_images
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
    if job.online and not job.online.has_run:
        callbacks = loop.Callbacks([WarningLog(job.run)])
        loop.evaluate(job.online, job.state, {}, loop_settings(job.recipe), callbacks)
    with job.state.evaluation_model() as trained:
        if not job.held_out.latest:  # a failure ends the run: a result has held-out metrics
            with torch.no_grad(), loop.autocast(job.recipe.compute.precision, job.accelerator):
                dict(job.held_out(job.state.step, {}, trained.eval()))
        tested = _test(job, trained.eval(), consensus.alone)
        # by names, as one is read again in each epoch
        unreadable = {*job.accelerator.gather_parts([*job.state.unreadable])}
        if not job.accelerator.is_main_process:
            return None
        if unreadable:
            text = f"{count_of_images(len(unreadable))} of the training split could not be read"
            job.run.warn(f"{text}: the next were learned from in their places")
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
    classes = class_numbers.num_classes(job.splits, recipe.data, recipe.objective)
    images = Images(
        *(recipe, job.splits, classes, job.accelerator, job.batch_layout, job.workers),
        warn=lambda text: job.run.warn(f"a test image is {text}"),
        should_stop=should_stop,
    )
    with images.autocast():
        predictions = classify.predict(trained, images.batches(source), job.accelerator)
    if job.accelerator.is_main_process:
        predictions.save(job.run.predictions, source)
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
        few = (job.held_out.batches or [job.held_out.example])[0]
        few = loop.to_device(few, job.accelerator.device)
        inspection.save_figures(trained, few, run.figures)
    if job.trackers:
        values = {name: value for name, (value, _) in tested.items()}
        job.trackers.finish(state.step, values)
    split = split_images.held_out_split(recipe)
    probed = job.online.metrics(split) if job.online else {}
    trunk = state.trunk or {"step": 0, "seconds": 0.0, "device_seconds": 0.0}
    before = initial_weights(run.folder).get("before") or upstream_cost(recipe)
    shared = trunk["step"] * recipe.optim.batch
    result = write_result(
        run,
        job.splits,
        measured(job.held_out.latest, split) | probed | measured(tested, "test"),
        seen=[*job.measured.seen_by(run.folder.name, job.trained_on.record), *job.seen],
        images=state.step * recipe.optim.batch,
        shared=shared,
        seconds=state.seconds - trunk["seconds"],
        device_seconds=state.device_seconds - trunk["device_seconds"],
        before={
            "exaflop": _added(before["exaflop"], costs.exaflop(recipe, shared)),
            "device_hours": _added(before["device_hours"], trunk["device_seconds"] / 3600),
        },
        steps=state.step,
        best=best,
        not_compared=job.not_compared,
        trunk=Trunk(run=trunk["run"], step=trunk["step"]) if state.trunk else None,
        held_out=job.held_out.images,
    )
    run.write_log("finished")
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


def write_result(
    run: Run,
    splits: Splits,
    metrics: dict[str, Measured],
    *,
    seen: list[SeenImages],
    images: int,
    seconds: float,
    device_seconds: float,
    before: dict[str, float | None],
    steps: int = 0,
    shared: int = 0,
    held_out: int | None = None,
    **known: Any,
) -> Result:
    """Write result.json and the page; the content of result.json.

    Args:
        run, splits: the run and its images.
        metrics: by their names.
        seen: which of the images it, and its initial weights, had seen.
        images: that the encoder forwarded.
        seconds: of the run.
        device_seconds: seconds times processes.
        before: exaflop and device_hours of the runs that the initial weights come from, and of the
            steps before its first.
        steps: of the optimiser.
        shared: of the images, those that the run forwarded from which it went on.
        held_out: how many held-out images were measured; None for those that have a label.
        known: more fields of the result; one without a value is left out.
    """
    recipe, hours = run.recipe, device_seconds / 3600
    # None: not counted, and so is what is added to it
    exaflop = costs.exaflop(recipe, images - shared)
    known["seen"] = seen_images.without_paths(seen)
    counts = split_images.measured_on(recipe, splits)
    if held_out is not None:
        counts[split_images.held_out_split(recipe)] = held_out
    # images that cannot be read are not measured
    if tested := [entry.n for entry in metrics.values() if entry.split == "test" and entry.n]:
        counts["test"] = min(counts["test"], max(tested))
    result = Result(
        steps=steps,
        images=images,
        exaflop=exaflop,
        device_hours=hours,
        total_exaflop=_added(exaflop, before["exaflop"]),
        total_device_hours=_added(hours, before["device_hours"]),
        seconds=seconds,
        metrics=metrics,
        measured_on=counts,
        recipe=recipe_hash(recipe),
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        **{field: value for field, value in known.items() if value},
    )
    run.finish(result)
    write_page(run, result)
    return result


def write_page(run: Run, result: Result) -> None:
    """Write report.html of a run that ended with that result; a failure is a warning."""
    with _failures_as_warnings(run, "report.html"):
        # half a second of imports, which only the end needs
        from ..pages import run_page, run_record

        run_page.write(run.folder, run_record.read_run(run.folder, result))


@contextmanager
def _failures_as_warnings(run: Run, what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        run.warn(f"no {what}: {error!r}")


def measured(metrics: Metrics, split: str) -> dict[str, Measured]:
    """Metrics of a split as result.json has them."""
    return {name: Measured(value=value, n=n, split=split) for name, (value, n) in metrics.items()}


def _added(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other
