"""Train DINO with masked patches (iBOT: Zhou et al., 2022).

Rectangles of patches are masked in the student's two global views. The student assigns masked
patches to the prototypes that the teacher chooses for the same patches of the whole view.

Legend: B images of this process, V views (2), X = V B, N patches, T tokens, D width, K prototypes.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ... import rng
from ...data.batching import Batch
from ...models.encoder import Encoder
from ...models.full_precision import full_precision
from ...recipe.split_counts import selected_count
from .. import corruption
from ..base import Output, sums
from ..building import Settings
from ..dino import DinoOptions
from ..dino.network import VIEWS, SelfDistillation
from ..self_distillation import Assignment
from . import IbotOptions

STREAM = rng.stream_id("masked view")  # computed at import, because the objective is compiled


class MaskedSelfDistillation(SelfDistillation):
    """iBOT: DINO on masked views, plus the prediction of masked patches (equations 2 and 3).

    The loss is DINO's loss of class tokens, where the student sees masked views, plus the mean
    cross-entropy of masked patches. The mean is over the masked patches of a view, then over views.
    A view without masked patches counts as 0, as in the authors' `iBOTLoss`.

    Args:
        encoder: A Vision Transformer with a square grid of patches.
        options: DINO's options, and the options of the masking.
    """

    def __init__(self, encoder: Encoder, options: DinoOptions) -> None:
        assert isinstance(options, IbotOptions)
        super().__init__(encoder, options)
        self.rates = [selected_count(rate, encoder.patches) for rate in options.rate]
        self.whole = options.whole
        self.weight = options.weight
        self.mask_D = nn.Parameter(torch.zeros(encoder.width))
        self.assign_patches = Assignment(options, options.patch_temperature)

    @staticmethod
    def patch_head(options: DinoOptions) -> dict[str, bool]:
        assert isinstance(options, IbotOptions)
        return {"patches": not options.shared, "layers": options.own_head}

    def sample_masks(self, key_B: Tensor) -> Tensor:
        """Choose the masked patches of each global view, bool (X, N).

        With probability `whole`, a view stays whole: none of its patches is masked. Otherwise, the
        number of masked patches is uniform between the bounds of `rate`, and the patches lie in the
        rectangles that `corruption_order` draws.

        Args:
            key_B: Keys of the images, int64.
        """
        patches = self.encoder.patches
        stream_B = rng.stream(key_B, STREAM)
        key_X1 = torch.cat([rng.bits(stream_B, view) for view in range(VIEWS)])[:, None]
        order_XN = corruption.corruption_order(key_X1, patches, "blocks", 1)
        # Sorting twice gives the rank of each patch in the order
        rank_XN = order_XN.argsort(dim=1, stable=True).argsort(dim=1, stable=True)
        # First counter after those of `corruption_order`, which uses three for each patch and four
        # for each rectangle. The last term, 4, skips unused counters. It must stay, because the
        # masks of all runs would change without it
        counter = 3 * patches + 4 * corruption.BLOCKS + 4
        low, high = self.rates
        count_X1 = low + rng.integers(key_X1, counter, high - low + 1)
        # Probabilities are compared in integers, in units of 2^-24
        is_whole_X1 = rng.integers(key_X1, counter + 1, 1 << 24) < round(self.whole * 2**24)
        return (rank_XN < count_X1) & ~is_whole_X1

    def teacher_logits(self, teacher_BTD: Tensor) -> dict[str, tuple[Assignment, Tensor]]:
        """Return the teacher's logits for images, as in DINO, and for each image's middle patch.

        There are two reasons to use only one patch per image. The logits of all patches might not
        fit into memory. And if patches of several places were used, prototypes that only tell the
        place of a patch would count as information about the image.

        Args:
            teacher_BTD: The teacher's tokens of the images.

        Returns:
            {metric: (module that turns logits into probabilities, logits (B, K))}.
        """
        side = math.isqrt(self.encoder.patches)
        # The patch in row side // 2 and column side // 2, after the prefix tokens
        middle = self.encoder.prefix + (side + 1) * (side // 2)
        logits_BK = self.teacher.head.patches(teacher_BTD[:, middle])
        entry = {"patch_information": (self.assign_patches, logits_BK)}
        return super().teacher_logits(teacher_BTD) | entry

    def forward(self, batch: Batch) -> Output:
        image_X3HW = self.global_views(batch)
        masked_XN = self.sample_masks(batch.key)
        x_XND = self.encoder.patch(image_X3HW)
        x_XND = torch.where(masked_XN[..., None], self.mask_D.to(x_XND.dtype), x_XND)
        h_XTD = self.encoder(x_XND)
        teacher_XTD = self.teacher_tokens(image_X3HW)
        view_B, metrics = self.class_token_loss(h_XTD, teacher_XTD, batch)
        patch_B = self._patch_loss(h_XTD, teacher_XTD, masked_XN)
        metrics |= sums(view_loss=view_B, patch_loss=patch_B)
        return self.output(view_B + self.weight * patch_B, metrics, h_XTD)

    def _patch_loss(self, h_XTD: Tensor, teacher_XTD: Tensor, masked_XN: Tensor) -> Tensor:
        """Return the mean cross-entropy of the masked patches of each image, (B,).

        The mean is taken over the masked patches of a view, then over the V views of an image.

        Args:
            h_XTD: The student's tokens of the global views.
            teacher_XTD: The teacher's tokens of the global views.
            masked_XN: Whether each patch is masked, bool.
        """
        prefix, patches = self.encoder.prefix, self.encoder.patches
        logits_XNK = self.head.patches(h_XTD[:, prefix:].flatten(0, 1)).unflatten(0, (-1, patches))
        with torch.no_grad():
            teacher_logits = self.teacher.head.patches(teacher_XTD[:, prefix:].flatten(0, 1))
            p_XNK = self.assign_patches(teacher_logits, masked_XN.flatten())
            p_XNK = p_XNK.unflatten(0, (-1, patches))
        with full_precision(logits_XNK.device):
            log_XNK = F.log_softmax(logits_XNK / self.temperature, dim=-1)
            cross_XN = -(p_XNK * log_XNK).sum(-1) * masked_XN
        mean_X = cross_XN.sum(1) / masked_XN.sum(1).clamp(min=1)
        return mean_X.unflatten(0, (VIEWS, -1)).mean(0)


def build(settings: Settings, encoder: Encoder, classes: int) -> MaskedSelfDistillation:
    return MaskedSelfDistillation(encoder, settings.group(IbotOptions))
