"""The parts of one training run, put together from its recipe; and where it goes on from."""

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from . import checkpoint, encoder, inits, objectives, optim, summary, weights
from .data import batches, loaders, sources
from .data.parts import Source
from .evaluate.frozen import WhileTraining
from .evaluate.heldout import HeldOut
from .hub import background
from .objectives import Objective
from .processes import machine, sharding
from .recipe import Recipe, UserError, flatten
from .runs import Run, environment, recipe_hash
from .state import State


@dataclass
class Job:
    """The parts of a run, put together."""

    run: Run
    accelerator: machine.Together
    spread: batches.Spread
    splits: sources.Splits
    state: State
    held_out: HeldOut
    probes: WhileTraining | None
    workers: int
    sharding: dict[str, Any]  # how the weights lie on the processes
    pusher: background.Pusher | None = None

    @property
    def objective(self) -> Objective:
        return self.state.objective

    @property
    def pictures(self) -> Source | loaders.Reading:
        """What is trained on."""
        return self.state.reading or self.splits.train

    @property
    def recipe(self) -> Recipe:
        return self.run.recipe


def assemble(run: Run, accelerator: machine.Together, splits: sources.Splits) -> Job:
    """Open the folder, build the model with the seed's first weights, and hand it to Accelerate."""
    recipe = run.recipe
    processes, rank = accelerator.num_processes, accelerator.process_index
    spread = batches.spread(recipe.optim.batch, recipe.compute.batch, machine.fits(recipe, accelerator), rank, processes)
    said = machine.facts(recipe, accelerator, spread, splits)
    machine.check_same(accelerator, _shared(recipe) | {f"pictures of {name}": text for name, text in said["data"].items()})
    classes = sources.classes(splits, recipe)
    torch.manual_seed(recipe.seed)
    net = encoder.build_any(recipe.model, recipe.data, recipe.optim.dropout, recipe.optim.drop_path)
    said |= _first(net, run)
    machine.on_main(accelerator, lambda: run.open(environment(said)))
    objective = objectives.build(recipe, net, classes).to(accelerator.device)
    average = optim.averaged(objective, recipe.optim.average)
    optimizer, schedule = optim.build(objective, recipe.optim)
    setup = machine.sharding_facts(accelerator)
    learner = sharding.learner(objective, optimizer, recipe, spread, accelerator)
    said["sharding"] = sharded = setup | learner.facts()
    machine.on_main(accelerator, lambda: run.open(environment(said)))
    held_out = HeldOut(loaders.held_out(splits.validation, recipe.data, spread, recipe.eval.pictures), accelerator)
    _check_held_out(held_out, recipe)
    reading = loaders.Reading(splits.stream, recipe.data, spread) if splits.stream else None
    state = State(objective, learner, schedule, average, reading)
    probes = WhileTraining(splits, held_out.batches, recipe, spread, accelerator) if recipe.probe.every else None
    pusher = background.Pusher(run) if recipe.hub.repo and accelerator.is_main_process else None
    workers = machine.workers(recipe, accelerator)
    return Job(run, accelerator, spread, splits, state, held_out, probes, workers, sharded, pusher)


def _first(net: encoder.Backbone, run: Run) -> dict[str, Any]:
    """Load the first weights; what environment.json says of them. A run with a checkpoint needs them no more and goes on
    wherever they are: that they are the same is checked where they are here."""
    if not checkpoint.found(run.checkpoints):
        return weights.first(net, run.recipe.init)
    said, file = run.begun(), inits.stamp(run.recipe.init)
    return said | ({"init": said.get("init", {}) | {"file": file}} if file else {})


def _shared(recipe: Recipe) -> dict[str, Any]:
    """What of a recipe all processes must have alike; where things lie may differ from machine to machine."""
    own = ("out", "init", "data.path", "data.name", "plugin", "compute.threads", "compute.workers", "hub.")
    return {key: value for key, value in flatten(asdict(recipe)).items() if not key.startswith(own)}


def _check_held_out(held_out: HeldOut, recipe: Recipe) -> None:
    """That not too many of the held-out pictures are unreadable."""
    if unread := [text for batch in held_out.batches for text in batch.unread]:
        seen = sum(len(batch.key) for batch in held_out.batches)
        batches.check_unread(len(unread), seen, recipe.data, unread[-1])


def _newest(job: Job, most: int | None) -> str | None:
    """The name of the newest checkpoint that is not damaged; one that is is named and passed over."""
    known = [path for path in checkpoint.found(job.run.checkpoints) if most is None or checkpoint.step(path) <= most]
    for path in reversed(known):
        if checkpoint.sound(path):
            return path.name
        print(f"warning: {path} is damaged; using the one before it", flush=True)
    if known:
        text = f"every checkpoint in {job.run.checkpoints} is damaged; remove them to begin again"
        raise UserError(f"name={job.recipe.name}: {text}")
    return None


def _restore(job: Job, path: Path) -> None:
    """Load a checkpoint whose file is whole, whatever is in it.

    Raises:
        UserError: it is another run's, or no training state of this model.
    """
    said = f"name={job.recipe.name}: {path}"
    try:
        saved = checkpoint.load(path)
        if saved.get("recipe", recipe_hash(job.recipe)) != recipe_hash(job.recipe) or saved["step"] != checkpoint.step(path):
            raise UserError(f"{said} is another run's, or another step's; remove it")
        job.state.load(saved, job.accelerator)
    except UserError:
        raise
    except Exception as error:  # torch, pickle and each part of the state have errors of their own for what is not theirs
        text = " ".join(str(error).split())[:200]
        raise UserError(f"{said} holds no training state of this run ({type(error).__name__}: {text}); remove it") from None


def resume(job: Job, most: int | None = None) -> None:
    """Go back to the newest sound checkpoint (of step `most` or before), which the first process chooses, and cut the metrics
    back to its step.

    Raises:
        UserError: all are damaged; it is another run's; or not every process sees it.
    """
    name = machine.from_main(job.accelerator, lambda: _newest(job, most))
    if name is not None:
        path = job.run.checkpoints / name
        machine.check_same(job.accelerator, {f"out= has {name}": path.exists()})
        _restore(job, path)
    if job.accelerator.is_main_process:
        job.run.cut_back(job.state.step)
        how = f"{job.spread.processes} processes, {summary.sharded(job.sharding)}"
        job.run.note(f"started at step {job.state.step} on {how}, process {os.getpid()}")
