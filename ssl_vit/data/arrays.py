"""NumPy arrays and PIL images that a caller has -> evaluation images, integers (B, C, S, S)."""

from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..recipe.schema import Data
from .channels import decoder
from .image_formats import from_pillow
from .transforms import eval_transform

EXPECTED = (
    "expected a uint8 tensor (B, 3, H, W) of the encoder's size; or, resized and cropped as in the"
    " evaluation, a uint8 array (H, W, 3), (B, H, W, 3) or (B, 3, H, W), a PIL image, or a list of"
    " arrays (H, W, 3) and PIL images"
)
CHANNELS = "expected an array (H, W, C) or (C, H, W) of whole numbers, (B, H, W, C), or a list"


def evaluation_images(images: Any, data: Data) -> Tensor:
    """The images resized and cropped as `data.eval_mode` and `data.eval_crop` say: uint8
    (B, 3, S, S) with S = data.size; of other channels or bits as `channels.decoder` gives them.

    Args:
        images: a uint8 array (H, W, 3), (B, H, W, 3) or (B, 3, H, W), a PIL image, or a list of
            arrays (H, W, 3) and PIL images, which may differ in size; where they are not RGB of 8
            bits, arrays of data.channels of whole numbers.
        data: size and preprocessing.

    Raises:
        TypeError: they are something else.
        ValueError: an array has another shape, an image has no pixels, or there is none.
    """
    if not data.is_rgb:
        return _of_channels(images, data)
    parts = _listed(images)
    if not parts:
        raise ValueError(f"no images; {EXPECTED}")
    pixels = [torch.from_numpy(one).permute(2, 0, 1) for one in parts]
    return eval_transform(pixels, data.size, data.eval_mode, data.eval_crop)


def _of_channels(images: Any, data: Data) -> Tensor:
    several = isinstance(images, list | tuple) or (
        isinstance(images, np.ndarray) and images.ndim == 4
    )
    parts = list(images) if several else [images]
    for one in parts:
        if not isinstance(one, np.ndarray):
            raise TypeError(f"an image that is a {type(one).__name__}; {CHANNELS}")
    if not parts or not all(one.size for one in parts):
        raise ValueError(f"no images, or one without pixels; {CHANNELS}")
    decode = decoder(data)
    return eval_transform(list(map(decode, parts)), data.size, data.eval_mode, data.eval_crop)


def _listed(images: Any) -> list[np.ndarray]:
    """Each image as uint8 (H, W, 3)."""
    if isinstance(images, np.ndarray) and images.ndim == 4:
        last = images.shape[3] == 3
        if last == (images.shape[1] == 3):
            raise ValueError(f"an array of shape {images.shape}; {EXPECTED}")
        return [_image(one) for one in (images if last else images.transpose(0, 2, 3, 1))]
    if isinstance(images, list | tuple):
        return [_image(one) for one in images]
    return [_image(images)]


def _image(image: Any) -> np.ndarray:
    if isinstance(image, Image.Image):
        return from_pillow(image)
    if not isinstance(image, np.ndarray):
        raise TypeError(f"an image that is a {type(image).__name__}; {EXPECTED}")
    if image.dtype != np.uint8:
        raise TypeError(f"an array of {image.dtype}; {EXPECTED}")
    if image.ndim != 3 or image.shape[2] != 3 or not image.size:
        raise ValueError(f"an array of shape {image.shape}; {EXPECTED}")
    return np.array(image)  # contiguous and writable, which torch asks for
