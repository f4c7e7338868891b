"""Measure probes of the encoder and of its baselines while a run trains.

With probe.every, the recipe chooses the probes, the images and the interval. Without probe.every,
the probe is k-NN (eval.knn) if the images have labels. The numbers of images and evaluations are
then reduced until k-NN takes at most SHARE of the run's work, within limits (`_choose_sizes`).

Legend: M held-out images, T random draws of few-shot's training images (1 for other probes), N
training images, S images of a split, D width of the features.
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
from ..formatting import copies_text, format_count, format_image_count
from ..measurements import INITIAL, PIXELS, UNTRAINED, MetricKey, flat_name, read_flat_name
from ..metrics import MEASURES, held_out_choices
from ..models import weights
from ..models.encoder import Backbone
from ..objectives.base import Objective
from ..recipe.records.run import Copies, Measurement
from ..recipe.schema import Probe, Recipe, option_for_more_held_out
from ..runs import shared
from ..runs.files import write_atomically
from ..runs.folder import COMPARED, Run
from ..runs.identity import file_hashes
from ..runs.next_steps import NO_CLASSES, NO_LABELS
from ..training import loop
from ..training.distributed import WatchedAccelerator, broadcast_from_main, on_main
from . import label_free, probes, split_images
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

CONDITIONS = "conditions"  # name of the conditions in the metadata of the file COMPARED
RATE_KEY = 8  # key of the permutation that draws images on which a learning rate is chosen
SHARE = 0.03  # share of a run's work that k-NN takes at most, within the limits of `_choose_sizes`
LEAST_LABELLED = 20  # labelled held-out images; an accuracy on fewer says nothing
FEW_PER_CLASS = 5  # images; folders with fewer images are hardly classes
# Least number of images that k-NN learns from and is measured on, if there are enough
LEAST_TRAINING, LEAST_HELD_OUT = 1000, 500


@dataclass(eq=False, repr=False)
class OnlineProbes:
    """Evaluator that probes the current encoder on a fixed set of images.

    Probes learn from training images and are tested on held-out images. The evaluator also measures
    the effective rank of the held-out features, which falls when the features collapse. Measures
    without labels read the held-out images.

    The evaluator draws no random numbers, so every evaluation uses the same images with the same
    crops.

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
            processes. (0, 0) if no probe learns labels.
        few_held_out: {number: the first held-out images, in batches of this process}, for measures
            without labels that need only this number of images.
        copies: Counts of repeated held-out images. None: all images are distinct.
        first: Number of held-out images that are skipped before the first measured image.
        every: Steps between two evaluations.
        share: Share of the run's work that the probes take, 0 to 1.
        baselines: Results of the baselines, on rank 0 once `compare` has run:
            {UNTRAINED, INITIAL, PIXELS or COMMONEST: {measure: bool (T, M), right or wrong}}.
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
    few_held_out: Mapping[int, list[Batch]] = field(default_factory=dict)
    copies: Copies | None = None
    first: int = 0
    every: int = 1
    share: float = 0.0
    baselines: dict[str, Right] = field(init=False, default_factory=dict)
    right: dict[str, Tensor] = field(init=False, default_factory=dict)
    # Flags that are the same on all processes: `compare` was called, an evaluation was run
    has_compared: bool = field(init=False, default=False)
    has_run: bool = field(init=False, default=False)

    def describe(self) -> str:
        """Describe the probes, the images and the interval of evaluations, for the terminal.

        For example: "k-NN of 500 labelled held-out images, fitted to 1,000 training images, every
        200 steps (about 2.5% of the work)".
        """
        measures = ", ".join(MEASURES[name].label or name for name in self.probe.measures)
        train, held_out = self.images
        images = "held-out images"
        if train:
            images = (
                f"{held_out:,} labelled held-out images{copies_text(self.copies)}, fitted to"
                f" {train:,} training images"
            )
        work = f"about {self.share:.1%} of the work"
        return f"{measures} of {images}, every {self.every:,} steps ({work})"

    def names(self) -> list[str]:
        """Return the names of the accuracies that the evaluator measures, such as few_shot_5."""
        return self.probe.metrics_of(self.probe.measures_that_read("feature"))

    def count_images_set_aside(self, images: int) -> int:
        """Return how many of `images` training images are set aside to choose a learning rate.

        This is a tenth of the images, or 0 if no probe chooses a learning rate. The probes do not
        learn from the images set aside.
        """
        return max(1, images // 10) if held_out_choices(self.probe.measures) else 0

    def __call__(self, step: int, row: Row, objective: Objective) -> Iterator[tuple[str, float]]:
        if not self.has_compared:
            self.compare(objective.exported, step)
        self.right = {}
        self.has_run = True
        readers = {ENCODER: feature_reader(objective.exported, self.pool, self.probe.layer)}
        features = self._extract(readers)
        values = self._measure_without_labels(readers)
        if not self.accelerator.is_main_process:
            return
        untrained_right = self.baselines.get(UNTRAINED, {})
        for name, value_2 in values[ENCODER].items():
            self.right[name] = value_2
            for subject, value in {"": value_2, UNTRAINED: untrained_right.get(name)}.items():
                if value is not None:
                    key = MetricKey(name, subject, is_probe=True, is_held_out=True)
                    yield flat_name(key), value[0].item()
        if not features:
            return
        held_out_MD, _ = features["test"][ENCODER]
        if len(held_out_MD):
            yield "features/rank", probes.effective_rank(held_out_MD)
        encoder_features = {split: by_reader[ENCODER] for split, by_reader in features.items()}
        for name, right_TM in run_probes(
            encoder_features, self.probe, self.classes, names=self.class_names
        ):
            self.right[name] = right_TM
            column = MetricKey(name, is_probe=True, is_held_out=True)
            yield flat_name(column), accuracy(right_TM)
            if name in untrained_right:
                untrained_column = column._replace(subject=UNTRAINED)
                yield flat_name(untrained_column), accuracy(untrained_right[name])

    def compare(self, network: Backbone, step: int) -> None:
        """Measure the baselines of the encoder once per run, and store the results. Collective.

        A baseline is, for example, an encoder with untrained weights. A resumed run reads the
        stored results from the run's folder if the images and the options are the same.

        Args:
            network: Encoder of the run.
            step: Steps that the encoder has been trained for.
        """
        self.has_compared = True
        path = self.run.folder / COMPARED
        # Use stored results only if all of this is equal: the probes' options, the numbers of
        # images, and the number of held-out images before the first measured image
        conditions = json.dumps([self.probe.model_dump(), *self.images, self.first])
        stored = broadcast_from_main(self.accelerator, lambda: _read_results(path, conditions))
        if stored is not None:
            self.baselines = stored
            return
        self.baselines = self._measure_baselines(network, step)
        tensors = {
            name: right_TM.contiguous() for name, right_TM in _flatten(self.baselines).items()
        }
        on_main(
            self.accelerator,
            lambda: write_atomically(path, save(tensors, metadata={CONDITIONS: conditions})),
        )

    def _measure_baselines(self, network: Backbone, step: int) -> dict[str, Right]:
        """Measure the baselines of the encoder.

        The baselines are an encoder with untrained weights, the pixels (for k-NN) and the commonest
        class. If the run starts from trained weights (`init=`), the encoder with the trained
        weights is a further baseline (INITIAL), which can be measured only at step 0.

        Args:
            network: Encoder of the run.
            step: Steps that the encoder has been trained for.

        Returns:
            {baseline: {measure: bool (T, M), right or wrong}} on rank 0. Other processes do not
            need the results and may get {}.
        """
        recipe = self.run.recipe
        fresh = fresh_network(recipe.model, recipe.data, recipe.seed).to(self.accelerator.device)
        readers = {UNTRAINED: feature_reader(fresh, self.pool, self.probe.layer)}
        if "knn" in self.probe.measures:
            readers[PIXELS] = pixel_reader(recipe.data)
        with loop.autocast(recipe.compute.precision, self.accelerator):
            baselines = self._measure_once(readers, fresh)
            if step == 0 and not recipe.init_source.is_scratch:
                initial_reader = feature_reader(network, self.pool, self.probe.layer)
                baselines |= self.measure({INITIAL: initial_reader})
        return baselines

    def _measure_once(self, readers: Readers, fresh: Backbone) -> dict[str, Right]:
        """Measure the baselines, or read the results that another task of the study has stored.

        A study trains many runs, called tasks, often on the same images. Two tasks share results if
        images, weights, options, the type of device and the number of threads (which changes the
        rounding of sums) are the same.

        Args:
            readers: {UNTRAINED or PIXELS: reader}.
            fresh: Network with untrained weights, which the reader UNTRAINED uses.

        Returns:
            {baseline: {measure: bool (T, M), right or wrong}} on rank 0. Other processes get the
            same if stored results are read, else {}.
        """
        recipe, accelerator = self.run.recipe, self.accelerator
        if not shared.is_task(self.run.folder):
            return self.measure(readers)
        hashes = [_hash_images(batches) for batches in (self.train, self.held_out)]
        views = label_free.Views.of_training(recipe)
        depends_on = {
            "images": accelerator.gather_parts([hashes]),
            "weights": weights.fingerprint(fresh.state_dict()),
            "data": recipe.data.model_dump(),
            "model": recipe.model.model_dump(),
            "probe": self.probe.model_dump(),
            "pool": self.pool,
            "classes": self.classes,
            "views": str(views) if self.probe.measures_that_read("views") else None,
            "files": file_hashes(recipe),
            "device": accelerator.device.type,
            "precision": recipe.compute.precision,
            "threads": torch.get_num_threads(),
        }
        file = shared.shared_file(self.run.folder, depends_on)
        stored = broadcast_from_main(accelerator, file.read)
        if stored is not None:
            return _unflatten(to_torch(stored))
        measured = self.measure(readers)
        # A baseline that failed is missing in `measured`. Then nothing is stored
        has_all_baselines = readers.keys() <= measured.keys()
        if has_all_baselines:
            file.write(to_numpy(_flatten(measured)))
        return measured

    def measure(self, readers: Readers) -> dict[str, Right]:
        """Run the probes on the features of baselines, for the same images as for the encoder.

        Collective. Call this method under autocast.

        Args:
            readers: {baseline: reader of its features}.

        Returns:
            {baseline: {measure: bool (T, M), right or wrong}} on rank 0, {} on other processes.
        """
        features = self._extract(readers)
        values = self._measure_without_labels(readers)
        if not self.accelerator.is_main_process:
            return {}
        right: dict[str, Right] = {}
        if features:
            # A failing probe must not end a run, so every Exception becomes a warning
            right = probe_all(
                features,
                self.probe,
                self.classes,
                self.run.warn,
                names=self.class_names,
                error=Exception,
            )
        return right | {name: {**right.get(name, {}), **values[name]} for name in values}

    def _measure_without_labels(self, readers: Readers) -> dict[str, dict[str, Tensor]]:
        """Measure the held-out images without labels, see `label_free.measure`. Collective."""
        return label_free.measure(
            {name: reader for name, reader in readers.items() if name != PIXELS},
            self.probe,
            lambda most: self.few_held_out.get(most, self.held_out),
            label_free.Views.of_training(self.run.recipe),
            self.accelerator,
            self.run.warn,
        )

    def measurements(self, split: str) -> list[Measurement]:
        """Return the accuracies of the last evaluation, each followed by those of the baselines."""
        right = {ENCODER: self.right, **self.baselines}
        return metrics_with_baselines(right, split, self.copies, self.paired, is_probe=True)

    def _extract(self, readers: Readers) -> dict[str, dict[str, Features]]:
        """Extract the features of all images, divided into the splits of the probes.

        The split "train", to which probes are fitted, has the run's training images. The split
        "test", on which probes are tested, has the run's held-out images. If a probe chooses a
        learning rate, a tenth of the training images becomes the split "validation" for the choice.

        Args:
            readers: {ENCODER or a baseline: reader of its features}.

        Returns:
            {split: {reader: features (N, D) and labels (N,)}}, empty if no probe reads labels.
        """
        if not self.names():
            return {}
        train, _ = extract_labelled_features(readers, self.train, self.accelerator)
        test, _ = extract_labelled_features(readers, self.held_out, self.accelerator)
        _, label_N = next(iter(train.values()))  # labels are the same for all readers
        images = len(label_N)
        set_aside = self.count_images_set_aside(images)
        if not set_aside:
            return {"train": train, "test": test}
        # Draw at random, because images may be sorted by class
        row_N = torch.from_numpy(rng.permute(np.arange(images), images, rng.key(RATE_KEY)))
        splits: dict[str, dict[str, Features]] = {"train": {}, "validation": {}, "test": test}
        rows = {"train": row_N[set_aside:].sort().values, "validation": row_N[:set_aside]}
        for split, row_S in rows.items():
            for name, (x_ND, label_N) in train.items():
                splits[split][name] = x_ND[row_S], label_N[row_S]
        return splits


def _flatten(baselines: Mapping[str, Right]) -> dict[str, Tensor]:
    """Flatten {baseline: {measure: bool (T, M)}} to {flat name: bool (T, M)}.

    The flat name of a baseline and a measure is that of `flat_name`. `_unflatten` reads it again.
    """
    return {
        flat_name(MetricKey(measure, name)): right_TM
        for name, right in baselines.items()
        for measure, right_TM in right.items()
    }


def _unflatten(tensors: Mapping[str, Tensor]) -> dict[str, Right]:
    """Convert the result of `_flatten` back to {baseline: {measure: bool (T, M)}}."""
    by_baseline: dict[str, dict[str, Tensor]] = {}
    for name, right_TM in tensors.items():
        key = read_flat_name(name)
        by_baseline.setdefault(key.subject, {})[key.metric] = right_TM
    return dict(by_baseline)


def _read_results(path: Path, conditions: str) -> dict[str, Right] | None:
    """Read the baselines' results that the run stored before it was resumed.

    Args:
        path: File that `compare` has written.
        conditions: Probes and numbers of images that the stored results must have, as JSON.

    Returns:
        The results, or None if the file is missing, damaged, or was written under other conditions.
    """
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            if metadata.get(CONDITIONS) != conditions:
                return None
            return _unflatten({key: file.get_tensor(key) for key in file.keys()})  # noqa: SIM118
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


def why_folders_are_not_classes(source: Source) -> str:
    """Return why the folders of images are probably not classes, or "" if folders may be classes.

    Folders are probably not classes if all names are dates, or if the median number of images in a
    folder is smaller than FEW_PER_CLASS. The result is also "" if labels do not come from folders.

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
    """Create the evaluator that probes a run during training, and read the images. Collective.

    With probe.every, the recipe's probes are measured. Otherwise k-NN is measured, if the images
    are suitable. Differences to the baselines (`paired`) are not measured in three cases: the
    encoder is trained on the held-out images (data.validation=0), the measured images choose the
    best checkpoint, or the images form groups (data.group).

    Args:
        run: Run that trains.
        splits: Images of the run.
        batch_layout: How batches are divided among the processes.
        accelerator: Processes of the run.

    Returns:
        Two values. The first is the evaluator, or None if nothing is probed. The second is the
        reason why k-NN is not measured. The reason is empty if there is an evaluator, or if the
        recipe requests no probes.

    Raises:
        UserError: The labels do not suit the probes of probe.every.
    """
    recipe = run.recipe
    probe, every = recipe.probe, recipe.probe.every
    # An objective that learns only labels has an accuracy of its own and needs no probe
    learns_only_labels = all(part.labels for part in recipe.declared.trained(recipe))
    measures_knn = recipe.eval.knn and recipe.trains and not learns_only_labels
    if not every and not measures_knn:
        return None, ""
    without_labels = bool(every) and not probe.measures_that_read("feature")
    train = 0 if without_labels else min(probe.images, len(labelled_images(splits.train)))
    first, held_out = 0, split_images.held_out_images(recipe, splits)
    # The best checkpoint is chosen on held-out images, by a probe or by another metric
    chose_weights = recipe.checkpoint.best is not None
    is_best_by_probe = read_flat_name(recipe.checkpoint.best or "").is_probe
    if not every:
        probe = probe.model_copy(update={"measures": ["knn"]})
        # Only the first eval.images held-out images are used by other evaluations of the run
        unused = len(splits.validation) - recipe.eval.images
        if chose_weights and not is_best_by_probe and unused >= LEAST_HELD_OUT:
            # The first eval.images held-out images choose the checkpoint. Measure on later images
            first, held_out = recipe.eval.images, min(recipe.eval.images, unused)
            chose_weights = False
        train, held_out, every = _choose_sizes(recipe, train, held_out)
        if is_best_by_probe:  # each choice of a checkpoint needs a new measurement
            every = recipe.eval.every
        rows = loaders.held_out_rows(splits.validation, held_out, first)
        reason = _why_not_measured(recipe, splits, train, rows)
        if reason:
            return None, reason
    classes = 0
    try:
        if not without_labels:
            classes = class_numbers.count_classes(splits, recipe.data, recipe.objective)
    except UserError as error:
        if recipe.probe.every:
            raise
        return None, str(error)

    def batches(source: Source, count: int, first: int = 0) -> list[Batch]:
        return read_batches(source, recipe.data, batch_layout, accelerator, count, skip=first)

    train_batches = [] if without_labels else batches(labelled_images(splits.train), train)
    held_out_batches = batches(splits.validation, held_out, first)
    needed = {MEASURES[name].images for name in probe.measures_that_read("views")}
    few_held_out = {
        most: batches(splits.validation, most, first)
        for most in sorted(needed)
        if 0 < most < held_out
    }
    labelled_train = count_images(train_batches, accelerator, labelled=True)
    labelled_held_out = count_images(held_out_batches, accelerator, labelled=True)
    images = (0, 0) if without_labels else (labelled_train, labelled_held_out)
    work = train + held_out * (not without_labels) + probe.count_without_labels(held_out)
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
        images=images,
        few_held_out=few_held_out,
        copies=count_copies_in(held_out_batches, accelerator, labelled=True),
        first=first,
        every=every,
        share=_estimate_share(recipe, work, every),
    )
    return probes_of_run, ""


def _why_not_measured(
    recipe: Recipe, splits: Splits, train_images: int, held_out_M: np.ndarray
) -> str:
    """Return why k-NN cannot be measured on the images of a run.

    Args:
        recipe: Recipe of the run.
        splits: Images of the run.
        train_images: Number of training images that k-NN would learn from.
        held_out_M: Rows of the held-out images that k-NN would classify.

    Returns:
        The reason, empty if k-NN can be measured.
    """
    if recipe.data.validation == 0:
        return "no images are held out"
    if not splits.train.labels.source:
        return NO_LABELS
    if splits.train.labels.lists is not None:  # several labels per image
        return "the images have lists of labels"
    reason = why_folders_are_not_classes(splits.train.all_rows())
    if reason:
        return f"{NO_CLASSES}: {reason}"
    neighbors = recipe.probe.neighbors
    if train_images < neighbors:
        return (
            f"there are too few labelled training images ({train_images:,}) for {neighbors}"
            " neighbours"
        )
    labelled = int((splits.validation.label_of(held_out_M) >= 0).sum())
    if labelled >= LEAST_LABELLED:
        return ""
    options = " ".join(_options_for_more_labelled(recipe, splits))
    too_few = f"the run has only {format_count(labelled, 'labelled held-out images')}"
    return f"{too_few} ({options} holds out more)" if options else too_few


def _options_for_more_labelled(recipe: Recipe, splits: Splits) -> list[str]:
    """Return the options that would hold out more labelled images, empty if there are none.

    For example, ["data.validation=0.2"] holds out a larger share of the training images, and
    ["data.validation_from=labelled"] holds out only labelled images.

    Args:
        recipe: Recipe of the run.
        splits: Images of the run.
    """
    option = option_for_more_held_out(recipe)
    options = [option] if option else []
    has_unlabelled = len(labelled_images(splits.train)) < len(splits.train)
    may_hold_out_unlabelled = recipe.data.validation_from != "labelled"
    # data.validation_from has an effect only if data.validation is a share of the training images.
    # data.validation may be a share already, or the option above makes it a share
    is_share = isinstance(recipe.data.validation, float) or bool(options)
    if has_unlabelled and may_hold_out_unlabelled and is_share:
        options.append("data.validation_from=labelled")
    return options


def _estimate_share(recipe: Recipe, images: int, every: int) -> float:
    """Estimate the work of extracting the probes' features, as a share of the training work.

    Args:
        recipe: Recipe of the run.
        images: Number of training and held-out images of an evaluation.
        every: Steps between two evaluations.
    """
    cost = costs.compute_network_cost(recipe)  # multiply-adds per image
    training = cost.training
    if not training:
        # The cost is unknown. Assume three times the forward pass that extracts features
        training = 3 * cost.features
    forward_share = cost.features / training
    steps = recipe.optim.steps
    # Baselines extract features once for the untrained network, and once for the weights of init=
    extractions_for_baselines = 1 if recipe.init_source.is_scratch else 2
    extractions = math.ceil(steps / every) + extractions_for_baselines
    # Both numbers are in units of training on one image: the probes' work and the run's work
    return extractions * images * forward_share / (steps * recipe.optim.batch)


def _choose_sizes(recipe: Recipe, train: int, held_out: int) -> tuple[int, int, int]:
    """Reduce images and evaluations until k-NN takes at most SHARE of the run's work.

    First, the number of images is reduced, but not below LEAST_TRAINING training images and
    LEAST_HELD_OUT held-out images. Then, if needed, the number of evaluations is halved until k-NN
    takes at most SHARE, or until only the evaluation at the end of the run remains.

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
    # The work is proportional to the images: with this share of the images, k-NN takes SHARE
    image_share = SHARE / _estimate_share(recipe, train + held_out, every)
    train = min(train, max(LEAST_TRAINING, int(image_share * train)))
    held_out = min(held_out, max(LEAST_HELD_OUT, int(image_share * held_out)))
    while _estimate_share(recipe, train + held_out, every) > SHARE and every < steps:
        every = min(steps, every * 2)
    return train, held_out, every
