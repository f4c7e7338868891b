"""Which patches of an image I-JEPA's encoder sees and which its predictor predicts (Assran et al.,
2023, section 3 and appendix A): a large context block without a few target blocks.

All follows from the image's key. Every image has as many patches of each, whatever the batch: the
authors trim to the smallest of the device batch's, here it is the smallest that there can be.

Legend: B images, N patches, M target blocks, K patches of each, V visible patches, S sizes.
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

SLOTS = 4  # numbers of the stream that a block takes: size, top, left, which end is trimmed


class Blocks(NamedTuple):
    """Numbers of patches, each row ascending.

    Attributes:
        visible_BV: those that the encoder sees, none of them a target.
        target_BMK: those of each target block; blocks may overlap.
    """

    visible_BV: Tensor
    target_BMK: Tensor


class BlockMasks(nn.Module):
    """Keys (B,) of images -> Blocks.

    Sizes are `sizes.block_sizes`, places all at which a block lies inside the image. Of a target
    block K patches are predicted, row by row from its first patch or, of every other, back from its
    last. Visible are V patches, by hash: of the context block without the targets' blocks; where
    these are fewer, of the rest of the image; last what was trimmed off targets.

    Args:
        side: of the image, in patches.
        options: areas, aspects and numbers.
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
        key_B1 = rng.stream(key_B, STREAM)[:, None]
        number_M = torch.arange(self.blocks, device=key_B.device)
        covers_BMN = self._drawn(key_B1, number_M, self.target_S2)
        target_BMK = self._trimmed(key_B1, number_M, covers_BMN)
        in_context_BN = self._drawn(key_B1, number_M[-1:] + 1, self.context_S2)[:, 0]
        rank_BN = torch.where(covers_BMN.any(1), 2, (~in_context_BN).long())
        rank_BN = rank_BN.scatter(1, target_BMK.flatten(1), 3)
        return Blocks(self._first(key_B1, rank_BN), target_BMK)

    def _drawn(self, key_B1: Tensor, number_M: Tensor, size_S2: Tensor) -> Tensor:
        """Which patches the blocks of these numbers cover: bool (B, M, N)."""
        slot_M = SLOTS * number_M
        size_BM2 = size_S2[rng.integers(key_B1, slot_M, len(size_S2))]
        height_BM, width_BM = size_BM2.unbind(-1)
        top_BM = rng.integers(key_B1, slot_M + 1, self.side - height_BM + 1)
        left_BM = rng.integers(key_B1, slot_M + 2, self.side - width_BM + 1)
        return corruption.covered(self.side, top_BM, left_BM, height_BM, width_BM)

    def _trimmed(self, key_B1: Tensor, number_M: Tensor, covers_BMN: Tensor) -> Tensor:
        """The patches of each block that are predicted: int64 (B, M, K)."""
        patches = self.side**2
        place_N = torch.arange(patches, device=key_B1.device)
        from_last_BM = rng.integers(key_B1, SLOTS * number_M + 3, 2) == 1
        order_BMN = torch.where(from_last_BM[..., None], patches - 1 - place_N, place_N)
        order_BMN = torch.where(covers_BMN, order_BMN, patches)
        place_BMN = order_BMN.argsort(dim=-1, stable=True)
        return place_BMN[..., : self.target_patches].sort(dim=-1).values

    def _first(self, key_B1: Tensor, rank_BN: Tensor) -> Tensor:
        """The patches of the lowest ranks, of one rank those of the lowest hashes: int64 (B, V)."""
        slot_N = SLOTS * (self.blocks + 1) + torch.arange(self.side**2, device=key_B1.device)
        order_BN = (rank_BN << 31) | rng.top_bits(rng.bits(key_B1, slot_N), 31)
        return order_BN.argsort(dim=1, stable=True)[:, : self.visible].sort(dim=1).values
