"""Print the banner of a training run: settings, data, model, estimated time and baselines."""

from collections.abc import Iterator

import torch

from .. import costs, formatting, metrics
from ..data import loaders
from ..data.files import DATES
from ..data.streaming import describe_windows
from ..data.workers import limit_workers
from ..evaluation.online import why_folders_are_not_classes
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
    # Time a device batch that repeats the first held-out image
    batch = job.held_out.example.map(
        lambda values: values[:1].repeat_interleave(batch_layout.device_batch, dim=0)
    )
    seconds = loop.seconds_per_step(job.state, batch, loop_settings(recipe))
    if not job.accelerator.is_main_process:
        return
    for text in _warnings(job):
        job.run.warn(text)
    remaining = recipe.optim.steps - job.state.step
    duration = formatting.format_duration(seconds * remaining)
    time = f"about {duration} of training left on this machine ({seconds:.3g} s per step)"
    console.table([*_rows_about_data_and_model(job), *_rows_about_training(job), ("time", time)])


def _warnings(job: TrainingJob) -> Iterator[str]:
    """Yield warnings about settings that make a run slow or its results hard to interpret."""
    recipe, splits = job.recipe, job.splits
    if recipe.data.validation == 0:
        yield "data.validation=0: held-out metrics are measured on training images"
    counts = count_measured_images(recipe, splits, job.held_out.images)
    choices = schema.describe_held_out_choices(recipe)
    remedy = schema.option_for_more_held_out(recipe)
    yield from formatting.few_images(counts, choices, remedy, recipe.data.group)
    # The text is empty if nothing suggests that the folders are not classes
    doubt = why_folders_are_not_classes(splits.train.all_rows()) if splits.label_source else ""
    # If all folder names are dates, the banner's row about the probes says so instead
    if doubt not in ("", DATES) and not schema.learns_labels(recipe):
        yield (
            f"folders are used as classes, but {doubt}. "
            "If the folders are not classes, start a new run with data.labels=false"
        )
    if job.online and "knn" in job.online.probe.measures:
        num_train, _ = job.online.images
        num_learned = num_train - job.online.count_images_set_aside(num_train)
        if recipe.probe.neighbors > num_learned:
            yield (
                f"probe.neighbors={recipe.probe.neighbors}: the probes learn from only "
                f"{formatting.format_image_count(num_learned)}. "
                "Use fewer neighbours, or probe.measures= without knn"
            )
    yield from splits.guesses
    for key, (value, _) in job.held_out.baselines.items():
        if key.subject == "entropy" and value < NO_ENTROPY:
            yield (
                f"target={recipe.target}: almost all training patches have the same class "
                f"(entropy {value:.2g} nats). Use another target="
            )
    batch_bytes = loaders.batch_bytes(recipe.data, job.batch_layout, schema.compared_views(recipe))
    fitting = limit_workers(job.workers, batch_bytes)
    if fitting < job.workers:
        yield f"only {fitting} of {job.workers} data workers start, because /dev/shm is too small"


def _rows_about_data_and_model(job: TrainingJob) -> Iterator[tuple[str, str]]:
    """Yield the banner's rows (title, text) about objective, images, network and initial weights.

    Multiply-adds are counted on the meta device. If a plugin's forward pass fails there, the row
    gives the reason instead of the number.
    """
    recipe, data, splits = job.recipe, job.recipe.data, job.splits
    encoder, num_held_out = job.objective.encoder, job.held_out.images
    if job.state.step:
        yield "resumed", f"after step {job.state.step:,}"
    yield "objective", _describe_objective(recipe)
    images = f"{formatting.format_image_count(len(splits.train))} at {data.size} px"
    if splits.stream:
        window = describe_windows(splits.train)
        shards = formatting.format_count(splits.stream.shards, "shards")
        images = f"a stream of {shards} at {data.size} px, shuffled in {window}"
    yield "data", f"{data.name}: {images}, {num_held_out:,} held out"
    if not data.is_rgb:
        yield "pixels", formatting.pixel_text(data.channels, data.pixel_range)
    yield from console.rows_under("images", splits.notes)
    cost = costs.compute_network_cost(recipe)
    if cost.forward is None:
        work = (
            f"multiply-adds {formatting.NOT_COUNTED}, because a step on the meta device fails "
            f"({cost.uncounted})"
        )
    else:
        work = f"{cost.forward / 1e9:.3g}G multiply-adds per image"
    patches = "no patches"
    if isinstance(encoder, Encoder):
        patches = f"{encoder.patches} patches of {encoder.patch_size} px"
    parameters = f"{cost.encoder / 1e6:.2f}M parameters"
    yield "model", f"{recipe.model.name}: {parameters}, {patches}, {work}"
    teachers = job.objective.teachers()
    for key, source in recipe.sources().items():
        if not source.is_scratch:
            title = "from" if key == "init" else source.kind
            yield title, f"{source.place}{_describe_teacher(teachers.get(key))}"
    yield from console.rows_under("", seen_text.lines(job.seen))


def _describe_objective(recipe: schema.Recipe) -> str:
    """Return the objective's name and its options that differ from the defaults.

    Options that name weights are left out, because the banner has separate rows for weights.
    """
    defaults = schema.defaults()
    weight_keys: set[str] = set()
    for source in recipe.sources().values():
        weight_keys |= {source.key, source.network_key}
    parts = [recipe.declared.title or recipe.objective]
    for key, value in recipe.values().items():
        belongs_to_objective = key.split(".")[0] in ("target", *recipe.groups)
        if belongs_to_objective and key not in weight_keys and value != defaults[key]:
            parts.append(f"{key}={formatting.option_text(value)}")
    return ", ".join(parts)


def _describe_teacher(teacher: Backbone | None) -> str:
    """Describe a teacher's size, for example ", 384 wide, 196 patches of 16 px at 224 px".

    The text is empty if there is no teacher, or if the teacher is convolutional.
    """
    if not isinstance(teacher, Encoder):
        return ""
    patches = f"{teacher.patches} patches of {teacher.patch_size} px"
    return f", {teacher.width} wide, {patches} at {teacher.data.size} px"


def _rows_about_training(job: TrainingJob) -> Iterator[tuple[str, str]]:
    """Yield the banner's rows (title, text) about optimiser, batch, machine and baselines."""
    recipe, batch_layout, optim = job.recipe, job.batch_layout, job.recipe.optim
    images = optim.steps * optim.batch
    yield (
        "optimiser",
        f"{optim.optimiser.label}, learning rate {optim.lr:g}, {optim.warmup:,} warm-up steps, "
        f"then {optim.schedule}",
    )
    processes = formatting.format_count(batch_layout.processes, "processes")
    passes = formatting.format_count(batch_layout.accumulation_steps, "passes")
    yield "batch", f"{optim.batch} = {batch_layout.device_batch} per pass x {processes} x {passes}"
    length = [formatting.format_count(optim.steps, "steps"), formatting.format_image_count(images)]
    if not job.splits.stream:
        length.append(f"{images / len(job.splits.train):.1f} epochs")
    length.append(formatting.format_exaflop(costs.exaflop(recipe, images), 2))
    yield "length", ", ".join(length)
    if job.online:
        yield "probes", job.online.describe()
    elif job.not_compared:
        yield "probes", f"none, {job.not_compared}"
    machine = [
        f"{batch_layout.processes} x {job.accelerator.device.type}",
        formatting.sharding_text(job.sharding),
        formatting.format_count(torch.get_num_threads(), "threads"),
        recipe.compute.precision,
        formatting.format_count(job.workers, "data workers"),
    ]
    if job.decoded:
        machine.append(f"decoded in memory: {job.decoded.description}")
    yield "machine", ", ".join(machine)
    baselines = {key: value for key, (value, _) in job.held_out.baselines.items()}
    to_beat = metrics.format_baselines(baselines)
    if to_beat:
        held_out_batches = job.held_out.batches or [job.held_out.example]
        compared = max(len(batch.key) for batch in held_out_batches)
        # The objective finds each image among those of a batch, which is easier in a smaller batch
        if schema.compared_views(recipe) and compared != optim.batch:
            to_beat = (
                f"{to_beat}, measured in batches of {compared:,} held-out images (a training step "
                f"compares {optim.batch:,} images)"
            )
        yield "to beat", to_beat
    elif job.held_out.images == 1:
        yield "to beat", "no baseline, because only 1 image is held out"
