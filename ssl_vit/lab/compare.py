"""Compare two names of an axis in pairs over seeds, at a place or along an axis of numbers.

Each difference is between two runs with the same seed, images and labels. Seeds that continue from
a common run are not independent, so their mean counts once. Along an axis of numbers, the values of
a seed are interpolated linearly in the logarithm of the axis. `power` and `least_difference` say
which differences such a comparison can detect.

Legend: S independent seeds, M test images, L places, X points between the places.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .. import stats
from ..formatting import list_names
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


class PredictionOutcomes(NamedTuple):
    """Results of a classifier on the labelled test images.

    Attributes:
        correct_M: Whether the top-1 prediction is the label, booleans.
        content_M: Hash of each image's content.
    """

    correct_M: np.ndarray
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
    def other_axes(self) -> list[str]:
        """Axes other than the compared axis."""
        return [axis for axis, _ in self.places[0]] if self.places else []


def list_comparisons(
    arms: Sequence[str],
    places: Sequence[Place],
    pairs: Sequence[tuple[str, str]] = (),
    baseline: str | None = None,
) -> tuple[Comparison, ...]:
    """Return the comparisons of a study: the same pairs of arms at every place.

    A place is a name on each of the other axes, such as "1%" of the labels.

    Args:
        arms: The arms, which are the compared names, such as `mae` and `scratch`.
        places: Places of the other axes. Empty if the study has no other axes.
        pairs: Pairs of arms. If empty, each arm except the baseline is compared with the baseline.
        baseline: Arm that is the baseline. Without pairs and baseline, all pairs are compared.
    """
    name_pairs = list(pairs)
    if not name_pairs and baseline is not None:
        name_pairs = [(arm, baseline) for arm in arms if arm != baseline]
    if not name_pairs:
        name_pairs = list(itertools.combinations(arms, 2))
    # without other axes there is a single place, which fixes nothing
    places = places or [()]
    return tuple(Comparison(a, b, place) for place in places for a, b in name_pairs)


class Difference(NamedTuple):
    """Measured difference of a comparison.

    Attributes:
        comparison: Comparison.
        n: Number of independent seeds.
        mean: Mean of the seeds' differences.
        sd: Standard deviation of the seeds' differences, or None for one seed.
        interval: Interval of the mean at the level of the family, or None for one seed.
        image_error: Standard error of the mean that is due to the drawing of the test images and
            that more seeds do not reduce. None if the predictions of the runs are not stored.
    """

    comparison: Comparison
    n: int
    mean: float
    sd: float | None
    interval: Interval | None
    image_error: float | None = None

    @property
    def over_images(self) -> bool:
        """Whether the interval also covers the drawing of test images.

        Such an interval is never narrower than the interval over seeds.
        """
        return self.image_error is not None

    @property
    def claimed(self) -> bool:
        """Whether the report may claim the difference: enough seeds, and zero not in the interval.

        If the difference is the same for all seeds, as can happen with few test images, the
        interval has no width and proves nothing.
        """
        if self.n < FEWEST or self.interval is None:
            return False
        low, high = self.interval
        return self.interval.excludes_zero and high - low > ROUNDING * abs(self.mean)


def pair_rows(rows: "DataFrame", axis: str, comparison: Comparison) -> "DataFrame":
    """Return a table with the results of two compared names side by side, a row for each seed.

    Seeds that only one of the two names has are left out. The columns of the first name end in
    `_a`, and the columns of the second name in `_b`. The rows are sorted by seed.

    Args:
        rows: Rows of one run, one measure and one split, from `results.Results.rows`.
        axis: Column with the compared names, such as "arm" with the names `mae` and `scratch`.
        comparison: The two names, and the place: the name on each other axis, such as "1%" on the
            axis "share". Only rows at this place are paired.

    Raises:
        ValueError: A seed has several rows, for example of several measures.
    """
    for other_axis, name in comparison.at:
        rows = rows[rows[other_axis] == name]
    a, b = (rows[rows[axis] == name] for name in (comparison.a, comparison.b))
    return a.merge(b, on="seed", suffixes=("_a", "_b"), validate="1:1").sort_values("seed")


def list_limits(rows: "DataFrame", rule: Rule) -> Iterator[str]:
    """Yield sentences about the limits of a study's comparisons.

    A sentence names each axis whose names are not compared with one another. Another sentence gives
    the largest ratio of compute between two compared names if the ratio is at least `UNEQUAL`. The
    last sentence names the arms whose compute was not counted.

    Args:
        rows: Rows of the test run with columns `run`, each axis, and `exaflop`. The exaFLOP include
            all runs that the weights came from and are NaN if they were not counted.
        rule: Rule of the study.
    """
    if rule.axis is None or not rule.asked:
        return
    for axis in rule.other_axes:
        names = {dict(place)[axis] for place in rule.places}
        if len(names) > 1:
            yield (
                f"The names of axis {axis} are not compared with one another. To compare these"
                f" names, put {axis} first under `axes` or after `sweep`."
            )
    means = rows.groupby([rule.axis, *rule.other_axes])["exaflop"].mean()
    # pandas gives keys of a single axis without a tuple
    exaflop_at = {key if isinstance(key, tuple) else (key,): mean for key, mean in means.items()}
    sentence_by_ratio: dict[float, str] = {}
    not_counted: dict[str, None] = {}
    for comparison in rule.asked:
        place = tuple(name for _, name in comparison.at)
        exaflop = {
            name: exaflop_at.get((name, *place), 0.0) for name in (comparison.a, comparison.b)
        }
        not_counted |= dict.fromkeys(name for name in exaflop if math.isnan(exaflop[name]))
        low, high = sorted(exaflop, key=lambda name: exaflop[name])
        if exaflop[low] <= 0:
            continue
        ratio = exaflop[high] / exaflop[low]
        if ratio >= UNEQUAL:
            sentence_by_ratio[ratio] = (
                f"{rule.axis}: the compute differs by a factor of up to {ratio:.2g}, from"
                f" {exaflop[low]:.3g} exaFLOP for {low} to {exaflop[high]:.3g} exaFLOP for {high},"
                " including pre-training."
            )
    if sentence_by_ratio:
        yield sentence_by_ratio[max(sentence_by_ratio)]
    if not_counted:
        yield f"{rule.axis}: the compute of {list_names([*not_counted])} was not counted."


def on_different_images(paired: "DataFrame") -> bool:
    """Return whether the two runs of any pair are known to be measured on different images."""
    images_a, images_b = paired["fingerprint_a"], paired["fingerprint_b"]
    is_known = (images_a != "") & (images_b != "")
    return bool((is_known & (images_a != images_b)).any())


def compare(
    frame: "DataFrame", axis: str, comparison: Comparison, family: int = 1, scale: float = 1.0
) -> Difference | None:
    """Return the difference of two arms, paired by seed, or None if it cannot be measured.

    A difference needs a seed that both arms have, and the same test images on both sides.

    Args:
        frame: Rows of one run, one measure and one split, from `results.Results.rows`.
        axis: Column with the compared arms, such as "arm".
        comparison: The two arms, and where they are compared, such as at "1%" of the labels.
        family: Number of comparisons that share the error level of 5%.
        scale: Factor for the values, such as 100 for percent.
    """
    paired = pair_rows(frame, axis, comparison)
    if on_different_images(paired):
        return None
    return measure_difference(comparison, paired, family, scale)


def measure_difference(
    comparison: Comparison,
    paired: "DataFrame",
    family: int = 1,
    scale: float = 1.0,
    correct: Mapping[str, PredictionOutcomes] | None = None,
) -> Difference | None:
    """Return the mean difference of pairs of runs with its interval, or None without pairs.

    The interval is Student's t over independent seeds. With predictions it is widened to cover a
    bootstrap over seeds and test images, in which copies of an image are drawn together.

    Args:
        comparison: Comparison that the pairs belong to.
        paired: Rows from `pair_rows`, one for each seed.
        family: Number of comparisons. All intervals together hold with 95% (Bonferroni).
        scale: Factor for the values, such as 100 for percent.
        correct: `{run: outcomes}` of the runs with stored predictions, if the measure is the top-1
            accuracy of these predictions.
    """
    if paired.empty:
        return None
    groups = group_by_origin(paired["origin_a"] + " " + paired["origin_b"])
    differences = paired["value_a"] - paired["value_b"]
    summary = stats.summarize([scale * fmean(differences.iloc[group]) for group in groups], family)
    folders = [*zip(paired["folder_a"], paired["folder_b"], strict=True)]
    outcomes = correct or {}
    image_differences = []  # for each group the difference at each test image (M,), from -1 to 1
    for group in groups:
        folder_pairs = [folders[position] for position in group]
        if all(a in outcomes and b in outcomes for a, b in folder_pairs):
            pair_differences = [
                outcomes[a].correct_M.astype(int) - outcomes[b].correct_M for a, b in folder_pairs
            ]
            image_differences.append(np.mean(pair_differences, 0))
    resampled = None
    if image_differences:
        content_M = next(outcomes[a].content_M for a, _ in folders if a in outcomes)
        differences_SM = np.stack(image_differences)
        resampled = stats.resampled_interval(differences_SM, family=family, content_M=content_M)
    if resampled is None or summary.interval is None:
        return Difference(comparison, *summary)
    low, high = (scale * bound for bound in resampled)
    # seeds without predictions enter only the interval over seeds
    interval = Interval(min(low, summary.interval.low), max(high, summary.interval.high))
    image_error = scale * stats.image_error(differences_SM, content_M)
    return Difference(comparison, *summary[:3], interval, image_error)


def group_by_origin(origins: Iterable[str]) -> list[list[int]]:
    """Group the runs that continue from a common run, directly or indirectly.

    For example, the origins "a", "b", "a c" and "c" give the groups [[1], [0, 2, 3]]: the third run
    joins the first and the last.

    Args:
        origins: For each run, the names of all earlier runs that its weights come from, separated
            by blanks. The run itself is not among the names.

    Returns:
        Groups of positions in `origins`. Runs of different groups are independent.
    """
    # for each group the names of earlier runs, and the positions of the group's runs
    groups: list[tuple[set[str], list[int]]] = []
    for position, origin in enumerate(origins):
        names = {*origin.split()}
        positions: list[int] = []
        separate_groups = []
        for group_names, group_positions in groups:
            if names.isdisjoint(group_names):
                separate_groups.append((group_names, group_positions))
            else:  # merge each group that shares a name with this run
                names |= group_names
                positions += group_positions
        groups = [*separate_groups, (names, [*positions, position])]
    return [positions for _, positions in groups]


def power(effect: float, n: int, family: int = 1) -> float:
    """Return the probability (0 to 1) that a study with n seeds claims a true difference.

    A difference is claimed if Student's t statistic exceeds the quantile at an error level of 5%
    divided by `family`. With a true difference, the statistic has a noncentral t distribution with
    n - 1 degrees of freedom (Cohen, 1988, 2.2).

    Args:
        effect: True difference, positive, in standard deviations of the paired differences.
        n: Number of independent pairs of runs.
        family: Number of comparisons that share the error level of 5%.
    """
    from scipy.stats import nct  # the import takes half a second

    return float(nct.sf(stats.t_factor(n, family), n - 1, effect * math.sqrt(n)))


def least_difference(sd: float, n: int, family: int = 1, wanted: float = POWER) -> float:
    """Return the smallest true difference that n seeds detect with the wanted probability.

    Args:
        sd: Standard deviation of the paired differences. The result has the same unit.
        n: Number of independent pairs of runs.
        family: Number of comparisons that share the error level of 5%.
        wanted: Wanted probability that the study claims the difference, from 0 to 1.
    """
    from scipy.optimize import brentq

    # The search begins at a small effect and doubles it until the power suffices, because SciPy's
    # noncentral t returns NaN for very large effects
    high = 0.25
    while power(high, n, family) < wanted:
        high *= 2
    return sd * float(brentq(lambda effect: power(effect, n, family) - wanted, 0, high))


class Estimate(NamedTuple):
    """Estimated number with a 95% interval: a place along the axis, or a factor.

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


def parse_numbers(names: Sequence[str]) -> dict[str, float] | None:
    """Return `{name: number}` if all names are positive numbers such as "400" or "1%", else None.

    A single name gives None too, because one number makes no axis along which values could change.
    """
    try:
        numbers = {name: parse_number(name) for name in names}
    except ValueError:
        return None
    are_positive = all(0 < number < math.inf for number in numbers.values())
    return numbers if are_positive and len(names) > 1 else None


def parse_number(name: str) -> float:
    """Return the number that a name such as "400" or "1%" stands for.

    Raises:
        ValueError: The name is not a number.
    """
    number = float(name.removesuffix("%"))
    return number / 100 if name.endswith("%") else number


def compare_along(
    rows: "DataFrame", axis: str, name: str, baseline: str, places: str
) -> AgainstBaseline | None:
    """Compare a name with the baseline along a numeric axis, such as the share of labels.

    Only places that have the same seeds are compared. Among the possible sets of seeds, the
    function uses the set with the most finished runs. The result is None if fewer than two places
    remain.

    Args:
        rows: Rows of one run, measure and split.
        axis: Axis whose names are compared.
        name: Name to compare.
        baseline: Name of the baseline.
        places: Axis whose names are numbers.
    """
    number_at = parse_numbers([*rows[places].unique()]) or {}
    paired_at = {
        place: pair_rows(rows, axis, Comparison(name, baseline, ((places, place),)))
        for place in sorted(number_at, key=lambda place_name: number_at[place_name])
    }
    seed_sets = [{*paired["seed"]} for paired in paired_at.values() if len(paired)]

    def count_runs(seeds: set[int]) -> int:
        return len(seeds) * sum(seeds <= seeds_at_place for seeds_at_place in seed_sets)

    seeds = max(seed_sets, key=count_runs, default=set())
    complete = {
        place: paired[paired["seed"].isin(seeds)]
        for place, paired in paired_at.items()
        if seeds and seeds <= {*paired["seed"]}
    }
    if len(complete) < 2:
        return None
    origins = [paired[side] for paired in complete.values() for side in ("origin_a", "origin_b")]
    groups = group_by_origin(map(" ".join, zip(*origins, strict=True)))

    def group_means(side: str) -> np.ndarray:
        """Return the mean value of each group of seeds at each place, shape (S, L)."""
        columns = [paired[side] for paired in complete.values()]
        return np.array([[fmean(column.iloc[group]) for column in columns] for group in groups])

    name_SL, baseline_SL = group_means("value_a"), group_means("value_b")
    place_L = np.array([number_at[place] for place in complete])
    factors = {
        place: find_factor(place_L, index, name_SL, baseline_SL)
        for index, place in enumerate(complete)
    }
    return AgainstBaseline(len(groups), find_crossings(place_L, name_SL, baseline_SL), factors)


def find_crossings(place_L: np.ndarray, a_SL: np.ndarray, b_SL: np.ndarray) -> list[Estimate]:
    """Return the places along an axis at which the curves of two arms cross.

    The arms are, for example, `mae` and `scratch`, and a place is a number on the axis, such as 1%
    of the labels. The curves are means over seeds.

    Args:
        place_L: At least two places in ascending order, shape (L,).
        a_SL: Values of the first arm for each of S seeds, shape (S, L).
        b_SL: Values of the second arm for each of S seeds, shape (S, L).
    """
    log_point_X, difference_SX = _interpolate(place_L, a_SL - b_SL)
    crossings = _find_sign_changes(log_point_X, difference_SX.mean(0))
    return [_add_interval(crossing, log_point_X, difference_SX) for crossing in crossings]


def find_factor(
    place_L: np.ndarray, index: int, name_SL: np.ndarray, baseline_SL: np.ndarray
) -> Estimate:
    """Return how many times as many labels, for example, the baseline needs to match an arm.

    Suppose that the axis is the share of labels, the arm is `mae` and the baseline is `scratch`. A
    factor of 3 at the place 1% then says that `scratch` needs 3% of the labels to be as good as
    `mae` with 1%. If the arm is worse than the baseline, the factor is below 1.

    Args:
        place_L: The L places, which are the tried numbers of the axis, ascending, shape (L,).
        index: Index of the place at which the arm is measured.
        name_SL: Values of the arm for each of S seeds, the higher the better, shape (S, L).
        baseline_SL: Values of the baseline, shape (S, L).

    Returns:
        The nearest place at which the baseline reaches the arm's value, divided by
            `place_L[index]`.
    """
    # grid of logarithms of the factor: 0 is the place itself
    log_factor_X, baseline_SX = _interpolate(place_L / place_L[index], baseline_SL)
    difference_SX = name_SL[:, [index]] - baseline_SX
    mean_X = difference_SX.mean(0)
    lead = float((name_SL[:, index] - baseline_SL[:, index]).mean())
    if abs(lead) <= EXACT:
        return _add_interval(0.0, log_factor_X, difference_SX)
    crossings = _find_sign_changes(log_factor_X, mean_X)
    # grid points at which both are equal up to rounding, also if they do not cross there
    touching = log_factor_X[np.abs(mean_X) <= EXACT]
    # a better arm needs a factor above 1 (a positive logarithm), a worse arm a factor below 1
    is_better = lead > 0
    possible = [
        float(log_factor) for log_factor in (*crossings, *touching) if (log_factor > 0) == is_better
    ]
    # infinite if the baseline does not reach the arm's value within the grid
    nearest = min(possible, key=abs, default=math.copysign(math.inf, lead))
    return _add_interval(nearest, log_factor_X, difference_SX)


def _interpolate(place_L: np.ndarray, value_SL: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Interpolate the values of each seed between places, linearly in the logarithm of the axis.

    Args:
        place_L: The L places, which are the tried numbers of the axis, ascending, shape (L,).
        value_SL: Value of each of S seeds at each place, shape (S, L).

    Returns:
        A grid of X logarithms, ascending, shape (X,), and the values at the grid points, shape
            (S, X). The grid has `POINTS` evenly spaced points and the logarithms of the places.
    """
    log_place_L = np.log(place_L)
    evenly_spaced = np.linspace(log_place_L[0], log_place_L[-1], POINTS)
    log_point_X = np.union1d(evenly_spaced, log_place_L)
    return log_point_X, np.stack(
        [np.interp(log_point_X, log_place_L, value_L) for value_L in value_SL]
    )


def _find_sign_changes(log_point_X: np.ndarray, mean_X: np.ndarray) -> list[float]:
    """Return the points along an axis where a mean changes its sign.

    Between two grid points with different signs, the point is interpolated linearly. Grid points at
    which the mean is zero up to rounding (at most EXACT) are skipped. If they lie between two
    different signs, the result has a single point for them. If they lie between equal signs, the
    result has no point for them.

    Args:
        log_point_X: Logarithms of the X grid points, ascending, shape (X,).
        mean_X: Mean at each grid point, shape (X,).
    """
    nonzero = np.flatnonzero(np.abs(mean_X) > EXACT)  # indices of grid points
    # pairs of neighbours among the nonzero points, of which one is positive and one negative
    changes_sign = np.diff(mean_X[nonzero] > 0)
    before, after = nonzero[:-1][changes_sign], nonzero[1:][changes_sign]
    # fraction of the way from `before` to `after` at which the straight line is zero
    fraction = mean_X[before] / (mean_X[before] - mean_X[after])
    distance = log_point_X[after] - log_point_X[before]
    return [float(log_point) for log_point in log_point_X[before] + fraction * distance]


def _add_interval(
    log_estimate: float, log_point_X: np.ndarray, difference_SX: np.ndarray
) -> Estimate:
    """Return an estimated place of a zero with its 95% interval, from the logarithm of the place.

    On each side, the interval ends at the nearest grid point at which the mean difference over
    seeds is significantly different from zero (Student's t at 95%). A side without such a point is
    open.

    With one seed, significance cannot be tested, and the interval is open on both sides. Only if
    the estimate lies beyond the grid, the interval has one end: the grid point that is nearest to
    the estimate.

    Args:
        log_estimate: Logarithm of the place where the mean difference is zero, or plus or minus
            infinity if this place lies beyond the grid.
        log_point_X: Logarithms of the X grid points, ascending, shape (X,).
        difference_SX: Difference of each of S seeds at the grid points, shape (S, X).
    """
    n, mean_X = len(difference_SX), difference_SX.mean(0)
    is_beyond_grid = math.isinf(log_estimate)
    if n > 1:
        half_width_X = stats.t_half_width(n) * difference_SX.std(0, ddof=1)
        excludes_zero_X = np.abs(mean_X) > half_width_X
    else:
        # beyond the grid, every grid point counts, so that the nearest of them becomes the end
        excludes_zero_X = np.full(len(log_point_X), is_beyond_grid)
    end_points = log_point_X[excludes_zero_X]
    low = max((float(np.exp(end)) for end in end_points if end < log_estimate), default=None)
    high = min((float(np.exp(end)) for end in end_points if end > log_estimate), default=None)
    return Estimate(None if is_beyond_grid else float(np.exp(log_estimate)), low, high)
