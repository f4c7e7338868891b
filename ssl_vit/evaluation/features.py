"""Extract features of a frozen encoder and run probes on the features.

Legend: B batch, N images, D width of the features, M images that metrics are measured on, T random
draws of few-shot's training images (1 for other probes), L labelled images, S images that few-shot
picks.
"""

import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import fmean

import numpy as np
import torch
from torch import Tensor

from ..data.batching import Batch, is_labelled
from ..data.contents import count_copies
from ..data.source import Source
from ..errors import NonFiniteError, UserError
from ..formatting import format_image_count
from ..measurements import COMMONEST, PIXELS, SUBSTITUTES
from ..metrics import MEASURES
from ..models.encoder import Backbone
from ..models.full_precision import full_precision
from ..recipe.records.run import Copies
from ..recipe.schema import Probe
from ..training.distributed import WatchedAccelerator
from ..training.loop import to_device
from . import probes
from .images import EvaluationImages
from .probes import DRAWS_ALONE, SEED, Features, Picks

ENCODER = ""  # name of the encoder's reader; UNTRAINED, INITIAL and PIXELS name baselines' readers

# uint8 images (B, 3, H, W) -> features (B, D) or tokens (B, tokens, D)
Reader = Callable[[Tensor], Tensor]
Readers = Mapping[str, Reader]  # {ENCODER, UNTRAINED, ...: reader}
# {measure: whether each image is classified correctly, bool (T, M)}. For a measure without labels:
# {measure: value and number of images, float64 (2,)}
Right = Mapping[str, Tensor]


def feature_reader(net: Backbone, pool: str, layer: int | None) -> Reader:
    """Return a function that reads features of images, see `Backbone.feature`."""
    return lambda image_B3HW: net.feature(image_B3HW, pool, layer)


def is_finite(output_B: Tensor) -> Tensor:
    """Return for each image whether all outputs of a network are finite, bool (B,), on the CPU.

    Args:
        output_B: Features, tokens or logits of B images, of any shape (B, ...).
    """
    if not output_B.numel():
        return torch.ones(len(output_B), dtype=torch.bool)
    low_B, high_B = output_B.flatten(1).aminmax(dim=1)  # both are NaN if any value is NaN
    return (low_B.isfinite() & high_B.isfinite()).cpu()


def check_finite(name: str, finite_N: Tensor) -> None:
    """Check that a network's output is finite for all images.

    Args:
        name: Name of the network: ENCODER, or a baseline of SUBSTITUTES.
        finite_N: Result of `is_finite` for the images.

    Raises:
        NonFiniteError: The output is not finite for some images. The message counts these images.
    """
    images = len(finite_N)
    nonfinite = images - int(finite_N.sum())
    if nonfinite:
        network = SUBSTITUTES.get(name, "this encoder")
        raise NonFiniteError.of(network, nonfinite, images)


class CheckedReader:
    """Reader that records for each image whether the features are finite.

    Call `check` on all processes after the last image.

    Args:
        name: Name of the network, see `check_finite`.
        read: Reader to wrap.
        accelerator: Processes that read images.
    """

    def __init__(self, name: str, read: Reader, accelerator: WatchedAccelerator) -> None:
        self.name, self.read, self.accelerator = name, read, accelerator
        self.finite: list[Tensor] = []

    def __call__(self, image_BCHW: Tensor) -> Tensor:
        output_B = self.read(image_BCHW)
        self.finite.append(is_finite(output_B))
        return output_B

    def check(self) -> None:
        """Check the features that all processes have read since the last check. Collective.

        Raises:
            NonFiniteError: Features of an image are not finite.
        """
        no_image = torch.ones(0, dtype=torch.bool)  # `cat` needs a tensor
        parts = self.accelerator.gather_parts(self.finite)
        self.finite = []
        check_finite(self.name, torch.cat([no_image, *parts]))


def extract_labelled_features(
    readers: Readers, batches: Iterable[Batch], accelerator: WatchedAccelerator
) -> tuple[dict[str, Features], Copies | None]:
    """Extract the features of the labelled images of all processes.

    Collective. Call this function under autocast.

    Args:
        readers: {name: reader of the encoder or a baseline}.
        batches: Batches of this process.
        accelerator: Processes that read images.

    Returns:
        {name: features (L, D) and labels (L,)} of the L labelled images, in the order of the split,
        on the device; and counts of repeated images.

    Raises:
        NonFiniteError: A feature of the encoder is not finite.
    """
    _, label_N, content_N, x_of_name = gather_features(readers, batches, accelerator)
    is_labelled_N = label_N >= 0
    device = accelerator.device
    label_L = torch.from_numpy(label_N[is_labelled_N]).to(device)
    features = {
        name: (torch.from_numpy(x_ND[is_labelled_N]).to(device), label_L)
        for name, x_ND in x_of_name.items()
    }
    return features, count_copies(content_N[is_labelled_N], label_N[is_labelled_N])


@torch.no_grad()
def gather_features(
    readers: Readers, batches: Iterable[Batch], accelerator: WatchedAccelerator
) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Extract features and gather them from all processes, in the order of the split.

    Args:
        readers: {name: reader of the encoder or a baseline}.
        batches: Batches of this process. An image may occur several times.
        accelerator: Processes that read images.

    Returns:
        NumPy arrays for the N images: row in the split (N,), label (N,), hash of the content (N,),
        and {name: features (N, D) float32}.

    Raises:
        NonFiniteError: A feature of the encoder is not finite. The features of baselines are
            checked later, by `probe_all`.
    """
    parts = []
    for batch in batches:
        image_BCHW = to_device(batch, accelerator.device).image
        features = [read(image_BCHW).float().cpu().numpy() for read in readers.values()]
        parts.append((batch.index.numpy(), batch.label.numpy(), batch.content, *features))
    all_parts = accelerator.gather_parts(parts)
    # A part has three arrays, then the features of each reader
    index, label_N, content_N, *feature_arrays = (
        np.concatenate(arrays) for arrays in zip(*all_parts, strict=True)
    )
    order = index.argsort(kind="stable")  # several views of an image keep their order
    x_of_name = {name: x_ND[order] for name, x_ND in zip(readers, feature_arrays, strict=True)}
    if ENCODER in x_of_name:
        check_finite(ENCODER, is_finite(torch.from_numpy(x_of_name[ENCODER])))
    return index[order], label_N[order], content_N[order], x_of_name


def count_copies_in(
    batches: Iterable[Batch], accelerator: WatchedAccelerator, labelled: bool = False
) -> Copies | None:
    """Count the images of all processes that have equal content. Collective.

    Args:
        batches: Batches of this process.
        accelerator: Processes that read images.
        labelled: Whether to count only labelled images.

    Returns:
        The counts of repeated images, or None if all images are distinct.
    """
    parts = []
    for batch in batches:
        assert batch.content is not None
        content_B, label_B = batch.content, batch.label.numpy()
        if labelled:
            is_labelled_B = is_labelled(batch.label).numpy()
            content_B, label_B = content_B[is_labelled_B], label_B[is_labelled_B]
        parts.append((content_B, label_B))
    all_parts = accelerator.gather_parts(parts)
    content_N, label_N = (np.concatenate(arrays) for arrays in zip(*all_parts, strict=True))
    return count_copies(content_N, label_N)


def drop_large_shots(probe: Probe, source: Source, classes: int) -> tuple[Probe, str]:
    """Drop from probe.shots (few-shot images per class) all numbers above the smallest class.

    For example, shots=[1, 5, 10] become [1, 5] if the smallest class has 7 labelled images.

    Args:
        probe: Options of the probes.
        source: Training images.
        classes: Number of classes.

    Returns:
        The changed options, and a note that lists the dropped numbers. The note is empty if no
        number was dropped.

    Raises:
        UserError: The smallest class has too few labelled images for every number of shots.
    """
    if "few_shot" not in probe.measures:
        return probe, ""
    label_N = source.label_of(np.arange(len(source)))
    label_L = torch.from_numpy(label_N[label_N >= 0])
    # This call raises the UserError if the smallest class is too small for the smallest number of
    # shots. The sampled rows are not used
    probes.sample_shots(label_L, min(probe.shots), classes, SEED, source.classes)
    images_C = label_L.bincount(minlength=classes)[:classes]
    smallest = int(images_C.argmin())
    fewest = int(images_C[smallest])
    note = ""
    too_many = ", ".join(str(shots) for shots in probe.shots if shots > fewest)
    if too_many:
        name = probes.class_name(smallest, source.classes)
        note = (
            f"probe.shots={too_many} is left out, because class {name} has"
            f" {format_image_count(fewest)} to learn from"
        )
    fitting = [shots for shots in probe.shots if shots <= fewest]
    return probe.model_copy(update={"shots": fitting}), note


def sample_few_shot(
    readers: Readers, images: EvaluationImages, probe: Probe
) -> tuple[dict[str, Features], Picks]:
    """Pick few-shot training images by label, and extract features of only the picked images.

    Extracting all features would take longer: on ImageNet, 5 shots in 3 draws are 15,000 of 1.28
    million images. An unreadable image is replaced by the next image of the same class. Collective.
    Call this function under autocast.

    Args:
        readers: {name: reader of the encoder or a baseline}.
        images: Images of the evaluation.
        probe: Numbers of shots and of random draws.

    Returns:
        {name: features (S, D) and labels (S,)} of the S images that any draw picks, and
        {(shots, draw): rows of the features}.

    Raises:
        UserError: A class has fewer images than shots.
    """
    source, accelerator = images.splits.train, images.accelerator
    label_N = source.label_of(np.arange(len(source)))
    # index_L[i] is the row in the split of the i-th labelled image. `picks` and row_S hold numbers
    # i of labelled images, so they index index_L and label_L
    index_L = np.flatnonzero(label_N >= 0)
    label_L = torch.from_numpy(label_N[index_L])
    draws = DRAWS_ALONE if probe.trials is None else probe.trials
    while True:  # until all picked images are readable
        picks = probes.pick_shots(label_L, probe, images.classes, source.classes, draws)
        row_S = np.unique(np.concatenate([rows.numpy() for rows in picks.values()]))
        batches = images.read_batches(source, index_L[row_S])
        read_indices, _, _, x_of_name = gather_features(readers, batches, accelerator)
        is_read_S = np.isin(index_L[row_S], read_indices)
        if is_read_S.all():
            break
        label_L[row_S[~is_read_S]] = images.classes  # images with this label are never picked
    device = accelerator.device
    label_S = label_L[row_S].to(device)
    features = {
        name: (torch.from_numpy(x_SD).to(device), label_S) for name, x_SD in x_of_name.items()
    }
    # Convert rows among the labelled images to rows among the S picked images
    picked_rows = {
        key: torch.from_numpy(np.searchsorted(row_S, rows.numpy())) for key, rows in picks.items()
    }
    return features, picked_rows


def run_probes(
    features: Mapping[str, Features],
    probe: Probe,
    classes: int,
    picks: Picks | None = None,
    names: Sequence[str] = (),
) -> Iterator[tuple[str, Tensor]]:
    """Fit probes to training features, and yield which test images each probe classifies correctly.

    Only the probes that read one feature per image are run: k-NN, the linear probe and few-shot.
    The attentive probe (`attentive.py`) and segmentation (`dense.py`) read several tokens of an
    image.

    Probes run in float32 even under a caller's autocast. In bfloat16, different similarities would
    round to equal values, and k-NN would choose other neighbours.

    Args:
        features: {split: features and labels} of the splits "train" and "test", and for the linear
            probe of "validation", which chooses the learning rate. If empty, nothing is yielded.
        probe: Measures (probe.measures) and their options.
        classes: Number of classes.
        picks: Rows of the training features for few-shot. None: drawn here.
        names: Class names for error messages, if any.

    Yields:
        The name of the metric, for example `few_shot_5`, and whether each of M test images is
        classified correctly, bool (T, M), on the CPU. T is the number of random draws of few-shot's
        training images, and 1 for other probes.
    """
    if not features:
        return
    test_MD, test_label_M = features["test"]
    task = probes.ProbeTask(probe, classes, picks, names)
    for measure in probe.measures_that_read("feature"):
        classify = pkgutil.resolve_name(MEASURES[measure].code)  # code is "module:function"
        with full_precision(test_MD.device):
            predictions_by_metric: dict[str, list[Tensor]] = classify(features, task)
        for name, predictions in predictions_by_metric.items():
            right_TM = torch.stack([predicted_M == test_label_M for predicted_M in predictions])
            yield name, right_TM.cpu()


def probe_all(
    features: Mapping[str, Mapping[str, Features]],
    probe: Probe,
    classes: int,
    warn: Callable[[str], None],
    picks: Picks | None = None,
    names: Sequence[str] = (),
    error: type[Exception] = UserError,
) -> dict[str, Right]:
    """Run the probes on the features of the encoder and of each baseline.

    On the pixels, only k-NN is run. A baseline that raises `error` is left out with a warning. An
    error of the encoder is raised.

    Args:
        features: {split: {reader: features and labels}}, where a reader is ENCODER or a baseline.
        probe: Measures (probe.measures) and their options.
        classes: Number of classes.
        warn: Receives the warnings.
        picks: Rows of the training features for few-shot. None: drawn by `run_probes`.
        names: Class names for error messages, if any.
        error: Type of errors that become a warning if a baseline fails.

    Returns:
        {reader: {measure: whether each test image is classified correctly, bool (T, M)}}. The
        entry COMMONEST has, for each measure, the result of always naming the commonest class.
    """
    right: dict[str, Right] = {}
    only_knn = probe.model_copy(update={"measures": ["knn"]})
    for name in features["test"]:
        by_split = {split: by_reader[name] for split, by_reader in features.items()}
        options = only_knn if name == PIXELS else probe
        with warn_if_baseline_fails(name, error, warn):
            for x_ND, _ in by_split.values():
                check_finite(name, is_finite(x_ND))
            right[name] = dict(run_probes(by_split, options, classes, picks, names))
    _, label_M = next(iter(features["test"].values()))
    # The result is the same for every measure, but each measure needs an entry
    commonest: dict[str, Tensor] = {}
    for by_measure in right.values():
        commonest |= {measure: is_commonest(label_M) for measure in by_measure}
    return right | {COMMONEST: commonest}


def is_commonest(label_M: Tensor) -> Tensor:
    """Return which test images have the commonest label, bool (1, M), on the CPU."""
    if not len(label_M):  # mode() needs a label
        return torch.ones(1, 0, dtype=torch.bool)
    return (label_M == label_M.mode().values)[None].cpu()


@contextmanager
def warn_if_baseline_fails(
    name: str, error: type[Exception], warn: Callable[[str], None] | None
) -> Iterator[None]:
    """Turn an error of a baseline into a warning. An error of the encoder is raised.

    Args:
        name: Name of the network: ENCODER, or a baseline of SUBSTITUTES.
        error: Type of the errors to catch.
        warn: Receives the warning. None: no warning on this process.
    """
    try:
        yield
    except error as reason:
        if name == ENCODER:
            raise
        if warn:
            warn(f"no result for {SUBSTITUTES[name]}: {reason}")


def accuracy(right_TM: Tensor) -> float:
    """Return the share of correctly classified images, averaged over the T draws."""
    return fmean(right_M.double().mean().item() for right_M in right_TM)
