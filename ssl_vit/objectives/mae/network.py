"""Train a masked autoencoder (He et al., 2022).

The encoder sees only the patches that are not masked. A light decoder receives the features of
these patches and a mask token for each masked patch, and predicts the masked patches.

Legend: B batch, N patches, K masked and V = N - K visible patches of each image, T tokens (prefix +
N), P prefix tokens, D width of the encoder, W width of the decoder, A head outputs for a patch, R
rows of all patches of a batch.
"""

import torch
from timm.layers import LayerNorm
from timm.layers.pos_embed_sincos import build_sincos2d_pos_embed
from timm.models import named_apply
from timm.models.vision_transformer import Block, init_weights_vit_jax
from torch import Tensor, nn

from ...data.batching import Batch
from ...models.attention import choose_attention, token_rows
from ...models.encoder import Encoder
from .. import corruption
from ..building import Settings
from ..patches import PatchPrediction
from ..targets.patch_targets import Target
from . import MaeOptions


class Decoder(nn.Module):
    """Decoder that turns features of the visible patches into features of all patches.

    As in He et al. (2022, section 3), a linear layer changes the features to the decoder's width.
    Mask tokens are put at the places of masked patches, and fixed position embeddings are added.
    Then follow timm's blocks and a final norm. The prefix tokens (class token) pass through the
    blocks too. Their position embeddings are zero, as in the authors' code.

    Args:
        encoder_width: Width D of the encoder.
        prefix: Number of prefix tokens of the encoder.
        grid: Rows and columns of patches.
        width: Width W of the blocks, a multiple of 4 and of `heads`. Their MLPs are four times as
            wide.
        depth: Number of blocks.
        heads: Number of attention heads of a block.
    """

    position_TW: Tensor

    def __init__(
        self,
        encoder_width: int,
        prefix: int,
        grid: tuple[int, int],
        *,
        width: int,
        depth: int,
        heads: int,
    ) -> None:
        super().__init__()
        self.prefix = prefix
        self.embed = nn.Linear(encoder_width, width)
        self.mask_token = nn.Parameter(torch.randn(width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, heads, qkv_bias=True) for _ in range(depth)))
        self.norm = LayerNorm(width)
        named_apply(init_weights_vit_jax, self)
        choose_attention(self)
        # The authors order channels differently: sines, then cosines of the column, then both of
        # the row. The layers before and after can undo a permutation of channels
        position_NW = build_sincos2d_pos_embed(list(grid), width)
        position_TW = torch.cat([position_NW.new_zeros(prefix, width), position_NW])
        self.register_buffer("position_TW", position_TW, persistent=False)

    def forward(self, h_BTD: Tensor, visible_BV: Tensor) -> Tensor:
        """Return normalised features (B, N, W) of all patches, in image order.

        Args:
            h_BTD: The encoder's output, P prefix tokens and V visible patches.
            visible_BV: Indices of the visible patches, int64.
        """
        x_BTW = self.embed(h_BTD)
        visible_BVW = x_BTW[:, self.prefix :]
        images, _, width = visible_BVW.shape
        patches = len(self.position_TW) - self.prefix
        mask_BNW = self.mask_token.to(x_BTW.dtype).expand(images, patches, width)
        # Rows of the visible patches among the R = B N patches of all images
        rows = token_rows(visible_BV, patches)
        patch_RW = mask_BNW.flatten(0, 1).index_copy(0, rows, visible_BVW.flatten(0, 1))
        patch_BNW = patch_RW.view(images, patches, width)
        x_BTW = torch.cat([x_BTW[:, : self.prefix], patch_BNW], 1) + self.position_TW
        return self.norm(self.blocks(x_BTW))[:, self.prefix :]


class MaskedAutoencoder(PatchPrediction):
    """Masked autoencoder with a linear head on the decoder's features of masked patches.

    The loss is the mean over masked patches. With the target `normalized_pixels`, the loss is that
    of the option `norm_pix_loss` in the authors' code.

    Args:
        encoder: A Vision Transformer with patches.
        target: The ground truth of patches, and the loss.
        rate: Share of the patches of each image that are masked.
        width: Width W of the decoder.
        depth: Number of blocks of the decoder.
        heads: Number of attention heads of the decoder.
    """

    # The exported feature is the mean of the encoder's normalised patches. The authors fine-tune
    # with the mean of patches before the final norm, followed by a new norm (--global_pool,
    # fc_norm), and probe the class token.
    def __init__(
        self, encoder: Encoder, target: Target, *, rate: float, width: int, depth: int, heads: int
    ) -> None:
        super().__init__(encoder, target, rate)
        self.decoder = Decoder(
            encoder.width, encoder.prefix, encoder.grid, width=width, depth=depth, heads=heads
        )
        self.head = nn.Linear(width, target.num_outputs)
        nn.init.xavier_uniform_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def sample_corruption(self, batch: Batch) -> corruption.Corruption:
        """Choose the masked patches: the same patches that MPP would corrupt at this rate."""
        patches = self.encoder.patches
        return corruption.sample(batch.key, patches, self.rate, mask=1.0, random=0.0)

    def patch_logits(self, batch: Batch, drawn: corruption.Corruption) -> Tensor:
        visible_BV = corruption.visible_patches(drawn, self.encoder.patches)
        h_BTD = self.encoder(self.encoder.patch(batch.image), visible_BV)
        h_BNW = self.decoder(h_BTD, visible_BV)
        return self.head(corruption.gather_corrupted(h_BNW, drawn))


def build(settings: Settings, encoder: Encoder, classes: int) -> MaskedAutoencoder:
    options = settings.group(MaeOptions).model_dump()
    return MaskedAutoencoder(encoder, settings.build_target(encoder), **options)
