"""Decodes images of any number of channels and of 8 or 16 bits, as integers.

Legend: C channels, H W height and width.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ..recipe.images import BYTES, Data
from . import image_formats, transforms
from .image_formats import WHOLE, Values
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
    """An image's values as they are, (C, H, W) of uint8, or of uint16.

    Args:
        raw: encoded, or an array (H, W, C), (C, H, W) or, of one channel, (H, W).
        channels: C.

    Raises:
        ValueError: it cannot be decoded, has other channels or other values, or may be both
            (H, W, C) and (C, H, W).
    """
    array = _channels_first(
        Values(raw) if isinstance(raw, np.ndarray) else transforms.whole(_values, raw), channels
    )
    if array.dtype.kind not in "ui":
        raise ValueError(f"pixels of {array.dtype}; {WHOLE}")
    if array.dtype == np.uint8:
        return array
    if array.size and not 0 <= array.min() <= array.max() < VALUES:
        text = f"pixels from {array.min()} to {array.max()}"
        raise ValueError(f"{text}; {WHOLE}")
    return array.astype(np.uint16, copy=False)


def _values(raw: bytes) -> Values:
    return image_formats.format_of(raw).values(raw)


def _channels_first(found: Values, channels: int) -> np.ndarray:
    """The array as (C, H, W).

    Raises:
        ValueError: its channels are neither or, where the file does not say which, both its first
            and its last axis.
    """
    array, last = found
    if array.ndim == 2 and channels == 1:
        return array[None]
    first, final = (
        array.ndim == 3 and array.shape[axis] == channels and last is not other
        for axis, other in ((0, True), (2, False))
    )
    if first == final:
        text = f"an image {array.shape}; data.channels={channels} expects "
        if first:
            text += "channels that are no side of it; as TIFF it says which are which"
        else:
            text += f"(H, W, {channels}) or ({channels}, H, W)"
        raise ValueError(text)
    return array if first else np.moveaxis(array, 2, 0)


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
