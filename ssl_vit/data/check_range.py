"""Compares a few images of each split with what a recipe expects of their values, before a run
begins: how many `data.range` clips, how much of it they fill, and bits that are cut off.

Legend: V values of 16 bits.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeVar

import numpy as np

from ..errors import UserError
from ..formatting import option_text, text_line
from ..recipe.images import BYTES, Data
from . import transforms
from .channels import VALUES, planes
from .image_formats import format_of
from .measure_range import QUANTILES, quantiles, rows_to_measure
from .source import Source, read_each

Read = TypeVar("Read")
LOOKED_AT = 128  # images of a split
# Shares of values that are clipped; a measured range clips 0.002. A window of computed tomography
# leaves out most of an image, and 12 bits read as 16 or the reverse 15 of 16 values
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
    """An image file that is brought to RGB of 8 bits: the bits of its values, the highest that is
    left of those cut to 8 (0 of others), and how many images it holds."""

    bits: int
    highest: int
    images: int


def check(splits: Mapping[str, Source], data: Data, of_bytes: str = "") -> Checked:
    """Look at LOOKED_AT images of each split; `of_bytes`: why data.range= can take no more bits.

    Raises:
        UserError: data.range clips more than REFUSED of a split's values.
    """
    found = Checked({}, [])
    if not (data.path or data.hub):
        return found  # drawn
    if data.is_rgb:
        found.warnings.extend(_of_rgb(splits, of_bytes))
        return found
    for split, source in splits.items():
        _of_range(split, source, data, found)
    return found


def _read(source: Source, read: Callable[[bytes | np.ndarray], Read]) -> dict[str, Read]:
    """{name: what `read` makes of it} of the images that can be read."""
    found = {}
    for row in rows_to_measure(source, LOOKED_AT):
        one = np.array([row])
        for _, made in read_each(source, one, source.fetch(one)[0], read, []):
            found[text_line(source.name(row))] = made
    return found


def _of_rgb(splits: Mapping[str, Source], of_bytes: str) -> Iterator[str]:
    """Warnings of images that lose bits or pages on their way to RGB of 8 bits."""
    seen = {
        f"{name} of {split}": one
        for split, source in splits.items()
        for name, one in _read(source, _stored).items()
    }
    many = f"{len(seen):,} images that were looked at"
    wide = {name: one for name, one in seen.items() if one.bits > 8}
    if wide:
        name, one = next(iter(wide.items()))
        highest = max(each.highest for each in wide.values())
        used = min(one.bits, 16) - 8 + highest.bit_length()
        hint = f"data.range=[0,{2**used - 1}] keeps all, of grey images beside data.channels=1"
        if len(wide) < len(seen):
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
        return _Stored(8, 0, 1)
    form = format_of(raw)
    bits, images = (transforms.whole(read, raw) for read in (form.bits_cut, form.images))
    return _Stored(bits, int(transforms.decode(raw).max()) if bits > 8 else 0, images)


def _of_range(split: str, source: Source, data: Data, found: Checked) -> None:
    """Add what is clipped of a split, and warnings, to what was found.

    Raises:
        UserError: as `check`.
    """
    count_V = np.zeros(VALUES, np.int64)

    def bits_of(raw: bytes | np.ndarray) -> int:
        array = planes(raw, data.channels)
        count_V[:] += np.bincount(array.ravel(), minlength=VALUES)
        return 8 * array.itemsize

    bits = _read(source, bits_of)
    if not bits:
        return
    key = f"data.range={option_text(list(data.pixel_range))}"
    seen = f"{len(bits):,} images of {split} that were looked at"
    found.clipped[split] = _clipped_share(count_V, data, f"{key}: clips", seen, found.warnings)
    filled, theirs = _filled_share(count_V, data)
    if filled < FILLED:
        text = f"{key}: the values of {seen} fill {filled:.1%} of it, {theirs}"
        found.warnings.append(f"{text}: to the model they are almost one value")
    name_of = {number: name for name, number in bits.items()}
    if len(name_of) > 1 and data.pixel_range[1] > BYTES[1]:
        text = f"some of {seen} have 8 bits, such as {name_of[8]}, others 16, such as {name_of[16]}"
        found.warnings.append(f"{key}: {text}, and one range is used for both")


def _clipped_share(
    count_V: np.ndarray, data: Data, clips: str, seen: str, warnings: list[str]
) -> float:
    """The share of values beyond data.range; where it is above WARNED, a warning is added.

    Raises:
        UserError: it is above REFUSED.
    """
    lowest, highest = data.pixel_range
    below, above = count_V[:lowest].sum(), count_V[highest + 1 :].sum()
    share, low, high = (float(part / count_V.sum()) for part in (below + above, below, above))
    theirs = _filled_share(count_V, data)[1]
    text = f"{clips} {share:.1%} of the values of {seen} ({low:.1%} below it, {high:.1%} above)"
    if share > REFUSED:
        raise UserError(f"{text}; {theirs}: expected images of this range, or another range")
    if share > WARNED:
        warnings.append(f"{text}; {theirs}")
    return round(share, 6)


def _filled_share(count_V: np.ndarray, data: Data) -> tuple[float, str]:
    """The share of data.range that the values fill but for a few, and where they lie, in words."""
    lowest, highest = data.pixel_range
    first, last = quantiles(count_V)
    inside = min(last, highest) - max(first, lowest)
    share = max(inside, 0) / (highest - lowest)
    most = QUANTILES[1] - QUANTILES[0]
    return share, f"{most:.1%} of them lie from {first} to {last}"
