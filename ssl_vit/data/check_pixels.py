"""Look at a few images before a run begins.

From these images come the mean and std that the user does not give, and a proposal for the range of
images with 16 bits. The module warns of clipped values, of bits and pages that are left out, and of
transparent images that are composed over white.

Legend: C channels, V values of 16 bits.
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

# Sentences of warnings that say what to write
KEEP_BITS = (
    "To keep all bits of TIFF and .npy files, use data.range=[LOWEST,HIGHEST]. For grey images of"
    " other formats, also set data.channels=1"
)
KEEP_TRANSPARENCY = "To read transparency as a channel, use data.channels=4"
Read = TypeVar("Read")
VALUES = decoding.MOST_VALUE + 1
MEASURED_IMAGES = 512  # training images from which mean and std are computed
CHECKED_IMAGES = 128  # images of each split
SEED = 6  # of the random order whose first images are read
DIGITS = 6  # of mean and std, in recipe.yaml too
MOST = (0.001, 0.999)  # quantiles between which a warning shows most values
USUAL = (0.01, 0.99)  # quantiles by which a proposed range recognises outliers
# Shares of clipped values that lead to a warning and to an error. A window of computed tomography
# clips most of an image; reading 12 bits as 16, or 16 as 12, clips 15 of 16 values
WARNED, REFUSED = 0.01, 0.9
# Why the user cannot set data.range= for a frozen encoder
RANGE_OF_ENCODER = "The encoder expects values from 0 to 255"


def set_mean_and_std(data: Data, train: Source) -> None:
    """Set data.mean and data.std from training images, unless the user has set them.

    The mean and std of each channel are measured on up to 512 training images, whose values are
    first scaled from data.range to the interval from 0 to 1.

    Args:
        data: The recipe's options of the images, which are changed.
        train: The training images.

    Raises:
        UserError: No image can be read, or images have 16 bits and data.range is not set.
    """
    missing_statistics = unmeasured(data)  # "mean", "std", both or none
    if not missing_statistics:
        return
    count_CV, bits_of, unreadable = _histogram(train, data.channels, MEASURED_IMAGES)
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
    # mean and std from the histogram: each value, clipped and scaled, with its frequency
    scaled_V = (np.arange(VALUES).clip(lowest, highest) - lowest) / (highest - lowest)
    frequency_CV = count_CV / count_CV.sum(1, keepdims=True)
    mean_C = frequency_CV @ scaled_V
    std_C = np.sqrt((frequency_CV * (scaled_V - mean_C[:, None]) ** 2).sum(1))
    if "mean" in missing_statistics:
        data.mean = [float(f"{value:.{DIGITS}g}") for value in mean_C]
    if (
        "std" in missing_statistics
    ):  # a channel with a single value has std 0, by which nothing can be divided
        data.std = [float(f"{value:.{DIGITS}g}") or 1.0 for value in std_C]


def check(splits: Mapping[str, Source], data: Data, why_no_range: str = "") -> list[str]:
    """Return warnings about pixels that are lost or changed when images are read.

    Up to 128 images of each split are checked for clipped values, bits beyond 8, further pages and
    transparency, and for a mixture of images of 8 and of 16 bits.

    Args:
        splits: {name of the split: images}.
        data: The recipe's options of the images.
        why_no_range: A sentence that explains why the user cannot set data.range=. Evaluations of a
            frozen encoder pass RANGE_OF_ENCODER, because the range was fixed by pre-training. Empty
            if the user can set data.range=.

    Raises:
        UserError: data.range clips more than 90% of a split's values. Or images have 16 bits, and
            data.range is not set although the user can set it.
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
        read: Called with an encoded image or an array. It raises ValueError if the image is
            unreadable.

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
    source: Source, channels: int, most: int
) -> tuple[np.ndarray, dict[str, int], list[str]]:
    """Count how often each channel has each value, in at most `most` images.

    Args:
        source: The images.
        channels: The number of channels C.
        most: The largest number of images.

    Returns:
        The counts, int64 (C, V); {name: 8 or 16 bits} for readable images; and a list of unreadable
        images, each with the reason.
    """
    count_CV = np.zeros((channels, VALUES), np.int64)

    def add_to_counts(raw: bytes | np.ndarray) -> int:
        """Add the values of an image to `count_CV`, and return how many bits a value has."""
        array_CHW = decoding.decode_stored_values(raw, channels)
        for channel, value_HW in enumerate(array_CHW):
            count_CV[channel] += np.bincount(value_HW.ravel(), minlength=VALUES)
        return 8 * array_CHW.itemsize

    bits, unreadable = _read(source, most, add_to_counts)
    return count_CV, bits, unreadable


def _quantiles(count_V: np.ndarray, shares: tuple[float, float]) -> tuple[int, int]:
    """Return the values at two quantiles of a histogram.

    Args:
        count_V: How often each value occurs.
        shares: The lower and the upper quantile, between 0 and 1.
    """
    # the share of values that are equal to or below each value
    cumulative_V = count_V.cumsum() / count_V.sum()
    low, high = (int(np.searchsorted(cumulative_V, share)) for share in shares)
    return low, high


def _proposed_range(count_V: np.ndarray, images: str) -> str:
    """Return the text of the error that images of 16 bits need data.range, with a range to copy.

    The range contains all values except outliers. With the 1% quantile `low` and the 99% quantile
    `high`, a value is an outlier if it is below low - (high - low) or above high + (high - low).

    Args:
        count_V: How often each value occurs.
        images: The number of images, such as "5 training images".
    """
    seen_values = np.flatnonzero(count_V)  # ascending
    low, high = _quantiles(count_V, USUAL)
    distance = high - low
    usual_values = seen_values[(seen_values >= low - distance) & (seen_values <= high + distance)]
    # a range has two different ends, even if all values are the same
    first = min(int(usual_values[0]), VALUES - 2)
    last = max(int(usual_values[-1]), first + 1)
    total = count_V.sum()
    clipped = total - count_V[first : last + 1].sum()
    return (
        f"data.range=null: images of 16 bits need a range. The values of {images} lie from"
        f" {seen_values[0]:,} to {seen_values[-1]:,} (1% quantile {low:,}, 99% quantile {high:,})."
        f" Use data.range=[{first},{last}], which maps {first} to 0 and {last} to 1 and clips"
        f" {clipped:,} of {total:,} values ({clipped / total:.2%}), or another range."
    )


class _FileProperties(NamedTuple):
    """Properties of an image file that are lost when the image is read as RGB of 8 bits.

    Attributes:
        bits: Bits of a stored value, at least 8.
        pages: Number of images in the file.
        is_transparent: Whether the image has transparent pixels.
    """

    bits: int
    pages: int
    is_transparent: bool


def _warn_of_losses(split: str, source: Source, data: Data, why_no_range: str) -> Iterator[str]:
    """Yield a warning for each property that images lose when they are read as RGB of 8 bits.

    If data.range is not set, ssl_vit reads images with 3 channels as RGB with 8 bits per channel.
    Such images lose their bits beyond 8, all pages after the first, and transparency.

    Args:
        split: The name of the split.
        source: The images of the split.
        data: Not used. The parameter exists because `check` passes the same arguments to this
            function or to `_warn_of_clipping`.
        why_no_range: A sentence that explains why the user cannot set data.range=. If it is not
            empty, the warnings recommend no option.
    """
    stored, _ = _read(source, CHECKED_IMAGES, _read_properties)
    images = f"{len(stored):,} checked images of {split}"
    # images of more than 16 bits cannot be read
    deep = [name for name, file in stored.items() if 8 < file.bits <= 16]
    if deep:
        bits = stored[deep[0]].bits
        yield (
            f"more than 8 bits in {len(deep):,} of {images} ({bits} in {deep[0]}). Only the upper 8"
            f" bits are used. {why_no_range if why_no_range else KEEP_BITS}"
        )
    several = [name for name, file in stored.items() if file.pages > 1]
    if several:
        pages = stored[several[0]].pages
        warning = (
            f"{len(several):,} of {images} have several pages, such as {several[0]} with"
            f" {pages} pages. Only the first page is used"
        )
        # recommend data.range=, too: without it, a file with three pages would still be read as RGB
        # from its first page
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
    if isinstance(raw, np.ndarray):
        return _FileProperties(8, 1, False)
    read = (decoding.stored_bits, decoding.count_images, decoding.is_transparent)
    bits, pages, is_transparent = (decoding.call_decoder(part, raw) for part in read)
    return _FileProperties(bits, pages, bool(is_transparent))


def _warn_of_clipping(split: str, source: Source, data: Data, why_no_range: str) -> Iterator[str]:
    """Yield warnings that data.range clips values, or that images of 8 and of 16 bits are mixed.

    Args:
        split: The name of the split.
        source: The images of the split.
        data: The recipe's options of the images, with data.range.
        why_no_range: A sentence that explains why the user cannot set data.range=. If it is not
            empty, images of 16 bits need no data.range.

    Raises:
        UserError: As `check`.
    """
    count_CV, bits_of, _ = _histogram(source, data.channels, CHECKED_IMAGES)
    if not bits_of:
        return
    count_V = count_CV.sum(0)
    images = f"{format_image_count(len(bits_of))} of {split}"
    if data.range is None and 16 in bits_of.values() and not why_no_range:
        raise UserError(_proposed_range(count_V, images))
    lowest, highest = data.pixel_range
    first, last = _quantiles(count_V, MOST)
    total = count_V.sum()
    below = count_V[:lowest].sum()
    above = count_V[highest + 1 :].sum()
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
    example_of = {num_bits: name for name, num_bits in bits_of.items()}
    if len(example_of) > 1 and highest > BYTES[1]:
        yield (
            f"data.range=[{lowest},{highest}]: of {images}, some have 8 bits, such as"
            f" {example_of[8]}, and some 16 bits, such as {example_of[16]}. The images of 8 bits do"
            " not fit this range and count as unreadable"
        )
