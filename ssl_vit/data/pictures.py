"""What becomes of one picture: bytes -> uint8 tensor, cropped, resized and flipped by numbers from the sample's key.

Legend: B pictures, H W their height and width, S the side asked for.
"""

import io
import math
from typing import Any

import numpy as np
import torch
from einops import rearrange
from PIL import Image, ImageOps
from torch import Tensor
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms.v2 import functional as F

from .. import counted

RATIO = (3 / 4, 4 / 3)  # width over height of a training crop, as Inception's
TRIES = 10


def decode(raw: bytes | np.ndarray) -> Tensor:
    """A picture as RGB bytes (3, H, W), from any format that torchvision or else Pillow reads.

    Raises:
        ValueError: neither can.
    """
    if isinstance(raw, np.ndarray):
        return rearrange(torch.from_numpy(raw), "h w c -> c h w")
    try:
        data = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
        image = decode_image(data, ImageReadMode.RGB, apply_exif_orientation=True)
        if image.dtype == torch.uint8 and image.ndim == 3:
            return image
    except RuntimeError:
        pass  # BMP, TIFF, ...: Pillow's turn
    try:
        pixels = ImageOps.exif_transpose(Image.open(io.BytesIO(raw))).convert("RGB")
    except (OSError, SyntaxError) as error:
        raise ValueError(f"not a picture: {error}") from None
    return rearrange(torch.from_numpy(np.array(pixels)), "h w c -> c h w")


def crop_boxes(key_B: np.ndarray, height_B: np.ndarray, width_B: np.ndarray, area: float) -> np.ndarray:
    """Inception crops (Szegedy et al., 2015): int64 (B, 4) of top, left, height, width.

    A share U(area, 1) of the picture at a log-uniform aspect ratio in RATIO; the first of ten tries that fits, else the
    largest centred box within RATIO.
    """
    key_B1 = counted.stream(key_B, "crop")[:, None]
    slot_T = 2 * np.arange(TRIES)
    pixels_BT = (height_B * width_B)[:, None] * (area + (1 - area) * counted.uniform(key_B1, slot_T))
    low, high = map(math.log, RATIO)
    ratio_BT = np.exp(low + (high - low) * counted.uniform(key_B1, slot_T + 1))
    w_BT = np.rint(np.sqrt(pixels_BT * ratio_BT)).astype(np.int64)
    h_BT = np.rint(np.sqrt(pixels_BT / ratio_BT)).astype(np.int64)
    fits_BT = (w_BT > 0) & (w_BT <= width_B[:, None]) & (h_BT > 0) & (h_BT <= height_B[:, None])
    first_B, row_B = fits_BT.argmax(1), np.arange(len(key_B))
    none_B = ~fits_BT.any(1)
    centre_w = np.minimum(width_B, np.rint(height_B * RATIO[1])).astype(np.int64)
    centre_h = np.minimum(height_B, np.rint(width_B / RATIO[0])).astype(np.int64)
    w_B = np.where(none_B, centre_w, w_BT[row_B, first_B])
    h_B = np.where(none_B, centre_h, h_BT[row_B, first_B])
    spare_h, spare_w = height_B - h_B, width_B - w_B
    top_B = np.where(none_B, spare_h // 2, counted.integers(key_B1[:, 0], 2 * TRIES, spare_h + 1))
    left_B = np.where(none_B, spare_w // 2, counted.integers(key_B1[:, 0], 2 * TRIES + 1, spare_w + 1))
    return np.stack([top_B, left_B, h_B, w_B], 1)


def training(images: list[Tensor], key_B: np.ndarray, size: int, area: float, flip: bool) -> Tensor:
    """Training pictures uint8 (B, 3, S, S): a random crop brought to S x S, flipped in half of the cases (paper.md, B.1.2)."""
    heights, widths = (np.array([image.shape[axis] for image in images]) for axis in (1, 2))
    boxes = crop_boxes(key_B, heights, widths, area)
    flips = counted.integers(counted.stream(key_B, "flip"), 0, 2) if flip else np.zeros(len(images), int)
    out = torch.empty(len(images), 3, size, size, dtype=torch.uint8)
    for i, (image, box) in enumerate(zip(images, boxes.tolist(), strict=True)):
        cut = F.resized_crop(image, *box, [size, size], antialias=True)
        out[i] = cut.flip(-1) if flips[i] else cut
    return out


def evaluation(images: list[Tensor], size: int, crop: float) -> Tensor:
    """Evaluation pictures uint8 (B, 3, S, S): shorter side brought to S / crop, then the centre S x S."""
    short = round(size / crop)
    return torch.stack([F.center_crop(_short_side(image, short), [size, size]) for image in images])


def _short_side(image: Tensor, short: int) -> Tensor:
    resize: Any = F.resize
    return image if min(image.shape[1:]) == short else resize(image, [short], antialias=True)
