"""The referee of DINO and iBOT: of copies in float64, written from the papers and timm's own forward
pass."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ssl_vit.models.encoder import Encoder


def plain_tokens(
    net: Encoder, pixels: Tensor, mask: Tensor | None = None, token: Tensor | None = None
) -> Tensor:
    """Those of timm's Vision Transformer; learned positions bilinearly at a crop's grid with its
    corners kept. Patches in `mask` (B, N) are `token`."""
    vit = net.backbone
    x = (pixels.double() - net.mean) / net.std
    x = vit.patch_embed.proj(x).flatten(2).transpose(1, 2)
    if mask is not None:
        x = x * ~mask[..., None] + token * mask[..., None]
    whole, side = math.isqrt(vit.pos_embed.shape[1] - 1), math.isqrt(x.shape[1])
    table = vit.pos_embed[0, 1:].T.reshape(1, -1, whole, whole)
    if side != whole:
        table = F.interpolate(table, (side, side), mode="bilinear", align_corners=True)
    x = x + table.flatten(2).transpose(1, 2)
    first = (vit.cls_token + vit.pos_embed[:, :1]).expand(len(x), -1, -1)
    return vit.norm(vit.blocks(torch.cat([first, x], 1)))


def plain_logits(mlp: nn.Sequential, prototypes: nn.Linear, token: Tensor) -> Tensor:
    """DINOHead of the authors' vision_transformer.py with weight normalisation written out."""
    linear = [layer for layer in mlp if isinstance(layer, nn.Linear)]
    for i, layer in enumerate(linear):
        token = token @ layer.weight.T + layer.bias
        if i < len(linear) - 1:
            token = token * (1 + torch.erf(token / math.sqrt(2))) / 2
    token = token / token.norm(dim=-1, keepdim=True)
    direction = prototypes.weight / prototypes.weight.norm(dim=1, keepdim=True)
    return token @ (prototypes.length_K[:, None] * direction).T


def plain_sinkhorn(logits: Tensor, temperature: float) -> Tensor:
    """Algorithm of SwAV's appendix A.1, prototypes in rows, both views together."""
    q = torch.exp(logits / temperature).T
    q = q / q.sum()
    count, images = q.shape
    for _ in range(3):
        q = q / q.sum(1, keepdim=True) / count
        q = q / q.sum(0, keepdim=True) / images
    return (q * images).T


def plain_koleo(feature_BD: Tensor, group: int | None = None) -> Tensor:
    """KoLeo image by image: Sablayrolles et al., 2019, equation 2, of features of length 1, with DINOv2's two small
    constants; the nearest by distance. Of groups the mean over theirs."""
    if group:
        return torch.stack([plain_koleo(part) for part in feature_BD.split(group)]).mean()
    unit = feature_BD / feature_BD.norm(dim=1, keepdim=True)
    logs = []
    for i, one in enumerate(unit):
        others = [other for j, other in enumerate(unit) if j != i]
        nearest = min(others, key=lambda other, one=one: (one - other).norm().item())
        logs.append(torch.log((one - nearest + 1e-8).square().sum().sqrt() + 1e-8))
    return -torch.stack(logs).mean()
