"""Make several random views of each image, for objectives that compare views.

A view is a crop with random flip, colours, blur and solarisation. Random numbers are hashed from
the sample's key and the number of the view.

Legend: B images, V views and L local views of each image, S side of a view in pixels.
"""

import itertools
import math
from collections.abc import Callable

import numpy as np
import torch
from einops import rearrange
from PIL import Image, ImageFilter
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from .. import rng
from ..recipe.shared_groups import ViewOptions
from . import transforms

Augment = Callable[[list[Tensor], np.ndarray], list[Tensor]]  # of images (C, H, W) and keys (B,)

VIEWS = 2
SOLARIZE_FROM = 128  # Pillow's default: values from 128 on are inverted
ORDERS = list(itertools.permutations(range(4)))  # all orders of the four colour changes
# Each slot of a stream gives another random number. In the streams "jitter" and "blur", slot 0
# decides whether the image is changed at all (`_draw_whether`)
ORDER_SLOT, FIRST_STRENGTH_SLOT = 1, 2
SIGMA_SLOT = 1


def view_keys(key_B: np.ndarray, view: int) -> np.ndarray:
    """Return the key of view number `view` of each sample, int64 (B,)."""
    return rng.bits(rng.stream(key_B, "view"), view)


def random_views(
    images: list[Tensor],
    key_B: np.ndarray,
    size: int,
    smallest_area: float,
    flip: bool,
    views: ViewOptions,
    augment: Augment | None = None,
) -> Tensor:
    """Make random views of images, shape (B, V, C, S, S).

    Each view is a training crop with random colours, blur and solarisation. Images that are not
    8-bit RGB are only cropped, flipped and blurred.

    The transforms and their order follow MoCo v3's main_moco.py (after BYOL, table 6), except for
    the flip. MoCo v3 flips at the end, and this function flips with the crop. The pixels are the
    same, because the other transforms treat left and right alike.

    Args:
        images: Tensors (C, H, W), which may differ in size.
        key_B: Keys of the samples, int64. All random numbers are derived from the keys.
        size: The side S of a view in pixels.
        smallest_area: The smallest area of a crop, as a share of the image's area.
        flip: Whether to flip half of the views.
        views: Probabilities and strengths of the transforms.
        augment: Changes images before they are cropped, with random numbers from the given keys.
    """
    all_views = []
    for view in range(VIEWS):
        view_key_B = view_keys(key_B, view)
        changed = augment(images, view_key_B) if augment else images
        crops = transforms.train_transform(changed, view_key_B, size, smallest_area, flip)
        all_views.append(
            _augment_crops(crops, view_key_B, views, views.blur[view], views.solarize[view])
        )
    return torch.stack(all_views, 1)


def local_views(
    images: list[Tensor],
    key_B: np.ndarray,
    flip: bool,
    views: ViewOptions,
    augment: Augment | None = None,
) -> Tensor:
    """Make local views of images, shape (B, L, C, S, S) with S = views.local_size.

    Local views are smaller crops with random colours and blur, without solarisation (multi-crop;
    Caron et al., 2021).

    Args:
        images: Tensors (C, H, W), which may differ in size.
        key_B: Keys of the samples, int64.
        flip: Whether to flip half of the views.
        views: Number, size and area of local views, and options of the transforms.
        augment: Changes images before they are cropped, as in `random_views`.
    """
    smallest, largest = views.local_area
    all_views = []
    # the random numbers depend on the number of the view. `random_views` uses the numbers 0 and 1,
    # so local views are numbered from 2
    for view in range(VIEWS, VIEWS + views.local):
        view_key_B = view_keys(key_B, view)
        changed = augment(images, view_key_B) if augment else images
        crops = transforms.train_transform(
            changed, view_key_B, views.local_size, smallest, flip, largest
        )
        all_views.append(_augment_crops(crops, view_key_B, views, views.local_blur, solarize=0.0))
    return torch.stack(all_views, 1)


def _augment_crops(
    crop_BCSS: Tensor, view_key_B: np.ndarray, views: ViewOptions, blur: float, solarize: float
) -> Tensor:
    """Apply random colour changes, blur and solarisation to crops (B, C, S, S).

    Crops that are not 8-bit RGB are only blurred.

    Args:
        crop_BCSS: The crops of one view, integers.
        view_key_B: Keys of the views from `view_keys`, int64, for the random numbers.
        views: Probabilities and strengths of the colour changes, and strength of the blur.
        blur: The probability of blur.
        solarize: The probability of solarisation.
    """
    if crop_BCSS.shape[1] != 3 or crop_BCSS.dtype != torch.uint8:
        return _blurred(crop_BCSS, view_key_B, blur, views.blur_sigma)
    jitter_B = _draw_whether(rng.stream(view_key_B, "jitter"), views.jitter)
    order_B, change_B4 = _draw_color_changes(view_key_B, views)
    grey_B = _draw_whether(rng.stream(view_key_B, "grayscale"), views.grayscale)
    blur_B, sigma_B = _draw_blurs(view_key_B, blur, views.blur_sigma)
    solarize_B = _draw_whether(rng.stream(view_key_B, "solarize"), solarize)
    augmented_BCSS = torch.empty_like(crop_BCSS)
    for i, crop in enumerate(crop_BCSS):
        image = Image.fromarray(rearrange(crop.numpy(), "c h w -> h w c"))
        if jitter_B[i]:
            image = _jittered(image, ORDERS[order_B[i]], change_B4[i].tolist())
        if grey_B[i]:
            image = _grey(image)
        if blur_B[i]:
            image = image.filter(ImageFilter.GaussianBlur(sigma_B[i].item()))
        array = np.array(image)
        if solarize_B[i]:
            np.subtract(255, array, out=array, where=array >= SOLARIZE_FROM)
        augmented_BCSS[i] = torch.from_numpy(rearrange(array, "h w c -> c h w"))
    return augmented_BCSS


def _draw_whether(key_B: np.ndarray, chance: float) -> np.ndarray:
    """Draw a bool for each key, true with probability `chance`: (B,)."""
    return rng.uniform(key_B, 0) < chance


def _draw_color_changes(key_B: np.ndarray, views: ViewOptions) -> tuple[np.ndarray, np.ndarray]:
    """Draw the order and strengths of the colour changes, like torchvision's ColorJitter.

    Each change is uniform from -L to L, where L is the largest change.

    Args:
        key_B: Keys of the views, int64.
        views: The largest change of brightness, contrast, saturation and hue.

    Returns:
        Indices into ORDERS (B,), and the relative changes of brightness, contrast, saturation and
        hue (B, 4). A brightness of 0.1 makes an image 10% brighter.
    """
    key_B = rng.stream(key_B, "jitter")
    order_B = rng.integers(key_B, ORDER_SLOT, len(ORDERS))
    largest_4 = np.array([views.brightness, views.contrast, views.saturation, views.hue])
    uniform_B4 = rng.uniform(key_B[:, None], FIRST_STRENGTH_SLOT + np.arange(4))  # from 0 to 1
    return order_B, largest_4 * (2 * uniform_B4 - 1)


def _jittered(image: Image.Image, order: tuple[int, ...], changes: list[float]) -> Image.Image:
    """Change brightness, contrast, saturation and hue of an image in the given order.

    Args:
        image: An RGB image.
        order: Indices into `changes`. For example, (3, 0, 1, 2) changes the hue first.
        changes: Relative changes of brightness (index 0), contrast (1), saturation (2) and hue (3).
    """
    for i in order:
        if changes[i]:  # a hue change of 0 would still round pixels
            image = ADJUST[i](image, changes[i])
    return image


# The next four functions give the same pixels as torchvision's adjust_brightness, adjust_contrast,
# adjust_saturation and adjust_hue, but are faster on small images, where torchvision's dispatch and
# Pillow's statistics take most of the time. `by` is a relative change from `_draw_color_changes`.
# Image.blend(a, b, 1 + by) returns b + by * (b - a), which is b for by = 0


def _brighter(image: Image.Image, by: float) -> Image.Image:
    return Image.blend(Image.new("RGB", image.size), image, 1 + by)


def _contrasted(image: Image.Image, by: float) -> Image.Image:
    mean = int(np.asarray(image.convert("L")).mean() + 0.5)
    return Image.blend(Image.new("RGB", image.size, (mean, mean, mean)), image, 1 + by)


def _saturated(image: Image.Image, by: float) -> Image.Image:
    return Image.blend(_grey(image), image, 1 + by)


def _hue_turned(image: Image.Image, by: float) -> Image.Image:
    array = np.array(image.convert("HSV"))
    array[..., 0] += np.int32(by * 255).astype(np.uint8)  # wraps around at 256
    return Image.frombuffer("HSV", image.size, array, "raw", "HSV", 0, 1).convert("RGB")


def _grey(image: Image.Image) -> Image.Image:
    return image.convert("L").convert("RGB")


ADJUST = (_brighter, _contrasted, _saturated, _hue_turned)


def _draw_blurs(
    key_B: np.ndarray, chance: float, sigma: list[float]
) -> tuple[np.ndarray, np.ndarray]:
    """Draw whether each image is blurred, and the standard deviation of the blur.

    The standard deviation is uniform, as in SimCLR.

    Args:
        key_B: Keys of the views, int64.
        chance: The probability of blur.
        sigma: The lowest and the highest standard deviation in pixels.

    Returns:
        Whether each image is blurred, bool (B,), and the standard deviations in pixels, (B,).
    """
    key_B = rng.stream(key_B, "blur")
    low, high = sigma
    sigma_B = low + (high - low) * rng.uniform(key_B, SIGMA_SLOT)
    return _draw_whether(key_B, chance), sigma_B


def _blurred(image_BCHW: Tensor, key_B: np.ndarray, chance: float, sigma: list[float]) -> Tensor:
    """Blur randomly chosen images with any number of channels.

    The random numbers are the same as for RGB images.

    Args:
        image_BCHW: Square images, integers. They are changed in place and returned.
        key_B: Keys of the views, int64.
        chance: The probability of blur.
        sigma: The lowest and the highest standard deviation in pixels.
    """
    is_blurred_B, sigma_B = _draw_blurs(key_B, chance, sigma)
    for i in np.flatnonzero(is_blurred_B):
        # the radius of the kernel is three standard deviations. The radius must be smaller than the
        # image side, because the image is padded by reflection
        radius = min(image_BCHW.shape[-1] - 1, math.ceil(3 * sigma_B[i]))
        side = 2 * radius + 1
        smooth = F.gaussian_blur(image_BCHW[i].float(), [side, side], [sigma_B[i].item()] * 2)
        image_BCHW[i] = smooth.round().to(image_BCHW.dtype)
    return image_BCHW
