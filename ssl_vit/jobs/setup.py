"""The parts of one training run, put together from its recipe; and where it goes on from."""

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from .. import formatting, objectives
from ..config.parsing import flatten
from ..config.schema import Recipe
from ..data import batching, loaders, sources
from ..data.base import Source
from ..errors import UserError
from ..evaluation.features import ProbesDuringTraining
from ..evaluation.held_out import HeldOutEvaluator
from ..hub import background
from ..models import encoder, weights
from ..objectives import Objective, ObjectiveSettings
from ..runs.environment import environment
from ..runs.folder import Run
from ..runs.identity import initial_weights, recipe_hash
from ..training import checkpoint, distributed, optim, sharding
from ..training.loop import LoopSettings
from ..training.state import State
from . import resources


@dataclass
class Job:
    """The parts of a run, put together."""

    run: Run
    accelerator: distributed.WatchedAccelerator
    batch_layout: batching.BatchLayout
    splits: sources.Splits
    state: State
    held_out: HeldOutEvaluator
    probes: ProbesDuringTraining | None
    workers: int
    sharding: dict[str, Any]  # how the weights lie on the processes
    pusher: background.Pusher | None = None

    @property
    def objective(self) -> Objective:
        return self.state.objective

    @property
    def images(self) -> Source | loaders.StreamReader:
        """What is trained on."""
        return self.state.stream or self.splits.train

    @property
    def recipe(self) -> Recipe:
        return self.run.recipe


def set_up(run: Run, accelerator: distributed.WatchedAccelerator, splits: sources.Splits) -> Job:
    """Open the folder, build the model with the seed's first weights, and hand it to Accelerate."""
    recipe = run.recipe
    processes, rank = accelerator.num_processes, accelerator.process_index
    batch_layout = batching.batch_layout(
        recipe.optim.batch,
        recipe.compute.batch,
        resources.max_device_batch(recipe, accelerator),
        rank,
        processes,
    )
    facts = resources.environment_facts(recipe, accelerator, batch_layout, splits)
    distributed.check_same(
        accelerator,
        _shared(recipe) | {f"images of {name}": text for name, text in facts["data"].items()},
    )
    classes = sources.num_classes(splits, recipe.data, recipe.objective)
    torch.manual_seed(recipe.seed)
    net = encoder.build_backbone(
        recipe.model, recipe.data, recipe.optim.dropout, recipe.optim.drop_path
    )
    facts |= _first(net, run)
    distributed.on_main(accelerator, lambda: run.open(environment(facts)))
    objective = objectives.build(objective_settings(recipe), net, classes).to(accelerator.device)
    average = optim.averaged(objective, recipe.optim.average)
    optimizer, schedule = optim.build(objective, recipe.optim)
    setup = distributed.sharding_facts(accelerator)
    compiles = recipe.compute.compile
    if compiles is None:
        compiles = accelerator.device.type == "cuda"
    strategy = sharding.build_strategy(
        objective,
        optimizer,
        recipe.optim,
        recipe.compute.precision,
        compiles,
        batch_layout,
        accelerator,
    )
    sharded = setup | strategy.facts()
    facts["sharding"] = sharded
    distributed.on_main(accelerator, lambda: run.open(environment(facts)))
    held_out = HeldOutEvaluator(
        loaders.held_out_batches(splits.validation, recipe.data, batch_layout, recipe.eval.images),
        accelerator,
    )
    _check_held_out(held_out, recipe)
    reading = (
        loaders.StreamReader(splits.stream, recipe.data, batch_layout) if splits.stream else None
    )
    state = State(objective, strategy, schedule, average, reading)
    probes = None
    if recipe.probe.every:
        probes = ProbesDuringTraining(
            loaders.held_out_batches(splits.train, recipe.data, batch_layout, recipe.probe.images),
            held_out.batches,
            recipe.probe,
            sources.count_classes(splits, recipe.data, recipe.objective),
            accelerator,
        )
    pusher = background.Pusher(run) if recipe.hub.repo and accelerator.is_main_process else None
    workers = resources.workers(recipe, accelerator)
    return Job(
        run, accelerator, batch_layout, splits, state, held_out, probes, workers, sharded, pusher
    )


def objective_settings(recipe: Recipe) -> ObjectiveSettings:
    """The values of a recipe from which an objective is built."""
    return ObjectiveSettings(
        objective=recipe.objective,
        target=recipe.target,
        corruption=recipe.corruption,
        supervised=recipe.supervised,
        joint=recipe.joint,
        mean=recipe.data.mean,
        std=recipe.data.std,
    )


def loop_settings(recipe: Recipe) -> LoopSettings:
    """The values that the training loop needs."""
    return LoopSettings(
        steps=recipe.optim.steps,
        batch=recipe.optim.batch,
        log_every=recipe.log.every,
        checkpoint_every=recipe.checkpoint.every,
        seed=recipe.seed,
        precision=recipe.compute.precision,
        data=recipe.data,
    )


def _first(net: encoder.Backbone, run: Run) -> dict[str, Any]:
    """Load the first weights; what environment.json says of them. A run with a checkpoint needs
    them no more and goes on wherever they are: that they are the same is checked where they are
    here."""
    if not checkpoint.list_checkpoints(run.checkpoints):
        return weights.load_init(net, run.recipe.init_source)
    facts = initial_weights(run.folder)
    file_hash = run.recipe.init_source.weights_hash()
    if file_hash:
        facts["init"] = facts.get("init", {}) | {"file": file_hash}
    return facts


def _shared(recipe: Recipe) -> dict[str, Any]:
    """What of a recipe all processes must have alike; where things lie may differ from machine to
    machine."""
    own = (
        "out",
        "init",
        "data.path",
        "data.name",
        "plugin",
        "compute.threads",
        "compute.workers",
        "hub.",
    )
    return {key: value for key, value in flatten(asdict(recipe)).items() if not key.startswith(own)}


def _check_held_out(held_out: HeldOutEvaluator, recipe: Recipe) -> None:
    """That not too many of the held-out images are unreadable."""
    if unreadable := [text for batch in held_out.batches for text in batch.unreadable]:
        seen = sum(len(batch.key) for batch in held_out.batches)
        batching.check_unreadable(len(unreadable), seen, recipe.data, unreadable[-1])


def _newest(job: Job, most: int | None) -> str | None:
    """The name of the newest checkpoint that is not damaged; one that is is named and passed
    over."""
    known = [
        path
        for path in checkpoint.list_checkpoints(job.run.checkpoints)
        if most is None or checkpoint.step_of(path) <= most
    ]
    for path in reversed(known):
        if checkpoint.is_intact(path):
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
    prefix = f"name={job.recipe.name}: {path}"
    try:
        saved = checkpoint.load(path)
        if saved.get("recipe", recipe_hash(job.recipe)) != recipe_hash(job.recipe) or saved[
            "step"
        ] != checkpoint.step_of(path):
            raise UserError(f"{prefix} is another run's, or another step's; remove it")
        job.state.load(saved, job.accelerator)
    except UserError:
        raise
    # torch, pickle and each part of the state have errors of their own for what is not theirs
    except Exception as error:
        text = " ".join(str(error).split())[:200]
        raise UserError(
            f"{prefix} holds no training state of this run ({type(error).__name__}: {text}); remove it"
        ) from None


def resume(job: Job, most: int | None = None) -> None:
    """Go back to the newest sound checkpoint (of step `most` or before), which the first process
    chooses, and cut the metrics back to its step.

    Raises:
        UserError: all are damaged; it is another run's; or not every process sees it.
    """
    name = distributed.broadcast_from_main(job.accelerator, lambda: _newest(job, most))
    if name is not None:
        path = job.run.checkpoints / name
        distributed.check_same(job.accelerator, {f"out= has {name}": path.exists()})
        _restore(job, path)
    if job.accelerator.is_main_process:
        job.run.truncate_metrics(job.state.step)
        how = f"{job.batch_layout.processes} processes, {formatting.sharded(job.sharding)}"
        job.run.write_log(f"started at step {job.state.step} on {how}, process {os.getpid()}")
