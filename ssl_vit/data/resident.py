"""The training images decoded once and kept in memory, where batches are cut from them: byte for
byte those of `ImageDataset`, without decoding anything at each step.

Legend: N images of the split, B of a batch, C channels, H W their height and width.
"""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from einops import rearrange
from torch import Tensor

from ..errors import UserError
from ..recipe.schema import Data
from . import transforms
from .base import Source
from .batching import REPLACEMENTS, Batch, ImageDataset, Samples
from .pixel_values import Decoder, decoder

READ_AT_ONCE = 1024  # images


class NotResident(ValueError):
    """The images cannot be kept decoded, and why."""


class DecodedImages(NamedTuple):
    """A decoded split.

    Attributes:
        image_NHWC: uint8 (N, H, W, C); without meaning where unreadable.
        label_N: int64; of lists of labels (N, L).
        row_N: int64, the row whose pixels and label are used: the row itself or, where that cannot
            be read, the next that can; -1 where none of the next ones can.
        unreadable: {row: why it cannot be read}.
    """

    image_NHWC: Tensor
    label_N: np.ndarray
    row_N: np.ndarray
    unreadable: dict[int, str]

    @property
    def description(self) -> str:
        return f"{len(self.label_N):,} images, {self.image_NHWC.numel() / 2**20:,.0f} MiB"


def decode_split(source: Source, data: Data, most_bytes: float, threads: int) -> DecodedImages:
    """Every image of a split, of 8 bits, decoded in `threads` threads.

    Raises:
        NotResident: the images are of different sizes, none can be read, or they take more than
            `most_bytes`.
    """
    count = len(source)
    decode = partial(_decode, decoder(data))
    height, width = _first_size(source, decode)
    shape_HWC = (height, width, data.channels)
    size = count * math.prod(shape_HWC)
    if size > most_bytes:
        raise NotResident(
            f"{count:,} images of {width} x {height} pixels take {size / 2**30:,.1f} GiB, of which"
            f" {most_bytes / 2**30:,.1f} GiB may be used"
        )
    image_NHWC = torch.zeros(count, *shape_HWC, dtype=torch.uint8)
    labels: list[np.ndarray] = []
    unreadable: dict[int, str] = {}
    with ThreadPoolExecutor(threads) as pool:
        for start in range(0, count, READ_AT_ONCE):
            rows = np.arange(start, min(start + READ_AT_ONCE, count))
            raw, label = source.fetch(rows)
            labels.append(label)
            for place, found in enumerate(pool.map(decode, raw)):
                if isinstance(found, str):
                    unreadable[start + place] = found
                elif found.shape[1:] == (height, width):
                    image_NHWC[start + place] = rearrange(found, "c h w -> h w c")
                else:
                    sides = f"{found.shape[2]} x {found.shape[1]}"
                    text = f"images of different sizes: {width} x {height} and {sides} pixels"
                    raise NotResident(text)
    row_N = _readable_rows(count, unreadable)
    return DecodedImages(image_NHWC, np.concatenate(labels), row_N, unreadable)


def _decode(decode: Decoder, raw: bytes | np.ndarray) -> Tensor | str:
    """The image, or why it cannot be read."""
    try:
        return decode(raw)
    except ValueError as error:
        return str(error)


def _first_size(
    source: Source, decode: Callable[[bytes | np.ndarray], Tensor | str]
) -> tuple[int, int]:
    """Height and width of the first image that can be read."""
    for row in range(min(REPLACEMENTS, len(source))):
        (raw,), _ = source.fetch(np.array([row]))
        found = decode(raw)
        if not isinstance(found, str):
            return found.shape[1], found.shape[2]
    raise NotResident("none of the first images can be read")


def _readable_rows(count: int, unreadable: dict[int, str]) -> np.ndarray:
    row_N = np.arange(count)
    for row in unreadable:
        nexts = ((row + i) % count for i in range(1, min(REPLACEMENTS, count)))
        row_N[row] = next((other for other in nexts if other not in unreadable), -1)
    return row_N


class ResidentDataset(ImageDataset):
    """Samples -> training Batch, cut from decoded images."""

    def __init__(self, source: Source, data: Data, decoded: DecodedImages) -> None:
        super().__init__(source, data, train=True)
        self.decoded = decoded

    def _unmixed(self, wanted: Samples) -> Batch:
        decoded = self.decoded
        data = self.data
        row_B = decoded.row_N[wanted.index]
        bad = [row for row in wanted.index.tolist() if row in decoded.unreadable]
        if (row_B < 0).any():
            self._refuse(int(wanted.index[row_B < 0][0]))
        image_NCHW = rearrange(decoded.image_NHWC, "n h w c -> n c h w")
        images = [image_NCHW[row] for row in row_B.tolist()]
        return Batch(
            transforms.train_transform(images, wanted.key, data.size, data.crop_area, data.flip),
            label=torch.from_numpy(decoded.label_N[row_B]),
            index=torch.from_numpy(wanted.index),
            key=torch.from_numpy(wanted.key),
            unreadable=tuple(f"{self.source.name(row)}: {decoded.unreadable[row]}" for row in bad),
        )

    def _refuse(self, row: int) -> None:
        tries = min(REPLACEMENTS, len(self.source))
        last = (row + tries - 1) % len(self.source)
        raise UserError(
            f"data={self.data.name}: {tries} images in a row cannot be read, the last"
            f" {self.source.name(last)}: {self.decoded.unreadable[last]}"
        )
