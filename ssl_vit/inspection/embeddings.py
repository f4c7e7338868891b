"""Analyse the embedding of patches (paper, 4.5, Figure 7).

Computes principal components of the filters and similarities of the positions.

Legend: D width, C channels, P side of a patch, N patches, K components, X values of a patch's
pixels.
"""

from einops import rearrange
from torch import Tensor, nn
from torch.nn import functional as F

from ..data.pixel_values import shown_channels
from ..models.encoder import Encoder
from .base import UnavailableError
from .projections import principal_components

COMPONENTS = 28  # paper, Figure 7 (left)


def filter_components(encoder: Encoder) -> tuple[Tensor, Tensor]:
    """Compute principal components of the encoder's D filters, which embed patches of pixels.

    Args:
        encoder: The encoder.

    Returns:
        Two tensors for K <= COMPONENTS components. The first has the components, of unit norm, as
        images (K, P, P, 3) of the three channels that figures show. The second has the share of the
        filters' variance along each component, (K,).

    Raises:
        UnavailableError: Patches are not cut from pixels.
    """
    projection = getattr(encoder.backbone.patch_embed, "proj", None)
    if not isinstance(projection, nn.Conv2d) or projection.in_channels != encoder.channels:
        raise UnavailableError("the patches come from a convolutional stem, not from pixels")
    filter_DX = rearrange(projection.weight.detach(), "d c p q -> d (p q c)")
    components = principal_components(filter_DX, COMPONENTS)
    side = projection.kernel_size[0]
    image_KPPC = rearrange(components.direction_KD, "k (p q c) -> k p q c", p=side, q=side)
    return shown_channels(image_KPPC, -1), components.variance_K


def position_similarity(encoder: Encoder) -> Tensor:
    """Return the cosine similarity between the position embeddings of all patches, (N, N).

    Patches are in row order, at the encoder's image size.

    Args:
        encoder: The encoder.

    Raises:
        UnavailableError: The encoder has no position embeddings.
    """
    backbone = encoder.backbone
    table_ND = encoder.positions.table()
    if table_ND is None and getattr(backbone, "pos_embed", None) is not None:
        # timm's table may begin with the positions of the prefix tokens
        first_patch = 0 if backbone.no_embed_class else encoder.prefix
        table_ND = backbone.pos_embed[0, first_patch:]
    if table_ND is None:
        kind = encoder.positions.kind
        raise UnavailableError(f"the encoder has no position embeddings (model.positions={kind})")
    unit_ND = F.normalize(table_ND.detach().double(), dim=-1)
    return unit_ND @ unit_ND.T
