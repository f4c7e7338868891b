"""Measure probes of the encoder and of its baselines while a run trains.

With probe.every the recipe chooses the probes, the images and the interval. Without probe.every,
the probe is k-NN (eval.knn) if the images have labels, with so few images and evaluations that the
probe takes SHARE of the run's work.

Legend: M held-out images, T trials (few-shot draws), N training images, D width of the features.
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
from ..formatting import copies_text, format_image_count
from ..metrics import FRESH, MEASURES, PIXELS, PROBE, PROBED, START, held_out_choices
from ..models import weights
from ..models.encoder import Backbone
from ..objectives.base import Objective
from ..recipe.records.run import Copies, Measured
from ..recipe.schema import Probe, Recipe, option_for_more_held_out
from ..runs import shared
from ..runs.files import write_atomically
from ..runs.folder import COMPARED, Run
from ..runs.identity import file_hashes
from ..runs.next_steps import NO_CLASSES, NO_LABELS
from ..training import loop
from ..training.distributed import WatchedAccelerator, broadcast_from_main, on_main
from . import probes, split_images
from .baselines import fresh_network, metrics_with_baselines, pixel_reader, to_numpy, to_torch
from .features import (
    ENCODER,
    Features,
    Readers,
    Right,
    accuracy,
    count_copies_in,
    extract_labelled_features,
    feature_reader,
    probe_all,
    run_probes,
)
from .held_out import count_images, read_batches

RATE_KEY = 8  # key of the permutation that draws the images that choose a learning rate
SHARE = 0.03  # share of a run's work that k-NN takes at most, within the limits of `_choose_sizes`
LEAST_LABELLED = 20  # labelled held-out images; an accuracy on fewer says nothing
FEW_PER_CLASS = 5  # images; folders with fewer are hardly classes
# Least number of images that k-NN learns from and is measured on, if there are enough
LEAST_TRAINING, LEAST_HELD_OUT = 1000, 500


@dataclass(eq=False, repr=False)
class OnlineProbes:
    """Evaluator that probes the current encoder on a fixed set of images.

    Probes learn from training images and are tested on held-out images. The evaluator also measures
    the effective rank of the held-out features, which falls when the features collapse.

    The evaluator draws no random number: every run uses the same images with the same crops.

    Attributes:
        run: Run that trains the encoder.
        train: Training batches of this process.
        held_out: Held-out batches of this process.
        probe: Probes to measure, with their options.
        pool: How features are pooled, token or avg.
        classes: Number of classes that the probes choose from.
        accelerator: Processes of the run.
        class_names: Names of the classes, empty if classes have no names.
        paired: Whether to measure the difference to each baseline, see `metrics_with_baselines`.
        images: Number of labelled training images and number of labelled held-out images, over all
            processes.
        copies: How often the same image is among the held-out images.
        first: Number of held-out images that are skipped before the first measured image.
        every: Steps between two evaluations.
        share: Share of the run's work that the probes take, 0 to 1.
        baselines: Results of the baselines, on rank 0 once `compare` has run:
            {FRESH, START, PIXELS or COMMONEST: {measure: bool (T, M), right or wrong}}.
        right: Results of the encoder at the last evaluation, {measure: bool (T, M)}.
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
    baselines: dict[str, Right] = field(init=False, default_factory=dict)
    right: dict[str, Tensor] = field(init=False, default_factory=dict)
    # the next two are the same on all processes
    has_compared: bool = field(init=False, default=False)
    has_run: bool = field(init=False, default=False)

    def describe(self) -> str:
        """Describe the probes, the number of images and the steps between evaluations, in words."""
        measures = ", ".join(MEASURES[name].label or name for name in self.probe.measures)
        train, held_out = self.images
        return (
            f"{measures} of {held_out:,} labelled held-out images{copies_text(self.copies)}, fitted"
            f" to {train:,} training images, every {self.every:,} steps (about {self.share:.1%} of"
            " the work)"
        )

    def names(self) -> list[str]:
        """Return the names of the accuracies that the evaluator measures, such as few_shot_5."""
        return self.probe.metrics_of(self.probe.measures_that_read("feature"))

    def count_choosing_images(self, images: int) -> int:
        """Return how many training images are set aside to choose a probe's learning rate.

        This is a tenth of the `images` training images, or 0 if no probe chooses anything. The
        probes do not learn from the images that are set aside.
        """
        return max(1, images // 10) if held_out_choices(self.probe.measures) else 0

    def __call__(self, step: int, row: Row, objective: Objective) -> Iterator[tuple[str, float]]:
        if not self.has_compared:
            self.compare(objective.exported, step)
        self.right = {}
        self.has_run = True
        readers = {ENCODER: feature_reader(objective.exported, self.pool, self.probe.layer)}
        features = self._extract(readers)
        if not self.accelerator.is_main_process:
            return
        held_out_MD, _ = features["test"][ENCODER]
        if len(held_out_MD):
            yield "features/rank", probes.effective_rank(held_out_MD)
        of_encoder = {split: by_reader[ENCODER] for split, by_reader in features.items()}
        of_fresh = self.baselines.get(FRESH, {})
        for name, right_TM in run_probes(
            of_encoder, self.probe, self.classes, names=self.class_names
        ):
            self.right[name] = right_TM
            yield f"{PROBE}{name}", accuracy(right_TM)
            if name in of_fresh:
                yield f"{PROBE}{FRESH}{name}", accuracy(of_fresh[name])

    def compare(self, network: Backbone, step: int) -> None:
        """Measure the baselines once, and store the results in the run's folder.

        The baselines are an encoder with untrained weights, the pixels and the commonest class. A
        run with `init=` that is at step 0 also has the baseline START: `network` with these initial
        weights. A resumed run reads the stored results.

        All processes call this method.

        Args:
            network: Encoder of the run.
            step: Steps that the encoder has been trained for.
        """
        self.has_compared = True
        recipe, path = self.run.recipe, self.run.folder / COMPARED
        conditions = json.dumps([self.probe.model_dump(), *self.images, self.first])
        stored = broadcast_from_main(self.accelerator, lambda: _read(path, conditions))
        if stored is not None:
            self.baselines = stored
            return
        fresh = fresh_network(recipe.model, recipe.data, recipe.seed).to(self.accelerator.device)
        readers = {FRESH: feature_reader(fresh, self.pool, self.probe.layer)}
        if "knn" in self.probe.measures:
            readers[PIXELS] = pixel_reader(recipe.data)
        with loop.autocast(recipe.compute.precision, self.accelerator):
            self.baselines = self._measure_once(readers, fresh)
            if step == 0 and not recipe.init_source.is_scratch:
                start = feature_reader(network, self.pool, self.probe.layer)
                self.baselines |= self.measure({START: start})
        tensors = {
            name: right_TM.contiguous() for name, right_TM in _packed(self.baselines).items()
        }
        on_main(
            self.accelerator,
            lambda: write_atomically(path, save(tensors, metadata={"asked": conditions})),
        )

    def _measure_once(self, readers: Readers, fresh: Backbone) -> dict[str, Right]:
        """Return the results of the baselines, measured at most once by all tasks of a study.

        Results of another task are read only if its images, weights and options are the same.

        Args:
            readers: {FRESH or PIXELS: reader}.
            fresh: Network with untrained weights, which the reader FRESH uses.

        Returns:
            See `measure`.
        """
        recipe, accelerator = self.run.recipe, self.accelerator
        if not shared.is_task(self.run.folder):
            return self.measure(readers)
        hashes = [_hash_images(batches) for batches in (self.train, self.held_out)]
        depends_on = {
            "images": accelerator.gather_parts([hashes]),
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
            return _unpacked(to_torch(stored))
        measured = self.measure(readers)
        if readers.keys() <= measured.keys():  # no baseline has failed
            file.write(to_numpy(_packed(measured)))
        return measured

    def measure(self, readers: Readers) -> dict[str, Right]:
        """Run the probes on the features of baselines, for the same images as the encoder.

        All processes call this method under autocast.

        Args:
            readers: {baseline: reader of its features}.

        Returns:
            {baseline: {measure: bool (T, M), right or wrong}} on rank 0, {} on other processes.
        """
        features = self._extract(readers)
        if not self.accelerator.is_main_process:
            return {}
        # a failing probe must not end a run, so every kind of error becomes a warning
        return probe_all(
            features,
            self.probe,
            self.classes,
            self.run.warn,
            names=self.class_names,
            error=Exception,
        )

    def metrics(self, split: str) -> dict[str, Measured]:
        """Return the metrics of the last evaluation, followed by the metrics of the baselines."""
        right = {ENCODER: self.right, **self.baselines}
        return metrics_with_baselines(right, split, self.copies, PROBED, self.paired)

    def _extract(self, readers: Readers) -> dict[str, dict[str, Features]]:
        """Extract the features of all images, and divide the images among the probes' splits.

        The held-out images are the split `test`. If a probe chooses a learning rate, a tenth of the
        training images is the split `validation`.

        Args:
            readers: {ENCODER or a baseline: reader of its features}.

        Returns:
            {split: {reader: features (N, D) and labels (N,)}}.
        """
        train, _ = extract_labelled_features(readers, self.train, self.accelerator)
        test, _ = extract_labelled_features(readers, self.held_out, self.accelerator)
        images = len(next(iter(train.values()))[1])
        set_aside = self.count_choosing_images(images)
        if not set_aside:
            return {"train": train, "test": test}
        # drawn at random because images may be sorted by class
        row_N = torch.from_numpy(rng.permute(np.arange(images), images, rng.key(RATE_KEY)))
        splits: dict[str, dict[str, Features]] = {"train": {}, "validation": {}, "test": test}
        rows = {"train": row_N[set_aside:].sort().values, "validation": row_N[:set_aside]}
        for split, row_S in rows.items():
            for name, (x_ND, label_N) in train.items():
                splits[split][name] = x_ND[row_S], label_N[row_S]
        return splits


def _packed(baselines: Mapping[str, Right]) -> dict[str, Tensor]:
    """Flatten {baseline: {measure: bool (T, M)}} to {"BASELINE/MEASURE": bool (T, M)}."""
    return {
        f"{name}/{measure}": right_TM
        for name, right in baselines.items()
        for measure, right_TM in right.items()
    }


def _unpacked(tensors: Mapping[str, Tensor]) -> dict[str, Right]:
    """Undo `_packed`."""
    by_baseline: dict[str, dict[str, Tensor]] = {}
    for key, right_TM in tensors.items():
        name, _, measure = key.partition("/")
        by_baseline.setdefault(name, {})[measure] = right_TM
    return dict(by_baseline)


def _read(path: Path, conditions: str) -> dict[str, Right] | None:
    """Read the baselines' results that an earlier start of the run has stored.

    Args:
        path: File that `compare` has written.
        conditions: Probes and numbers of images of this start, as `compare` stores them.

    Returns:
        The results, or None if the file is missing, damaged, or was written under other conditions.
    """
    try:
        with safe_open(path, "pt") as file:
            if (file.metadata() or {}).get("asked") != conditions:
                return None
            return _unpacked({key: file.get_tensor(key) for key in file.keys()})  # noqa: SIM118
    except (OSError, SafetensorError):
        return None


def _hash_images(batches: Iterable[Batch]) -> list[str]:
    """Return the SHA-256 of the pixels and labels of each batch.

    Args:
        batches: Batches of this process.
    """
    hashes = []
    for batch in batches:
        digest = hashlib.sha256(batch.image.numpy().tobytes())
        digest.update(batch.label.numpy().tobytes())
        hashes.append(digest.hexdigest())
    return hashes


def label_doubt(source: Source) -> str:
    """Return the reason why the folders that give the labels are probably no classes.

    The reason is that all names are dates, or that half of the folders have fewer than
    FEW_PER_CLASS images. It is empty if neither holds, or if labels do not come from folders.

    Args:
        source: Images with labels.
    """
    if source.labels.source != FOLDERS:
        return ""
    if are_dates(source.classes):
        return DATES
    label_N = source.label_of(np.arange(len(source)))
    _, images_of_folder = np.unique(label_N[label_N >= 0], return_counts=True)
    median = float(np.median(images_of_folder))
    if median >= FEW_PER_CLASS:
        return ""
    return f"half of the folders have at most {format_image_count(int(median))}"


def prepare(
    run: Run, splits: Splits, batch_layout: BatchLayout, accelerator: WatchedAccelerator
) -> tuple[OnlineProbes | None, str]:
    """Read the images of the probes, and create the evaluator that probes a run while it trains.

    With probe.every, the recipe's probes are measured. Otherwise k-NN is measured if the images
    suit it. The encoder is compared with the baselines (`paired`) only on images that were not
    trained on, that chose no weights, and that do not lie in groups. All processes call this
    function.

    Args:
        run: Run that trains.
        splits: Images of the run.
        batch_layout: How batches are divided among the processes.
        accelerator: Processes of the run.

    Returns:
        The evaluator, or None if the run has none, and the reason why k-NN is not measured. The
        reason is empty if there is an evaluator, or if the recipe asks for none.

    Raises:
        UserError: The labels do not suit the probes of probe.every.
    """
    recipe = run.recipe
    probe, every = recipe.probe, recipe.probe.every
    # the accuracy of an objective that learns only labels needs no probe
    learns_only_labels = all(part.labels for part in recipe.declared.trained(recipe))
    measures_knn = recipe.eval.knn and recipe.trains and not learns_only_labels
    if not every and not measures_knn:
        return None, ""
    train = min(probe.images, len(labelled_images(splits.train)))
    first, held_out = 0, split_images.held_out_images(recipe, splits)
    # The best checkpoint may be chosen by a probe or by another metric of held-out images
    best_metric = recipe.checkpoint.best or ""
    is_best_by_probe = best_metric.startswith(PROBE)
    chose_weights = recipe.checkpoint.best is not None
    if not every:
        probe = probe.model_copy(update={"measures": ["knn"]})
        unused = len(splits.validation) - recipe.eval.images
        if best_metric and not is_best_by_probe and unused >= LEAST_HELD_OUT:
            # The first eval.images held-out images choose the checkpoint. Measure on later images
            first, held_out = recipe.eval.images, min(recipe.eval.images, unused)
            chose_weights = False
        train, held_out, every = _choose_sizes(recipe, train, held_out)
        if is_best_by_probe:  # every choice of a checkpoint needs a measurement
            every = recipe.eval.every
        rows = loaders.held_out_rows(splits.validation, held_out, first)
        reason = _why_not_measured(recipe, splits, train, rows)
        if reason:
            return None, reason
    try:
        classes = class_numbers.count_classes(splits, recipe.data, recipe.objective)
    except UserError as error:
        if recipe.probe.every:
            raise
        return None, str(error)

    def batches(source: Source, count: int, first: int = 0) -> list[Batch]:
        return read_batches(source, recipe.data, batch_layout, accelerator, count, skip=first)

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
        paired=not chose_weights and recipe.data.group is None and recipe.data.validation != 0,
        images=(
            count_images(train_batches, accelerator, labelled=True),
            count_images(held_out_batches, accelerator, labelled=True),
        ),
        copies=count_copies_in(held_out_batches, accelerator, labelled=True),
        first=first,
        every=every,
        share=_share(recipe, train + held_out, every),
    )
    return probes_of_run, ""


def _why_not_measured(recipe: Recipe, splits: Splits, train: int, held_out_M: np.ndarray) -> str:
    """Return the reason why k-NN cannot be measured on the images of a run.

    Args:
        recipe: Recipe of the run.
        splits: Images of the run.
        train: Number of training images that k-NN would learn from.
        held_out_M: Rows of the held-out images that k-NN would classify.

    Returns:
        The reason, empty if k-NN can be measured.
    """
    if recipe.data.validation == 0:
        return "no images are held out"
    if not splits.train.labels.source:
        return NO_LABELS
    if splits.train.labels.lists is not None:
        return "the images have lists of labels"
    doubt = label_doubt(splits.train.all_rows())
    if doubt:
        return f"{NO_CLASSES}: {doubt}"
    neighbors = recipe.probe.neighbors
    if train < neighbors:
        return f"there are too few labelled training images ({train:,}) for {neighbors} neighbours"
    labelled = int((splits.validation.label_of(held_out_M) >= 0).sum())
    if labelled >= LEAST_LABELLED:
        return ""
    options = " ".join(_options_for_more_labelled(recipe, splits))
    if not options:
        return f"there are only {labelled:,} labelled held-out images"
    return f"there are only {labelled:,} labelled held-out images ({options} holds out more)"


def _options_for_more_labelled(recipe: Recipe, splits: Splits) -> list[str]:
    """Return the options that would hold out more labelled images, if there are any.

    Args:
        recipe: Recipe of the run.
        splits: Images of the run.
    """
    option = option_for_more_held_out(recipe)
    options = [option] if option else []
    has_unlabelled = len(labelled_images(splits.train)) < len(splits.train)
    is_from_all = recipe.data.validation_from != "labelled"
    is_share = isinstance(recipe.data.validation, float)
    if has_unlabelled and is_from_all and (options or is_share):
        options.append("data.validation_from=labelled")
    return options


def _share(recipe: Recipe, images: int, every: int) -> float:
    """Estimate how much work it takes to extract the probes' features, as a share of training.

    Args:
        recipe: Recipe of the run.
        images: Number of training and held-out images of an evaluation.
        every: Steps between two evaluations.
    """
    work = costs.compute_network_cost(recipe)
    steps = recipe.optim.steps
    # Extraction is a forward pass. Training costs about three forward passes where it is not
    # counted
    forward_share = work.features / (work.training or 3 * work.features)
    # The features of each baseline with a network (untrained weights, weights of init=) are
    # extracted once
    baselines = 1 if recipe.init_source.is_scratch else 2
    evaluations = math.ceil(steps / every) + baselines
    return evaluations * images * forward_share / (steps * recipe.optim.batch)


def _choose_sizes(recipe: Recipe, train: int, held_out: int) -> tuple[int, int, int]:
    """Reduce images and evaluations until k-NN takes at most SHARE of the run's work.

    First images are removed, then every second evaluation, repeatedly. LEAST_TRAINING and
    LEAST_HELD_OUT images, or all if there are fewer, and the evaluation at the end always stay, so
    k-NN may take more than SHARE.

    Args:
        recipe: Recipe of the run.
        train: Number of available training images.
        held_out: Number of available held-out images.

    Returns:
        The number of training images, the number of held-out images, and the steps between two
        evaluations.
    """
    every = recipe.eval.every
    steps = recipe.optim.steps
    affordable = SHARE / _share(recipe, train + held_out, every)  # share of the images
    train = min(train, max(LEAST_TRAINING, int(affordable * train)))
    held_out = min(held_out, max(LEAST_HELD_OUT, int(affordable * held_out)))
    while _share(recipe, train + held_out, every) > SHARE and every < steps:
        every = min(steps, every * 2)
    return train, held_out, every
