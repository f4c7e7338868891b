"""One training job: from a checked recipe to a finished run folder. The tools call it."""

from contextlib import ExitStack
from typing import Any

import torch

from . import checkpoint, console, ending, engine, identity, trouble
from .assembly import Job, assemble, resume
from .data import loaders
from .engine import Listener, Watch
from .hub import background
from .introduction import introduce
from .processes import machine, stopping
from .processes.liveness import Life
from .runs import Run, recipe_hash
from .tracking import Notes, Record, TensorBoard

BASELINE_PICTURES = 2048  # training pictures whose colours are counted


def train(run: Run, asked: stopping.Asked | None = None) -> dict[str, Any]:
    """Train what the run's recipe says, from its last checkpoint if there is one, and finish its folder; the result. `asked`
    takes the signals already, where the caller has it.

    Raises:
        UserError: the pictures, the folder or the machine do not suit the recipe.
        SystemExit: with status stopping.STOPPED; a signal came, and the run was saved.
    """
    with ExitStack() as held:
        asked = asked or held.enter_context(stopping.Asked())
        accelerator = held.enter_context(machine.started(run))
        rank, processes = accelerator.process_index, accelerator.num_processes
        life = held.enter_context(Life(rank, processes, run.recipe.compute.patience))
        held.enter_context(loaders.workers_named())
        splits = machine.load(run.recipe, accelerator, test=run.recipe.eval.test)
        machine.on_main(accelerator, lambda: held.enter_context(run.lock(asked.take)))
        if done := machine.from_main(accelerator, lambda: identity.finished(run)):  # while this one waited
            return done
        accelerator.mark, accelerator.reading = life.mark, life.reading
        job = assemble(run, accelerator, splits)
        if processes > 1:
            job.state.learner.tell(life.mark)
        resume(job)
        _baselines(job)
        introduce(job)
        agreed = stopping.Agreement(asked, rank, processes)
        while not _fitted(job, agreed, life):
            pass
        result = ending.finish(job)
        accelerator.wait_for_everyone()  # while they are watched
        return result


def _baselines(job: Job) -> None:
    """Let the objective see a few training pictures, unless a checkpoint tells what it saw; measure what it must beat."""
    if job.state.step == 0:
        first = loaders.first(job.splits.train, job.recipe.data, job.recipe.seed, BASELINE_PICTURES)
        job.objective.fit_baselines(engine.to_device(b, job.accelerator.device) for b in first)
    with torch.no_grad():
        job.held_out.measure_baselines(job.objective)


def _fitted(job: Job, agreed: stopping.Agreement, life: Life) -> bool:
    """Train to the end; False where the run went back to a checkpoint, to go on from there.

    Raises:
        SystemExit: with stopping.STOPPED, after a signal.
    """
    try:
        saved = _fit(job, agreed, life)
    except trouble.GoBack as back:
        trouble.go_back(job.state, back, lambda most: resume(job, most))
        return False
    if job.state.step < job.recipe.optim.steps:
        _leave(job, f"at step {job.state.step:,} by {agreed.said}", saved)
    return True


def _leave(job: Job, where: str, saved: int) -> None:
    """After a signal. `saved`: the step of the newest checkpoint, 0 for none.

    Raises:
        SystemExit: with stopping.STOPPED; with stopping.NOT_SAVED where the last steps could not be saved.
    """
    lost = saved < job.state.step
    what = f"not saved, but step {saved:,}" if lost else "saved"
    job.accelerator.print(f"stopped     {where}, {what}; the same command goes on")
    raise SystemExit(stopping.NOT_SAVED if lost else stopping.STOPPED)


def _fit(job: Job, agreed: stopping.Agreement, life: Life) -> int:
    """Hand the job to the engine, with what watches it and what it tells; the step of the newest checkpoint, 0 for none."""
    recipe, run, state, accelerator = job.recipe, job.run, job.state, job.accelerator
    length, seed = range(state.step, recipe.optim.steps), trouble.stream_seed(recipe.seed, state.detour)
    loader = loaders.training(
        job.pictures, recipe.data, job.spread, seed, length.start, length.stop, job.workers if length else 0
    )
    listeners = _listeners(job) if job.accelerator.is_main_process else [Notes(run)]
    audience = engine.Audience([_Steps(life), *listeners])
    for name in (text for batch in job.held_out.batches for text in batch.unread):
        audience.warn(f"a held-out picture was replaced by the next: {name}")
    saver = checkpoint.Saver(run.checkpoints, recipe.checkpoint, run.note, audience.warn)
    first = saved = state.step

    def save() -> None:
        nonlocal saved
        if state.step != saved:
            saved, whole = state.step, state.save(accelerator) | {"recipe": recipe_hash(recipe)}
            machine.on_main(accelerator, lambda: _saved(run, saver, saved, whole))

    watches = [Watch(job.held_out, recipe.eval.every)]
    if job.probes and recipe.probe.every:
        watches.append(Watch(job.probes, recipe.probe.every))
    if recipe.hub.repo and recipe.hub.every:
        milestones = background.Milestones(job.pusher, lambda folder, trained: ending.export(job, trained, folder))
        watches.append(Watch(milestones, recipe.hub.every))
    policy = trouble.Policy(run, job.pictures, seed, audience.warn, accelerator.is_main_process)
    try:
        with loaders.Patient(loader, agreed.alone) as brought:
            passes = life.marked(brought, state.step)
            engine.train(state, passes, recipe, job.spread, accelerator, watches, audience, save, agreed, policy)
        machine.on_main(accelerator, lambda: _settled(run, saver))
        return machine.from_main(accelerator, lambda: first if saver.kept is None else saver.kept)
    finally:
        saver.close()
        audience.close()


def _saved(run: Run, saver: checkpoint.Saver, step: int, whole: dict[str, Any]) -> None:
    """Save a step's state, where the run's folder was moved to if it was.

    Raises:
        UserError: it was moved or removed, or too many saves have failed.
    """
    run.follow()
    saver.root = run.checkpoints
    saver.save(step, whole)
    if run.moved:
        saver.wait()
    run.check_place()


def _settled(run: Run, saver: checkpoint.Saver) -> None:
    """Let the last save end, in the run's own folder.

    Raises:
        UserError: as `_saved`.
    """
    saver.wait()
    run.check_place()


class _Steps(Listener):
    """Tells the watch over the processes of each step."""

    def __init__(self, life: Life) -> None:
        self.life = life

    def on_step(self, step: int) -> None:
        self.life.stepped(step)


def _listeners(job: Job) -> list[Listener]:
    board = [TensorBoard(job.run.tensorboard, job.run.rows())] if job.recipe.log.tensorboard else []
    pusher = [job.pusher] if job.pusher else []
    return [Record(job.run), *board, console.progress(job.state.step, job.recipe.optim.steps), *pusher]
