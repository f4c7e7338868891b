"""Probes while a run trains: which, on how many images, how often, and what they are compared with.

Without probe.every it is k-NN (eval.knn), where the images have labels: so much of it as takes
SHARE of the run's work.
"""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from .. import costs
from ..data import class_numbers, loaders
from ..data.batch_layout import BatchLayout
from ..data.batching import Batch
from ..data.files import FOLDERS
from ..data.source import Source, labelled_images
from ..data.sources import Splits
from ..errors import UserError
from ..evaluation.beside import Right, fresh_network, pixel_reader
from ..evaluation.features import feature_reader
from ..evaluation.online import OnlineProbes
from ..formatting import count_of_images
from ..metrics import FRESH, PIXELS, PROBE, START
from ..models.encoder import Backbone
from ..recipe.probe import Probe
from ..recipe.schema import Recipe
from ..runs.files import write_atomically
from ..runs.folder import COMPARED, Run
from ..runs.next_steps import NO_LABELS
from ..training import loop
from ..training.distributed import WatchedAccelerator, broadcast_from_main, on_main

SHARE = 0.03  # of the work of a run, that k-NN takes at most
FEWEST = 20  # labelled held-out images, of which something can be said
FEW = 5  # images: classes of fewer are hardly classes
# Images that k-NN learns from and is measured on, at least, where there are as many
LEAST_TRAINING, LEAST_HELD_OUT = 1000, 500


class OnlinePlan(NamedTuple):
    """What is measured while a run trains.

    Attributes:
        probe: the measures.
        train: labelled training images that they learn from.
        held_out: images that they are measured on.
        first: of the held-out images in their order, the first of these.
        every: steps between two evaluations.
        share: of the run's work, that it takes.
        paired: whether the encoder is compared on these images: not where checkpoint.best chooses
            on them, where they are trained on, or where they lie in groups.
        classes: that the probes choose from.
    """

    probe: Probe
    train: int
    held_out: int
    first: int
    every: int
    share: float
    paired: bool
    classes: int

    def describe(self) -> str:
        measures = "k-NN" if self.probe.measures == ["knn"] else ", ".join(self.probe.measures)
        return (
            f"{measures} of {self.held_out:,} held-out images by {self.train:,} labelled training"
            f" images, every {self.every:,} steps: about {self.share:.1%} of the work"
        )


class OnlineJob(NamedTuple):
    """What a training run measures of its features."""

    run: Run
    plan: OnlinePlan
    probes: OnlineProbes


def label_doubt(source: Source) -> str:
    """Why the names of folders that labels were taken from may be no classes, in words; empty
    without doubt, and for other labels."""
    if source.labels.source != FOLDERS:
        return ""
    label_N = source.label_of(np.arange(len(source)))
    median = float(np.median(np.unique(label_N[label_N >= 0], return_counts=True)[1]))
    if median >= FEW:
        return ""
    return f"half of them have at most {count_of_images(int(median))}"


def measures_knn(recipe: Recipe) -> bool:
    """Whether eval.knn applies: a run that trains on more than labels, whose own accuracy tells,
    and has no probe.every."""
    learns = recipe.declared.trained(recipe)
    asked = recipe.eval.knn and recipe.probe.every is None
    return asked and recipe.trains and not all(one.labels for one in learns)


def plan(recipe: Recipe, splits: Splits) -> tuple[OnlinePlan | None, str]:
    """What is measured while a run trains, or why nothing is.

    Raises:
        UserError: the labels do not suit the probes of probe.every.
    """
    labelled = min(recipe.probe.images, len(labelled_images(splits.train)))
    held_out = min(recipe.eval.images, len(splits.validation))
    paired = recipe.checkpoint.best is None and recipe.data.group is None
    if recipe.probe.every:
        work = _share(recipe, labelled + held_out, recipe.probe.every)
        paired = paired and recipe.data.validation != 0
        classes = class_numbers.count_classes(splits, recipe.data, recipe.objective)
        found = recipe.probe, labelled, held_out, 0, recipe.probe.every, work, paired, classes
        return OnlinePlan(*found), ""
    if not measures_knn(recipe):
        return None, ""
    first, best = 0, recipe.checkpoint.best or ""
    by_probe = best.startswith(PROBE)  # which chooses on the images that are probed
    rest = len(splits.validation) - recipe.eval.images
    if best and not by_probe and rest >= LEAST_HELD_OUT:
        first, paired = recipe.eval.images, recipe.data.group is None
        held_out = min(recipe.eval.images, rest)
    train, measured, every = _cut(recipe, labelled, held_out)
    if by_probe:  # as often as it is to choose
        every = recipe.eval.every
    if reason := _lacks(
        recipe, splits, train, loaders.held_out_rows(splits.validation, measured, first)
    ):
        return None, reason
    try:
        classes = class_numbers.count_classes(splits, recipe.data, recipe.objective)
    except UserError as error:  # of labels that the run does not learn
        return None, str(error)
    probe = recipe.probe.model_copy(update={"measures": ["knn"]})
    work = _share(recipe, train + measured, every)
    return OnlinePlan(probe, train, measured, first, every, work, paired, classes), ""


def _lacks(recipe: Recipe, splits: Splits, train: int, held_out_M: np.ndarray) -> str:
    """Why k-NN is not measured; empty where it is.

    Args:
        recipe, splits: of the run.
        train: training images that it would learn from.
        held_out_M: rows of the held-out images that it would be measured on.
    """
    if recipe.data.validation == 0:
        return "no images are held out"
    if not splits.train.labels.source:
        return NO_LABELS
    if splits.train.labels.lists is not None:
        return "the images have lists of labels"
    if doubt := label_doubt(splits.train.whole()):
        return f"the folders may be no classes: {doubt}"
    learned_from = train - max(1, train // 10)  # as OnlineProbes.chosen_on
    labelled = int((splits.validation.label_of(held_out_M) >= 0).sum())
    if learned_from < recipe.probe.neighbors or labelled < FEWEST:
        few = f"{learned_from:,} labelled training images and {labelled:,} held-out ones"
        return f"{few} are too few; data.validation= holds out more"
    return ""


def _forward(recipe: Recipe) -> float:
    """The work of an image's features, as a share of that of training on it."""
    work = costs.work(recipe)
    return work.features / (work.training or 3 * work.features)


def _evaluations(recipe: Recipe, every: int) -> int:
    """Evaluations of a run, with those of what it is compared with."""
    own = -(-recipe.optim.steps // every)
    return own + (1 if recipe.init_source.is_scratch else 2)


def _share(recipe: Recipe, images: int, every: int) -> float:
    trained = recipe.optim.steps * recipe.optim.batch
    return _evaluations(recipe, every) * images * _forward(recipe) / trained


def _cut(recipe: Recipe, train: int, held_out: int) -> tuple[int, int, int]:
    """Images to learn from, images to measure, and steps between evaluations, so that they take
    SHARE of the work; at least LEAST_TRAINING and LEAST_HELD_OUT of as many as there are, and once
    at the end."""
    every, steps = recipe.eval.every, recipe.optim.steps
    share = _share(recipe, train + held_out, every)
    if share <= SHARE:
        return train, held_out, every
    less = SHARE / share
    fewer = min(train, max(LEAST_TRAINING, int(less * train)))
    measured = min(held_out, max(LEAST_HELD_OUT, int(less * held_out)))
    while _share(recipe, fewer + measured, every) > SHARE and every < steps:
        every = min(steps, every * 2)
    return fewer, measured, every


def prepare(
    run: Run, splits: Splits, batch_layout: BatchLayout, accelerator: WatchedAccelerator
) -> tuple[OnlineJob | None, str]:
    """What a run measures of its features while it trains, with its images; or why nothing."""
    recipe = run.recipe
    planned, lacks = plan(recipe, splits)
    if planned is None:
        return None, lacks

    def batches(source: Source, count: int, first: int = 0) -> list[Batch]:
        return loaders.held_out_batches(source, recipe.data, batch_layout, count, first=first)

    probes = OnlineProbes(
        batches(labelled_images(splits.train), planned.train),
        batches(splits.validation, planned.held_out, planned.first),
        planned.probe,
        recipe.probe.pool or recipe.pool,
        planned.classes,
        accelerator,
        planned.paired,
    )
    return OnlineJob(run, planned, probes), ""


def compare(job: OnlineJob, network: Backbone, step: int) -> None:
    """Measure what the encoder is compared with: fresh weights, the pixels and, before the first
    step, the weights that `init=` named (`network`); once, kept in the run's folder. All processes
    call it.
    """
    probes, recipe = job.probes, job.run.recipe
    path = job.run.folder / COMPARED
    asked = json.dumps([job.plan.probe.model_dump(), *job.plan[1:4]])
    known = broadcast_from_main(probes.accelerator, lambda: _read(path, asked))
    if known is not None:
        probes.beside = known
        return
    layer = recipe.probe.layer
    fresh = fresh_network(recipe.model, recipe.data, recipe.seed).to(probes.accelerator.device)
    readers = {FRESH: feature_reader(fresh, probes.pool, layer)}
    if step == 0 and not recipe.init_source.is_scratch:
        readers[START] = feature_reader(network, probes.pool, layer)
    with loop.autocast(recipe.compute.precision, probes.accelerator):
        probes.beside = probes.measure(readers)
    if "knn" in job.plan.probe.measures:
        knn = job.plan.probe.model_copy(update={"measures": ["knn"]})
        probes.beside |= probes.measure({PIXELS: pixel_reader(recipe.data)}, knn)
    on_main(probes.accelerator, lambda: _write(path, asked, probes.beside))


def _read(path: Path, asked: str) -> dict[str, Right] | None:
    """What an earlier start has measured; None where it is gone, damaged or of other images."""
    found: dict[str, dict[str, Tensor]] = {}
    try:
        with safe_open(path, "pt") as file:
            if (file.metadata() or {}).get("asked") != asked:
                return None
            for key in file.keys():  # noqa: SIM118
                beside, _, measure = key.partition("/")
                found.setdefault(beside, {})[measure] = file.get_tensor(key)
    except (OSError, SafetensorError):
        return None
    return dict(found)


def _write(path: Path, asked: str, beside: dict[str, Right]) -> None:
    tensors = {
        f"{name}/{measure}": right_TM.contiguous()
        for name, right in beside.items()
        for measure, right_TM in right.items()
    }
    try:
        write_atomically(path, save(tensors, metadata={"asked": asked}))
    except OSError as error:  # such as a full disk: it is measured again after an interruption
        print(f"warning: {path} could not be written: {error.strerror}", flush=True)
