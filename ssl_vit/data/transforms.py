"""Crop, resize, flip and mix images, with random numbers from the sample's key.

Legend: B images, C channels, H W height and width, S the requested side in pixels, T tries.
"""

import math
from typing import Any

import numpy as np
import torch
from einops import rearrange
from torch import Tensor
from torch.nn.functional import interpolate
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F

from .. import rng

RATIO = (3 / 4, 4 / 3)  # width over height of a training crop, as Inception's
TRIES = 10  # random boxes for a crop; the first box that fits is used
BETA_TRIES = 4 * TRIES  # random pairs of `_draw_beta`
# Each slot of a stream gives another random number. In the stream "mix", slot 0 chooses mixup or
# CutMix
FIRST_BETA_SLOT = 2  # two slots for each pair
FIRST_BOX_SLOT = FIRST_BETA_SLOT + 2 * BETA_TRIES
STRIP = 32  # an evaluated image's longer side is cut to this many times the shorter side
# Options to resize images and masks. Both options align the centres of pixels
ANTIALIAS: dict[str, Any] = {"antialias": True}
NEAREST: dict[str, Any] = {"interpolation": InterpolationMode.NEAREST_EXACT}


def crop_boxes(
    key_B: np.ndarray,
    height_B: np.ndarray,
    width_B: np.ndarray,
    smallest_area: float,
    largest_area: float = 1.0,
) -> np.ndarray:
    """Draw a random crop of each image, as in Inception (Szegedy et al., 2015).

    A crop has a uniformly drawn share of the image's area, and a log-uniform aspect ratio in RATIO.
    The first of TRIES random boxes that fits into the image is used. If none fits, the largest
    centred box with an aspect ratio in RATIO is used.

    Args:
        key_B: Keys of the samples.
        height_B: Heights of the images in pixels.
        width_B: Widths of the images in pixels.
        smallest_area: The smallest share of the area, between 0 and 1.
        largest_area: The largest share of the area.

    Returns:
        Top, left, height and width of each crop in pixels, int64 (B, 4).
    """
    key_B = rng.stream(key_B, "crop")
    # draw areas (slots 0, 2, 4, ...) and aspect ratios (slots 1, 3, 5, ...) of TRIES boxes
    slot_T = 2 * np.arange(TRIES)
    uniform_BT = rng.uniform(key_B[:, None], slot_T)
    share_BT = smallest_area + (largest_area - smallest_area) * uniform_BT
    pixels_BT = (height_B * width_B)[:, None] * share_BT
    low, high = map(math.log, RATIO)
    ratio_BT = np.exp(low + (high - low) * rng.uniform(key_B[:, None], slot_T + 1))
    w_BT = np.rint(np.sqrt(pixels_BT * ratio_BT)).astype(np.int64)
    h_BT = np.rint(np.sqrt(pixels_BT / ratio_BT)).astype(np.int64)
    # choose the first box that fits, or else the largest centred box
    fits_BT = (w_BT > 0) & (w_BT <= width_B[:, None]) & (h_BT > 0) & (h_BT <= height_B[:, None])
    first_fitting_B = fits_BT.argmax(1)
    none_fits_B = ~fits_BT.any(1)
    # the largest box is the image, made narrower or lower if its aspect ratio is outside of RATIO
    largest_w_B = np.minimum(width_B, np.rint(height_B * RATIO[1])).astype(np.int64)
    largest_h_B = np.minimum(height_B, np.rint(width_B / RATIO[0])).astype(np.int64)
    row_B = np.arange(len(key_B))
    w_B = np.where(none_fits_B, largest_w_B, w_BT[row_B, first_fitting_B])
    h_B = np.where(none_fits_B, largest_h_B, h_BT[row_B, first_fitting_B])
    # choose a random position, or the middle for the largest box
    spare_h_B = height_B - h_B
    spare_w_B = width_B - w_B
    random_top_B = rng.integers(key_B, 2 * TRIES, spare_h_B + 1)
    random_left_B = rng.integers(key_B, 2 * TRIES + 1, spare_w_B + 1)
    top_B = np.where(none_fits_B, spare_h_B // 2, random_top_B)
    left_B = np.where(none_fits_B, spare_w_B // 2, random_left_B)
    return np.stack([top_B, left_B, h_B, w_B], 1)


def random_flips(key_B: np.ndarray, flip: bool) -> np.ndarray:
    """Draw 1 (flip) or 0 for each image, int64 (B,). Without `flip`, all are 0."""
    if not flip:
        return np.zeros_like(key_B)
    return rng.integers(rng.stream(key_B, "flip"), 0, 2)


def train_transform(
    images: list[Tensor],
    key_B: np.ndarray,
    size: int,
    smallest_area: float,
    flip: bool,
    largest_area: float = 1.0,
) -> Tensor:
    """Crop images at random, resize the crops, and flip half of the crops (paper.md, B.1.2).

    Args:
        images: Tensors of integers (C, H, W), which may differ in size.
        key_B: Keys of the samples.
        size: The side S of the result in pixels.
        smallest_area: The smallest share of an image's area that a crop has, between 0 and 1.
        flip: Whether to flip half of the crops.
        largest_area: The largest share of an image's area that a crop has.

    Returns:
        The crops, (B, C, S, S), of the type of `images`.
    """
    height_B = np.array([image.shape[1] for image in images])
    width_B = np.array([image.shape[2] for image in images])
    boxes = crop_boxes(key_B, height_B, width_B, smallest_area, largest_area).tolist()
    is_flipped_B = random_flips(key_B, flip)
    crop_BCSS = torch.empty(len(images), len(images[0]), size, size, dtype=images[0].dtype)
    for i, (image, box) in enumerate(zip(images, boxes, strict=True)):
        crop = _resized_crop(image, box, size)
        crop_BCSS[i] = crop.flip(-1) if is_flipped_B[i] else crop
    return crop_BCSS


def _resized_crop(image: Tensor, box: list[int], size: int) -> Tensor:
    """Crop and resize with the same pixels as torchvision's `resized_crop`, but faster.

    On small images, torchvision's dispatch and changes of the memory format take longer than the
    resizing itself. 16 bits are resized in float32 and rounded.

    Args:
        image: Integers (C, H, W).
        box: Top, left, height and width of the crop in pixels.
        size: The side S of the result (C, S, S) in pixels.
    """
    top, left, height, width = box
    channel_stride, row_stride, column_stride = image.stride()
    # View the crop as a batch of one image, without a copy. The stride of the first axis must be
    # the number of values of the whole image, for ATen (torch's operations) to recognise the
    # channels-last memory format and resize without changing the format
    cut_1CHW = image.as_strided(
        (1, len(image), height, width),
        (image.numel(), channel_stride, row_stride, column_stride),
        image.storage_offset() + top * row_stride + left * column_stride,
    )
    if (height, width) == (size, size):
        return cut_1CHW[0]
    if image.dtype == torch.uint8:
        return interpolate(cut_1CHW, (size, size), mode="bilinear", antialias=True)[0]
    resized = interpolate(cut_1CHW.float(), (size, size), mode="bilinear", antialias=True)[0]
    return resized.round().to(image.dtype)


def mix_pairs(
    image_B3HW: Tensor, partner_B3HW: Tensor, key_B: np.ndarray, mixup: float, cutmix: float
) -> tuple[Tensor, Tensor]:
    """Mix each image with its partner by mixup or CutMix.

    Mixup (Zhang et al., 2018) blends the two images. The weight of the first image is drawn from
    Beta(mixup, mixup). CutMix (Yun et al., 2019) pastes a box of the partner at a random position.
    A random number b is drawn from Beta(cutmix, cutmix), and the box covers the share 1 - b of the
    area, or less if the image's border cuts the box.

    Args:
        image_B3HW: The images, integers.
        partner_B3HW: The partners, integers.
        key_B: Keys of the samples, int64, from which random numbers are derived.
        mixup: The parameter of mixup, 0 for no mixup.
        cutmix: The parameter of CutMix, 0 for no CutMix. If mixup and CutMix are used, each mixes
            half of the images.

    Returns:
        The mixed images as integers, and the weight w of each image in the mix, float32 (B,) from 0
        to 1. The partner has the weight 1 - w.
    """
    key_B = rng.stream(key_B, "mix")
    # both methods: 0.5; only CutMix: 1; only mixup: 0
    cutmix_chance = 0.5 if mixup and cutmix else float(cutmix > 0)
    is_cutmix_B = rng.uniform(key_B, 0) < cutmix_chance
    # 1.0 stands for the parameter of a method that is not used
    cutmix_beta_B = _draw_beta(key_B, cutmix or 1.0)
    mixup_beta_B = _draw_beta(key_B, mixup or 1.0)
    beta_B = np.where(is_cutmix_B, cutmix_beta_B, mixup_beta_B)
    inside_BHW = _draw_boxes(key_B, 1 - beta_B, *image_B3HW.shape[2:])
    # CutMix: the share of pixels that the box leaves, also if the border cuts the box
    weight_B = np.where(is_cutmix_B, 1 - inside_BHW.mean((1, 2)), beta_B)
    weight_B111 = rearrange(torch.from_numpy(weight_B).float(), "b -> b 1 1 1")
    blended = (weight_B111 * image_B3HW + (1 - weight_B111) * partner_B3HW).round()
    inside_B1HW = rearrange(torch.from_numpy(inside_BHW), "b h w -> b 1 h w")
    pasted = torch.where(inside_B1HW, partner_B3HW, image_B3HW)
    is_cutmix_B111 = rearrange(torch.from_numpy(is_cutmix_B), "b -> b 1 1 1")
    mixed = torch.where(is_cutmix_B111, pasted, blended.to(image_B3HW.dtype))
    return mixed, weight_B111.flatten()


def _draw_beta(key_B: np.ndarray, a: float) -> np.ndarray:
    """Draw from the distribution Beta(a, a), float64 (B,), for 0 < a <= 1 (Joehnk, 1964).

    Uniform u and v give x = u^(1/a) and y = v^(1/a). The first pair with x + y <= 1 gives the
    result x / (x + y). A pair fits with a probability of at least 1/2. If none of 40 pairs fits,
    which practically does not happen, the result is 0.5.

    Args:
        key_B: Keys of the samples, int64, from which random numbers are derived.
        a: Both parameters of the distribution.
    """
    slot_T = FIRST_BETA_SLOT + 2 * np.arange(BETA_TRIES)  # slots of u; v has the next slot
    x_BT = rng.uniform(key_B[:, None], slot_T) ** (1 / a)
    y_BT = rng.uniform(key_B[:, None], slot_T + 1) ** (1 / a)
    fits_BT = (x_BT + y_BT <= 1) & (x_BT + y_BT > 0)
    first_fitting_B = fits_BT.argmax(1)
    row_B = np.arange(len(key_B))
    x_B = x_BT[row_B, first_fitting_B]
    y_B = y_BT[row_B, first_fitting_B]
    return np.where(fits_BT.any(1), x_B / np.maximum(x_B + y_B, 1e-300), 0.5)


def _draw_boxes(key_B: np.ndarray, area_B: np.ndarray, height: int, width: int) -> np.ndarray:
    """Draw boxes with a uniform centre, and return which pixels are inside, bool (B, H, W).

    A box has the aspect ratio of the image. The border of the image may cut the box.

    Args:
        key_B: Keys of the samples, int64, from which random numbers are derived.
        area_B: The area of each box, as a share of the image's area.
        height: Height of the images in pixels.
        width: Width of the images in pixels.
    """
    inside = []
    for axis, side in enumerate((height, width)):
        centre_B = rng.integers(key_B, FIRST_BOX_SLOT + axis, side)[:, None]
        # both sides are scaled by the root of the area, which keeps the aspect ratio
        half_B = np.rint(side * np.sqrt(area_B)).astype(np.int64)[:, None] // 2
        pixel_S = np.arange(side)
        inside.append((pixel_S >= centre_B - half_B) & (pixel_S < centre_B + half_B))
    inside_BH, inside_BW = inside
    return inside_BH[:, :, None] & inside_BW[:, None, :]


def eval_transform(images: list[Tensor], size: int, mode: str, crop: float) -> Tensor:
    """Resize and crop images for evaluation, exactly like timm for an exported encoder.

    Args:
        images: Tensors of integers (C, H, W), which may differ in size.
        size: The side S of the result in pixels.
        mode: "crop" to resize the shorter side to floor(S / crop) and crop the centre, "squash" to
            resize the complete image to S x S whatever its aspect ratio.
        crop: The share of the shorter side that the crop keeps, such as 0.875.

    Returns:
        The images, (B, C, S, S), of the type of `images`.
    """
    return torch.stack([_fit_image(image, size, mode, crop) for image in images])


def _fit_image(image: Tensor, size: int, mode: str, crop: float) -> Tensor:
    if image.dtype == torch.uint8:
        return _resize_and_crop(image, size, mode, crop, ANTIALIAS)
    # 16-bit values would be clipped to bytes by torchvision
    return _resize_and_crop(image.float(), size, mode, crop, ANTIALIAS).round().to(image.dtype)


def eval_masks(masks: list[Tensor], size: int, mode: str, crop: float) -> Tensor:
    """Return masks (B, S, S) from integers (H, W), with the geometry of `eval_transform`.

    Masks are resized with nearest-neighbour interpolation, so that no pixel mixes classes.
    """
    return torch.stack(
        [_resize_and_crop(mask[None], size, mode, crop, NEAREST)[0] for mask in masks]
    )


def _resize_and_crop(
    image: Tensor, size: int, mode: str, crop: float, resizing: dict[str, Any]
) -> Tensor:
    """Resize an image or mask (C, H, W) to (C, S, S) for evaluation.

    Args:
        image: The image or mask.
        size: The side S of the result in pixels.
        mode: "crop" to resize the shorter side to floor(S / crop) and crop the centre, "squash" to
            resize the complete image whatever its aspect ratio.
        crop: The share of the shorter side that the crop keeps, such as 0.875.
        resizing: Options of torchvision's `resize`, ANTIALIAS or NEAREST.
    """
    resize: Any = F.resize
    if mode == "squash":
        return resize(image, [size, size], **resizing)
    short_side = math.floor(size / crop)  # rounded down as in timm: 384 / 0.875 = 438.86 gives 438
    return F.center_crop(resize(_middle(image), [short_side], **resizing), [size, size])


def _middle(image: Tensor) -> Tensor:
    """Crop the middle of a very long image (C, H, W), and return other images unchanged.

    The longer side is cut to at most 32 times the shorter side. Without this cut, resizing the
    shorter side could enlarge the longer side beyond the memory: 1 x 10,000 pixels would become
    256 x 2,560,000 pixels.
    """
    height, width = image.shape[1:]
    longest = STRIP * min(height, width)
    if max(height, width) <= longest:
        return image
    return F.center_crop(image, [min(height, longest), min(width, longest)])
