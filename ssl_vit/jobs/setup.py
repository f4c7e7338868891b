"""Build the parts of a training run from the recipe, and resume from checkpoints."""

import os
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from .. import formatting
from ..data import class_numbers, loaders, run_splits
from ..data.batch_layout import BatchLayout
from ..data.resident import DecodedImages
from ..data.source import Source
from ..errors import UserError
from ..evaluation import online, split_images
from ..evaluation.collapse import IMAGES_PER_CHANNEL, CollapseEvaluator
from ..evaluation.held_out import HeldOutEvaluator, read_batches
from ..evaluation.online import OnlineProbes
from ..hub import background
from ..models import encoder, trained_part, weights
from ..objectives import building
from ..objectives.base import Objective
from ..objectives.building import Settings
from ..recipe.records.run import RunEnvironment, SeenImages
from ..recipe.schema import Recipe, compared_views, learns_labels
from ..runs.environment import environment
from ..runs.files import write_atomically
from ..runs.folder import COMPARED, TRAINED_ON, Run
from ..runs.identity import (
    FACTS,
    check_facts,
    check_start,
    initial_weights,
    read_record,
    read_recorded,
    recipe_hash,
    upstream_cost,
)
from ..runs.trackers import Trackers
from ..training import checkpoint, distributed, optim, sharding
from ..training.loop import LoopSettings
from ..training.state import State
from . import resources, seen_images

# Keys, and prefixes of keys, that may differ between the processes of a run. Keys that name weights
# may also differ
MACHINE_KEYS = (
    *("out", "resume", "plugin", "data.name", "data.path", "hub."),
    *("compute.workers", "compute.threads"),
)
COMPARED_IMAGES = 256  # maximum size of a held-out batch whose images are compared with each other


@dataclass
class TrainingJob:
    """Parts of a training run.

    Attributes:
        run: The run.
        accelerator: The processes of the run.
        batch_layout: How a batch is divided among processes and passes.
        splits: The images of the run.
        state: The training state, with the objective.
        sharding: How the weights are distributed, as environment.json records it.
        trained_on: The record of the images that the run trains on.
        measured: The images that the run is measured on.
        seen: How many measured images were seen by the runs that made the initial weights.
        workers: The number of data loading workers of this process.
        held_out: The evaluator of the objective on held-out images.
        collapse: The evaluator of collapse, None without eval.collapse.
        online: The probes of the run, None if the run has none.
        not_compared: Why the features cannot be probed while the run trains, else empty.
        pusher: The callback that uploads to the Hub, on rank 0 with hub.repo.
        decoded: The decoded training images, None if images are decoded when read.
        trackers: The experiment trackers, on rank 0.
    """

    run: Run
    accelerator: distributed.WatchedAccelerator
    batch_layout: BatchLayout
    splits: run_splits.Splits
    state: State
    sharding: dict[str, Any]
    trained_on: seen_images.TrainedImages
    measured: seen_images.MeasuredImages
    seen: list[SeenImages]
    workers: int
    held_out: HeldOutEvaluator = field(init=False)
    collapse: CollapseEvaluator | None = field(init=False)
    online: OnlineProbes | None = field(init=False)
    not_compared: str = field(init=False)
    pusher: background.Pusher | None = None
    decoded: DecodedImages | None = None
    trackers: Trackers | None = None

    @property
    def objective(self) -> Objective:
        return self.state.objective

    @property
    def images(self) -> Source | loaders.StreamReader:
        """Training images, or the stream of training images."""
        return self.state.stream or self.splits.train

    @property
    def recipe(self) -> Recipe:
        return self.run.recipe

    def loader(self) -> DataLoader:
        """Return a loader of this process's batches from the current step to the last step."""
        recipe = self.recipe
        start, stop = self.state.step, recipe.optim.steps
        return loaders.training_loader(
            self.images,
            recipe.data,
            self.batch_layout,
            recipe.seed,
            start,
            stop,
            workers=self.workers if start < stop else 0,  # no batches, so start no workers
            views=compared_views(recipe),
            decoded=self.decoded,
        )


def set_up(
    run: Run, accelerator: distributed.WatchedAccelerator, splits: run_splits.Splits
) -> TrainingJob:
    """Build model, optimiser, strategy and evaluators, and open the run folder.

    All processes must call this function. The order is fixed, because the initial weights must be
    the first draw from the seed.

    Args:
        run: Run to set up.
        accelerator: Processes of the run.
        splits: Images of the run.

    Raises:
        UserError: Images, weights, folder or machine do not suit the recipe, or the processes have
            different recipes or images.
    """
    recipe = run.recipe
    freezes_random_weights = recipe.model.train != "all" and recipe.init_source.is_scratch
    text = "freezes random weights. Use init= with a trained encoder, or model.train=all."
    recipe.refuse("model.train", text, freezes_random_weights)
    resources.check_memory(recipe)
    batch_layout = BatchLayout.divide(
        recipe.optim.batch,
        recipe.compute.batch,
        resources.max_device_batch(recipe, accelerator),
        accelerator.process_index,
        accelerator.num_processes,
    )
    _check_passes(recipe, batch_layout)
    split_images.check_held_out(recipe, splits, batch_layout.processes)
    resources.check_label_lists(recipe, splits)
    facts = resources.environment_facts(recipe, accelerator, batch_layout, splits)
    image_hashes = {f"images of {name}": text for name, text in facts["data"].items()}
    prefixes = (*MACHINE_KEYS, *recipe.sources())  # of keys that may differ between processes
    shared = {key: value for key, value in recipe.values().items() if not key.startswith(prefixes)}
    distributed.check_same(accelerator, shared | image_hashes)
    most_compared = min(COMPARED_IMAGES, recipe.optim.batch)
    read = partial(read_batches, splits.validation, recipe.data, batch_layout, accelerator)
    batches = read(recipe.eval.images, views=compared_views(recipe), most_in_batch=most_compared)
    held_out = HeldOutEvaluator(batches, accelerator)
    facts["measured_on"] = split_images.count_measured_images(recipe, splits, held_out.images)
    classes = class_numbers.num_classes(splits, recipe.data, recipe.objective)
    torch.manual_seed(recipe.seed)
    network = encoder.build_backbone(
        recipe.model, recipe.data, recipe.optim.dropout, recipe.optim.drop_path
    )
    facts |= _load_initial_weights(network, run)
    measured = seen_images.MeasuredImages(recipe, splits)
    seen = seen_images.load_or_count_seen(run, measured, facts, accelerator)
    objective = building.build_objective(Settings.from_recipe(recipe), network, classes)
    trained_part.freeze_untrained(network)
    facts |= _load_teachers(objective, run)
    objective.to(accelerator.device)
    state = _build_state(objective, recipe, splits, batch_layout, accelerator)
    # Each machine has one process with the local index 0
    machines = accelerator.gather_parts([accelerator.local_process_index]).count(0)
    facts["sharding"] = state.strategy.facts() | {"machines": machines}
    distributed.on_main(accelerator, lambda: run.open(environment(facts)))
    job = TrainingJob(
        run,
        accelerator,
        batch_layout,
        splits,
        state,
        facts["sharding"],
        seen_images.TrainedImages(run.folder, learns_labels(recipe)),
        measured,
        seen,
        resources.workers(recipe, accelerator),
    )
    job.held_out = held_out
    job.collapse = None
    if recipe.eval.collapse is not None:
        batches = read(IMAGES_PER_CHANNEL * recipe.model.width)
        job.collapse = CollapseEvaluator(batches, recipe.probe.pool or recipe.pool, accelerator)
    job.online, job.not_compared = online.prepare(run, splits, batch_layout, accelerator)
    if recipe.hub.repo and accelerator.is_main_process:
        job.pusher = background.Pusher(run)
    return job


def _check_passes(recipe: Recipe, batch_layout: BatchLayout) -> None:
    """Check that the device batch suits the objective.

    If an objective compares the images of a batch, a step must be a single pass. With several
    passes (gradient accumulation), each image would be compared with fewer images.

    Args:
        recipe: Recipe of the run.
        batch_layout: How a batch is divided among processes and passes.

    Raises:
        UserError: The objective needs a single pass and a step has several, or the objective
            refuses the device batch.
    """
    recipe.declared.check_pass(recipe, batch_layout.device_batch)
    # Without compared views, the loss treats each image alone
    if not compared_views(recipe) or batch_layout.accumulation_steps == 1:
        return
    needed = recipe.optim.batch // batch_layout.processes
    estimate = ""
    if recipe.compute.batch is None:  # then the device batch is the number that fits into memory
        fitting = batch_layout.device_batch
        estimate = f"Only about {fitting} of {needed} images fit into memory. "
    raise recipe.error(
        "compute.batch",
        f"objective={recipe.objective} compares the images of a step, so all of them must be in a "
        f"single pass. {estimate}"
        f"Use compute.batch={needed}, more processes or a smaller optim.batch=.",
    )


def _build_state(
    objective: Objective,
    recipe: Recipe,
    splits: run_splits.Splits,
    batch_layout: BatchLayout,
    accelerator: distributed.WatchedAccelerator,
) -> State:
    """Build the training state of an objective: optimiser, schedule, strategy and averages.

    Args:
        objective: Objective on the device.
        recipe: Recipe of the run.
        splits: Images of the run.
        batch_layout: How a batch is divided among processes and passes.
        accelerator: Processes of the run.
    """
    average = optim.build_average(objective, recipe.optim.average)
    optimizer, schedule = optim.build_optimizer(objective, recipe.optim)
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
    stream = loaders.StreamReader(splits.stream, batch_layout) if splits.stream else None
    return State(objective, strategy, schedule, average, stream)


def loop_settings(recipe: Recipe) -> LoopSettings:
    """Return the recipe's values for the training loop."""
    return LoopSettings(
        steps=recipe.optim.steps,
        batch=recipe.optim.batch,
        log_every=recipe.log.every,
        checkpoint_every=recipe.checkpoint.every,
        seed=recipe.seed,
        precision=recipe.compute.precision,
        data=recipe.data,
        learns_labels=learns_labels(recipe),
    )


def _load_initial_weights(network: encoder.Backbone, run: Run) -> dict[str, Any]:
    """Load the weights of `init=` into the network, unless the run has a checkpoint.

    Args:
        network: Encoder of the run, with untrained weights.
        run: Run with the recipe and the checkpoints.

    Returns:
        The entries of environment.json about the weights: hashes of the files, and the cost of
        training the weights.
    """
    if not checkpoint.list_checkpoints(run.checkpoints):
        return weights.load_init(network, run.recipe.init_source)
    # The run has recorded the entries already. Hash the files again, so that `Run.open` notices a
    # file that has changed
    entries = initial_weights(run.folder)
    for source in run.recipe.sources().values():
        hashes = source.identity()  # empty if the files no longer exist
        if hashes:
            entries[source.kind] = entries.get(source.kind, {}) | hashes
    return entries


def _load_teachers(objective: Objective, run: Run) -> dict[str, Any]:
    """Load the weights of the objective's teachers, unless the run has a checkpoint.

    A teacher is a trained network whose outputs the objective learns to predict.

    Args:
        objective: Objective of the run.
        run: Run with the recipe and the checkpoints.

    Returns:
        The entries of environment.json about the teachers: hashes of the weights, and as `before`
        the cost of training the initial weights and the teachers. Empty for a run with a
        checkpoint, because `_load_initial_weights` returns the recorded entries.

    Raises:
        UserError: The weights belong to another network than the recipe describes.
    """
    facts: dict[str, Any] = {}
    if checkpoint.list_checkpoints(run.checkpoints):
        return facts
    for key, network in objective.teachers().items():
        source = run.recipe.sources()[key]
        recipe_network = run.recipe.value(source.network_key)
        # The weights may describe only some options of the network. If all of these have the same
        # values in the recipe, the merged mapping below equals the recipe's mapping
        if recipe_network | source.network_values() != recipe_network:
            raise UserError(
                f"{source.network_key}: this description differs from the network of the weights "
                f"{source.option}. Leave out {source.network_key}."
            )
        facts["before"] = upstream_cost(run.recipe)
        weights_hash = weights.load_weights(network, source)
        facts[source.kind] = {"weights": weights_hash} | source.identity()
    return facts


def resume(job: TrainingJob) -> None:
    """Load the newest intact checkpoint, if any, and drop later rows of metrics.

    All processes must call this function, and must see the checkpoint that rank 0 has chosen.

    Raises:
        UserError: All checkpoints are damaged, the checkpoint belongs to another run, a process
            does not see the checkpoint, or the checkpoint of resume=RUN@STEP is unsuitable.
    """
    distributed.on_main(job.accelerator, lambda: _copy_trunk_checkpoint(job))
    name = distributed.broadcast_from_main(job.accelerator, lambda: _newest_checkpoint(job))
    if name is not None:
        path = job.run.checkpoints / name
        # Raise an error if a process does not see the checkpoint, for example without a shared disk
        distributed.check_same(job.accelerator, {f"out= has {name}": path.exists()})
        _restore(job, path)
    job.trained_on.load(job.state.step)
    if job.accelerator.is_main_process:
        job.run.truncate_metrics(job.state.step)
        how = f"{job.batch_layout.processes} processes, {formatting.sharding_text(job.sharding)}"
        job.run.write_log(f"started at step {job.state.step} on {how}, process {os.getpid()}")


def _copy_trunk_checkpoint(job: TrainingJob) -> None:
    """Copy the checkpoint of resume=RUN@STEP from RUN's folder into the folder of this run.

    The folder is then like the folder of a run that was stopped at this step. Nothing is copied if
    this run already has a checkpoint.

    Raises:
        UserError: The checkpoint is damaged or does not belong to RUN, or RUN had other images,
            other initial weights or another plugin.
    """
    run, trunk = job.run, job.recipe.trunk
    if trunk is None or checkpoint.list_checkpoints(run.checkpoints):
        return
    path = checkpoint.folder(trunk.folder / run.checkpoints.name, trunk.step)
    if not checkpoint.is_intact(path):
        raise job.recipe.error(
            "resume", f"the checkpoint {path} is damaged. Use another step in resume=RUN@STEP."
        )
    # Both runs must have the same images, initial weights and plugin
    facts = {kind: read_recorded(run.folder, kind) for kind in FACTS}
    check_facts(job.recipe, trunk.folder, facts)
    saved = checkpoint.load(path)
    if saved["recipe"] != read_record(trunk.folder / "environment.json", RunEnvironment).recipe:
        raise job.recipe.error(
            "resume",
            f"the checkpoint {path} belongs to another run. Use another step in resume=RUN@STEP.",
        )
    # TRAINED_ON (hashes of training images) also has the images that RUN saw after the step.
    # COMPARED has the results of probes on the baselines
    for name in (TRAINED_ON, COMPARED, run.metrics.name):
        file = trunk.folder / name
        if file.exists():
            write_atomically(run.folder / name, file.read_bytes())
    start = {"run": trunk.folder.name}
    start |= {key: saved[key] for key in ("step", "seconds", "device_seconds")}
    # The best evaluation of RUN is dropped, because the checkpoint with its weights is not copied
    saved |= {"recipe": recipe_hash(job.recipe), "best": None, "trunk": start}
    # The checkpoint comes last, so that an interrupted copy is repeated
    checkpoint.save(run.checkpoints, trunk.step, saved, job.recipe.checkpoint.keep)
    run.write_log(f"begins at step {trunk.step} of {trunk.folder}")


def _newest_checkpoint(job: TrainingJob) -> str | None:
    """Return the name of the newest intact checkpoint, or None if there are no checkpoints.

    A warning is given for each newer checkpoint that is damaged.

    Raises:
        UserError: All checkpoints are damaged.
    """
    checkpoints = checkpoint.list_checkpoints(job.run.checkpoints)
    for path in reversed(checkpoints):
        if checkpoint.is_intact(path):
            return path.name
        job.run.warn(f"the checkpoint {path} is damaged and is skipped")
    if checkpoints:
        raise UserError(
            f"name={job.recipe.name}: all checkpoints are damaged. "
            f"To start again, remove {job.run.checkpoints}."
        )
    return None


def _restore(job: TrainingJob, path: Path) -> None:
    """Load the state of training from an intact checkpoint.

    Args:
        job: Training job, whose state is changed in place.
        path: Folder of the checkpoint.

    Raises:
        UserError: The checkpoint belongs to another run or holds no training state of this model,
            or resume= names another run or step than the one that this run began with.
    """
    try:
        saved = checkpoint.load(path)
        if saved["recipe"] != recipe_hash(job.recipe):
            raise UserError(
                f"name={job.recipe.name}: {path} belongs to another run. Remove the checkpoint."
            )
        job.state.load(saved)
        check_start(job.recipe, job.state.trunk)
    except UserError:
        raise
    except Exception as error:  # torch, pickle and the parts of the state raise many error types
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise UserError(
            f"name={job.recipe.name}: {path} holds no training state of this run ({reason}). "
            "Remove the checkpoint."
        ) from None
