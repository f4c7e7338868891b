"""Train a run, from a checked recipe to a finished run folder."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..callbacks import Callback, Row
from ..data import loaders
from ..data.batching import Batch
from ..data.workers import Interrupted, InterruptibleLoader
from ..evaluation.split_images import held_out_split
from ..hub import background
from ..inspection.base import predictions
from ..measurements import Baseline
from ..objectives.base import Objective, describe_plugin_class
from ..recipe.declaration import is_from_plugin
from ..recipe.records.run import Result
from ..runs import console
from ..runs.collapse_alarm import CollapseAlarm
from ..runs.folder import TRAINED_ON, Run
from ..runs.identity import recipe_hash
from ..runs.shared import is_task
from ..runs.trackers import MetricsLog, Trackers, WarningLog
from ..training import checkpoint, distributed, loop, nonfinite, preemption
from ..training.heartbeat import Watchdog
from ..training.loop import Scheduled
from . import best_checkpoint, finish, resources, seen_images
from . import session as sessions
from .banner import print_banner
from .setup import TrainingJob, loop_settings, resume, set_up

PAGE_INTERVAL = 60.0  # minimum number of seconds between two updates of the page
BASELINE_IMAGES = 2048  # number of training images to which baselines are fitted


def train(run: Run, signals: preemption.SignalHandler | None = None) -> Result | None:
    """Train a run, from the last checkpoint if there is one, and finish the run folder.

    Args:
        run: A run whose recipe `reconcile` has completed.
        signals: An active handler, if the caller has one.

    Returns:
        The content of result.json. None on processes other than rank 0, unless the run had been
        finished before.

    Raises:
        UserError: The images, the folder or the machine do not suit the recipe.
        SystemExit: With status preemption.STOPPED or NOT_SAVED after a signal.
    """
    with ExitStack() as stack:
        signals = signals or stack.enter_context(preemption.SignalHandler())
        session = stack.enter_context(sessions.session(run))
        accelerator, watchdog = session.accelerator, session.watchdog
        splits = session.load_splits(run.recipe.eval.test)
        finished = session.hold_run(signals)
        if finished:
            return finished
        accelerator.tick = watchdog.tick
        best_checkpoint.check_split(run.recipe)
        job = set_up(run, accelerator, splits)
        if accelerator.num_processes > 1:
            job.state.strategy.watch_progress(watchdog.tick)
        resume(job)
        best_checkpoint.reconcile(job)
        job.decoded = resources.resident_images(run.recipe, splits.train, job.state.step)
        if job.recipe.plugin and job.state.step == 0:
            _try_plugin(job)
        _measure_baselines(job)
        if accelerator.is_main_process:
            job.trackers = Trackers(run, run.warn)
            stack.callback(job.trackers.end)
        print_banner(job)
        consensus = preemption.StopConsensus(
            signals, accelerator.process_index, accelerator.num_processes
        )
        saved = _train(job, consensus, watchdog)
        if job.state.step < run.recipe.optim.steps:
            _stop(job, f"at step {job.state.step:,} by {consensus.reason}", saved)
        try:
            result = finish.finish(job, consensus)
        except Interrupted:
            _stop(job, f"after the last step by {signals.reason}", job.state.step)
        accelerator.wait_for_everyone()  # under the watchdog
        return result


def _measure_baselines(job: TrainingJob) -> None:
    """Fit and measure the baselines of the objective, and probe the loaded initial weights.

    A baseline is a trivial prediction, such as the mean of the training images. Baselines are
    measured on the held-out images, unless there is only one.

    Raises:
        UserError: The baselines of a plugin are invalid.
    """
    # full_weights() yields the objective, or a gathered copy if the weights are sharded
    with job.state.strategy.full_weights() as objective, torch.no_grad():
        if job.state.step == 0:  # later, the checkpoint holds the fitted baselines
            _fit_baselines(job, objective)
        if job.held_out.images > 1:
            baselines = job.held_out.measure_baselines(objective)
            declared = job.recipe.declared
            if is_from_plugin(type(declared)) and job.accelerator.is_main_process:
                for metric in declared.metrics:
                    if isinstance(metric, Baseline) and metric.name not in baselines:
                        job.run.warn(
                            f"baseline {metric.name} was not measured, because baselines() "
                            "returned no (sum, count) for it, or a count of 0"
                        )
    # Probe the weights of `init=` before the first step changes them, for comparison with later
    # probes. Untrained weights are probed by the first evaluation instead
    if job.online and not job.recipe.init_source.is_scratch:
        with job.state.evaluation_model() as model:
            job.online.compare(model.eval().exported, job.state.step)
            model.train()


def _fit_baselines(job: TrainingJob, objective: Objective) -> None:
    """Fit the baselines to the first training images.

    Args:
        job: Training job, whose objective receives the fitted baselines.
        objective: The job's objective, or a gathered copy if the weights are sharded.
    """
    recipe, device = job.recipe, job.accelerator.device
    batches = loaders.first_batches(job.splits.train, recipe.data, recipe.seed, BASELINE_IMAGES)
    objective.fit_baselines(loop.to_device(batch, device) for batch in batches)
    if objective is not job.objective:
        # Fitted baselines are buffers. Copy them from the gathered copy to the job's objective
        for buffer, fitted in zip(job.objective.buffers(), objective.buffers(), strict=True):
            buffer.copy_(fitted)


def _try_plugin(job: TrainingJob) -> None:
    """Compute a plugin's loss and figure before the first step, so that mistakes show early.

    Warn if the loss pools the encoder's tokens in another way than the probes and the export, or if
    no weight of the encoder is trained. The state of the random generators is restored.

    Raises:
        UserError: The plugin's output or pictures are invalid.
    """
    recipe, accelerator = job.recipe, job.accelerator
    cast = loop.autocast(recipe.compute.precision, accelerator)
    with torch.no_grad(), cast, torch.random.fork_rng(), job.state.evaluation_model() as model:
        model.start_step(0.0)  # training also calls start_step before forward
        # `names` computes and checks the loss of a batch, and `predictions` computes the figure
        pools = _record_pools(model.encoder, lambda: job.held_out.names(model.eval()))
        predictions(model, loop.to_device(job.held_out.example, accelerator.device))
        model.train()
    if not accelerator.is_main_process:
        return
    if pools:
        if recipe.pool not in pools:
            job.run.warn(
                f"the loss uses encoder.feature with pool={', '.join(pools)}. "
                f"The probes and the export use pool={recipe.pool}"
            )
    elif is_from_plugin(type(recipe.declared)) and not recipe.declared.sets_pool:
        job.run.warn(
            "the loss does not use encoder.feature, and the plugin declares no pool. "
            f"The probes and the export use pool={recipe.pool}"
        )
    if not any(weight.requires_grad for weight in job.objective.encoder.parameters()):
        job.run.warn(f"{describe_plugin_class(job.objective)}: no weight of the encoder is trained")


def _record_pools(encoder: Any, forward: Callable[[], object]) -> set[str]:
    """Run a forward pass, and return how the encoder's tokens were pooled.

    Args:
        encoder: Encoder that `forward` uses.
        forward: Function that runs a forward pass.

    Returns:
        The pooling of each call of `encoder.feature`: "token" (class token) or "avg" (mean). Empty
        without such calls.
    """
    pools: set[str] = set()

    # `encoder.feature` calls the method `pooled`. Replace `pooled` by this function during the pass
    def recording_pooled(h_BTD: Tensor, pool: str, layer: int | None = None) -> Tensor:
        pools.add(pool)
        return type(encoder).pooled(encoder, h_BTD, pool, layer)

    vars(encoder)["pooled"] = recording_pooled  # an attribute of the object hides the method
    forward()
    del vars(encoder)["pooled"]
    return pools


def _train(job: TrainingJob, consensus: preemption.StopConsensus, watchdog: Watchdog) -> int:
    """Run the training loop with evaluators, callbacks and checkpoints.

    Args:
        job: Run to train.
        consensus: Tells before each step whether all processes stop.
        watchdog: Watches the processes.

    Returns:
        The step of the newest checkpoint, 0 if there is none.
    """
    run, state, accelerator = job.run, job.state, job.accelerator
    rank_callbacks = _callbacks(job) if accelerator.is_main_process else [WarningLog(run)]
    callbacks = loop.Callbacks([watchdog, *rank_callbacks])
    if accelerator.is_main_process and job.collapse:
        callbacks.add(CollapseAlarm(job.recipe.optim.warmup, run.rows(), callbacks.warn))
    _record_first_features(job, callbacks)
    held_out_batches = [*job.held_out.batches]
    if job.collapse:
        held_out_batches += job.collapse.batches
    for name in _unreadable_images(held_out_batches):
        callbacks.warn(f"a held-out image is left out: {name}")
    if job.online:
        for name in _unreadable_images([*job.online.train, *job.online.held_out]):
            callbacks.warn(f"an image is left out of the probes: {name}")
    saver = checkpoint.Saver(run.checkpoints, job.recipe.checkpoint, run.write_log, callbacks.warn)
    best = best_checkpoint.BestSoFar(job, saver)
    first_step = saved_step = state.step

    def save() -> None:
        nonlocal saved_step
        if state.step == saved_step:
            return
        saved_step = state.step
        if job.recipe.checkpoint.best:
            distributed.on_main(accelerator, best.drop_unsaved)
        content = state.save() | {"recipe": recipe_hash(job.recipe)}
        if job.trained_on.gather(accelerator) and accelerator.is_main_process:
            callbacks.note(
                f"this run has trained on more than {seen_images.LIMIT:,} different images, and "
                "only this many are recorded. Evaluations cannot recognise the others as seen in "
                "training"
            )
        distributed.on_main(accelerator, lambda: _save(job, saver, content, callbacks))

    def finish_saving() -> None:
        saver.wait()
        best.drop_unsaved()
        run.check_not_moved()

    try:
        with InterruptibleLoader(job.loader(), consensus.alone) as batches:
            loop.train(
                state,
                job.trained_on.watch(watchdog.track(batches, state.step)),
                loop_settings(job.recipe),
                _evaluators(job),
                callbacks,
                save,
                best.update,
                consensus,
                _nonfinite_policy(job, callbacks),
            )
        distributed.on_main(accelerator, finish_saving)
        return distributed.broadcast_from_main(accelerator, lambda: saver.kept or first_step)
    finally:
        saver.close()
        callbacks.close()


def _unreadable_images(batches: list[Batch]) -> list[str]:
    """Return the names of images that could not be read, each once and in order."""
    names = [name for batch in batches for name in batch.unreadable]
    return list(dict.fromkeys(names))


def _save(
    job: TrainingJob, saver: checkpoint.Saver, state: dict[str, Any], callbacks: loop.Callbacks
) -> None:
    """Write the record of trained images, then a checkpoint, on rank 0.

    The record comes first: if the run is killed in between, the record has too many images rather
    than too few.

    Args:
        job: Run that trains.
        saver: Saver of the checkpoint.
        state: Content of the checkpoint.
        callbacks: Receive a warning if the record cannot be written.

    Raises:
        UserError: The run's folder was moved or removed, or too many saves have failed.
    """
    job.run.check_not_moved()
    try:
        job.trained_on.write()
    except OSError as error:  # for example a full disk; the next checkpoint tries again
        callbacks.warn(f"{TRAINED_ON} could not be written: {error.strerror}")
    saver.save(state["step"], state)


def _stop(job: TrainingJob, where: str, saved: int) -> None:
    """Print what was saved, and exit after a signal.

    Args:
        job: Run that stops.
        where: When and why the run stopped, in words.
        saved: Step of the newest checkpoint, 0 if there is none.

    Raises:
        SystemExit: With NOT_SAVED if the last steps were not saved, else with STOPPED.
    """
    has_lost_steps = saved < job.state.step
    if has_lost_steps and saved:
        outcome = f"saved only up to step {saved:,}. The same command resumes the run."
    elif has_lost_steps:
        outcome = "not saved. The same command restarts the run."
    elif saved:
        outcome = "saved. The same command resumes the run."
    else:
        outcome = "nothing to save yet. The same command restarts the run."
    job.accelerator.print(f"stopped     {where}, {outcome}")
    raise SystemExit(preemption.NOT_SAVED if has_lost_steps else preemption.STOPPED)


def _record_first_features(job: TrainingJob, callbacks: loop.Callbacks) -> None:
    """Write a row with the collapse measures of the initial weights, for later comparison.

    Args:
        job: Run that begins.
        callbacks: Receive the row.
    """
    if job.collapse is None or job.state.step:
        return
    settings = loop_settings(job.recipe)
    # Pass an empty row, because step 0 has no other metrics
    metrics = loop.evaluate(job.collapse, job.state, {}, settings, callbacks)
    # A run that was stopped before its first checkpoint already has the row
    has_row = any(row["step"] == 0 for row in job.run.rows())
    if not has_row:
        callbacks.notify(methodcaller("on_row", {"step": 0} | metrics))


def _evaluators(job: TrainingJob) -> list[Scheduled]:
    """Return the evaluators of the run, with the steps between two calls."""
    recipe = job.recipe
    evaluators = [Scheduled(job.held_out, recipe.eval.every)]
    if job.online:
        evaluators.append(Scheduled(job.online, job.online.every))
    if job.collapse and recipe.eval.collapse:
        evaluators.append(Scheduled(job.collapse, recipe.eval.collapse))
    if recipe.hub.repo and recipe.hub.every:
        milestones = background.Milestones(
            job.pusher, lambda folder, objective: finish.export(job, objective, folder)
        )
        evaluators.append(Scheduled(milestones, recipe.hub.every))
    return evaluators


def _nonfinite_policy(job: TrainingJob, callbacks: loop.Callbacks) -> nonfinite.NonFinitePolicy:
    recipe = job.recipe
    loss_name = "the loss"
    if recipe.plugin:
        loss_name = f"the loss of {describe_plugin_class(job.objective)}"

    def samples_of(step: int) -> list[int]:
        return loaders.step_indices(step, job.images, recipe.optim.batch, recipe.seed).tolist()

    return nonfinite.NonFinitePolicy(
        recipe.optim.nonfinite,
        job.run.folder / "not_finite.json",
        samples_of,
        callbacks.warn,
        job.accelerator.is_main_process,
        loss_name,
    )


class _PageWriter(Callback):
    """Callback that updates the run's page after evaluations, at least PAGE_INTERVAL s apart."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.written_at = time.monotonic()

    def on_row(self, row: Row) -> None:
        now = time.monotonic()
        if "validation/loss" in row and now - self.written_at >= PAGE_INTERVAL:
            self.written_at = now
            from ..pages import run_page  # half a second of imports that short runs do not need

            run_page.write(self.folder, running=True)


def _callbacks(job: TrainingJob) -> list[Callback]:
    """Return the callbacks of rank 0: metrics, trackers, progress, page and upload."""
    callbacks: list[Callback] = [MetricsLog(job.run)]
    if job.trackers:
        callbacks.append(job.trackers)
    steps, online = job.recipe.optim.steps, job.online
    probed = partial(online.measurements, held_out_split(job.recipe)) if online else None
    callbacks.append(console.progress(job.state.step, steps, job.held_out.images, probed))
    if not is_task(job.run.folder):
        callbacks.append(_PageWriter(job.run.folder))
    if job.pusher:
        callbacks.append(job.pusher)
    return callbacks
