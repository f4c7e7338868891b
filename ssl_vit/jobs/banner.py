"""Print the banner of a training run: settings, data, model, estimated time and baselines."""

from collections.abc import Iterator

import torch

from .. import costs, formatting, metrics
from ..data import loaders
from ..data.files import DATES
from ..data.streaming import window_text
from ..data.workers import limit_workers
from ..evaluation.online import label_doubt
from ..evaluation.split_images import count_measured_images
from ..models.encoder import Backbone, Encoder
from ..recipe import schema
from ..runs import console, seen_text
from ..training import loop
from .setup import TrainingJob, loop_settings

# Entropy in nats below which a target is called constant. Two classes have about this entropy if
# 0.1% of the patches belong to the rarer class.
NO_ENTROPY = 0.01


def print_banner(job: TrainingJob) -> None:
    """Measure the time of a step, then print the settings, the estimated time and the warnings.

    All processes must call this function, because all take part in the step. Only rank 0 prints.
    """
    recipe, batch_layout = job.recipe, job.batch_layout
    # The first held-out image, as often as a device batch has images
    batch = job.held_out.example.map(
        lambda x: x[:1].repeat(batch_layout.device_batch, *[1] * (x.ndim - 1))
    )
    seconds = loop.seconds_per_step(job.state, batch, loop_settings(recipe))
    if not job.accelerator.is_main_process:
        return
    for text in _warnings(job):
        job.run.warn(text)
    remaining = recipe.optim.steps - job.state.step
    time = (
        f"about {formatting.format_duration(seconds * remaining)} here ({seconds:.3g} s per step)"
    )
    console.table([*_rows_about_data_and_model(job), *_rows_about_training(job), ("time", time)])


def _warnings(job: TrainingJob) -> Iterator[str]:
    """Yield warnings about the images, the labels, the probes and the machine."""
    recipe, splits = job.recipe, job.splits
    if recipe.data.validation == 0:
        yield "data.validation=0: held-out metrics are measured on training images"
    counts = count_measured_images(recipe, splits, job.held_out.images)
    chosen, more = schema.describe_held_out_choices(recipe), schema.option_for_more_held_out(recipe)
    yield from formatting.few_images(counts, chosen, more, recipe.data.group)
    doubt = label_doubt(splits.train.all_rows()) if splits.label_source else ""
    if doubt not in ("", DATES) and not schema.learns_labels(recipe):
        what = "If the folders are not classes, start a new run with data.labels=false"
        yield f"folders are used as classes, but {doubt}. {what}"
    if job.online and "knn" in job.online.probe.measures:
        train, _ = job.online.images
        learned_from = train - job.online.count_choosing_images(train)
        if recipe.probe.neighbors > learned_from:
            few = f"the probes learn from only {formatting.format_image_count(learned_from)}"
            remedy = "Use fewer neighbours, or probe.measures= without knn"
            yield f"probe.neighbors={recipe.probe.neighbors}: {few}. {remedy}"
    yield from splits.guesses
    for name, (value, _) in job.held_out.baselines.items():
        if name.rpartition("/")[2] == "entropy" and value < NO_ENTROPY:
            text = f"almost all training patches have the same class (entropy {value:.2g} nats)"
            yield f"target={recipe.target}: {text}. Use another target="
    batch_bytes = loaders.batch_bytes(recipe.data, job.batch_layout, schema.compared_views(recipe))
    fitting = limit_workers(job.workers, batch_bytes)
    if fitting < job.workers:
        yield f"only {fitting} of {job.workers} data workers start, because /dev/shm is too small"


def _rows_about_data_and_model(job: TrainingJob) -> Iterator[tuple[str, str]]:
    """Yield the lines (title, text) about objective, images, network and initial weights."""
    recipe, net, splits = job.recipe, job.objective.encoder, job.splits
    if job.state.step:
        yield "resumed", f"after step {job.state.step:,}"
    yield "objective", _describe_objective(recipe)
    many = formatting.format_image_count(len(splits.train))
    windows = ""
    if splits.stream:
        many = f"a stream of {splits.stream.shards:,} shards"
        windows = f", shuffled in {window_text(splits.train)}"
    about = f"{many} at {recipe.data.size} px{windows}, {job.held_out.images:,} held out"
    yield "data", f"{recipe.data.name}: {about}"
    if not recipe.data.is_rgb:
        yield "pixels", formatting.pixel_text(recipe.data.channels, recipe.data.pixel_range)
    yield from console.rows_under("images", splits.notes)
    counted = costs.compute_network_cost(recipe)
    why = f"a step on tensors without values fails: {counted.uncounted}"  # see docs/extend.md
    work = f"multiply-adds {formatting.NOT_COUNTED} ({why})"
    if counted.forward is not None:
        work = f"{counted.forward / 1e9:.3g}G multiply-adds per image"
    patches = "no patches"
    if isinstance(net, Encoder):
        patches = f"{net.patches} patches of {net.patch_size} px"
    size = f"{counted.encoder / 1e6:.2f}M parameters"
    yield "model", f"{recipe.model.name}: {size}, {patches}, {work}"
    teachers = job.objective.teachers()
    for key, source in recipe.sources().items():
        if not source.is_scratch:
            yield (
                "from" if key == "init" else source.kind,
                source.place + _describe_teacher(teachers.get(key)),
            )
    yield from console.rows_under("", seen_text.lines(job.seen))


def _describe_objective(recipe: schema.Recipe) -> str:
    """Return the name of the objective, followed by its keys that differ from the defaults.

    Keys that name weights are left out, because the banner shows weights in lines of their own.
    """
    objective_groups, defaults = {"target", *recipe.groups}, schema.defaults()
    weight_keys = {
        name for source in recipe.sources().values() for name in (source.key, source.network_key)
    }
    changed = []
    for key, value in recipe.values().items():
        is_of_objective = key.split(".")[0] in objective_groups and key not in weight_keys
        if is_of_objective and value != defaults[key]:
            changed.append(f"{key}={formatting.option_text(value)}")
    return ", ".join([recipe.declared.title or recipe.objective, *changed])


def _describe_teacher(teacher: Backbone | None) -> str:
    """Describe the width, patches and image size of a teacher, which may differ from the student.

    The text is empty if there is no teacher, or if the teacher is convolutional.
    """
    if not isinstance(teacher, Encoder):
        return ""
    patches = f"{teacher.patches} patches of {teacher.patch_size} px"
    return f", {teacher.width} wide, {patches} at {teacher.data.size} px"


def _rows_about_training(job: TrainingJob) -> Iterator[tuple[str, str]]:
    """Yield the lines (title, text) about optimiser, batch, machine and baselines."""
    recipe, batch_layout, o = job.recipe, job.batch_layout, job.recipe.optim
    images = o.steps * o.batch
    yield (
        "optimiser",
        f"{o.optimiser.label}, learning rate {o.lr:g}, {o.warmup:,} warm-up steps, then "
        f"{o.schedule}",
    )
    yield (
        "batch",
        f"{o.batch} = {batch_layout.device_batch} per pass x "
        f"{formatting.format_count(batch_layout.processes, 'processes')} x "
        f"{formatting.format_count(batch_layout.accumulation_steps, 'passes')}",
    )
    epochs = "" if job.splits.stream else f" {images / len(job.splits.train):.1f} epochs,"
    work = formatting.format_exaflop(costs.exaflop(recipe, images), 2)
    steps = formatting.format_count(o.steps, "steps")
    yield "length", f"{steps}, {formatting.format_image_count(images)},{epochs} {work}"
    device = job.accelerator.device.type
    threads = formatting.format_count(torch.get_num_threads(), "threads")
    loading = formatting.format_count(job.workers, "data workers")
    if job.decoded:
        loading += f", decoded in memory: {job.decoded.description}"
    if job.online:
        yield "probes", job.online.describe()
    elif job.not_compared:
        yield "probes", f"none, {job.not_compared}"
    device = f"{batch_layout.processes} x {device}, {formatting.sharding_text(job.sharding)}"
    yield "machine", f"{device}, {threads}, {recipe.compute.precision}, {loading}"
    baselines = {name: value for name, (value, _) in job.held_out.baselines.items()}
    to_beat = metrics.format_baselines(baselines)
    if to_beat:
        group = max(len(batch.key) for batch in job.held_out.batches or [job.held_out.example])
        # guessing among fewer images is easier
        if schema.compared_views(recipe) and group != o.batch:
            to_beat += f", among {group:,} held-out images (a training step has {o.batch:,} images)"
        yield "to beat", to_beat
    elif job.held_out.images == 1:
        yield "to beat", "no baseline, because only 1 image is held out"
