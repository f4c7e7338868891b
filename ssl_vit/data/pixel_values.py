"""Convert pixel integers: after decoding, from a caller, for the model and for display.

Integers lie between the lowest and the highest value of `data.range`.

Legend: B images, C channels, H W height and width, S the requested side in pixels.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..recipe.images import BYTES, Data
from .decoding import decode, decode_stored_values, from_pillow
from .transforms import eval_transform

Decoder = Callable[[bytes | np.ndarray], Tensor]

SHOWN = 3  # the most channels that are displayed
EXPECTED_BYTES = (
    "Pass torch.uint8 values from 0 to 255, because the encoder itself normalises the images. If"
    " your values are from 0 to 1, pass (255 * images).round().byte()"
)
EXPECTED_RGB = (
    "Expected a uint8 tensor (B, 3, H, W) of the encoder's size. For images of other sizes, which"
    " are resized and cropped, pass a uint8 array (H, W, 3), (B, H, W, 3) or (B, 3, H, W), a PIL"
    " image, or a list of arrays (H, W, 3) and PIL images"
)
EXPECTED_CHANNELS = (
    "Expected an array of whole numbers, (H, W, C), (C, H, W) or (B, H, W, C), or a list of arrays"
)


def decoder(data: Data) -> Decoder:
    """Return a function that decodes an encoded image or an array to integers (C, H, W).

    The integers are 8-bit RGB (`decoding.decode`). If data.channels is not 3 or data.range is set,
    the integers are the stored channels, clipped to data.range. The returned function raises
    ValueError for an unreadable image.
    """
    return decode if data.is_rgb else partial(_decode_clipped, data=data)


def _decode_clipped(raw: bytes | np.ndarray, data: Data) -> Tensor:
    """Decode an image to its stored channels, integers (C, H, W), and clip them to data.range.

    Args:
        raw: An encoded image or an array.
        data: Options of the images, with the number of channels and the range.

    Raises:
        ValueError: The image cannot be read, has 16 bits although data.range is not set, or has 8
            bits although data.range is for 16 bits.
    """
    array = decode_stored_values(raw, data.channels, data.pixel_range[0])
    if array.dtype == np.uint8 and data.pixel_range == BYTES:
        # torch needs a writeable array
        return torch.from_numpy(array if array.flags.writeable else array.copy())
    if data.range is None:
        raise ValueError(
            f"the pixels have type {array.dtype}, so the range of their values must be given. Set"
            " data.range=[LOWEST,HIGHEST]"
        )
    lowest, highest = data.pixel_range
    # of a range for 16 bits, the image would be nearly black, and bytes are no Hounsfield units
    if array.dtype == np.uint8 and (highest > BYTES[1] or lowest < BYTES[0]):
        raise ValueError(
            f"the pixels have 8 bits, but data.range=[{lowest},{highest}] is for 16 bits"
        )
    return torch.from_numpy(array.astype(np.int32).clip(lowest, highest)).to(pixel_type(data))


def pixel_type(data: Data) -> torch.dtype:
    """Return the integer type of images: uint8, or int32 for 16 bits or values below 0.

    int32 is used because torch supports few operations in uint16.
    """
    lowest, highest = data.pixel_range
    return torch.uint8 if lowest >= BYTES[0] and highest <= BYTES[1] else torch.int32


def check_integers(pixels: object, data: Data) -> None:
    """Check that a caller's images are a tensor of the expected integer type.

    Other types are refused, because the range of the values would be unknown.

    Args:
        pixels: The caller's images.
        data: Options of the images, with the range of the pixels.

    Raises:
        TypeError: `pixels` is no tensor, or has another type.
    """
    expects_uint8 = pixel_type(data) == torch.uint8
    allowed = (torch.uint8,) if expects_uint8 else (torch.int32, torch.uint16)
    if isinstance(pixels, Tensor) and pixels.dtype in allowed:
        return
    kind = pixels.dtype if isinstance(pixels, Tensor) else type(pixels).__name__
    if expects_uint8:
        raise TypeError(f"the type of the images is {kind}. {EXPECTED_BYTES}")
    lowest, highest = data.pixel_range
    raise TypeError(
        f"the type of the images is {kind}. Pass torch.int32 or torch.uint16 values from {lowest}"
        f" to {highest}"
    )


def evaluation_images(images: Any, data: Data) -> Tensor:
    """Resize and crop a caller's images by `data.eval_mode` and `data.eval_crop`.

    Args:
        images: A uint8 array (H, W, 3), (B, H, W, 3) or (B, 3, H, W), a PIL image, or a list of
            arrays (H, W, 3) and PIL images, which may differ in size. For images that are not RGB
            of 8 bits: arrays of whole numbers with data.channels channels.
        data: Size and preprocessing.

    Returns:
        uint8 (B, 3, S, S) with S = data.size. For images that are not RGB of 8 bits: integers (B,
        C, S, S) of the type that the function `decoder(data)` returns.

    Raises:
        TypeError: `images` is something else.
        ValueError: An array has another shape, an image has no pixels, or there are no images.
    """
    if data.is_rgb:
        to_array = _rgb_array
        expected = EXPECTED_RGB
    else:
        to_array = _channel_array
        expected = EXPECTED_CHANNELS
    if isinstance(images, np.ndarray) and images.ndim == 4:
        singles = list(_channels_last(images) if data.is_rgb else images)
    elif isinstance(images, list | tuple):
        singles = list(images)
    else:
        singles = [images]
    if not singles:
        raise ValueError(f"there are no images. {expected}")
    decoded = [decoder(data)(to_array(image)) for image in singles]
    return eval_transform(decoded, data.size, data.eval_mode, data.eval_crop)


def _channels_last(array_B: np.ndarray) -> np.ndarray:
    """Return RGB images (B, 3, H, W) or (B, H, W, 3) as (B, H, W, 3).

    Raises:
        ValueError: Neither axis has the length 3, or both axes have.
    """
    is_last = array_B.shape[3] == 3
    is_first = array_B.shape[1] == 3
    if is_last == is_first:  # both are false: no RGB; both are true: the order of axes is unclear
        raise ValueError(f"the array has shape {array_B.shape}. {EXPECTED_RGB}")
    return array_B if is_last else array_B.transpose(0, 2, 3, 1)


def _rgb_array(image: Any) -> np.ndarray:
    """Return one image as uint8 (H, W, 3).

    Args:
        image: A PIL image or an array.

    Raises:
        TypeError: The image is no PIL image and no uint8 array.
        ValueError: The array has another shape, or no pixels.
    """
    if isinstance(image, Image.Image):
        return from_pillow(image)
    if not isinstance(image, np.ndarray):
        raise TypeError(f"an image has type {type(image).__name__}. {EXPECTED_RGB}")
    if image.dtype != np.uint8:
        raise TypeError(f"an array has type {image.dtype}. {EXPECTED_RGB}")
    if image.ndim != 3 or image.shape[2] != 3 or not image.size:
        raise ValueError(f"an array has shape {image.shape}. {EXPECTED_RGB}")
    return np.array(image)  # contiguous and writable, as torch requires


def _channel_array(image: Any) -> np.ndarray:
    """Check that one image is an array with pixels, and return the image.

    Raises:
        TypeError: The image is no array.
        ValueError: The array has no pixels.
    """
    if not isinstance(image, np.ndarray):
        raise TypeError(f"an image has type {type(image).__name__}. {EXPECTED_CHANNELS}")
    if not image.size:
        raise ValueError(f"an image has no pixels. {EXPECTED_CHANNELS}")
    return image


def bytes_per_image(data: Data, size: int) -> int:
    """Return the bytes that an image of side `size` pixels takes in a batch."""
    return data.channels * size**2 * pixel_type(data).itemsize


def no_images(data: Data) -> Tensor:
    """Return an empty batch of images (0, C, S, S)."""
    return torch.empty(0, data.channels, data.size, data.size, dtype=pixel_type(data))


def normalisation(
    mean: list[float], std: list[float], pixel_range: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """Return an offset and a divisor: (pixels - offset) / divisor is the input of the model.

    For example, a mean of 0.5, a standard deviation of 0.2 and the range (0, 255) give an offset of
    127.5 and a divisor of 51.

    Args:
        mean: The mean of each channel, after pixels are scaled to values from 0 to 1.
        std: The standard deviation of each channel, after the same scaling.
        pixel_range: The pixel values that are scaled to 0 and to 1.

    Returns:
        The offset and the divisor, float32 (C, 1, 1) each.
    """
    lowest, highest = pixel_range
    mean_C11 = torch.tensor(mean)[:, None, None]
    std_C11 = torch.tensor(std)[:, None, None]
    return lowest + (highest - lowest) * mean_C11, (highest - lowest) * std_C11


def shown_channels(value: Tensor, axis: int) -> Tensor:
    """Return three channels for display: the first three, or the first as grey if there are fewer.

    Args:
        value: A tensor with channels along `axis`.
        axis: The axis of channels.
    """
    if value.shape[axis] >= SHOWN:
        return value.narrow(axis, 0, SHOWN)
    sizes = [-1] * value.ndim  # `expand` keeps the length of an axis for -1
    sizes[axis] = SHOWN
    return value.narrow(axis, 0, 1).expand(sizes)


def shown_note(channels: int) -> str:
    """Describe which channels of an image are displayed, or return "" for three channels."""
    if channels == SHOWN:
        return ""
    if channels == 1:
        return "one channel, as grey"
    if channels < SHOWN:
        return f"channel 1 of {channels}, as grey"
    return f"channels 1 to 3 of {channels}, as red, green and blue"


def shown_image(image_BCHW: Tensor, pixel_range: tuple[int, int]) -> Tensor:
    """Convert images to RGB bytes for display, uint8 (B, 3, H, W).

    `shown_channels` chooses the channels.

    Args:
        image_BCHW: The integer images that an encoder receives.
        pixel_range: The pixel values that become black (0) and white (255).
    """
    image_B3HW = shown_channels(image_BCHW, 1)
    if pixel_range == BYTES:
        return image_B3HW
    lowest, highest = pixel_range
    share_B3HW = (image_B3HW.float() - lowest) / (highest - lowest)
    return (BYTES[1] * share_B3HW).round().clamp(*BYTES).to(torch.uint8)
