"""Project features to few dimensions: principal components, and patches as colours.

Legend: N rows, D width, K components, B images, P patches of an image.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from .base import UnavailableError

CLIPPED = 0.01  # share of the patches that are clipped at each end of a colour channel
FITTED = 2**16  # largest number of patches to which the projection to colours is fitted


class Components(NamedTuple):
    """Principal components in float64, largest variance first.

    Attributes:
        mean_D: Mean of the rows.
        direction_KD: Unit vectors.
        variance_K: Share of the variance along each direction.
    """

    mean_D: Tensor
    direction_KD: Tensor
    variance_K: Tensor

    def project(self, x_ND: Tensor) -> Tensor:
        """Return the coordinates (N, K) of N rows along the K directions."""
        return (x_ND.double() - self.mean_D) @ self.direction_KD.T


def principal_components(x_ND: Tensor, count: int) -> Components:
    """Return the first `count` principal components of the rows, or all if there are fewer.

    The sign of each component is chosen so that its entry of largest magnitude is positive.
    Otherwise the sign would depend on the library.

    Args:
        x_ND: The rows.
        count: Largest number of components.
    """
    rows, width = x_ND.shape
    x_ND = x_ND.double()
    mean_D = x_ND.mean(0)
    centred_ND = x_ND - mean_D
    eigenvalue_D, eigenvector_DD = torch.linalg.eigh(centred_ND.T @ centred_ND)  # ascending
    variance_D = eigenvalue_D.flip(0).clamp(min=0)
    # N centred rows have variance along at most N - 1 directions
    components = max(1, min(count, rows - 1, width))
    direction_KD = eigenvector_DD.T.flip(0)[:components]
    largest_K1 = direction_KD.gather(1, direction_KD.abs().argmax(1, keepdim=True))
    total = variance_D.sum().clamp(min=torch.finfo(torch.float64).tiny)
    return Components(mean_D, direction_KD * largest_K1.sign(), variance_D[:components] / total)


def patch_colors(sample_ND: Tensor, feature_BPD: Tensor) -> tuple[Tensor, Tensor]:
    """Convert patch features to colours: the first three principal components as RGB.

    The components are fitted to a sample of patches. All images share one projection and one range,
    so that a colour stands for the same feature in every image.

    Args:
        sample_ND: Features of the sample.
        feature_BPD: Features of the patches to show.

    Returns:
        Patches as colours, uint8 (B, P, 3), and the share of the variance that each channel shows,
        (3,).

    Raises:
        UnavailableError: Features have fewer than three dimensions, or there are fewer than 4
            patches.
    """
    components = principal_components(sample_ND, 3)
    if len(components.direction_KD) < 3:
        raise UnavailableError(
            "the figure needs features of at least 3 dimensions, and at least 4 patches"
        )
    limits = torch.tensor([CLIPPED, 1 - CLIPPED], dtype=torch.float64, device=sample_ND.device)
    low_3, high_3 = torch.quantile(components.project(sample_ND), limits, dim=0)
    range_3 = (high_3 - low_3).clamp(min=1e-12)
    # A channel is 0 at low_3 and 255 at high_3. Values beyond are clipped.
    # Project image by image, because float64 copies of all features would take much memory
    color_BP3 = torch.stack([(components.project(x_PD) - low_3) / range_3 for x_PD in feature_BPD])
    return (255 * color_BP3).round().clamp(0, 255).to(torch.uint8), components.variance_K
