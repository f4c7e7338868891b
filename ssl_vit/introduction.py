"""What a run says before it trains: what it does, on which pictures, how large, how long here, and what it must beat."""

from collections.abc import Iterator

import torch

from . import (
    compute,
    console,
    engine,
    inits,
    summary,
)
from .assembly import Job
from .data import loaders
from .encoder import Encoder
from .processes import machine
from .words import advise_model

OPTIMISERS = {"adamw": "AdamW", "sgd": "SGD with momentum"}


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
    for text in job.splits.guesses:
        print(f"warning: {text}", flush=True)
    if note := machine.on_a_mac():
        print(f"warning: {note}", flush=True)
    console.table([*_what(job), *_how(job), ("time", f"about {summary.duration(pace * left)} here ({pace:.3g} s a step)")])
    if limit := loaders.bounded(job.workers, loaders.batch_bytes(job.recipe.data, job.spread)).limit:
        job.run.note(f"warning: {limit}")
        print(f"warning: {limit}", flush=True)
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
    many = f"{len(splits.train):,} pictures" if not splits.stream else f"a stream of {splits.stream.shards:,} shards"
    yield "data", f"{recipe.data.name}: {many} at {recipe.data.size} px, {held_out:,} held out"
    yield from console.listed("images", splits.told)
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
    epochs = "" if job.splits.stream else f" {images / len(job.splits.train):.1f} epochs,"
    work = compute.exaflop(recipe, images)
    yield "length", f"{o.steps:,} steps, {images:,} pictures,{epochs} {work:.2g} exaFLOP"
    device, threads = job.accelerator.device.type, torch.get_num_threads()
    yield "machine", f"{device}, {threads} threads, {recipe.compute.precision}, {job.workers} data workers"
    if to_beat := summary.to_beat({name: value for name, (value, _) in job.held_out.baselines.items()}):
        yield "to beat", to_beat
