"""Decode the training images once, and cut batches from the decoded images in memory.

The batches are the same, byte for byte, as those of `ImageDataset`, which decodes at each step.

Legend: N images of the split, B images of a batch, C channels, H W height and width.
"""

import math
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from einops import rearrange
from torch import Tensor

from ..recipe.schema import Data
from .batching import ImageDataset
from .contents import content_hash
from .pixel_values import Decoder, decoder
from .source import Source

READ_AT_ONCE = 256  # images


class NotResident(ValueError):
    """Error that decoded images cannot be kept in memory. The message is the reason."""


class DecodedImages(NamedTuple):
    """Decoded images of a split.

    Attributes:
        image_NHWC: The pixels, uint8 (N, H, W, C). Zeros for unreadable images.
        label_N: One label for each image, int64 (N,), or lists of labels (N, L).
        unreadable: {row: why the image cannot be read}.
        content_N: Hash of each image's contents (`content_hash`), uint64 (N,).
    """

    image_NHWC: Tensor
    label_N: np.ndarray
    unreadable: dict[int, str]
    content_N: np.ndarray

    @property
    def description(self) -> str:
        return f"{len(self.label_N):,} images, {self.image_NHWC.numel() / 2**20:,.0f} MiB"


def decode_split(source: Source, data: Data, most_bytes: float, threads: int) -> DecodedImages:
    """Decode every image of a split into memory.

    Args:
        source: The images, of 8 bits.
        data: The recipe's options of the images.
        most_bytes: The most memory that the pixels may take.
        threads: The number of threads that decode.

    Raises:
        NotResident: The images have different sizes, none of the first 256 images can be read, or
            the decoded images take more than `most_bytes`.
    """
    count = len(source)
    decode = partial(_decode, decoder(data))
    image_NHWC: Tensor | None = None
    labels: list[np.ndarray] = []
    contents: list[int] = []
    unreadable: dict[int, str] = {}
    with ThreadPoolExecutor(threads) as pool:
        for start in range(0, count, READ_AT_ONCE):
            rows = np.arange(start, min(start + READ_AT_ONCE, count))
            raw, label = source.fetch(rows)
            labels.append(label)
            contents += map(content_hash, raw)
            for row, decoded in zip(rows.tolist(), pool.map(decode, raw), strict=True):
                if isinstance(decoded, str):
                    unreadable[row] = decoded
                    continue
                image_HWC = rearrange(decoded, "c h w -> h w c")
                if image_NHWC is None:
                    image_NHWC = _allocate_images(count, image_HWC.shape, most_bytes)
                if image_HWC.shape != image_NHWC.shape[1:]:
                    first_height, first_width = image_NHWC.shape[1:3]
                    height, width = image_HWC.shape[:2]
                    raise NotResident(
                        f"the images have different sizes: {first_width} x {first_height} and"
                        f" {width} x {height} pixels"
                    )
                image_NHWC[row] = image_HWC
            if image_NHWC is None:
                raise NotResident("none of the first images can be read")
    assert image_NHWC is not None
    content_N = np.array(contents, np.uint64)
    return DecodedImages(image_NHWC, np.concatenate(labels), unreadable, content_N)


def _decode(decode: Decoder, raw: bytes | np.ndarray) -> Tensor | str:
    """Return the decoded image, or the reason why decoding failed."""
    try:
        return decode(raw)
    except ValueError as error:
        return str(error)


def _allocate_images(count: int, shape_HWC: tuple[int, ...], most_bytes: float) -> Tensor:
    """Allocate a tensor of zeros for `count` decoded images, uint8 (count, H, W, C).

    Args:
        count: The number of images.
        shape_HWC: The shape of each image.
        most_bytes: The most memory that the images may take.

    Raises:
        NotResident: The tensor takes more than `most_bytes`.
    """
    size = count * math.prod(shape_HWC)
    if size > most_bytes:
        height, width, _ = shape_HWC
        raise NotResident(
            f"{count:,} images of {width} x {height} pixels take {size / 2**30:,.1f} GiB, and only"
            f" {most_bytes / 2**30:,.1f} GiB may be used"
        )
    return torch.zeros(count, *shape_HWC, dtype=torch.uint8)


class ResidentDataset(ImageDataset):
    """Dataset that turns Samples into a training Batch, cut from decoded images."""

    def __init__(self, source: Source, data: Data, decoded: DecodedImages) -> None:
        super().__init__(source, data, train=True)
        self.decoded = decoded

    def fetch(self, rows: np.ndarray) -> tuple[list[Tensor | str], np.ndarray]:
        """Return the decoded images and the labels of rows.

        In place of an unreadable image is the reason, a text.
        """
        image_NCHW = rearrange(self.decoded.image_NHWC, "n h w c -> n c h w")
        unreadable = self.decoded.unreadable
        images = [unreadable.get(row, image_NCHW[row]) for row in rows.tolist()]
        return images, self.decoded.label_N[rows]

    def content(self, row: int, raw: Tensor | str) -> int:
        return int(self.decoded.content_N[row])

    def decode(self, raw: Tensor | str) -> Tensor:
        if isinstance(raw, str):  # why the image is unreadable
            raise ValueError(raw)
        return raw
