"""Probes while a run trains: which, on how many images, how often, and what they are compared with.

Without probe.every it is k-NN (eval.knn), where the images have labels: so much of it as takes
SHARE of the run's work.
"""

import json
import math
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from .. import costs
from ..data import class_numbers, loaders
from ..data.batch_layout import BatchLayout
from ..data.batching import Batch, Unreadable, check_readable
from ..data.files import FOLDERS
from ..data.run_splits import Splits
from ..data.source import Source, labelled_images
from ..errors import UserError
from ..evaluation.beside import Right, fresh_network, pixel_reader
from ..evaluation.features import feature_reader
from ..evaluation.online import OnlineProbes
from ..formatting import count_of_images
from ..metrics import FRESH, PIXELS, PROBE, START
from ..models.encoder import Backbone
from ..recipe.schema import Recipe
from ..runs.files import write_atomically
from ..runs.folder import COMPARED, Run
from ..runs.next_steps import NO_LABELS
from ..training import loop
from ..training.distributed import WatchedAccelerator, broadcast_from_main, on_main
from . import split_images

SHARE = 0.03  # of the work of a run, that k-NN takes at most
FEWEST = 20  # labelled held-out images, of which something can be said
DATE = re.compile(r"(19|20)\d\d([-_. ]?[01]\d([-_. ]?[0-3]\d)?)?")
FEW = 5  # images: classes of fewer are hardly classes
# Images that k-NN learns from and is measured on, at least, where there are as many
LEAST_TRAINING, LEAST_HELD_OUT = 1000, 500


class OnlineJob(NamedTuple):
    """What a training run measures of its features.

    Attributes:
        run: the run.
        probes: its evaluator.
        train: labelled training images that the probes learn from.
        held_out: images that they are measured on: of the held-out images in their order those
            from `first` on.
        every: steps between two evaluations.
        share: of the run's work, that it takes.
    """

    run: Run
    probes: OnlineProbes
    train: int
    held_out: int
    first: int
    every: int
    share: float

    def describe(self) -> str:
        measures = self.probes.probe.measures
        return (
            f"{'k-NN' if measures == ['knn'] else ', '.join(measures)} of {self.held_out:,}"
            f" held-out images by {self.train:,} labelled training images, every {self.every:,}"
            f" steps: about {self.share:.1%} of the work"
        )


def label_doubt(source: Source) -> str:
    """Why the names of folders that labels were taken from may be no classes, in words; empty
    without doubt, and for other labels."""
    if source.labels.source != FOLDERS:
        return ""
    if source.classes and all(DATE.fullmatch(name) for name in source.classes):
        return "all are named as years or dates are"
    label_N = source.label_of(np.arange(len(source)))
    median = float(np.median(np.unique(label_N[label_N >= 0], return_counts=True)[1]))
    if median >= FEW:
        return ""
    return f"half of them have at most {count_of_images(int(median))}"


def prepare(
    run: Run, splits: Splits, batch_layout: BatchLayout, accelerator: WatchedAccelerator
) -> tuple[OnlineJob | None, str]:
    """What a run measures of its features while it trains, with its images; or why nothing.

    The encoder is compared (`paired`) only on images that nothing was chosen on, that are not
    trained on, and that do not lie in groups.

    Raises:
        UserError: the labels do not suit the probes of probe.every.
    """
    recipe, probe, every = run.recipe, run.recipe.probe, run.recipe.probe.every
    # what learns nothing but labels tells by its accuracy
    learns_more = not all(one.labels for one in recipe.declared.trained(recipe))
    if not every and not (recipe.eval.knn and recipe.trains and learns_more):
        return None, ""
    train = min(probe.images, len(labelled_images(splits.train)))
    first, held_out = 0, split_images.held_out_images(recipe, splits)
    best, by_probe = recipe.checkpoint.best, (recipe.checkpoint.best or "").startswith(PROBE)
    chosen_on = best is not None
    if not every:
        probe = probe.model_copy(update={"measures": ["knn"]})
        rest = len(splits.validation) - recipe.eval.images
        if best and not by_probe and rest >= LEAST_HELD_OUT:
            first, held_out = recipe.eval.images, min(recipe.eval.images, rest)
            chosen_on = False
        train, held_out, every = _cut(recipe, train, held_out)
        if by_probe:  # as often as it is to choose
            every = recipe.eval.every
        rows = loaders.held_out_rows(splits.validation, held_out, first)
        if reason := _lacks(recipe, splits, train, rows):
            return None, reason
    try:
        classes = class_numbers.count_classes(splits, recipe.data, recipe.objective)
    except UserError as error:
        if recipe.probe.every:
            raise
        return None, str(error)

    def batches(source: Source, count: int, first: int = 0) -> list[Batch]:
        found = loaders.held_out_batches(
            source, recipe.data, batch_layout, count, first=first, unreadable=Unreadable.UNLABELLED
        )
        check_readable(found, recipe.data)
        return found

    probes = OnlineProbes(
        batches(labelled_images(splits.train), train),
        batches(splits.validation, held_out, first),
        probe,
        recipe.probe.pool or recipe.pool,
        classes,
        accelerator,
        paired=not chosen_on and recipe.data.group is None and recipe.data.validation != 0,
    )
    share = _share(recipe, train + held_out, every)
    return OnlineJob(run, probes, train, held_out, first, every, share), ""


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
    labelled = int((splits.validation.label_of(held_out_M) >= 0).sum())
    if train < recipe.probe.neighbors or labelled < FEWEST:
        few = f"{train:,} labelled training images and {labelled:,} held-out ones"
        return f"{few} are too few; data.validation= holds out more"
    return ""


def _share(recipe: Recipe, images: int, every: int) -> float:
    """The share of a run's work that the features of so many images take, with those of what it is
    compared with."""
    work, steps = costs.work(recipe), recipe.optim.steps
    forward = work.features / (work.training or 3 * work.features)
    evaluations = math.ceil(steps / every) + (1 if recipe.init_source.is_scratch else 2)
    return evaluations * images * forward / (steps * recipe.optim.batch)


def _cut(recipe: Recipe, train: int, held_out: int) -> tuple[int, int, int]:
    """Images to learn from, images to measure, and steps between evaluations, so that they take
    SHARE of the work; at least LEAST_TRAINING and LEAST_HELD_OUT of as many as there are, and once
    at the end."""
    every, steps = recipe.eval.every, recipe.optim.steps
    less = SHARE / _share(recipe, train + held_out, every)
    fewer = min(train, max(LEAST_TRAINING, int(less * train)))
    measured = min(held_out, max(LEAST_HELD_OUT, int(less * held_out)))
    while _share(recipe, fewer + measured, every) > SHARE and every < steps:
        every = min(steps, every * 2)
    return fewer, measured, every


def compare(job: OnlineJob, network: Backbone, step: int) -> None:
    """Measure what the encoder is compared with: fresh weights, the pixels and, before the first
    step, the weights that `init=` named (`network`); once, kept in the run's folder. All processes
    call it.
    """
    probes, recipe = job.probes, job.run.recipe
    path = job.run.folder / COMPARED
    asked = json.dumps([probes.probe.model_dump(), job.train, job.held_out, job.first])
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
    if "knn" in probes.probe.measures:
        knn = probes.probe.model_copy(update={"measures": ["knn"]})
        probes.beside |= probes.measure({PIXELS: pixel_reader(recipe.data)}, knn)
    tensors = {
        f"{name}/{measure}": right_TM.contiguous()
        for name, right in probes.beside.items()
        for measure, right_TM in right.items()
    }
    on_main(
        probes.accelerator,
        lambda: write_atomically(path, save(tensors, metadata={"asked": asked})),
    )


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
