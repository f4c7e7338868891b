"""Which patches are hit, and what each becomes (paper, B.1.2): 80% the [mask] embedding, 10% another patch's, 10% their own.

Everything is a function of the samples' keys, so the same samples are corrupted alike on any device and any number of
processes. Legend: B batch, N patches, K = corrupted(rate, N) patches hit in each picture, D width.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from . import counted

MASK, RANDOM, KEEP = range(3)
SHAPES = ("patches", "blocks")
STREAM = counted.number("corruption")  # at import, for `draw` is compiled
BLOCKS = 64  # rectangles that are drawn for a picture; as many of them are hit as K patches take


class Corruption(NamedTuple):
    """`hit_BK` int64, the patches hit; `kind_BK` int64, MASK, RANDOM or KEEP; `source_BK` int64, whose embedding a RANDOM
    patch takes: a row of the (B N) embeddings of the batch laid out one picture after the other."""

    hit_BK: Tensor
    kind_BK: Tensor
    source_BK: Tensor


def corrupted(rate: float, patches: int) -> int:
    """K: how many patches of each picture are hit."""
    return counted.share(rate, patches)


def draw(
    key_B: Tensor,
    patches: int,
    rate: float,
    mask: float = 0.8,
    random: float = 0.1,
    source: str = "image",
    shape: str = "patches",
    side: int = 1,
) -> Corruption:
    """Choose K patches of each picture by `rank`, and for each of them, independently, what it becomes.

    `mask` and `random` are shares of the K; the rest is kept. A RANDOM patch's source is another patch, never itself, of
    the same picture (source="image") or of the whole device batch ("batch").
    """
    key_B1 = counted.stream(key_B, STREAM)[:, None]
    hit_BK = rank(key_B1, patches, shape, side).argsort(dim=1, stable=True)[:, : corrupted(rate, patches)]
    # thresholds in units of 2^-24, so that no float decides
    draw_BK = counted.integers(key_B1, 3 * hit_BK + 1, 1 << 24)
    kind_BK = (draw_BK >= round(mask * 2**24)).long() + (draw_BK >= round((mask + random) * 2**24)).long()
    own_BK = hit_BK + patches * torch.arange(len(key_B), device=key_B.device)[:, None]
    others = patches if source == "image" else patches * len(key_B)
    first_B1 = own_BK - hit_BK if source == "image" else torch.zeros_like(own_BK)
    other_BK = first_B1 + counted.integers(key_B1, 3 * hit_BK + 2, max(1, others - 1))
    return Corruption(hit_BK, kind_BK, other_BK + (other_BK >= own_BK).long() * min(1, others - 1))


def rank(key_B1: Tensor, patches: int, shape: str, side: int) -> Tensor:
    """Which patches are hit first: int64 (B, N), the smallest first.

    "patches": each by its hash or, with side > 1, squares of side x side together, by a hash of their own (SimMIM's
    large masked patches: Xie et al., 2022, section 3.2). "blocks": one rectangle after the other (as BEiT, Bao et al., 2022,
    algorithm 1, but cut off at the picture's edges, so that no place is hit more often), then what none covers. Inside a
    square or rectangle, whose last one is hit in part for K to be exact, by hash. All but single patches want a square grid.
    """
    at_N = torch.arange(patches, device=key_B1.device)
    hash_BN, grid = counted.bits(key_B1, 3 * at_N), math.isqrt(patches)
    if shape == "patches" and side == 1:
        return hash_BN
    if shape == "patches":
        corner_N = at_N // grid // side * side * grid + at_N % grid // side * side
        first_BN = counted.upper(counted.bits(key_B1, 3 * patches + corner_N), 31)
    else:
        first_BN = _blocks(key_B1, at_N, grid)
    return (first_BN << 31) | counted.upper(hash_BN, 31)


def _blocks(key_B1: Tensor, at_N: Tensor, grid: int) -> Tensor:
    """The number of the first of BLOCKS rectangles over each patch, BLOCKS where there is none: int64 (B, N).

    Their sides are from a quarter to half of the grid's, their places all that touch it."""
    slot_M = 3 * len(at_N) + 4 * torch.arange(BLOCKS, device=key_B1.device)
    least, most = max(1, grid // 4), max(1, grid // 2)
    height_BM, width_BM = (least + counted.integers(key_B1, slot_M + i, most - least + 1) for i in range(2))
    top_BM = counted.integers(key_B1, slot_M + 2, grid + height_BM - 1) - height_BM + 1
    left_BM = counted.integers(key_B1, slot_M + 3, grid + width_BM - 1) - width_BM + 1
    down_BMN, right_BMN = at_N // grid - top_BM[..., None], at_N % grid - left_BM[..., None]
    over_BMN = (down_BMN >= 0) & (down_BMN < height_BM[..., None]) & (right_BMN >= 0) & (right_BMN < width_BM[..., None])
    return torch.where(over_BMN, torch.arange(BLOCKS, device=key_B1.device)[:, None], BLOCKS).amin(1)


def pick(value_BN: Tensor, corruption: Corruption) -> Tensor:
    """The hit patches' entries of a value (B, N, ...): (B, K, ...)."""
    index = corruption.hit_BK.reshape(*corruption.hit_BK.shape, *[1] * (value_BN.ndim - 2))
    return value_BN.gather(1, index.expand(-1, -1, *value_BN.shape[2:]))


def apply(x_BND: Tensor, corruption: Corruption, mask_D: Tensor) -> Tensor:
    """The patch embeddings with every hit patch replaced as `corruption` says; sources are read from the clean x_BND."""
    hit_BKD = corruption.hit_BK[..., None].expand(-1, -1, x_BND.shape[-1])
    kind_BK1 = corruption.kind_BK[..., None]
    kept_BKD = x_BND.gather(1, hit_BKD)
    random_BKD = x_BND.flatten(0, 1)[corruption.source_BK]
    new_BKD = torch.where(kind_BK1 == MASK, mask_D.to(x_BND.dtype), torch.where(kind_BK1 == RANDOM, random_BKD, kept_BKD))
    return x_BND.scatter(1, hit_BKD, new_BKD)
