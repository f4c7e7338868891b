"""Choose and replace the patches that are corrupted (paper, B.1.2).

Of the corrupted patches, 80% are replaced by the [mask] embedding, 10% by the embedding of another
patch, and 10% are kept. All random choices follow from the keys of the samples. Therefore the same
samples are corrupted in the same way on any device and with any number of processes.

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
BLOCKS = 64  # rectangles drawn for an image. Only the first, until they cover K patches, are used


class Corruption(NamedTuple):
    """Corrupted patches of a batch, in three int64 tensors (B, K).

    Attributes:
        corrupted_BK: Index of each corrupted patch in the image, 0 .. N-1.
        kind_BK: MASK, RANDOM or KEEP.
        source_BK: Patch whose embedding replaces a RANDOM patch, as a row of the batch's (B N)
            embeddings, image after image.
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
    """Choose the K = rate N corrupted patches of each image, and how each patch is corrupted.

    A corrupted patch is replaced by the [mask] embedding (kind MASK), replaced by the embedding of
    a random other patch (RANDOM), or left unchanged (KEEP). The kind of each patch is drawn
    independently. The corrupted patches are the first K in `corruption_order`.

    Args:
        key_B: Keys of the samples, int64.
        patches: Number of patches N of an image.
        rate: Share of the patches of each image that are corrupted.
        mask: Probability that a corrupted patch is MASK.
        random: Probability that a corrupted patch is RANDOM. The remaining patches are KEEP.
        source: "image" to replace a RANDOM patch by another patch of the same image, "batch" to
            replace it by another patch of the device batch.
        shape: "patches" to corrupt single patches or squares of patches, "blocks" to corrupt
            rectangles of random sizes.
        side: Side in patches of the squares that shape="patches" corrupts. 1: single patches.
    """
    key_B1 = rng.stream(key_B, STREAM)[:, None]
    order_BN = corruption_order(key_B1, patches, shape, side).argsort(dim=1, stable=True)
    corrupted_BK = order_BN[:, : selected_count(rate, patches)]
    kind_BK = _kinds(key_B1, corrupted_BK, mask, random)
    return Corruption(corrupted_BK, kind_BK, _sources(key_B1, corrupted_BK, patches, source))


def _kinds(key_B1: Tensor, corrupted_BK: Tensor, mask: float, random: float) -> Tensor:
    """Draw MASK, RANDOM or KEEP for each corrupted patch, int64 (B, K).

    Probabilities are compared as integers, in units of 2^-24, so that the result does not depend on
    the rounding of floats.

    Args:
        key_B1: Random streams of the images, int64.
        corrupted_BK: Index of each corrupted patch in the image, int64.
        mask: Probability of MASK.
        random: Probability of RANDOM.
    """
    # Patch p draws its kind with the counter 3 p + 1 (`corruption_order` lists all counters)
    draw_BK = rng.integers(key_B1, 3 * corrupted_BK + 1, 1 << 24)
    # A draw / 2^24 below `mask` is MASK, from there to below `mask + random` RANDOM, and above KEEP
    is_masked_BK = draw_BK < round(mask * 2**24)
    is_kept_BK = draw_BK >= round((mask + random) * 2**24)
    kind_BK = torch.full_like(corrupted_BK, RANDOM)
    return kind_BK.masked_fill(is_kept_BK, KEEP).masked_fill(is_masked_BK, MASK)


def _sources(key_B1: Tensor, corrupted_BK: Tensor, patches: int, source: str) -> Tensor:
    """For each corrupted patch, draw another patch as its replacement (used for kind RANDOM).

    All other patches of the image or of the device batch are equally likely. If there is no other
    patch, the corrupted patch itself is returned.

    Args:
        key_B1: Random streams of the images, int64.
        corrupted_BK: Index of each corrupted patch in the image, int64.
        patches: Number of patches N of an image.
        source: "image" or "batch".

    Returns:
        The drawn patches, int64 (B, K): rows of the batch's embeddings (B N, D), image after image.
    """
    images = len(key_B1)
    corrupted_row_BK = corrupted_BK + patches * torch.arange(images, device=key_B1.device)[:, None]
    if source == "image":
        candidates = patches
        first_row_BK = corrupted_row_BK - corrupted_BK
    else:
        candidates = patches * images
        first_row_BK = torch.zeros_like(corrupted_row_BK)
    if candidates == 1:
        return corrupted_row_BK
    # Draw one of the candidates except the corrupted patch itself: draw from one candidate less,
    # then skip the row of the corrupted patch by adding 1 from this row on. For example, with the
    # candidates 0 .. 3 and the corrupted patch 1, the draws 0, 1, 2 become 0, 2, 3. Patch p draws
    # with the counter 3 p + 2 (`corruption_order` lists all counters)
    drawn_row_BK = first_row_BK + rng.integers(key_B1, 3 * corrupted_BK + 2, candidates - 1)
    return drawn_row_BK + (drawn_row_BK >= corrupted_row_BK).long()


def corruption_order(key_B1: Tensor, patches: int, shape: str, side: int) -> Tensor:
    """Return a number for each patch, int64 (B, N): patches with low numbers are corrupted first.

    The numbers order single patches, squares or rectangles of patches at random. Patches within a
    square or rectangle are ordered at random too, because only a part of the last one may be
    corrupted. Squares and rectangles need a square grid of patches.

    Args:
        key_B1: Random streams of the images.
        patches: Number of patches N of an image.
        shape: "patches" corrupts patches, or squares of patches, in random order. "blocks" corrupts
            random rectangles one after the other, then the patches that no rectangle covers (BEiT:
            Bao et al., 2022, algorithm 1). Unlike in BEiT, rectangles may extend beyond the edges
            of the image, so that all patches are corrupted equally often.
        side: Side in patches of the squares that shape="patches" corrupts (SimMIM's large masked
            patches: Xie et al., 2022, section 3.2). 1 corrupts single patches.
    """
    index_N = torch.arange(patches, device=key_B1.device)
    # Each image has a random stream, from which a counter selects a number:
    #   3 p, 3 p + 1, 3 p + 2  order, kind (`_kinds`) and source (`_sources`) of patch p
    #   3 N + p                order of the square whose first patch is p
    #   3 N + 4 m and on       height, width, top and left of rectangle m (`_blocks`)
    hash_BN = rng.bits(key_B1, 3 * index_N)
    if shape == "patches" and side == 1:
        return hash_BN
    grid = math.isqrt(patches)
    if shape == "patches":
        # All patches of a square get the same random number, by the counter of its first patch
        first_row_N = index_N // grid // side * side
        first_column_N = index_N % grid // side * side
        counter_N = 3 * patches + first_row_N * grid + first_column_N
        group_BN = rng.top_bits(rng.bits(key_B1, counter_N), 31)
    else:
        group_BN = _blocks(key_B1, index_N, grid)
    # Patches are ordered first by group (square or rectangle), in the upper bits, and within a
    # group by the 31 bits of the patch's own hash
    return (group_BN << 31) | rng.top_bits(hash_BN, 31)


def _blocks(key_B1: Tensor, index_N: Tensor, grid: int) -> Tensor:
    """Draw BLOCKS rectangles per image, and return the first rectangle that covers each patch.

    The sides of a rectangle are between a quarter and half of the grid's side. All positions at
    which a rectangle covers at least one patch are equally likely.

    Args:
        key_B1: Random streams of the images, int64.
        index_N: Numbers of the patches, 0 .. N-1.
        grid: Side of the image, in patches.

    Returns:
        Numbers of rectangles, int64 (B, N), or BLOCKS for a patch that no rectangle covers.
    """
    number_M = torch.arange(BLOCKS, device=key_B1.device)
    # Counters for each rectangle (height, width, top, left) follow the counters of the patches
    slot_M = 3 * len(index_N) + 4 * number_M
    low = max(1, grid // 4)
    high = max(1, grid // 2)
    height_BM = low + rng.integers(key_B1, slot_M, high - low + 1)
    width_BM = low + rng.integers(key_B1, slot_M + 1, high - low + 1)
    # The top is between 1 - height (only the last row of the rectangle is inside the image) and
    # grid - 1 (only the first row is inside), and the left side likewise
    top_BM = rng.integers(key_B1, slot_M + 2, grid + height_BM - 1) - height_BM + 1
    left_BM = rng.integers(key_B1, slot_M + 3, grid + width_BM - 1) - width_BM + 1
    covers_BMN = covered(grid, top_BM, left_BM, height_BM, width_BM)
    return torch.where(covers_BMN, number_M[:, None], BLOCKS).amin(1)


def covered(
    grid: int, top_BM: Tensor, left_BM: Tensor, height_BM: Tensor, width_BM: Tensor
) -> Tensor:
    """Return which patches each rectangle covers, bool (B, M, N).

    Args:
        grid: Side of the image, in patches.
        top_BM: First row of each rectangle. A rectangle may begin and end outside of the image.
        left_BM: First column of each rectangle.
        height_BM: Number of rows of each rectangle.
        width_BM: Number of columns of each rectangle.
    """
    index_N = torch.arange(grid**2, device=top_BM.device)
    down_BMN = index_N // grid - top_BM[..., None]
    right_BMN = index_N % grid - left_BM[..., None]
    in_rows_BMN = (down_BMN >= 0) & (down_BMN < height_BM[..., None])
    in_columns_BMN = (right_BMN >= 0) & (right_BMN < width_BM[..., None])
    return in_rows_BMN & in_columns_BMN


def visible_patches(corruption: Corruption, patches: int) -> Tensor:
    """Return the patches that are not corrupted, in image order, int64 (B, N - K)."""
    corrupted_BK = corruption.corrupted_BK
    images, num_corrupted = corrupted_BK.shape
    is_corrupted_BN = corrupted_BK.new_zeros(images, patches).scatter(1, corrupted_BK, 1)
    # The stable sort puts visible patches (0) first and keeps the patches in image order
    return is_corrupted_BN.argsort(dim=1, stable=True)[:, : patches - num_corrupted]


def gather_corrupted(value_BN: Tensor, corruption: Corruption) -> Tensor:
    """Select the values (B, K, ...) of the corrupted patches from values (B, N, ...)."""
    rows = token_rows(corruption.corrupted_BK, value_BN.shape[1])
    return value_BN.flatten(0, 1).index_select(0, rows).unflatten(0, corruption.corrupted_BK.shape)


def apply(x_BND: Tensor, corruption: Corruption, mask_D: Tensor) -> Tensor:
    """Return patch embeddings (B, N, D) in which the corrupted patches are replaced.

    MASK patches get the embedding `mask_D`, and RANDOM patches the uncorrupted embedding of their
    source patch.
    """
    return replace_masked(replace_random(x_BND, corruption), corruption, mask_D)


def replace_random(x_BND: Tensor, corruption: Corruption) -> Tensor:
    """Return embeddings or pixels (B, N, D) in which RANDOM patches are replaced by their sources.

    All other patches stay unchanged. For results that are the same in each run, pass pixels, which
    have no gradient. If embeddings are passed and a source is copied several times, a GPU adds up
    the gradients of the copies in no fixed order.

    Args:
        x_BND: Embeddings or pixels of all patches.
        corruption: The corrupted patches, and the source of each.
    """
    # Number the patches of all images: row b N + n is patch n of image b
    row_BN = torch.arange(x_BND[..., 0].numel(), device=x_BND.device).view(x_BND.shape[:2])
    unchanged_row_BK = gather_corrupted(row_BN, corruption)
    row_BK = torch.where(corruption.kind_BK == RANDOM, corruption.source_BK, unchanged_row_BK)
    row_BN = row_BN.scatter(1, corruption.corrupted_BK, row_BK)
    return x_BND.flatten(0, 1).index_select(0, row_BN.flatten()).view_as(x_BND)


def replace_masked(x_BND: Tensor, corruption: Corruption, mask_D: Tensor) -> Tensor:
    """Return patch embeddings (B, N, D) in which MASK patches are replaced by `mask_D`."""
    is_masked_BN = torch.zeros_like(x_BND[..., 0], dtype=torch.bool)
    is_masked_BN = is_masked_BN.scatter(1, corruption.corrupted_BK, corruption.kind_BK == MASK)
    return torch.where(is_masked_BN[..., None], mask_D.to(x_BND.dtype), x_BND)
