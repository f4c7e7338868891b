"""Two names of an axis compared in pairs over seeds, at one place or along an axis of numbers, and
what such a comparison can find.

Differences are of the same seed, images and labels. Seeds that go on from one run are not
independent: their mean counts once. Along an axis a seed's value is taken to be linear in the
logarithm of the axis between two places. Legend: S independent seeds, M test images, L places, X
points between them.
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

FEWEST = 3  # independent seeds of a claim
POWER = 0.8
ROUNDING = 1e-9  # of a difference: below this, the width of an interval is rounding
EXACT = 1e-12  # of a value along an axis: below this, a difference is rounding
UNEQUAL = 1.1  # ratio of the compute of two names from which they differ in it
POINTS = 2001  # at which an interval is looked for: steps of 0.2% over two decades
Place = tuple[tuple[str, str], ...]  # (axis, name), ...


class Outcomes(NamedTuple):
    """A classifier on the labelled test images.

    Attributes:
        right_M: whether its first class is the label, booleans.
        content_M: a hash of each image's content.
    """

    right_M: np.ndarray
    content_M: np.ndarray


class Comparison(NamedTuple):
    """What is asked: the difference of two names of the axis that is compared, at one place of the
    other axes."""

    a: str
    b: str
    at: Place = ()

    @property
    def place(self) -> str:
        """For readers: " at 1%", or nothing."""
        return f" at {', '.join(name for _, name in self.at)}" if self.at else ""

    def __str__(self) -> str:
        return f"{self.a} minus {self.b}{self.place}"


@dataclass(frozen=True)
class Rule:
    """What a study compares; fixed in study.json before the first task.

    Attributes:
        test: the run that is measured.
        axis: whose names are compared; None of a study without axes.
        arms: these names.
        places: of the other axes, each as ((axis, name), ...).
        asked: the comparisons.
        measure: that decides; None: the first of the test run's.
    """

    test: str
    axis: str | None
    arms: tuple[str, ...]
    places: tuple[Place, ...]
    asked: tuple[Comparison, ...]
    measure: str | None = None

    @property
    def axes_of_places(self) -> list[str]:
        """The axes beside the one that is compared."""
        return [axis for axis, _ in self.places[0]] if self.places else []


def comparisons(
    arms: Sequence[str],
    places: Sequence[Place],
    pairs: Sequence[tuple[str, str]] = (),
    baseline: str | None = None,
) -> tuple[Comparison, ...]:
    """All that a study compares at these places: its pairs; else every name against the baseline;
    else all pairs."""
    named = list(pairs)
    if not named and baseline is not None:
        named = [(arm, baseline) for arm in arms if arm != baseline]
    named = named or list(itertools.combinations(arms, 2))
    return tuple(Comparison(a, b, place) for place in places or [()] for a, b in named)


class Difference(NamedTuple):
    """What was measured of a comparison.

    Attributes:
        asked: the comparison.
        n: independent seeds.
        mean, sd: of their differences; no sd of one.
        interval: of the mean, at the family's level; None of one seed.
        over_images: whether the interval is over test images drawn again too, and so never
            narrower than that over seeds.
    """

    asked: Comparison
    n: int
    mean: float
    sd: float | None
    interval: Interval | None
    over_images: bool = False

    @property
    def claimed(self) -> bool:
        """Whether there are seeds enough and the interval does not include zero. Seeds that differ
        by equally many images, as on few of them, give one without width, which tells nothing."""
        if self.n < FEWEST or self.interval is None:
            return False
        low, high = self.interval
        return self.interval.excludes_zero and high - low > ROUNDING * abs(self.mean)


def pairs(rows: "DataFrame", axis: str, asked: Comparison) -> "DataFrame":
    """The rows of both names of a comparison at its place side by side, in columns of `_a` and
    `_b`: one for each seed that both have, in order.

    Args:
        rows: of one run, one measure and one split, as results.Results.rows gives them.
        axis: whose names are compared.
        asked: the comparison.

    Raises:
        ValueError: a seed has several rows, as of several measures.
    """
    for other, name in asked.at:
        rows = rows[rows[other] == name]
    a, b = (rows[rows[axis] == name] for name in (asked.a, asked.b))
    return a.merge(b, on="seed", suffixes=("_a", "_b"), validate="1:1").sort_values("seed")


def scope(rows: "DataFrame", rule: Rule) -> Iterator[str]:
    """What no comparison is of: lines about axes whose names are not compared with one another, and
    about compute: in which two that are compared differ by a tenth or more, those that differ most;
    and whose was not counted.

    Args:
        rows: of the test: `run`, a column for each axis, and `exaflop` with those of all that a
            run's weights came through, NaN where they were not counted.
        rule: of the study.
    """
    if rule.axis is None or not rule.asked:
        return
    for axis in rule.axes_of_places:
        if len({name for place in rule.places for name in place if name[0] == axis}) > 1:
            first = "to compare its names, let it stand first under `axes`, or after `sweep`"
            yield f"{axis} is not compared: {first}"
    spent = rows.groupby([rule.axis, *rule.axes_of_places])["exaflop"].mean()
    known = {tuple(key) if isinstance(key, tuple) else (key,): one for key, one in spent.items()}
    apart: dict[float, str] = {}
    unknown: dict[str, None] = {}
    for asked in rule.asked:
        place = tuple(name for _, name in asked.at)
        sides = {name: known.get((name, *place), 0.0) for name in (asked.a, asked.b)}
        unknown |= dict.fromkeys(name for name, exaflop in sides.items() if math.isnan(exaflop))
        low, high = sorted(sides, key=lambda name: sides[name])
        if sides[low] > 0 and (times := sides[high] / sides[low]) >= UNEQUAL:
            ends = f"from {sides[low]:.3g} ({low}) to {sides[high]:.3g} ({high})"
            apart[times] = f"by up to {times:.2g} times, exaFLOP with pre-training {ends}"
    if apart:
        yield f"{rule.axis}: compute differs {apart[max(apart)]}"
    if unknown:
        yield f"{rule.axis}: the compute of {some([*unknown])} was not counted"


def on_different_images(both: "DataFrame") -> bool:
    """Whether the two runs of a pair were measured on different images, as far as these are
    known."""
    a, b = both["fingerprint_a"], both["fingerprint_b"]
    return bool(((a != b) & (a != "") & (b != "")).any())


def compare(
    frame: "DataFrame", axis: str, asked: Comparison, family: int = 1, scale: float = 1.0
) -> Difference | None:
    """A minus B in pairs; None where they have no seed in common, or were tested on different
    images. Arguments as in `pairs` and `difference`."""
    both = pairs(frame, axis, asked)
    return None if on_different_images(both) else difference(asked, both, family, scale)


def difference(
    asked: Comparison,
    both: "DataFrame",
    family: int = 1,
    scale: float = 1.0,
    correct: Mapping[str, Outcomes] | None = None,
) -> Difference | None:
    """The difference of some pairs; None without any.

    Args:
        asked: what they are the pairs of.
        both: as `pairs` gives them.
        family: how many comparisons there are: all intervals hold with 95% (Bonferroni).
        scale: that the values are multiplied by (100: percent).
        correct: {run: its test}, of the runs whose predictions are there; the measure is their
            top-1. The copies of an image are resampled together.
    """
    if both.empty:
        return None
    groups = independent(both["origin_a"] + " " + both["origin_b"])
    apart = both["value_a"] - both["value_b"]
    found = stats.summarize([scale * fmean(apart.iloc[own]) for own in groups], family)
    folders = [*zip(both["folder_a"], both["folder_b"], strict=True)]
    rows = [
        np.mean(
            [
                correct[a].right_M.astype(int) - correct[b].right_M
                for a, b in (folders[i] for i in own)
            ],
            0,
        )
        for own in groups
        if correct and correct.keys() >= {name for i in own for name in folders[i]}
    ]
    resampled = None
    if correct and rows:
        content_M = next(correct[a].content_M for a, _ in folders if a in correct)
        resampled = stats.resampled_interval(np.stack(rows), family=family, content_M=content_M)
    if resampled is None or found.interval is None:
        return Difference(asked, *found)
    low, high = (scale * end for end in resampled)
    # seeds without predictions are in one of them alone
    interval = Interval(min(low, found.interval.low), max(high, found.interval.high))
    return Difference(asked, *found[:3], interval, True)


def independent(origins: Iterable[str]) -> list[list[int]]:
    """Groups of places in a list: what goes on from a run in common, directly or through others, is
    one group.

    Args:
        origins: of each place the runs that it goes on from, with blanks between them.
    """
    found: list[tuple[set[str], list[int]]] = []
    for place, text in enumerate(origins):
        own = {*text.split()}
        together = [group for group in found if own & group[0]]
        found = [group for group in found if not own & group[0]]
        places = [*(one for _, others in together for one in others), place]
        found.append((own.union(*(others for others, _ in together)), places))
    return [places for _, places in found]


def power(effect: float, n: int, family: int = 1) -> float:
    """The probability that n independent pairs claim an effect above 0 and its sign: that a
    noncentral t with n - 1 degrees of freedom is beyond the quantile of the family (Cohen, 1988,
    2.2). The effect is in standard deviations of the differences."""
    from scipy.stats import nct  # takes half a second to import

    return float(nct.sf(stats.t_factor(n, family), n - 1, effect * math.sqrt(n)))


def least_difference(sd: float, n: int, family: int = 1, wanted: float = POWER) -> float:
    """The smallest true difference that n pairs claim with this probability, in the unit of the
    standard deviation of the paired differences."""
    from scipy.optimize import brentq

    high = 0.25
    while power(high, n, family) < wanted:  # SciPy's noncentral t has no value far beyond
        high *= 2
    return sd * float(brentq(lambda effect: power(effect, n, family) - wanted, 0, high))


class Estimate(NamedTuple):
    """A place along the axis, or a factor, with its 95% interval.

    Attributes:
        value: None where it lies beyond the places that were tried.
        low, high: None where open; with one seed both, but for the one that a value beyond the
            places tried lies beyond.
    """

    value: float | None
    low: float | None
    high: float | None


class AgainstBaseline(NamedTuple):
    """A name of the compared axis against the baseline along a numeric one.

    Attributes:
        n: independent seeds, which all of the places have.
        crossings: the places at which the means over seeds cross.
        factors: {place: by how many times it the baseline is as good as the name is there}.
    """

    n: int
    crossings: list[Estimate]
    factors: dict[str, Estimate]


def numbers(names: Sequence[str]) -> dict[str, float] | None:
    """{name: number} of at least two names that are numbers above 0, as 400 or 1%."""
    found = {}
    for name in names:
        with suppress(ValueError):
            value = float(name.removesuffix("%"))
            found[name] = value / 100 if name.endswith("%") else value
    fits = len(found) == len(names) > 1 and all(0 < value < np.inf for value in found.values())
    return found if fits else None


def along(
    rows: "DataFrame", axis: str, name: str, baseline: str, places: str
) -> AgainstBaseline | None:
    """A name against the baseline, over the seeds and places of which the most runs are finished;
    None without two places that have a seed in common.

    Args:
        rows: of one run, measure and split.
        axis: whose names are compared.
        name, baseline: of these.
        places: the axis whose names are numbers.
    """
    at = numbers([*rows[places].unique()]) or {}
    every = {
        place: pairs(rows, axis, Comparison(name, baseline, ((places, place),)))
        for place in sorted(at, key=lambda one: at[one])
    }
    sets = [{*both["seed"]} for both in every.values() if len(both)]
    most = max(sets, key=lambda own: len(own) * sum(own <= one for one in sets), default=set())
    kept = {
        place: both[both["seed"].isin(most)]
        for place, both in every.items()
        if most and most <= {*both["seed"]}
    }
    if len(kept) < 2:
        return None
    origins = [both[side] for both in kept.values() for side in ("origin_a", "origin_b")]
    groups = independent(map(" ".join, zip(*origins, strict=True)))
    own_SL, other_SL = (
        np.array([[fmean(both[side].iloc[own]) for both in kept.values()] for own in groups])
        for side in ("value_a", "value_b")
    )
    place_L = np.array([at[place] for place in kept])
    factors = {place: factor(place_L, index, own_SL, other_SL) for index, place in enumerate(kept)}
    return AgainstBaseline(len(groups), crossings(place_L, own_SL, other_SL), factors)


def crossings(place_L: np.ndarray, own_SL: np.ndarray, other_SL: np.ndarray) -> list[Estimate]:
    """The places at which the means over seeds cross.

    Args:
        place_L: ascending, at least two.
        own_SL, other_SL: values of two names.
    """
    at_X, apart_SX = _between(place_L, own_SL - other_SL)
    return [_estimate(at_X, apart_SX, at) for at in _zeros(at_X, apart_SX.mean(0))]


def factor(
    place_L: np.ndarray, index: int, own_SL: np.ndarray, baseline_SL: np.ndarray
) -> Estimate:
    """By how many times place_L[index] the baseline first reaches `own_SL[:, index]`: with more
    where the name has the higher value there, with less where it has not. Arguments as of
    `crossings`."""
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
    """Points (X,) along the logarithm of the axis, the places among them, and the values there
    (S, X)."""
    at_L = np.log(place_L)
    at_X = np.union1d(np.linspace(at_L[0], at_L[-1], POINTS), at_L)
    return at_X, np.stack([np.interp(at_X, at_L, value_L) for value_L in value_SL])


def _zeros(at_X: np.ndarray, mean_X: np.ndarray) -> list[float]:
    """Where a mean changes its sign; of a stretch of zeros between two signs a point in it. Where
    it only touches zero, or is zero up to an end, it does not change its sign."""
    signed = np.flatnonzero(np.abs(mean_X) > EXACT)
    turns = np.diff(mean_X[signed] > 0)
    before, after = signed[:-1][turns], signed[1:][turns]
    step = mean_X[before] / (mean_X[before] - mean_X[after])
    return [float(at) for at in at_X[before] + step * (at_X[after] - at_X[before])]


def _estimate(at_X: np.ndarray, apart_SX: np.ndarray, at: float) -> Estimate:
    """The value where the mean is zero, or at an infinity beyond the places, with the undecided
    points around it: where the mean's interval includes zero."""
    n, mean_X = len(apart_SX), apart_SX.mean(0)
    if n > 1:
        decided_X = at_X[np.abs(mean_X) > stats.reach(n) * apart_SX.std(0, ddof=1)]
    else:
        decided_X = at_X if math.isinf(at) else at_X[:0]
    low = max((float(np.exp(end)) for end in decided_X if end < at), default=None)
    high = min((float(np.exp(end)) for end in decided_X if end > at), default=None)
    return Estimate(None if math.isinf(at) else float(np.exp(at)), low, high)
