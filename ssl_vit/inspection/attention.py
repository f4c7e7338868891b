"""Compute attention maps from each block's queries and keys, and figures of attention.

The figures are mean distance and rollout, both of Dosovitskiy et al., 2021 (sections 4.5, D.7 and
D.8), and attention of the class token.

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

# Classes whose attention weights `attention_weights` computes
KINDS = (Attention, QueryAttention, AttentionRope, EvaAttention)


@torch.no_grad()
def attention_maps(encoder: Encoder, image_B3HW: Tensor) -> Iterator[Tensor]:
    """Yield the attention weights of each block, float32 (B, H, T, T).

    Row t holds the weights with which token t reads all tokens. Fused kernels do not return these
    weights. Therefore, temporary hooks record the queries and keys of each block, and
    `attention_weights` computes the weights a second time. The encoder's forward pass is not
    changed.

    Args:
        encoder: Encoder in evaluation mode.
        image_B3HW: Images in uint8.

    Raises:
        UnavailableError: The class of a block's attention is not in KINDS.
    """
    x_BTD = encoder.embed(encoder.patch(image_B3HW))
    arguments = encoder.block_arguments()
    for number, block in enumerate(encoder.backbone.blocks, 1):
        attention: Any = getattr(block, "attn", block)
        # `type` instead of isinstance, because a subclass may compute something else
        if type(attention) not in KINDS:
            kind = type(attention).__name__
            raise UnavailableError(f"the attention of block {number} cannot be read ({kind})")
        query_and_key: list[Tensor] = []

        # The default argument binds this block's list. The last argument of a hook is the output
        def record(*hook_arguments: Any, outputs: list[Tensor] = query_and_key) -> None:
            outputs.append(hook_arguments[-1])

        # Every class in KINDS has q_norm and k_norm, which are identities if queries and keys have
        # no norm. The outputs of q_norm and k_norm are the queries and keys of the attention
        hooks = [
            norm.register_forward_hook(record) for norm in (attention.q_norm, attention.k_norm)
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
    """Compute attention weights from queries and keys (Dosovitskiy et al., 2021, equation 6).

    Args:
        attention: Attention module of one of timm's classes in KINDS.
        query_BHTd: Queries of the module, for B images, H heads, T tokens and d channels of a head.
        key_BHTd: Keys of the module.
        rope: Rotary positions of N patches, (N, 2d): d sines and d cosines of the angles. None: no
            rotary positions.

    Returns:
        Weights, float32 (B, H, T, T). Row t says how much token t reads from each token.
    """
    if rope is not None:
        half = getattr(attention, "rotate_half", False)
        query_BHTd = _rotated(query_BHTd, rope, half)
        key_BHTd = _rotated(key_BHTd, rope, half)
    logit_BHTT = (query_BHTd * attention.scale) @ key_BHTd.transpose(-2, -1)
    return logit_BHTT.float().softmax(-1)


def _rotated(x_BHTd: Tensor, sin_cos_N2d: Tensor, half: bool) -> Tensor:
    """Apply rotary positions to queries or keys, and return them (B, H, T, d).

    Args:
        x_BHTd: Queries or keys. The prefix tokens come first and are not rotated.
        sin_cos_N2d: Sines and cosines of the patches, as in `attention_weights`.
        half: How timm pairs the values that are rotated together. True: value i and value i + d/2.
            False: neighbouring values.
    """
    prefix = x_BHTd.shape[2] - len(sin_cos_N2d)
    patch_BHNd = apply_rot_embed_cat(x_BHTd[:, :, prefix:], sin_cos_N2d, half=half)
    return torch.cat([x_BHTd[:, :, :prefix], patch_BHNd], 2).type_as(x_BHTd)


def patch_distances(grid: tuple[int, int], patch: int) -> Tensor:
    """Return the distance in pixels between the centres of all pairs of patches, (N, N).

    Args:
        grid: Rows and columns of patches.
        patch: Side of a patch in pixels.
    """
    rows, columns = torch.meshgrid(*(torch.arange(side) for side in grid), indexing="ij")
    centre_N2 = patch * torch.stack([rows.flatten(), columns.flatten()], 1).double()
    return torch.cdist(centre_N2, centre_N2).float()


def attention_distance(attention_BHTT: Tensor, distance_NN: Tensor) -> Tensor:
    """Return how far the patches of an image attend on average, in pixels, for each head, (B, H).

    This is the mean attention distance of Dosovitskiy et al. (2021, D.7). The distance of a patch
    is the mean of its distances to all patches, weighted by its attention to these patches. The
    result is the mean over the patches of an image.

    Prefix tokens, such as the class token, have no position in the image, so attention to them does
    not count. A patch that attends only to prefix tokens is left out of the mean. If all patches
    are left out, the result is NaN.

    Args:
        attention_BHTT: Attention weights of a block.
        distance_NN: Result of `patch_distances`.
    """
    prefix = attention_BHTT.shape[-1] - len(distance_NN)
    patch_attention_BHNN = attention_BHTT[:, :, prefix:, prefix:]
    weighted_sum_BHN = (patch_attention_BHNN * distance_NN).sum(-1)
    # NaN (0 / 0) for a patch that attends only to prefix tokens
    distance_BHN = weighted_sum_BHN / patch_attention_BHNN.sum(-1)
    return distance_BHN.nanmean(-1)


def rollout(attention_maps: Iterable[Tensor]) -> Tensor:
    """Return the attention rollout (B, T, T).

    Row t of an image has the share of each input token in output token t.

    In each block, the attention is averaged over heads, the identity is added for the residual
    connection, and each row is normalised to sum 1. The result is the matrix product over all
    blocks (Dosovitskiy et al., 2021, D.8; Abnar and Zuidema, 2020, section 3.1).

    Args:
        attention_maps: Attention weights (B, H, T, T) of each block, from the first to the last.
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
        pool: Which feature: "token" for the class token, "avg" for the mean of the patches.
    """
    if pool == "token":
        return rolled_BTT[:, 0, prefix:]
    return rolled_BTT[:, prefix:, prefix:].mean(1)
