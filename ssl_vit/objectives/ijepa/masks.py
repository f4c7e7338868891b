"""Choose the patches that I-JEPA's encoder sees and its predictor predicts.

As in Assran et al. (2023, section 3 and appendix A), the encoder sees a large context block
without a few target blocks. All choices follow from the key of the image. The number of visible
and of predicted patches is the same for all images of all batches: the authors trim to the
smallest block of the device batch, and this code trims to the smallest possible block.

Legend: B images, N patches, M target blocks, K patches of each target block, V visible patches, S
sizes.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from ... import rng
from ...recipe.split_counts import selected_count
from .. import corruption
from . import IjepaOptions
from .sizes import SQUARE, block_sizes, trimmed_count

STREAM = rng.stream_id("target blocks")  # computed at import, because the objective is compiled

SLOTS = 4  # random numbers of a block: size, top, left, and which end is trimmed


class Blocks(NamedTuple):
    """Indices of patches, each row ascending.

    Attributes:
        visible_BV: Patches that the encoder sees. None of them is a predicted patch.
        target_BMK: Predicted patches of each target block. Blocks may overlap.
    """

    visible_BV: Tensor
    target_BMK: Tensor


class BlockMasks(nn.Module):
    """Module that turns keys (B,) of images into `Blocks`.

    Block sizes come from `sizes.block_sizes`. All positions inside the image are equally likely. Of
    each target block, the first K or (with probability 0.5) the last K patches in row order are
    predicted. The other patches of a target block are trimmed off.

    The encoder sees V random patches. They are taken from the context block without the target
    blocks. If this gives too few patches, more are taken from the rest of the image, and last from
    the patches that are trimmed off.

    Args:
        side: Side of the image, in patches.
        options: Areas and aspects of blocks, and numbers of blocks and patches.
    """

    target_S2: Tensor
    context_S2: Tensor

    def __init__(self, side: int, options: IjepaOptions) -> None:
        super().__init__()
        self.side = side
        self.blocks = options.blocks
        self.visible = selected_count(options.visible, side**2)
        sizes = block_sizes(side, options.area, options.aspect)
        self.target_patches = trimmed_count(sizes)
        context = block_sizes(side, options.context, SQUARE)
        self.register_buffer("target_S2", torch.tensor(sizes), persistent=False)
        self.register_buffer("context_S2", torch.tensor(context), persistent=False)

    def forward(self, key_B: Tensor) -> Blocks:
        """Choose visible and target patches for images with these keys (int64)."""
        key_B1 = rng.stream(key_B, STREAM)[:, None]
        number_M = torch.arange(self.blocks, device=key_B.device)
        covers_BMN = self._draw_blocks(key_B1, number_M, self.target_S2)
        target_BMK = self._trim_blocks(key_B1, number_M, covers_BMN)
        # The context block has the number M. The target blocks have the numbers 0 .. M-1, so no
        # random number is used twice
        in_context_BN = self._draw_blocks(key_B1, number_M[-1:] + 1, self.context_S2)[:, 0]
        # The encoder sees the patches of the lowest ranks. A patch has rank
        #   0 if it is in the context block alone,
        #   1 if it is in no block,
        #   2 if it is in a target block, but not predicted,
        #   3 if it is predicted, so that the encoder never sees it
        rank_BN = torch.where(covers_BMN.any(1), 2, (~in_context_BN).long())
        rank_BN = rank_BN.scatter(1, target_BMK.flatten(1), 3)
        return Blocks(self._select_visible(key_B1, rank_BN), target_BMK)

    def _draw_blocks(self, key_B1: Tensor, number_M: Tensor, size_S2: Tensor) -> Tensor:
        """Draw blocks of random sizes and positions, and return which patches each block covers.

        Args:
            key_B1: Random streams of the images.
            number_M: Numbers of the blocks. Block m has the random numbers 4 m (size), 4 m + 1
                (top) and 4 m + 2 (left) of the stream.
            size_S2: The S possible sizes of a block, as pairs (rows, columns).

        Returns:
            Bool (B, M, N).
        """
        slot_M = SLOTS * number_M
        size_BM2 = size_S2[rng.integers(key_B1, slot_M, len(size_S2))]
        height_BM, width_BM = size_BM2.unbind(-1)
        top_BM = rng.integers(key_B1, slot_M + 1, self.side - height_BM + 1)
        left_BM = rng.integers(key_B1, slot_M + 2, self.side - width_BM + 1)
        return corruption.covered(self.side, top_BM, left_BM, height_BM, width_BM)

    def _trim_blocks(self, key_B1: Tensor, number_M: Tensor, covers_BMN: Tensor) -> Tensor:
        """Return the K patches of each target block that are predicted, int64 (B, M, K).

        They are the first K or, with probability 0.5, the last K patches of the block in row order.
        So K is the same for blocks of all sizes.

        Args:
            key_B1: Random streams of the images.
            number_M: Numbers of the blocks.
            covers_BMN: Whether each block covers each patch, bool.
        """
        patches = self.side**2
        index_N = torch.arange(patches, device=key_B1.device)
        # Counter SLOTS m + 3 of block m gives 0 (the first K patches) or 1 (the last K patches,
        # which come first in descending order). `_draw_blocks` uses the three counters before
        from_last_BM = rng.integers(key_B1, SLOTS * number_M + 3, 2) == 1
        order_BMN = torch.where(from_last_BM[..., None], patches - 1 - index_N, index_N)
        order_BMN = torch.where(covers_BMN, order_BMN, patches)  # patches outside come last
        index_BMN = order_BMN.argsort(dim=-1, stable=True)
        return index_BMN[..., : self.target_patches].sort(dim=-1).values

    def _select_visible(self, key_B1: Tensor, rank_BN: Tensor) -> Tensor:
        """Return the V patches of lowest rank, int64 (B, V). Equal ranks are ordered at random."""
        # The upper bits of a number are the rank of the patch, and the lower 31 bits are random
        slot_N = SLOTS * (self.blocks + 1) + torch.arange(self.side**2, device=key_B1.device)
        order_BN = (rank_BN << 31) | rng.top_bits(rng.bits(key_B1, slot_N), 31)
        return order_BN.argsort(dim=1, stable=True)[:, : self.visible].sort(dim=1).values
