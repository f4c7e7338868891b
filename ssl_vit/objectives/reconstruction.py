"""Reconstruct images with MPP or a masked autoencoder, for figures.

Legend: B images, N patches, K corrupted patches of each image, H W height and width of the image, P
side of a patch, X values of a patch, c side of a small image of a patch.
"""

from typing import TYPE_CHECKING, NamedTuple

import torch
from einops import rearrange, repeat
from torch import Tensor

from ..data.batching import Batch
from ..data.pixel_values import shown_image
from ..errors import UserError
from . import corruption
from .base import place

if TYPE_CHECKING:
    from .patches import PatchPrediction
    from .targets.patch_targets import Target

GREY = 128
TITLES = ("original", "corrupted", "predicted", "true")


class Reconstruction(NamedTuple):
    """Pictures of what was hidden and predicted in images.

    Attributes:
        panels_B43HW: uint8 images, one for each of TITLES, of the channels that are shown.
            "original" is the image. In "corrupted", masked patches are grey and random patches show
            their source patch. "predicted" shows predictions for corrupted patches and the input
            elsewhere. "true" shows the ground truth of every patch.
        error_BHW: |predicted - true| of the shown colours in [0, 1], averaged over channels. NaN in
            uncorrupted patches.
        certainty_BHW: the probability that the model gives its prediction. NaN in uncorrupted
            patches. None for a target without probabilities.
    """

    panels_B43HW: Tensor
    error_BHW: Tensor
    certainty_BHW: Tensor | None


@torch.no_grad()
def reconstruct(objective: "PatchPrediction", batch: Batch) -> Reconstruction:
    """Predict the patches that the images' keys corrupt, and render all as pictures.

    Raises:
        UserError: a plugin's target renders something other than images of patches.
    """
    target = objective.target
    patch = objective.encoder.patch_size
    height, width = objective.encoder.grid
    drawn = objective.sample_corruption(batch)
    output_BKA = objective.patch_logits(batch, drawn)
    image_B3HW = shown_image(batch.image, objective.encoder.pixel_range)
    pixels_BNX = rearrange(image_B3HW, "b c (h p) (w q) -> b (h w) (p q c)", p=patch, q=patch)
    saw_BNX = corruption.apply(pixels_BNX, drawn, torch.full_like(pixels_BNX[0, 0], GREY))
    predicted_BKX = _rendered(target, target.predict(output_BKA), patch)
    corrupted_BKX = drawn.corrupted_BK[..., None].expand_as(predicted_BKX)
    predicted_BNX = saw_BNX.scatter(1, corrupted_BKX, predicted_BKX)
    true_BNX = _rendered(target, target.ground_truth(batch.image), patch)
    four = torch.stack([pixels_BNX, saw_BNX, predicted_BNX, true_BNX], 1)
    shape = {"h": height, "w": width, "p": patch, "q": patch}
    panels_B43HW = rearrange(four, "b v (h w) (p q c) -> b v c (h p) (w q)", **shape)

    def placed(value_BKX: Tensor) -> Tensor:
        """Put pixel values of corrupted patches at their places in the image, NaN elsewhere: (B,
        H, W).
        """
        empty_BNX = value_BKX.new_full((*true_BNX.shape[:2], patch * patch), torch.nan)
        whole_BNX = empty_BNX.scatter(1, corrupted_BKX[..., : patch * patch], value_BKX)
        return rearrange(whole_BNX, "b (h w) (p q) -> b (h p) (w q)", **shape)

    true_BKX = corruption.gather_corrupted(true_BNX, drawn)
    difference_BKX = (predicted_BKX.float() - true_BKX.float()).abs() / 255
    error_BKX = rearrange(difference_BKX, "b k (x c) -> b k x c", c=3).mean(-1)
    certainty = target.certainty(output_BKA)
    certainty_BHW = None
    if certainty is not None:
        certainty_BHW = placed(_filled(certainty[..., None], patch))
    return Reconstruction(panels_B43HW, placed(error_BKX), certainty_BHW)


def _rendered(target: "Target", truth_BN: Tensor, patch: int) -> Tensor:
    """Render ground truths or predictions and enlarge them to the patch's side, (B, N, P P 3).

    Raises:
        UserError: the target renders something other than images of patches.
    """
    made = target.render(truth_BN)
    sides = [side for side in range(1, patch + 1) if patch % side == 0]
    shapes = [(*truth_BN.shape[:2], side, side, 3) for side in sides]
    kind, shape = getattr(made, "dtype", type(made)), (*getattr(made, "shape", ()),)
    if kind != torch.uint8 or shape not in shapes:
        expected = f"uint8 (B, N, c, c, 3), where c divides {patch}, the side of a patch"
        text = f"render returns {kind} of shape {shape}. Return {expected}."
        raise UserError(f"{place(type(target))}: {text}")
    return _filled(made, patch)


def _filled(small_BNcc3: Tensor, patch: int) -> Tensor:
    """Enlarge small images of patches (B, N, c, c, C) to the patch's side, (B, N, P P C)."""
    side = patch // small_BNcc3.shape[2]
    return repeat(small_BNcc3, "b n p q c -> b n (p s q t c)", s=side, t=side)
