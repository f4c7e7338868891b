"""Compute attention maps from each block's queries and keys, and the paper's figures of attention.

The figures are mean distance (4.5, D.7), rollout (4.5, D.8) and attention of the class token.

Legend: B images, H heads, T tokens (prefix + N), N patches, D width, d width of a head.
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
    """Yield each block's attention, float32 (B, H, T, T).

    Row t holds the weights with which token t reads all tokens. The forward pass is the encoder's,
    including fused kernels. Temporary hooks record queries and keys of each attention, from which
    the weights are computed a second time.

    Raises:
        UnavailableError: A block's attention is none of KINDS.
    """
    x_BTD = encoder.embed(encoder.patch(image_B3HW))
    arguments = encoder.block_arguments()
    for number, block in enumerate(encoder.backbone.blocks, 1):
        attention: Any = getattr(block, "attn", block)
        # No subclasses, because a subclass may compute something else
        if type(attention) not in KINDS:
            kind = type(attention).__name__
            raise UnavailableError(f"the attention of block {number} cannot be read ({kind})")
        query_and_key: list[Tensor] = []
        # Queries and keys pass through norms, or through identities if there are no norms
        hooks = [
            norm.register_forward_hook(
                lambda *arguments, kept=query_and_key: kept.append(arguments[-1])
            )
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
    """Return the softmax of scaled products of queries and keys, (B, H, T, T) (paper, equation 6).

    Rotary positions are applied.

    Args:
        attention: A module of KINDS.
        query_BHTd, key_BHTd: Queries and keys of the module.
        rope: Angles of rotary positions of the patches, (N, 2d). None: no rotary positions.
    """
    if rope is not None:
        half = getattr(attention, "rotate_half", False)
        query_BHTd, key_BHTd = (
            _rotated(projected_BHTd, rope, half) for projected_BHTd in (query_BHTd, key_BHTd)
        )
    logit_BHTT = (query_BHTd * attention.scale) @ key_BHTd.transpose(-2, -1)
    return logit_BHTT.float().softmax(-1)


def _rotated(x_BHTd: Tensor, angle_Nd: Tensor, half: bool) -> Tensor:
    """Rotate the patches, which follow the prefix tokens."""
    prefix = x_BHTd.shape[2] - len(angle_Nd)
    patch_BHNd = apply_rot_embed_cat(x_BHTd[:, :, prefix:], angle_Nd, half=half)
    return torch.cat([x_BHTd[:, :, :prefix], patch_BHNd], 2).type_as(x_BHTd)


def patch_distances(grid: tuple[int, int], patch: int) -> Tensor:
    """Return the distance in pixels between the centres of all pairs of patches, (N, N)."""
    rows, columns = torch.meshgrid(*(torch.arange(side) for side in grid), indexing="ij")
    place_N2 = patch * torch.stack([rows.flatten(), columns.flatten()], 1).double()
    return torch.cdist(place_N2, place_N2).float()


def attention_distance(attention_BHTT: Tensor, distance_NN: Tensor) -> Tensor:
    """Return the mean distance in pixels over which each head reads in each image, (B, H).

    The distance between a patch and all patches is weighted by attention and averaged over patches
    (paper, D.7). Other tokens have no place in the image, so weights are normalised over patches.
    NaN if no patch reads any patch.
    """
    prefix = attention_BHTT.shape[-1] - len(distance_NN)
    among_BHNN = attention_BHTT[:, :, prefix:, prefix:]
    weighted_BHN = (among_BHNN * distance_NN).sum(-1) / among_BHNN.sum(-1)
    return weighted_BHN.nanmean(-1)


def rollout(attention_maps: Iterable[Tensor]) -> Tensor:
    """Return how much of each input token is in each output token, (B, T, T). Rows sum to 1.

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
    """Return the share of each patch in an image's feature, (B, N).

    Args:
        rolled_BTT: Result of `rollout`.
        prefix: Number of prefix tokens.
        pool: The feature: "token" for the class token, "avg" for the mean of the patches.
    """
    if pool == "token":
        return rolled_BTT[:, 0, prefix:]
    return rolled_BTT[:, prefix:, prefix:].mean(1)
