"""Measure probes of the encoder and of its baselines while a run trains.

With probe.every the recipe chooses the probes, the images and the interval. Without probe.every,
the probe is k-NN (eval.knn) if the images have labels, with so few images and evaluations that the
probe takes SHARE of the run's work.

Legend: M images that are measured on, T trials.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from .. import costs, rng
from ..callbacks import Row
from ..data import class_numbers, loaders
from ..data.batch_layout import BatchLayout
from ..data.batching import Batch
from ..data.files import DATES, FOLDERS, are_dates
from ..data.run_splits import Splits
from ..data.source import Source, labelled_images
from ..errors import UserError
from ..formatting import copies_text, count_of_images
from ..metrics import FRESH, PIXELS, PROBE, PROBED, START
from ..models import weights
from ..models.encoder import Backbone
from ..objectives.base import Objective
from ..recipe.probe import CHOSEN
from ..recipe.records.run import Copies, Measured
from ..recipe.schema import Probe, Recipe, more_held_out
from ..runs import shared
from ..runs.files import write_atomically
from ..runs.folder import COMPARED, Run
from ..runs.identity import file_hashes
from ..runs.next_steps import NO_CLASSES, NO_LABELS
from ..training import loop
from ..training.distributed import WatchedAccelerator, broadcast_from_main, on_main
from . import probes, split_images
from .beside import compared, fresh_network, of_numpy, of_torch, pixel_reader
from .features import (
    ENCODER,
    Features,
    Readers,
    Right,
    accuracy,
    all_right,
    copies_in,
    extract,
    feature_reader,
    run_probes,
)
from .held_out import count_images, read_batches

RATE_KEY = 8  # key of the permutation that draws the images that choose a learning rate
SHARE = 0.03  # share of a run's work that k-NN takes at most, within the limits of `_cut`
FEWEST = 20  # labelled held-out images; an accuracy on fewer says nothing
FEW = 5  # images; folders with fewer are hardly classes
# Least number of images that k-NN learns from and is measured on, if there are enough
LEAST_TRAINING, LEAST_HELD_OUT = 1000, 500


@dataclass(eq=False, repr=False)
class OnlineProbes:
    """Evaluator that probes the current encoder on a fixed set of images.

    Probes learn from training images and are tested on held-out images. The evaluator also measures
    the effective rank of the held-out features, which falls when the features collapse.

    The evaluator draws no random number: every run uses the same images with the same crops.

    Attributes:
        run: The run that trains.
        train, held_out: Batches of this process.
        probe: The probes to measure.
        pool: How features are pooled, token or avg.
        classes: The number of classes that the probes choose from.
        accelerator: The processes of the run.
        class_names: The names of the classes, empty if classes have no names.
        paired: Whether to measure differences, see `compared`.
        images: The number of labelled training images and of labelled held-out images, over all
            processes.
        copies: How often the same image is among the held-out images.
        first: The place of the first held-out image in the order of held-out images.
        every: Steps between two evaluations.
        share: The share of the run's work that the probes take.
        beside: Results of the baselines, on rank 0 once `compare` has run:
            {FRESH, START, PIXELS or COMMONEST: {measure: whether each held-out image is right}}.
        right: {measure: whether each held-out image is right} for the encoder, at the last
            evaluation.
    """

    run: Run
    train: list[Batch]
    held_out: list[Batch]
    probe: Probe
    pool: str
    classes: int
    accelerator: WatchedAccelerator
    class_names: Sequence[str] = ()
    paired: bool = True
    images: tuple[int, int] = (0, 0)
    copies: Copies | None = None
    first: int = 0
    every: int = 1
    share: float = 0.0
    beside: dict[str, Right] = field(init=False, default_factory=dict)
    right: dict[str, Tensor] = field(init=False, default_factory=dict)
    # the next two are the same on all processes
    has_compared: bool = field(init=False, default=False)
    has_run: bool = field(init=False, default=False)

    def describe(self) -> str:
        """Describe the probes, the number of images and the steps between evaluations, in words."""
        measures, (train, held_out) = self.probe.measures, self.images
        return (
            f"{'k-NN' if measures == ['knn'] else ', '.join(measures)} of {held_out:,}"
            f" labelled held-out images{copies_text(self.copies)}, fitted to {train:,} training"
            f" images, every {self.every:,} steps (about {self.share:.1%} of the work)"
        )

    def names(self) -> list[str]:
        """Return the names of the accuracies that the evaluator measures."""
        few_shot = [f"few_shot_{shots}" for shots in self.probe.shots]
        measured = self.probe.measures
        found = [name for name in ("linear", "knn") if name in measured]
        return found + (few_shot if "few_shot" in measured else [])

    def chosen_on(self, images: int) -> int:
        """Return the number of training images that choose the learning rate of the linear probe.

        The probes do not learn from these images: a tenth of `images` training images, or 0 if no
        probe has a learning rate to choose.
        """
        return 0 if {*self.probe.measures}.isdisjoint(CHOSEN) else max(1, images // 10)

    def __call__(self, step: int, row: Row, objective: Objective) -> Iterator[tuple[str, float]]:
        if not self.has_compared:
            self.compare(objective.exported, step)
        self.right = {}
        self.has_run = True
        readers = {ENCODER: feature_reader(objective.exported, self.pool, self.probe.layer)}
        seen = self._extract(readers)
        if not self.accelerator.is_main_process:
            return
        held_out_MD, _ = seen["test"][ENCODER]
        if len(held_out_MD):
            yield "features/rank", probes.effective_rank(held_out_MD)
        by_split = {split: read[ENCODER] for split, read in seen.items()}
        for name, right_TM in run_probes(
            by_split, self.probe, self.classes, names=self.class_names
        ):
            self.right[name] = right_TM
            yield f"{PROBE}{name}", accuracy(right_TM)
            if (fresh_TM := self.beside.get(FRESH, {}).get(name)) is not None:
                yield f"{PROBE}{FRESH}{name}", accuracy(fresh_TM)

    def compare(self, network: Backbone, step: int) -> None:
        """Measure the baselines once, and store the results in the run's folder.

        Baselines are fresh weights, the pixels and, before the first step, the weights of `init=`,
        which `network` has then. All processes call this method. If no caller does, the first
        evaluation calls it.
        """
        self.has_compared = True
        recipe, path = self.run.recipe, self.run.folder / COMPARED
        asked = json.dumps([self.probe.model_dump(), *self.images, self.first])
        known = broadcast_from_main(self.accelerator, lambda: _read(path, asked))
        if known is not None:
            self.beside = known
            return
        fresh = fresh_network(recipe.model, recipe.data, recipe.seed).to(self.accelerator.device)
        readers = {FRESH: feature_reader(fresh, self.pool, self.probe.layer)}
        if "knn" in self.probe.measures:
            readers[PIXELS] = pixel_reader(recipe.data)
        with loop.autocast(recipe.compute.precision, self.accelerator):
            self.beside = self._measure_once(readers, fresh)
            if step == 0 and not recipe.init_source.is_scratch:
                start = feature_reader(network, self.pool, self.probe.layer)
                self.beside |= self.measure({START: start})
        tensors = {name: right_TM.contiguous() for name, right_TM in _packed(self.beside).items()}
        on_main(
            self.accelerator,
            lambda: write_atomically(path, save(tensors, metadata={"asked": asked})),
        )

    def _measure_once(self, readers: Readers, fresh: Backbone) -> dict[str, Right]:
        """Measure the baselines, or read results that another task of the study has stored.

        Stored results are read only if images, weights and options are the same.
        """
        recipe, accelerator = self.run.recipe, self.accelerator
        if not shared.is_task(self.run.folder):
            return self.measure(readers)
        batches = [_hash_images(some) for some in (self.train, self.held_out)]
        depends_on = {
            "images": accelerator.gather_parts([batches]),
            "weights": weights.fingerprint(fresh.state_dict()),
            "data": recipe.data.model_dump(),
            "model": recipe.model.model_dump(),
            "probe": self.probe.model_dump(),
            "pool": self.pool,
            "classes": self.classes,
            "files": file_hashes(recipe),
            "device": accelerator.device.type,
            "precision": recipe.compute.precision,
            "threads": torch.get_num_threads(),
        }
        file = shared.shared_file(self.run.folder, depends_on)
        stored = broadcast_from_main(accelerator, file.read)
        if stored is not None:
            return _unpacked(of_torch(stored))
        measured = self.measure(readers)
        if readers.keys() <= measured.keys():  # no baseline has failed
            file.write(of_numpy(_packed(measured)))
        return measured

    def measure(self, readers: Readers) -> dict[str, Right]:
        """Run the probes on other features of the same images.

        All processes call this method under autocast. A probe that fails is a warning of the run.

        Returns:
            {reader: {measure: whether each held-out image is right}} on rank 0, {} on other
            processes.
        """
        seen = self._extract(readers)
        if not self.accelerator.is_main_process:
            return {}
        # a failing probe must not end a run, so every kind of error becomes a warning
        return all_right(
            seen, self.probe, self.classes, self.run.warn, names=self.class_names, error=Exception
        )

    def metrics(self, split: str) -> dict[str, Measured]:
        """Return the metrics of the last evaluation, followed by the metrics of the baselines."""
        right = {ENCODER: self.right, **self.beside}
        return compared(right, split, self.copies, PROBED, self.paired)

    def _extract(self, readers: Readers) -> dict[str, dict[str, Features]]:
        """Return {split: {reader: features}}.

        If the probes choose a learning rate, a tenth of the training images is the split
        `validation`.
        """
        batches = (self.train, self.held_out)
        train, test = (extract(readers, each, self.accelerator)[0] for each in batches)
        n = len(next(iter(train.values()))[1])
        count = self.chosen_on(n)
        if not count:
            return {"train": train, "test": test}
        # drawn at random because images may be sorted by class
        row_N = torch.from_numpy(rng.permute(np.arange(n), n, rng.key(RATE_KEY)))
        held, rest = row_N[:count], row_N[count:].sort().values
        chosen = {name: (x_ND[held], label_N[held]) for name, (x_ND, label_N) in train.items()}
        learned = {name: (x_ND[rest], label_N[rest]) for name, (x_ND, label_N) in train.items()}
        return {"train": learned, "validation": chosen, "test": test}


def _packed(beside: Mapping[str, Right]) -> dict[str, Tensor]:
    """Return {"BASELINE/MEASURE": whether each image is right}."""
    return {
        f"{name}/{measure}": right_TM
        for name, right in beside.items()
        for measure, right_TM in right.items()
    }


def _unpacked(tensors: Mapping[str, Tensor]) -> dict[str, Right]:
    """Undo `_packed`."""
    by_baseline: dict[str, dict[str, Tensor]] = {}
    for key, right_TM in tensors.items():
        name, _, measure = key.partition("/")
        by_baseline.setdefault(name, {})[measure] = right_TM
    return dict(by_baseline)


def _read(path: Path, asked: str) -> dict[str, Right] | None:
    """Read the baselines that an earlier start of the run has stored.

    Return None if the file is missing or damaged, or belongs to other probes or images.
    """
    try:
        with safe_open(path, "pt") as file:
            if (file.metadata() or {}).get("asked") != asked:
                return None
            return _unpacked({key: file.get_tensor(key) for key in file.keys()})  # noqa: SIM118
    except (OSError, SafetensorError):
        return None


def _hash_images(batches: Iterable[Batch]) -> list[str]:
    """Return a hash of the pixels and labels of each batch."""
    hashes = []
    for batch in batches:
        digest = hashlib.sha256(batch.image.numpy().tobytes())
        digest.update(batch.label.numpy().tobytes())
        hashes.append(digest.hexdigest())
    return hashes


def label_doubt(source: Source) -> str:
    """Explain why folder names may not be classes, if labels come from folder names.

    Returns:
        The reason in words. Empty if there is no doubt, or if labels come from elsewhere.
    """
    if source.labels.source != FOLDERS:
        return ""
    if are_dates(source.classes):
        return DATES
    label_N = source.label_of(np.arange(len(source)))
    median = float(np.median(np.unique(label_N[label_N >= 0], return_counts=True)[1]))
    if median >= FEW:
        return ""
    return f"half of the folders have at most {count_of_images(int(median))}"


def prepare(
    run: Run, splits: Splits, batch_layout: BatchLayout, accelerator: WatchedAccelerator
) -> tuple[OnlineProbes | None, str]:
    """Prepare the probes that a run measures while it trains, with the images.

    The encoder is compared with the baselines (`paired`) only on images that chose no weights, that
    are not trained on, and that do not lie in groups.

    Returns:
        The evaluator, or None if the run has none, and the reason why k-NN is not measured. The
        reason is empty if there is an evaluator, or if the recipe asks for none.

    Raises:
        UserError: The labels do not suit the probes of probe.every.
    """
    recipe = run.recipe
    probe, every = recipe.probe, recipe.probe.every
    # the accuracy of an objective that learns only labels needs no probe
    learns_more = not all(part.labels for part in recipe.declared.trained(recipe))
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
        if by_probe:  # every choice of a checkpoint needs a measurement
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
        return read_batches(source, recipe.data, batch_layout, accelerator, count, first=first)

    train_batches = batches(labelled_images(splits.train), train)
    held_out_batches = batches(splits.validation, held_out, first)
    probes_of_run = OnlineProbes(
        run,
        train_batches,
        held_out_batches,
        probe,
        recipe.probe.pool or recipe.pool,
        classes,
        accelerator,
        splits.train.classes,
        paired=not chosen_on and recipe.data.group is None and recipe.data.validation != 0,
        images=(
            count_images(train_batches, accelerator, labelled=True),
            count_images(held_out_batches, accelerator, labelled=True),
        ),
        copies=copies_in(held_out_batches, accelerator, labelled=True),
        first=first,
        every=every,
        share=_share(recipe, train + held_out, every),
    )
    return probes_of_run, ""


def _lacks(recipe: Recipe, splits: Splits, train: int, held_out_M: np.ndarray) -> str:
    """Explain why k-NN cannot be measured. The text is empty if k-NN can be measured.

    Args:
        recipe: The recipe of the run.
        splits: The images of the run.
        train: The number of training images that k-NN would learn from.
        held_out_M: Rows of the held-out images that k-NN would be measured on.
    """
    if recipe.data.validation == 0:
        return "no images are held out"
    if not splits.train.labels.source:
        return NO_LABELS
    if splits.train.labels.lists is not None:
        return "the images have lists of labels"
    if doubt := label_doubt(splits.train.whole()):
        return f"{NO_CLASSES}: {doubt}"
    if train < (neighbors := recipe.probe.neighbors):
        return f"{train:,} labelled training images are too few for {neighbors} neighbours"
    labelled = int((splits.validation.label_of(held_out_M) >= 0).sum())
    if labelled < FEWEST:
        return f"{labelled:,} labelled held-out images are too few{_more_labelled(recipe, splits)}"
    return ""


def _more_labelled(recipe: Recipe, splits: Splits) -> str:
    """Name the options that hold out more labelled images, in brackets. Empty without any."""
    words = list(filter(None, [more_held_out(recipe)]))
    partly = len(labelled_images(splits.train)) < len(splits.train)
    of_all = recipe.data.validation_from != "labelled"
    if partly and of_all and (words or isinstance(recipe.data.validation, float)):
        words.append("data.validation_from=labelled")
    return f" ({' '.join(words)} holds out more)" if words else ""


def _share(recipe: Recipe, images: int, every: int) -> float:
    """Estimate the share of a run's work that extracting the features takes.

    Args:
        recipe: The recipe of the run.
        images: The number of images of an evaluation.
        every: Steps between two evaluations. The baselines count as one or two more evaluations.
    """
    work, steps = costs.work(recipe), recipe.optim.steps
    forward = work.features / (work.training or 3 * work.features)
    evaluations = math.ceil(steps / every) + (1 if recipe.init_source.is_scratch else 2)
    return evaluations * images * forward / (steps * recipe.optim.batch)


def _cut(recipe: Recipe, train: int, held_out: int) -> tuple[int, int, int]:
    """Choose so few images and evaluations that k-NN takes SHARE of the run's work.

    There are at least LEAST_TRAINING and LEAST_HELD_OUT images, or all if there are fewer, and
    at least the evaluation at the end. With these limits k-NN may take more than SHARE.

    Returns:
        The number of training images, the number of held-out images, and the steps between two
        evaluations.
    """
    every, steps = recipe.eval.every, recipe.optim.steps
    less = SHARE / _share(recipe, train + held_out, every)
    fewer = min(train, max(LEAST_TRAINING, int(less * train)))
    measured = min(held_out, max(LEAST_HELD_OUT, int(less * held_out)))
    while _share(recipe, fewer + measured, every) > SHARE and every < steps:
        every = min(steps, every * 2)
    return fewer, measured, every
