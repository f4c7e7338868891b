"""Compute intervals for results of a few seeds on one test split, and for paired comparisons.

Provides Student's t, a bootstrap over seeds and images, Wilson's interval, and intervals for two
encoders on the same images. A split may contain copies of an image. Copies are not independent
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
ENTRIES = 4_000_000  # most numbers in a table of resampled counts, to bound the memory


class Interval(NamedTuple):
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0


class SeedSummary(NamedTuple):
    """Summary of n values.

    Attributes:
        n: Number of values.
        mean: Mean.
        sd: Standard deviation with n - 1 degrees of freedom, None for one value.
        interval: T-interval of the mean, None for one value.
    """

    n: int
    mean: float
    sd: float | None
    interval: Interval | None


def as_json(value: Any) -> Any:
    """Convert a value for JSON.

    An `Interval` becomes a list of two numbers. Any other named tuple becomes a dictionary. NaN and
    infinite numbers become None. Lists and dictionaries are converted element by element.
    """
    if isinstance(value, tuple) and hasattr(value, "_asdict") and not isinstance(value, Interval):
        value = value._asdict()
    if isinstance(value, dict):
        return {str(key): as_json(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def t_factor(n: int, family: int = 1) -> float:
    """Return the half width of a two-sided 95% t-interval, in standard errors of the mean.

    This is the quantile of Student's t with n - 1 degrees of freedom at the probability
    1 - 0.025 / family (Bonferroni's correction).

    Args:
        n: Number of values, at least 2.
        family: Number of intervals that jointly cover their means with a probability of 95%.
    """
    return float(special.stdtrit(n - 1, 1 - TAIL / family))


def t_half_width(n: int, family: int = 1) -> float:
    """Return the half width of a two-sided 95% t-interval, in standard deviations of the values.

    Args:
        n: Number of values, at least 2.
        family: Number of intervals that jointly cover their means with a probability of 95%.
    """
    return t_factor(n, family) / math.sqrt(n)


def summarize(values: Sequence[float], family: int = 1) -> SeedSummary:
    """Return the mean, the standard deviation and the t-interval of values over seeds.

    Args:
        values: A value or a paired difference for each seed.
        family: Number of intervals that jointly cover their means with a probability of 95%.
    """
    n = len(values)
    mean = float(np.mean(values))
    if n == 1:
        return SeedSummary(1, mean, None, None)
    sd = float(np.std(values, ddof=1))
    half = t_half_width(n, family) * sd
    return SeedSummary(n, mean, sd, Interval(mean - half, mean + half))


def effective_number(copies_C: np.ndarray) -> float:
    """Return the effective number of independent images in a split with copies of images.

    With copies, an accuracy is less precise. The effective number is how many distinct images would
    give the same precision. With n_c copies of content c, this is (sum n_c)^2 / sum n_c^2 (Kish,
    1965). Without copies, this is the number of images.

    Args:
        copies_C: Number of copies of each content, shape (C,).
    """
    return float(copies_C.sum() ** 2 / (copies_C**2).sum())


def wilson_interval(share: float, n: float) -> Interval:
    """Return Wilson's interval of an accuracy (Wilson, 1927).

    Args:
        share: Share of correct cases, from 0 to 1.
        n: Number of independent cases. With copies of images, the `effective_number`.
    """
    z = float(special.ndtri(1 - TAIL))
    middle = share + z**2 / (2 * n)
    half = z * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    low = (middle - half) / (1 + z**2 / n)
    high = (middle + half) / (1 + z**2 / n)
    # Due to rounding, shares of 0 and 1 may be just outside of the interval, so widen the interval
    return Interval(min(max(low, 0.0), share), max(min(high, 1.0), share))


def paired_difference(
    difference_M: np.ndarray, effective: float | None = None
) -> tuple[float, Interval]:
    """Return the mean of paired differences over images, and an interval of the mean.

    The interval is Wald's interval with two added images: half an image for each of the four
    combinations of right and wrong of two encoders (Agresti and Min, 2005). Without added images,
    the interval would exclude 0 too easily if the encoders differ on only a few images.

    Args:
        difference_M: Differences from -1 to 1, shape (M,). For two encoders on the same image: 1 if
            only the first is right, -1 if only the second is right.
        effective: Effective number of independent images (`effective_number`) in a split with
            copies. None: all images are distinct.

    Returns:
        The mean of the differences, without the two added images, and the 95% interval.
    """
    n = len(difference_M) if effective is None else effective
    weight = n / len(difference_M)
    total = weight * float(difference_M.sum())
    # the added images raise n by 2 and the sum of squares by 1, and leave the sum unchanged
    mean = total / (n + 2)
    variance = (weight * float((difference_M**2).sum()) + 1) / (n + 2) - mean**2
    half = float(special.ndtri(1 - TAIL)) * math.sqrt(variance / (n + 2))
    return total / n, Interval(max(mean - half, -1.0), min(mean + half, 1.0))


def widen_over_draws(value_T: Sequence[float], images: Interval, least: float = 0.0) -> Interval:
    """Widen an interval over test images, to cover also the random draws of few-shot images.

    Let a be the distance from the mean to an end of the interval over images, and b the half width
    of Student's t interval over draws. The widened distance is sqrt(a^2 + b^2) on each side (Zou
    and Donner, 2008). If all draws agree, b is 0 and the interval stays the same.

    Args:
        value_T: Accuracy, or difference of two accuracies, of each draw on all test images, shape
            (T,).
        images: Interval over test images of the mean of `value_T`.
        least: Lowest possible value: 0 for an accuracy, -1 for a difference.

    Returns:
        The widened interval. With one draw, the unchanged interval, because one draw does not show
        how much draws differ.
    """
    mean, draws = float(np.mean(value_T)), summarize(value_T).interval
    if draws is None:
        return images
    half = draws.high - mean
    low = mean - math.hypot(max(mean - images.low, 0.0), half)
    high = mean + math.hypot(max(images.high - mean, 0.0), half)
    return Interval(max(low, least), min(high, 1.0))


def sum_copies(table_MK: np.ndarray, content_M: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Sum the rows of images with the same content.

    For example, the rows 1, 0, 1 with the contents 7, 8, 7 give the sums 2, 0 and the copies 2, 1.
    If all contents are distinct, the table is returned unchanged.

    Args:
        table_MK: K numbers of each image.
        content_M: Identifier of the content of each image. None: all contents are distinct.

    Returns:
        The sums (C, K), and the number of copies of each content, int64 (C,).
    """
    if content_M is not None:
        _, index_M, copies_C = np.unique(content_M, return_inverse=True, return_counts=True)
        if len(copies_C) < len(content_M):
            sum_CK = np.zeros((len(copies_C), *table_MK.shape[1:]), table_MK.dtype)
            np.add.at(sum_CK, index_M, table_MK)
            return sum_CK, copies_C
    return table_MK, np.ones(len(table_MK), np.int64)


def resampled_difference(
    first_MK: np.ndarray,
    second_MK: np.ndarray,
    score: Callable[[np.ndarray], np.ndarray],
    resamples: int = 2000,
    seed: int = 0,
    content_M: np.ndarray | None = None,
) -> Interval:
    """Return a bootstrap interval of the difference of two scores, such as two mean IoUs.

    A resample draws images at random with replacement. An image and its copies are drawn together.
    Both scores of a resample are computed from the same images: the K numbers of each image are
    summed over the images, and `score` turns the sums into a score. For a mean IoU, the numbers are
    the pixels in the intersection and in the union for each class. The ends of the interval are
    percentiles (Efron, 1979).

    Args:
        first_MK: K numbers of each image for the first score, shape (M, K).
        second_MK: K numbers of each image for the second score, shape (M, K).
        score: Function from sums over images (B, K) to scores (B,).
        resamples: Number of resamples.
        seed: Seed of the generator. The same numbers give the same interval.
        content_M: Identifier of the content of each image. Images with the same content are
            resampled together. None: all contents are distinct.
    """
    first_CK, _ = sum_copies(first_MK, content_M)
    second_CK, _ = sum_copies(second_MK, content_M)
    contents = len(first_CK)
    generator = np.random.default_rng(seed)
    differences = []
    # in blocks, so that a table of counts has at most ENTRIES numbers
    for draws in _blocks(resamples, max(1, ENTRIES // contents)):
        # count how often each resample draws each content (an image and its copies)
        count_BC = generator.multinomial(contents, np.full(contents, 1 / contents), draws)
        differences.append(score(count_BC @ first_CK) - score(count_BC @ second_CK))
    # a score may be NaN, for example if a resample has no pixel of any class
    low, high = np.nanquantile(np.concatenate(differences), [TAIL, 1 - TAIL])
    return Interval(float(low), float(high))


class ImageErrors(NamedTuple):
    """Standard errors of a mean over seeds and images, due to the random choice of images.

    Attributes:
        shared: Error that all seeds have in common. More seeds do not reduce this error.
        single: Error of the mean of a single seed: the shared error, plus errors that differ
            between seeds.
    """

    shared: float
    single: float

    def with_seeds(self, n: int) -> float:
        """Return the standard error of a mean over n seeds, as in `resampled_interval`.

        More seeds reduce the variance that differs between seeds. The bootstrap counts this
        variance twice: when images are drawn, and when seeds and images are drawn together (Owen,
        2007).
        """
        differing = max(0.0, self.single**2 - self.shared**2)
        return math.sqrt(self.shared**2 + 2 * differing / n)


def image_errors(difference_SM: np.ndarray, content_M: np.ndarray | None = None) -> ImageErrors:
    """Estimate the standard error of a mean that is due to the random choice of images.

    The squared error of a single seed is estimated by the variance over the images, averaged over
    the seeds. The squared error that all seeds share is estimated by the covariance of two seeds
    over the images, averaged over all pairs of seeds.

    Args:
        difference_SM: Values of each seed at each image, for example the paired difference of two
            arms, shape (S, M) with at least two seeds.
        content_M: Identifier of the content of each image. Images with the same content count as a
            single draw. None: all contents are distinct.
    """
    seeds, images = difference_SM.shape
    sum_CS, copies_C = sum_copies(difference_SM.T, content_M)
    deviation_CS = sum_CS - copies_C[:, None] * difference_SM.mean(1)
    product_SS = deviation_CS.T @ deviation_CS
    # the mean of the diagonal, and the mean of all other entries
    single = np.trace(product_SS) / seeds
    shared = (product_SS.sum() - np.trace(product_SS)) / (seeds * (seeds - 1))
    errors = (math.sqrt(max(0.0, float(square))) / images for square in (shared, single))
    return ImageErrors(*errors)


def resampled_interval(
    correct_SM: np.ndarray,
    resamples: int = RESAMPLES,
    seed: int = 0,
    family: int = 1,
    content_M: np.ndarray | None = None,
) -> Interval | None:
    """Return a bootstrap interval of the mean of a table of seeds by images.

    Seeds and images are resampled together (the pigeonhole bootstrap of Owen, 2007), and the ends
    are percentiles. Resamples of a few seeds reach no further than the best and the worst seed.
    Therefore each resample's deviation due to the seeds is multiplied by sqrt(S / (S - 1)) t / z,
    which widens the deviations to Student's t (Hesterberg, 2015). Without this factor, intervals of
    three seeds cover as little as 83% instead of 95%. Two or three seeds are too few for smooth
    percentiles, so the interval contains at least Student's t interval over the seeds alone.

    Args:
        correct_SM: Integers, shape (S, M): 1 if the network of a seed classifies an image
            correctly, else 0. For a paired comparison, the difference of two arms' tables.
        resamples: Number of resamples.
        seed: Seed of the generator. The same table gives the same interval.
        family: Number of intervals that jointly cover their means with a probability of 95%.
        content_M: Identifier of the content of each image. Images with the same content are
            resampled together. None: all contents are distinct.

    Returns:
        The interval, or None for one seed.
    """
    seeds = len(correct_SM)
    if seeds == 1:
        return None
    tail = TAIL / family
    normal = float(special.ndtri(1 - tail))
    stretch = math.sqrt(seeds / (seeds - 1)) * t_factor(seeds, family) / normal
    correct_CS, copies_C = sum_copies(correct_SM.T, content_M)
    # Contents with equal columns of the table are interchangeable. So the bootstrap only draws how
    # many contents of each distinct column are in a resample.
    table = np.vstack([correct_CS.T, copies_C])
    distinct, count_U = np.unique(table, axis=1, return_counts=True)
    column_SU, copies_U = np.ascontiguousarray(distinct[:-1]), distinct[-1]
    contents = len(copies_C)
    mean_S = correct_SM.mean(1)
    generator = np.random.default_rng(seed)
    means = []
    for draws in _blocks(resamples, max(1, ENTRIES // len(count_U))):
        seeds_BS = generator.multinomial(seeds, np.full(seeds, 1 / seeds), draws)
        contents_BU = generator.multinomial(contents, count_U / contents, draws)
        images_B = contents_BU @ copies_U
        mean_B = ((seeds_BS @ column_SU) * contents_BU).sum(1) / (seeds * images_B)
        by_seeds_B = seeds_BS @ mean_S / seeds - mean_S.mean()  # deviation due to the seeds
        means.append(mean_B + (stretch - 1) * by_seeds_B)
    low, high = np.quantile(np.concatenate(means), [tail, 1 - tail])
    over_seeds = summarize(mean_S.tolist(), family).interval
    assert over_seeds is not None
    return Interval(min(float(low), over_seeds.low), max(float(high), over_seeds.high))


def _blocks(total: int, size: int) -> list[int]:
    """Divide a total into blocks of at most `size`: a total of 10 and size 4 give [4, 4, 2]."""
    return [min(size, total - start) for start in range(0, total, size)]
