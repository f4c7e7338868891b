"""Intervals for results of a few seeds on one test split: Student's t, a bootstrap over seeds and
images, Wilson's interval; and of two encoders on the same images.

Legend: S seeds, M images, U the distinct columns of an (S, M) table, B resamples. All intervals are
two-sided, 95%.
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


def proportion(share: float, n: int) -> Interval:
    """Wilson's interval of a share of n independent cases (Wilson, 1927)."""
    z = float(special.ndtri(1 - TAIL))
    middle = share + z**2 / (2 * n)
    half = z * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    low = (middle - half) / (1 + z**2 / n)
    high = (middle + half) / (1 + z**2 / n)
    # rounding would put 0 and 1 just outside
    return Interval(min(max(low, 0.0), share), max(min(high, 1.0), share))


def paired_difference(difference_M: np.ndarray) -> tuple[float, Interval]:
    """The mean of paired differences of M images, each from -1 to 1 (of two encoders on the same
    image: 1 where only the first is right, -1 where only the second is), and its interval.

    Agresti and Min's (2005): Wald's, after half an image was added to each of the four cells of
    right and wrong; so a few images that differ are no finding.
    """
    n, total = len(difference_M), float(difference_M.sum())
    mean = total / (n + 2)
    variance = (float((difference_M**2).sum()) + 1) / (n + 2) - mean**2
    half = float(special.ndtri(1 - TAIL)) * math.sqrt(variance / (n + 2))
    return total / n, Interval(max(mean - half, -1.0), min(mean + half, 1.0))


def resampled_difference(
    one_MK: np.ndarray,
    other_MK: np.ndarray,
    score: Callable[[np.ndarray], np.ndarray],
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """Percentile interval of the difference of two scores of the same M images, resampled together
    (Efron, 1979), where a score is no mean over images.

    Args:
        one_MK, other_MK: K numbers of each image.
        score: from sums over images (R, K) to R scores.
        resamples: the number of resamples.
        seed: of the generator: the same numbers give the same interval.
    """
    images = len(one_MK)
    generator = np.random.default_rng(seed)
    found = []
    for draws in _blocks(resamples, max(1, ENTRIES // images)):
        count_RM = generator.multinomial(images, np.full(images, 1 / images), draws)
        found.append(score(count_RM @ one_MK) - score(count_RM @ other_MK))
    low, high = np.nanquantile(np.concatenate(found), [TAIL, 1 - TAIL])
    return Interval(float(low), float(high))


def resampled_interval(
    correct_SM: np.ndarray, resamples: int = RESAMPLES, seed: int = 0, family: int = 1
) -> Interval | None:
    """Percentile interval of the mean of a table of seeds by images, both resampled together (the
    pigeonhole bootstrap of Owen, 2007).

    Args:
        correct_SM: integers: 1 where that seed's network classifies that image correctly; or the
            difference of two arms' tables, for a paired comparison.
        resamples: the number of resamples.
        seed: of the generator: the same table gives the same interval.
        family: as in `reach`.

    Returns:
        None for one seed. Few seeds, resampled, reach no further than the best and the worst of
        them, so the seeds' part of each resample is stretched to the width of Student's t, by
        sqrt(S / (S - 1)) t / z (Hesterberg, 2015, does so to the percentiles). Without it intervals
        of three seeds cover as little as 83% in place of 95%. Two or three seeds, resampled, are
        too few for smooth percentiles, so an end is never inside that of Student's t over the seeds
        alone.
    """
    seeds, images = correct_SM.shape
    if seeds == 1:
        return None
    tail = TAIL / family
    normal = float(special.ndtri(1 - tail))
    stretch = math.sqrt(seeds / (seeds - 1)) * t_factor(seeds, family) / normal
    # images with the same column are interchangeable: drawn by count
    column_SU, count_U = np.unique(correct_SM, axis=1, return_counts=True)
    mean_S = correct_SM.mean(1)
    generator = np.random.default_rng(seed)
    means = []
    for draws in _blocks(resamples, max(1, ENTRIES // len(count_U))):
        seeds_BS = generator.multinomial(seeds, np.full(seeds, 1 / seeds), draws)
        images_BU = generator.multinomial(images, count_U / images, draws)
        mean_B = ((seeds_BS @ column_SU) * images_BU).sum(1) / (seeds * images)
        means.append(mean_B + (stretch - 1) * (seeds_BS @ mean_S / seeds - mean_S.mean()))
    low, high = np.quantile(np.concatenate(means), [tail, 1 - tail])
    alone = summarize(mean_S.tolist(), family).interval
    assert alone is not None
    return Interval(min(float(low), alone.low), max(float(high), alone.high))


def _blocks(total: int, size: int) -> list[int]:
    return [min(size, total - start) for start in range(0, total, size)]
