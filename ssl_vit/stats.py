"""Intervals for results of a few seeds on one test split: Student's t, a bootstrap over seeds and
images, Wilson's interval; and of two encoders on the same images.

An image may be in a split several times. Its copies are no independent cases, so intervals over
images resample distinct contents. docs/evaluate.md says what each interval covers.

Legend: S seeds, T draws of few-shot images, M images, C distinct contents, U the distinct columns
of an (S, C) table, B resamples. All intervals are two-sided, 95%.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import special  # not scipy.stats, whose import takes half a second of every command

RESAMPLES = 10_000
TAIL = 0.025  # on each side
ENTRIES = 4_000_000  # of one block of resampled counts: bounds memory when many columns differ


class Interval(NamedTuple):
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0


class SeedSummary(NamedTuple):
    """Of n values: their mean, standard deviation (n - 1 degrees of freedom) and the mean's
    t-interval; one value has neither of the last two."""

    n: int
    mean: float
    sd: float | None
    interval: Interval | None


def as_json(value: Any) -> Any:
    """Numbers as JSON takes them: an interval is a list of two, every other record an object, what
    is not finite null."""
    if isinstance(value, tuple) and hasattr(value, "_asdict") and not isinstance(value, Interval):
        value = value._asdict()
    if isinstance(value, dict):
        return {str(key): as_json(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def t_factor(n: int, family: int = 1) -> float:
    """The quantile of Student's t with n - 1 degrees of freedom, n >= 2, that leaves TAIL above,
    divided among so many intervals (Bonferroni)."""
    return float(special.stdtrit(n - 1, 1 - TAIL / family))


def reach(n: int, family: int = 1) -> float:
    """Half the t-interval of the mean of n >= 2 values, in standard deviations; so wide that of
    `family` such intervals all hold their means with 95%."""
    return t_factor(n, family) / math.sqrt(n)


def summarize(values: Sequence[float], family: int = 1) -> SeedSummary:
    """Mean, standard deviation and t-interval of a metric's values over seeds, or of paired
    differences; `family` as in `reach`."""
    n = len(values)
    mean = float(np.mean(values))
    if n == 1:
        return SeedSummary(1, mean, None, None)
    sd = float(np.std(values, ddof=1))
    half = reach(n, family) * sd
    return SeedSummary(n, mean, sd, Interval(mean - half, mean + half))


def effective_number(copies_C: np.ndarray) -> float:
    """Return how many independent images a split with so many copies of each content is worth:
    n^2 / sum of squares (Kish, 1965), which is n if all contents are distinct.
    """
    return float(copies_C.sum() ** 2 / (copies_C**2).sum())


def proportion(share: float, n: float) -> Interval:
    """Wilson's interval of a share of n independent cases (Wilson, 1927). With copies of images, n
    is their `effective_number`."""
    z = float(special.ndtri(1 - TAIL))
    middle = share + z**2 / (2 * n)
    half = z * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    low = (middle - half) / (1 + z**2 / n)
    high = (middle + half) / (1 + z**2 / n)
    # rounding would put 0 and 1 just outside
    return Interval(min(max(low, 0.0), share), max(min(high, 1.0), share))


def paired_difference(
    difference_M: np.ndarray, effective: float | None = None
) -> tuple[float, Interval]:
    """The mean of paired differences of M images, each from -1 to 1 (of two encoders on the same
    image: 1 where only the first is right, -1 where only the second is), and its interval.

    Agresti and Min's (2005): Wald's, after half an image was added to each of the four cells of
    right and wrong; so a few images that differ are no finding. With copies of images, `effective`
    is their `effective_number`.
    """
    n = len(difference_M) if effective is None else effective
    weight = n / len(difference_M)
    total = weight * float(difference_M.sum())
    mean = total / (n + 2)
    variance = (weight * float((difference_M**2).sum()) + 1) / (n + 2) - mean**2
    half = float(special.ndtri(1 - TAIL)) * math.sqrt(variance / (n + 2))
    return total / n, Interval(max(mean - half, -1.0), min(mean + half, 1.0))


def over_draws(value_T: Sequence[float], images: Interval, least: float = 0.0) -> Interval:
    """Widen an interval over test images to one that covers the draws of few-shot images too.

    Student's t over the draws is added to each end in squares (Zou and Donner, 2008). So the
    interval is never narrower than either, and is that over images where all draws agree.

    Args:
        value_T: the accuracy, or the difference of two, of each draw on all test images.
        images: the interval of its mean over test images.
        least: the lowest possible value: 0 of an accuracy, -1 of a difference.

    Returns:
        The interval over images itself for one draw, which says nothing of others.
    """
    mean, draws = float(np.mean(value_T)), summarize(value_T).interval
    if draws is None:
        return images
    half = draws.high - mean
    low = mean - math.hypot(max(mean - images.low, 0.0), half)
    high = mean + math.hypot(max(images.high - mean, 0.0), half)
    return Interval(max(low, least), min(high, 1.0))


def by_content(table_MK: np.ndarray, content_M: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Sum the numbers of each image over the copies of its content.

    Args:
        table_MK: K numbers of each image.
        content_M: a number of each image's content; None where all are distinct.

    Returns:
        The sums (C, K) and how many copies each content has (C,). Where all contents are distinct,
        the table as it is.
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
    """Percentile interval of the difference of two scores of the same M images, resampled together
    (Efron, 1979), where a score is no mean over images.

    Args:
        one_MK, other_MK: K numbers of each image.
        score: from sums over images (R, K) to R scores.
        resamples: the number of resamples.
        seed: of the generator: the same numbers give the same interval.
        content_M: as in `by_content`: the copies of an image are resampled together.
    """
    one_CK, other_CK = (by_content(each, content_M)[0] for each in (one_MK, other_MK))
    contents = len(one_CK)
    generator = np.random.default_rng(seed)
    found = []
    for draws in _blocks(resamples, max(1, ENTRIES // contents)):
        count_RC = generator.multinomial(contents, np.full(contents, 1 / contents), draws)
        found.append(score(count_RC @ one_CK) - score(count_RC @ other_CK))
    low, high = np.nanquantile(np.concatenate(found), [TAIL, 1 - TAIL])
    return Interval(float(low), float(high))


def resampled_interval(
    correct_SM: np.ndarray,
    resamples: int = RESAMPLES,
    seed: int = 0,
    family: int = 1,
    content_M: np.ndarray | None = None,
) -> Interval | None:
    """Percentile interval of the mean of a table of seeds by images, both resampled together (the
    pigeonhole bootstrap of Owen, 2007).

    Args:
        correct_SM: integers: 1 where that seed's network classifies that image correctly; or the
            difference of two arms' tables, for a paired comparison.
        resamples: the number of resamples.
        seed: of the generator: the same table gives the same interval.
        family: as in `reach`.
        content_M: as in `by_content`: the copies of an image are resampled together.

    Returns:
        None for one seed. Few seeds, resampled, reach no further than the best and the worst of
        them, so the seeds' part of each resample is stretched to the width of Student's t, by
        sqrt(S / (S - 1)) t / z (Hesterberg, 2015, does so to the percentiles). Without it intervals
        of three seeds cover as little as 83% in place of 95%. Two or three seeds, resampled, are
        too few for smooth percentiles, so an end is never inside that of Student's t over the seeds
        alone.
    """
    seeds = len(correct_SM)
    if seeds == 1:
        return None
    tail = TAIL / family
    normal = float(special.ndtri(1 - tail))
    stretch = math.sqrt(seeds / (seeds - 1)) * t_factor(seeds, family) / normal
    correct_CS, copies_C = by_content(correct_SM.T, content_M)
    # contents with the same column are interchangeable: drawn by count
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
