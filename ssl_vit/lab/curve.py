"""A measure along an axis whose names are numbers, as shares of the labels or steps: where a name
and the baseline cross, and how many times the labels (steps) the baseline needs to be as good.

Between two places a seed's value is taken to be linear in the logarithm of the axis. Intervals are
over seeds, in pairs; one is open where it goes on to the first or the last place. Legend: S
independent seeds, L places, X points between them.
"""

import itertools
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .. import stats
from .compare import Comparison, pairs

if TYPE_CHECKING:
    from pandas import DataFrame

EXACT = 1e-12  # of a value: below this, a difference is rounding
POINTS = 2001  # at which an interval is looked for: steps of 0.2% over two decades


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
        name: that is compared.
        n: independent seeds, which all of the places have.
        crossings: the places at which the means over seeds cross.
        factors: {place: by how many times it the baseline is as good as the name is there}.
    """

    name: str
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
    found = numbers([*rows[places].unique()]) or {}
    by_place = {
        place: pairs(rows, axis, Comparison(name, baseline, ((places, place),)))
        for place in sorted(found, key=lambda one: found[one])
    }
    sets = [{*both.index} for both in by_place.values() if len(both)]
    if len(sets) < 2:
        return None
    seeds = max(sets, key=lambda own: len(own) * sum(own <= other for other in sets))
    kept = {
        place: both.loc[sorted(seeds)] for place, both in by_place.items() if seeds <= {*both.index}
    }
    if len(kept) < 2:
        return None
    group = next(iter(kept.values()))["group"]
    place_L = np.array([found[place] for place in kept])
    own_SL, other_SL = (
        np.stack([both[side].groupby(group).mean() for both in kept.values()], 1)
        for side in ("value_a", "value_b")
    )
    factors = {place: factor(place_L, index, own_SL, other_SL) for index, place in enumerate(kept)}
    return AgainstBaseline(name, len(own_SL), crossings(place_L, own_SL, other_SL), factors)


def crossings(place_L: np.ndarray, own_SL: np.ndarray, other_SL: np.ndarray) -> list[Estimate]:
    """The places at which the means over seeds cross.

    Args:
        place_L: ascending, at least two.
        own_SL, other_SL: values of two names.
    """
    at_X = _points(place_L)
    apart_SX = _between(place_L, own_SL - other_SL)
    return [_estimate(at_X, apart_SX, at) for at in _zeros(at_X, apart_SX.mean(0))]


def factor(
    place_L: np.ndarray, index: int, own_SL: np.ndarray, baseline_SL: np.ndarray
) -> Estimate:
    """By how many times place_L[index] the baseline first reaches `own_SL[:, index]`: with more
    where the name has the higher value there, with less where it has not. Arguments as of
    `crossings`."""
    at_X = _points(place_L) - np.log(place_L[index])
    apart_SX = own_SL[:, [index]] - _between(place_L, baseline_SL)
    mean_X = apart_SX.mean(0)
    here = float((own_SL[:, index] - baseline_SL[:, index]).mean())
    if abs(here) <= EXACT:
        return _estimate(at_X, apart_SX, 0.0)
    equal = [*_zeros(at_X, mean_X), *at_X[np.abs(mean_X) <= EXACT]]
    ahead = [float(at) for at in equal if (at > 0) == (here > 0)]
    if ahead:
        return _estimate(at_X, apart_SX, min(ahead, key=abs))
    # beyond the last place, or below the first: as far from there as the interval includes zero
    decided_X = np.exp(at_X[~_undecided(apart_SX)])
    low = float(decided_X.max()) if here > 0 and len(decided_X) else None
    high = float(decided_X.min()) if here < 0 and len(decided_X) else None
    return Estimate(None, low, high)


def _estimate(at_X: np.ndarray, apart_SX: np.ndarray, at: float) -> Estimate:
    """The value where the mean is zero, with the undecided points around it."""
    low = high = None
    if len(apart_SX) > 1:
        decided_X = at_X[~_undecided(apart_SX)]
        low = max((float(np.exp(end)) for end in decided_X if end < at), default=None)
        high = min((float(np.exp(end)) for end in decided_X if end > at), default=None)
    return Estimate(float(np.exp(at)), low, high)


def _points(place_L: np.ndarray) -> np.ndarray:
    """Points along the logarithm of the axis, with the places themselves among them."""
    even_X = np.linspace(np.log(place_L[0]), np.log(place_L[-1]), POINTS)
    return np.union1d(even_X, np.log(place_L))


def _between(place_L: np.ndarray, value_SL: np.ndarray) -> np.ndarray:
    at_X = _points(place_L)
    return np.stack([np.interp(at_X, np.log(place_L), value_L) for value_L in value_SL])


def _undecided(apart_SX: np.ndarray) -> np.ndarray:
    """Where the mean's interval includes zero; nowhere with one seed."""
    n = len(apart_SX)
    if n < 2:
        return np.zeros(apart_SX.shape[1], bool)
    return np.abs(apart_SX.mean(0)) <= stats.reach(n) * apart_SX.std(0, ddof=1)


def _zeros(at_X: np.ndarray, mean_X: np.ndarray) -> list[float]:
    """Where a mean changes its sign; of a stretch of zeros between two signs the middle. Where it
    only touches zero, or is zero up to an end, it does not change its sign."""
    found = []
    signed = np.flatnonzero(np.abs(mean_X) > EXACT)
    for x, after in itertools.pairwise(signed):
        if (mean_X[x] > 0) == (mean_X[after] > 0):
            continue
        if after > x + 1:
            found.append(float(at_X[x + 1] + at_X[after - 1]) / 2)
        else:
            step = mean_X[x] / (mean_X[x] - mean_X[after])
            found.append(float(at_X[x] + step * (at_X[after] - at_X[x])))
    return found
