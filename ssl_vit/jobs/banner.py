"""What a run prints before it trains: settings, data, model, estimated time and baselines."""

from collections.abc import Iterator

import torch

from .. import costs, formatting, metrics
from ..data import loaders
from ..data.workers import limit_workers
from ..evaluation.collapse import IMAGES_PER_CHANNEL
from ..evaluation.online import OnlineProbes
from ..models.encoder import Encoder
from ..objectives.corruption import num_corrupted
from ..objectives.patches import PatchPrediction
from ..recipe import schema
from ..recipe.probe import CHOSEN
from ..recipe.recipe_files import suggest_model
from ..runs import console
from ..training import distributed, loop
from .init_notes import init_notes
from .online import label_doubt
from .setup import Job, loop_settings
from .split_images import held_out_images, measured_on

NO_ENTROPY = 0.01  # nats of a target; of two classes, one has 0.1% of the patches
OPTIMISERS = {"adamw": "AdamW", "sgd": "SGD with momentum"}


def print_banner(job: Job) -> None:
    """Measure a step, then print the run's settings, its estimated time and its warnings. All
    processes call it; rank 0 prints."""
    recipe, batch_layout = job.recipe, job.batch_layout
    one = job.held_out.batches[0]
    batch = one.map(lambda x: x[:1].repeat(batch_layout.device_batch, *[1] * (x.ndim - 1)))
    pace = loop.seconds_per_step(job.state, batch, loop_settings(recipe))
    if not job.accelerator.is_main_process:
        return
    for text in _early_warnings(job):
        print(f"warning: {text}", flush=True)
    left = recipe.optim.steps - job.state.step
    time = f"about {formatting.duration(pace * left)} here ({pace:.3g} s a step)"
    console.table([*_what(job), *_how(job), ("time", time)])
    batch_bytes = loaders.batch_bytes(recipe.data, batch_layout, schema.compared_views(recipe))
    limit = limit_workers(job.workers, batch_bytes).limit
    if limit:
        job.run.write_log(f"warning: {limit}")
        print(f"warning: {limit}", flush=True)
    net = job.objective.encoder
    if isinstance(net, Encoder) and net.patches < 16:
        few = f"warning: {net.patches} patches an image are few to learn from"
        print(f"{few}; {suggest_model(recipe)}", flush=True)


def _early_warnings(job: Job) -> Iterator[str]:
    data = job.recipe.data
    if data.validation == 0:
        yield "data.validation=0: what is called held out below are images that are trained on"
    counts = measured_on(job.recipe, job.splits)
    remedy = schema.more_held_out(job.recipe)
    yield from formatting.few_images(counts, schema.chosen_on_held_out(job.recipe), remedy)
    doubt = label_doubt(job.splits.train.whole()) if job.splits.label_source else ""
    if doubt and not schema.learns_labels(job.recipe):
        what = "where they are none, start another run with data.labels=false"
        yield f"folders are taken for classes, but {doubt}: {what}"
    wanted = IMAGES_PER_CHANNEL * job.recipe.model.width
    if job.collapse and len(job.splits.validation) < wanted:
        found = formatting.count_of_images(len(job.splits.validation))
        yield f"eval.collapse={job.recipe.eval.collapse}: {found} held out, of {wanted:,} wanted"
    if job.online:
        yield from _few_probed(job.online.probes, job.online.plan.train)
    yield from job.splits.guesses
    for name, (value, _) in job.held_out.baselines.items():
        if name.rpartition("/")[2] == "entropy" and value < NO_ENTROPY:
            text = f"training patches are almost all of one class (entropy {value:.2g} nats)"
            yield f"target={job.recipe.target}: {text}: there is next to nothing to predict"
    if note := distributed.macos_warning():
        yield note


def _few_probed(probes: OnlineProbes, images: int) -> Iterator[str]:
    """What so many training images are too few for."""
    probe, count = probes.probe, probes.chosen_on(images)
    for what in (CHOSEN[name] for name in probe.measures if name in CHOSEN):
        if count < formatting.FEW_IMAGES:
            yield (
                f"probe.images={probe.images}: {what} is"
                f" chosen on a tenth of them, {formatting.count_of_images(count)}"
            )
    if "knn" in probe.measures and probe.neighbors > images - count:
        left = formatting.count_of_images(images - count)
        yield f"probe.neighbors={probe.neighbors}: probes learn from {left}: no k-NN accuracy"


def _what(job: Job) -> Iterator[tuple[str, str]]:
    recipe, net, splits = job.recipe, job.objective.encoder, job.splits
    resumed = f", resumed after step {job.state.step:,}" if job.state.step else ""
    yield "run", f"{job.run.folder}{resumed}"
    yield "objective", _objective(job)
    held_out = held_out_images(recipe, splits)
    many = formatting.count_of_images(len(splits.train))
    if splits.stream:
        many = f"a stream of {splits.stream.shards:,} shards"
    yield "data", f"{recipe.data.name}: {many} at {recipe.data.size} px, {held_out:,} held out"
    if not recipe.data.is_rgb:
        yield "pixels", formatting.pixel_text(recipe.data.channels, recipe.data.pixel_range)
    yield from console.rows_under("images", splits.notes)
    # under ZeRO 3 p is an empty placeholder, and ds_numel its whole size
    parameters = sum(getattr(p, "ds_numel", p.numel()) for p in net.parameters())
    size = f"{parameters / 1e6:.2f}M parameters"
    adds = costs.work(recipe).forward
    work = f"multiply-adds {formatting.NOT_COUNTED}"
    if adds is not None:
        work = f"{adds / 1e9:.3g}G multiply-adds an image"
    patches = "no patches"
    if isinstance(net, Encoder):
        patches = f"{net.patches} patches of {net.patch_size} px"
    yield "model", f"{recipe.model.name}: {size}, {patches}, {work}"
    if not recipe.init_source.is_scratch:
        yield "from", recipe.init
        yield from console.rows_under("", init_notes(job.run, job.seen))


def _objective(job: Job) -> str:
    """What is trained, how many patches of an image it corrupts, and which of its keys are not as
    they are by default."""
    recipe = job.recipe
    corrupting = (one for one in job.objective.modules() if isinstance(one, PatchPrediction))
    counts = [
        f"{num_corrupted(one.rate, one.encoder.patches)} of {one.encoder.patches} patches corrupted"
        for one in corrupting
    ]
    own, usual = {"target", *recipe.groups}, schema.defaults()
    changed = [
        f"{key}={formatting.option_text(value)}"
        for key, value in recipe.values().items()
        if key.split(".")[0] in own and value != usual[key]
    ]
    return ", ".join([recipe.declared.title or recipe.objective, *counts, *changed])


def _how(job: Job) -> Iterator[tuple[str, str]]:
    recipe, batch_layout, o = job.recipe, job.batch_layout, job.recipe.optim
    images = o.steps * o.batch
    yield (
        "optimiser",
        f"{OPTIMISERS[o.name]}, learning rate {o.lr:g}, {o.warmup:,} warm-up steps, then "
        f"{o.schedule}",
    )
    yield (
        "batch",
        f"{o.batch} = {batch_layout.device_batch} a pass x {batch_layout.processes} processes x "
        f"{batch_layout.accumulation_steps} passes",
    )
    epochs = "" if job.splits.stream else f" {images / len(job.splits.train):.1f} epochs,"
    work = formatting.format_exaflop(costs.exaflop(recipe, images), 2)
    yield "length", f"{o.steps:,} steps, {formatting.count_of_images(images)},{epochs} {work}"
    device, threads = job.accelerator.device.type, torch.get_num_threads()
    loading = f"{job.workers} data workers"
    if job.decoded:
        loading += f", decoded in memory: {job.decoded.description}"
    if job.online:
        yield "probes", job.online.plan.describe()
    elif job.not_compared:
        yield "probes", f"none, {job.not_compared}"
    yield "machine", f"{device}, {threads} threads, {recipe.compute.precision}, {loading}"
    if to_beat := metrics.format_baselines(
        {name: value for name, (value, _) in job.held_out.baselines.items()}
    ):
        group = max(len(batch.key) for batch in job.held_out.batches)
        if schema.compared_views(recipe) and group != o.batch:  # guessing is easier among fewer
            to_beat += f", among {group:,} held-out images, not the {o.batch:,} of a training step"
        yield "to beat", to_beat
    elif held_out_images(recipe, job.splits) == 1:
        yield "to beat", "no baseline is measured on 1 image"
