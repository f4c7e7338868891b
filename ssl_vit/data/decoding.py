"""Decode images to integers: RGB of 8 bits, or all channels as stored.

torchvision decodes where it is fast and safe, tifffile decodes TIFF files with more channels,
pydicom decodes DICOM files, and Pillow decodes everything else, HEIC files with pillow_heif. Pillow
also reads the size and the orientation of every image. A transparent image becomes the RGB image
that a viewer shows on a white page.

Legend: C channels, H W height and width.
"""

import io
import math
import re
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from einops import rearrange
from PIL import Image, UnidentifiedImageError
from torch import Tensor
from torchvision.io import ImageReadMode, decode_image

from ..extras import require
from .dicom import physical_values, read_dicom, shown_pixels
from .layout import EXTRA_FORMATS, FORMATS
from .source import Missing

Read = TypeVar("Read")

JPEG = b"\xff\xd8\xff"
PNG = b"\x89PNG\r\n\x1a\n"
NPY = np.lib.format.MAGIC_PREFIX
TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # both byte orders; the last two are BigTIFF
PORTABLE = (b"P2", b"P3", b"P5", b"P6")  # portable grey values and colors, as texts and as bytes
# Brands in the first box of HEIC files (ISO/IEC 23008-12) and of AVIF files. mif1 and msf1 may be
# both
HEIC_BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"}
AVIF_BRANDS = {b"avif", b"avis"}
HEVC_SETTINGS = b"hvcC"  # box of a HEIC (ISO/IEC 14496-15), with the bits at byte 17
# Box of an AVIF (AV1-ISOBMFF 2.3), and flags in the third byte: more than 8 bits, and 12 bits
AV1_SETTINGS, AV1_HIGH_DEPTH, AV1_12_BITS = b"av1C", 1 << 6, 1 << 5
WEBP_ALPHA = 1 << 4  # bit of the fourth byte after the signature of a lossless WebP
MOST_PIXELS = 64_000_000  # of a decoded image, which takes 192 MB as RGB
MOST_VALUE = 2**16 - 1  # the highest value of a pixel
LEAST_VALUE = -(2**15)  # the lowest value of a pixel, such as a Hounsfield unit of a DICOM file
# Tags of TIFF 6.0 and EXIF, and values of the tag PHOTOMETRIC
NEW_SUBFILE_TYPE, BITS_PER_SAMPLE, PHOTOMETRIC, ORIENTATION = 254, 258, 262, 274
WHITE_IS_ZERO, PALETTE = 0, 3
REDUCED_OR_MASK = 5  # bits of NEW_SUBFILE_TYPE: a smaller copy of the first image, or its mask


class TooLarge(ValueError):
    """An image has more than MOST_PIXELS."""


class StoredValues(NamedTuple):
    """Values of an image as stored in the file.

    Attributes:
        array: (H, W), (H, W, C) or (C, H, W).
        channels_last: Whether an array with three axes is (H, W, C). None if unknown.
    """

    array: np.ndarray
    channels_last: bool | None = None


def decode(raw: bytes | np.ndarray) -> Tensor:
    """Decode an image to RGB bytes, uint8 (3, H, W).

    The image is turned by its EXIF orientation. Only the first of several frames is read, 16 bits
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


def decode_stored_values(raw: bytes | np.ndarray, channels: int, lowest: int = 0) -> np.ndarray:
    """Decode an image to its stored values, uint8, uint16 or int16 (C, H, W).

    The values of a DICOM file are those after the modality LUT, such as Hounsfield units.

    Args:
        raw: Encoded bytes, or an array (H, W, C), (C, H, W) or, for one channel, (H, W).
        channels: The number of channels C.
        lowest: The lowest value of data.range. Values below 0 are allowed if `lowest` is below 0,
            and in DICOM files.

    Raises:
        ValueError: The image cannot be decoded, has another number of channels, has values other
            than whole numbers from 0 (or -32768) to 65535, or could be both (H, W, C) and
            (C, H, W).
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
    may_be_below_0 = lowest < 0 or (isinstance(raw, bytes) and is_dicom(raw))
    _check_16_bits(array, LEAST_VALUE if may_be_below_0 else 0)
    if array.min() >= 0:
        return array.astype(np.uint16, copy=False)
    # int16 ends at 32767, and pixels of one image may lie from -32768 to 65535
    return array.astype(np.int16 if array.max() < 2**15 else np.int32, copy=False)


def call_decoder(read: Callable[[bytes], Read], raw: bytes) -> Read:
    """Return `read(raw)`, and turn any error into a ValueError of one line.

    Args:
        read: A function that reads or decodes an encoded image.
        raw: Encoded bytes, or Missing.

    Raises:
        ValueError: The image is missing, or `read` failed.
    """
    if isinstance(raw, Missing):
        raise ValueError(raw.reason)
    try:
        return read(raw)
    except TooLarge:
        raise
    except Exception as error:  # a file written by others may cause any error in a decoder
        line = " ".join(str(error).split())
        # Remove parts that do not help the user, such as "<_io.BytesIO object at 0x7f52>" from
        # "cannot identify image file <_io.BytesIO object at 0x7f52>", and the place in
        # torchvision's source from "/src/decode_jpeg.cpp:23, not a JPEG"
        message = re.sub(r" *<_io.*?>|\S*\.cpp:\d+[^,]*, *", "", line)
        raise ValueError(f"cannot decode the image: {message[:200]}") from None


def stored_bits(raw: bytes) -> int:
    """Return the number of bits per stored value of an encoded image, at least 8."""
    if raw.startswith(PNG):
        return max(8, raw[24])  # the bit depth is byte 24 of every PNG
    if is_dicom(raw):
        return max(8, _call_with_dicom(attrgetter("BitsStored"), raw))
    if raw.startswith(TIFF):
        with open_image(raw) as image:
            bits = _tag(image, BITS_PER_SAMPLE)
        if isinstance(bits, tuple):  # one number for each channel
            return max(8, *bits)
        return 8 if bits is None else max(8, bits)
    if raw.startswith(PORTABLE):
        packing = _packing(open_image(raw))
        if packing == "I;16B":  # Pillow's name for grey values up to 65535
            return 16
        if not isinstance(packing, tuple):  # values up to 255
            return 8
        highest = packing[1]  # packing[0] is the name of Pillow's mode
        return max(8, int(highest).bit_length())
    if _is_heic(raw):
        settings_start = raw.find(HEVC_SETTINGS)
        # 17 bytes after the name of the box: the lower three bits are the number of bits minus 8
        return 8 + (raw[settings_start + 21] & 7) if settings_start > 0 else 8
    if raw[4:8] == b"ftyp":  # AVIF
        settings_start = raw.find(AV1_SETTINGS)
        if settings_start > 0:
            # AV1_SETTINGS is the name of a box. The third byte after the four bytes of the name
            # holds flags
            flags = raw[settings_start + 6]
            if flags & AV1_HIGH_DEPTH:
                return 12 if flags & AV1_12_BITS else 10
    return 8


def count_images(raw: bytes) -> int:
    """Count the images in a TIFF, or return 1 for a file of another format.

    Pages that are marked as thumbnail or mask of another page are not counted.
    """
    if not raw.startswith(TIFF) or is_dicom(raw):
        return 1
    num_images = 0
    page = 0
    with open_image(raw) as image, suppress(EOFError):  # `seek` fails after the last page
        while True:
            # if Pillow cannot decode the pixels of the page, `seek` raises SyntaxError, but only
            # after reading the tags
            with suppress(SyntaxError):
                image.seek(page)
            flags = _tag(image, NEW_SUBFILE_TYPE)
            if flags is None or not flags & REDUCED_OR_MASK:
                num_images += 1
            page += 1
    return num_images


def open_image(raw: bytes) -> Image.Image:
    """Read the header of an encoded image with Pillow, without decoding pixels.

    Raises:
        ValueError: The format is not in FORMATS and not HEIC, or pillow_heif is not installed.
        TooLarge: The image has more than MOST_PIXELS.
    """
    try:
        # ignore Pillow's warnings about many pixels and damaged EXIF
        with warnings.catch_warnings(action="ignore"):
            if _is_heic(raw):
                image = _open_heic(raw)
            else:
                image = Image.open(io.BytesIO(raw), formats=[*FORMATS])
    except UnidentifiedImageError:
        formats = ", ".join([*FORMATS, *EXTRA_FORMATS])
        problem = f"the file is damaged, or has another format than {formats}"
        if raw.startswith(TIFF):
            problem += (
                ". To read a TIFF whose pixels are not RGB with 8 bits, set data.channels= or"
                " data.range="
            )
        raise ValueError(problem) from None
    _check_pixels(*image.size)
    return image


def from_pillow(image: Image.Image) -> np.ndarray:
    """Convert a Pillow image to RGB bytes, uint8 (H, W, 3).

    The image is turned by its EXIF orientation, 16 bits are reduced to 8, and transparent pixels
    are composed over white.

    Raises:
        ValueError: The pixels have 32 bits, or are below 0.
    """
    rgb_HW3 = _compose_over_white(*_color_and_alpha(image))
    return _upright(rgb_HW3, _orientation(image))


def is_transparent(raw: bytes) -> bool:
    """Return whether an encoded image has pixels that `decode` composes over white.

    Raises:
        ValueError: The image cannot be read.
    """
    if raw.startswith((JPEG, NPY)) or is_dicom(raw):
        return False
    image = open_image(raw)
    if not image.has_transparency_data:
        return False
    _, alpha_HW = _color_and_alpha(image)
    return alpha_HW is not None


def is_dicom(raw: bytes) -> bool:
    """Return whether bytes are a DICOM file. Its first 128 bytes may begin like a TIFF."""
    return raw[128:132] == b"DICM"


def _is_heic(raw: bytes) -> bool:
    """Return whether bytes are a HEIC file, by the brands in the first box."""
    size = int.from_bytes(raw[:4])
    brands = {raw[start : start + 4] for start in range(8, min(size, 256), 4)}
    return raw[4:8] == b"ftyp" and bool(brands & HEIC_BRANDS) and not brands & AVIF_BRANDS


def _open_heic(raw: bytes) -> Image.Image:
    """Read the header of a HEIC file. pillow_heif turns the pixels upright when they are loaded.

    Calling the class, instead of registering it in Pillow, leaves `Image.open` unchanged elsewhere.
    """
    image: Image.Image = require("pillow_heif").HeifImageFile(io.BytesIO(raw))
    return image


def _call_with_dicom(read: Callable[[Any], Read], raw: bytes) -> Read:
    """Return `read(dataset)` for the data set of a DICOM file with at most MOST_PIXELS."""
    with warnings.catch_warnings(action="ignore"):  # pydicom warns of values outside the standard
        dataset = read_dicom(raw)
        _check_pixels(dataset.Columns, dataset.Rows)
        return read(dataset)


def upright(image: Image.Image) -> np.ndarray:
    """Return pixels (H, W) or (H, W, C), turned by the image's EXIF orientation."""
    image.load()
    return _upright(np.array(image), _orientation(image))


def _compose_over_white(color_HW3: np.ndarray, alpha_HW: np.ndarray | None) -> np.ndarray:
    """Compose the colors over a white background, uint8 (H, W, 3).

    With alpha from 0 to 1, the result is round(alpha * color + (1 - alpha) * 255).

    Args:
        color_HW3: The colors, uint8, not multiplied by alpha.
        alpha_HW: Alpha, uint8, 255 for opaque pixels. None for an image without transparency.
    """
    if alpha_HW is None:
        return color_HW3
    alpha_HW1 = alpha_HW[..., None].astype(np.uint16)
    # The sum is at most 255 * 255, which fits into 16 bits, also after adding 127. Adding 127
    # before dividing by 255 rounds to the nearest number. Ties do not occur, because 255 is odd
    sum_HW3 = alpha_HW1 * color_HW3 + (255 - alpha_HW1) * 255
    return ((sum_HW3 + 127) // 255).astype(np.uint8)


def _color_and_alpha(image: Image.Image) -> tuple[np.ndarray, np.ndarray | None]:
    """Load an image and separate colors and alpha.

    Args:
        image: An image that Pillow has opened.

    Returns:
        The colors, uint8 (H, W, 3), and alpha, uint8 (H, W), or None if every pixel is opaque.

    Raises:
        ValueError: The pixels have 32 bits, or are below 0.
    """
    _scale_transparent_color(image)
    image.load()  # before tags are read: loading turns the pixels of a TIFF and changes its tags
    # grey of more than 8 bits has the mode "I;16", "I;16B", "I" or "F" (floats)
    if image.mode == "F" or image.mode.startswith("I"):
        color_HW3, alpha_HW = _grey_of_16_bits(image)
    elif image.has_transparency_data:
        if image.mode == "La":  # grey multiplied by alpha, which Pillow converts only to LA
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

    A BMP with alpha 0 everywhere counts as opaque, too, as in browsers (Chromium's BMPImageReader),
    because a program without support for alpha wrote the file.

    Args:
        alpha_HW: Alpha, uint8.
        image_format: Pillow's name of the file format.
    """
    if image_format in ("BMP", "DIB") and not alpha_HW.any():
        return True
    return bool(alpha_HW.min() == 255)


def _grey_of_16_bits(image: Image.Image) -> tuple[np.ndarray, np.ndarray | None]:
    """Convert a grey image of more than 8 bits to 8-bit RGB and alpha.

    Args:
        image: An image that Pillow has opened and loaded.

    Returns:
        The colors, uint8 (H, W, 3), and alpha, uint8 (H, W), or None if no grey value is marked as
        transparent.

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
    # keep the upper 8 of 12 or 16 bits. Pillow does not scale 12 bits to 16
    shift = 4 if _tag(image, BITS_PER_SAMPLE) == (12,) else 8
    grey_HW = value_HW >> shift
    # Invert a TIFF that stores white as 0, because Pillow inverts only 8 bits. Values of mode I are
    # signed in a TIFF, and are not inverted
    if image.mode != "I" and _tag(image, PHOTOMETRIC) == WHITE_IS_ZERO:
        grey_HW = 255 - grey_HW
    color_HW3 = np.repeat(grey_HW.astype(np.uint8)[..., None], 3, 2)
    transparent_value = image.info.get("transparency")
    if transparent_value is None:
        return color_HW3, None
    # alpha is 0 where a pixel has the transparent value, and 255 elsewhere
    return color_HW3, 255 * (value_HW != transparent_value).astype(np.uint8)


def _scale_transparent_color(image: Image.Image) -> None:
    """Scale the transparent color of a PNG to 8 bits, like the pixels.

    Pillow converts the pixels to 8 bits, but not the transparent color with which Pillow compares
    the pixels. In a grey PNG of 4 bits, the transparent color 15 becomes 255.

    Args:
        image: An image that Pillow has opened and not loaded. Its `info` is changed.
    """
    color = image.info.get("transparency")
    if color is None or image.format != "PNG":
        return
    # such as "L" for 8-bit grey, "L;4" for 4-bit grey, "RGB;16B" for 16-bit RGB
    mode, _, depth = str(_packing(image)).partition(";")
    if mode == "L" and depth and isinstance(color, int):
        image.info["transparency"] = color * 255 // (2 ** int(depth) - 1)
    elif mode == "RGB" and depth and isinstance(color, tuple):
        image.info["transparency"] = tuple(value >> 8 for value in color)


def _packing(image: Image.Image) -> Any:
    """Return Pillow's name for the pixel format in the file, such as "L;4" for 4-bit grey.

    For PPM files, the result may be a tuple of this name and the highest value. After Pillow has
    loaded the pixels, the result is "".
    """
    tiles = getattr(image, "tile", None)
    return tiles[0].args if tiles else ""


def _rgb(raw: bytes) -> Tensor:
    """Decode an encoded image to RGB bytes, uint8 (3, H, W), with the fastest safe decoder."""
    # `decode` below gets an array and only checks the array: it does not call this function again
    if raw.startswith(NPY):
        return decode(_rgb_array(raw))
    if is_dicom(raw):
        return decode(_call_with_dicom(shown_pixels, raw))
    # torchvision decodes JPEG and simple WebP up to 6 times as fast as Pillow. For other formats,
    # torchvision is not safe: a damaged PNG can end the process, and 16 bits and alpha are ignored
    if not raw.startswith(JPEG) and not _is_simple_webp(raw):
        return decode(from_pillow(open_image(raw)))
    orientation = _orientation(open_image(raw))
    pixels = decode_image(torch.frombuffer(bytearray(raw), dtype=torch.uint8), ImageReadMode.RGB)
    if orientation == 1:
        return pixels
    # with torch, because turning pixels with `_upright` takes four times as long
    # orientations 5 to 8 exchange rows and columns
    turned = pixels.swapaxes(1, 2) if orientation > 4 else pixels
    return turned.flip(_mirrored(orientation, 1, 2))


def _is_simple_webp(raw: bytes) -> bool:
    """Return whether bytes are a WebP of one image, without EXIF, animation and alpha.

    A file without an extended header has one image, no EXIF and no animation. Such a file has alpha
    only if it is lossless and a bit of the header is set (RFC 9649, 2.5, 2.6 and 3.4).
    """
    kind = raw[8:16]
    if raw[:4] != b"RIFF" or kind not in (b"WEBPVP8 ", b"WEBPVP8L"):
        return False
    # of a lossless WebP, byte 20 is the signature, and byte 24 has the bit for alpha
    has_alpha = kind == b"WEBPVP8L" and int.from_bytes(raw[24:25]) & WEBP_ALPHA
    return not has_alpha


def _rgb_array(raw: bytes) -> np.ndarray:
    """Read a .npy file of RGB or grey values as an array (H, W, 3)."""
    array = _saved_array(raw)
    if array.ndim == 2:
        _check_pixels(*array.shape[::-1])
        array = np.repeat(array[..., None], 3, 2)
    return np.ascontiguousarray(array)


def _saved_array(raw: bytes) -> np.ndarray:
    """Read the array of a .npy file.

    Raises:
        TooLarge: The header says more values than an RGB image of MOST_PIXELS has.
        ValueError: The array is empty or holds Python objects.
    """
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
    """Read the stored values of all channels of an encoded image.

    Raises:
        ValueError: The image cannot be read without loss. For example, the file has several images.
        TooLarge: The image has more than MOST_PIXELS.
    """
    if raw.startswith(NPY):
        return StoredValues(_saved_array(raw))
    if is_dicom(raw):
        return StoredValues(_call_with_dicom(physical_values, raw), channels_last=True)
    if raw.startswith(TIFF):
        return _values_of_tiff(raw)
    return _values_of_pillow(raw)


def _values_of_pillow(raw: bytes) -> StoredValues:
    """Read the stored values with Pillow. An image with a palette is read as RGB.

    Raises:
        ValueError: The image is a PNG of 16 bits and several channels, or has none of FORMATS.
        TooLarge: The image has more than MOST_PIXELS.
    """
    image = open_image(raw)
    # Pillow would reduce the 16 bits of such a PNG to 8
    if raw.startswith(PNG) and stored_bits(raw) == 16 and len(image.getbands()) > 1:
        raise ValueError(
            "this is a PNG of 16 bits and several channels. Save the image as TIFF or .npy"
        )
    if image.mode in ("P", "PA"):  # with a palette, the file stores indices and not colors
        return StoredValues(from_pillow(image), channels_last=True)
    image.load()
    pixels = image.convert("L") if image.mode == "1" else image
    return StoredValues(_upright(np.array(pixels), _orientation(image)), channels_last=True)


def _values_of_tiff(raw: bytes) -> StoredValues:
    """Read the stored values of a TIFF that holds a single image.

    The file stores channels as several values per pixel or as pages. tifffile joins pages of the
    same shape to one array, called a series.

    A TIFF with a palette or with fewer than 8 bits per value is read with Pillow: a palette as RGB,
    few bits as grey from 0 to 255. A PNG of this type is read in the same way.
    """
    tifffile = require("tifffile", "this TIFF has more channels than Pillow reads")
    with tifffile.TiffFile(io.BytesIO(raw)) as file:
        series = file.series[0]
        page = series.keyframe  # the first page, whose tags apply to all pages
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
    orientation = page.tags.valueof(ORIENTATION, 1)
    # axes of rows and columns in (H, W, C), or else in (C, H, W) or (H, W)
    down, across = (0, 1) if channels_last else (-2, -1)
    return StoredValues(_upright(array, orientation, down, across), channels_last)


def _check_series(series: Sequence[Any]) -> None:
    """Check that a TIFF holds a single image, except for smaller copies and masks of the image.

    Args:
        series: The images of a TIFF, from tifffile. An image may have several pages.

    Raises:
        ValueError: The TIFF holds several images.
    """
    further_images = [
        image for image in series[1:] if not image.keyframe.subfiletype & REDUCED_OR_MASK
    ]
    if further_images:
        raise ValueError(
            f"this is a TIFF of {1 + len(further_images)} images (the first two have the shapes"
            f" {series[0].shape} and {further_images[0].shape}). Use a file of"
            " a single image, with one channel per page or several values per pixel"
        )


def _read_series(series: Any) -> StoredValues:
    """Read the array of a tifffile series without axes of length 1, and find the channels' axis.

    tifffile names each axis by a letter: Y for rows, X for columns, and other letters for channels,
    such as YXS (values of a pixel) or CYX (pages). Q means an unknown axis: tifffile writes a plain
    array (H, W, C) as H pages of W x C pixels, and reads the file as QYX. `channels_last` of the
    result is then None.

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
    # "YXS" has the channels last, "CYX" first. Other axes are unknown
    if len(axes) == 3 and "YX" in axes and "Q" not in axes:
        channels_last = axes.startswith("YX")
    return StoredValues(series.asarray().reshape(shape), channels_last)


def _channels_first(values: StoredValues, channels: int) -> np.ndarray:
    """Return stored values as an array (C, H, W).

    Args:
        values: The array, and whether the channels are the last axis.
        channels: The number of channels C.

    Raises:
        ValueError: No axis of length C is first or last. Or the first and the last axis have length
            C, and it is unknown which are the channels.
    """
    array, channels_last = values
    if array.ndim == 2 and channels == 1:
        return array[None]
    # channels_last True: only the last axis is possible. False: only the first. None: both
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
    """Return a tag of a TIFF that Pillow has opened, or None if the tag is missing."""
    return getattr(image, "tag_v2", {}).get(number)


def _orientation(image: Image.Image) -> int:
    """Return the orientation (1 to 8, EXIF 2.3) that Pillow's `exif_transpose` uses.

    Pillow looks in EXIF, then in XMP. An unreadable orientation counts as 1 (upright).
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
        down: The axis of rows.
        across: The axis of columns.
    """
    if not 1 < orientation <= 8:  # 1 is upright, and numbers other than 1 to 8 are ignored
        return array
    # orientations 5 to 8 exchange rows and columns
    turned = array.swapaxes(down, across) if orientation > 4 else array
    return np.ascontiguousarray(np.flip(turned, _mirrored(orientation, down, across)))


def _mirrored(orientation: int, down: int, across: int) -> tuple[int, ...]:
    """Return the axes to mirror for an EXIF orientation.

    For orientations 5 to 8, the caller has already exchanged rows and columns. Then 5 is mirrored
    like 1, 6 like 2, 7 like 3 and 8 like 4.

    Args:
        orientation: 1 to 8.
        down: The axis of rows.
        across: The axis of columns.
    """
    axes_of_1_to_4 = ((), (across,), (down, across), (down,))
    return axes_of_1_to_4[(orientation - 1) % 4]


def _check_pixels(width: int, height: int) -> None:
    """Raise TooLarge if an image has more than MOST_PIXELS, before decoding."""
    if width * height > MOST_PIXELS:
        raise TooLarge(
            f"the header says {width} x {height} pixels, more than the limit of"
            f" {MOST_PIXELS // 10**6} million"
        )


def _check_shape(shape: Sequence[int]) -> None:
    """Raise TooLarge if an array has more values than an RGB image of MOST_PIXELS.

    The shape is checked before the values are read.
    """
    most = 3 * MOST_PIXELS
    if math.prod(shape) > most:
        raise TooLarge(
            f"the header says an array of shape {tuple(shape)}, more than the limit of"
            f" {most // 10**6} million values"
        )


def _check_16_bits(array: np.ndarray, least: int = 0) -> None:
    """Raise ValueError if whole numbers are below `least` or above MOST_VALUE."""
    if array.size and not least <= array.min() <= array.max() <= MOST_VALUE:
        problem = f"the pixels have values from {array.min()} to {array.max()}"
        if LEAST_VALUE <= array.min() < least:
            raise ValueError(f"{problem}. Set data.range=[LOWEST,HIGHEST] with LOWEST below 0")
        raise ValueError(f"{problem}. Use whole numbers of 8 or 16 bits")
