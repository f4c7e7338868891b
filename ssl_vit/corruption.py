"""Which patches are hit, and what each becomes (paper, B.1.2): 80% the [mask] embedding, 10% another patch's, 10% their own.

Everything is a function of the samples' keys, so the same samples are corrupted alike on any device and any number of
processes. Legend: B batch, N patches, K = corrupted(rate, N) patches hit in each picture, D width.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from . import counted

MASK, RANDOM, KEEP = range(3)


class Corruption(NamedTuple):
    """`hit_BK` int64, the patches hit; `kind_BK` int64, MASK, RANDOM or KEEP; `source_BK` int64, whose embedding a RANDOM
    patch takes: a row of the (B N) embeddings of the batch laid out one picture after the other."""

    hit_BK: Tensor
    kind_BK: Tensor
    source_BK: Tensor


def corrupted(rate: float, patches: int) -> int:
    """K = floor(rate N + 1/2), at least 1: how many patches of each picture are hit. 0.58 x 25 is 14.5, no float below."""
    return max(1, int(round(rate * patches, 9) + 0.5))


def draw(key_B: Tensor, patches: int, rate: float, mask: float = 0.8, random: float = 0.1, source: str = "image") -> Corruption:
    """Choose K patches of each picture by rank of (hash, index), and for each of them, independently, what it becomes.

    `mask` and `random` are shares of the K; the rest is kept. A RANDOM patch's source is another patch, never itself, of
    the same picture (source="image") or of the whole device batch ("batch").
    """
    key_B1 = counted.stream(key_B, "corruption")[:, None]
    slot_N = 3 * torch.arange(patches, device=key_B.device)
    order_BN = counted.bits(key_B1, slot_N).argsort(dim=1, stable=True)
    hit_BK = order_BN[:, : corrupted(rate, patches)]
    # thresholds in units of 2^-24, so that no float decides
    draw_BK = counted.integers(key_B1, 3 * hit_BK + 1, 1 << 24)
    kind_BK = (draw_BK >= round(mask * 2**24)).long() + (draw_BK >= round((mask + random) * 2**24)).long()
    own_BK = hit_BK + patches * torch.arange(len(key_B), device=key_B.device)[:, None]
    others = patches if source == "image" else patches * len(key_B)
    first_B1 = own_BK - hit_BK if source == "image" else torch.zeros_like(own_BK)
    other_BK = first_B1 + counted.integers(key_B1, 3 * hit_BK + 2, max(1, others - 1))
    return Corruption(hit_BK, kind_BK, other_BK + (other_BK >= own_BK).long() * min(1, others - 1))


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
