"""Accuracy against the share of labels, of pre-training images, or exaFLOP: where two arms cross,
and how many times the labels (images, exaFLOP) one is worth. No torch here.

Between two shares a seed's accuracy is taken to be linear in the logarithm of the share. Around a
crossing the interval holds the places at which the 95% interval of the difference, in pairs of one
seed, includes zero; it is open where they go on to the first or the last share.

Legend: S seeds, L shares, X places between them.
"""

import itertools
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from ... import stats
from ...stats import SeedSummary
from .measures import Measure
from .results import FinishedRun, StudyResults, total

EXACT = 1e-12  # of an accuracy: below this, a difference is rounding
PLACES = 2001  # at which an interval is looked for: steps of 0.2% over two decades


class LabelPoint(NamedTuple):
    """All arms at one place along the curve: the top-1 after fine-tuning.

    Attributes:
        share: of the labels or of the pre-training images; of a study over compute the exaFLOP of
            pre-training, the mean of all arms.
        images: training images, of fine-tuning or, along the curve of them, of pre-training; None
            where their number is not known.
        apart: {arm: arm minus baseline, in pairs of one seed}.
    """

    share: float
    images: int | None
    measure: Measure
    apart: dict[str, SeedSummary]


class Estimate(NamedTuple):
    """A share or a factor with its 95% interval.

    Attributes:
        value: None where it lies beyond the shares tried.
        low, high: None where open; with one seed both, but for the one that a value beyond the
            shares tried lies beyond.
        above: whether a value of None lies above the largest that could be found, or below the
            smallest.
    """

    value: float | None
    low: float | None
    high: float | None
    seeds: int
    above: bool = False


class Worth(NamedTuple):
    """At `share` the arm is as good as the baseline with `factor` times the labels."""

    share: float
    factor: Estimate


class ArmComparison(NamedTuple):
    """An arm against the baseline, over the shares of which the same seeds are finished.

    Attributes:
        seeds: these seeds.
        crossovers: the shares at which their means cross.
        undecided: the ranges of shares in which the interval of the difference includes zero.
    """

    arm: str
    seeds: list[int]
    crossovers: list[Estimate]
    undecided: list[tuple[float, float]]
    worth: list[Worth]


class ScalingCurve(NamedTuple):
    """`of` is what lies along it: labels, images or compute."""

    baseline: str
    points: list[LabelPoint]
    comparisons: list[ArmComparison]
    of: str = "labels"

    def place(self, part: str | None) -> float | None:
        """Where the point of a final part lies; None of another part."""
        found = (point.share for point in self.points if point.measure.part == part)
        return next(found, None)


def build(study: StudyResults, measures: Iterable[Measure]) -> ScalingCurve | None:
    """The curve of a study over shares of labels; None of another."""
    by_part = {one.part: one for one in measures if one.metric == "top1"}
    found = {part: share for part, share in study.points.items() if part in by_part}
    if not found:
        return None
    baseline = study.report.baseline or ""
    points = []
    for part, share in found.items():
        place = _exaflop(study, part) if study.curve == "compute" else share
        if place is not None:
            points.append(label_point(place, _images(study, part), by_part[part], baseline))
    return curve(points, baseline, study.plan.arms, study.curve)


def label_point(share: float, images: int | None, measure: Measure, baseline: str) -> LabelPoint:
    """A place along the curve, with what the arms there differ by from the baseline."""
    arms = [one.arm for one in (*measure.results, *measure.not_compared)]
    apart = {arm: measure.difference(arm, baseline) for arm in arms if arm != baseline}
    known = {arm: difference for arm, difference in apart.items() if difference}
    return LabelPoint(share, images, measure, known)


def curve(
    points: Iterable[LabelPoint], baseline: str, arms: Iterable[str], of: str
) -> ScalingCurve:
    """The curve through these places, with each arm against the baseline."""
    points = sorted(points, key=lambda point: point.share)
    compared = (_compare(arm, baseline, points) for arm in arms if arm != baseline)
    return ScalingCurve(baseline, points, [one for one in compared if one], of)


def _before(study: StudyResults, part: str) -> list[list[FinishedRun]]:
    """What was pre-trained before each run of a final part."""
    every = (study.pretraining(arm, part).values() for arm in study.plan.arms)
    return [runs for found in every for runs in found if runs]


def _exaflop(study: StudyResults, part: str) -> float | None:
    """Of pre-training: equal for all arms but for whole steps; None where it is not counted."""
    before = _before(study, part)
    found = [total([run.result.exaflop for run in runs]) for runs in before]
    counted = total(found)
    return counted / len(found) if found and counted is not None else None


def _images(study: StudyResults, part: str) -> int | None:
    """Training images of a part's runs or of pre-training, where their environment.json has them
    and all agree."""
    runs = [run for run in study.finished.values() if run.part == part]
    if study.curve != "labels":
        runs = [run for before in _before(study, part) for run in before]
    found = {(run.environment.images or {}).get("train") for run in runs}
    return found.pop() if len(found) == 1 else None


def _compare(arm: str, baseline: str, points: list[LabelPoint]) -> ArmComparison | None:
    """Over the seeds and shares of which the most runs are finished, so that neither an unfinished
    share takes seeds from the others, nor further seeds of one share the others from the curve.
    None without two shares that have a seed in common."""
    both = [(p.share, p.measure.seeds(arm), p.measure.seeds(baseline)) for p in points]
    common = [own.keys() & other.keys() for _, own, other in both]
    tried = [found for found in common if found and sum(found <= one for one in common) > 1]
    if not tried:
        return None
    chosen = max(tried, key=lambda found: len(found) * sum(found <= one for one in common))
    both = [one for one, found in zip(both, common, strict=True) if chosen <= found]
    seeds = sorted(chosen)
    share_L = np.array([share for share, _, _ in both])
    own_SL = np.array([[own[seed] for _, own, _ in both] for seed in seeds])
    other_SL = np.array([[other[seed] for _, _, other in both] for seed in seeds])
    worth = [
        Worth(float(share), factor(share_L, index, own_SL, other_SL))
        for index, share in enumerate(share_L)
    ]
    found = crossovers(share_L, own_SL, other_SL)
    return ArmComparison(arm, seeds, found, undecided(share_L, own_SL, other_SL), worth)


def crossovers(share_L: np.ndarray, own_SL: np.ndarray, other_SL: np.ndarray) -> list[Estimate]:
    """The shares at which the means over seeds cross.

    Args:
        share_L: ascending, at least two.
        own_SL, other_SL: accuracies of two arms.
    """
    place_X = _places(share_L)
    apart_SX = _along(share_L, own_SL - other_SL)
    return [_estimate(place_X, apart_SX, place) for place in _zeros(place_X, apart_SX.mean(0))]


def undecided(
    share_L: np.ndarray, own_SL: np.ndarray, other_SL: np.ndarray
) -> list[tuple[float, float]]:
    """The ranges of shares in which the interval of the difference includes zero; none with one
    seed. Arguments as of `crossovers`."""
    place_X = np.exp(_places(share_L))
    found = _runs(_undecided(_along(share_L, own_SL - other_SL)))
    return [(float(place_X[first]), float(place_X[last])) for first, last in found]


def factor(
    share_L: np.ndarray, index: int, own_SL: np.ndarray, baseline_SL: np.ndarray
) -> Estimate:
    """By how many times share_L[index] the baseline first reaches `own_SL[:, index]`: with more
    labels where the arm is the better there, with fewer where it is not. Arguments as of
    `crossovers`."""
    place_X = _places(share_L) - np.log(share_L[index])
    apart_SX = own_SL[:, [index]] - _along(share_L, baseline_SL)
    mean_X = apart_SX.mean(0)
    here = float((own_SL[:, index] - baseline_SL[:, index]).mean())
    if abs(here) <= EXACT:
        return _estimate(place_X, apart_SX, 0.0)
    equal = [*_zeros(place_X, mean_X), *place_X[np.abs(mean_X) <= EXACT]]
    ahead = [float(place) for place in equal if (place > 0) == (here > 0)]
    if ahead:
        return _estimate(place_X, apart_SX, min(ahead, key=abs))
    # beyond the last share, or below the first: as far from there as the interval includes zero
    decided_X = place_X[~_undecided(apart_SX)]
    seeds = len(apart_SX)
    if not len(decided_X):
        return Estimate(None, None, None, seeds, above=here > 0)
    if here > 0:
        return Estimate(None, float(np.exp(decided_X.max())), None, seeds, above=True)
    return Estimate(None, None, float(np.exp(decided_X.min())), seeds)


def _estimate(place_X: np.ndarray, apart_SX: np.ndarray, place: float) -> Estimate:
    """The value at a place where the mean is zero, with the undecided places around it."""
    seeds = len(apart_SX)
    low = high = None
    if seeds > 1:
        decided_X = place_X[~_undecided(apart_SX)]
        low = max((float(np.exp(end)) for end in decided_X if end < place), default=None)
        high = min((float(np.exp(end)) for end in decided_X if end > place), default=None)
    return Estimate(float(np.exp(place)), low, high, seeds)


def _places(share_L: np.ndarray) -> np.ndarray:
    """Places along the logarithm of the share, with the shares themselves among them."""
    even_X = np.linspace(np.log(share_L[0]), np.log(share_L[-1]), PLACES)
    return np.union1d(even_X, np.log(share_L))


def _along(share_L: np.ndarray, value_SL: np.ndarray) -> np.ndarray:
    place_X = _places(share_L)
    return np.stack([np.interp(place_X, np.log(share_L), value_L) for value_L in value_SL])


def _undecided(apart_SX: np.ndarray) -> np.ndarray:
    """Where the mean's interval includes zero; nowhere with one seed."""
    n = len(apart_SX)
    if n < 2:
        return np.zeros(apart_SX.shape[1], bool)
    return np.abs(apart_SX.mean(0)) <= stats.reach(n) * apart_SX.std(0, ddof=1)


def _runs(true_X: np.ndarray) -> list[tuple[int, int]]:
    """The first and the last index of each run of true values."""
    edge = np.flatnonzero(np.diff(np.concatenate([[False], true_X, [False]]).astype(int)))
    return [(int(first), int(last) - 1) for first, last in edge.reshape(-1, 2)]


def _zeros(place_X: np.ndarray, mean_X: np.ndarray) -> list[float]:
    """Where a mean changes its sign; of a stretch of zeros between two signs the middle. Where it
    only touches zero, or is zero up to an end, it does not change its sign."""
    found = []
    signed = np.flatnonzero(np.abs(mean_X) > EXACT)
    for x, after in itertools.pairwise(signed):
        if (mean_X[x] > 0) == (mean_X[after] > 0):
            continue
        if after > x + 1:
            found.append(float(place_X[x + 1] + place_X[after - 1]) / 2)
        else:
            step = mean_X[x] / (mean_X[x] - mean_X[after])
            found.append(float(place_X[x] + step * (place_X[after] - place_X[x])))
    return found
