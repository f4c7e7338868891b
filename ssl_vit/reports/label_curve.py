"""Accuracy against the share of labels: where two arms cross, and how many times the labels one is
worth. No torch here.

Between two shares a seed's accuracy is taken to be linear in the logarithm of the share. An
interval holds the shares (or factors) at which the 95% interval of the difference, in pairs of one
seed, includes zero; it is open where that holds up to the first or the last share.

Legend: S seeds, L shares, X places between them.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from .. import costs, stats
from ..config.parsing import flatten, load_yaml
from ..config.schema import Data
from ..stats import SeedSummary
from .load import StudyResults
from .measures import Measure

CUT = ("name", "share", "validation", "validation_from")  # on which their number depends
PLACES = 2001  # at which an interval is looked for: 0.2% steps over two decades


class LabelPoint(NamedTuple):
    """All arms at one share of the labels: the top-1 after fine-tuning on it.

    Attributes:
        images: fine-tuning's training images; None where their number is not known.
        apart: {arm: arm minus baseline, in pairs of one seed}.
    """

    share: float
    images: int | None
    measure: Measure
    apart: dict[str, SeedSummary]


class Estimate(NamedTuple):
    """A share or a factor with its 95% interval. Without a value, it lies beyond the end that is
    there; an end of None is open, or unknown where `seeds` is 1."""

    value: float | None
    low: float | None
    high: float | None
    seeds: int


class Worth(NamedTuple):
    """At `share` the arm is as good as the baseline with `factor` times the labels."""

    share: float
    factor: Estimate


class Comparison(NamedTuple):
    """An arm against the baseline, over the shares of which the same seeds are finished;
    `crossovers` are the shares at which their means cross."""

    arm: str
    crossovers: list[Estimate]
    worth: list[Worth]


class LabelCurve(NamedTuple):
    baseline: str
    points: list[LabelPoint]
    comparisons: list[Comparison]


def build(study: StudyResults, measures: Iterable[Measure]) -> LabelCurve | None:
    """The curve of a study over shares of labels; None of another."""
    by_part = {one.part: one for one in measures if one.name.startswith("top1")}
    found = {part: share for part, share in study.labels.items() if part in by_part}
    if not found:
        return None
    baseline = study.report.get("baseline") or ""
    points = []
    for part, share in found.items():
        measure = by_part[part]
        arms = [one.arm for one in (*measure.results, *measure.not_compared)]
        apart = {arm: measure.difference(arm, baseline) for arm in arms if arm != baseline}
        known = {arm: difference for arm, difference in apart.items() if difference}
        points.append(LabelPoint(share, _images(study, part), measure, known))
    arms = [arm for arm in study.plan["arms"] if arm != baseline]
    compared = (_compare(arm, baseline, points) for arm in arms)
    return LabelCurve(baseline, points, [one for one in compared if one])


def _images(study: StudyResults, part: str) -> int | None:
    """Training images of a part's first finished run, as its recipe.yaml tells them."""
    run = next(run for run in study.finished.values() if run.part == part)
    path = run.run.folder / "recipe.yaml"
    written = flatten(load_yaml(path)) if path.exists() else {}
    known = {key: written[f"data.{key}"] for key in CUT if f"data.{key}" in written}
    return costs.training_images(Data(**known)) if "name" in known else None


def _compare(arm: str, baseline: str, points: list[LabelPoint]) -> Comparison | None:
    """Over the shares that have as many common seeds as any, so that a share which is not finished
    takes no seed from the others. None without two such shares that have the same seeds."""
    both = [(p.share, p.measure.seeds(arm), p.measure.seeds(baseline)) for p in points]
    common = [sorted(own.keys() & other.keys()) for _, own, other in both]
    seeds = max(common, key=len, default=[])
    both = [one for one, found in zip(both, common, strict=True) if found == seeds]
    if len(both) < 2 or not seeds:
        return None
    share_L = np.array([share for share, _, _ in both])
    own_SL = np.array([[own[seed] for _, own, _ in both] for seed in seeds])
    other_SL = np.array([[other[seed] for _, _, other in both] for seed in seeds])
    worth = [
        Worth(float(share), factor(share_L, index, own_SL, other_SL))
        for index, share in enumerate(share_L)
    ]
    return Comparison(arm, crossovers(share_L, own_SL, other_SL), worth)


def crossovers(share_L: np.ndarray, own_SL: np.ndarray, other_SL: np.ndarray) -> list[Estimate]:
    """The shares at which the means over seeds cross.

    Args:
        share_L: ascending, at least two.
        own_SL, other_SL: accuracies of two arms.
    """
    place_X = _places(share_L)
    apart_SX = _along(share_L, own_SL - other_SL, place_X)
    return [_estimate(zero, len(apart_SX)) for zero in _zeros(place_X, apart_SX)]


def factor(
    share_L: np.ndarray, index: int, own_SL: np.ndarray, baseline_SL: np.ndarray
) -> Estimate:
    """By how many times share_L[index] the baseline reaches `own_SL[:, index]`; of several the one
    nearest to 1. Arguments as of `crossovers`."""
    place_X = _places(share_L) - np.log(share_L[index])
    baseline_SX = _along(share_L, baseline_SL, _places(share_L))
    apart_SX = own_SL[:, [index]] - baseline_SX
    found = _zeros(place_X, apart_SX)
    if found:
        return _estimate(min(found, key=lambda zero: abs(zero.value)), len(apart_SX))
    undecided_X = np.flatnonzero(_undecided(apart_SX))
    if (apart_SX.mean(0) > 0).all():  # better than the baseline with any share: beyond the last
        low = place_X[undecided_X[0] if len(undecided_X) else -1]
        return Estimate(None, float(np.exp(low)), None, len(apart_SX))
    high = place_X[undecided_X[-1] if len(undecided_X) else 0]
    return Estimate(None, None, float(np.exp(high)), len(apart_SX))


class Zero(NamedTuple):
    """Where a mean changes its sign, with the ends of the places around it at which its interval
    includes zero; None where they reach the end of all places."""

    value: float
    low: float | None
    high: float | None


def _estimate(zero: Zero, seeds: int) -> Estimate:
    low, high = (None if end is None else float(np.exp(end)) for end in (zero.low, zero.high))
    return Estimate(float(np.exp(zero.value)), low, high, seeds)


def _places(share_L: np.ndarray) -> np.ndarray:
    return np.linspace(np.log(share_L[0]), np.log(share_L[-1]), PLACES)


def _along(share_L: np.ndarray, value_SL: np.ndarray, place_X: np.ndarray) -> np.ndarray:
    return np.stack([np.interp(place_X, np.log(share_L), value_L) for value_L in value_SL])


def _undecided(apart_SX: np.ndarray) -> np.ndarray:
    """Where the mean's interval includes zero; nowhere with one seed."""
    n = len(apart_SX)
    if n < 2:
        return np.zeros(apart_SX.shape[1], bool)
    return np.abs(apart_SX.mean(0)) <= stats.reach(n) * apart_SX.std(0, ddof=1)


def _zeros(place_X: np.ndarray, apart_SX: np.ndarray) -> list[Zero]:
    mean_X = apart_SX.mean(0)
    decided_X = np.flatnonzero(~_undecided(apart_SX))
    found = []
    for x in np.flatnonzero((mean_X[:-1] > 0) != (mean_X[1:] > 0)):
        step = mean_X[x] / (mean_X[x] - mean_X[x + 1])
        value = float(place_X[x] + step * (place_X[x + 1] - place_X[x]))
        below = decided_X[decided_X <= x]
        above = decided_X[decided_X > x]
        several = len(apart_SX) > 1
        low = float(place_X[below[-1]]) if several and len(below) else None
        high = float(place_X[above[0]]) if several and len(above) else None
        found.append(Zero(value, low, high))
    return found
