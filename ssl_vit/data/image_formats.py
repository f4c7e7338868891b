"""Formats of encoded images: the endings of their files and their pixels. A new one is a class and
an entry of FORMATS. No torch; JPEG and WebP are decoded faster by transforms.py.
"""

import io
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError, features

# What Pillow may decode. Its other loaders are for trusted files only: EPS starts Ghostscript, ICO
# and ICNS hold images in images, and some are hardly tested.
PILLOW = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "AVIF", "PPM")
NEEDS_AVIF = "AVIF, which this Pillow cannot decode; install 'pillow>=11.3'"
NEEDS_TIFFFILE = "a TIFF, whose channels tifffile reads; type pip install 'ssl_vit[tiff]'"
WHOLE = "expected whole numbers of 8 or 16 bits"
PNG = b"\x89PNG\r\n\x1a\n"
TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # of either byte order; the last two of BigTIFF
MOST_PIXELS = 64_000_000  # of an image that is decoded: 192 MB
# Tags of TIFF 6.0, and two values of the kind of colours
KIND_OF_IMAGE, BITS, COLOURS, ORIENTATION = 254, 258, 262, 274
WHITE_IS_ZERO, PALETTE = 0, 3
REDUCED_OR_MASK = 5  # bits of the kind of an image that shows the first again, or where it is valid


class TooLarge(ValueError):
    """An image has more than MOST_PIXELS."""


class Values(NamedTuple):
    """All channels of an image as they are.

    Attributes:
        array: (H, W), (H, W, C) or (C, H, W).
        channels_last: of three axes, whether they are (H, W, C); None where the file does not say.
    """

    array: np.ndarray
    channels_last: bool | None = None


class ImageFormat(ABC):
    """A kind of encoded images.

    Attributes:
        endings: of the names of its files.
        kind: "images", or "arrays", which are taken for images only where a folder has nothing
            else: they may be anything.
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
    def values(self, raw: bytes) -> Values:
        """All channels as they are, in the order of the file.

        Raises:
            ValueError, TooLarge: as `pixels`; or it holds more than can be read.
        """

    def bits_cut(self, raw: bytes) -> int:
        """Bits of a stored value, where `pixels` keeps the upper 8 of them alone; else 8."""
        return 8

    def images(self, raw: bytes) -> int:
        """How many images it holds where one is expected; `pixels` reads the first."""
        return 1


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

    def values(self, raw: bytes) -> Values:
        check_shape(self._header(raw)[0])
        return Values(self._array(raw))

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

    def values(self, raw: bytes) -> Values:
        image = ImageOps.exif_transpose(open_checked(raw))
        # the depth in a PNG's header, which Pillow reduces to 8 where there are several channels
        if self.bits_cut(raw) == 16 and len(image.getbands()) > 1:
            raise ValueError("a PNG of 16 bits and several channels; expected TIFF or .npy")
        if image.mode in ("P", "PA"):  # its transparency is dropped without a warning
            image = image.convert("RGBA").convert("RGB")
        return Values(np.array(image.convert("L") if image.mode == "1" else image), True)

    def bits_cut(self, raw: bytes) -> int:
        return 16 if raw.startswith(PNG) and raw[24] == 16 else 8


class Tiff(Pillow):
    """For `values`, of which Pillow reads few, read by tifffile: one image, its samples or pages
    the channels."""

    endings = ("tif", "tiff")

    def matches(self, raw: bytes) -> bool:
        return raw.startswith(TIFF)

    def pixels(self, raw: bytes) -> np.ndarray:
        try:
            image = open_checked(raw)
        except TooLarge:
            raise
        except ValueError as error:
            text = (
                "of other channels or bits than RGB of 8, data.channels= and data.range= say which"
            )
            raise ValueError(f"{error}; {text}") from None
        # which Pillow inverts of 8 bits alone
        white_is_zero = image.mode.startswith("I;16") and _tag(image, COLOURS) == WHITE_IS_ZERO
        pixels_HWC = from_pillow(image)
        return 255 - pixels_HWC if white_is_zero else pixels_HWC

    def values(self, raw: bytes) -> Values:
        try:
            import tifffile
        except ImportError:
            raise ValueError(NEEDS_TIFFFILE) from None
        with tifffile.TiffFile(io.BytesIO(raw)) as file:
            page = file.series[0].keyframe
            check_shape(file.series[0].shape)
            _check_series(file.series)
            if page.photometric == PALETTE or page.bitspersample < 8:
                return self._shown(raw)
            found = _placed(file.series[0])
        array = found.array
        if page.photometric == WHITE_IS_ZERO and array.dtype.kind == "u":
            array = array.dtype.type((1 << page.bitspersample) - 1) - array
        return _upright(found._replace(array=array), page.tags.valueof(ORIENTATION, 1))

    def _shown(self, raw: bytes) -> Values:
        """Colours of a palette and fewer bits than 8 as of a PNG: RGB, and grey from 0 to 255."""
        if (count := self.images(raw)) > 1:
            raise ValueError(f"a TIFF of {count} images of a palette or few bits; expected one")
        return super().values(raw)

    def bits_cut(self, raw: bytes) -> int:
        with open_image(raw) as image:
            bits = _tag(image, BITS)
        return max(8, *bits) if isinstance(bits, tuple) else max(8, bits or 1)

    def images(self, raw: bytes) -> int:
        found = number = 0
        with open_image(raw) as image, suppress(EOFError):
            while True:
                with suppress(SyntaxError):  # pixels that Pillow cannot read; the tags are there
                    image.seek(number)
                found += not (_tag(image, KIND_OF_IMAGE) or 0) & REDUCED_OR_MASK
                number += 1
        return found


def _tag(image: Image.Image, number: int) -> Any:
    """A tag of a TIFF that Pillow has opened; None where it lacks it."""
    return getattr(image, "tag_v2", {}).get(number)


def _check_series(series: Sequence[Any]) -> None:
    """Check that what tifffile found beside a file's first image are reduced copies and masks of
    it: nothing that is left out would be missed.

    Raises:
        ValueError: there are other images.
    """
    others = [one for one in series[1:] if not one.keyframe.subfiletype & REDUCED_OR_MASK]
    if others:
        shapes = " and ".join(str(one.shape) for one in (series[0], others[0]))
        text = f"a TIFF of {1 + len(others)} images, {shapes}"
        raise ValueError(f"{text}; expected one, its samples or pages the channels")


def _placed(series: Any) -> Values:
    """The array of tifffile's series, and where its axes say that the channels are: samples, or
    pages; not those of an array that tifffile cut into pages itself (axis Q), as it cuts one of
    (H, W, C)."""
    sides = [
        (axis, side)
        for axis, side in zip(series.axes, series.shape, strict=True)
        if side != 1 or axis in "YX"
    ]
    axes = "".join(axis for axis, _ in sides)
    last = None
    if len(axes) == 3 and "YX" in axes and "Q" not in axes:
        last = axes.startswith("YX")
    return Values(series.asarray().reshape([side for _, side in sides]), last)


def _upright(found: Values, orientation: int) -> Values:
    """The values turned and mirrored as the tag of a TIFF says; its pages, which it is about, are
    channels then."""
    if not 1 < orientation <= 8:
        return found
    last = bool(found.channels_last)
    down, across = (0, 1) if last else (-2, -1)
    array = found.array.swapaxes(down, across) if orientation > 4 else found.array
    mirrored = ((), (across,), (down, across), (down,))[(orientation - 1) % 4]
    return Values(np.ascontiguousarray(np.flip(array, mirrored)), last)


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
        ValueError: its pixels are floating-point numbers, or whole ones of more than 16 bits.
    """
    bits = _tag(image, BITS)
    may_be_bytes = image.format != "PPM"  # which Pillow brings to 16 bits, dark ones too
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):  # 16 bits; 32 may hold 8 or 16, 16 that Pillow unpacked 12
        grey = np.asarray(image)
        if grey.size and not 0 <= grey.min() <= grey.max() < 2**16:
            text = f"pixels from {grey.min()} to {grey.max()}"
            raise ValueError(f"{text}; {WHOLE}")
        if not (image.mode == "I" and may_be_bytes and grey.max() < 2**8):
            grey = grey >> (4 if bits == (12,) else 8)
        return np.repeat(grey.astype(np.uint8)[..., None], 3, 2)
    if image.mode == "F":
        raise ValueError(f"pixels of floating point, whose range is not known; {WHOLE}")
    if image.mode == "P":  # its transparency, if any, is dropped without a warning
        image = image.convert("RGBA")
    return np.array(image.convert("RGB"))
