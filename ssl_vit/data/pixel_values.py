"""Values of pixels: integers from the lowest to the highest of `data.range`, as the model's input
and as they are shown.

Legend: B images, C channels, H W height and width.
"""

import torch
from torch import Tensor

from ..recipe.images import BYTES, Data

SHOWN = 3  # channels that are shown, at most
OF_BYTES = (
    "expected a tensor of torch.uint8, 0 to 255: the encoder normalises it; of values in [0, 1]"
    " give (255 * x).round().byte()"
)


def pixel_type(data: Data) -> torch.dtype:
    """Of the integers of images: uint8, or int32 of 16 bits, as torch computes little in uint16."""
    return torch.uint8 if data.pixel_range[1] <= BYTES[1] else torch.int32


def check_integers(pixels: object, data: Data) -> None:
    """Raises TypeError where pixels are not a tensor of the integers that images of `data` are, as
    the range of others cannot be told."""
    of_bytes = pixel_type(data) == torch.uint8
    allowed = (torch.uint8,) if of_bytes else (torch.int32, torch.uint16)
    if isinstance(pixels, Tensor) and pixels.dtype in allowed:
        return
    kind = pixels.dtype if isinstance(pixels, Tensor) else type(pixels).__name__
    lowest, highest = data.pixel_range
    of_others = f"expected torch.int32 or torch.uint16, {lowest} to {highest}"
    raise TypeError(f"images of {kind}; {OF_BYTES if of_bytes else of_others}")


def bytes_in_batch(data: Data, size: int) -> int:
    """Bytes of an image of `size` pixels a side in a batch."""
    return data.channels * size**2 * pixel_type(data).itemsize


def no_images(data: Data) -> Tensor:
    """A batch of none, (0, C, S, S)."""
    return torch.empty(0, data.channels, data.size, data.size, dtype=pixel_type(data))


def normalisation(
    mean: list[float], std: list[float], pixel_range: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """What is taken from a pixel's value, and what it is divided by, for the model's input: float32
    (C, 1, 1) each."""
    lowest, highest = pixel_range
    share_C11, std_C11 = (torch.tensor(values)[:, None, None] for values in (mean, std))
    return lowest + (highest - lowest) * share_C11, (highest - lowest) * std_C11


def shown_channels(value: Tensor, axis: int) -> Tensor:
    """The first three channels, or where there are fewer the first as grey, along `axis`."""
    if value.shape[axis] >= SHOWN:
        return value.narrow(axis, 0, SHOWN)
    sizes = [-1] * value.ndim
    sizes[axis] = SHOWN
    return value.narrow(axis, 0, 1).expand(sizes)


def shown_note(channels: int) -> str:
    """Which of an image's channels are shown, where they are not all; else empty."""
    if channels == SHOWN:
        return ""
    if channels < SHOWN:
        return f"channel 1 of {channels}, as grey" if channels > 1 else "one channel, as grey"
    return f"channels 1 to 3 of {channels}, as red, green and blue"


def shown_image(image_BCHW: Tensor, pixel_range: tuple[int, int]) -> Tensor:
    """Images as they are shown: uint8 (B, 3, H, W) of `shown_channels`, from the lowest value as
    black to the highest as white."""
    image_B3HW = shown_channels(image_BCHW, 1)
    if pixel_range == BYTES:
        return image_B3HW
    lowest, highest = pixel_range
    share_B3HW = (image_B3HW.float() - lowest) / (highest - lowest)
    return (BYTES[1] * share_B3HW).round().clamp(*BYTES).to(torch.uint8)
