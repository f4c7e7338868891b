"""Which patches are corrupted, and how (paper, B.1.2): 80% are replaced by the [mask] embedding,
10% by another patch's embedding, 10% are kept.

Everything is a function of the samples' keys, so the same samples are corrupted identically on any
device and any number of processes.

Legend: B batch, N patches, K = selected_count(rate, N) corrupted patches of each image, D width,
M rectangles.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .. import rng
from ..models.attention import token_rows
from ..recipe.split_counts import selected_count

MASK, RANDOM, KEEP = range(3)
STREAM = rng.stream_id("corruption")  # computed at import, because `sample` is compiled
BLOCKS = 64  # rectangles drawn for an image; the first ones that cover K patches are used


class Corruption(NamedTuple):
    """Corrupted patches of a batch, all int64 (B, K).

    Attributes:
        corrupted_BK: index of each corrupted patch in its image, 0 .. N-1.
        kind_BK: MASK, RANDOM or KEEP.
        source_BK: the patch whose embedding a RANDOM patch takes: a row of the batch's (B N)
            embeddings, one image after the other.
    """

    corrupted_BK: Tensor
    kind_BK: Tensor
    source_BK: Tensor


def sample(
    key_B: Tensor,
    patches: int,
    rate: float,
    mask: float = 0.8,
    random: float = 0.1,
    source: str = "image",
    shape: str = "patches",
    side: int = 1,
) -> Corruption:
    """Choose the K patches of each image that are first in `corruption_order` and, for each
    independently, its kind.

    Args:
        key_B: int64, the samples' keys.
        mask, random: probabilities of MASK and RANDOM; otherwise KEEP.
        source: RANDOM takes another patch, never itself, of the same image ("image") or of the
            whole device batch ("batch").
        shape, side: see `corruption_order`.
    """
    key_B1 = rng.stream(key_B, STREAM)[:, None]
    order_BN = corruption_order(key_B1, patches, shape, side).argsort(dim=1, stable=True)
    corrupted_BK = order_BN[:, : selected_count(rate, patches)]
    kind_BK = _kinds(key_B1, corrupted_BK, mask, random)
    return Corruption(corrupted_BK, kind_BK, _sources(key_B1, corrupted_BK, patches, source))


def _kinds(key_B1: Tensor, corrupted_BK: Tensor, mask: float, random: float) -> Tensor:
    """MASK, RANDOM or KEEP; thresholds in units of 2^-24, so that no float decides."""
    draw_BK = rng.integers(key_B1, 3 * corrupted_BK + 1, 1 << 24)
    not_mask_BK = (draw_BK >= round(mask * 2**24)).long()
    keep_BK = (draw_BK >= round((mask + random) * 2**24)).long()
    return not_mask_BK + keep_BK


def _sources(key_B1: Tensor, corrupted_BK: Tensor, patches: int, source: str) -> Tensor:
    """A uniformly drawn other patch for each corrupted one, as a row of the batch's embeddings."""
    images = len(key_B1)
    own_BK = corrupted_BK + patches * torch.arange(images, device=key_B1.device)[:, None]
    if source == "image":
        candidates = patches
        first_BK = own_BK - corrupted_BK
    else:
        candidates = patches * images
        first_BK = torch.zeros_like(own_BK)
    # one of the candidates - 1 others: those from its own place on are shifted by one
    other_BK = first_BK + rng.integers(key_B1, 3 * corrupted_BK + 2, max(1, candidates - 1))
    return other_BK + (other_BK >= own_BK).long() * min(1, candidates - 1)


def corruption_order(key_B1: Tensor, patches: int, shape: str, side: int) -> Tensor:
    """The order in which patches are corrupted: int64 (B, N), lowest first.

    shape="patches": by each patch's hash or, with side > 1, in squares of side x side patches that
    share a hash (SimMIM's large masked patches: Xie et al., 2022, section 3.2). shape="blocks": one
    rectangle after the other (as BEiT, Bao et al., 2022, algorithm 1, but cut off at the image's
    edges, so that all places are corrupted equally often), then what none covers. Patches of one
    square or rectangle are ordered by hash, because the last one is corrupted in part for K to be
    exact. Squares and rectangles need a square grid of patches.
    """
    place_N = torch.arange(patches, device=key_B1.device)
    hash_BN = rng.bits(key_B1, 3 * place_N)
    if shape == "patches" and side == 1:
        return hash_BN
    grid = math.isqrt(patches)
    if shape == "patches":
        row_N = place_N // grid // side * side
        column_N = place_N % grid // side * side
        group_BN = rng.top_bits(rng.bits(key_B1, 3 * patches + row_N * grid + column_N), 31)
    else:
        group_BN = _blocks(key_B1, place_N, grid)
    return (group_BN << 31) | rng.top_bits(hash_BN, 31)


def _blocks(key_B1: Tensor, place_N: Tensor, grid: int) -> Tensor:
    """The index of the first of BLOCKS rectangles that covers each patch, BLOCKS where none does:
    int64 (B, N).

    Sides are from a quarter to half of the grid's side; positions are all that touch the grid.
    """
    number_M = torch.arange(BLOCKS, device=key_B1.device)
    slot_M = 3 * len(place_N) + 4 * number_M
    low = max(1, grid // 4)
    high = max(1, grid // 2)
    height_BM = low + rng.integers(key_B1, slot_M, high - low + 1)
    width_BM = low + rng.integers(key_B1, slot_M + 1, high - low + 1)
    top_BM = rng.integers(key_B1, slot_M + 2, grid + height_BM - 1) - height_BM + 1
    left_BM = rng.integers(key_B1, slot_M + 3, grid + width_BM - 1) - width_BM + 1
    covers_BMN = covered(grid, top_BM, left_BM, height_BM, width_BM)
    return torch.where(covers_BMN, number_M[:, None], BLOCKS).amin(1)


def covered(
    grid: int, top_BM: Tensor, left_BM: Tensor, height_BM: Tensor, width_BM: Tensor
) -> Tensor:
    """Which patches of grid x grid each rectangle covers: bool (B, M, N)."""
    place_N = torch.arange(grid**2, device=top_BM.device)
    down_BMN = place_N // grid - top_BM[..., None]
    right_BMN = place_N % grid - left_BM[..., None]
    in_rows_BMN = (down_BMN >= 0) & (down_BMN < height_BM[..., None])
    in_columns_BMN = (right_BMN >= 0) & (right_BMN < width_BM[..., None])
    return in_rows_BMN & in_columns_BMN


def visible_patches(corruption: Corruption, patches: int) -> Tensor:
    """The patches that are not corrupted, in their order in the image: int64 (B, N - K)."""
    corrupted_BK = corruption.corrupted_BK
    images, count = corrupted_BK.shape
    is_corrupted_BN = corrupted_BK.new_zeros(images, patches).scatter(1, corrupted_BK, 1)
    return is_corrupted_BN.argsort(dim=1, stable=True)[:, : patches - count]


def gather_corrupted(value_BN: Tensor, corruption: Corruption) -> Tensor:
    """The corrupted patches' entries of a value (B, N, ...): (B, K, ...)."""
    rows = token_rows(corruption.corrupted_BK, value_BN.shape[1])
    return value_BN.flatten(0, 1).index_select(0, rows).unflatten(0, corruption.corrupted_BK.shape)


def apply(x_BND: Tensor, corruption: Corruption, mask_D: Tensor) -> Tensor:
    """Patch embeddings (B, N, D) with the corrupted ones replaced: MASK by `mask_D`, RANDOM by the
    clean embedding of their source."""
    return replace_masked(replace_random(x_BND, corruption), corruption, mask_D)


def replace_random(x_BND: Tensor, corruption: Corruption) -> Tensor:
    """Embeddings or pixels (B, N, D) of patches, of RANDOM ones those of their source.

    Pixels have no gradient. Embeddings have one, and a GPU adds up those of a source's copies in no
    fixed order.
    """
    row_BN = torch.arange(x_BND[..., 0].numel(), device=x_BND.device).view(x_BND.shape[:2])
    own_BK = gather_corrupted(row_BN, corruption)
    row_BK = torch.where(corruption.kind_BK == RANDOM, corruption.source_BK, own_BK)
    row_BN = row_BN.scatter(1, corruption.corrupted_BK, row_BK)
    return x_BND.flatten(0, 1).index_select(0, row_BN.flatten()).view_as(x_BND)


def replace_masked(x_BND: Tensor, corruption: Corruption, mask_D: Tensor) -> Tensor:
    """Patch embeddings (B, N, D), the MASK ones replaced by `mask_D`."""
    masked_BN = torch.zeros_like(x_BND[..., 0], dtype=torch.bool)
    masked_BN = masked_BN.scatter(1, corruption.corrupted_BK, corruption.kind_BK == MASK)
    return torch.where(masked_BN[..., None], mask_D.to(x_BND.dtype), x_BND)
