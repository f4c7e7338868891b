"""Train views to share one normally distributed embedding (LeJEPA: Balestriero and LeCun, 2025).

The embeddings of all views of an image are pulled towards the mean of the two global views. SIGReg
keeps the embeddings of each view close to a standard normal distribution. There is no teacher, and
all parts get a gradient.

Legend: B images of this process, V views of each image (the global views, then the local views), C
width of an embedding, M directions, T points of an integral.
"""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ... import rng
from ...data.augment import VIEWS
from ...data.batching import Batch
from ...models.encoder import Encoder
from ...models.full_precision import full_precision
from .. import global_batch
from ..base import Objective, Output, both_views, sums
from ..building import Settings
from ..global_batch import GlobalBatchNorm
from . import LejepaOptions

STREAM = rng.stream_id("directions")  # computed at import, because the objective is compiled
POINTS = 17  # points of the integral, from -END to END (section 6.1)
END = 5.0


class JointEmbedding(Objective):
    """LeJEPA: prediction of the global views' mean embedding, regularised by SIGReg (algorithm 2).

    The loss is (1 - weight) times the mean squared distance between all views' embeddings and the
    mean of the global views, plus weight times SIGReg averaged over all views.

    In training, SIGReg is computed over the global batch. The directions follow from the run's seed
    and the step. In evaluation, SIGReg is computed over the batch, always along the same
    directions.

    The projector is that of the authors' MINIMAL.md, but linear layers before a batch norm have no
    biases, because the batch norm would remove them. Batch norms compute their statistics over all
    views together.

    Args:
        encoder: A Vision Transformer with patches.
        options: Weight of SIGReg, number of directions and widths of the projector.
        seed: Seed of the run.
    """

    encoder: Encoder
    key_1: Tensor

    def __init__(self, encoder: Encoder, options: LejepaOptions, seed: int) -> None:
        super().__init__(encoder)
        self.weight, self.slices, self.seed = options.weight, options.slices, seed
        hidden = options.hidden
        self.projector = nn.Sequential(
            *(nn.Linear(encoder.width, hidden, bias=False), GlobalBatchNorm(hidden), nn.ReLU()),
            *(nn.Linear(hidden, hidden, bias=False), GlobalBatchNorm(hidden), nn.ReLU()),
            nn.Linear(hidden, options.width),
        )
        self.register_buffer("key_1", torch.zeros(1, dtype=torch.int64), persistent=False)

    def start_step(self, progress: float) -> None:
        super().start_step(progress)
        # The bits of `progress` serve as the key of the step, because they differ between steps
        step = np.float64(progress).view(np.int64)
        self.key_1.fill_(int(rng.stream(rng.key(self.seed, step), STREAM)[0]))

    def forward(self, batch: Batch) -> Output:
        images = len(batch.key)
        global_XD = self.encoder.tokens(both_views(batch).flatten(0, 1))[:, 0]
        features = [global_XD.unflatten(0, (images, -1))]
        if batch.local is not None:
            local_XD = self.encoder.crop_tokens(batch.local.flatten(0, 1))[:, 0]
            features.append(local_XD.unflatten(0, (images, -1)))
        feature_BVD = torch.cat(features, 1)
        z_BVC = self.projector(feature_BVD.flatten(0, 1)).unflatten(0, (images, -1))
        with full_precision(z_BVC.device):
            z_BVC = z_BVC.float()
            centre_B1C = z_BVC[:, :VIEWS].mean(1, keepdim=True)
            prediction_B = (z_BVC - centre_B1C).square().mean((1, 2))
            sigreg_B = self._sigreg(z_BVC).expand(images)
            loss_B = (1 - self.weight) * prediction_B + self.weight * sigreg_B
        metrics = sums(loss=loss_B, prediction_loss=prediction_B, sigreg=sigreg_B)
        return Output(loss_B.mean(), metrics)

    def _sigreg(self, z_BVC: Tensor) -> Tensor:
        """Return SIGReg of the embeddings, averaged over all views, a scalar.

        SIGReg measures how far embeddings are from a standard normal distribution. Embeddings are
        projected onto random directions. SIGReg is the mean of Epps and Pulley's statistic over the
        directions. The statistic is the distance that `distance_from_normal` returns, times the
        number of images.

        Training uses the images of all processes and new directions in each step. Evaluation uses
        the images of this batch and always the same directions, so that results can be compared.

        Args:
            z_BVC: Embeddings of V views of B images.
        """
        key_1 = torch.zeros_like(self.key_1)  # the random key of the directions in evaluation
        images = len(z_BVC)
        mean: Callable[[Tensor], Tensor] = partial(torch.mean, dim=0)
        if self.training:
            key_1 = self.key_1
            images *= global_batch.processes()
            mean = global_batch.mean
        direction_CM = directions(key_1, z_BVC.shape[-1], self.slices)
        # The mean of the statistic over views and directions
        return images * distance_from_normal(z_BVC @ direction_CM, mean).mean()


def directions(key_1: Tensor, width: int, count: int) -> Tensor:
    """Draw M random directions, and return their unit vectors as the columns of (C, M).

    Args:
        key_1: Random key, int64 (1,).
        width: Length C of the vectors.
        count: Number M of directions.
    """
    # The number of index x is computed from two draws, with the counters 2 x and 2 x + 1
    slot_X = 2 * torch.arange(width * count, device=key_1.device)
    # Normally distributed numbers by the method of Box and Muller
    radius_X = (-2 * (1 - rng.uniform(key_1, slot_X)).log()).sqrt()
    normal_X = radius_X * (2 * math.pi * rng.uniform(key_1, slot_X + 1)).cos()
    return F.normalize(normal_X.unflatten(0, (width, count)), dim=0)


def distance_from_normal(x_BVM: Tensor, mean: Callable[[Tensor], Tensor]) -> Tensor:
    """Measure how far numbers are from a standard normal distribution, for each view and direction.

    The result is the integral over t of

        |f(t) - n(t)|^2 n(t),

    where f is the characteristic function of the numbers, and n(t) = exp(-t^2 / 2) is the
    characteristic function of the standard normal distribution. This integral times the number of
    images is the statistic of Epps and Pulley.

    The integral is computed from -END to END by the trapezoidal rule (LeJEPA: Balestriero and
    LeCun, 2025, algorithm 1). The integrand is equal at t and -t, and is 0 at t = 0, so the points
    with t > 0 are enough.

    Args:
        x_BVM: Embeddings of the views, projected onto each direction.
        mean: Function that returns the mean over the first dimension: over the images of all
            processes, or only over the images of this process.

    Returns:
        The distance (V, M), 0 for a perfect normal distribution.
    """
    half = POINTS // 2
    number_T = torch.arange(1, half + 1, device=x_BVM.device)
    t_T = END / half * number_T
    normal_T = (-t_T.square() / 2).exp()
    # Each point has weight 2, for t and for -t, except the end point: in the trapezoidal rule it
    # counts half
    weight_T = END / half * normal_T * (2 - (number_T == half).float())
    angle_BVMT = x_BVM[..., None] * t_T
    real_VMT, imaginary_VMT = mean(angle_BVMT.cos()), mean(angle_BVMT.sin())
    return ((real_VMT - normal_T).square() + imaginary_VMT.square()) @ weight_T


def build(settings: Settings, encoder: Encoder, classes: int) -> JointEmbedding:
    return JointEmbedding(encoder, settings.group(LejepaOptions), settings.seed)
