"""Two names of an axis compared in pairs over seeds, and what such a comparison can find.

Differences are of the same seed, images and labels. Seeds that go on from one pre-training are not
independent: their mean counts once. Legend: S independent seeds, M test images.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .. import stats
from ..stats import Interval

if TYPE_CHECKING:
    from pandas import DataFrame

FEWEST = 3  # independent seeds of a claim
POWER = 0.8
EXACT = 1e-9  # of a difference: below this, the width of an interval is rounding
Place = tuple[tuple[str, str], ...]  # (axis, name), ...
Correct = Mapping[str, np.ndarray]  # {task: booleans (M,), whether its first class is the label}


class Comparison(NamedTuple):
    """What is asked: the difference of two names of the axis that is compared, at one place of the
    other axes."""

    a: str
    b: str
    at: Place = ()

    def __str__(self) -> str:
        place = ", ".join(name for _, name in self.at)
        return f"{self.a} minus {self.b}" + (f" at {place}" if place else "")


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
        interval: of the mean over seeds, at the family's level; None of one seed.
        resampled: the same with the test images drawn again too, where there are predictions.
    """

    asked: Comparison
    n: int
    mean: float
    sd: float | None
    interval: Interval | None
    resampled: Interval | None = None

    @property
    def wider(self) -> Interval | None:
        """The interval that decides."""
        both = [one for one in (self.interval, self.resampled) if one is not None]
        if not both:
            return None
        return Interval(min(one.low for one in both), max(one.high for one in both))

    @property
    def claimed(self) -> bool:
        """Whether there are seeds enough and the interval does not include zero. Seeds that differ
        by equally many images, as on few of them, give one without width, which tells nothing."""
        if self.n < FEWEST or self.wider is None or not self.wider.excludes_zero:
            return False
        return self.resampled is not None or self.wider.high - self.wider.low > EXACT * abs(
            self.mean
        )


def pairs(frame: "DataFrame", axis: str, asked: Comparison) -> "DataFrame":
    """The seeds that both names of a comparison have.

    Args:
        frame: rows of one run, one measure and one split, as results.Results.rows gives them.
        axis: whose names are compared.
        asked: the comparison.

    Returns:
        One row a seed: value_a, value_b, folder_a, folder_b, fingerprint_a, fingerprint_b, and
        `group`: seeds of one number go on from the same run.
    """
    here = frame
    for other, name in asked.at:
        here = here[here[other] == name]
    columns = ["value", "folder", "origin", "fingerprint"]
    sides = [here[here[axis] == name].set_index("seed")[columns] for name in (asked.a, asked.b)]
    both = sides[0].add_suffix("_a").join(sides[1].add_suffix("_b"), how="inner").sort_index()
    both["group"] = _groups(zip(both["origin_a"], both["origin_b"], strict=True))
    return both


def compare(
    frame: "DataFrame",
    axis: str,
    asked: Comparison,
    family: int = 1,
    correct: Correct | None = None,
    scale: float = 1.0,
) -> Difference | None:
    """A minus B in pairs; None where they have no seed in common, or were tested on different
    images.

    Args:
        frame, axis, asked: as in `pairs`.
        family, correct, scale: as in `difference`.
    """
    both = pairs(frame, axis, asked)
    if on_different_images(both):
        return None
    return difference(asked, both, family, correct, scale)


def on_different_images(both: "DataFrame") -> bool:
    """Whether runs of some pairs were tested on different images, as far as these are known."""
    return len({*both["fingerprint_a"], *both["fingerprint_b"]} - {""}) > 1


def difference(
    asked: Comparison,
    both: "DataFrame",
    family: int = 1,
    correct: Correct | None = None,
    scale: float = 1.0,
) -> Difference | None:
    """The difference of some pairs; None without any.

    Args:
        asked: what they are the pairs of.
        both: as `pairs` gives them.
        family: how many comparisons there are: all intervals hold with 95% (Bonferroni).
        correct: of the runs whose predictions are kept; the measure is their top-1.
        scale: that the values are multiplied by (100: percent).
    """
    if both.empty:
        return None
    by_group = scale * (both["value_a"] - both["value_b"]).groupby(both["group"]).mean()
    found = stats.summarize(by_group.tolist())
    resampled = None
    tasks = {*both["folder_a"], *both["folder_b"]}
    if correct and tasks <= correct.keys() and found.n > 1:
        resampled = stats.resampled_interval(_table(both, correct), family=family)
    return Difference(
        asked,
        found.n,
        found.mean,
        found.sd,
        stats.simultaneous(found, family),
        resampled and Interval(scale * resampled.low, scale * resampled.high),
    )


def _table(both: "DataFrame", correct: Correct) -> np.ndarray:
    """Differences of what two arms got right (S, M), the mean of seeds that are not independent."""
    rows = [
        np.mean(
            [
                correct[a].astype(int) - correct[b]
                for a, b in zip(of_one["folder_a"], of_one["folder_b"], strict=True)
            ],
            0,
        )
        for _, of_one in both.groupby("group")
    ]
    return np.stack(rows)


def _groups(origins: Iterable[tuple[str, str]]) -> list[int]:
    """For each seed the number of its group: seeds that share a run which either side goes on
    from, directly or through others, are of one."""
    group: list[int] = []
    seen: list[set[tuple[int, str]]] = []
    for both in origins:
        own = {(side, one) for side, text in enumerate(both) for one in text.split() if text}
        alike = [number for number, others in enumerate(seen) if not own.isdisjoint(others)]
        number = alike[0] if alike else len(seen)
        if not alike:
            seen.append(set())
        seen[number] |= own
        for other in alike[1:]:
            seen[number] |= seen[other]
            seen[other] = set()
            group = [number if one == other else one for one in group]
        group.append(number)
    return group


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
