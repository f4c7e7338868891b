"""Measure during training whether an encoder maps all images to nearly the same features.

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
from .features import feature_reader, gathered
from .probes import effective_rank

IMAGES_PER_CHANNEL = 10  # number of measured images for each channel of the features
PART = 256  # number of images whose probabilities are in float64 at the same time


class CollapseEvaluator:
    """Evaluator of the features and prototypes of fixed images.

    Measures the effective rank of the features without their mean and the mean cosine of two
    images. For an objective with prototypes, also measures the information that prototypes have
    about images.

    Args:
        batches: Images of this process, with the preprocessing of evaluations.
        pool: Pooling of the features, token or avg.
        accelerator: Accelerator of the run.
    """

    def __init__(self, batches: list[Batch], pool: str, accelerator: WatchedAccelerator) -> None:
        self.batches = batches
        self.pool = pool
        self.accelerator = accelerator

    def __call__(self, step: int, row: Row, objective: Objective) -> Iterator[tuple[str, float]]:
        device = self.accelerator.device
        # In bfloat16, nearly equal features differ by rounding errors in all directions
        with torch.autocast(device.type, enabled=False):
            readers = {"": feature_reader(objective.exported, self.pool, None)}
            _, _, _, features = gathered(readers, self.batches, self.accelerator)
            assigned = objective.assignments(to_device(batch, device) for batch in self.batches)
            shares = {name: self._information(p_XK) for name, p_XK in assigned.items()}
        feature_ND = torch.from_numpy(features[""]).double()
        yield "features/effective_rank", centred_rank(feature_ND)
        yield "features/mean_cosine", mean_cosine(feature_ND)
        for name, share in shares.items():
            yield f"features/{name}", share

    def _information(self, p_XK: Tensor) -> float:
        """Return `information` over the images of all processes."""
        entropy = torch.stack([entropies(part_BK).sum() for part_BK in p_XK.split(PART)]).sum()
        images = torch.full_like(entropy, len(p_XK))
        sums = torch.cat([p_XK.sum(0, dtype=torch.float64), torch.stack([entropy, images])])
        total = self.accelerator.reduce(sums, "sum")
        return information(total[:-2] / total[-1], float(total[-2] / total[-1]))


def centred_rank(x_ND: Tensor) -> float:
    """Return RankMe (Garrido et al., 2023, equation 1) of features without their mean.

    The result is from 1 to min(N - 1, D). If all features are the same, only rounding errors are
    left, which have all directions. Therefore the result is 1 if the centred features are no larger
    than rounding errors.
    """
    centred_ND = x_ND - x_ND.mean(0)
    rounding = torch.finfo(torch.float32).eps * x_ND.norm()
    return 1.0 if centred_ND.norm() <= rounding else effective_rank(centred_ND)


def mean_cosine(x_ND: Tensor) -> float:
    """Return the mean cosine of features over all pairs of different images.

    The mean of the features is not subtracted, because the cosines of centred features always add
    up to nearly 0.
    """
    count = len(x_ND)
    total = torch.nn.functional.normalize(x_ND, dim=1).sum(0).square().sum()
    return float((total - count) / (count * max(1, count - 1)))


def entropies(p_BK: Tensor) -> Tensor:
    """Return the entropy in nats of each row of probabilities, float64 (B,)."""
    return torch.special.entr(p_BK.double()).sum(-1)


def information(mean_K: Tensor, mean_entropy: float) -> float:
    """Return the mutual information between images and prototypes, as a share of log K.

    It is (H(mean p) - mean H(p)) / log K. The result is 0 if all images have the same
    probabilities, whether for one prototype or spread over all prototypes.
    """
    return (float(entropies(mean_K)) - mean_entropy) / math.log(len(mean_K))
