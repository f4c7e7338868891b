"""Probe frozen features by few-shot least squares, a linear probe and k-NN.

All functions take tensors on one device: features float32 (N, D) and labels int64 (N,) from 0 to
C-1. Predictions are int64 (M,).

Legend: N training images, K held-out images, M test images, D width, A = D + 1 with a constant
feature, C classes, G learning rates, F = G C, B batch, S images that few-shot picks, J neighbours.
"""

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from einops import rearrange
from torch import Tensor
from torch.nn import functional as F

from .. import rng
from ..errors import UserError
from ..formatting import format_count, format_image_count
from ..recipe.probe import Probe
from ..runs import console

SEED = 0  # seed of few-shot choices and of probes' batches, the same in every run
ELEMENTS = 2**25  # largest size of a temporary tensor, to bound memory: 128 MiB in float32
L2, BIAS = 1024.0, 100.0  # few-shot's regularisation and constant feature, by the authors' code
MOMENTUM = 0.9  # momentum of SGD
DRAWN_AT_ONCE = 16  # batches drawn together, which halves the time of drawing one by one
TEMPERATURE = 0.07  # temperature of k-NN's votes (Wu et al., 2018)

# Draws of few-shot images where probe.trials is null: DRAWS if other probes need the features of
# all training images anyway, DRAWS_ALONE if features are extracted for few-shot alone
DRAWS, DRAWS_ALONE = 10, 3

Features = tuple[Tensor, Tensor]  # (N, D) float32 and labels (N,)
Picks = dict[tuple[int, int], Tensor]  # (shots, draw) -> rows of the training features


class Scale(NamedTuple):
    """Mean and standard deviation (D,) of features, in float64.

    Call the object with features to standardise them.

    Attributes:
        mean: Mean of each feature.
        std: Standard deviation of each feature, plus 1e-5 as in the authors' few-shot code.
    """

    mean: Tensor
    std: Tensor

    def __call__(self, x_ND: Tensor, constant: float) -> Tensor:
        """Standardise features and append a constant feature, (N, A) in the precision of x_ND."""
        return F.pad((x_ND - self.mean.to(x_ND)) / self.std.to(x_ND), (0, 1), value=constant)

    def to(self, device: torch.device) -> "Scale":
        return Scale(self.mean.to(device), self.std.to(device))


class ProbeTask(NamedTuple):
    """Options and classes of the probes that classify features.

    Attributes:
        probe: Options of the probes.
        classes: Number of classes C.
        picks: Rows of the training features for few-shot. None: drawn by the probe.
        names: Class names for error messages, if any.
    """

    probe: Probe
    classes: int
    picks: Picks | None = None
    names: Sequence[str] = ()


def classify_by_linear_probe(
    features: Mapping[str, Features], task: ProbeTask
) -> dict[str, list[Tensor]]:
    """Classify the test images by a linear probe (`linear_probe`).

    Args:
        features: {split: features and labels} of the splits "train", "validation" and "test". The
            learning rate is chosen on "validation".
        task: Options and number of classes.

    Returns:
        {"linear": [predicted classes (M,) of the M test images]}.
    """
    return {"linear": [linear_probe(features, task.classes, task.probe)]}


def classify_by_knn(features: Mapping[str, Features], task: ProbeTask) -> dict[str, list[Tensor]]:
    """Classify the test images by a vote of the nearest training images (`knn`).

    Args:
        features: {split: features and labels} of the splits "train" and "test".
        task: Options and number of classes.

    Returns:
        {"knn": [predicted classes (M,) of the M test images]}.
    """
    train_ND, label_N = features["train"]
    test_MD, _ = features["test"]
    k = task.probe.neighbors
    return {"knn": [knn(train_ND, label_N, test_MD, classes=task.classes, k=k)]}


def classify_by_few_shot(
    features: Mapping[str, Features], task: ProbeTask
) -> dict[str, list[Tensor]]:
    """Classify the test images by least squares fitted to few training images per class.

    The fit is repeated for each number of shots (training images per class) and each random draw of
    training images.

    Args:
        features: {split: features and labels} of the splits "train" and "test".
        task: Options and classes, and the picked training images if any.

    Returns:
        {metric: list of predictions}, with a metric for each number of shots, such as "few_shot_5".
        Each list has a tensor (M,) for each draw: the predicted classes of the M test images.
    """
    probe, classes, picks = task.probe, task.classes, task.picks
    train_ND, label_N = features["train"]
    test_MD, _ = features["test"]
    if picks is None:
        draws = DRAWS if probe.trials is None else probe.trials
        picks = pick_shots(label_N, probe, classes, task.names, draws)
    predictions: dict[str, list[Tensor]] = {f"few_shot_{shots}": [] for shots in probe.shots}
    for (shots, _), row_S in picks.items():
        predicted_M = least_squares(train_ND[row_S], label_N[row_S], test_MD, classes=classes)
        predictions[f"few_shot_{shots}"].append(predicted_M)
    return predictions


def pick_shots(
    label_N: Tensor, probe: Probe, classes: int, names: Sequence[str], draws: int
) -> Picks:
    """Pick the training images of few-shot, for each number of shots and each draw.

    Args:
        label_N: Labels of the training images.
        probe: Numbers of shots.
        classes: Number of classes.
        names: Class names for error messages, if any.
        draws: Number of draws, each with another seed.

    Returns:
        {(shots, draw): rows of the picked images}.
    """
    return {
        (shots, draw): sample_shots(label_N, shots, classes, SEED + draw, names)
        for shots in probe.shots
        for draw in range(draws)
    }


def effective_rank(x_ND: Tensor) -> float:
    """Return the effective rank of features (RankMe; Garrido et al., 2023, equation 1).

    This is the exponential of the entropy of s / sum(s), where s are the singular values of the
    features. The result is between 1 (all features in one direction) and min(N, D). Compare only
    results of equal N, because the largest possible result depends on N. The result is NaN if a
    feature is not finite.

    Args:
        x_ND: Features of N images.
    """
    if not x_ND.isfinite().all():
        return math.nan
    return entropy_rank(torch.linalg.svdvals(x_ND.double()))


def entropy_rank(value_D: Tensor) -> float:
    """Return the exponential of the entropy of values, relative to their sum (float64)."""
    total = value_D.sum().clamp(min=torch.finfo(torch.float64).tiny)
    share = value_D / total + 1e-7  # 1e-7 as in equation 1 of RankMe
    return float(torch.exp(-(share * share.log()).sum()))


def least_squares(x_SD: Tensor, label_S: Tensor, test_MD: Tensor, *, classes: int) -> Tensor:
    """Classify test images by few-shot least squares, in closed form.

    This is the few-shot evaluation of the Vision Transformer (Dosovitskiy et al., 2021, section
    4.1). A ridge regression from features to {-1, 1}^C is fitted to the picked images in float64.
    Features are standardised by the mean and deviation of the picked images, as in the authors'
    code.

    Args:
        x_SD: Features of the picked images (`sample_shots`).
        label_S: Labels of the picked images.
        test_MD: Features of the test images.
        classes: Number of classes.

    Returns:
        Predicted classes (M,).
    """
    x_SD = x_SD.double()
    scale = mean_and_std(x_SD)
    # The constant feature BIAS is kept as in the authors' code, but does not change predictions:
    # features have mean 0 and all classes have equally many images, so the constant adds the same
    # number to the scores of all classes
    target_SC = 2.0 * F.one_hot(label_S, classes).double() - 1.0
    weight_AC = _ridge(scale(x_SD, BIAS), target_SC, L2)
    predictions = []
    for x_BD in _chunks(test_MD, classes):
        predictions.append((scale(x_BD.double(), BIAS) @ weight_AC).argmax(1))
    return torch.cat(predictions)


def sample_shots(
    label_N: Tensor, shots: int, classes: int, seed: int, names: Sequence[str] = ()
) -> Tensor:
    """Pick `shots` random images of each class.

    Of each class, the images with the lowest hashes of (seed, row) are picked. Therefore, with the
    same seed, 10 shots contain the images of 5 shots.

    Args:
        label_N: Labels of the images. Images with labels of `classes` or more are never picked.
        shots: Images of each class.
        classes: Number of classes.
        seed: Seed of the hashes.
        names: Class names for the error message, if any.

    Returns:
        Rows of the picked images (S,), class by class.

    Raises:
        UserError: A class has fewer images than shots.
    """
    label = label_N.cpu().numpy()
    images_C = np.bincount(label, minlength=classes)[:classes]
    fewest = images_C.min()
    if fewest < shots:
        too_small = int(np.argmax(images_C < shots))  # the first class with too few images
        if fewest:
            raise UserError(
                f"probe.shots={shots}: class {class_name(too_small, names)} has only"
                f" {format_image_count(images_C[too_small])} to learn from. Use"
                f" probe.shots=[{fewest}], or probe.measures= without few_shot."
            )
        raise UserError(
            f"probe.shots={shots}: class {class_name(too_small, names)} has"
            f" {format_image_count(images_C[too_small])} to learn from. Use probe.measures= without"
            " few_shot."
        )
    hash_N = rng.bits(rng.stream(rng.key(seed), "few-shot"), np.arange(len(label)))
    order_N = np.lexsort((hash_N, label))  # sorted by label, then by hash
    start_C = np.cumsum(images_C) - images_C  # position at which each class begins in order_N
    position_S = (start_C[:, None] + np.arange(shots)).ravel()
    return torch.from_numpy(order_N[position_S]).to(label_N.device)


def class_name(label: int, names: Sequence[str]) -> str:
    """Return the name of a class, or the number if the class has no name."""
    return names[label] if label < len(names) else str(label)


def _ridge(x_SA: Tensor, target_SC: Tensor, l2: float) -> Tensor:
    """Return the weights (A, C) of ridge regression, (X' X + l2 I)^-1 X' Y.

    X are the features (S, A) and Y the targets (S, C). With fewer images than features, the equal
    expression X' (X X' + l2 I)^-1 Y is computed, which inverts a smaller matrix.

    Args:
        x_SA: Standardised features of the picked images, and the constant feature.
        target_SC: 1 for the class of an image, -1 for all other classes.
        l2: Weight of the regularisation.
    """
    images, features = x_SA.shape
    if images >= features:
        return _solve(x_SA.T @ x_SA, x_SA.T @ target_SC, l2)
    return x_SA.T @ _solve(x_SA @ x_SA.T, target_SC, l2)


def _solve(gram: Tensor, right: Tensor, l2: float) -> Tensor:
    """Solve (gram + l2 I) x = right for x by the eigendecomposition of the symmetric `gram`.

    With eigenvectors V and eigenvalues e, x is V diag(1 / (e + l2)) V' right.
    """
    eigenvalues, eigenvectors = torch.linalg.eigh(gram)
    return eigenvectors @ ((eigenvectors.T @ right) / (eigenvalues + l2)[:, None])


def linear_probe(features: Mapping[str, Features], classes: int, probe: Probe) -> Tensor:
    """Classify test images by softmax regression on standardised features.

    The regression is trained on the split "train" once for each learning rate. The test images are
    classified with the rate that has the highest accuracy on the split "validation" (`best_rate`).

    Args:
        features: {split: features and labels} of the splits "train", "validation" and "test".
        classes: Number of classes.
        probe: Learning rates, steps and batch size.

    Returns:
        Predicted classes (M,) of the M test images.

    Raises:
        UserError: Training diverges at every rate.
    """
    train_ND, label_N = features["train"]
    validation_KD, validation_label_K = features["validation"]
    test_MD, _ = features["test"]
    scale = mean_and_std(train_ND)
    weight_GAC = train_linear(train_ND, label_N, scale, classes, probe)
    right_GK = _classify(validation_KD, scale, weight_GAC) == validation_label_K
    accuracy_G = right_GK.double().mean(1).tolist()
    best = best_rate("linear", probe.rates, accuracy_G, weight_GAC)
    best_weight_1AC = weight_GAC[best : best + 1]
    return _classify(test_MD, scale, best_weight_1AC)[0]


def best_rate(
    probe: str, rates: Sequence[float], score_G: Sequence[float], weight_GAC: Tensor
) -> int:
    """Return the index of the learning rate with the highest score on held-out images.

    Of several rates with the highest score, the first is returned. Rates at which training diverged
    (weights are not finite) are left out.

    Args:
        probe: Name of the probe, for the error.
        rates: Learning rates.
        score_G: Score of each rate on held-out images.
        weight_GAC: Trained weights of each rate.

    Raises:
        UserError: Training diverges at every rate.
    """
    is_finite_G = weight_GAC.isfinite().all((1, 2)).tolist()
    finite_rates = [index for index, is_finite in enumerate(is_finite_G) if is_finite]
    if not finite_rates:
        raise UserError(
            f"probe.rates={list(rates)}: the {probe} probe diverges at every learning rate. Use"
            " smaller rates."
        )
    return max(finite_rates, key=lambda index: score_G[index])


def train_linear(x_ND: Tensor, label_N: Tensor, scale: Scale, classes: int, probe: Probe) -> Tensor:
    """Train softmax regression, once for each learning rate.

    All rates see the same batches (`rows_of_batch`).

    Args:
        x_ND: Features of the training images.
        label_N: Labels of the training images.
        scale: Mean and standard deviation of the features.
        classes: Number of classes.
        probe: Learning rates, steps and batch size.

    Returns:
        Weights (G, A, C) of G learning rates, A = D + 1 (D features and the bias) and C classes.
    """

    def gradient(step: int, weight_AF: Tensor) -> Tensor:
        row_B = rows_of_batch(step, probe.batch, len(x_ND)).to(x_ND.device)
        return _gradient(x_ND[row_B], label_N[row_B], scale, weight_AF, len(probe.rates))

    return train_by_sgd(gradient, x_ND.shape[1], classes, probe, x_ND.device)


def train_by_sgd(
    gradient: Callable[[int, Tensor], Tensor],
    width: int,
    classes: int,
    probe: Probe,
    device: torch.device,
) -> Tensor:
    """Train a linear layer by SGD with momentum and cosine decay, once for each learning rate.

    All weights start from zero. All G rates are trained at the same time: one matrix (A, F) has the
    weights of all rates, with A = D + 1 rows (D features and the bias) and F = G C columns, so that
    a single product with the features serves all rates.

    Args:
        gradient: Takes a step and the weights (A, F), and returns the gradient (A, F) of the loss
            on the step's batch.
        width: Width D of the features.
        classes: Number of classes.
        probe: Learning rates and steps.
        device: Device of the weights.

    Returns:
        Weights (G, A, C).
    """
    rate_F = torch.tensor(probe.rates, device=device).repeat_interleave(classes)
    weight_AF = torch.zeros(width + 1, len(rate_F), device=device)
    velocity_AF = torch.zeros_like(weight_AF)
    for step in console.with_progress(range(probe.steps), probe.steps, "steps of a probe"):
        velocity_AF.mul_(MOMENTUM).add_(gradient(step, weight_AF))
        cosine = 0.5 * (1 + math.cos(math.pi * step / probe.steps))  # from 1 to 0
        weight_AF -= cosine * rate_F * velocity_AF
    return rearrange(weight_AF, "a (g c) -> g a c", c=classes)


def rows_of_batch(step: int, batch: int, length: int) -> Tensor:
    """Return the rows of the training images in a step's batch, int64 (batch,).

    Batches are cut from an endless sequence of epochs, each a permutation of `length` rows. For
    example, the epochs (2 0 1) and (1 0 2) of 3 rows give the batches (2 0), (1 1) and (0 2).
    """
    # Batches are drawn in blocks of DRAWN_AT_ONCE. `_draw_block` caches the last block, which
    # serves the next steps too
    block, index_in_block = divmod(step, DRAWN_AT_ONCE)
    return _draw_block(block, batch, length)[index_in_block]


@functools.lru_cache(maxsize=1)
def _draw_block(block: int, batch: int, length: int) -> Tensor:
    """Draw the training rows of DRAWN_AT_ONCE consecutive batches, (DRAWN_AT_ONCE, batch).

    The batches are cut from an endless sequence of epochs, see `rows_of_batch`. Each epoch contains
    all rows once. The random order differs from epoch to epoch.

    Args:
        block: Index of the block in the sequence, from 0.
        batch: Number of images of a batch.
        length: Number of training images, which is the length of an epoch.
    """
    size = DRAWN_AT_ONCE * batch  # number of rows in a block, the dimension I below
    index_I = np.arange(block * size, (block + 1) * size)  # positions in the endless sequence
    epoch_I, position_I = np.divmod(index_I, length)
    key_I = rng.stream(rng.key(SEED, epoch_I), "linear probe")
    # Look up the row at each position of the epoch's random order
    row_I = rng.permute(position_I, length, key_I)
    return torch.from_numpy(row_I).view(DRAWN_AT_ONCE, batch)


def _gradient(
    x_BD: Tensor, label_B: Tensor, scale: Scale, weight_AF: Tensor, groups: int
) -> Tensor:
    """Return the gradient (A, F) of the mean cross-entropy over a batch, for all learning rates.

    One matrix has the weights of all G learning rates, C columns for each. The loss of a rate
    depends only on the columns of the rate, so each rate gets the gradient of the rate's own loss.

    Args:
        x_BD: Features.
        label_B: Labels.
        scale: Mean and standard deviation of the training features.
        weight_AF: Weights of all rates.
        groups: Number of rates G.
    """
    total_AF = torch.zeros_like(weight_AF)
    # Temporary tensors have A or F columns. The larger number decides how many rows fit into memory
    columns = max(weight_AF.shape)
    for x, label in zip(_chunks(x_BD, columns), _chunks(label_B, columns), strict=True):
        x_BA = scale(x, constant=1.0)  # the constant multiplies the bias, the last row of weights
        # The gradient of the cross-entropy with respect to the logits is softmax minus one-hot
        error_BGC = rearrange(x_BA @ weight_AF, "b (g c) -> b g c", g=groups).softmax(2)
        error_BGC -= F.one_hot(label, error_BGC.shape[2])[:, None]
        total_AF += x_BA.T @ rearrange(error_BGC, "b g c -> b (g c)")
    return total_AF / len(x_BD)


def _classify(x_MD: Tensor, scale: Scale, weight_GAC: Tensor) -> Tensor:
    """Predict the class of each row of features at each learning rate, (G, M)."""
    rates, width, classes = weight_GAC.shape
    chunks = _chunks(x_MD, rates * max(width, classes))
    return torch.cat([(scale(x_BD, 1.0) @ weight_GAC).argmax(2) for x_BD in chunks], 1)


def knn(train_ND: Tensor, label_N: Tensor, test_MD: Tensor, *, classes: int, k: int) -> Tensor:
    """Classify test images by a vote of the k nearest training images.

    This is the probe of Wu et al. (2018) and DINO. The similarity of two images is the cosine of
    the features. A vote has the weight exp(similarity / TEMPERATURE).

    Args:
        train_ND: Features of the training images.
        label_N: Labels of the training images.
        test_MD: Features of the test images.
        classes: Number of classes.
        k: Number of neighbours that vote.

    Returns:
        Predicted classes (M,).

    Raises:
        UserError: `k` is larger than the number of training images.
    """
    if k > len(train_ND):
        images = len(train_ND)
        raise UserError(
            f"probe.neighbors={k}: only {format_count(images, 'training images')} to compare with."
            f" Use probe.neighbors={images} or less, or probe.measures= without knn."
        )
    train_ND = F.normalize(train_ND, dim=1)
    predictions = []
    for x_BD in _chunks(test_MD, len(train_ND)):
        similarity_BJ, row_BJ = (F.normalize(x_BD, dim=1) @ train_ND.T).topk(k, dim=1)
        # Divide all weights by that of the nearest neighbour, so that nothing overflows
        weight_BJ = ((similarity_BJ - similarity_BJ[:, :1]).double() / TEMPERATURE).exp()
        vote_BC = weight_BJ.new_zeros(len(x_BD), classes).scatter_add_(
            1, label_N[row_BJ], weight_BJ
        )
        predictions.append(vote_BC.argmax(1))
    return torch.cat(predictions)


def mean_and_std(x_ND: Tensor) -> Scale:
    """Return mean and standard deviation of features, computed chunk by chunk in float64."""
    sums = [x.double().sum(0) for x in _chunks(x_ND)]
    mean_D = torch.stack(sums).sum(0) / len(x_ND)
    sums_of_squares = [(x.double() - mean_D).square().sum(0) for x in _chunks(x_ND)]
    variance_D = torch.stack(sums_of_squares).sum(0) / len(x_ND)
    return Scale(mean_D, variance_D.sqrt() + 1e-5)


def _chunks(x_ND: Tensor, width: int = 1) -> Iterator[Tensor]:
    """Split rows into chunks of at most ELEMENTS values, so that temporary tensors fit into memory.

    Args:
        x_ND: Rows to split.
        width: Number of columns of a matrix that each chunk is multiplied with. The product has at
            most ELEMENTS values, too.
    """
    values_per_row = max(width, x_ND[0].numel())
    return iter(x_ND.split(max(1, ELEMENTS // values_per_row)))
