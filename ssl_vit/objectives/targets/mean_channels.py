"""Compute the mean of each channel in 8 classes, for any number of channels and bits.

The paper (B.1.2) has 512 classes instead, one for each combination of three channels.

Legend: B batch, N patches, K corrupted patches, C channels, A head outputs for a patch.
"""

import torch
from torch import Tensor

from ...data.pixel_values import shown_channels
from . import BINS
from .patch_targets import Classes, channel_bins, neighbor_sums, patch_sums


class MeanChannels(Classes):
    """Target that predicts the 3-bit mean of each channel.

    Args:
        patch: Side of a patch in pixels.
        channels: Number of channels C.
        pixel_range: The pixel values that correspond to 0 and 1.
    """

    def __init__(self, patch: int, channels: int, pixel_range: tuple[int, int]) -> None:
        super().__init__(patch, channels, BINS, rows=channels)
        self.pixel_range = pixel_range

    def ground_truth(self, image_B3HW: Tensor) -> Tensor:
        """Return the bin of each channel's mean, int64 (B, N, C)."""
        sums_BNC = patch_sums(image_B3HW, self.patch)
        return channel_bins(sums_BNC, self.patch**2, self.pixel_range)

    def neighbors_class(self, image_B3HW: Tensor, corrupted_BN: Tensor) -> Tensor:
        sums = neighbor_sums(image_B3HW, self.patch, corrupted_BN)
        return channel_bins(*sums, self.pixel_range)

    def certainty(self, output_BKA: Tensor) -> Tensor:
        """Return the mean probability of the predicted bins of all channels, (B, K, 1, 1)."""
        return self.class_probability(output_BKA).mean(-1)[..., None, None]

    def render(self, truth_BN: Tensor) -> Tensor:
        """Draw each patch in a single colour: the middle of each channel's bin."""
        levels_BNC = (truth_BN * 255 // BINS + 16).to(torch.uint8)
        return shown_channels(levels_BNC, -1)[:, :, None, None]
