"""Train masked patch prediction (paper, 4.6 and B.1.2).

Half of the patch embeddings are corrupted, and the network predicts what each corrupted patch was.

Legend: B batch, N patches, K corrupted patches of each image, D width, A head outputs for a patch.
"""

import torch
from torch import Tensor, nn

from ...data.batching import Batch
from ...models.encoder import Encoder, cut_patches
from ...recipe.shared_groups import CorruptionOptions
from .. import corruption
from ..building import Settings
from ..patches import PatchPrediction
from ..targets.patch_targets import Target


class MaskedPatchPrediction(PatchPrediction):
    """Masked patch prediction with a linear head on the corrupted patches.

    The loss is the mean over all corrupted patches.

    Args:
        encoder: A Vision Transformer with patches.
        target: The ground truth of patches, and the loss.
        rate: Share of the patches of each image that are corrupted.
        mask: Probability that a corrupted patch is replaced by the [mask] embedding (MASK).
        random: Probability that a corrupted patch is replaced by another patch (RANDOM).
        source: "image" to take the other patch from the same image, "batch" to take it from the
            device batch.
        shape: "patches" to corrupt single patches or squares of patches, "blocks" to corrupt
            rectangles of random sizes.
        side: Side in patches of the squares that shape="patches" corrupts. 1: single patches.
    """

    def __init__(
        self,
        encoder: Encoder,
        target: Target,
        *,
        rate: float,
        mask: float,
        random: float,
        source: str,
        shape: str = "patches",
        side: int = 1,
    ) -> None:
        super().__init__(encoder, target, rate)
        self.mask = mask
        self.random = random
        self.source = source
        if source == "batch" and random > 0:
            self.mixing_option = "corruption.source=batch"
        self.shape = shape
        self.side = side
        self.mask_token = nn.Parameter(torch.randn(encoder.width) * 0.02)
        self.head = nn.Linear(encoder.width, target.num_outputs)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def sample_corruption(self, batch: Batch) -> corruption.Corruption:
        return corruption.sample(
            batch.key,
            self.encoder.patches,
            self.rate,
            self.mask,
            self.random,
            self.source,
            self.shape,
            self.side,
        )

    def patch_logits(self, batch: Batch, drawn: corruption.Corruption) -> Tensor:
        x_BND = corruption.replace_masked(self._embed(batch, drawn), drawn, self.mask_token)
        return self.head(self.encoder(x_BND, wanted_BK=drawn.corrupted_BK))

    def _embed(self, batch: Batch, drawn: corruption.Corruption) -> Tensor:
        """Return the patch embeddings (B, N, D) of images in which RANDOM patches are replaced."""
        pixel_BNX = cut_patches(batch.image, self.encoder.patch_size)
        if self.random > 0:
            pixel_BNX = corruption.replace_random(pixel_BNX, drawn)
        return self.encoder.patch_pixels(pixel_BNX)


def build(settings: Settings, encoder: Encoder, classes: int) -> MaskedPatchPrediction:
    options = settings.group(CorruptionOptions).model_dump(exclude={"keep"})
    return MaskedPatchPrediction(encoder, settings.build_target(encoder), **options)
