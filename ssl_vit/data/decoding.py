"""Decode images to integers: RGB of 8 bits, or all channels as stored.

torchvision decodes where it is fast and safe, tifffile decodes TIFF files with more channels, and
Pillow decodes everything else. Pillow also reads the size and the orientation of every image. A
transparent image becomes the RGB image that a viewer shows on a white page.

Legend: C channels, H W height and width.
"""

import io
import math
import re
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from einops import rearrange
from PIL import Image, UnidentifiedImageError
from torch import Tensor
from torchvision.io import ImageReadMode, decode_image

from .layout import FORMATS
from .source import Missing

Read = TypeVar("Read")

JPEG = b"\xff\xd8\xff"
PNG = b"\x89PNG\r\n\x1a\n"
NPY = np.lib.format.MAGIC_PREFIX
TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # both byte orders; the last two are BigTIFF
PORTABLE = (b"P2", b"P3", b"P5", b"P6")  # portable grey values and colors, as texts and as bytes
# Box of an AVIF (AV1-ISOBMFF 2.3), and flags in the third byte: more than 8 bits, and 12 bits
AV1_SETTINGS, AV1_HIGH_DEPTH, AV1_12_BITS = b"av1C", 1 << 6, 1 << 5
WEBP_ALPHA = 1 << 4  # bit of the fourth byte after the signature of a lossless WebP
MOST_PIXELS = 64_000_000  # of a decoded image, which takes 192 MB as RGB
MOST_VALUE = 2**16 - 1  # of a pixel
# Tags of TIFF 6.0 and EXIF, and values of the tag PHOTOMETRIC
NEW_SUBFILE_TYPE, BITS_PER_SAMPLE, PHOTOMETRIC, ORIENTATION = 254, 258, 262, 274
WHITE_IS_ZERO, PALETTE = 0, 3
REDUCED_OR_MASK = 5  # bits of NEW_SUBFILE_TYPE: a smaller copy of the first image, or its mask
NEEDS_TIFFFILE = "this TIFF needs the package tifffile. Type pip install -e '.[tiff]' in the clone"


class TooLarge(ValueError):
    """An image has more than MOST_PIXELS."""


class StoredValues(NamedTuple):
    """Values of an image as stored in the file.

    Attributes:
        array: (H, W), (H, W, C) or (C, H, W).
        channels_last: Whether an array with three axes is (H, W, C); None if the file does not
            tell.
    """

    array: np.ndarray
    channels_last: bool | None = None


def decode(raw: bytes | np.ndarray) -> Tensor:
    """Decode an image to RGB bytes, uint8 (3, H, W).

    The image is rotated by the EXIF orientation. Only the first of several frames is read, 16 bits
    are reduced to 8, and transparent pixels are composed over white.

    Args:
        raw: Encoded bytes, or an array uint8 (H, W, 3).

    Raises:
        ValueError: The image cannot be decoded, is cut off, or has more than MOST_PIXELS.
    """
    if isinstance(raw, np.ndarray):
        if raw.dtype != np.uint8 or raw.ndim != 3 or raw.shape[2] != 3:
            raise ValueError(
                f"the array has type {raw.dtype} and shape {raw.shape}. Use uint8 (H, W, 3), or set"
                " data.channels= or data.range="
            )
        return rearrange(torch.from_numpy(raw), "h w c -> c h w")
    return call_decoder(_rgb, raw)


def decode_stored_values(raw: bytes | np.ndarray, channels: int) -> np.ndarray:
    """Decode an image to the stored values, (C, H, W) of uint8 or uint16.

    Args:
        raw: Encoded bytes, or an array (H, W, C), (C, H, W) or, for one channel, (H, W).
        channels: The number of channels C.

    Raises:
        ValueError: The image cannot be decoded, has another number of channels, has values that are
            not whole numbers from 0 to 65535, or could be both (H, W, C) and (C, H, W).
    """
    if isinstance(raw, np.ndarray):
        values = StoredValues(raw)
    else:
        values = call_decoder(_read_stored_values, raw)
    array = _channels_first(values, channels)
    if array.dtype.kind not in "ui":
        raise ValueError(f"the pixels have type {array.dtype}. Use whole numbers of 8 or 16 bits")
    if array.dtype == np.uint8:
        return array
    _check_16_bits(array)
    return array.astype(np.uint16, copy=False)


def call_decoder(read: Callable[[bytes], Read], raw: bytes) -> Read:
    """Return `read(raw)`, and turn any error into a ValueError with a reason.

    Args:
        read: A function that reads or decodes an encoded image.
        raw: Encoded bytes, or Missing.

    Raises:
        ValueError: The image is missing, or `read` failed. The message is one line with the reason.
    """
    if isinstance(raw, Missing):
        raise ValueError(raw.reason)
    try:
        return read(raw)
    except TooLarge:
        raise
    except Exception as error:  # a file written by others may cause any error in a decoder
        line = " ".join(str(error).split())
        # Remove what does not help the user: the object from "cannot identify image file
        # <_io.BytesIO object at 0x7f52>", and the position in torchvision's source from
        # "/src/decode_jpeg.cpp:23, not a JPEG"
        message = re.sub(r" *<_io.*?>|\S*\.cpp:\d+[^,]*, *", "", line)
        raise ValueError(f"cannot decode the image: {message[:200]}") from None


def stored_bits(raw: bytes) -> int:
    """Return how many bits a stored value of an encoded image has, at least 8.

    More than 8 bits are reduced to 8 by `decode`.

    Args:
        raw: The encoded image.
    """
    if raw.startswith(PNG):
        return max(8, raw[24])  # the bit depth is byte 24 of every PNG
    if raw.startswith(TIFF):
        with open_image(raw) as image:
            bits = _tag(image, BITS_PER_SAMPLE)
        if isinstance(bits, tuple):  # of each channel
            return max(8, *bits)
        return 8 if bits is None else max(8, bits)
    if raw.startswith(PORTABLE):
        packing = _packing(open_image(raw))
        if packing == "I;16B":  # Pillow's name for grey values up to 65535
            return 16
        # `packing` is a tuple (name of Pillow's mode, highest value), or for values up to 255 only
        # the name of the mode
        highest = packing[1] if isinstance(packing, tuple) else 0
        return max(8, int(highest).bit_length())
    if raw[4:8] == b"ftyp":  # AVIF
        settings_start = raw.find(AV1_SETTINGS)
        if settings_start > 0:
            # AV1_SETTINGS, the name of a box, has four bytes. The third byte after it holds flags
            flags = raw[settings_start + 6]
            if flags & AV1_HIGH_DEPTH:
                return 12 if flags & AV1_12_BITS else 10
    return 8


def count_images(raw: bytes) -> int:
    """Return the number of images in a TIFF, or 1 for a file of another format.

    Pages that are flagged as a smaller copy (thumbnail) or as a mask of another page are not
    counted. `decode` reads only the first image.

    Args:
        raw: The encoded image.
    """
    if not raw.startswith(TIFF):
        return 1
    num_images = 0
    page = 0
    with open_image(raw) as image, suppress(EOFError):  # `seek` fails after the last page
        while True:
            # Pillow reads the tags before it refuses pixels that it cannot decode
            with suppress(SyntaxError):
                image.seek(page)
            flags = _tag(image, NEW_SUBFILE_TYPE)
            if flags is None or not flags & REDUCED_OR_MASK:
                num_images += 1
            page += 1
    return num_images


def open_image(raw: bytes) -> Image.Image:
    """Open an image with Pillow from the header, without decoding pixels.

    Args:
        raw: The encoded image.

    Raises:
        ValueError: The format is not in FORMATS.
        TooLarge: The image has more than MOST_PIXELS.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # about many pixels and damaged EXIF
            image = Image.open(io.BytesIO(raw), formats=[*FORMATS])
    except UnidentifiedImageError:
        formats = ", ".join(FORMATS)
        if raw.startswith(TIFF):
            raise ValueError(
                f"the file is damaged, or in none of the formats {formats}. If the image is not RGB"
                " with 8 bits, set data.channels= or data.range="
            ) from None
        raise ValueError(f"the file is damaged, or in none of the formats {formats}") from None
    _check_pixels(*image.size)
    return image


def from_pillow(image: Image.Image) -> np.ndarray:
    """Return an image of Pillow as RGB bytes (H, W, 3).

    The image is rotated by the EXIF orientation, 16 bits are reduced to 8, and transparent pixels
    are composed over white.

    Args:
        image: An image that Pillow has opened.

    Raises:
        ValueError: The pixels have 32 bits, or are below 0.
    """
    return _upright(_compose_over_white(*_color_and_alpha(image)), _orientation(image))


def is_transparent(raw: bytes) -> bool:
    """Return whether `decode` composes any pixel of an encoded image over white.

    Args:
        raw: The encoded image.

    Raises:
        ValueError: The image cannot be read.
    """
    if raw.startswith((JPEG, NPY)):
        return False
    image = open_image(raw)
    return image.has_transparency_data and _color_and_alpha(image)[1] is not None


def upright(image: Image.Image) -> np.ndarray:
    """Return one channel (H, W) or several channels (H, W, C), turned by the EXIF orientation."""
    image.load()
    return _upright(np.array(image), _orientation(image))


def _compose_over_white(color_HW3: np.ndarray, alpha_HW: np.ndarray | None) -> np.ndarray:
    """Return the colors on a white background, uint8 (H, W, 3).

    With alpha from 0 to 1, this is round(alpha * color + (1 - alpha) * 255).

    Args:
        color_HW3: The colors, uint8, not multiplied by alpha.
        alpha_HW: Alpha, uint8, 255 for an opaque pixel; None for an image without transparency.
    """
    if alpha_HW is None:
        return color_HW3
    alpha_HW1 = alpha_HW[..., None].astype(np.uint16)
    # at most 255 * 255 + 127, which fits into 16 bits. Adding 127 before the division by 255
    # rounds to the nearest number; no sum lies halfway, because 255 is odd
    sum_HW3 = alpha_HW1 * color_HW3 + (255 - alpha_HW1) * 255
    return ((sum_HW3 + 127) // 255).astype(np.uint8)


def _color_and_alpha(image: Image.Image) -> tuple[np.ndarray, np.ndarray | None]:
    """Load an image and separate colors and alpha.

    Args:
        image: An image that Pillow has opened.

    Returns:
        The colors, uint8 (H, W, 3), and alpha, uint8 (H, W), or None where every pixel is opaque.

    Raises:
        ValueError: As `from_pillow`.
    """
    _scale_transparent_color(image)
    image.load()  # Pillow rotates a TIFF here, and changes its tags, which are read below
    if image.mode == "F" or image.mode.startswith("I"):
        color_HW3, alpha_HW = _grey_of_16_bits(image)
    elif image.has_transparency_data:
        if image.mode == "La":  # Pillow can convert grey multiplied by alpha only to LA
            rgba = image.convert("LA").convert("RGBA")
        else:
            rgba = image.convert("RGBA")
        color_HW3 = np.array(rgba.convert("RGB"))
        alpha_HW = np.array(rgba.getchannel("A"))
    else:
        return np.array(image.convert("RGB")), None
    if alpha_HW is None or _is_opaque(alpha_HW, image.format):
        return color_HW3, None
    return color_HW3, alpha_HW


def _is_opaque(alpha_HW: np.ndarray, image_format: str | None) -> bool:
    """Return whether every pixel is opaque (alpha 255).

    A BMP whose alpha is 0 everywhere counts as opaque too, as in browsers (Chromium's
    BMPImageReader): it was written by a program that does not know alpha.

    Args:
        alpha_HW: Alpha, uint8.
        image_format: Pillow's name of the file format.
    """
    if image_format in ("BMP", "DIB") and not alpha_HW.any():
        return True
    return bool(alpha_HW.min() == 255)


def _grey_of_16_bits(image: Image.Image) -> tuple[np.ndarray, np.ndarray | None]:
    """Load an image with one channel of more than 8 bits as RGB of 8 bits.

    Args:
        image: An image that Pillow has opened and loaded.

    Returns:
        The grey values as colors, uint8 (H, W, 3), and alpha, uint8 (H, W), or None without a
        transparent grey value.

    Raises:
        ValueError: The pixels have 32 bits, or are below 0.
    """
    # Pillow's mode I means 32 bits, but Pillow uses it for PPM and PNG files of 16 bits too
    has_16_bits = image.format in ("PPM", "PNG") or _tag(image, BITS_PER_SAMPLE) == (16,)
    if image.mode == "F" or (image.mode == "I" and not has_16_bits):
        raise ValueError(
            "the range of pixels of 32 bits is unknown. Use whole numbers of 8 or 16 bits"
        )
    value_HW = np.asarray(image)
    _check_16_bits(value_HW)
    # keep the upper 8 of 12 or 16 bits; Pillow unpacks 12 bits without scaling
    shift = 4 if _tag(image, BITS_PER_SAMPLE) == (12,) else 8
    grey_HW = value_HW >> shift
    # Invert a TIFF that stores white as 0, as Pillow does for 8 bits only. In a TIFF, mode I means
    # signed values, which are kept
    if image.mode != "I" and _tag(image, PHOTOMETRIC) == WHITE_IS_ZERO:
        grey_HW = 255 - grey_HW
    color_HW3 = np.repeat(grey_HW.astype(np.uint8)[..., None], 3, 2)
    transparent = image.info.get("transparency")  # the value of transparent pixels
    if transparent is None:
        return color_HW3, None
    return color_HW3, 255 * (value_HW != transparent).astype(np.uint8)


def _scale_transparent_color(image: Image.Image) -> None:
    """Scale the transparent color of a PNG to 8 bits, like the pixels.

    Pillow converts the pixels to 8 bits, but not the transparent color that it compares with them.

    Args:
        image: An image that Pillow has opened and not loaded. Its `info` is changed.
    """
    color = image.info.get("transparency")
    if color is None or image.format != "PNG":
        return
    # such as "L" for grey of 8 bits, "L;4" for grey of 4 bits, "RGB;16B" for RGB of 16 bits
    kind, _, depth = str(_packing(image)).partition(";")
    if kind == "L" and depth and isinstance(color, int):
        image.info["transparency"] = color * 255 // (2 ** int(depth) - 1)
    elif kind == "RGB" and depth and isinstance(color, tuple):
        image.info["transparency"] = tuple(value >> 8 for value in color)


def _packing(image: Image.Image) -> Any:
    """Return how a file stores pixels, as Pillow names it, such as "L;4" for grey of 4 bits.

    For PPM files, this is a tuple of the name and the highest value. After the pixels were loaded,
    it is "".

    Args:
        image: An image that Pillow has opened.
    """
    tiles = getattr(image, "tile", None)
    return tiles[0].args if tiles else ""


def _rgb(raw: bytes) -> Tensor:
    """Decode an encoded image to RGB bytes, uint8 (3, H, W), with the fastest safe decoder."""
    # The calls of `decode` below do not recurse: `decode` calls this function only for bytes, and
    # here it gets an array, which it only checks
    if raw.startswith(NPY):
        return decode(_rgb_array(raw))
    # torchvision decodes JPEG and simple WebP up to 6 times as fast as Pillow. It is not used for
    # other formats: a damaged PNG can end the process there, and 16 bits and alpha are ignored
    if not raw.startswith(JPEG) and not _is_simple_webp(raw):
        return decode(from_pillow(open_image(raw)))
    orientation = _orientation(open_image(raw))
    pixels = decode_image(torch.frombuffer(bytearray(raw), dtype=torch.uint8), ImageReadMode.RGB)
    if orientation == 1:
        return pixels
    # torch turns pixels in a quarter of the time that `_upright` takes
    turned = pixels.swapaxes(1, 2) if orientation > 4 else pixels
    return turned.flip(_mirrored(orientation, 1, 2))


def _is_simple_webp(raw: bytes) -> bool:
    """Return whether bytes are a WebP of one image, without EXIF, animation and alpha.

    A file without an extended header has one image without EXIF and animation. It has no alpha
    unless it is lossless and a bit of its header says so (RFC 9649, 2.5, 2.6 and 3.4).
    """
    kind = raw[8:16]
    if raw[:4] != b"RIFF" or kind not in (b"WEBPVP8 ", b"WEBPVP8L"):
        return False
    is_lossless = kind == b"WEBPVP8L"
    return not (is_lossless and int.from_bytes(raw[24:25]) & WEBP_ALPHA)


def _rgb_array(raw: bytes) -> np.ndarray:
    """Return a saved NumPy array of RGB or of grey values as (H, W, 3)."""
    array = _saved_array(raw)
    if array.ndim == 2:
        _check_pixels(*array.shape[::-1])
        array = np.repeat(array[..., None], 3, 2)
    return np.ascontiguousarray(array)


def _saved_array(raw: bytes) -> np.ndarray:
    file = io.BytesIO(raw)
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_2_0
    if version == (1, 0):
        read_header = np.lib.format.read_array_header_1_0
    shape, *_ = read_header(file)
    _check_shape(shape)  # before memory is taken for the values
    array = np.load(io.BytesIO(raw), allow_pickle=False)
    if not array.size:
        raise ValueError(f"the array is empty: its shape is {array.shape}")
    return array


def _read_stored_values(raw: bytes) -> StoredValues:
    """Read the stored values of all channels, in the order of the file.

    Args:
        raw: The encoded image.

    Raises:
        ValueError: The image cannot be read without loss: for example, the file has several images,
            or is a PNG of 16 bits and several channels, which Pillow reads with 8 bits.
        TooLarge: The image has more than MOST_PIXELS.
    """
    if raw.startswith(NPY):
        return StoredValues(_saved_array(raw))
    if raw.startswith(TIFF):
        return _values_of_tiff(raw)
    return _values_of_pillow(raw)


def _values_of_pillow(raw: bytes) -> StoredValues:
    image = open_image(raw)
    # the depth in a PNG's header, which Pillow reduces to 8 where there are several channels
    if raw.startswith(PNG) and stored_bits(raw) == 16 and len(image.getbands()) > 1:
        raise ValueError(
            "this is a PNG of 16 bits and several channels. Save the image as TIFF or .npy"
        )
    if image.mode in ("P", "PA"):  # a palette: the file stores no channels of color
        return StoredValues(from_pillow(image), True)
    image.load()
    array = np.array(image.convert("L") if image.mode == "1" else image)
    return StoredValues(_upright(array, _orientation(image)), True)


def _values_of_tiff(raw: bytes) -> StoredValues:
    """Read the stored values of a TIFF that holds a single image.

    The channels of the image are its samples (the several values of a pixel) or its pages. tifffile
    reads the image as a series, its word for pages of the same shape that form one array.

    Pillow reads a TIFF with a palette as RGB, and a TIFF with fewer than 8 bits per value as grey
    from 0 to 255, as it reads such a PNG.

    Args:
        raw: The encoded image.
    """
    try:
        import tifffile
    except ImportError:
        raise ValueError(NEEDS_TIFFFILE) from None
    with tifffile.TiffFile(io.BytesIO(raw)) as file:
        series = file.series[0]
        page = series.keyframe  # the first page, whose tags hold for all
        _check_shape(series.shape)
        _check_series(file.series)
        if page.photometric == PALETTE or page.bitspersample < 8:
            if len(series.pages) > 1:
                raise ValueError(
                    f"this is a TIFF of {len(series.pages)} images with a palette or fewer than 8"
                    " bits. Use a file of a single image"
                )
            return _values_of_pillow(raw)
        array, channels_last = _read_series(series)
    if page.photometric == WHITE_IS_ZERO and array.dtype.kind == "u":
        # invert the values, because this TIFF stores white as 0
        array = array.dtype.type((1 << page.bitspersample) - 1) - array
    orientation = page.tags.valueof(ORIENTATION, 1)  # the same for all pages, which are channels
    if channels_last:  # (H, W, C)
        upright_array = _upright(array, orientation, down=0, across=1)
    else:  # (C, H, W) or (H, W)
        upright_array = _upright(array, orientation, down=-2, across=-1)
    return StoredValues(upright_array, channels_last)


def _check_series(series: Sequence[Any]) -> None:
    """Check that no image would be lost by reading only the first image of a TIFF.

    Smaller copies and masks of the first image may be left out.

    Args:
        series: The images of a TIFF, from tifffile, which may have several pages each.

    Raises:
        ValueError: There are other images.
    """
    further_images = [
        image for image in series[1:] if not image.keyframe.subfiletype & REDUCED_OR_MASK
    ]
    if further_images:
        raise ValueError(
            f"this is a TIFF of {1 + len(further_images)} images of the shapes {series[0].shape}"
            f" and {further_images[0].shape}. Use a file of a single image, with one channel per"
            " page or several values per pixel"
        )


def _read_series(series: Any) -> StoredValues:
    """Read the array of a tifffile series without axes of length 1, and find the channels' axis.

    tifffile names each axis by a letter: Y for rows, X for columns, and other letters for channels,
    which are samples (YXS) or pages (CYX). An axis Q has an unknown meaning. For example, tifffile
    writes an array (H, W, C) without further information as H pages of W x C pixels, and reads the
    file with the axes QYX. Then `channels_last` of the result is None.

    Args:
        series: The images of a TIFF that form one array, from tifffile.
    """
    axes = ""
    shape = []
    for axis, side in zip(series.axes, series.shape, strict=True):
        if side != 1 or axis in "YX":
            axes += axis
            shape.append(side)
    channels_last = None
    if len(axes) == 3 and "YX" in axes and "Q" not in axes:
        channels_last = axes.startswith("YX")
    return StoredValues(series.asarray().reshape(shape), channels_last)


def _channels_first(values: StoredValues, channels: int) -> np.ndarray:
    """Return the stored values as an array (C, H, W).

    Args:
        values: The array, and whether its last axis is the channels.
        channels: The number of channels C.

    Raises:
        ValueError: Neither the first nor the last axis has the length C, or both have it and the
            file does not tell which axis the channels are.
    """
    array, channels_last = values
    if array.ndim == 2 and channels == 1:
        return array[None]
    # channels_last may be None: then both axes are possible
    may_be_first = array.ndim == 3 and array.shape[0] == channels and channels_last is not True
    may_be_last = array.ndim == 3 and array.shape[2] == channels and channels_last is not False
    if may_be_first and may_be_last:
        raise ValueError(
            f"the image has shape {array.shape}, so the first or last axis could be the channels."
            " Save the image as TIFF, which names the axis"
        )
    if may_be_first:
        return array
    if may_be_last:
        return np.moveaxis(array, 2, 0)
    raise ValueError(
        f"the image has shape {array.shape}, but data.channels={channels} expects"
        f" (H, W, {channels}) or ({channels}, H, W)"
    )


def _tag(image: Image.Image, number: int) -> Any:
    """Return a tag of a TIFF that Pillow has opened, or None where the tag is missing."""
    return getattr(image, "tag_v2", {}).get(number)


def _orientation(image: Image.Image) -> int:
    """Return the orientation (1 to 8, EXIF 2.3) that Pillow's `exif_transpose` uses.

    Pillow looks in EXIF, then in XMP. An unreadable orientation counts as 1 (upright).

    Args:
        image: An image that Pillow has opened.
    """
    # a file written by others may cause any error
    with suppress(Exception), warnings.catch_warnings(action="ignore"):
        orientation = image.getexif().get(ORIENTATION, 1)
        return int(orientation) if orientation in range(1, 9) else 1
    return 1


def _upright(array: np.ndarray, orientation: int, down: int = 0, across: int = 1) -> np.ndarray:
    """Turn and mirror pixels by an EXIF orientation.

    Args:
        array: The pixels.
        orientation: 1 to 8.
        down: The axis along which rows follow each other.
        across: The axis along which columns follow each other.
    """
    if not 1 < orientation <= 8:
        return array
    turned = array.swapaxes(down, across) if orientation > 4 else array
    return np.ascontiguousarray(np.flip(turned, _mirrored(orientation, down, across)))


def _mirrored(orientation: int, down: int, across: int) -> tuple[int, ...]:
    """Return the axes to mirror for an EXIF orientation.

    The orientations 5 to 8 are 1 to 4 with rows and columns exchanged. The caller has exchanged
    rows and columns of the pixels already, so that 5 to 8 are mirrored like 1 to 4.

    Args:
        orientation: 1 to 8.
        down: The axis along which rows follow each other.
        across: The axis along which columns follow each other.
    """
    # for the orientations 1 and 5, 2 and 6, 3 and 7, 4 and 8
    mirrored_axes = ((), (across,), (down, across), (down,))
    return mirrored_axes[(orientation - 1) % 4]


def _check_pixels(width: int, height: int) -> None:
    """Check the size of an image before decoding.

    Args:
        width: Width of the image in pixels.
        height: Height of the image in pixels.

    Raises:
        TooLarge: The image has more than MOST_PIXELS.
    """
    if width * height > MOST_PIXELS:
        raise TooLarge(
            f"the header says {width} x {height} pixels, more than the limit of"
            f" {MOST_PIXELS // 10**6} million"
        )


def _check_shape(shape: Sequence[int]) -> None:
    """Check the size of an array before reading.

    Args:
        shape: The shape in the header of the array.

    Raises:
        TooLarge: The array has more values than MOST_PIXELS of RGB.
    """
    most = 3 * MOST_PIXELS
    if math.prod(shape) > most:
        raise TooLarge(
            f"the header says an array of shape {tuple(shape)}, more than the limit of"
            f" {most // 10**6} million values"
        )


def _check_16_bits(array: np.ndarray) -> None:
    """Check that whole numbers fit into 16 bits.

    Args:
        array: Whole numbers of any type.

    Raises:
        ValueError: Numbers are below 0 or above MOST_VALUE.
    """
    if array.size and not 0 <= array.min() <= array.max() <= MOST_VALUE:
        raise ValueError(
            f"the pixels have values from {array.min()} to {array.max()}. Use whole numbers of 8 or"
            " 16 bits"
        )
