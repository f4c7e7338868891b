"""Whether an encoder gives all images nearly the same, measured while it is trained.

Legend: B batch, N images, D width of the features, K prototypes.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..callbacks import Row
from ..data.batching import Batch
from ..objectives.base import Objective
from ..training.distributed import WatchedAccelerator
from ..training.loop import to_device
from .features import feature_reader, gathered
from .probes import effective_rank

IMAGES_PER_CHANNEL = 10  # of the images that are looked at
PART = 256  # images whose probabilities are held in float64 at once


class CollapseEvaluator:
    """An evaluator: of fixed images' features the effective rank, after their mean is taken off,
    and the mean cosine of two images; of prototypes the information that an image gives of its own.

    Args:
        batches: this process's images, with the evaluation's preprocessing.
        pool: of the features, token or avg.
        accelerator: of the run.
    """

    def __init__(self, batches: list[Batch], pool: str, accelerator: WatchedAccelerator) -> None:
        self.batches = batches
        self.pool = pool
        self.accelerator = accelerator

    def __call__(self, step: int, row: Row, objective: Objective) -> Iterator[tuple[str, float]]:
        device = self.accelerator.device
        # in bfloat16 features that are nearly the same differ by rounding, in every direction
        with torch.autocast(device.type, enabled=False):
            readers = {"": feature_reader(objective.exported, self.pool, None)}
            _, _, _, features = gathered(readers, self.batches, self.accelerator)
            assign: Any = getattr(objective, "assignments", lambda batches: {})
            found = assign(to_device(batch, device) for batch in self.batches)
            shares = {name: self._information(p_XK) for name, p_XK in found.items()}
        feature_ND = torch.from_numpy(features[""]).double()
        yield "features/effective_rank", centred_rank(feature_ND)
        yield "features/mean_cosine", mean_cosine(feature_ND)
        for name, share in shares.items():
            yield f"features/{name}", share

    def _information(self, p_XK: Tensor) -> float:
        """`information` of all processes' images."""
        entropy = torch.stack([entropies(part_BK).sum() for part_BK in p_XK.split(PART)]).sum()
        images = torch.full_like(entropy, len(p_XK))
        sums = torch.cat([p_XK.sum(0, dtype=torch.float64), torch.stack([entropy, images])])
        total = self.accelerator.reduce(sums, "sum")
        return information(total[:-2] / total[-1], float(total[-2] / total[-1]))


def centred_rank(x_ND: Tensor) -> float:
    """RankMe (Garrido et al., 2023, equation 1) of features less their mean, from 1 to
    min(N - 1, D). What is left of features that are the same is rounding, which has every
    direction: where it is no more than that, 1."""
    centred_ND = x_ND - x_ND.mean(0)
    rounding = torch.finfo(torch.float32).eps * x_ND.norm()
    return 1.0 if centred_ND.norm() <= rounding else effective_rank(centred_ND)


def mean_cosine(x_ND: Tensor) -> float:
    """Of two different images' features, over all pairs. Their mean is not taken off: about it the
    cosines of any features add up to nearly nothing."""
    count = len(x_ND)
    total = torch.nn.functional.normalize(x_ND, dim=1).sum(0).square().sum()
    return float((total - count) / (count * max(1, count - 1)))


def entropies(p_BK: Tensor) -> Tensor:
    """Of each row of probabilities, in nats: float64 (B,)."""
    return torch.special.entr(p_BK.double()).sum(-1)


def information(mean_K: Tensor, mean_entropy: float) -> float:
    """The mutual information of images and their prototypes, H(mean p) - mean H(p), as a share of
    log K: 0 where all images have the same probabilities, be they one prototype's or all's."""
    return (float(entropies(mean_K)) - mean_entropy) / math.log(len(mean_K))
