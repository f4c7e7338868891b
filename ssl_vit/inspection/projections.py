"""Features in few dimensions: principal components, patches as colours, images as points.

Legend: N rows, D width, K components, B images, P patches of an image.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from .base import UnavailableError

CLIPPED = 0.01  # share of the patches at each end of a colour channel's range
FITTED = 2**16  # patches that the colours' projection is fitted to, at most
PERPLEXITY = 30  # of t-SNE (van der Maaten and Hinton, 2008, section 2: 5 to 50)
FEWEST = 8  # images on which t-SNE is worth drawing


class Components(NamedTuple):
    """Mean (D,), unit directions (K, D) and the share of the variance along each (K,), the largest
    first, float64."""

    mean_D: Tensor
    direction_KD: Tensor
    variance_K: Tensor

    def project(self, x_ND: Tensor) -> Tensor:
        """Coordinates (N, K)."""
        return (x_ND.double() - self.mean_D) @ self.direction_KD.T


def principal_components(x_ND: Tensor, count: int) -> Components:
    """The first `count` principal components of the rows, fewer where there are not so many. The
    entry of largest magnitude of each is positive, so that its sign does not depend on the
    library."""
    rows, width = x_ND.shape
    x_ND = x_ND.double()
    mean_D = x_ND.mean(0)
    centred_ND = x_ND - mean_D
    value_D, vector_DD = torch.linalg.eigh(centred_ND.T @ centred_ND)
    square_K = value_D.flip(0).clamp(min=0)
    kept = max(1, min(count, rows - 1, width))
    direction_KD = vector_DD.T.flip(0)[:kept]
    largest_K1 = direction_KD.gather(1, direction_KD.abs().argmax(1, keepdim=True))
    total = square_K.sum().clamp(min=torch.finfo(torch.float64).tiny)
    return Components(mean_D, direction_KD * largest_K1.sign(), square_K[:kept] / total)


def patch_colors(sample_ND: Tensor, feature_BPD: Tensor) -> tuple[Tensor, Tensor]:
    """Patch features along the first three principal components of a sample of patches, as red,
    green and blue. One projection and one range for all images: the same colour is the same feature
    in each.

    Returns:
        Patches as colours, uint8 (B, P, 3), and the share of the variance that each channel shows,
        (3,).

    Raises:
        UnavailableError: features have fewer than three dimensions.
    """
    found = principal_components(sample_ND, 3)
    if len(found.direction_KD) < 3:
        raise UnavailableError("expected features of at least 3 dimensions and 4 patches")
    ends = torch.tensor([CLIPPED, 1 - CLIPPED], dtype=torch.float64, device=sample_ND.device)
    low_3, high_3 = torch.quantile(found.project(sample_ND), ends, dim=0)
    span_3 = (high_3 - low_3).clamp(min=1e-12)
    # image by image: all in float64 would take several times the features' memory
    share_BP3 = torch.stack([(found.project(x_PD) - low_3) / span_3 for x_PD in feature_BPD])
    return (255 * share_BP3).round().clamp(0, 255).to(torch.uint8), found.variance_K


def image_map(feature_BD: Tensor) -> Tensor:
    """Places (B, 2) of images by t-SNE of their features, the same each time.

    Raises:
        UnavailableError: scikit-learn is not installed, there are few images, or their features
            have one dimension.
    """
    if len(feature_BD) < FEWEST:
        raise UnavailableError(f"t-SNE needs {FEWEST} images, there are {len(feature_BD)}")
    if torch.equal(feature_BD.amin(0), feature_BD.amax(0)):
        raise UnavailableError("its features are the same for all images")
    if feature_BD.shape[1] < 2:
        raise UnavailableError("expected features of at least 2 dimensions")
    try:
        from sklearn.manifold import TSNE
    except ImportError:
        raise UnavailableError("t-SNE needs pip install -e '.[figures]' in the clone") from None
    perplexity = min(PERPLEXITY, (len(feature_BD) - 1) / 3)
    tsne = TSNE(perplexity=perplexity, init="pca", learning_rate="auto", random_state=0)
    return torch.from_numpy(tsne.fit_transform(feature_BD.float().cpu().numpy()))
