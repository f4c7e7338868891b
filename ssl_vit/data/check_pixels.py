"""Check a few images before a run begins.

The images give mean and std, unless the user sets them, and a proposed range for 16-bit images.
Warnings tell of clipped values, of unused bits and pages, and of transparent images that are
composed over white.

Legend: C channels, V possible values of 16 bits (-32768 to 65535).
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeVar

import numpy as np

from ..errors import UserError
from ..formatting import format_count, format_image_count, text_line
from ..recipe.images import BYTES, Data, unmeasured
from . import decoding
from .batching import samples_at
from .source import Source

# Sentences that say in warnings which options to set
KEEP_BITS = (
    "To keep all bits of TIFF and .npy files, use data.range=[LOWEST,HIGHEST]. For grey images of"
    " other formats, also set data.channels=1"
)
KEEP_TRANSPARENCY = "To read transparency as a channel, use data.channels=4"
Read = TypeVar("Read")
LEAST, MOST_VALUE = decoding.LEAST_VALUE, decoding.MOST_VALUE
VALUES = np.arange(LEAST, MOST_VALUE + 1)  # position 0 of a histogram is the value LEAST
MEASURED_IMAGES = 512  # training images from which mean and std are computed
CHECKED_IMAGES = 128  # images of each split that `check` reads
SEED = 6  # seed of the random order in which images are read
DIGITS = 6  # significant digits of mean and std, also in recipe.yaml
MOST = (0.001, 0.999)  # quantiles that a warning shows as the range of most values
USUAL = (0.01, 0.99)  # quantiles by which a proposed range recognises outliers
# Shares of clipped values that lead to a warning and to an error. A window of computed tomography
# clips most of an image; reading 12 bits as 16, or 16 as 12, clips 15 of 16 values
WARNED, REFUSED = 0.01, 0.9
# Why the user cannot set data.range= for a frozen encoder
RANGE_OF_ENCODER = "The encoder expects values from 0 to 255"


def set_mean_and_std(data: Data, train: Source) -> None:
    """Set data.mean and data.std from training images, unless the user has set them.

    The mean and std of each channel are measured on up to 512 training images, after scaling
    data.range to the interval from 0 to 1.

    Args:
        data: The recipe's options of the images. Missing mean and std are set.
        train: The training images.

    Raises:
        UserError: No image can be read, or images have 16 bits and data.range is not set.
    """
    missing_statistics = unmeasured(data)  # "mean", "std", both or none
    if not missing_statistics:
        return
    count_CV, bits_of, unreadable = _histogram(train, data, MEASURED_IMAGES)
    if not bits_of:
        raise UserError(
            f"data.channels={data.channels}: cannot read any of {len(unreadable)} training images."
            f" Correct data.channels=, or repair the images, such as {unreadable[-1]}"
        )
    if data.range is None and 16 in bits_of.values():
        raise UserError(
            _proposed_range(count_CV.sum(0), format_count(len(bits_of), "training images"))
        )
    lowest, highest = data.pixel_range
    # compute mean and std from the histogram: scaled values, weighted by frequency
    scaled_V = (VALUES.clip(lowest, highest) - lowest) / (highest - lowest)
    frequency_CV = count_CV / count_CV.sum(1, keepdims=True)
    mean_C = frequency_CV @ scaled_V
    std_C = np.sqrt((frequency_CV * (scaled_V - mean_C[:, None]) ** 2).sum(1))
    if "mean" in missing_statistics:
        data.mean = [float(f"{value:.{DIGITS}g}") for value in mean_C]
    if "std" in missing_statistics:
        # 1 replaces the std 0 of a channel with a single value, because pixels are divided by std
        data.std = [float(f"{value:.{DIGITS}g}") or 1.0 for value in std_C]


def check(splits: Mapping[str, Source], data: Data, why_no_range: str = "") -> list[str]:
    """Return warnings about pixels that are lost or changed when images are read.

    Up to 128 images of each split are checked for clipped values, more than 8 bits, several pages,
    transparency, and a mixture of 8-bit and 16-bit images.

    Args:
        splits: {name of the split: images}.
        data: The recipe's options of the images.
        why_no_range: A sentence that explains why the user cannot set data.range=, or "" if the
            user can. Pass RANGE_OF_ENCODER to evaluate a frozen encoder, because pre-training has
            fixed the range.

    Raises:
        UserError: data.range clips more than 90% of a split's values. Or images have 16 bits, and
            data.range is missing although the user can set it.
    """
    if not (data.path or data.hub):
        return []  # synthetic images
    warn = _warn_of_losses if data.is_rgb else _warn_of_clipping
    warnings: list[str] = []
    for split, source in splits.items():
        warnings += warn(split, source, data, why_no_range)
    return warnings


def _read(
    source: Source, most: int, read: Callable[[bytes | np.ndarray], Read]
) -> tuple[dict[str, Read], list[str]]:
    """Call `read` on at most `most` images, in a fixed random order.

    Args:
        source: The images.
        most: The largest number of images.
        read: A function of an encoded image or an array, which raises ValueError for an unreadable
            image.

    Returns:
        {name: result of `read`} for readable images, and a list of unreadable images with reasons.
    """
    readable, unreadable = {}, list[str]()
    rows = samples_at(0, min(most, len(source)), len(source), SEED).index
    for row in rows:  # one at a time: an image may have a hundred million values
        row_array = np.array([row])
        (raw,), _ = source.fetch(row_array)
        try:
            readable[text_line(source.name(row))] = read(raw)
        except ValueError as error:
            unreadable.append(f"{source.name(row)}: {error}")
    return readable, unreadable


def _histogram(
    source: Source, data: Data, most: int
) -> tuple[np.ndarray, dict[str, int], list[str]]:
    """Count how often each channel has each value, in at most `most` images.

    Args:
        source: The images.
        data: Options of the images, with the number of channels and the range.
        most: The largest number of images.

    Returns:
        The counts, int64 (C, V); {name: 8 or 16 bits} for readable images; and a list of unreadable
        images, each with the reason.
    """
    count_CV = np.zeros((data.channels, len(VALUES)), np.int64)

    def add_to_counts(raw: bytes | np.ndarray) -> int:
        """Add the values of an image to `count_CV`, and return how many bits a value has."""
        array_CHW = decoding.decode_stored_values(raw, data.channels, data.pixel_range[0])
        for channel, value_HW in enumerate(array_CHW):
            position_HW = value_HW.astype(np.int64) - LEAST
            count_CV[channel] += np.bincount(position_HW.ravel(), minlength=len(VALUES))
        return 8 if array_CHW.itemsize == 1 else 16

    bits, unreadable = _read(source, most, add_to_counts)
    return count_CV, bits, unreadable


def _quantiles(count_V: np.ndarray, shares: tuple[float, float]) -> tuple[int, int]:
    """Return the values at two quantiles of a histogram.

    Args:
        count_V: How often each value occurs.
        shares: The lower and the upper quantile, between 0 and 1.
    """
    # for each value v, the share of values that are at most v. A quantile is the first v whose
    # share is high enough
    cumulative_V = count_V.cumsum() / count_V.sum()
    low, high = (int(VALUES[np.searchsorted(cumulative_V, share)]) for share in shares)
    return low, high


def _proposed_range(count_V: np.ndarray, images: str) -> str:
    """Return an error message that proposes a data.range for 16-bit images.

    The range contains all values except outliers. With the 1% quantile `low` and the 99% quantile
    `high`, outliers are values below low - (high - low) or above high + (high - low).

    Args:
        count_V: How often each value occurs.
        images: The number of images, such as "5 training images".
    """
    seen_values = VALUES[count_V > 0]  # ascending
    low, high = _quantiles(count_V, USUAL)
    distance = high - low
    usual_values = seen_values[(seen_values >= low - distance) & (seen_values <= high + distance)]
    # a range has two different ends, even if all values are the same. If all are the highest value
    # MOST_VALUE, the range begins one below
    first = min(int(usual_values[0]), MOST_VALUE - 1)
    last = max(int(usual_values[-1]), first + 1)
    total = count_V.sum()
    clipped = total - count_V[first - LEAST : last + 1 - LEAST].sum()
    return (
        f"data.range=null: images of 16 bits need a range. The values of {images} lie from"
        f" {seen_values[0]:,} to {seen_values[-1]:,} (1% quantile {low:,}, 99% quantile {high:,})."
        f" Use data.range=[{first},{last}], which maps {first} to 0 and {last} to 1 and clips"
        f" {clipped:,} of {total:,} values ({clipped / total:.2%}), or another range."
    )


class _FileProperties(NamedTuple):
    """Properties of an image file that are lost when the image is read as 8-bit RGB.

    Attributes:
        bits: Bits of a stored value, at least 8.
        pages: Number of images in the file.
        is_transparent: Whether the image has transparent pixels.
    """

    bits: int
    pages: int
    is_transparent: bool


def _warn_of_losses(split: str, source: Source, data: Data, why_no_range: str) -> Iterator[str]:
    """Yield a warning for each property that is lost when images are read as 8-bit RGB.

    Images with 3 channels are read as 8-bit RGB if data.range is not set. Bits beyond 8, pages
    after the first and transparency are then lost.

    Args:
        split: The name of the split.
        source: The images of the split.
        data: Not used. `check` passes the same arguments as to `_warn_of_clipping`.
        why_no_range: A sentence that explains why the user cannot set data.range=. If the sentence
            is not empty, warnings recommend no option.
    """
    stored, _ = _read(source, CHECKED_IMAGES, _read_properties)
    images = f"{len(stored):,} checked images of {split}"
    # images of more than 16 bits cannot be read
    deep = [name for name, file in stored.items() if 8 < file.bits <= 16]
    if deep:
        bits = stored[deep[0]].bits
        yield (
            f"more than 8 bits in {len(deep):,} of {images} ({bits} in {deep[0]}). Only the upper 8"
            " bits are used (of DICOM files: the window, in 8 bits)."
            f" {why_no_range or KEEP_BITS}"
        )
    multi_page = [name for name, file in stored.items() if file.pages > 1]
    if multi_page:
        pages = stored[multi_page[0]].pages
        warning = (
            f"{len(multi_page):,} of {images} have several pages, such as {multi_page[0]} with"
            f" {pages} pages. Only the first page is used"
        )
        # data.range= is needed for three pages: data.channels=3 alone would still mean the RGB
        # values of the first page
        remedy = f"To read grey pages as channels, use data.channels={pages} data.range=[0,255]"
        yield warning if why_no_range else f"{warning}. {remedy}"
    transparent = [name for name, file in stored.items() if file.is_transparent]
    if transparent:
        warning = (
            f"transparent pixels in {len(transparent):,} of {images}, such as {transparent[0]}. The"
            " background becomes white"
        )
        yield warning if why_no_range else f"{warning}. {KEEP_TRANSPARENCY}"


def _read_properties(raw: bytes | np.ndarray) -> _FileProperties:
    """Return the properties of an encoded image. An array has 8 bits, one page, no transparency.

    Raises:
        ValueError: The image cannot be read.
    """
    if isinstance(raw, np.ndarray):
        return _FileProperties(8, 1, False)
    bits = decoding.call_decoder(decoding.stored_bits, raw)
    pages = decoding.call_decoder(decoding.count_images, raw)
    return _FileProperties(bits, pages, decoding.call_decoder(decoding.is_transparent, raw))


def _warn_of_clipping(split: str, source: Source, data: Data, why_no_range: str) -> Iterator[str]:
    """Yield warnings that data.range clips values, or that 8-bit and 16-bit images are mixed.

    Args:
        split: The name of the split.
        source: The images of the split.
        data: The recipe's options of the images, with data.range.
        why_no_range: A sentence that explains why the user cannot set data.range=. If the sentence
            is not empty, 16-bit images need no data.range.

    Raises:
        UserError: data.range clips more than 90% of the values. Or images have 16 bits, and neither
            data.range nor `why_no_range` is set.
    """
    count_CV, bits_of, _ = _histogram(source, data, CHECKED_IMAGES)
    if not bits_of:
        return
    count_V = count_CV.sum(0)
    images = f"{format_image_count(len(bits_of))} of {split}"
    if data.range is None and 16 in bits_of.values() and not why_no_range:
        raise UserError(_proposed_range(count_V, images))
    lowest, highest = data.pixel_range
    first, last = _quantiles(count_V, MOST)
    total = count_V.sum()
    below = count_V[: lowest - LEAST].sum()
    above = count_V[highest + 1 - LEAST :].sum()
    clipped = (below + above) / total
    central_share = MOST[1] - MOST[0]
    warning = (
        f"data.range=[{lowest},{highest}]: this range clips {clipped:.1%} of the values of"
        f" {images} ({below / total:.1%} below the range, {above / total:.1%} above). The central"
        f" {central_share:.1%} of the values lie from {first} to {last}"
    )
    if clipped > REFUSED:
        raise UserError(f"{warning}. Use a range that contains most values.")
    if clipped > WARNED:
        yield warning
    # {8 or 16 bits: name of one image with these bits}
    image_with = {num_bits: name for name, num_bits in bits_of.items()}
    # an 8-bit image is refused if the range goes beyond 255
    if len(image_with) > 1 and highest > BYTES[1]:
        yield (
            f"data.range=[{lowest},{highest}]: of {images}, some have 8 bits, such as"
            f" {image_with[8]}, and some 16 bits, such as {image_with[16]}. The images of 8 bits do"
            " not fit this range and count as unreadable"
        )
