"""Compare two names of an axis in pairs over seeds, at a place or along an axis of numbers.

The module also computes what such a comparison can find. Each difference is between two runs with
the same seed, images and labels. Seeds that continue from a common run are not independent, so
their mean counts once. Along an axis, the value of a seed is taken to be linear in the logarithm of
the axis between two places.

Legend: S independent seeds, M test images, L places, X points between the places.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .. import stats
from ..formatting import some
from ..stats import Interval

if TYPE_CHECKING:
    from pandas import DataFrame

FEWEST = 3  # fewest independent seeds of a claim
POWER = 0.8
ROUNDING = 1e-9  # relative to a difference: an interval of smaller width is only rounding
EXACT = 1e-12  # a smaller difference of values along an axis is only rounding
UNEQUAL = 1.1  # ratio of compute from which two names count as different in compute
POINTS = 2001  # grid points in the search for an interval: steps of 0.2% over two decades
Place = tuple[tuple[str, str], ...]  # (axis, name), ...


class Outcomes(NamedTuple):
    """Results of a classifier on the labelled test images.

    Attributes:
        right_M: Whether the top-1 prediction is the label, booleans.
        content_M: Hash of each image's content.
    """

    right_M: np.ndarray
    content_M: np.ndarray


class Comparison(NamedTuple):
    """Comparison of two names of an axis, `a` minus `b`, at a place of all further axes."""

    a: str
    b: str
    at: Place = ()

    @property
    def place(self) -> str:
        """Place as text for readers, such as " at 1%", or an empty text."""
        return f" at {', '.join(name for _, name in self.at)}" if self.at else ""

    def __str__(self) -> str:
        return f"{self.a} minus {self.b}{self.place}"


@dataclass(frozen=True)
class Rule:
    """Rule that says what a study compares, fixed in study.json before the first task starts.

    Attributes:
        test: Run that is measured.
        axis: Axis whose names are compared, or None for a study without axes.
        arms: Compared names of the axis.
        places: Places of the other axes, each as `((axis, name), ...)`.
        asked: Comparisons of the study.
        measure: Measure that decides, or None for the first measure of the test run.
    """

    test: str
    axis: str | None
    arms: tuple[str, ...]
    places: tuple[Place, ...]
    asked: tuple[Comparison, ...]
    measure: str | None = None

    @property
    def axes_of_places(self) -> list[str]:
        """Axes other than the compared axis."""
        return [axis for axis, _ in self.places[0]] if self.places else []


def comparisons(
    arms: Sequence[str],
    places: Sequence[Place],
    pairs: Sequence[tuple[str, str]] = (),
    baseline: str | None = None,
) -> tuple[Comparison, ...]:
    """Return all comparisons of a study at all places.

    The comparisons are the given pairs, else every name against the baseline, else all pairs.
    """
    named = list(pairs)
    if not named and baseline is not None:
        named = [(arm, baseline) for arm in arms if arm != baseline]
    named = named or list(itertools.combinations(arms, 2))
    return tuple(Comparison(a, b, place) for place in places or [()] for a, b in named)


class Difference(NamedTuple):
    """Measured difference of a comparison.

    Attributes:
        asked: Comparison.
        n: Number of independent seeds.
        mean: Mean of the seeds' differences.
        sd: Standard deviation of the seeds' differences, or None for one seed.
        interval: Interval of the mean at the level of the family, or None for one seed.
        over_images: Whether the interval also covers the drawing of test images. Such an interval
            is never narrower than the interval over seeds.
    """

    asked: Comparison
    n: int
    mean: float
    sd: float | None
    interval: Interval | None
    over_images: bool = False

    @property
    def claimed(self) -> bool:
        """Whether there are enough seeds and the interval excludes zero.

        If all seeds differ by the same number of images, as can happen with few images, the
        interval has no width and proves nothing.
        """
        if self.n < FEWEST or self.interval is None:
            return False
        low, high = self.interval
        return self.interval.excludes_zero and high - low > ROUNDING * abs(self.mean)


def pairs(rows: "DataFrame", axis: str, asked: Comparison) -> "DataFrame":
    """Return the rows of both names of a comparison side by side, a row for each shared seed.

    The columns of the two names end in `_a` and `_b`, and the seeds are in order.

    Args:
        rows: Rows of one run, one measure and one split, from `results.Results.rows`.
        axis: Axis whose names are compared.
        asked: Comparison.

    Raises:
        ValueError: A seed has several rows, for example of several measures.
    """
    for other_axis, name in asked.at:
        rows = rows[rows[other_axis] == name]
    a, b = (rows[rows[axis] == name] for name in (asked.a, asked.b))
    return a.merge(b, on="seed", suffixes=("_a", "_b"), validate="1:1").sort_values("seed")


def scope(rows: "DataFrame", rule: Rule) -> Iterator[str]:
    """Yield lines about what the comparisons do not cover or do not hold equal.

    One line names each axis whose names are not compared with one another. Another gives the
    largest ratio of compute between two compared names if the ratio is at least `UNEQUAL`. The last
    line names arms whose compute was not counted.

    Args:
        rows: Rows of the test run with columns `run`, each axis, and `exaflop`. The exaFLOP include
            all runs that the weights came from and are NaN if they were not counted.
        rule: Rule of the study.
    """
    if rule.axis is None or not rule.asked:
        return
    for axis in rule.axes_of_places:
        if len({name for place in rule.places for name in place if name[0] == axis}) > 1:
            first = f"To compare these names, put {axis} first under `axes` or after `sweep`"
            yield f"The names of axis {axis} are not compared with one another. {first}"
    spent = rows.groupby([rule.axis, *rule.axes_of_places])["exaflop"].mean()
    known = {tuple(key) if isinstance(key, tuple) else (key,): mean for key, mean in spent.items()}
    apart: dict[float, str] = {}
    unknown: dict[str, None] = {}
    for asked in rule.asked:
        place = tuple(name for _, name in asked.at)
        sides = {name: known.get((name, *place), 0.0) for name in (asked.a, asked.b)}
        unknown |= dict.fromkeys(name for name, exaflop in sides.items() if math.isnan(exaflop))
        low, high = sorted(sides, key=lambda name: sides[name])
        if sides[low] > 0 and (times := sides[high] / sides[low]) >= UNEQUAL:
            ends = f"from {sides[low]:.3g} ({low}) to {sides[high]:.3g} ({high}) exaFLOP"
            apart[times] = f"by a factor of up to {times:.2g}, {ends} including pre-training"
    if apart:
        yield f"{rule.axis}: the compute differs {apart[max(apart)]}"
    if unknown:
        yield f"{rule.axis}: the compute of {some([*unknown])} was not counted"


def on_different_images(paired: "DataFrame") -> bool:
    """Return whether the two runs of any pair are known to be measured on different images."""
    a, b = paired["fingerprint_a"], paired["fingerprint_b"]
    return bool(((a != b) & (a != "") & (b != "")).any())


def compare(
    frame: "DataFrame", axis: str, asked: Comparison, family: int = 1, scale: float = 1.0
) -> Difference | None:
    """Return the paired difference of two names.

    `pairs` and `difference` describe the arguments. The result is None if the names have no seed in
    common or were tested on different images.
    """
    paired = pairs(frame, axis, asked)
    return None if on_different_images(paired) else difference(asked, paired, family, scale)


def difference(
    asked: Comparison,
    paired: "DataFrame",
    family: int = 1,
    scale: float = 1.0,
    correct: Mapping[str, Outcomes] | None = None,
) -> Difference | None:
    """Return the difference of pairs of runs, or None if there are no pairs.

    Args:
        asked: Comparison that the pairs belong to.
        paired: Pairs from `pairs`.
        family: Number of comparisons. All intervals together hold with 95% (Bonferroni).
        scale: Factor for the values, such as 100 for percent.
        correct: `{run: outcomes}` of the runs whose predictions exist, if the measure is the top-1
            of the predictions. Copies of an image are resampled together.
    """
    if paired.empty:
        return None
    groups = independent(paired["origin_a"] + " " + paired["origin_b"])
    apart = paired["value_a"] - paired["value_b"]
    summary = stats.summarize([scale * fmean(apart.iloc[group]) for group in groups], family)
    folders = [*zip(paired["folder_a"], paired["folder_b"], strict=True)]
    rows = [
        np.mean(
            [
                correct[a].right_M.astype(int) - correct[b].right_M
                for a, b in (folders[i] for i in group)
            ],
            0,
        )
        for group in groups
        if correct and correct.keys() >= {name for i in group for name in folders[i]}
    ]
    resampled = None
    if correct and rows:
        content_M = next(correct[a].content_M for a, _ in folders if a in correct)
        resampled = stats.resampled_interval(np.stack(rows), family=family, content_M=content_M)
    if resampled is None or summary.interval is None:
        return Difference(asked, *summary)
    low, high = (scale * end for end in resampled)
    # seeds without predictions enter only the interval over seeds
    interval = Interval(min(low, summary.interval.low), max(high, summary.interval.high))
    return Difference(asked, *summary[:3], interval, True)


def independent(origins: Iterable[str]) -> list[list[int]]:
    """Group the positions of runs that continue from a common run, directly or indirectly.

    Args:
        origins: For each position the names of the runs that it continues from, separated by
            blanks.

    Returns:
        Lists of positions. Positions in different lists are independent.
    """
    groups: list[tuple[set[str], list[int]]] = []
    for place, text in enumerate(origins):
        names = {*text.split()}
        together = [group for group in groups if names & group[0]]
        groups = [group for group in groups if not names & group[0]]
        places = [*(member for _, others in together for member in others), place]
        groups.append((names.union(*(others for others, _ in together)), places))
    return [places for _, places in groups]


def power(effect: float, n: int, family: int = 1) -> float:
    """Return the probability that n independent pairs claim a positive effect and the sign.

    This is the probability that a noncentral t with n - 1 degrees of freedom exceeds the quantile
    of the family (Cohen, 1988, 2.2).

    Args:
        effect: True difference in standard deviations of the paired differences.
        n: Number of independent pairs.
        family: Number of comparisons.
    """
    from scipy.stats import nct  # the import takes half a second

    return float(nct.sf(stats.t_factor(n, family), n - 1, effect * math.sqrt(n)))


def least_difference(sd: float, n: int, family: int = 1, wanted: float = POWER) -> float:
    """Return the smallest true difference that n pairs claim with a wanted probability.

    The unit is the unit of `sd`, the standard deviation of the paired differences.
    """
    from scipy.optimize import brentq

    high = 0.25
    # SciPy's noncentral t has no value at much larger effects
    while power(high, n, family) < wanted:
        high *= 2
    return sd * float(brentq(lambda effect: power(effect, n, family) - wanted, 0, high))


class Estimate(NamedTuple):
    """Place along the axis, or factor, with a 95% interval.

    Attributes:
        value: Estimate, or None if it lies beyond the tried places.
        low: Lower end of the interval, or None if the interval is open below.
        high: Upper end of the interval, or None if the interval is open above. With one seed both
            ends are open, unless the value lies beyond the tried places: then the end that faces
            the places is finite.
    """

    value: float | None
    low: float | None
    high: float | None


class AgainstBaseline(NamedTuple):
    """Comparison of a name with the baseline along a numeric axis.

    Attributes:
        n: Number of independent seeds that exist at all places.
        crossings: Places at which the means over seeds cross.
        factors: `{place: factor}`. At the place multiplied by the factor, the baseline is as good
            as the name is at the place.
    """

    n: int
    crossings: list[Estimate]
    factors: dict[str, Estimate]


def numbers(names: Sequence[str]) -> dict[str, float] | None:
    """Return `{name: number}` if all names (two or more) are positive numbers such as 400 or 1%."""
    by_name = {}
    for name in names:
        with suppress(ValueError):
            value = float(name.removesuffix("%"))
            by_name[name] = value / 100 if name.endswith("%") else value
    fits = len(by_name) == len(names) > 1 and all(0 < value < np.inf for value in by_name.values())
    return by_name if fits else None


def along(
    rows: "DataFrame", axis: str, name: str, baseline: str, places: str
) -> AgainstBaseline | None:
    """Compare a name with the baseline along a numeric axis.

    The comparison uses the combination of seeds and places that has the most finished runs. The
    result is None if fewer than two places have a seed in common.

    Args:
        rows: Rows of one run, measure and split.
        axis: Axis whose names are compared.
        name: Name to compare.
        baseline: Name of the baseline.
        places: Axis whose names are numbers.
    """
    at = numbers([*rows[places].unique()]) or {}
    every = {
        place: pairs(rows, axis, Comparison(name, baseline, ((places, place),)))
        for place in sorted(at, key=lambda place_name: at[place_name])
    }
    sets = [{*paired["seed"]} for paired in every.values() if len(paired)]
    most = max(
        sets,
        key=lambda seeds: len(seeds) * sum(seeds <= other_seeds for other_seeds in sets),
        default=set(),
    )
    kept = {
        place: paired[paired["seed"].isin(most)]
        for place, paired in every.items()
        if most and most <= {*paired["seed"]}
    }
    if len(kept) < 2:
        return None
    origins = [paired[side] for paired in kept.values() for side in ("origin_a", "origin_b")]
    groups = independent(map(" ".join, zip(*origins, strict=True)))
    own_SL, other_SL = (
        np.array(
            [[fmean(paired[side].iloc[group]) for paired in kept.values()] for group in groups]
        )
        for side in ("value_a", "value_b")
    )
    place_L = np.array([at[place] for place in kept])
    factors = {place: factor(place_L, index, own_SL, other_SL) for index, place in enumerate(kept)}
    return AgainstBaseline(len(groups), crossings(place_L, own_SL, other_SL), factors)


def crossings(place_L: np.ndarray, own_SL: np.ndarray, other_SL: np.ndarray) -> list[Estimate]:
    """Return the places at which the means over seeds of two names cross.

    Args:
        place_L: At least two places in ascending order.
        own_SL: Values of one name.
        other_SL: Values of the other name.
    """
    at_X, apart_SX = _between(place_L, own_SL - other_SL)
    return [_estimate(at_X, apart_SX, at) for at in _zeros(at_X, apart_SX.mean(0))]


def factor(
    place_L: np.ndarray, index: int, own_SL: np.ndarray, baseline_SL: np.ndarray
) -> Estimate:
    """Return the factor by which the baseline's place must change to match a name at a place.

    The baseline needs more if the name has the higher value at the place, and less otherwise. The
    result is the first place in this direction at which the baseline reaches `own_SL[:, index]`,
    divided by `place_L[index]`.

    Args:
        place_L: At least two places in ascending order.
        index: Index of the place.
        own_SL: Values of the name.
        baseline_SL: Values of the baseline.
    """
    at_X, baseline_SX = _between(place_L / place_L[index], baseline_SL)
    apart_SX = own_SL[:, [index]] - baseline_SX
    mean_X = apart_SX.mean(0)
    here = float((own_SL[:, index] - baseline_SL[:, index]).mean())
    if abs(here) <= EXACT:
        return _estimate(at_X, apart_SX, 0.0)
    equal = [*_zeros(at_X, mean_X), *at_X[np.abs(mean_X) <= EXACT]]
    ahead = [float(at) for at in equal if (at > 0) == (here > 0)]
    return _estimate(at_X, apart_SX, min(ahead, key=abs, default=math.copysign(math.inf, here)))


def _between(place_L: np.ndarray, value_SL: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Interpolate values along the logarithm of the axis.

    Returns:
        Points (X,) that include the places, and the values at the points (S, X).
    """
    at_L = np.log(place_L)
    at_X = np.union1d(np.linspace(at_L[0], at_L[-1], POINTS), at_L)
    return at_X, np.stack([np.interp(at_X, at_L, value_L) for value_L in value_SL])


def _zeros(at_X: np.ndarray, mean_X: np.ndarray) -> list[float]:
    """Return the points where a mean changes sign.

    For a stretch of zeros between two signs, the result has one point in the stretch. A mean that
    only touches zero, or is zero up to an end, does not change its sign.
    """
    signed = np.flatnonzero(np.abs(mean_X) > EXACT)
    turns = np.diff(mean_X[signed] > 0)
    before, after = signed[:-1][turns], signed[1:][turns]
    step = mean_X[before] / (mean_X[before] - mean_X[after])
    return [float(at) for at in at_X[before] + step * (at_X[after] - at_X[before])]


def _estimate(at_X: np.ndarray, apart_SX: np.ndarray, at: float) -> Estimate:
    """Return the place where the mean is zero, with the range where the mean may be zero.

    Args:
        at_X: Points on the logarithmic axis.
        apart_SX: Differences of each seed at the points.
        at: Point where the mean is zero, or an infinity if the point is beyond the places.
    """
    n, mean_X = len(apart_SX), apart_SX.mean(0)
    if n > 1:
        decided_X = at_X[np.abs(mean_X) > stats.reach(n) * apart_SX.std(0, ddof=1)]
    else:
        decided_X = at_X if math.isinf(at) else at_X[:0]
    low = max((float(np.exp(end)) for end in decided_X if end < at), default=None)
    high = min((float(np.exp(end)) for end in decided_X if end > at), default=None)
    return Estimate(None if math.isinf(at) else float(np.exp(at)), low, high)
