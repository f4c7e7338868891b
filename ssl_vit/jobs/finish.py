"""Finish a trained run: test the model, export the weights, draw figures and write result.json."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from .. import costs, inspection
from ..data import class_numbers
from ..data.run_splits import Splits
from ..errors import NonFiniteError, one_line
from ..evaluation import classify, split_images
from ..evaluation.features import count_copies_in
from ..evaluation.held_out import count_images
from ..evaluation.images import EvaluationImages
from ..formatting import format_image_count
from ..measurements import flat_name
from ..models import weights
from ..objectives.base import Objective
from ..recipe.records.run import Best, Measurement, Result, SeenImages, Trunk, known
from ..runs import shared
from ..runs.folder import Run
from ..runs.identity import initial_weights, recipe_hash, upstream_cost
from ..runs.trackers import WarningLog
from ..training import loop
from ..training.preemption import StopConsensus
from . import best_checkpoint, seen_images
from .setup import TrainingJob, loop_settings


def finish(job: TrainingJob, consensus: StopConsensus) -> Result | None:
    """Test and export the trained objective, draw the figures and write result.json.

    All processes must call this function. A signal does not stop the work. A signal only ends the
    wait for uploads. In a run with a single process, a signal also ends the wait for test images
    that do not arrive.

    Args:
        job: The training job after the last step.
        consensus: Says whether a signal has arrived.

    Returns:
        The content of result.json, or None on processes other than rank 0.

    Raises:
        Interrupted: A signal ended the wait for test images.
        UserError: As for `best_checkpoint.restore`.
    """
    best = best_checkpoint.restore(job)
    # Probe the final weights if the last evaluation did not: the run was resumed after the last
    # step, or the best checkpoint was just loaded
    if job.online and not job.online.has_run:
        callbacks = loop.Callbacks([WarningLog(job.run)])
        loop.evaluate(job.online, job.state, {}, loop_settings(job.recipe), callbacks)
    with job.state.evaluation_model() as trained:
        # Every result needs the held-out metrics, so a failure here ends the run
        if not job.held_out.latest:
            with torch.no_grad(), loop.autocast(job.recipe.compute.precision, job.accelerator):
                # Reading all values sets `job.held_out.latest`
                dict(job.held_out(job.state.step, {}, trained.eval()))
        held_out = _held_out(job)
        tested = _test(job, trained.eval(), consensus.alone)
        # Count different names, because every epoch meets the same unreadable images
        unreadable = {*job.accelerator.gather_parts([*job.state.unreadable])}
        if not job.accelerator.is_main_process:
            return None
        if unreadable:
            job.run.warn(
                f"{format_image_count(len(unreadable))} of the training split could not be read. "
                "The run trained on the next readable images instead"
            )
        result = _write(job, trained, held_out, tested, best)
        if job.pusher:
            job.pusher.finish(consensus.is_requested)
        return result


def _test(
    job: TrainingJob, trained: Objective, should_stop: Callable[[], bool]
) -> list[Measurement]:
    """Measure the objective on all test images, and write predictions.npz.

    The top-1 accuracy is also compared with a baseline on the same images, which always names the
    commonest class. With data.group, the images of a group are not independent, so the difference
    from the baseline is not measured.

    Args:
        job: The training job.
        trained: The objective, in evaluation mode.
        should_stop: Returns whether to give up waiting for images.

    Returns:
        The accuracies. Empty if eval.test is off. Also empty, with a warning, if predictions are
        not finite.
    """
    source = job.splits.test
    recipe = job.recipe
    if source is None:
        return []
    classes = class_numbers.num_classes(job.splits, recipe.data, recipe.objective)
    images = EvaluationImages(
        recipe,
        job.splits,
        classes,
        job.accelerator,
        job.batch_layout,
        job.workers,
        warn=lambda text: job.run.warn(f"a test image is {text}"),
        should_stop=should_stop,
    )
    try:
        with images.autocast():
            predictions = classify.predict(trained, images.read_batches(source), job.accelerator)
    except NonFiniteError as error:  # only a warning, so that the weights are still exported
        if job.accelerator.is_main_process:
            job.run.warn(f"no accuracy was measured on the test images: {error}")
        return []
    if job.accelerator.is_main_process:
        predictions.save(job.run.predictions, source)
    accuracies = classify.accuracies(predictions, classes, paired=recipe.data.group is None)
    if recipe.eval.real:
        accuracies += classify.real_accuracy(predictions, source, recipe.eval.real)
    return accuracies


def _write(
    job: TrainingJob,
    trained: Objective,
    held_out: list[Measurement],
    tested: list[Measurement],
    best: Best | None,
) -> Result:
    """Write the export, the figures, result.json and the page of the run, on rank 0.

    Args:
        job: The training job.
        trained: The objective, in evaluation mode.
        held_out: Metrics on the held-out images.
        tested: Metrics on the test images.
        best: The entry about the best checkpoint, if there is one.

    Returns:
        The content of result.json.
    """
    run, recipe, state = job.run, job.recipe, job.state
    run.check_not_moved()
    export(job, trained, run.export)
    # The report of a study draws the figures of its tasks
    if recipe.hub.repo or not shared.is_task(run.folder):
        with (
            _failures_as_warnings(run, "figures"),
            loop.autocast(recipe.compute.precision, job.accelerator),
        ):
            batch = job.held_out.batches[0] if job.held_out.batches else job.held_out.example
            batch = loop.to_device(batch, job.accelerator.device)
            inspection.save_figures(trained, batch, run.figures)
    if job.trackers:
        values = {flat_name(accuracy.key): accuracy.value for accuracy in tested}
        job.trackers.finish(state.step, values)
    split = split_images.held_out_split(recipe)
    probed = job.online.measurements(split) if job.online else []
    # The trunk is the part of another run that this run continues (resume=RUN@STEP)
    trunk = state.trunk or {"step": 0, "seconds": 0.0, "device_seconds": 0.0}
    before = initial_weights(run.folder).get("before") or upstream_cost(recipe)
    forwarded_before = trunk["step"] * recipe.optim.batch
    seen_by_this_run = job.measured.count_seen(run.folder.name, job.trained_on.record)
    result = write_result(
        run,
        job.splits,
        [*held_out, *probed, *tested],
        seen=[*seen_by_this_run, *job.seen],
        images=state.step * recipe.optim.batch,
        forwarded_before=forwarded_before,
        seconds=state.seconds - trunk["seconds"],
        device_seconds=state.device_seconds - trunk["device_seconds"],
        before={
            "exaflop": _sum_or_none(before["exaflop"], costs.exaflop(recipe, forwarded_before)),
            "device_hours": _sum_or_none(before["device_hours"], trunk["device_seconds"] / 3600),
        },
        steps=state.step,
        best=best,
        not_compared=job.not_compared,
        learned_from=job.online.images[0] if job.online and probed else None,
        trunk=Trunk(run=trunk["run"], step=trunk["step"]) if state.trunk else None,
        held_out=job.held_out.images,
    )
    run.write_log("finished")
    return result


def export(job: TrainingJob, trained: Objective, folder: Path) -> None:
    """Write the encoder in timm's format, and the heads of the objective, into a folder.

    Args:
        job: Training job.
        trained: Objective to export.
        folder: Folder to write to.
    """
    recipe, heads = job.recipe, trained.heads()
    classes: list[str] = []
    if getattr(trained, "has_linear_head", False):
        num_outputs = len(heads["head.bias"])
        names = job.splits.train.classes[:num_outputs]
        # Outputs without a class in the training split are named by their numbers
        classes = [*names, *map(str, range(len(names), num_outputs))]
    weights.export(folder, trained.exported, heads, recipe.model, recipe.data, recipe.pool, classes)


def write_result(
    run: Run,
    splits: Splits,
    measurements: list[Measurement],
    *,
    seen: list[SeenImages],
    images: int,
    seconds: float,
    device_seconds: float,
    before: dict[str, float | None],
    steps: int = 0,
    forwarded_before: int = 0,
    held_out: int | None = None,
    **fields: Any,
) -> Result:
    """Write result.json and report.html of a run.

    Args:
        run: The run.
        splits: The images of the run.
        measurements: Measurements of the model and the baselines.
        seen: How many of the measured images were training images of this run or of the runs that
            made the initial weights.
        images: Number of images that passed through the encoder, including `forwarded_before`.
        seconds: Duration of the run in seconds.
        device_seconds: Duration times number of processes.
        before: Cost of all earlier training, {"exaflop": ..., "device_hours": ...}: the runs that
            made the initial weights and, with resume=RUN@STEP, the first steps of RUN.
        steps: Number of optimiser steps.
        forwarded_before: With resume=RUN@STEP, number of images that passed through the encoder in
            RUN.
        held_out: For a training run, the number of held-out images that were measured. None for an
            evaluation.
        **fields: Further fields of the result. Fields that are empty, zero or None are left out.

    Returns:
        The content of result.json.
    """
    recipe, hours = run.recipe, device_seconds / 3600
    # None if operations were not counted. Then the total with earlier runs is None, too
    exaflop = costs.exaflop(recipe, images - forwarded_before)
    fields["seen"] = seen_images.without_paths(seen)
    counts = split_images.count_measured_images(recipe, splits, held_out)
    # Unreadable images are not measured. So count the images of the metric with the most images
    test_counts = [entry.n for entry in measurements if entry.split == "test" and entry.n]
    if test_counts:
        counts["test"] = min(counts["test"], max(test_counts))
    best = fields.get("best")
    measured = {measurement.key: measurement.with_interval(counts) for measurement in measurements}
    for measurement in measured.values():
        # An evaluation has no steps, and a measurement with a subject is of a baseline
        if steps and not measurement.subject:
            measurement.step = best.step if best and best.step else steps
    result = Result(
        steps=steps,
        images=images,
        exaflop=exaflop,
        device_hours=hours,
        total_exaflop=_sum_or_none(exaflop, before["exaflop"]),
        total_device_hours=_sum_or_none(hours, before["device_hours"]),
        seconds=seconds,
        measurements=[*measured.values()],
        measured_on=counts,
        recipe=recipe_hash(recipe),
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        **{field: value for field, value in fields.items() if value},
    )
    run.finish(result)
    write_page(run, result)
    return result


def write_page(run: Run, result: Result) -> None:
    """Write report.html of a finished run. A failure is only a warning.

    For a task of a study nothing is written, because `report.py RUN` writes the page on request.

    Args:
        run: The run.
        result: The content of its result.json.
    """
    if shared.is_task(run.folder):
        return
    with _failures_as_warnings(run, "report.html"):
        # Imported here, because these imports take half a second and are not always needed
        from ..pages import run_page, run_record

        run_page.write(run.folder, run_record.read_run(run.folder, result))


@contextmanager
def _failures_as_warnings(run: Run, what: str) -> Iterator[None]:
    """Turn an error in the body into a warning that `what` could not be written."""
    try:
        yield
    except Exception as error:
        run.warn(f"{what} could not be written: {one_line(error)}")


def _held_out(job: TrainingJob) -> list[Measurement]:
    """Return the metrics of the objective and of the baselines on the held-out images.

    All processes must call this function. Each measurement also says how many of the measured
    images are copies of other images. Some metrics are measured only on labelled images. Such a
    metric is recognised because its number of images is the number of labelled images.
    """
    batches, accelerator = job.held_out.batches, job.accelerator
    copies = count_copies_in(batches, accelerator)
    labelled = count_images(batches, accelerator, labelled=True)
    copies_of_labelled = count_copies_in(batches, accelerator, labelled=True)
    split = split_images.held_out_split(job.recipe)
    measurements = []
    for key, (value, n) in job.held_out.latest.items():
        # If all images have labels, both numbers of copies are equal
        metric_copies = copies_of_labelled if n == labelled else copies
        fields = known(**key._asdict(), copies=metric_copies)
        measurements.append(Measurement(split=split, value=value, n=n, **fields))
    return measurements


def _sum_or_none(a: float | None, b: float | None) -> float | None:
    """Return the sum of two numbers, or None if a number is unknown."""
    return None if a is None or b is None else a + b
