"""KoLeo, image by image, as papers have it."""

import torch
from torch import Tensor


def plain_koleo(feature_BD: Tensor) -> Tensor:
    """Sablayrolles et al., 2019, equation 2, of features of length 1, with DINOv2's two small
    constants; the nearest by distance."""
    unit = feature_BD / feature_BD.norm(dim=1, keepdim=True)
    logs = []
    for i, one in enumerate(unit):
        others = [other for j, other in enumerate(unit) if j != i]
        nearest = min(others, key=lambda other, one=one: (one - other).norm().item())
        logs.append(torch.log((one - nearest + 1e-8).square().sum().sqrt() + 1e-8))
    return -torch.stack(logs).mean()
