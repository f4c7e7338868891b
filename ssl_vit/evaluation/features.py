"""Extract features of a frozen encoder and run probes on the features.

Legend: B batch, N images, D width of the features, M images that metrics are measured on, T trials,
L labelled images, S images that few-shot picks.
"""

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
from ..formatting import count_of_images
from ..metrics import COMMONEST, PIXELS, PROBE_BASELINES
from ..models.encoder import Backbone
from ..models.full_precision import full_precision
from ..recipe.records.run import Copies
from ..recipe.schema import Probe
from ..training.distributed import WatchedAccelerator
from ..training.loop import to_device
from . import probes
from .images import Images
from .probes import SEED, Features

# Draws of few-shot images where probe.trials is null: DRAWS if other probes need the features of
# all training images anyway, DRAWS_ALONE if features are extracted for few-shot alone
DRAWS, DRAWS_ALONE = 10, 3
ENCODER = ""  # name of the encoder's reader; FRESH, START and PIXELS name those of baselines

# uint8 images (B, 3, H, W) -> features (B, D) or tokens (B, T, D)
Reader = Callable[[Tensor], Tensor]
Readers = Mapping[str, Reader]  # {ENCODER, FRESH, ...: reader}
Picks = dict[tuple[int, int], Tensor]  # (shots, trial) -> rows of the training features
Right = Mapping[str, Tensor]  # {measure: whether each image is right, bool (T, M)}


def feature_reader(net: Backbone, pool: str, layer: int | None) -> Reader:
    return lambda image_B3HW: net.feature(image_B3HW, pool, layer)


def is_finite(output_B: Tensor) -> Tensor:
    """Return whether all values of each image's features, tokens or logits (B, ...) are finite.

    The result is bool (B,), on the CPU.
    """
    if not output_B.numel():
        return torch.ones(len(output_B), dtype=torch.bool)
    low_B, high_B = output_B.flatten(1).aminmax(dim=1)  # both are NaN if any value is NaN
    return (low_B.isfinite() & high_B.isfinite()).cpu()


def check_finite(name: str, finite_N: Tensor) -> None:
    """Check that a network's output is finite for all images.

    Args:
        name: The network: ENCODER, or a baseline of PROBE_BASELINES.
        finite_N: Result of `is_finite` for the images.

    Raises:
        NonFiniteError: The output for some images is not finite. The message has their number.
    """
    count = len(finite_N) - int(finite_N.sum())
    if count:
        network = PROBE_BASELINES.get(name, "this encoder")
        raise NonFiniteError.of(network, count, len(finite_N))


class CheckedReader:
    """Reader that records for each image whether the features are finite.

    Args:
        name: The network, see `check_finite`.
        read: The reader to check.
        accelerator: The processes that read images.
    """

    def __init__(self, name: str, read: Reader, accelerator: WatchedAccelerator) -> None:
        self.name, self.read, self.accelerator = name, read, accelerator
        self.finite: list[Tensor] = []

    def __call__(self, image_BCHW: Tensor) -> Tensor:
        output_B = self.read(image_BCHW)
        self.finite.append(is_finite(output_B))
        return output_B

    def check(self) -> None:
        """Check all images that any process has read since the last check. Collective.

        Raises:
            NonFiniteError: Features of an image are not finite.
        """
        parts, self.finite = self.accelerator.gather_parts(self.finite), []
        check_finite(self.name, torch.cat([torch.ones(0, dtype=torch.bool), *parts]))


def extract(
    readers: Readers, batches: Iterable[Batch], accelerator: WatchedAccelerator
) -> tuple[dict[str, Features], Copies | None]:
    """Extract each reader's features of the labelled images of all processes. The caller enters
    autocast.

    Returns:
        {reader: features and labels}, in the order of the split, on the device, and the copies
        among these images.

    Raises:
        NonFiniteError: See `gathered`.
    """
    _, label_N, content_N, read = gathered(readers, batches, accelerator)
    known_N = label_N >= 0
    device = accelerator.device
    label_L = torch.from_numpy(label_N[known_N]).to(device)
    features = {
        name: (torch.from_numpy(x_ND[known_N]).to(device), label_L) for name, x_ND in read.items()
    }
    return features, count_copies(content_N[known_N], label_N[known_N])


@torch.no_grad()
def gathered(
    readers: Readers, batches: Iterable[Batch], accelerator: WatchedAccelerator
) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Gather each reader's features over all processes' batches.

    Returns:
        Index (N,), ascending, label (N,), content (N,), and features (N, D) by reader.

    Raises:
        NonFiniteError: A feature of the encoder is not finite. `all_right` checks the baselines.
    """
    parts = []
    for batch in batches:
        image_BCHW = to_device(batch, accelerator.device).image
        features = [read(image_BCHW).float().cpu().numpy() for read in readers.values()]
        parts.append((batch.index.numpy(), batch.label.numpy(), batch.content, *features))
    index, label_N, content_N, *feature_list = (
        np.concatenate(arrays) for arrays in zip(*accelerator.gather_parts(parts), strict=True)
    )
    order = index.argsort()
    by_name = {name: x_ND[order] for name, x_ND in zip(readers, feature_list, strict=True)}
    if ENCODER in by_name:
        check_finite(ENCODER, is_finite(torch.from_numpy(by_name[ENCODER])))
    return index[order], label_N[order], content_N[order], by_name


def copies_in(
    batches: Iterable[Batch], accelerator: WatchedAccelerator, labelled: bool = False
) -> Copies | None:
    """Count the copies among all processes' images, or among labelled images only.

    Returns:
        The copies, or None if all images are distinct. All processes must call the function.
    """
    parts = []
    for batch in batches:
        assert batch.content is not None
        kept_B = is_labelled(batch.label).numpy() | (not labelled)
        parts.append((batch.content[kept_B], batch.label.numpy()[kept_B]))
    content_N, label_N = map(np.concatenate, zip(*accelerator.gather_parts(parts), strict=True))
    return count_copies(content_N, label_N)


def with_shots_that_fit(probe: Probe, source: Source, classes: int) -> tuple[Probe, str]:
    """Drop the shots of a probe for which a class has too few labelled images.

    Returns:
        The changed probe, and a sentence that says what was dropped, empty if nothing was.

    Raises:
        UserError: A class has too few images for all shots.
    """
    if "few_shot" not in probe.measures:
        return probe, ""
    label_N = source.label_of(np.arange(len(source)))
    label_L = torch.from_numpy(label_N[label_N >= 0])
    probes.sample_shots(label_L, min(probe.shots), classes, SEED, source.classes)
    count_C = label_L.bincount(minlength=classes)[:classes]
    smallest = int(count_C.argmin())
    fewest = int(count_C[smallest])
    left_out = ", ".join(str(shots) for shots in probe.shots if shots > fewest)
    name = probes.class_name(smallest, source.classes)
    has = f"class {name} has {count_of_images(fewest)} to learn from"
    text = f"probe.shots={left_out} is left out, because {has}" if left_out else ""
    fitting = [shots for shots in probe.shots if shots <= fewest]
    return probe.model_copy(update={"shots": fitting}), text


def sample_few_shot(
    readers: Readers, images: Images, probe: Probe
) -> tuple[dict[str, Features], Picks]:
    """Choose few-shot training images by label and extract features of these images only.

    On ImageNet, 5 shots in 3 trials are 15,000 of 1.28 million images. An unreadable image is
    replaced by the next image of its class. The caller enters autocast.

    Returns:
        Each reader's features of the chosen images, and the rows of these features for each trial.

    Raises:
        UserError: A class has fewer images than shots.
    """
    source, accelerator = images.splits.train, images.accelerator
    label_N = source.label_of(np.arange(len(source)))
    place_L = np.flatnonzero(label_N >= 0)  # `sample_shots` counts labelled images only
    label_L = torch.from_numpy(label_N[place_L])
    while True:
        draws = probe.trials or DRAWS_ALONE
        picks = _picks(label_L, probe, images.classes, source.classes, draws)
        row_S = np.unique(np.concatenate([rows.numpy() for rows in picks.values()]))
        batches = images.batches(source, place_L[row_S])
        index, _, _, read = gathered(readers, batches, accelerator)
        is_read_S = np.isin(place_L[row_S], index)
        if is_read_S.all():
            break
        label_L[row_S[~is_read_S]] = images.classes  # images with this label are never picked
    device = accelerator.device
    label_S = label_L[row_S].to(device)
    drawn = {name: (torch.from_numpy(x_SD).to(device), label_S) for name, x_SD in read.items()}
    places = {
        key: torch.from_numpy(np.searchsorted(row_S, rows.numpy())) for key, rows in picks.items()
    }
    return drawn, places


def _picks(label_N: Tensor, probe: Probe, classes: int, names: Sequence[str], draws: int) -> Picks:
    return {
        (shots, trial): probes.sample_shots(label_N, shots, classes, SEED + trial, names)
        for shots in probe.shots
        for trial in range(draws)
    }


def run_probes(
    seen: Mapping[str, Features],
    probe: Probe,
    classes: int,
    picks: Picks | None = None,
    names: Sequence[str] = (),
) -> Iterator[tuple[str, Tensor]]:
    """Train each probe of probe.measures on seen["train"], and yield which test images are right.

    Probes run in float32 even under a caller's autocast, because in bfloat16 different similarities
    become equal and other neighbours become the nearest.

    Args:
        seen: {split: features}. The linear probe's learning rate is chosen on seen["validation"].
            Empty: nothing is yielded.
        probe: The measures and their options.
        classes: Number of classes.
        picks: Rows for few-shot, if already sampled.
        names: Names of the classes, if any.

    Yields:
        The measure, and whether each image of seen["test"] is right, bool (trials, M), on the CPU.
    """
    if not seen:
        return
    (train_ND, label_N), (test_ND, test_N) = seen["train"], seen["test"]
    exact = full_precision(test_ND.device)

    def right(*predictions: Tensor) -> Tensor:
        return torch.stack([pred_N == test_N for pred_N in predictions]).cpu()

    if "linear" in probe.measures:
        with exact:
            classified = probes.linear_probe(seen, classes, probe)
        yield "linear", right(classified)
    if "knn" in probe.measures:
        with exact:
            nearest = probes.knn(train_ND, label_N, test_ND, classes=classes, k=probe.neighbors)
        yield "knn", right(nearest)
    if "few_shot" in probe.measures:
        if picks is None:
            picks = _picks(label_N, probe, classes, names, probe.trials or DRAWS)
        for shots in probe.shots:
            chosen = [rows for (each, _), rows in picks.items() if each == shots]
            with exact:
                predictions = [
                    probes.least_squares(train_ND[row_S], label_N[row_S], test_ND, classes=classes)
                    for row_S in chosen
                ]
            yield f"few_shot_{shots}", right(*predictions)


def all_right(
    seen: Mapping[str, Mapping[str, Features]],
    probe: Probe,
    classes: int,
    warn: Callable[[str], None],
    picks: Picks | None = None,
    names: Sequence[str] = (),
    error: type[Exception] = UserError,
) -> dict[str, Right]:
    """Run the probes for the encoder and each baseline, and return which test images are right.

    For the pixels, only k-NN is run, because there is no network. A baseline that fails by `error`
    is left out with a warning (see `failing_left_out`).

    Args:
        seen: {split: {reader: features}}.
        probe, classes, picks, names: See `run_probes`.
        warn: Receives warnings.
        error: Type of the errors by which a baseline may fail.

    Returns:
        {reader: {measure: right}}, and under COMMONEST the result of `commonest` for each measure.
    """
    right: dict[str, Right] = {}
    for name in seen["test"]:
        of = probe.model_copy(update={"measures": ["knn"]}) if name == PIXELS else probe
        by_split = {split: read[name] for split, read in seen.items()}
        with failing_left_out(name, error, warn):
            for x_ND, _ in by_split.values():
                check_finite(name, is_finite(x_ND))
            right[name] = dict(run_probes(by_split, of, classes, picks, names))
    label_M = next(iter(seen["test"].values()))[1]
    named = {measure: commonest(label_M) for measures in right.values() for measure in measures}
    return right | {COMMONEST: named}


def commonest(label_M: Tensor) -> Tensor:
    """Return which test images have the commonest label, bool (1, M), on the CPU."""
    return (label_M == (label_M.mode().values if len(label_M) else -1))[None].cpu()


@contextmanager
def failing_left_out(
    name: str, error: type[Exception], warn: Callable[[str], None] | None
) -> Iterator[None]:
    """Turn an error of a baseline into a warning. An error of the encoder is raised.

    Args:
        name: The encoder or the baseline.
        error: Type of the errors to catch.
        warn: Receives the warning, on one process.
    """
    try:
        yield
    except error as reason:
        if name == ENCODER:
            raise
        if warn:
            warn(f"no result for {PROBE_BASELINES[name]}: {reason}")


def accuracy(right_TM: Tensor) -> float:
    """Return the share of images that are right, averaged over trials."""
    return fmean(right_M.double().mean().item() for right_M in right_TM)
