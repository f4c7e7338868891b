"""Measures on training images what `data.range`, `data.mean` and `data.std` are where they are not
given: once, before a run begins; its recipe.yaml has them from then on.

Legend: C channels, V values of 16 bits.
"""

import numpy as np

from ..errors import UserError
from ..recipe.images import BYTES, Data, unmeasured
from .batching import samples_at
from .channels import VALUES, planes
from .source import Source, read_each

MEASURED = 512  # training images
QUANTILES = (0.001, 0.999)  # of the values of 16 bits that are their range
SEED = 6  # of the order of which they are the first
DIGITS = 6  # of a mean and a std, as recipe.yaml has them


def complete(data: Data, train: Source) -> None:
    """Replace what is left to be measured (`images.unmeasured`) by what MEASURED training images
    have: the range (of 8
    bits 0 to 255, of 16 bits the QUANTILES of all channels together), mean and std of each channel
    within it.

    Raises:
        UserError: none of them can be read.
    """
    missing = unmeasured(data)
    if not missing:
        return
    count_CV, of_bytes = _histogram(data, train)
    if data.range is None:
        data.range = list(BYTES) if of_bytes else _range(count_CV.sum(0))
    lowest, highest = data.range
    share_V = (np.arange(VALUES).clip(lowest, highest) - lowest) / (highest - lowest)
    weight_CV = count_CV / count_CV.sum(1, keepdims=True)
    mean_C = weight_CV @ share_V
    std_C = np.sqrt((weight_CV * (share_V - mean_C[:, None]) ** 2).sum(1))
    if "mean" in missing:
        data.mean = [float(f"{value:.{DIGITS}g}") for value in mean_C]
    if "std" in missing:  # a channel of one value stays at 0
        data.std = [float(f"{value:.{DIGITS}g}") or 1.0 for value in std_C]


def _histogram(data: Data, train: Source) -> tuple[np.ndarray, bool]:
    """How often each channel has each value, int64 (C, V), and whether all are of 8 bits."""
    count_CV = np.zeros((data.channels, VALUES), np.int64)
    of_bytes = True
    unreadable: list[str] = []
    rows = rows_to_measure(train, MEASURED)
    for row in rows:  # one at a time: an image may have a hundred million values
        raw, _ = train.fetch(np.array([row]))
        read = read_each(
            train, np.array([row]), raw, lambda one: planes(one, data.channels), unreadable
        )
        for _, array_CHW in read:
            of_bytes = of_bytes and array_CHW.dtype == np.uint8
            for channel, plane in enumerate(array_CHW):
                count_CV[channel] += np.bincount(plane.ravel(), minlength=VALUES)
    if not count_CV.any():
        text = f"none of {len(rows)} training images can be read, the last {unreadable[-1]}"
        raise UserError(f"data.channels={data.channels}: {text}")
    return count_CV, of_bytes


def rows_to_measure(source: Source, most: int) -> np.ndarray:
    """The first rows (at most so many) of a source in a fixed random order."""
    return samples_at(0, min(most, len(source)), len(source), SEED).index


def quantiles(count_V: np.ndarray) -> tuple[int, int]:
    """The smallest values that QUANTILES of all do not exceed, of how often each value is there."""
    share_V = count_V.cumsum() / count_V.sum()
    lowest, highest = (int(np.searchsorted(share_V, share)) for share in QUANTILES)
    return lowest, highest


def _range(count_V: np.ndarray) -> list[int]:
    """The quantiles, or around one value a range of two."""
    lowest, highest = quantiles(count_V)
    lowest = min(lowest, VALUES - 2)
    return [lowest, max(highest, lowest + 1)]
