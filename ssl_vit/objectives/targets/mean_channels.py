"""The target of images of any number of channels and bits: the mean of each channel in 8 classes
(after paper, B.1.2, whose 512 classes are all combinations of three).

Legend: B batch, N patches, K corrupted patches, C channels, A head outputs for a patch.
"""

from collections.abc import Iterable

import torch
from einops import rearrange
from torch import Tensor
from torch.nn import functional as F

from ...data.pixel_values import shown_channels
from ...recipe.images import BYTES
from . import BINS
from .patch_targets import Target, neighbor_sums, patch_sums


def channel_bins(sum_C: Tensor, pixels: Tensor | int, pixel_range: tuple[int, int]) -> Tensor:
    """The bin of each channel's mean, given as the sum (..., C) over `pixels` (...,) pixels: int64
    (..., C), 0 .. 7.

    It is floor(8 v) of the mean v as a share of `pixel_range`, with 1.0 in bin 7; in integers, so
    exact for every sum, edges included. `patch_targets.color_class` has the same bins of RGB.
    """
    lowest, highest = pixel_range
    count = torch.as_tensor(pixels, device=sum_C.device).unsqueeze(-1)
    bin_C = BINS * (sum_C - lowest * count) // ((highest - lowest) * count)
    return bin_C.clamp(0, BINS - 1)


class MeanChannels(Target):
    """The 3-bit mean of each channel: 8 classes a channel, whose cross-entropies are averaged over
    the channels, so that the loss does not grow with their number.

    Args:
        patch: side in pixels.
        mean, std: of each channel; their number is that of the channels.
        pixel_range: the values of a pixel that stand for 0 and 1.
    """

    count_CV: Tensor

    def __init__(
        self,
        patch: int,
        mean: list[float],
        std: list[float],
        pixel_range: tuple[int, int] = BYTES,
    ) -> None:
        super().__init__()
        self.patch = patch
        self.pixel_range = pixel_range
        self.channels = len(mean)
        self.num_outputs = BINS * self.channels
        counts_CV = torch.zeros(self.channels, BINS, dtype=torch.int64)
        self.register_buffer("count_CV", counts_CV)

    def ground_truth(self, image_B3HW: Tensor) -> Tensor:
        """int64 (B, N, C)."""
        sums_BNC = patch_sums(image_B3HW, self.patch)
        return channel_bins(sums_BNC, self.patch**2, self.pixel_range)

    def _logits(self, output_BKA: Tensor) -> Tensor:
        return rearrange(output_BKA, "b k (c v) -> b k c v", v=BINS)

    def metrics(self, output_BKA: Tensor, truth_BK: Tensor) -> dict[str, Tensor]:
        logits = rearrange(output_BKA, "b k (c v) -> (b k c) v", v=BINS)
        loss = F.cross_entropy(logits, truth_BK.flatten(), reduction="none").view_as(truth_BK)
        right_BKC = self.predict(output_BKA) == truth_BK
        return {"loss": loss.mean(-1), "accuracy": right_BKC.float().mean(-1)}

    def fit_baselines(self, images: Iterable[Tensor]) -> None:
        for image in images:
            truth_BNC = self.ground_truth(image)
            self.count_CV += F.one_hot(truth_BNC, BINS).sum((0, 1)).to(self.count_CV)

    def baselines(self, image_B3HW: Tensor, corrupted_BN: Tensor) -> dict[str, Tensor]:
        truth_BNC = self.ground_truth(image_B3HW)
        sums = neighbor_sums(image_B3HW, self.patch, corrupted_BN)
        near_BNC = channel_bins(*sums, self.pixel_range)
        share_CV = self.count_CV.double() / self.count_CV.sum(-1, keepdim=True)
        entropy = torch.special.entr(share_CV).sum(-1).mean()
        return {
            "entropy": entropy.expand(truth_BNC.shape[:2]),
            "commonest": (truth_BNC == self.count_CV.argmax(-1)).double().mean(-1),
            "neighbors": (truth_BNC == near_BNC).double().mean(-1),
        }

    def predict(self, output_BKA: Tensor) -> Tensor:
        return self._logits(output_BKA).argmax(-1)

    def certainty(self, output_BKA: Tensor) -> Tensor:
        """The mean over the channels."""
        chance_BKC = self._logits(output_BKA.float()).softmax(-1).amax(-1)
        return chance_BKC.mean(-1)[..., None, None]

    def render(self, truth_BN: Tensor) -> Tensor:
        """The middles of the bins."""
        levels_BNC = (truth_BN * 255 // BINS + 16).to(torch.uint8)
        return shown_channels(levels_BNC, -1)[:, :, None, None]
