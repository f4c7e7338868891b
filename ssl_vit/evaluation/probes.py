"""Probes of frozen features: few-shot least squares, a linear probe and k-NN.

All are functions of tensors on one device: features float32 (N, D), labels int64 (N,) from 0 to
C-1, predictions int64 (M,). Legend: N training images, K those of the dev split, M those of the
test, D width, A width and constant, C classes, G learning rates, B batch, S images that few-shot
picks, J neighbours.
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
from ..formatting import count_of_images
from ..recipe.probe import Probe
from ..runs import console

SEED = 0  # of the few-shot choices and of the batches of probes: the same in every run
ELEMENTS = 2**25  # of the largest temporary, so that memory stays bounded: 128 MiB in float32
L2, BIAS = 1024.0, 100.0  # of few-shot's least squares, and the constant's value: the authors' code
MOMENTUM = 0.9  # of SGD
DRAWN_AT_ONCE = 16  # batches whose rows are drawn together: one by one they take half of the time
TEMPERATURE = 0.07  # of k-NN's votes: Wu et al., 2018

Features = tuple[Tensor, Tensor]  # (N, D) float32 and labels (N,)


class Scale(NamedTuple):
    """Mean and standard deviation (D,) in float64, the latter plus 1e-5 as in the authors' few-shot
    code."""

    mean: Tensor
    std: Tensor

    def __call__(self, x_ND: Tensor, constant: float) -> Tensor:
        """Standardised features of x's own precision, and the constant as one more (N, A)."""
        return F.pad((x_ND - self.mean.to(x_ND)) / self.std.to(x_ND), (0, 1), value=constant)

    def to(self, device: torch.device) -> "Scale":
        return Scale(self.mean.to(device), self.std.to(device))


def effective_rank(x_ND: Tensor) -> float:
    """The exponential of the entropy of the features' singular values, divided by their sum: from 1
    (one direction holds all) to min(N, D), so it compares at equal N only; nan where a feature is
    not finite (RankMe; Garrido et al., 2023, equation 1)."""
    if not x_ND.isfinite().all():
        return math.nan
    singular = torch.linalg.svdvals(x_ND.double())
    share = singular / singular.sum().clamp(min=torch.finfo(torch.float64).tiny) + 1e-7
    return float(torch.exp(-(share * share.log()).sum()))


def least_squares(x_SD: Tensor, label_S: Tensor, test_MD: Tensor, *, classes: int) -> Tensor:
    """Few-shot: regularised least squares onto {-1, 1}^C in closed form (paper, 4.1) from the
    picked images (`sample_shots`), in float64, whitened by their own mean and deviation, as in the
    authors' code."""
    x_SD = x_SD.double()
    scale = moments(x_SD)
    # whitened and with as many of each class, the constant weighs the same for all: it moves
    # scores, never the highest one
    target_SC = 2.0 * F.one_hot(label_S, classes).double() - 1.0
    weight_AC = _ridge(scale(x_SD, BIAS), target_SC, L2)
    return torch.cat(
        [(scale(x.double(), BIAS) @ weight_AC).argmax(1) for x in _chunks(test_MD, classes)]
    )


def sample_shots(
    label_N: Tensor, shots: int, classes: int, seed: int, names: Sequence[str] = ()
) -> Tensor:
    """Rows (S,) of `shots` images of each class, class by class: those whose hash of (seed, row) is
    lowest. The seed's fewer shots are among its more. Of labels from `classes` on none is picked.
    `names`: of the classes, where they have some.

    Raises:
        UserError: a class has fewer images than shots.
    """
    label = label_N.cpu().numpy()
    count_C = np.bincount(label, minlength=classes)[:classes]
    if count_C.min() < shots:
        short = int(np.argmax(count_C < shots))
        fits = f"at most {count_C.min()}, as the smallest class has, or " if count_C.min() else ""
        has = f"class {class_name(short, names)} has {count_of_images(count_C[short])}"
        text = f"{has} to learn from; expected {fits}probe.measures= without few_shot"
        raise UserError(f"probe.shots={shots}: {text}")
    place_N = rng.bits(rng.stream(rng.key(seed), "few-shot"), np.arange(len(label)))
    order_N = np.lexsort((place_N, label))
    first_C = np.cumsum(count_C) - count_C
    row_S = order_N[(first_C[:, None] + np.arange(shots)).ravel()]
    return torch.from_numpy(row_S).to(label_N.device)


def class_name(label: int, names: Sequence[str]) -> str:
    """The name of a class, or its number where it has none."""
    return names[label] if label < len(names) else str(label)


def _ridge(x_SA: Tensor, target_SC: Tensor, l2: float) -> Tensor:
    """(X'X + l2 I)^-1 X'Y, from the eigenvectors of X'X or, where there are fewer images than
    features, of XX'."""
    if x_SA.shape[0] >= x_SA.shape[1]:
        return _solved(x_SA.T @ x_SA, x_SA.T @ target_SC, l2)
    return x_SA.T @ _solved(x_SA @ x_SA.T, target_SC, l2)


def _solved(gram: Tensor, right: Tensor, l2: float) -> Tensor:
    """(gram + l2 I)^-1 right, of a symmetric matrix."""
    value, vector = torch.linalg.eigh(gram)
    return vector @ ((vector.T @ right) / (value + l2)[:, None])


def linear_probe(seen: Mapping[str, Features], classes: int, probe: Probe) -> Tensor:
    """Predictions (M,) of softmax regression on standardised features of seen["train"], trained at
    each rate, for seen["test"]: those of the rate with the highest accuracy on seen["validation"]
    (ties: the first) of the ones that did not diverge.

    Raises:
        UserError: every rate diverges.
    """
    (train_ND, label_N), (dev_KD, dev_label_K), (test_MD, _) = (
        seen[split] for split in ("train", "validation", "test")
    )
    scale = moments(train_ND)
    weight_GAC = train_linear(train_ND, label_N, scale, classes, probe)
    right_GK = _classify(dev_KD, scale, weight_GAC) == dev_label_K
    best = best_rate("linear", probe.rates, right_GK.double().mean(1).tolist(), weight_GAC)
    return _classify(test_MD, scale, weight_GAC[best : best + 1])[0]


def best_rate(
    probe: str, rates: Sequence[float], score_G: Sequence[float], weight_GAC: Tensor
) -> int:
    """The place of the rate with the highest score on held-out images (ties: the first) of those
    whose weights are finite; `probe` is its name in the error.

    Raises:
        UserError: every rate diverges.
    """
    finite = weight_GAC.isfinite().all((1, 2)).tolist()
    if not any(finite):
        text = f"the {probe} probe diverges at each; expected smaller ones"
        raise UserError(f"probe.rates={list(rates)}: {text}")
    return max((g for g, ok in enumerate(finite) if ok), key=lambda g: score_G[g])


def train_linear(x_ND: Tensor, label_N: Tensor, scale: Scale, classes: int, probe: Probe) -> Tensor:
    """Weights (G, A, C) of softmax regression. All rates see the same batches (`rows_of_batch`)."""

    def gradient(step: int, weight_AF: Tensor) -> Tensor:
        row_B = rows_of_batch(step, probe.batch, len(x_ND)).to(x_ND.device)
        return _gradient(x_ND[row_B], label_N[row_B], scale, weight_AF, len(probe.rates))

    return descend(gradient, x_ND.shape[1], classes, probe, x_ND.device)


def descend(
    gradient: Callable[[int, Tensor], Tensor],
    width: int,
    classes: int,
    probe: Probe,
    device: torch.device,
) -> Tensor:
    """Weights (G, A, C) from zero by SGD with momentum and cosine decay, the rates side by side:
    one product serves all, as F = G C.

    Args:
        gradient: of a step's batch at the weights (A, F), each group's own.
        width: of the features.
        classes: of the weights.
        probe: rates and steps.
        device: of the weights.
    """
    rate_F = torch.tensor(probe.rates, device=device).repeat_interleave(classes)
    weight_AF = torch.zeros(width + 1, len(rate_F), device=device)
    velocity_AF = torch.zeros_like(weight_AF)
    for step in console.told(range(probe.steps), probe.steps, "steps of a probe"):
        velocity_AF.mul_(MOMENTUM).add_(gradient(step, weight_AF))
        weight_AF -= 0.5 * (1 + math.cos(math.pi * step / probe.steps)) * rate_F * velocity_AF
    return rearrange(weight_AF, "a (g c) -> g a c", c=classes)


def rows_of_batch(step: int, batch: int, length: int) -> Tensor:
    """Rows of batch `step` of an endless stream of permuted epochs."""
    block, place = divmod(step, DRAWN_AT_ONCE)
    return _rows_of_block(block, batch, length)[place]


@functools.lru_cache(maxsize=1)
def _rows_of_block(block: int, batch: int, length: int) -> Tensor:
    """Return the rows of DRAWN_AT_ONCE batches, one batch in each row of the tensor."""
    first, count = block * DRAWN_AT_ONCE * batch, DRAWN_AT_ONCE * batch
    epoch_S, place_S = np.divmod(np.arange(first, first + count), length)
    key_S = rng.stream(rng.key(SEED, epoch_S), "linear probe")
    return torch.from_numpy(rng.permute(place_S, length, key_S)).view(DRAWN_AT_ONCE, batch)


def _gradient(
    x_BD: Tensor, label_B: Tensor, scale: Scale, weight_AF: Tensor, groups: int
) -> Tensor:
    """Of the mean cross-entropy over the batch, at each group's own weights (A, G C)."""
    total_AF = torch.zeros_like(weight_AF)
    width = max(weight_AF.shape)
    for x, label in zip(_chunks(x_BD, width), _chunks(label_B, width), strict=True):
        x_BA = scale(x, 1.0)
        error_BGC = rearrange(x_BA @ weight_AF, "b (g c) -> b g c", g=groups).softmax(2)
        error_BGC -= F.one_hot(label, error_BGC.shape[2])[:, None]
        total_AF += x_BA.T @ rearrange(error_BGC, "b g c -> b (g c)")
    return total_AF / len(x_BD)


def _classify(x_MD: Tensor, scale: Scale, weight_GAC: Tensor) -> Tensor:
    """Each group's class for each image (G, M)."""
    width = weight_GAC.shape[0] * max(weight_GAC.shape[1:])
    return torch.cat([(scale(x, 1.0) @ weight_GAC).argmax(2) for x in _chunks(x_MD, width)], 1)


def knn(train_ND: Tensor, label_N: Tensor, test_MD: Tensor, *, classes: int, k: int) -> Tensor:
    """The k nearest by cosine similarity vote with weight exp(similarity / temperature) (Wu et al.,
    2018; DINO's probe).

    Raises:
        UserError: k is more than the training images.
    """
    if k > len(train_ND):
        text = "expected at most so many, or probe.measures= without knn"
        raise UserError(f"probe.neighbors={k}: there are {len(train_ND)} training images; {text}")
    train_ND = F.normalize(train_ND, dim=1)
    predictions = []
    for x_BD in _chunks(test_MD, len(train_ND)):
        near_BJ, row_BJ = (F.normalize(x_BD, dim=1) @ train_ND.T).topk(k, dim=1)
        # the nearest's is 1: nothing overflows
        weight_BJ = ((near_BJ - near_BJ[:, :1]).double() / TEMPERATURE).exp()
        vote_BC = weight_BJ.new_zeros(len(x_BD), classes).scatter_add_(
            1, label_N[row_BJ], weight_BJ
        )
        predictions.append(vote_BC.argmax(1))
    return torch.cat(predictions)


def moments(x_ND: Tensor) -> Scale:
    """In two passes of chunks, so that float64 never holds all of x."""
    mean_D = torch.stack([x.double().sum(0) for x in _chunks(x_ND)]).sum(0) / len(x_ND)
    squares = [(x.double() - mean_D).square().sum(0) for x in _chunks(x_ND)]
    square_D = torch.stack(squares).sum(0) / len(x_ND)
    return Scale(mean_D, square_D.sqrt() + 1e-5)


def _chunks(x_ND: Tensor, width: int = 1) -> Iterator[Tensor]:
    """Rows in parts, so that neither a part nor its product of `width` columns has more than
    ELEMENTS."""
    return iter(x_ND.split(max(1, ELEMENTS // max(width, x_ND[0].numel()))))
