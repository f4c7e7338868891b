"""Measure during training whether an encoder collapses: all images get nearly the same features.

Legend: B batch, N images, D width of the features, K prototypes.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ..callbacks import Row
from ..data.batching import Batch
from ..objectives.base import Objective
from ..training.distributed import WatchedAccelerator
from ..training.loop import to_device
from .features import ENCODER, feature_reader, gather_features
from .probes import effective_rank

IMAGES_PER_CHANNEL = 10  # number of measured images for each channel of the features
PART = 256  # largest number of rows of probabilities that are converted to float64 at a time


class CollapseEvaluator:
    """Evaluator that measures how different the features of images are, to detect collapse.

    The evaluator yields the effective rank of the centred features and the mean cosine of two
    images' features. For an objective with prototypes, the evaluator also yields the mutual
    information of images and prototypes.

    Args:
        batches: Images of this process, with the preprocessing of evaluations.
        pool: Pooling of the features, token or avg.
        accelerator: Processes of the run.
    """

    def __init__(self, batches: list[Batch], pool: str, accelerator: WatchedAccelerator) -> None:
        self.batches = batches
        self.pool = pool
        self.accelerator = accelerator

    def __call__(self, step: int, row: Row, objective: Objective) -> Iterator[tuple[str, float]]:
        device = self.accelerator.device
        # In bfloat16, nearly equal features differ by rounding errors in all directions
        with torch.autocast(device.type, enabled=False):
            readers = {ENCODER: feature_reader(objective.exported, self.pool, None)}
            _, _, _, features = gather_features(readers, self.batches, self.accelerator)
            probabilities = objective.assignments(
                to_device(batch, device) for batch in self.batches
            )
            information_by_name = {
                name: self._information(p_NK) for name, p_NK in probabilities.items()
            }
        feature_ND = torch.from_numpy(features[ENCODER]).double()
        yield "features/effective_rank", centred_rank(feature_ND)
        yield "features/mean_cosine", mean_cosine(feature_ND)
        for name, share in information_by_name.items():
            yield f"features/{name}", share

    def _information(self, p_NK: Tensor) -> float:
        """Return the mutual information of prototypes and the images of all processes. Collective.

        See `information` for the formula.

        Args:
            p_NK: Probabilities of the prototypes for each image or patch of this process.
        """
        # Take PART rows at a time, because `entropies` makes float64 copies, which take memory
        entropy = torch.stack([entropies(part_BK).sum() for part_BK in p_NK.split(PART)]).sum()
        rows = torch.full_like(entropy, len(p_NK))
        # Join all sums in one vector (K + 2,), so that a single reduction adds the processes
        local = torch.cat([p_NK.sum(0, dtype=torch.float64), torch.stack([entropy, rows])])
        total = self.accelerator.reduce(local, "sum")
        total_K, total_entropy, total_rows = total[:-2], total[-2], total[-1]
        return information(total_K / total_rows, float(total_entropy / total_rows))


def centred_rank(x_ND: Tensor) -> float:
    """Subtract the mean of features, and return their effective rank (see `effective_rank`).

    The result is between 1 and min(N - 1, D). If all features are the same, the result is 1.

    Args:
        x_ND: Features of N images.
    """
    centred_ND = x_ND - x_ND.mean(0)
    # If all features are the same, centring leaves rounding errors, whose rank would be high
    rounding = torch.finfo(torch.float32).eps * x_ND.norm()
    return 1.0 if centred_ND.norm() <= rounding else effective_rank(centred_ND)


def mean_cosine(x_ND: Tensor) -> float:
    """Return the mean cosine of features over all pairs of different images.

    The mean of the features is not subtracted, because the cosines of centred features always add
    up to nearly 0. A single image has no pairs, and the result is then 0.

    Args:
        x_ND: Features of N images.
    """
    images = len(x_ND)
    # |sum of unit vectors|^2 is the sum of the cosines of all ordered pairs, including the pairs of
    # an image with itself. These N pairs have cosine 1 and are subtracted
    total = torch.nn.functional.normalize(x_ND, dim=1).sum(0).square().sum()
    return float((total - images) / (images * max(1, images - 1)))


def entropies(p_BK: Tensor) -> Tensor:
    """Return the entropy in nats of each row of probabilities, float64 (B,)."""
    return torch.special.entr(p_BK.double()).sum(-1)


def information(mean_K: Tensor, mean_entropy: float) -> float:
    """Return the mutual information of images and prototypes, (H(mean p) - mean H(p)) / log K.

    The result is between 0 and 1. The result is 0 if all images have the same probabilities, and 1
    if each image has a single prototype and all prototypes are equally frequent.

    Args:
        mean_K: Mean of the images' probabilities p.
        mean_entropy: Mean of the images' entropies H(p), in nats.
    """
    return (float(entropies(mean_K)) - mean_entropy) / math.log(len(mean_K))
