"""Compute intervals for results of a few seeds on one test split, and for paired comparisons.

Provides Student's t, a bootstrap over seeds and images, Wilson's interval, and intervals for two
encoders on the same images. An image may be in a split several times. Copies are not independent
cases, so intervals over images resample distinct contents. docs/evaluate.md says what each interval
covers.

Legend: S seeds, T draws of few-shot images, M images, C distinct contents, U the distinct columns
of an (S, C) table, B resamples. All intervals are two-sided, 95%.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import special  # not scipy.stats, whose import takes half a second of every command

RESAMPLES = 10_000
TAIL = 0.025  # probability outside of the interval on each side
ENTRIES = 4_000_000  # size of a block of resampled counts, to bound memory if many columns differ


class Interval(NamedTuple):
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0


class SeedSummary(NamedTuple):
    """Summary of n values.

    Attributes:
        n: number of values.
        mean: mean.
        sd: standard deviation with n - 1 degrees of freedom, None for one value.
        interval: t-interval of the mean, None for one value.
    """

    n: int
    mean: float
    sd: float | None
    interval: Interval | None


def as_json(value: Any) -> Any:
    """Convert a value to what JSON can represent.

    An interval becomes a list of two numbers, any other record an object, and a number that is not
    finite null.
    """
    if isinstance(value, tuple) and hasattr(value, "_asdict") and not isinstance(value, Interval):
        value = value._asdict()
    if isinstance(value, dict):
        return {str(key): as_json(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def t_factor(n: int, family: int = 1) -> float:
    """Return the quantile of Student's t with n - 1 degrees of freedom, n >= 2, that leaves TAIL
    above.

    TAIL is divided by `family`, the number of intervals (Bonferroni).
    """
    return float(special.stdtrit(n - 1, 1 - TAIL / family))


def reach(n: int, family: int = 1) -> float:
    """Return half the width of the t-interval of the mean of n >= 2 values, in standard deviations.

    With `family` intervals of this width, all intervals cover their means with a probability of
    95%.
    """
    return t_factor(n, family) / math.sqrt(n)


def summarize(values: Sequence[float], family: int = 1) -> SeedSummary:
    """Return mean, standard deviation and t-interval of values over seeds, or of paired
    differences.

    Args:
        values: a value for each seed.
        family: see `reach`.
    """
    n = len(values)
    mean = float(np.mean(values))
    if n == 1:
        return SeedSummary(1, mean, None, None)
    sd = float(np.std(values, ddof=1))
    half = reach(n, family) * sd
    return SeedSummary(n, mean, sd, Interval(mean - half, mean + half))


def effective_number(copies_C: np.ndarray) -> float:
    """Return how many independent images a split with copies is worth.

    It is n^2 / sum of squares (Kish, 1965), which is n if all contents are distinct.

    Args:
        copies_C: how many copies the split has of each content.
    """
    return float(copies_C.sum() ** 2 / (copies_C**2).sum())


def proportion(share: float, n: float) -> Interval:
    """Return Wilson's interval of a share of n independent cases (Wilson, 1927).

    With copies of images, n is the `effective_number`.
    """
    z = float(special.ndtri(1 - TAIL))
    middle = share + z**2 / (2 * n)
    half = z * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    low = (middle - half) / (1 + z**2 / n)
    high = (middle + half) / (1 + z**2 / n)
    # Without min and max, rounding would put shares of 0 and 1 just outside of the interval
    return Interval(min(max(low, 0.0), share), max(min(high, 1.0), share))


def paired_difference(
    difference_M: np.ndarray, effective: float | None = None
) -> tuple[float, Interval]:
    """Return the mean of paired differences of M images, and an interval.

    The interval is that of Agresti and Min (2005): Wald's, after half an image was added to each of
    the four combinations of right and wrong. Therefore a few images that differ are no significant
    result.

    Args:
        difference_M: differences from -1 to 1. For two encoders on the same image: 1 if only the
            first is right, -1 if only the second is right.
        effective: with copies of images, the `effective_number`.
    """
    n = len(difference_M) if effective is None else effective
    weight = n / len(difference_M)
    total = weight * float(difference_M.sum())
    mean = total / (n + 2)
    variance = (weight * float((difference_M**2).sum()) + 1) / (n + 2) - mean**2
    half = float(special.ndtri(1 - TAIL)) * math.sqrt(variance / (n + 2))
    return total / n, Interval(max(mean - half, -1.0), min(mean + half, 1.0))


def over_draws(value_T: Sequence[float], images: Interval, least: float = 0.0) -> Interval:
    """Widen an interval over test images so that it also covers the draws of few-shot images.

    Student's t over the draws is added to each end in squares (Zou and Donner, 2008). The interval
    is never narrower than either interval, and equals the interval over images if all draws agree.

    Args:
        value_T: the accuracy, or the difference of two accuracies, for each draw on all test
            images.
        images: the interval over test images of the mean of `value_T`.
        least: the lowest possible value: 0 for an accuracy, -1 for a difference.

    Returns:
        The widened interval. With one draw, the interval over images, because one draw does not
        show how much draws differ.
    """
    mean, draws = float(np.mean(value_T)), summarize(value_T).interval
    if draws is None:
        return images
    half = draws.high - mean
    low = mean - math.hypot(max(mean - images.low, 0.0), half)
    high = mean + math.hypot(max(images.high - mean, 0.0), half)
    return Interval(max(low, least), min(high, 1.0))


def by_content(table_MK: np.ndarray, content_M: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Sum the numbers of each image over the copies of the same content.

    Args:
        table_MK: K numbers of each image.
        content_M: a number for the content of each image. None: all contents are distinct.

    Returns:
        The sums (C, K) and how many copies each content has (C,). If all contents are distinct, the
        table is returned unchanged.
    """
    if content_M is not None:
        _, place_M, copies_C = np.unique(content_M, return_inverse=True, return_counts=True)
        if len(copies_C) < len(content_M):
            sum_CK = np.zeros((len(copies_C), *table_MK.shape[1:]), table_MK.dtype)
            np.add.at(sum_CK, place_M, table_MK)
            return sum_CK, copies_C
    return table_MK, np.ones(len(table_MK), np.int64)


def resampled_difference(
    one_MK: np.ndarray,
    other_MK: np.ndarray,
    score: Callable[[np.ndarray], np.ndarray],
    resamples: int = 2000,
    seed: int = 0,
    content_M: np.ndarray | None = None,
) -> Interval:
    """Return a percentile interval of the difference of two scores that are not means over images.

    The M images of both scores are the same and are resampled together (Efron, 1979).

    Args:
        one_MK, other_MK: K numbers of each image.
        score: turns sums over images (R, K) into R scores.
        resamples: number of resamples.
        seed: seed of the generator. The same numbers give the same interval.
        content_M: see `by_content`. Copies of an image are resampled together.
    """
    one_CK, other_CK = (by_content(each, content_M)[0] for each in (one_MK, other_MK))
    contents = len(one_CK)
    generator = np.random.default_rng(seed)
    differences = []
    for draws in _blocks(resamples, max(1, ENTRIES // contents)):
        count_RC = generator.multinomial(contents, np.full(contents, 1 / contents), draws)
        differences.append(score(count_RC @ one_CK) - score(count_RC @ other_CK))
    low, high = np.nanquantile(np.concatenate(differences), [TAIL, 1 - TAIL])
    return Interval(float(low), float(high))


def resampled_interval(
    correct_SM: np.ndarray,
    resamples: int = RESAMPLES,
    seed: int = 0,
    family: int = 1,
    content_M: np.ndarray | None = None,
) -> Interval | None:
    """Return a percentile interval of the mean of a table of seeds by images.

    Seeds and images are resampled together (the pigeonhole bootstrap of Owen, 2007). Resamples of a
    few seeds reach no further than the best and the worst seed. Therefore the part of the seeds in
    each resample is stretched to the width of Student's t, by sqrt(S / (S - 1)) t / z (Hesterberg,
    2015, stretches the percentiles in this way). Without stretching, intervals of three seeds cover
    as little as 83% instead of 95%. Two or three seeds are too few for smooth percentiles, so an
    end is never inside Student's t interval over the seeds alone.

    Args:
        correct_SM: integers, 1 if the network of a seed classifies an image correctly. For a paired
            comparison, the difference of two arms' tables.
        resamples: number of resamples.
        seed: seed of the generator. The same table gives the same interval.
        family: see `reach`.
        content_M: see `by_content`. Copies of an image are resampled together.

    Returns:
        The interval, or None for one seed.
    """
    seeds = len(correct_SM)
    if seeds == 1:
        return None
    tail = TAIL / family
    normal = float(special.ndtri(1 - tail))
    stretch = math.sqrt(seeds / (seeds - 1)) * t_factor(seeds, family) / normal
    correct_CS, copies_C = by_content(correct_SM.T, content_M)
    # Contents with the same column are interchangeable, so only their counts are drawn
    table = np.vstack([correct_CS.T, copies_C])
    (*column_SU, copies_U), count_U = np.unique(table, axis=1, return_counts=True)
    contents = len(copies_C)
    mean_S = correct_SM.mean(1)
    generator = np.random.default_rng(seed)
    means = []
    for draws in _blocks(resamples, max(1, ENTRIES // len(count_U))):
        seeds_BS = generator.multinomial(seeds, np.full(seeds, 1 / seeds), draws)
        contents_BU = generator.multinomial(contents, count_U / contents, draws)
        images_B = contents_BU @ copies_U
        mean_B = ((seeds_BS @ np.stack(column_SU)) * contents_BU).sum(1) / (seeds * images_B)
        means.append(mean_B + (stretch - 1) * (seeds_BS @ mean_S / seeds - mean_S.mean()))
    low, high = np.quantile(np.concatenate(means), [tail, 1 - tail])
    alone = summarize(mean_S.tolist(), family).interval
    assert alone is not None
    return Interval(min(float(low), alone.low), max(float(high), alone.high))


def _blocks(total: int, size: int) -> list[int]:
    return [min(size, total - start) for start in range(0, total, size)]
