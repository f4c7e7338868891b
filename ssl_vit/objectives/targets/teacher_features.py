"""Compute a teacher's features as a target (data2vec: Baevski et al., 2022, section 3).

This follows the authors' code for images: data2vec_vision's beit/engine_for_cyclical.py and the
command in the README. The teacher, a running average of the encoder, sees the whole image. The
target of a patch is the mean of the outputs of the last blocks, each normalised over channels. The
mean is normalised again.

Legend: B batch, N patches, K corrupted patches, T tokens, D width.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from ...data.pixel_values import shown_channels
from ...models.encoder import Encoder
from .. import teacher
from .patch_targets import Regression, neighbor_mean, neighbors, to_grey_levels

BETA = 2.0  # difference below which smooth L1 is a square (--l1_beta)


def smooth_l1(difference: Tensor) -> Tensor:
    """Return the smooth L1 error of a difference, elementwise."""
    zero = torch.zeros_like(difference)
    return F.smooth_l1_loss(difference, zero, reduction="none", beta=BETA)


class TeacherFeatures(Regression):
    """Target that predicts a teacher's features by smooth L1.

    Args:
        encoder: The network that the teacher copies at first.
        blocks: Number of last blocks whose outputs are averaged.
        momentum: Momentum of the teacher in the first and in the last step.
    """

    moves = True
    error = staticmethod(smooth_l1)

    def __init__(self, encoder: Encoder, blocks: int, momentum: list[float]) -> None:
        super().__init__()
        self.blocks = blocks
        self.momentum = momentum
        self.num_outputs = encoder.width
        self.teacher = teacher.Teacher(encoder)

    @torch.no_grad()
    def ground_truth(self, image_B3HW: Tensor) -> Tensor:
        """Return the teacher's features of patches, float32 (B, N, D).

        The outputs of the last blocks are each normalised over channels and averaged. The mean is
        normalised again.
        """
        encoder = self.teacher.encoder
        outputs = [h_BTD.float() for h_BTD in encoder.last_outputs(image_B3HW, self.blocks)]
        width = (encoder.width,)
        mean_BTD = torch.stack([F.layer_norm(h_BTD, width) for h_BTD in outputs]).mean(0)
        return F.layer_norm(mean_BTD[:, encoder.prefix :], width)

    def averages(self, progress: float, encoder: Encoder) -> teacher.Averages:
        first, last = self.momentum
        momentum = teacher.linear_momentum(first, progress, last)
        return momentum, teacher.pair_parameters((self.teacher.encoder, encoder))

    def baseline_predictions(
        self, truth_BNA: Tensor, image_B3HW: Tensor, corrupted_BN: Tensor
    ) -> dict[str, Tensor]:
        """Predict the features of a patch as the mean of the features of its `neighbors`.

        The prediction has the name "neighbors_error". If the teacher has collapsed, the prediction
        is close to the ground truth.
        """
        near_BNN = neighbors(image_B3HW, self.teacher.encoder.patch_size, corrupted_BN)
        return {"neighbors_error": neighbor_mean(truth_BNA, near_BNN)}

    def render(self, truth_BN: Tensor) -> Tensor:
        """Draw each patch in a single colour, made of the first three channels."""
        return shown_channels(to_grey_levels(truth_BN), -1)[:, :, None, None]
