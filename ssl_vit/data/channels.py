"""Decodes images of any number of channels and of 8 or 16 bits, as integers.

Legend: C channels, H W height and width.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ..config.images import BYTES, Data
from . import image_formats, transforms
from .pixel_values import pixel_type

VALUES = 2**16  # of a pixel of 16 bits

Decoder = Callable[[bytes | np.ndarray], Tensor]


def decoder(data: Data) -> Decoder:
    """What brings an image, encoded or as an array, to integers (C, H, W): RGB of 8 bits
    (`transforms.decode`), or its channels as they are, clipped to data.range. It raises ValueError
    of an image that cannot be read."""
    if data.is_rgb:
        return transforms.decode
    if data.range is None:
        return partial(_bytes, channels=data.channels)
    return partial(
        _clipped, channels=data.channels, low_high=data.pixel_range, kind=pixel_type(data)
    )


def planes(raw: bytes | np.ndarray, channels: int) -> np.ndarray:
    """An image's values as they are, (C, H, W) of uint8 or of other integers from 0 to 65535.

    Args:
        raw: encoded, or an array (H, W, C), (C, H, W) or, of one channel, (H, W).
        channels: C.

    Raises:
        ValueError: it cannot be decoded, has other channels, or other values.
    """
    array = raw if isinstance(raw, np.ndarray) else transforms.whole(_values, raw)
    if array.ndim == 2 and channels == 1:
        array = array[None]
    elif array.ndim == 3 and array.shape[2] == channels:
        array = np.moveaxis(array, 2, 0)
    elif array.ndim != 3 or array.shape[0] != channels:
        expected = f"(H, W, {channels}) or ({channels}, H, W)"
        raise ValueError(f"an image {array.shape}; data.channels={channels} expects {expected}")
    if array.dtype.kind not in "ui":
        raise ValueError(f"pixels of {array.dtype}; expected whole numbers of 8 or 16 bits")
    if array.dtype != np.uint8 and array.size and not 0 <= array.min() <= array.max() < VALUES:
        text = f"pixels from {array.min()} to {array.max()}"
        raise ValueError(f"{text}; expected whole numbers of 8 or 16 bits")
    return array


def _values(raw: bytes) -> np.ndarray:
    return image_formats.format_of(raw).values(raw)


def _bytes(raw: bytes | np.ndarray, channels: int) -> Tensor:
    array = planes(raw, channels)
    if array.dtype != np.uint8:
        raise ValueError(f"pixels of {array.dtype}; expected data.range=[LOWEST,HIGHEST] for them")
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _clipped(
    raw: bytes | np.ndarray, channels: int, low_high: tuple[int, int], kind: torch.dtype
) -> Tensor:
    array = planes(raw, channels)
    if array.dtype == np.uint8 and low_high == BYTES:
        return torch.from_numpy(array if array.flags.writeable else array.copy())
    return torch.from_numpy(array.astype(np.int32).clip(*low_high)).to(kind)
