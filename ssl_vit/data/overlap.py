"""Images of one split that are also in another: the same pixels, or a perceptual hash that differs
in a few bits only.

Legend: N images of the training split, M of the test split.
"""

import hashlib
from typing import Any, NamedTuple

import numpy as np

from ..errors import UserError
from .base import Source
from .transforms import decode

DISTANCE = 4  # bits of 64 up to which two hashes count as near
ROWS = 256  # images decoded at a time
PAIRS = 2**26  # of hashes compared at a time: bounds memory


class Hashes(NamedTuple):
    """Of each image a digest of its pixels, its perceptual hash, and that of its mirror image;
    uint64. Unreadable images have the digest 0 and no hash: `readable` is false."""

    digest_N: np.ndarray
    hash_N: np.ndarray
    mirrored_N: np.ndarray
    readable_N: np.ndarray


class Match(NamedTuple):
    """A test image, the training image nearest to it, and by how many bits their hashes differ."""

    test: int
    train: int
    bits: int


class Overlap(NamedTuple):
    """Test images whose pixels are those of a training image, and those that are only near one."""

    exact: list[Match]
    near: list[Match]


def hash_images(source: Source) -> Hashes:
    """Hash every image of a split; the perceptual hash is imagehash's `phash` (64 bits of the
    discrete cosine transform of the image at 32 x 32 px in grey).

    Raises:
        UserError: imagehash is not installed.
    """
    try:
        import imagehash
    except ImportError:
        raise UserError(
            "near duplicates need imagehash; type pip install 'ssl_vit[overlap]'"
        ) from None
    from PIL import Image

    count = len(source)
    digest_N, hash_N, mirrored_N = np.zeros((3, count), np.uint64)
    found = Hashes(digest_N, hash_N, mirrored_N, np.zeros(count, bool))
    for start in range(0, count, ROWS):
        rows = np.arange(start, min(start + ROWS, count))
        images, _ = source.fetch(rows)
        for row, raw in zip(rows.tolist(), images, strict=True):
            try:
                pixels = np.ascontiguousarray(decode(raw).numpy().transpose(1, 2, 0))
            except ValueError:
                continue
            image = Image.fromarray(pixels)
            mirror = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            digest = hashlib.sha256(f"{pixels.shape}".encode() + pixels.tobytes()).digest()
            found.digest_N[row] = np.frombuffer(digest[:8], np.uint64)[0]
            found.hash_N[row] = _bits(imagehash.phash(image).hash)
            found.mirrored_N[row] = _bits(imagehash.phash(mirror).hash)
            found.readable_N[row] = True
    return found


def _bits(hashed: Any) -> np.uint64:
    return np.packbits(hashed.reshape(-1)).view(np.uint64)[0]


def compare(train: Hashes, test: Hashes, distance: int = DISTANCE) -> Overlap:
    """The test images that a training image is equal to, or near as it is or mirrored."""
    row_N = np.flatnonzero(train.readable_N)
    if not len(row_N):
        return Overlap([], [])
    hash_N = train.hash_N[row_N]
    digest_N = train.digest_N[row_N]
    # of equal ones the first
    first = dict(zip(digest_N[::-1].tolist(), row_N[::-1].tolist(), strict=True))
    exact: list[Match] = []
    near: list[Match] = []
    row_M = np.flatnonzero(test.readable_N)
    block = max(1, PAIRS // len(row_N))
    for start in range(0, len(row_M), block):
        rows = row_M[start : start + block]
        bits_MN = np.minimum(
            np.bitwise_count(test.hash_N[rows, None] ^ hash_N),
            np.bitwise_count(test.mirrored_N[rows, None] ^ hash_N),
        )
        nearest_M = bits_MN.argmin(1)
        for m, row in enumerate(rows.tolist()):
            same = first.get(int(test.digest_N[row]))
            bits = int(bits_MN[m, nearest_M[m]])
            if same is not None:
                exact.append(Match(row, same, 0))
            elif bits <= distance:
                near.append(Match(row, int(row_N[nearest_M[m]]), bits))
    return Overlap(exact, near)
