"""The training images decoded once and kept on the device, where batches are cut from them: byte
for byte those of `ImageDataset`, without decoding and copying anything at each step.

Legend: N images of the split, B of a batch, H W their height and width, L either of them, S the
side of a training image in pixels.
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

from ..config.schema import Data
from ..errors import UserError
from . import transforms
from .base import Source
from .batching import REPLACEMENTS, Batch, ImageDataset, Samples
from .channels import Decoder, decoder

READ_AT_ONCE = 1024  # images
MOST_BITS = 22  # of the fraction of a weight (ATen, UpSampleKernelAVXAntialias.h)
WEIGHT_LIMIT = 1 << 15  # a weight is an int16 there
AT_ONCE = 1 << 24  # weights of the crops that are cut at once: 190 MB with their places
COMPARED = 64  # images on which the device is compared with the CPU


class NotResident(ValueError):
    """The images cannot be kept decoded, and why."""


class DecodedImages(NamedTuple):
    """A decoded split.

    Attributes:
        image_NHWC: uint8 (N, H, W, C), on the device; without meaning where unreadable.
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


def decode_split(
    source: Source, data: Data, most_bytes: float, device: torch.device, threads: int
) -> DecodedImages:
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
    image_NHWC = torch.zeros(count, *shape_HWC, dtype=torch.uint8, device=device)
    labels: list[np.ndarray] = []
    unreadable: dict[int, str] = {}
    with ThreadPoolExecutor(threads) as pool:
        for start in range(0, count, READ_AT_ONCE):
            rows = np.arange(start, min(start + READ_AT_ONCE, count))
            raw, label = source.fetch(rows)
            labels.append(label)
            part_BHWC = torch.zeros(len(rows), *shape_HWC, dtype=torch.uint8)
            for place, found in enumerate(pool.map(decode, raw)):
                if isinstance(found, str):
                    unreadable[start + place] = found
                elif found.shape[1:] == (height, width):
                    part_BHWC[place] = rearrange(found, "c h w -> h w c")
                else:
                    sides = f"{found.shape[2]} x {found.shape[1]}"
                    text = f"images of different sizes: {width} x {height} and {sides} pixels"
                    raise NotResident(text)
            image_NHWC[start : start + len(rows)] = part_BHWC.to(device)
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
    """Samples -> training Batch, its images on the device of the decoded ones."""

    def __init__(self, source: Source, data: Data, decoded: DecodedImages) -> None:
        super().__init__(source, data, train=True)
        self.decoded = decoded
        self.cropper = None
        if decoded.image_NHWC.device.type != "cpu":
            self.cropper = Cropper(decoded.image_NHWC, data.size)

    def matches(self) -> bool:
        """Whether the device gives some crops as the CPU does."""
        if self.cropper is None:
            return True
        count = min(COMPARED, len(self.decoded.label_N))
        images = [rearrange(x, "h w c -> c h w") for x in self.decoded.image_NHWC[:count].cpu()]
        data = self.data
        key_B = np.arange(count)
        right = transforms.train_transform(images, key_B, data.size, data.crop_area, data.flip)
        return torch.equal(self._crops(key_B, key_B).cpu(), right)

    def _unmixed(self, wanted: Samples) -> Batch:
        decoded = self.decoded
        row_B = decoded.row_N[wanted.index]
        bad = [row for row in wanted.index.tolist() if row in decoded.unreadable]
        if (row_B < 0).any():
            self._refuse(int(wanted.index[row_B < 0][0]))
        return Batch(
            self._crops(row_B, wanted.key),
            label=torch.from_numpy(decoded.label_N[row_B]),
            index=torch.from_numpy(wanted.index),
            key=torch.from_numpy(wanted.key),
            unreadable=tuple(f"{self.source.name(row)}: {decoded.unreadable[row]}" for row in bad),
        )

    def _crops(self, row_B: np.ndarray, key_B: np.ndarray) -> Tensor:
        data = self.data
        image_NHWC = self.decoded.image_NHWC
        if self.cropper is None:
            # on a CPU ATen's kernel for bytes is faster than products of matrices
            image_N3HW = rearrange(image_NHWC, "n h w c -> n c h w")
            images = [image_N3HW[row] for row in row_B.tolist()]
            return transforms.train_transform(images, key_B, data.size, data.crop_area, data.flip)
        height_B = np.full(len(row_B), image_NHWC.shape[1])
        width_B = np.full(len(row_B), image_NHWC.shape[2])
        box_B4 = transforms.crop_boxes(key_B, height_B, width_B, data.crop_area)
        flip_B = transforms.random_flips(key_B, data.flip)
        return self.cropper(row_B, box_B4, flip_B)

    def _refuse(self, row: int) -> None:
        tries = min(REPLACEMENTS, len(self.source))
        last = (row + tries - 1) % len(self.source)
        raise UserError(
            f"data={self.data.name}: {tries} images in a row cannot be read, the last"
            f" {self.source.name(last)}: {self.decoded.unreadable[last]}"
        )


class Weights(NamedTuple):
    """Weights of antialiased bilinear resizing to S pixels, for each length up to L of what is
    resized, as whole numbers: those that ATen computes for bytes.

    Attributes:
        weight_LPSD: uint8 (L, 2, S, 2L): of length l + 1, each weight's upper and lower 8 bits,
            after L zeros and followed by zeros, so that a slice of it is a crop's weights at their
            places in the whole image.
        bits_L: int64, the bits of the weights' fraction.
    """

    weight_LPSD: Tensor
    bits_L: Tensor


def resize_weights(longest: int, size: int, device: torch.device) -> Weights:
    """Of every length from 1 to `longest`."""
    weight_LPSD = np.zeros((longest, 2, size, 2 * longest), np.uint8)
    bits_L = np.empty(longest, np.int64)
    for length in range(1, longest + 1):
        weight_SL, bits_L[length - 1] = integer_weights(length, size)
        place = slice(longest, longest + length)
        weight_LPSD[length - 1, 0, :, place] = weight_SL >> 8
        weight_LPSD[length - 1, 1, :, place] = weight_SL & 255
    return Weights(torch.from_numpy(weight_LPSD).to(device), torch.from_numpy(bits_L).to(device))


def integer_weights(length: int, size: int) -> tuple[np.ndarray, int]:
    """Weights (size, length) that resize a line of bytes, times 2^bits, and the bits: a triangle of
    the width of an output pixel, at least one input pixel (ATen's UpSampleKernel.cpp,
    `_compute_indices_min_size_weights_aa` and `_compute_index_ranges_int16_weights`)."""
    scale = length / size
    support = max(scale, 1.0)
    centre_S1 = scale * (np.arange(size)[:, None] + 0.5)
    first_S1 = np.maximum((centre_S1 - support + 0.5).astype(np.int64), 0)
    last_S1 = np.minimum((centre_S1 + support + 0.5).astype(np.int64), length)
    place_L = np.arange(length)
    weight_SL = np.maximum(1 - np.abs((place_L - centre_S1 + 0.5) / support), 0)
    weight_SL = np.where((place_L >= first_S1) & (place_L < last_S1), weight_SL, 0)
    weight_SL /= weight_SL.sum(1, keepdims=True)
    most = weight_SL.max()
    bits = 0
    while bits < MOST_BITS and int(0.5 + most * (1 << (bits + 1))) < WEIGHT_LIMIT:
        bits += 1
    return (0.5 + weight_SL * (1 << bits)).astype(np.int64), bits


class Cropper:
    """Cuts boxes from images of one size and brings them to S x S, as `train_transform`.

    Each direction is a product of a matrix of weights and the whole image, so that all crops of a
    batch are one product, whatever their boxes. Pixels and the upper and lower halves of weights
    are whole numbers of 8 bits, whose sums float32 (and the GPU's TF32) holds exactly.
    """

    def __init__(self, image_NHWC: Tensor, size: int) -> None:
        self.image_NHWC = image_NHWC
        self.size = size
        height, width = image_NHWC.shape[1:3]
        self.down = resize_weights(height, size, image_NHWC.device)
        self.across = resize_weights(width, size, image_NHWC.device)

    def __call__(self, row_B: np.ndarray, box_B4: np.ndarray, flip_B: np.ndarray) -> Tensor:
        """uint8 (B, C, S, S): boxes of top, left, height, width, flipped where 1."""
        device = self.image_NHWC.device
        chosen = torch.from_numpy(np.column_stack([row_B, box_B4, flip_B]))
        if device.type == "cuda":
            chosen = chosen.pin_memory()  # the host does not wait for the copy
        chosen_B6 = chosen.to(device, non_blocking=True)
        each = 2 * self.size * max(self.image_NHWC.shape[1:3])
        with torch.autocast(device.type, enabled=False):
            parts = [self._cut(part) for part in chosen_B6.split(max(1, AT_ONCE // each))]
        return torch.cat(parts)

    def _cut(self, chosen_B6: Tensor) -> Tensor:
        row_B, top_B, left_B, height_B, width_B, flip_B = chosen_B6.unbind(1)
        pixel_BHWC = self.image_NHWC[row_B].float()
        # ATen resizes across first, and rounds to bytes before it resizes down
        channels = pixel_BHWC.shape[-1]
        pixel_BXW = rearrange(pixel_BHWC, "b h w c -> b (h c) w")
        pixel_BXS = _resized(pixel_BXW, self.across, left_B, width_B, flip_B)
        pixel_BYH = rearrange(pixel_BXS, "b (h c) s -> b (c s) h", c=channels)
        pixel_BYS = _resized(pixel_BYH, self.down, top_B, height_B, torch.zeros_like(flip_B))
        return rearrange(pixel_BYS, "b (c s) t -> b c t s", c=channels).byte().contiguous()


def _resized(
    pixel_BXL: Tensor, weights: Weights, start_B: Tensor, length_B: Tensor, flip_B: Tensor
) -> Tensor:
    """The pixels start .. start + length - 1 of each line, brought to S and rounded to whole
    numbers; reversed where `flip_B` is 1."""
    longest, _, size, _ = weights.weight_LPSD.shape
    device = pixel_BXL.device
    place_S = torch.arange(size, device=device)
    flip_B1 = flip_B[:, None]
    place_BS = torch.where(flip_B1 == 1, size - 1 - place_S, place_S)
    half_P = torch.arange(2, device=device)
    line_BPS = ((length_B[:, None] - 1) * 2 + half_P)[:, :, None] * size + place_BS[:, None]
    offset_BL = longest - start_B[:, None] + torch.arange(longest, device=device)
    index_BPSL = line_BPS[..., None] * 2 * longest + offset_BL[:, None, None]
    weight_BPSL = weights.weight_LPSD.flatten()[index_BPSL].float()
    sums_BXQ = pixel_BXL @ rearrange(weight_BPSL, "b p s l -> b l (p s)")
    upper_BXS, lower_BXS = sums_BXQ.int().chunk(2, -1)
    bits_B11 = weights.bits_L[length_B - 1][:, None, None].int()
    half_B11 = torch.ones_like(bits_B11) << (bits_B11 - 1)
    rounded_BXS = (upper_BXS * 256 + lower_BXS + half_B11) >> bits_B11
    return rounded_BXS.clamp(0, 255).float()
