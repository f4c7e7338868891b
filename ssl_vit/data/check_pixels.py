"""What is looked at in a few images before a run begins: mean and std that are not given, the range
of 16 bits that has to be, how many values it clips and how much of it they fill, and bits and pages
that are left out.

Legend: C channels, V values of 16 bits.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple, TypeVar

import numpy as np

from ..errors import UserError
from ..formatting import option_text, text_line
from ..recipe.images import BYTES, Data, unmeasured
from . import decoding
from .batching import samples_at
from .source import Source

Read = TypeVar("Read")
VALUES = decoding.MOST_VALUE + 1
MEASURED, LOOKED_AT = 512, 128  # training images for mean and std; images of each split
SEED = 6  # of the order of which they are the first
DIGITS = 6  # of a mean and a std, as recipe.yaml has them
QUANTILES = (0.001, 0.999)  # between which "most" values lie
USUAL = (0.01, 0.99)  # quantiles by which a proposed range tells outliers
# Shares of values that are clipped. A window of computed tomography leaves out most of an image,
# and 12 bits read as 16 or the reverse 15 of 16 values
WARNED, REFUSED = 0.01, 0.9
OF_ENCODER = "the encoder knows values from 0 to 255"  # a frozen one
FILLED = 1 / 8  # of the range: what fills less is within one of the 8 classes of mean_channels


class Checked(NamedTuple):
    """What was found.

    Attributes:
        clipped: {split: share of its values that data.range clips}; empty of RGB of 8 bits.
        warnings: a line each.
    """

    clipped: dict[str, float]
    warnings: list[str]


class _Stored(NamedTuple):
    """An image file that is brought to RGB of 8 bits: the bits of its values; of more than 8 the
    highest that is left, and whether data.range= keeps all of them; and how many images it
    holds."""

    bits: int
    images: int
    highest: int = 0
    kept: bool = True


def complete(data: Data, train: Source) -> None:
    """Set data.mean and data.std, where they are left to be measured (`images.unmeasured`), to
    those of each channel within the range, of MEASURED training images.

    Raises:
        UserError: none of them can be read; or they have 16 bits, and data.range is not given.
    """
    missing = unmeasured(data)
    if not missing:
        return
    count_CV, bits, unreadable = _histogram(train, data.channels, MEASURED)
    if not bits:
        text = f"none of {len(unreadable)} training images can be read, the last {unreadable[-1]}"
        raise UserError(f"data.channels={data.channels}: {text}")
    if data.range is None and 16 in bits.values():
        raise UserError(_proposed_range(count_CV.sum(0), f"{len(bits):,} training images"))
    lowest, highest = data.pixel_range
    share_V = (np.arange(VALUES).clip(lowest, highest) - lowest) / (highest - lowest)
    weight_CV = count_CV / count_CV.sum(1, keepdims=True)
    mean_C = weight_CV @ share_V
    std_C = np.sqrt((weight_CV * (share_V - mean_C[:, None]) ** 2).sum(1))
    if "mean" in missing:
        data.mean = [float(f"{value:.{DIGITS}g}") for value in mean_C]
    if "std" in missing:  # a channel of one value stays at 0
        data.std = [float(f"{value:.{DIGITS}g}") or 1.0 for value in std_C]


def check(splits: Mapping[str, Source], data: Data, of_bytes: str = "") -> Checked:
    """Look at LOOKED_AT images of each split; `of_bytes`: why data.range= can take no more bits.

    Raises:
        UserError: data.range clips more than REFUSED of a split's values; or it could be given, is
            not, and there are images of 16 bits.
    """
    found = Checked({}, [])
    if not (data.path or data.hub):
        return found  # drawn
    if data.is_rgb:
        found.warnings.extend(_rgb_warnings(splits, of_bytes))
        return found
    for split, source in splits.items():
        _check_range(split, source, data, of_bytes, found)
    return found


def _read(
    source: Source, most: int, read: Callable[[bytes | np.ndarray], Read]
) -> tuple[dict[str, Read], list[str]]:
    """{name: what `read` makes of it} of the first images (at most so many) of a fixed random
    order, and those that cannot be read."""
    found, unreadable = {}, list[str]()
    rows = samples_at(0, min(most, len(source)), len(source), SEED).index
    for row in rows:  # one at a time: an image may have a hundred million values
        one = np.array([row])
        (raw,), _ = source.fetch(one)
        try:
            found[text_line(source.name(row))] = read(raw)
        except ValueError as error:
            unreadable.append(f"{source.name(row)}: {error}")
    return found, unreadable


def _histogram(
    source: Source, channels: int, most: int
) -> tuple[np.ndarray, dict[str, int], list[str]]:
    """Of at most so many images: how often each channel has each value, int64 (C, V), their bits by
    name, and those that cannot be read."""
    count_CV = np.zeros((channels, VALUES), np.int64)

    def bits_of(raw: bytes | np.ndarray) -> int:
        array_CHW = decoding.planes(raw, channels)
        for channel, plane in enumerate(array_CHW):
            count_CV[channel] += np.bincount(plane.ravel(), minlength=VALUES)
        return 8 * array_CHW.itemsize

    bits, unreadable = _read(source, most, bits_of)
    return count_CV, bits, unreadable


def _quantiles(count_V: np.ndarray, shares: tuple[float, float]) -> tuple[int, int]:
    """The smallest values that these shares of all do not exceed, of how often each is there."""
    share_V = count_V.cumsum() / count_V.sum()
    lowest, highest = (int(np.searchsorted(share_V, share)) for share in shares)
    return lowest, highest


def _proposed_range(count_V: np.ndarray, images: str) -> str:
    """The error that images of 16 bits need data.range, with what a user chooses it by, and the
    option: all values but outliers, those further from the USUAL ones than these lie apart."""
    seen_S = np.flatnonzero(count_V)
    low, high = _quantiles(count_V, USUAL)
    usual_S = seen_S[(seen_S >= 2 * low - high) & (seen_S <= 2 * high - low)]
    first = min(int(usual_S[0]), VALUES - 2)
    last = max(int(usual_S[-1]), first + 1)
    clipped, total = count_V[:first].sum() + count_V[last + 1 :].sum(), count_V.sum()
    return (
        f"data.range=null: {images} have 16 bits, and which values stand for 0 and 1 has to be"
        f" given; the lowest value is {seen_S[0]:,}, 1% are up to {low:,}, 99% up to {high:,}, the"
        f" highest is {seen_S[-1]:,}; add data.range=[{first},{last}], which clips {clipped:,} of"
        f" {total:,} values ({clipped / total:.2%})"
    )


def _rgb_warnings(splits: Mapping[str, Source], of_bytes: str) -> Iterator[str]:
    """Of images that lose bits or pages on their way to RGB of 8 bits."""
    seen = {
        f"{name} of {split}": one
        for split, source in splits.items()
        for name, one in _read(source, LOOKED_AT, _stored)[0].items()
    }
    many = f"{len(seen):,} images that were looked at"
    wide = {name: one for name, one in seen.items() if one.bits > 8}
    if wide:
        name, one = next(iter(wide.items()))
        highest = max(each.highest for each in wide.values())
        used = min(one.bits, 16) - 8 + highest.bit_length()
        hint = f"data.range=[0,{2**used - 1}] keeps all, of grey images beside data.channels=1"
        if not all(each.kept for each in wide.values()):
            hint = "as TIFF or .npy of one channel, or of data.channels=, data.range= keeps them"
        elif len(wide) < len(seen):
            hint = "the others have 8: data.range= takes files of the same bits"
        yield (
            f"{len(wide):,} of {many} have more than 8 bits ({one.bits} in {name}): they are cut to"
            f" 8, in which the highest value is {highest} of {BYTES[1]}; {of_bytes or hint}"
        )
    several = {name: one for name, one in seen.items() if one.images > 1}
    if several:
        name, one = next(iter(several.items()))
        yield (
            f"{len(several):,} of {many} have several pages ({one.images} in {name}): the first is"
            " used; data.channels=N takes pages as channels"
        )


def _stored(raw: bytes | np.ndarray) -> _Stored:
    if isinstance(raw, np.ndarray):
        return _Stored(8, 1)
    bits, images = (decoding.whole(read, raw) for read in (decoding.stored_bits, decoding.pages))
    if bits == 8:
        return _Stored(bits, images)
    kept = False
    for channels in (1, 3):
        with suppress(ValueError):
            decoding.planes(raw, channels)
            kept = True
    return _Stored(bits, images, int(decoding.decode(raw).max()), kept)


def _check_range(split: str, source: Source, data: Data, of_bytes: str, found: Checked) -> None:
    """Add what is clipped of a split, and warnings, to what was found.

    Raises:
        UserError: as `check`.
    """
    count_CV, bits, _ = _histogram(source, data.channels, LOOKED_AT)
    if not bits:
        return
    count_V = count_CV.sum(0)
    images = f"{len(bits):,} images of {split}"
    if data.range is None and 16 in bits.values() and not of_bytes:
        raise UserError(_proposed_range(count_V, images))
    lowest, highest = data.pixel_range
    key = f"data.range={option_text([lowest, highest])}"
    seen = f"{images} that were looked at"
    first, last = _quantiles(count_V, QUANTILES)
    theirs = f"{QUANTILES[1] - QUANTILES[0]:.1%} of them lie from {first} to {last}"

    below, above = count_V[:lowest].sum(), count_V[highest + 1 :].sum()
    share, low, high = (float(part / count_V.sum()) for part in (below + above, below, above))
    text = f"{key}: clips {share:.1%} of the values of {seen} ({low:.1%} below it, {high:.1%} above"
    if share > REFUSED:
        raise UserError(f"{text}); {theirs}: expected images of this range, or another range")
    if share > WARNED:
        found.warnings.append(f"{text}); {theirs}")
    found.clipped[split] = round(share, 6)

    filled = max(min(last, highest) - max(first, lowest), 0) / (highest - lowest)
    if filled < FILLED:
        text = f"{key}: the values of {seen} fill {filled:.1%} of it, {theirs}"
        found.warnings.append(f"{text}: to the model they are almost one value")
    name_of = {number: name for name, number in bits.items()}
    if len(name_of) > 1 and highest > BYTES[1]:
        text = f"some of {seen} have 8 bits, such as {name_of[8]}, others 16, such as {name_of[16]}"
        found.warnings.append(f"{key}: {text}, and one range is used for both")
