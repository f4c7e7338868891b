"""Predict a teacher's features of target blocks from a context (I-JEPA: Assran et al., 2023).

The encoder sees the visible patches of an image. A predictor turns their features into features of
the patches of target blocks. The teacher, a running average of the encoder, sees the whole image
and gives the true features.

Legend: B batch, N patches, V visible patches, M target blocks, K patches of each block, T tokens, P
prefix tokens, D width of the encoder, W width of the predictor, X values of a patch's pixels.
"""

import torch
from einops import repeat
from torch import Tensor, nn
from torch.nn import functional as F

from ...data.batching import Batch
from ...data.pixel_values import shown_image
from ...models.attention import gather_tokens
from ...models.encoder import Encoder, cut_patches, join_patches
from .. import teacher
from ..base import Objective, Output, sums
from ..building import Settings
from ..mae.network import Decoder
from ..reconstruction import GREY
from . import IjepaOptions
from .masks import BlockMasks, Blocks


class Predictor(Decoder):
    """Decoder that predicts features (B, M, K, W) of each target block from the visible patches.

    For each target block separately, MAE's decoder is applied to the visible patches and to mask
    tokens at the positions of the block (section 3; the authors' `VisionTransformerPredictor`).
    Prefix tokens pass through too, with position embeddings of zero. (The authors' encoder has no
    prefix tokens.)
    """

    def forward(  # type: ignore[override]
        self, h_BTD: Tensor, visible_BV: Tensor, target_BMK: Tensor
    ) -> Tensor:
        """Return the predicted features (B, M, K, W).

        Args:
            h_BTD: The encoder's output, prefix tokens and visible patches.
            visible_BV: Indices of the visible patches, int64.
            target_BMK: Indices of the patches of each target block, int64.
        """
        position_NW = self.position_TW[self.prefix :]
        x_BTW = self.embed(h_BTD)
        prefix_BPW = x_BTW[:, : self.prefix]
        visible_BVW = x_BTW[:, self.prefix :] + position_NW[visible_BV]
        target_BMKW = self.mask_token + position_NW[target_BMK]
        num_blocks, block_patches = target_BMK.shape[1:]
        # Under autocast, the visible patches are float32, because float32 positions were added
        context_BTW = torch.cat([prefix_BPW.to(visible_BVW.dtype), visible_BVW], 1)
        context_XTW = repeat(context_BTW, "b t w -> (b m) t w", m=num_blocks)
        x_XTW = self.blocks(torch.cat([context_XTW, target_BMKW.flatten(0, 1)], 1))
        return self.norm(x_XTW[:, -block_patches:]).unflatten(0, (-1, num_blocks))


class FeaturePrediction(Objective):
    """I-JEPA: the mean smooth L1 distance between predicted features and the teacher's features.

    The teacher's features are normalised over channels. Smooth L1 is the distance of the authors'
    code. Equation 1 of the paper has the squared L2 distance.

    Args:
        encoder: A Vision Transformer with a square grid of patches.
        options: Options of blocks, predictor and teacher.
    """

    encoder: Encoder

    def __init__(self, encoder: Encoder, options: IjepaOptions) -> None:
        super().__init__(encoder)
        self.first_momentum = options.momentum
        self.masks = BlockMasks(encoder.grid[0], options)
        self.predictor = Predictor(
            encoder.width,
            encoder.prefix,
            encoder.grid,
            width=options.width,
            depth=options.depth,
            heads=options.heads,
        )
        self.head = nn.Linear(options.width, encoder.width)
        nn.init.xavier_uniform_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.teacher = teacher.Teacher(encoder)

    @property
    def exported(self) -> Encoder:
        """Return the teacher's encoder, which the authors evaluate (appendix A.2)."""
        return self.teacher.encoder

    def averages(self, progress: float) -> teacher.Averages:
        momentum = teacher.linear_momentum(self.first_momentum, progress)
        return momentum, teacher.pair_parameters((self.teacher.encoder, self.encoder))

    def forward(self, batch: Batch) -> Output:
        blocks = self.masks(batch.key)
        h_BND = self._teacher_features(batch.image)
        predicted_BMKD = self._predict(batch.image, blocks)
        loss_BMKD = F.smooth_l1_loss(
            predicted_BMKD, _select_targets(blocks, h_BND), reduction="none"
        )
        loss_B = loss_BMKD.mean((1, 2, 3))
        # Standard deviation over an image's patches, averaged over channels. 0: all are equal
        spread_B = h_BND.std(1, correction=0).mean(-1)
        return Output(loss_B.mean(), sums(loss=loss_B, feature_spread=spread_B))

    def _predict(self, image_B3HW: Tensor, blocks: Blocks) -> Tensor:
        """Predict the features (B, M, K, D) of target blocks, in float32."""
        h_BTD = self.encoder(self.encoder.patch(image_B3HW), blocks.visible_BV)
        return self.head(self.predictor(h_BTD, *blocks)).float()

    @torch.no_grad()
    def _teacher_features(self, image_B3HW: Tensor) -> Tensor:
        """Return the teacher's patch features (B, N, D), normalised over channels, in float32."""
        h_BTD = self.teacher.encoder.tokens(image_B3HW).float()
        return F.layer_norm(h_BTD[:, self.encoder.prefix :], h_BTD.shape[-1:])

    @torch.no_grad()
    def panels(self, batch: Batch) -> dict[str, Tensor]:
        """Draw the images, the visible patches, and the similarity of predicted and true features.

        The similarity is the cosine, from -1 (black) to 1 (white). Patches that are in no target
        block show the image.
        """
        blocks = self.masks(batch.key)
        true_BMKD = _select_targets(blocks, self._teacher_features(batch.image))
        predicted_BMKD = self._predict(batch.image, blocks)
        # From the range [-1, 1] of the cosine to [0, 1]
        similarity_BMK = (1 + F.cosine_similarity(predicted_BMKD, true_BMKD, dim=-1)) / 2
        # A patch in several blocks gets the mean similarity. A patch in no block is marked by -1
        similarity_BN = similarity_BMK.new_full((len(similarity_BMK), self.encoder.patches), -1)
        similarity_BN = similarity_BN.scatter_reduce(
            1, blocks.target_BMK.flatten(1), similarity_BMK.flatten(1), "mean", include_self=False
        )
        hidden_BN = torch.ones_like(similarity_BN, dtype=torch.bool)
        hidden_BN = hidden_BN.scatter(1, blocks.visible_BV, False)
        image_B3HW = shown_image(batch.image, self.encoder.pixel_range)
        pixel_BNX = cut_patches(image_B3HW, self.encoder.patch_size)
        level_BN = (255 * similarity_BN).round().clamp(0).byte()
        panels = {
            "original": pixel_BNX,
            "visible": pixel_BNX.masked_fill(hidden_BN[..., None], GREY),
            # Patches in no target block show the image
            "similarity": torch.where(similarity_BN[..., None] < 0, pixel_BNX, level_BN[..., None]),
        }
        grid = self.encoder.grid
        return {title: join_patches(panel_BNX, grid) for title, panel_BNX in panels.items()}


def _select_targets(blocks: Blocks, h_BND: Tensor) -> Tensor:
    """Select the features of the target blocks, (B, M, K, D), from those of all patches."""
    num_blocks = blocks.target_BMK.shape[1]
    return gather_tokens(h_BND, blocks.target_BMK.flatten(1)).unflatten(1, (num_blocks, -1))


def build(settings: Settings, encoder: Encoder, classes: int) -> FeaturePrediction:
    return FeaturePrediction(encoder, settings.group(IjepaOptions))
