"""Share code among objectives that predict corrupted patches: loss, metrics and baselines.

Legend: B batch, N patches, K corrupted patches of each image, A outputs for a patch.
"""

from abc import abstractmethod
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ..data.batching import Batch
from ..errors import UserError
from ..metrics import KINDS
from ..models.encoder import Encoder
from . import corruption, reconstruction
from .base import Metrics, Objective, Output, place
from .targets.patch_targets import Target
from .teacher import Averages

NUMBERS = dict(zip(KINDS, (corruption.MASK, corruption.RANDOM, corruption.KEEP), strict=True))


class PatchPrediction(Objective):
    """Objective that predicts corrupted patches. The loss is the mean over all corrupted patches.

    Args:
        encoder: a Vision Transformer with patches.
        target: what is predicted of a patch, and the loss.
        rate: share of each image's patches that are corrupted.
    """

    encoder: Encoder

    def __init__(self, encoder: Encoder, target: Target, rate: float) -> None:
        super().__init__(encoder)
        self.target = target
        self.rate = rate
        self.baselines_move = target.moves

    @abstractmethod
    def sample_corruption(self, batch: Batch) -> corruption.Corruption:
        """Choose the corruption of a batch's images from the images' keys."""

    @abstractmethod
    def patch_logits(self, batch: Batch, drawn: corruption.Corruption) -> Tensor:
        """Return the head's outputs (B, K, A) for the corrupted patches."""

    def forward(self, batch: Batch) -> Output:
        drawn = self.sample_corruption(batch)
        truth_BN = self.target.ground_truth(batch.image)
        self._check("ground_truth", truth_BN.shape[:2], (len(batch.key), self.encoder.patches))
        truth_BK = corruption.gather_corrupted(truth_BN, drawn)
        values = self.target.metrics(self.patch_logits(batch, drawn).float(), truth_BK)
        metrics: Metrics = {}
        for name, value_BK in values.items():
            self._check(f"metrics: {name}", value_BK.shape, drawn.corrupted_BK.shape)
            metrics |= _by_kind(name, value_BK.detach(), drawn.kind_BK)
        images, count = drawn.corrupted_BK.shape
        num_images = torch.tensor(float(images), device=drawn.corrupted_BK.device)
        metrics["corrupted"] = (num_images * count, num_images)
        return Output(values["loss"].mean(), metrics)

    def averages(self, progress: float) -> Averages:
        return self.target.averages(progress, self.encoder)

    def fit_baselines(self, batches: Iterable[Batch]) -> None:
        self.target.fit_baselines(batch.image for batch in batches)

    def baselines(self, batch: Batch) -> Metrics:
        """Return the target's baselines on the masked patches of this batch (docs/objectives.md,
        MPP).
        """
        drawn = self.sample_corruption(batch)
        corrupted_BN = torch.zeros(
            len(batch.key), self.encoder.patches, dtype=torch.bool, device=batch.key.device
        ).scatter(1, drawn.corrupted_BK, True)
        masked_BK = drawn.kind_BK == corruption.MASK
        metrics: Metrics = {}
        for name, value_BN in self.target.baselines(batch.image, corrupted_BN).items():
            self._check(f"baselines: {name}", value_BN.shape, corrupted_BN.shape)
            metrics[name] = _mean(corruption.gather_corrupted(value_BN, drawn), masked_BK)
        return metrics

    def _check(self, what: str, shape: Sequence[int], expected: Sequence[int]) -> None:
        """Check the shape of what a method of the target returns, because torch might broadcast
        other shapes.

        Raises:
            UserError: the shape is not the expected one.
        """
        if tuple(shape) != tuple(expected):
            text = f"shape {tuple(shape)}; expected {tuple(expected)}"
            raise UserError(f"{place(type(self.target))}: {what}: {text}")

    def panels(self, batch: Batch) -> dict[str, Tensor]:
        drawn_B43HW = reconstruction.reconstruct(self, batch).panels_B43HW
        return dict(zip(reconstruction.TITLES, drawn_B43HW.unbind(1), strict=True))


def _mean(value: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
    """Return (sum, count) of a value where `where` is true."""
    return (value * where).double().sum(), where.double().sum()


def _by_kind(name: str, value_BK: Tensor, kind_BK: Tensor) -> Metrics:
    """Return a metric over all corrupted patches, and separately for each kind of corruption."""
    metrics = {name: _mean(value_BK, torch.ones_like(kind_BK, dtype=torch.bool))}
    for kind, number in NUMBERS.items():
        metrics[f"{name}_{kind}"] = _mean(value_BK, kind_BK == number)
    return metrics
