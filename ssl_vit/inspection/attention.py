"""Attention maps, recomputed from each block's queries and keys; and what the paper shows of
them: mean distance (4.5, D.7), rollout (4.5, D.8), the class token's attention.

Legend: B images, H heads, T tokens (prefix + N), N patches, D width.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from timm.layers import AttentionRope, apply_rot_embed_cat
from timm.models.eva import EvaAttention
from timm.models.vision_transformer import Attention
from torch import Tensor

from ..models.attention import QueryAttention
from ..models.encoder import Encoder
from .base import UnavailableError

KINDS = (Attention, QueryAttention, AttentionRope, EvaAttention)


@torch.no_grad()
def attention_maps(encoder: Encoder, image_B3HW: Tensor) -> Iterator[Tensor]:
    """Yield each block's attention, float32 (B, H, T, T): row t holds the weights with which token
    t reads all tokens.

    The forward pass is the encoder's own, fused kernels included; hooks that are removed again
    pass each attention's queries and keys on, from which the weights are computed a second time.

    Raises:
        UnavailableError: a block's attention is none of KINDS.
    """
    x_BTD = encoder.embed(encoder.patch(image_B3HW))
    arguments = encoder.block_arguments()
    for number, block in enumerate(encoder.backbone.blocks, 1):
        attention: Any = getattr(block, "attn", block)
        # exactly: a subclass may compute something else
        if type(attention) not in KINDS:
            found = type(attention).__name__
            raise UnavailableError(f"block {number} is a {found}, without timm's Attention")
        query_and_key: list[Tensor] = []
        # their norms, or what stands in a norm's place
        hooks = [
            norm.register_forward_hook(lambda *given, kept=query_and_key: kept.append(given[-1]))
            for norm in (attention.q_norm, attention.k_norm)
        ]
        try:
            x_BTD = block(x_BTD, **arguments)
        finally:
            for hook in hooks:
                hook.remove()
        yield attention_weights(attention, *query_and_key, **arguments)


def attention_weights(
    attention: Any, query_BHTd: Tensor, key_BHTd: Tensor, rope: Tensor | None = None
) -> Tensor:
    """Softmax of the scaled products of queries and keys, (B, H, T, T) (paper, equation 6), with
    the positions that the architecture has.

    Args:
        attention: a module of KINDS.
        query_BHTd, key_BHTd: its queries and keys.
        rope: angles of rotary positions, (N, 2d), for patches alone.
    """
    if rope is not None:
        half = getattr(attention, "rotate_half", False)
        query_BHTd, key_BHTd = (_rotated(one, rope, half) for one in (query_BHTd, key_BHTd))
    logit_BHTT = (query_BHTd * attention.scale) @ key_BHTd.transpose(-2, -1)
    return logit_BHTT.float().softmax(-1)


def _rotated(x_BHTd: Tensor, angle_Nd: Tensor, half: bool) -> Tensor:
    """With those of the patches rotated, which follow the prefix tokens."""
    prefix = x_BHTd.shape[2] - len(angle_Nd)
    patch_BHNd = apply_rot_embed_cat(x_BHTd[:, :, prefix:], angle_Nd, half=half)
    return torch.cat([x_BHTd[:, :, :prefix], patch_BHNd], 2).type_as(x_BHTd)


def patch_distances(grid: tuple[int, int], patch: int) -> Tensor:
    """Distance in pixels between the centres of all pairs of patches: (N, N)."""
    rows, columns = torch.meshgrid(*(torch.arange(side) for side in grid), indexing="ij")
    place_N2 = patch * torch.stack([rows.flatten(), columns.flatten()], 1).double()
    return torch.cdist(place_N2, place_N2).float()


def attention_distance(attention_BHTT: Tensor, distance_NN: Tensor) -> Tensor:
    """Mean distance in pixels over which each head reads in each image: (B, H).

    The distance between a patch and all patches, weighted by attention, and averaged over the
    patches (paper, D.7). Other tokens have no place: weights are normalised over the patches. NaN
    where no patch reads any patch.
    """
    prefix = attention_BHTT.shape[-1] - len(distance_NN)
    among_BHNN = attention_BHTT[:, :, prefix:, prefix:]
    weighted_BHN = (among_BHNN * distance_NN).sum(-1) / among_BHNN.sum(-1)
    return weighted_BHN.nanmean(-1)


def rollout(attention_maps: Iterable[Tensor]) -> Tensor:
    """How much of each input token is in each output token: (B, T, T), rows sum to 1.

    Each block's attention is averaged over heads, the identity is added for the residual
    connection, rows are normalised, and the matrices of all blocks are multiplied (paper, D.8;
    Abnar and Zuidema, 2020, section 3.1).
    """
    rolled_BTT: Tensor | None = None
    for attention_BHTT in attention_maps:
        mean_BTT = attention_BHTT.mean(1)
        mixed_BTT = mean_BTT + torch.eye(mean_BTT.shape[-1], device=mean_BTT.device)
        mixed_BTT = mixed_BTT / mixed_BTT.sum(-1, keepdim=True)
        rolled_BTT = mixed_BTT if rolled_BTT is None else mixed_BTT @ rolled_BTT
    assert rolled_BTT is not None
    return rolled_BTT


def feature_rollout(rolled_BTT: Tensor, prefix: int, pool: str) -> Tensor:
    """The share of each patch in an image's feature, (B, N): in the class token ("token"), or in
    the mean of the patches ("avg")."""
    if pool == "token":
        return rolled_BTT[:, 0, prefix:]
    return rolled_BTT[:, prefix:, prefix:].mean(1)
