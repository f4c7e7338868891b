"""One training job: from a checked recipe to a finished run folder. The tools call it; it puts the other modules together."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from . import (
    checkpoint,
    compute,
    console,
    encoder,
    engine,
    figures,
    inits,
    machine,
    objectives,
    optim,
    sharding,
    stopping,
    summary,
    trouble,
    weights,
)
from .data import batches, sources
from .encoder import Encoder
from .engine import Listener, State, Watch
from .evaluate import classify
from .evaluate.frozen import WhileTraining
from .evaluate.heldout import HeldOut
from .objectives import Objective
from .recipe import Recipe, UserError
from .runs import Run, environment, recipe_hash
from .tracking import Notes, Record, TensorBoard
from .words import advise_model

OPTIMISERS = {"adamw": "AdamW", "sgd": "SGD with momentum"}
BASELINE_PICTURES = 2048  # training pictures whose colours are counted


@dataclass
class Job:
    """The parts of a run, put together."""

    run: Run
    accelerator: Accelerator
    spread: batches.Spread
    splits: sources.Splits
    state: State
    held_out: HeldOut
    probes: WhileTraining | None
    workers: int

    @property
    def objective(self) -> Objective:
        return self.state.objective

    @property
    def recipe(self) -> Recipe:
        return self.run.recipe


def train(run: Run) -> dict[str, Any]:
    """Train what the run's recipe says, from its last checkpoint if there is one, and finish its folder; the result.

    Raises:
        UserError: the pictures, the folder or the machine do not suit the recipe.
        SystemExit: with status stopping.STOPPED; a signal came, and the run was saved.
    """
    with stopping.Asked() as asked, machine.started(run) as accelerator, ExitStack() as held:
        splits = machine.load(run.recipe, accelerator, test=run.recipe.eval.test)
        machine.on_main(accelerator, lambda: held.enter_context(run.lock()))
        job = assemble(run, accelerator, splits)
        resume(job)
        _baselines(job)
        introduce(job)
        agreed = stopping.Agreement(asked, accelerator.process_index, accelerator.num_processes)
        while not _fitted(job, agreed):
            pass
        return finish(job)


def assemble(run: Run, accelerator: Accelerator, splits: sources.Splits) -> Job:
    """Open the folder, build the model with the seed's first weights, and hand it to Accelerate."""
    recipe = run.recipe
    processes, rank = accelerator.num_processes, accelerator.process_index
    spread = batches.spread(recipe.optim.batch, recipe.compute.batch, machine.fits(recipe, accelerator), rank, processes)
    said = machine.facts(recipe, accelerator, spread, splits)
    classes = sources.classes(splits, recipe)
    torch.manual_seed(recipe.seed)
    net = encoder.build_any(recipe.model, recipe.data, recipe.optim.dropout, recipe.optim.drop_path)
    said |= weights.first(net, recipe.init)
    if recipe.plugin:
        said["plugin"] = {"text": sha256(Path(recipe.plugin).read_bytes()).hexdigest()[:16]}
    machine.on_main(accelerator, lambda: run.open(environment(said)))
    objective = objectives.build(recipe, net, classes).to(accelerator.device)
    average = optim.averaged(objective, recipe.optim.average)
    optimizer, schedule = optim.build(objective, recipe.optim)
    learner = sharding.learner(objective, optimizer, recipe, spread, accelerator)
    held_out = HeldOut(batches.held_out(splits.validation, recipe.data, spread, recipe.eval.pictures), accelerator)
    _check_held_out(held_out, recipe)
    state = State(objective, learner, schedule, average)
    probes = WhileTraining(splits, held_out.batches, recipe, spread, accelerator) if recipe.probe.every else None
    return Job(run, accelerator, spread, splits, state, held_out, probes, machine.workers(recipe, accelerator))


def _check_held_out(held_out: HeldOut, recipe: Recipe) -> None:
    """That not too many of the held-out pictures are unreadable."""
    if unread := [text for batch in held_out.batches for text in batch.unread]:
        seen = sum(len(batch.key) for batch in held_out.batches)
        batches.check_unread(len(unread), seen, recipe.data, unread[-1])


def resume(job: Job, most: int | None = None) -> None:
    """Go back to the newest sound checkpoint (of step `most` or before), and cut the metrics back to its step; a damaged one is
    named and passed over.

    Raises:
        UserError: all are damaged.
    """
    job.accelerator.wait_for_everyone()
    known = [path for path in checkpoint.found(job.run.checkpoints) if most is None or checkpoint.step(path) <= most]
    for path in reversed(known):
        if checkpoint.sound(path):
            job.state.load(checkpoint.load(path), job.accelerator)
            break
        job.accelerator.print(f"warning: {path} is damaged; using the one before it")
    if known and job.state.step == 0:
        raise UserError(
            f"name={job.recipe.name}: every checkpoint in {job.run.checkpoints} is damaged; remove them to begin again"
        )
    if job.accelerator.is_main_process:
        job.run.cut_back(job.state.step)
        job.run.note(f"started at step {job.state.step} on {job.spread.processes} processes, process {os.getpid()}")


def _baselines(job: Job) -> None:
    """Let the objective see a few training pictures, unless a checkpoint tells what it saw; measure what it must beat."""
    if job.state.step == 0:
        first = batches.first(job.splits.train, job.recipe.data, job.recipe.seed, BASELINE_PICTURES)
        job.objective.fit_baselines(engine.to_device(b, job.accelerator.device) for b in first)
    with torch.no_grad():
        job.held_out.measure_baselines(job.objective)


def introduce(job: Job) -> None:
    """The calm start: what, on which data, how large, how long here, where."""
    spread, left = job.spread, job.recipe.optim.steps - job.state.step
    one = job.held_out.batches[0]
    batch = one.map(lambda x: x[:1].repeat(spread.device_batch, *[1] * (x.ndim - 1)))
    pace = engine.seconds_per_step(job.state, batch, job.recipe, spread, job.accelerator)
    if not job.accelerator.is_main_process:
        return
    if job.recipe.data.hub and not job.recipe.data.path and not job.recipe.data.verified:
        print(f"warning: data.hub={job.recipe.data.hub}: that this is its name on the Hub could not be checked", flush=True)
    if job.recipe.data.validation == 0:
        print("warning: data.validation=0: what is called held out below are pictures that are trained on", flush=True)
    console.table([*_what(job), *_how(job), ("time", f"about {summary.duration(pace * left)} here ({pace:.3g} s a step)")])
    net = job.objective.encoder
    if isinstance(net, Encoder) and net.patches < 16:
        few = f"warning: {net.patches} patches a picture are few to learn from"
        print(f"{few}; {advise_model(job.recipe)}", flush=True)


def _what(job: Job) -> Iterator[tuple[str, str]]:
    recipe, net, splits = job.recipe, job.objective.encoder, job.splits
    going_on = f", going on after step {job.state.step:,}" if job.state.step else ""
    yield "run", f"{job.run.folder}{going_on}"
    yield "objective", job.objective.describe()
    held_out = min(recipe.eval.pictures, len(splits.validation))
    yield "data", f"{recipe.data.name}: {len(splits.train):,} pictures at {recipe.data.size} px, {held_out:,} held out"
    # ZeRO 3 leaves placeholders that are empty
    size = f"{sum(getattr(p, 'ds_numel', p.numel()) for p in net.parameters()) / 1e6:.2f}M parameters"
    work = f"{compute.multiply_adds(recipe) / 1e9:.3g}G multiply-adds a picture"
    patches = f"{net.patches} patches of {net.patch_size} px" if isinstance(net, Encoder) else "no patches"
    yield "model", f"{recipe.model.name}: {size}, {patches}, {work}"
    if recipe.init != inits.SCRATCH:
        yield "from", recipe.init


def _how(job: Job) -> Iterator[tuple[str, str]]:
    recipe, spread, o = job.recipe, job.spread, job.recipe.optim
    images = o.steps * o.batch
    yield "optimiser", f"{OPTIMISERS[o.name]}, learning rate {o.lr:g}, {o.warmup:,} warm-up steps, then {o.schedule}"
    yield "batch", f"{o.batch} = {spread.device_batch} a pass x {spread.processes} processes x {spread.accumulation} passes"
    epochs, work = images / len(job.splits.train), compute.exaflop(recipe, images)
    yield "length", f"{o.steps:,} steps, {images:,} pictures, {epochs:.1f} epochs, {work:.2g} exaFLOP"
    device, threads = job.accelerator.device.type, torch.get_num_threads()
    yield "machine", f"{device}, {threads} threads, {recipe.compute.precision}, {job.workers} data workers"
    if to_beat := summary.to_beat({name: value for name, (value, _) in job.held_out.baselines.items()}):
        yield "to beat", to_beat


def _fitted(job: Job, agreed: stopping.Agreement) -> bool:
    """Train to the end; False where the run went back to a checkpoint, to go on from there.

    Raises:
        SystemExit: with stopping.STOPPED, after a signal.
    """
    try:
        _fit(job, agreed)
    except trouble.GoBack as back:
        trouble.go_back(job.state, back, lambda most: resume(job, most))
        return False
    if job.state.step < job.recipe.optim.steps:
        text = f"stopped     at step {job.state.step:,} by {agreed.said}, saved; the same command goes on"
        job.accelerator.print(text)
        raise SystemExit(stopping.STOPPED)
    return True


def _fit(job: Job, agreed: stopping.Agreement) -> None:
    """Hand the job to the engine, with what watches it and what it tells."""
    recipe, run, state, accelerator = job.recipe, job.run, job.state, job.accelerator
    length, seed = range(state.step, recipe.optim.steps), trouble.stream_seed(recipe.seed, state.detour)
    loader = batches.training(
        job.splits.train, recipe.data, job.spread, seed, length.start, length.stop, job.workers if length else 0
    )
    listeners = _listeners(job) if job.accelerator.is_main_process else [Notes(run)]
    audience = engine.Audience(listeners)
    for name in (text for batch in job.held_out.batches for text in batch.unread):
        audience.warn(f"a held-out picture was replaced by the next: {name}")
    saver = checkpoint.Saver(run.checkpoints, recipe.checkpoint, run.note, audience.warn)
    saved = state.step

    def save() -> None:
        nonlocal saved
        if state.step != saved:
            saved, whole = state.step, state.save(accelerator)
            machine.on_main(accelerator, lambda: saver.save(saved, whole))

    watches = [Watch(job.held_out, recipe.eval.every)]
    if job.probes and recipe.probe.every:
        watches.append(Watch(job.probes, recipe.probe.every))
    policy = trouble.Policy(run, len(job.splits.train), seed, audience.warn, accelerator.is_main_process)
    try:
        engine.train(state, loader, recipe, job.spread, accelerator, watches, audience, save, agreed, policy)
        machine.on_main(accelerator, saver.wait)
    finally:
        saver.close()
        audience.close()


def _listeners(job: Job) -> list[Listener]:
    board = [TensorBoard(job.run.tensorboard, job.run.rows())] if job.recipe.log.tensorboard else []
    return [Record(job.run), *board, console.progress(job.state.step, job.recipe.optim.steps)]


def finish(job: Job) -> dict[str, Any]:
    """The export, the picture, result.json, and what to type next."""
    with job.state.watched() as trained:
        if not job.held_out.latest:  # resumed after the last step
            with torch.no_grad(), engine.autocast(job.recipe, job.accelerator):
                dict(job.held_out(job.state.step, {}, trained.eval()))
        told = _test(job, trained.eval())
        return _concluded(job, trained, told) if job.accelerator.is_main_process else {}


def _concluded(job: Job, trained: Objective, told: dict[str, tuple[float, int]]) -> dict[str, Any]:
    run, recipe = job.run, job.recipe
    heads = {name: value for name, value in trained.state_dict().items() if "encoder." not in name}
    linear = recipe.objective == "supervised" and not recipe.supervised.hidden and not recipe.model.convolutional
    classes = _class_names(job.splits, len(heads["head.bias"])) if linear else []
    weights.export(run.export, trained.encoder, heads, recipe.model, recipe.data, trained.pool, classes)
    _draw(job, trained)
    result = _result(job, told)
    run.finish(result)
    run.note("finished")
    return result


def _test(job: Job, trained: Objective) -> dict[str, tuple[float, int]]:
    """{name: (value, n)} on every picture of the test split, if it is asked for; predictions.npz tells who was right where."""
    source, recipe = job.splits.test, job.recipe
    if source is None:
        return {}
    loader = batches.every(source, recipe.data, job.spread, job.workers)
    with engine.autocast(recipe, job.accelerator):
        told = classify.predict(trained, loader, job.accelerator)
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
    images, seconds, before = (
        job.state.step * job.recipe.optim.batch,
        job.state.seconds,
        inits.spent(inits.find(job.recipe.init)),
    )
    took = {"exaflop": compute.exaflop(job.recipe, images), "device_hours": seconds * job.spread.processes / 3600}
    watched = "train" if job.recipe.data.validation == 0 else "validation"
    probed = {f"probe_{name}": pair for name, pair in job.probes.latest.items()} if job.probes else {}
    measured = {watched: job.held_out.latest | probed, "test": told}
    return {
        "steps": job.state.step,
        "images": images,
        **took,
        **{f"total_{name}": value + before[name] for name, value in took.items()},
        "seconds": seconds,
        "metrics": {
            name: {"value": value, "n": n, "split": split}
            for split, values in measured.items()
            for name, (value, n) in values.items()
        },
        "recipe": recipe_hash(job.recipe),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }
