"""Share code among objectives that predict corrupted patches: loss, metrics and baselines.

Legend: B batch, N patches, K corrupted patches of each image, A outputs for a patch.
"""

from abc import abstractmethod
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ..data.batching import Batch
from ..errors import UserError
from ..measurements import PATCHES, MetricKey, flat_name
from ..models.encoder import Encoder
from . import corruption, reconstruction
from .base import Metrics, Objective, Output, describe_class
from .targets.patch_targets import Target
from .teacher import Averages

NUMBER_OF_KIND = dict(
    zip(PATCHES, (corruption.MASK, corruption.RANDOM, corruption.KEEP), strict=True)
)


class PatchPrediction(Objective):
    """Objective that predicts corrupted patches, with the mean loss over all corrupted patches.

    Args:
        encoder: A Vision Transformer with patches.
        target: The ground truth of patches, and the loss.
        rate: Share of the patches of each image that are corrupted.
    """

    encoder: Encoder

    def __init__(self, encoder: Encoder, target: Target, rate: float) -> None:
        super().__init__(encoder)
        self.target = target
        self.rate = rate
        self.baselines_move = target.moves

    @abstractmethod
    def sample_corruption(self, batch: Batch) -> corruption.Corruption:
        """Choose the corrupted patches of each image. The images' keys determine the choice."""

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
        images, num_corrupted = drawn.corrupted_BK.shape
        num_images = torch.tensor(float(images), device=drawn.corrupted_BK.device)
        # The mean of "corrupted", sum / count, is the number of corrupted patches of an image
        metrics["corrupted"] = (num_images * num_corrupted, num_images)
        return Output(values["loss"].mean(), metrics)

    def averages(self, progress: float) -> Averages:
        return self.target.averages(progress, self.encoder)

    def fit_baselines(self, batches: Iterable[Batch]) -> None:
        self.target.fit_baselines(batch.image for batch in batches)

    def baselines(self, batch: Batch) -> Metrics:
        """Return the target's baselines, summed over the masked patches (kind MASK).

        The baselines are simple predictions, such as the mean of the neighbours. They are compared
        with the network's metrics on masked patches (`loss_masked`). Other corrupted patches are
        left out, because the network does not see a [mask] there: it sees the patch itself (KEEP)
        or another patch (RANDOM).
        """
        drawn = self.sample_corruption(batch)
        shape = (len(batch.key), self.encoder.patches)
        corrupted_BN = torch.zeros(shape, dtype=torch.bool, device=batch.key.device)
        corrupted_BN = corrupted_BN.scatter(1, drawn.corrupted_BK, True)
        masked_BK = drawn.kind_BK == corruption.MASK
        metrics: Metrics = {}
        for name, value_BN in self.target.baselines(batch.image, corrupted_BN).items():
            self._check(f"baselines: {name}", value_BN.shape, corrupted_BN.shape)
            metrics[name] = _sum_and_count(corruption.gather_corrupted(value_BN, drawn), masked_BK)
        return metrics

    def _check(self, what: str, shape: Sequence[int], expected: Sequence[int]) -> None:
        """Check the shape of a tensor that the target returned.

        Without the check, torch might broadcast a wrong shape silently.

        Args:
            what: Name of the target's method, and of the metric if there are several.
            shape: Shape of the tensor.
            expected: The only shape that is allowed.

        Raises:
            UserError: The shape differs.
        """
        if tuple(shape) != tuple(expected):
            raise UserError(
                f"{describe_class(type(self.target))}: {what} has shape {tuple(shape)}, but must "
                f"have shape {tuple(expected)}."
            )

    def panels(self, batch: Batch) -> dict[str, Tensor]:
        panels_B43HW = reconstruction.reconstruct(self, batch).panels_B43HW
        return dict(zip(reconstruction.TITLES, panels_B43HW.unbind(1), strict=True))


def _sum_and_count(value: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum and the number of the values for which `where` is true."""
    return (value * where).double().sum(), where.double().sum()


def _by_kind(name: str, value_BK: Tensor, kind_BK: Tensor) -> Metrics:
    """Return (sum, count) of a metric over all corrupted patches, and separately for each kind.

    Args:
        name: Name of the metric. For a single kind, the name of the kind is appended.
        value_BK: Values of the corrupted patches.
        kind_BK: MASK, RANDOM or KEEP for each corrupted patch.
    """
    metrics = {name: _sum_and_count(value_BK, torch.ones_like(kind_BK, dtype=torch.bool))}
    for kind, number in NUMBER_OF_KIND.items():
        key = MetricKey(name, patches=kind)
        metrics[flat_name(key)] = _sum_and_count(value_BK, kind_BK == number)
    return metrics
