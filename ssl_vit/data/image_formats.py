"""Formats of encoded images: the endings of their files and their pixels. A new one is a class and
an entry of FORMATS. No torch; JPEG and WebP are decoded faster by transforms.py.
"""

import io
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError, features

# What Pillow may decode. Its other loaders are for trusted files only: EPS starts Ghostscript, ICO
# and ICNS hold images in images, and some are hardly tested.
PILLOW = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "AVIF", "PPM")
NEEDS_AVIF = "AVIF, which this Pillow cannot decode; install 'pillow>=11.3'"
NEEDS_TIFFFILE = "a TIFF, whose channels tifffile reads; type pip install 'ssl_vit[tiff]'"
PNG = b"\x89PNG\r\n\x1a\n"
TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # of either byte order; the last two of BigTIFF
MOST_PIXELS = 64_000_000  # of an image that is decoded: 192 MB


class TooLarge(ValueError):
    """An image has more than MOST_PIXELS."""


class ImageFormat(ABC):
    """A kind of encoded images.

    Attributes:
        endings: of the names of its files.
        kind: "images", or "arrays", which are taken for images only where a folder has nothing
            else: they may be anything, and shards are to be read by other programs.
    """

    endings: tuple[str, ...]
    kind = "images"

    @abstractmethod
    def matches(self, raw: bytes) -> bool:
        """Whether encoded bytes are of this kind."""

    @abstractmethod
    def pixels(self, raw: bytes) -> np.ndarray:
        """RGB bytes, uint8 (H, W, 3).

        Raises:
            ValueError: they are not whole, or hold something else.
            TooLarge: as `check_pixels`.
        """

    @abstractmethod
    def values(self, raw: bytes) -> np.ndarray:
        """All channels as they are, in the order of the file: (H, W), (H, W, C) or (C, H, W).

        Raises:
            ValueError, TooLarge: as `pixels`; or it holds more than can be read.
        """


class NumpyArray(ImageFormat):
    """An array that NumPy saved: uint8 (H, W, 3), or (H, W) of grey values; for `values` of any
    channels and integers."""

    endings = ("npy",)
    kind = "arrays"

    def matches(self, raw: bytes) -> bool:
        return raw.startswith(np.lib.format.MAGIC_PREFIX)

    def pixels(self, raw: bytes) -> np.ndarray:
        shape, kind = self._header(raw)
        grey = len(shape) == 2
        if kind != np.uint8 or not (grey or (len(shape) == 3 and shape[2] == 3)):
            text = f"an array of {kind} {shape}; expected uint8 (H, W, 3) or (H, W)"
            raise ValueError(f"{text}, or data.channels= or data.range= for what it holds")
        check_pixels(shape[1], shape[0])
        array = self._array(raw)
        return np.ascontiguousarray(np.repeat(array[..., None], 3, 2) if grey else array)

    def values(self, raw: bytes) -> np.ndarray:
        check_shape(self._header(raw)[0])
        return self._array(raw)

    @staticmethod
    def _header(raw: bytes) -> tuple[tuple[int, ...], np.dtype]:
        file = io.BytesIO(raw)
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0
        shape, _, kind = (read if version == (1, 0) else np.lib.format.read_array_header_2_0)(file)
        return shape, kind

    @staticmethod
    def _array(raw: bytes) -> np.ndarray:
        array = np.load(io.BytesIO(raw), allow_pickle=False)
        if not array.size:
            raise ValueError(f"an array {array.shape} without pixels")
        return array


class Pillow(ImageFormat):
    """What Pillow opens."""

    endings: tuple[str, ...] = (
        *("jpg", "jpeg", "jpe", "jfif", "png", "apng", "webp", "gif", "bmp", "dib"),
        *("avif", "ppm", "pgm", "pbm", "pnm"),
    )

    def matches(self, raw: bytes) -> bool:
        return True

    def pixels(self, raw: bytes) -> np.ndarray:
        return from_pillow(open_checked(raw))

    def values(self, raw: bytes) -> np.ndarray:
        image = ImageOps.exif_transpose(open_checked(raw))
        # the depth in a PNG's header, which Pillow reduces to 8 where there are several channels
        if raw.startswith(PNG) and raw[24] == 16 and len(image.getbands()) > 1:
            raise ValueError("a PNG of 16 bits and several channels; expected TIFF or .npy")
        plain = {"P": "RGB", "1": "L"}.get(image.mode, image.mode)
        return np.array(image.convert(plain))


class Tiff(Pillow):
    """For `values`, of which Pillow reads few, read by tifffile: the first image of a file, its
    samples or pages the channels."""

    endings = ("tif", "tiff")

    def matches(self, raw: bytes) -> bool:
        return raw.startswith(TIFF)

    def pixels(self, raw: bytes) -> np.ndarray:
        try:
            return super().pixels(raw)
        except TooLarge:
            raise
        except ValueError as error:
            text = (
                "of other channels or bits than RGB of 8, data.channels= and data.range= say which"
            )
            raise ValueError(f"{error}; {text}") from None

    def values(self, raw: bytes) -> np.ndarray:
        try:
            import tifffile
        except ImportError:
            raise ValueError(NEEDS_TIFFFILE) from None
        with tifffile.TiffFile(io.BytesIO(raw)) as file:
            series = file.series[0]
            check_shape(series.shape)
            return series.asarray().squeeze()


FORMATS: tuple[ImageFormat, ...] = (NumpyArray(), Tiff(), Pillow())  # the first that matches
KINDS = {ending: one.kind for one in FORMATS for ending in one.endings}
IMAGES = tuple(ending for ending, kind in KINDS.items() if kind == "images")


def format_of(raw: bytes) -> ImageFormat:
    """The format of encoded bytes; Pillow names those that are of none."""
    return next(one for one in FORMATS if one.matches(raw))


def check_pixels(width: int, height: int) -> None:
    """
    Raises:
        TooLarge: that are more than MOST_PIXELS.
    """
    if width * height > MOST_PIXELS:
        limit = f"more than {MOST_PIXELS // 10**6} million"
        raise TooLarge(f"its header tells of {width} x {height} pixels, {limit}")


def check_shape(shape: Sequence[int]) -> None:
    """
    Raises:
        TooLarge: an array of that shape has more values than MOST_PIXELS of RGB.
    """
    most = 3 * MOST_PIXELS
    if math.prod(shape) > most:
        limit = f"of more than {most // 10**6} million values"
        raise TooLarge(f"its header tells of an array {tuple(shape)}, {limit}")


def open_checked(raw: bytes) -> Image.Image:
    """By Pillow, from its header; nothing is decoded.

    Raises:
        ValueError: as `open_image`, or it has too many pixels.
    """
    with warnings.catch_warnings(action="ignore", category=Image.DecompressionBombWarning):
        image = open_image(raw)
    check_pixels(*image.size)
    return image


@cache
def _names() -> tuple[str, ...]:
    """Those of PILLOW that this Pillow has."""
    Image.init()
    there = [name for name in PILLOW if name in Image.OPEN]
    if "AVIF" in there and not features.check("avif"):
        there.remove("AVIF")
    return tuple(there)


def open_image(raw: bytes) -> Image.Image:
    """By Pillow, one of PILLOW.

    Raises:
        ValueError: it is of another format, or of one that this Pillow lacks.
    """
    if raw[4:12] in (b"ftypavif", b"ftypavis") and "AVIF" not in _names():
        raise ValueError(NEEDS_AVIF)
    try:
        return Image.open(io.BytesIO(raw), formats=_names())
    except UnidentifiedImageError:
        raise ValueError(f"damaged, or none of {', '.join(_names())}") from None


def from_pillow(image: Image.Image) -> np.ndarray:
    """RGB bytes (H, W, 3): rotated as its EXIF says, 16 bits reduced to 8.

    Raises:
        ValueError: its pixels are floating-point numbers.
    """
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):  # 16 bits; 32 may hold 8 or 16
        grey = np.asarray(image).clip(0, 65535)
        grey = grey if image.mode == "I" and grey.max() < 256 else grey >> 8
        return np.repeat(grey.astype(np.uint8)[..., None], 3, 2)
    if image.mode == "F":
        raise ValueError("pixels of floating point, whose range is not known")
    if image.mode == "P":  # its transparency, if any, is dropped without a warning
        image = image.convert("RGBA")
    return np.array(image.convert("RGB"))
