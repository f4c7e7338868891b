"""One training job: from a checked recipe to a finished run folder. The tools call it."""

from contextlib import ExitStack
from typing import Any

import torch

from ..callbacks import Callback
from ..data import loaders
from ..data.workers import InterruptibleLoader, report_lost_workers
from ..hub import background
from ..runs import console
from ..runs.folder import Run
from ..runs.identity import recipe_hash
from ..runs.trackers import MetricsLog, TensorBoard, WarningLog
from ..training import checkpoint, distributed, loop, nonfinite, preemption
from ..training.heartbeat import Watchdog
from ..training.loop import Scheduled
from . import finish, resources, reuse
from .banner import print_banner
from .setup import Job, loop_settings, resume, set_up

BASELINE_IMAGES = 2048  # training images whose colours are counted


def train(run: Run, signals: preemption.SignalHandler | None = None) -> dict[str, Any]:
    """Train what the run's recipe says, from its last checkpoint if there is one, and finish its
    folder; the result. `signals` takes the signals already, where the caller has it.

    Raises:
        UserError: the images, the folder or the machine do not suit the recipe.
        SystemExit: with status stopping.STOPPED; a signal came, and the run was saved.
    """
    with ExitStack() as held:
        signals = signals or held.enter_context(preemption.SignalHandler())
        accelerator = held.enter_context(resources.run_session(run))
        rank, processes = accelerator.process_index, accelerator.num_processes
        watchdog = held.enter_context(Watchdog(rank, processes, run.recipe.compute.patience))
        held.enter_context(report_lost_workers())
        splits = resources.load_splits(run.recipe, accelerator, test=run.recipe.eval.test)
        distributed.on_main(accelerator, lambda: held.enter_context(run.lock(signals.request_stop)))
        # while this one waited
        if done := distributed.broadcast_from_main(accelerator, lambda: reuse.finished(run)):
            return done
        accelerator.tick, accelerator.watch_loader = watchdog.tick, watchdog.watch_loader
        job = set_up(run, accelerator, splits)
        if processes > 1:
            job.state.strategy.watch_progress(watchdog.tick)
        resume(job)
        _baselines(job)
        print_banner(job)
        consensus = preemption.StopConsensus(signals, rank, processes)
        while not _fitted(job, consensus, watchdog):
            pass
        result = finish.finish(job)
        accelerator.wait_for_everyone()  # while they are watched
        return result


def _baselines(job: Job) -> None:
    """Let the objective see a few training images, unless a checkpoint tells what it saw; measure
    what it must beat."""
    if job.state.step == 0:
        first = loaders.first_batches(
            job.splits.train, job.recipe.data, job.recipe.seed, BASELINE_IMAGES
        )
        job.objective.fit_baselines(loop.to_device(b, job.accelerator.device) for b in first)
    with torch.no_grad():
        job.held_out.measure_baselines(job.objective)


def _fitted(job: Job, consensus: preemption.StopConsensus, watchdog: Watchdog) -> bool:
    """Train to the end; False where the run went back to a checkpoint, to go on from there.

    Raises:
        SystemExit: with stopping.STOPPED, after a signal.
    """
    try:
        saved = _fit(job, consensus, watchdog)
    except nonfinite.Rollback as back:
        nonfinite.roll_back(job.state, back, lambda most: resume(job, most))
        return False
    if job.state.step < job.recipe.optim.steps:
        _leave(job, f"at step {job.state.step:,} by {consensus.reason}", saved)
    return True


def _leave(job: Job, where: str, saved: int) -> None:
    """After a signal. `saved`: the step of the newest checkpoint, 0 for none.

    Raises:
        SystemExit: with stopping.STOPPED; with stopping.NOT_SAVED where the last steps could not be
        saved.
    """
    lost = saved < job.state.step
    what = f"not saved, but step {saved:,}" if lost else "saved"
    job.accelerator.print(f"stopped     {where}, {what}; the same command goes on")
    raise SystemExit(preemption.NOT_SAVED if lost else preemption.STOPPED)


def _fit(job: Job, consensus: preemption.StopConsensus, watchdog: Watchdog) -> int:
    """Hand the job to the engine, with what watches it and what it tells; the step of the newest
    checkpoint, 0 for none."""
    recipe, run, state, accelerator = job.recipe, job.run, job.state, job.accelerator
    length, seed = (
        range(state.step, recipe.optim.steps),
        nonfinite.stream_seed(recipe.seed, state.rollbacks),
    )
    loader = loaders.training_loader(
        job.images,
        recipe.data,
        job.batch_layout,
        seed,
        length.start,
        length.stop,
        job.workers if length else 0,
    )
    others = _callbacks(job) if job.accelerator.is_main_process else [WarningLog(run)]
    callbacks = loop.Callbacks([_Steps(watchdog), *others])
    for name in (text for batch in job.held_out.batches for text in batch.unreadable):
        callbacks.warn(f"a held-out image was replaced by the next: {name}")
    saver = checkpoint.Saver(run.checkpoints, recipe.checkpoint, run.write_log, callbacks.warn)
    first = saved = state.step

    def save() -> None:
        nonlocal saved
        if state.step != saved:
            saved, whole = state.step, state.save(accelerator) | {"recipe": recipe_hash(recipe)}
            distributed.on_main(accelerator, lambda: _saved(run, saver, saved, whole))

    evaluators = [Scheduled(job.held_out, recipe.eval.every)]
    if job.probes and recipe.probe.every:
        evaluators.append(Scheduled(job.probes, recipe.probe.every))
    if recipe.hub.repo and recipe.hub.every:
        milestones = background.Milestones(
            job.pusher, lambda folder, trained: finish.export(job, trained, folder)
        )
        evaluators.append(Scheduled(milestones, recipe.hub.every))

    def samples_of(step: int) -> list[int]:
        indices = loaders.step_indices(step, job.images, recipe.data, recipe.optim.batch, seed)
        return indices.tolist()

    policy = nonfinite.NonFinitePolicy(
        recipe.optim.nonfinite,
        run.folder / "not_finite.json",
        samples_of,
        callbacks.warn,
        accelerator.is_main_process,
    )
    try:
        with InterruptibleLoader(loader, consensus.alone) as brought:
            passes = watchdog.track(brought, state.step)
            loop.train(
                state,
                passes,
                loop_settings(recipe),
                job.batch_layout,
                accelerator,
                evaluators,
                callbacks,
                save,
                consensus,
                policy,
            )
        distributed.on_main(accelerator, lambda: _settled(run, saver))
        return distributed.broadcast_from_main(
            accelerator, lambda: first if saver.kept is None else saver.kept
        )
    finally:
        saver.close()
        callbacks.close()


def _saved(run: Run, saver: checkpoint.Saver, step: int, whole: dict[str, Any]) -> None:
    """Save a step's state, where the run's folder was moved to if it was.

    Raises:
        UserError: it was moved or removed, or too many saves have failed.
    """
    run.follow_move()
    saver.root = run.checkpoints
    saver.save(step, whole)
    if run.moved:
        saver.wait()
    run.check_not_moved()


def _settled(run: Run, saver: checkpoint.Saver) -> None:
    """Let the last save end, in the run's own folder.

    Raises:
        UserError: as `_saved`.
    """
    saver.wait()
    run.check_not_moved()


class _Steps(Callback):
    """Tells the watch over the processes of each step."""

    def __init__(self, watchdog: Watchdog) -> None:
        self.watchdog = watchdog

    def on_step(self, step: int) -> None:
        self.watchdog.note_step(step)


def _callbacks(job: Job) -> list[Callback]:
    board = [TensorBoard(job.run.tensorboard, job.run.rows())] if job.recipe.log.tensorboard else []
    pusher = [job.pusher] if job.pusher else []
    return [
        MetricsLog(job.run),
        *board,
        console.progress(job.state.step, job.recipe.optim.steps),
        *pusher,
    ]
