"""Crop, resize, flip and mix images by random numbers of the sample's key.

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
TRIES = 10
STRIP = 32  # an evaluated image's longer side is cut to this many times the shorter side
# How pixels, and classes of pixels, are resized; both count from the centres of pixels
ANTIALIAS: dict[str, Any] = {"antialias": True}
NEAREST: dict[str, Any] = {"interpolation": InterpolationMode.NEAREST_EXACT}


def crop_boxes(
    key_B: np.ndarray, height_B: np.ndarray, width_B: np.ndarray, area: float, most: float = 1.0
) -> np.ndarray:
    """Draw a random crop of each image, as in Inception (Szegedy et al., 2015).

    A crop has a uniform share of the image's area, and a log-uniform aspect ratio in RATIO. The
    first of TRIES random boxes that fits into the image is used, or else the largest centred box
    with an aspect ratio in RATIO.

    Args:
        key_B: Keys of the samples.
        height_B: Heights of the images in pixels.
        width_B: Widths of the images in pixels.
        area: The smallest share of the area, between 0 and 1.
        most: The largest share of the area.

    Returns:
        Top, left, height and width of each crop in pixels, int64 (B, 4).
    """
    key_B = rng.stream(key_B, "crop")
    # areas and aspect ratios of TRIES boxes
    slot_T = 2 * np.arange(TRIES)
    share_BT = area + (most - area) * rng.uniform(key_B[:, None], slot_T)
    pixels_BT = (height_B * width_B)[:, None] * share_BT
    low, high = map(math.log, RATIO)
    ratio_BT = np.exp(low + (high - low) * rng.uniform(key_B[:, None], slot_T + 1))
    w_BT = np.rint(np.sqrt(pixels_BT * ratio_BT)).astype(np.int64)
    h_BT = np.rint(np.sqrt(pixels_BT / ratio_BT)).astype(np.int64)
    # the first box that fits, or else the largest centred box
    fits_BT = (w_BT > 0) & (w_BT <= width_B[:, None]) & (h_BT > 0) & (h_BT <= height_B[:, None])
    first_fitting_B = fits_BT.argmax(1)
    none_fits_B = ~fits_BT.any(1)
    largest_w_B = np.minimum(width_B, np.rint(height_B * RATIO[1])).astype(np.int64)
    largest_h_B = np.minimum(height_B, np.rint(width_B / RATIO[0])).astype(np.int64)
    row_B = np.arange(len(key_B))
    w_B = np.where(none_fits_B, largest_w_B, w_BT[row_B, first_fitting_B])
    h_B = np.where(none_fits_B, largest_h_B, h_BT[row_B, first_fitting_B])
    # a random place, or the middle
    spare_h_B = height_B - h_B
    spare_w_B = width_B - w_B
    random_top_B = rng.integers(key_B, 2 * TRIES, spare_h_B + 1)
    random_left_B = rng.integers(key_B, 2 * TRIES + 1, spare_w_B + 1)
    top_B = np.where(none_fits_B, spare_h_B // 2, random_top_B)
    left_B = np.where(none_fits_B, spare_w_B // 2, random_left_B)
    return np.stack([top_B, left_B, h_B, w_B], 1)


def random_flips(key_B: np.ndarray, flip: bool) -> np.ndarray:
    """Draw which images are flipped: int64 (B,), 1 for half of the images, or 0 without `flip`."""
    if not flip:
        return np.zeros_like(key_B)
    return rng.integers(rng.stream(key_B, "flip"), 0, 2)


def train_transform(
    images: list[Tensor],
    key_B: np.ndarray,
    size: int,
    area: float,
    flip: bool,
    most: float = 1.0,
) -> Tensor:
    """Crop images at random, resize the crops, and flip half of the crops (paper.md, B.1.2).

    Args:
        images: Tensors of integers (C, H, W), which may differ in size.
        key_B: Keys of the samples.
        size: The side S of the result in pixels.
        area: The smallest share of an image's area that a crop has.
        flip: Whether to flip.
        most: The largest share of an image's area that a crop has.

    Returns:
        The crops, (B, C, S, S), of the type of `images`.
    """
    height_B = np.array([image.shape[1] for image in images])
    width_B = np.array([image.shape[2] for image in images])
    boxes = crop_boxes(key_B, height_B, width_B, area, most).tolist()
    is_flipped_B = random_flips(key_B, flip)
    crop_BCSS = torch.empty(len(images), len(images[0]), size, size, dtype=images[0].dtype)
    for i, (image, box) in enumerate(zip(images, boxes, strict=True)):
        crop = _resized_crop(image, box, size)
        crop_BCSS[i] = crop.flip(-1) if is_flipped_B[i] else crop
    return crop_BCSS


def _resized_crop(image: Tensor, box: list[int], size: int) -> Tensor:
    """Crop and resize like torchvision's `resized_crop`, with the same pixels in less time.

    On small images, torchvision's dispatch and its changes of the memory format take longer than
    the pixels. 16 bits are resized in float32 and rounded.

    Args:
        image: Integers (C, H, W).
        box: Top, left, height and width of the crop in pixels.
        size: The side S of the result (C, S, S) in pixels.
    """
    top, left, height, width = box
    channel_stride, row_stride, column_stride = image.stride()
    # a batch of one whose first stride shows ATen that the channels are last
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
    image_B3HW: Tensor, other_B3HW: Tensor, key_B: np.ndarray, mixup: float, cutmix: float
) -> tuple[Tensor, Tensor]:
    """Mix each image with its partner by mixup or CutMix.

    Mixup (Zhang et al., 2018) blends the two images, and draws the weight of the first image from
    Beta(mixup, mixup). CutMix (Yun et al., 2019) pastes a box of the partner at a random place. The
    box has the share 1 - Beta(cutmix, cutmix) of the area, unless the image's border cuts the box.

    Args:
        image_B3HW: The images, integers.
        other_B3HW: The partners, integers.
        key_B: Keys of the samples.
        mixup: The parameter of mixup, 0 for no mixup.
        cutmix: The parameter of CutMix, 0 for no CutMix. With both, half of the images are mixed by
            CutMix.

    Returns:
        The mixed images as integers, and the share of each image in its mix, float32 (B,).
    """
    key_B = rng.stream(key_B, "mix")
    cutmix_chance = 0.5 if mixup and cutmix else float(cutmix > 0)
    is_cutmix_B = rng.uniform(key_B, 0) < cutmix_chance
    # `or 1.0`: any parameter will do for a method that is not used
    drawn_B = np.where(is_cutmix_B, _beta(key_B, cutmix or 1.0), _beta(key_B, mixup or 1.0))
    inside_BHW = _boxes(key_B, 1 - drawn_B, *image_B3HW.shape[2:])
    share_B = np.where(is_cutmix_B, 1 - inside_BHW.mean((1, 2)), drawn_B)
    share_B111 = rearrange(torch.from_numpy(share_B).float(), "b -> b 1 1 1")
    blended = (share_B111 * image_B3HW + (1 - share_B111) * other_B3HW).round()
    inside_B1HW = rearrange(torch.from_numpy(inside_BHW), "b h w -> b 1 h w")
    pasted = torch.where(inside_B1HW, other_B3HW, image_B3HW)
    is_cutmix_B111 = rearrange(torch.from_numpy(is_cutmix_B), "b -> b 1 1 1")
    mixed = torch.where(is_cutmix_B111, pasted, blended.to(image_B3HW.dtype))
    return mixed, share_B111.flatten()


def _beta(key_B: np.ndarray, a: float) -> np.ndarray:
    """Draw from the distribution Beta(a, a), float64 (B,), for 0 < a <= 1 (Joehnk, 1964).

    If x^(1/a) + y^(1/a) <= 1 for uniform x and y, the share of the first term is the result. This
    holds with a probability of at least 1/2, so one of 4 * TRIES pairs nearly always fits.

    Args:
        key_B: Keys of the samples.
        a: Both parameters of the distribution.
    """
    slot_T = 2 + 2 * np.arange(4 * TRIES)
    x_BT = rng.uniform(key_B[:, None], slot_T) ** (1 / a)
    y_BT = rng.uniform(key_B[:, None], slot_T + 1) ** (1 / a)
    fits_BT = (x_BT + y_BT <= 1) & (x_BT + y_BT > 0)
    first_fitting_B = fits_BT.argmax(1)
    row_B = np.arange(len(key_B))
    x_B = x_BT[row_B, first_fitting_B]
    y_B = y_BT[row_B, first_fitting_B]
    return np.where(fits_BT.any(1), x_B / np.maximum(x_B + y_B, 1e-300), 0.5)


def _boxes(key_B: np.ndarray, area_B: np.ndarray, height: int, width: int) -> np.ndarray:
    """Draw boxes with a uniform centre, and return which pixels are inside, bool (B, H, W).

    Args:
        key_B: Keys of the samples.
        area_B: The share of the image's area that each box has, at the image's aspect ratio.
        height: Height of the images in pixels.
        width: Width of the images in pixels.
    """
    slot = 2 + 8 * TRIES  # the first slot that `_beta` does not use
    inside = []
    for axis, side in enumerate((height, width)):
        centre_B = rng.integers(key_B, slot + axis, side)[:, None]
        half_B = np.rint(side * np.sqrt(area_B)).astype(np.int64)[:, None] // 2
        place_S = np.arange(side)
        inside.append((place_S >= centre_B - half_B) & (place_S < centre_B + half_B))
    return inside[0][:, :, None] & inside[1][:, None, :]


def eval_transform(images: list[Tensor], size: int, mode: str, crop: float) -> Tensor:
    """Resize and crop images for evaluation, exactly as timm does with an exported encoder.

    Args:
        images: Tensors of integers (C, H, W), which may differ in size.
        size: The side S of the result in pixels.
        mode: "crop" to resize the shorter side to floor(S / crop) and crop the centre, "squash" to
            resize the complete image to S x S whatever its aspect ratio.
        crop: The share of the shorter side that is cropped.

    Returns:
        The images, (B, C, S, S), of the type of `images`.
    """
    return torch.stack([_fitted_image(image, size, mode, crop) for image in images])


def _fitted_image(image: Tensor, size: int, mode: str, crop: float) -> Tensor:
    if image.dtype == torch.uint8:
        return _fitted(image, size, mode, crop, ANTIALIAS)
    # 16 bits, which torchvision would cut off where it rounds bytes
    return _fitted(image.float(), size, mode, crop, ANTIALIAS).round().to(image.dtype)


def eval_masks(masks: list[Tensor], size: int, mode: str, crop: float) -> Tensor:
    """Return masks (B, S, S) from integers (H, W), with the geometry of `eval_transform`.

    Each pixel takes the class of the nearest pixel.
    """
    return torch.stack([_fitted(mask[None], size, mode, crop, NEAREST)[0] for mask in masks])


def _fitted(image: Tensor, size: int, mode: str, crop: float, resizing: dict[str, Any]) -> Tensor:
    """Return one image (C, H, W) as (C, S, S).

    Args:
        image: The image.
        size: The side S of the result in pixels.
        mode: "crop" or "squash", as in `eval_transform`.
        crop: The share of the shorter side that is cropped.
        resizing: Options of torchvision's `resize`, ANTIALIAS or NEAREST.
    """
    resize: Any = F.resize
    if mode == "squash":
        return resize(image, [size, size], **resizing)
    short = math.floor(size / crop)  # as timm: 438 of 384 / 0.875, where rounding gives 439
    return F.center_crop(resize(_middle(image), [short], **resizing), [size, size])


def _middle(image: Tensor) -> Tensor:
    """Return the middle of a very long image, and other images unchanged.

    Resizing a line of pixels by its shorter side would fill the memory.

    Args:
        image: An image (C, H, W).
    """
    height, width = image.shape[1:]
    longest = STRIP * min(height, width)
    if max(height, width) <= longest:
        return image
    return F.center_crop(image, [min(height, longest), min(width, longest)])
