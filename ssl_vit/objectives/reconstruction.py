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
from .base import describe_class

if TYPE_CHECKING:
    from .patches import PatchPrediction
    from .targets.patch_targets import Target

GREY = 128
TITLES = ("original", "corrupted", "predicted", "true")


class Reconstruction(NamedTuple):
    """Pictures of what was hidden and predicted in images.

    Attributes:
        panels_B43HW: A picture for each of TITLES, uint8, in red, green and blue.
            "original" is the image. In "corrupted", masked patches are grey and random patches show
            their source patch. "predicted" shows predictions for corrupted patches and the input
            elsewhere. "true" shows the ground truth of every patch.
        error_BHW: |predicted - true| of the shown colours in [0, 1], averaged over channels. NaN in
            uncorrupted patches.
        certainty_BHW: Probability of the predicted value in corrupted patches, NaN in other
            patches. None for a target without probabilities.
    """

    panels_B43HW: Tensor
    error_BHW: Tensor
    certainty_BHW: Tensor | None


@torch.no_grad()
def reconstruct(objective: "PatchPrediction", batch: Batch) -> Reconstruction:
    """Predict the corrupted patches of images, and draw input, prediction and ground truth.

    Args:
        objective: The trained objective.
        batch: The images, and the keys that determine which patches are corrupted.

    Raises:
        UserError: A plugin's target renders something other than images of patches.
    """
    target = objective.target
    patch = objective.encoder.patch_size
    rows, columns = objective.encoder.grid
    drawn = objective.sample_corruption(batch)
    output_BKA = objective.patch_logits(batch, drawn)
    image_B3HW = shown_image(batch.image, objective.encoder.pixel_range)
    pixels_BNX = rearrange(image_B3HW, "b c (h p) (w q) -> b (h w) (p q c)", p=patch, q=patch)
    corrupted_BNX = corruption.apply(pixels_BNX, drawn, torch.full_like(pixels_BNX[0, 0], GREY))
    predicted_BKX = _rendered(target, target.predict(output_BKA), patch)
    index_BKX = drawn.corrupted_BK[..., None].expand_as(predicted_BKX)
    predicted_BNX = corrupted_BNX.scatter(1, index_BKX, predicted_BKX)
    true_BNX = _rendered(target, target.ground_truth(batch.image), patch)
    panels_B4NX = torch.stack([pixels_BNX, corrupted_BNX, predicted_BNX, true_BNX], 1)
    sides = {"h": rows, "w": columns, "p": patch, "q": patch}
    panels_B43HW = rearrange(panels_B4NX, "b v (h w) (p q c) -> b v c (h p) (w q)", **sides)

    def to_map(value_BKX: Tensor) -> Tensor:
        """Return values (B, K, P P) of the corrupted patches as a map (B, H, W), NaN elsewhere."""
        empty_BNX = value_BKX.new_full((*true_BNX.shape[:2], patch * patch), torch.nan)
        map_BNX = empty_BNX.scatter(1, index_BKX[..., : patch * patch], value_BKX)
        return rearrange(map_BNX, "b (h w) (p q) -> b (h p) (w q)", **sides)

    true_BKX = corruption.gather_corrupted(true_BNX, drawn)
    difference_BKX = (predicted_BKX.float() - true_BKX.float()).abs() / 255
    error_BKX = rearrange(difference_BKX, "b k (x c) -> b k x c", c=3).mean(-1)
    certainty_BKcc = target.certainty(output_BKA)
    certainty_BHW = None
    if certainty_BKcc is not None:
        certainty_BHW = to_map(_filled(certainty_BKcc[..., None], patch))
    return Reconstruction(panels_B43HW, to_map(error_BKX), certainty_BHW)


def _rendered(target: "Target", truth_BN: Tensor, patch: int) -> Tensor:
    """Draw ground truths or predictions of patches as pixels, uint8 (B, N, P P 3).

    Args:
        target: The target that can render such values.
        truth_BN: Ground truths, or predictions in the same form.
        patch: Side P of a patch in pixels. A target may render a patch with fewer pixels, for
            example one pixel for a mean colour, and the result is enlarged.

    Raises:
        UserError: The target renders something other than images of patches.
    """
    rendered = target.render(truth_BN)
    divisors = [side for side in range(1, patch + 1) if patch % side == 0]
    allowed_shapes = [(*truth_BN.shape[:2], side, side, 3) for side in divisors]
    # A plugin may return anything, also something without dtype and shape
    dtype = getattr(rendered, "dtype", type(rendered))
    shape = tuple(getattr(rendered, "shape", ()))
    if dtype != torch.uint8 or shape not in allowed_shapes:
        raise UserError(
            f"{describe_class(type(target))}: render returns {dtype} of shape {shape}. "
            f"Return uint8 (B, N, c, c, 3), where c divides {patch}, the side of a patch."
        )
    return _filled(rendered, patch)


def _filled(small_BNcc3: Tensor, patch: int) -> Tensor:
    """Enlarge small images of patches (B, N, c, c, C) to P x P pixels, and return (B, N, P P C)."""
    side = patch // small_BNcc3.shape[2]
    return repeat(small_BNcc3, "b n p q c -> b n (p s q t c)", s=side, t=side)
