"""Compare two arms of a study, such as `mae` and `scratch`, in pairs with the same seed.

The arms are names on one axis of the study. A place fixes one name on every other axis, such as
labels=1%. Arms are compared at a place, or along an axis whose names are numbers.

Each difference is between two runs with the same seed, images and labels. Seeds whose runs continue
from a common run are not independent, so only the mean of their differences counts. Along an axis
of numbers, the values of a seed are interpolated linearly in the logarithm of the axis. `power` and
`least_difference` say which differences such a comparison can detect.

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
ROUNDING = 1e-9  # an interval narrower than this share of the difference is only rounding
EXACT = 1e-12  # a smaller difference between two curves is only rounding
UNEQUAL = 1.1  # ratio of compute from which the compute of two arms counts as different
POINTS = 2001  # grid points in the search for an interval: steps of 0.2% over two decades
Place = tuple[tuple[str, str], ...]  # such as (("labels", "1%"), ("data", "cifar10"))


class PredictionOutcomes(NamedTuple):
    """Results of a classifier on the labelled test images.

    Attributes:
        correct_M: Whether the top-1 prediction is the label, booleans.
        content_M: Hash of each image's content.
    """

    correct_M: np.ndarray
    content_M: np.ndarray


class Comparison(NamedTuple):
    """Comparison of two arms, `a` minus `b`, at one name on each other axis."""

    a: str
    b: str
    at: Place = ()

    @property
    def place(self) -> str:
        """Text such as " at 1%", with a leading blank. Empty if there are no other axes."""
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
        places: Combinations of names on the other axes, each as `((axis, name), ...)`.
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
    """List the comparisons of a study: the same pairs of arms at every place.

    A place fixes one name on every axis except the axis of the arms, for example labels=1%.

    Args:
        arms: Names of the arms, such as `mae` and `scratch`.
        places: Places to compare at. Empty if the study has no other axes.
        pairs: Pairs of arms. If empty, all arms but the baseline are compared with the baseline.
        baseline: Name of the baseline arm. Without pairs and baseline, all pairs are compared.
    """
    compared_pairs = list(pairs)
    if not compared_pairs and baseline is not None:
        compared_pairs = [(arm, baseline) for arm in arms if arm != baseline]
    if not compared_pairs:
        compared_pairs = list(itertools.combinations(arms, 2))
    # without other axes there is a single place, which fixes nothing
    places = places or [()]
    return tuple(Comparison(a, b, place) for place in places for a, b in compared_pairs)


class Difference(NamedTuple):
    """Measured difference of a comparison.

    Attributes:
        comparison: Comparison.
        n: Number of independent seeds.
        mean: Mean of the seeds' differences.
        sd: Standard deviation of the seeds' differences, or None for one seed.
        interval: Interval of the mean at the level of the family, or None for one seed.
        image_errors: Standard errors that are due to the choice of the test images. 0.01 is one
            point of accuracy. None if the predictions of the runs are not stored.
    """

    comparison: Comparison
    n: int
    mean: float
    sd: float | None
    interval: Interval | None
    image_errors: stats.ImageErrors | None = None

    @property
    def over_images(self) -> bool:
        """Whether the interval covers the choice of test images, and not only the seeds.

        Such an interval is never narrower than the interval over seeds.
        """
        return self.image_errors is not None

    @property
    def claimed(self) -> bool:
        """Whether the report may claim the difference.

        A claim needs at least `FEWEST` seeds, an interval that excludes zero, and seeds with
        different differences. If all seeds have the same difference, as can happen with few test
        images, the interval has no width and proves nothing.
        """
        if self.n < FEWEST or self.interval is None:
            return False
        low, high = self.interval
        return self.interval.excludes_zero and high - low > ROUNDING * abs(self.mean)


def pair_rows(rows: "DataFrame", axis: str, comparison: Comparison) -> "DataFrame":
    """Join the results of two arms by seed, with one row for each seed that both arms have.

    Columns of the first arm end in `_a`, and columns of the second arm in `_b`. The rows are sorted
    by seed.

    Args:
        rows: Rows of one run, one measure and one split, from `results.Results.rows`.
        axis: Column with the arms, such as "arm" with the names `mae` and `scratch`.
        comparison: The two arms, and the names on the other axes, such as "1%" on the axis "share".
            Only rows with these names are joined.

    Raises:
        ValueError: A seed has several rows, for example of several measures.
    """
    for other_axis, name in comparison.at:
        rows = rows[rows[other_axis] == name]
    rows_a, rows_b = (rows[rows[axis] == name] for name in (comparison.a, comparison.b))
    paired = rows_a.merge(rows_b, on="seed", suffixes=("_a", "_b"), validate="1:1")
    return paired.sort_values("seed")


def list_limits(rows: "DataFrame", rule: Rule) -> Iterator[str]:
    """Yield sentences about the limits of a study's comparisons.

    The sentences name:
    - each axis whose names are not compared with one another,
    - the two compared arms with the largest ratio of compute, if this ratio is at least `UNEQUAL`,
    - the arms whose compute was not counted.

    Args:
        rows: Rows of the test run with columns `run`, each axis, and `exaflop`. The exaFLOP include
            all runs that the weights came from. NaN means that they were not counted.
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
    # for a single axis, pandas gives the names themselves as keys, not tuples of names
    exaflop_at = {key if isinstance(key, tuple) else (key,): mean for key, mean in means.items()}
    sentence_by_ratio: dict[float, str] = {}
    not_counted: dict[str, None] = {}  # each arm once and in order
    for comparison in rule.asked:
        names_at_place = tuple(name for _, name in comparison.at)
        exaflop = {
            name: exaflop_at.get((name, *names_at_place), 0.0)
            for name in (comparison.a, comparison.b)
        }
        not_counted |= dict.fromkeys(name for name in exaflop if math.isnan(exaflop[name]))
        low_arm, high_arm = sorted(exaflop, key=lambda name: exaflop[name])
        if exaflop[low_arm] <= 0:
            continue
        ratio = exaflop[high_arm] / exaflop[low_arm]
        if ratio >= UNEQUAL:
            sentence_by_ratio[ratio] = (
                f"{rule.axis}: the compute differs by a factor of up to {ratio:.2g}, from"
                f" {exaflop[low_arm]:.3g} exaFLOP for {low_arm} to {exaflop[high_arm]:.3g} exaFLOP"
                f" for {high_arm}, including pre-training."
            )
    if sentence_by_ratio:
        yield sentence_by_ratio[max(sentence_by_ratio)]
    if not_counted:
        yield f"{rule.axis}: the compute of {list_names([*not_counted])} was not counted."


def on_different_images(paired: "DataFrame") -> bool:
    """Return whether the two runs of any pair were measured on different images.

    A pair with unknown images does not count as different.
    """
    images_a, images_b = paired["fingerprint_a"], paired["fingerprint_b"]
    is_known = (images_a != "") & (images_b != "")
    return bool((is_known & (images_a != images_b)).any())


def compare(
    frame: "DataFrame", axis: str, comparison: Comparison, family: int = 1, scale: float = 1.0
) -> Difference | None:
    """Return the difference of two arms, paired by seed, or None if it cannot be measured.

    The arms must have a common seed, and the same test images for each seed.

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
    """Measure the mean difference of paired runs, with an interval, or return None without pairs.

    The interval is Student's t over independent seeds. If runs have stored predictions, a second
    interval is computed by a bootstrap over seeds and test images. The result is then the smallest
    interval that contains both. The bootstrap draws all copies of an image together.

    Args:
        comparison: Comparison that the pairs belong to.
        paired: Rows from `pair_rows`, one for each seed.
        family: Number of comparisons that share the error level of 5%. The probability that all
            their intervals hold is at least 95% (Bonferroni).
        scale: Factor for the values, such as 100 for percent.
        correct: `{run: outcomes}` of the runs with stored predictions. None or empty unless the
            values are top-1 accuracies, because predictions reproduce no other measure.
    """
    if paired.empty:
        return None
    groups = group_by_origin(paired["origin_a"] + " " + paired["origin_b"])
    differences = paired["value_a"] - paired["value_b"]
    group_means = [scale * fmean(differences.iloc[group]) for group in groups]
    summary = stats.summarize(group_means, family)
    folders = [*zip(paired["folder_a"], paired["folder_b"], strict=True)]
    outcomes = correct or {}
    # For each group, the mean difference at each test image, shape (M,), from -1 to 1. At an image,
    # a pair has the difference 1 if only run a is correct, -1 if only run b is correct, else 0
    image_differences = []
    for group in groups:
        folder_pairs = [folders[position] for position in group]
        if all(a in outcomes and b in outcomes for a, b in folder_pairs):
            pair_differences = [
                outcomes[a].correct_M.astype(int) - outcomes[b].correct_M for a, b in folder_pairs
            ]
            image_differences.append(np.mean(pair_differences, 0))
    resampled = None
    if image_differences:
        # all paired runs were measured on the same test images
        content_M = next(outcomes[a].content_M for a, _ in folders if a in outcomes)
        differences_SM = np.stack(image_differences)
        resampled = stats.resampled_interval(differences_SM, family=family, content_M=content_M)
    if resampled is None or summary.interval is None:
        return Difference(comparison, *summary)
    low, high = (scale * bound for bound in resampled)
    # the interval over seeds also uses the seeds without predictions
    interval = Interval(min(low, summary.interval.low), max(high, summary.interval.high))
    image_errors = stats.image_errors(differences_SM, content_M)
    n, mean, sd, _ = summary
    return Difference(comparison, n, mean, sd, interval, image_errors)


def group_by_origin(origins: Iterable[str]) -> list[list[int]]:
    """Group the runs that continue from a common run, directly or indirectly.

    For example, the origins "a", "b", "a c" and "c" give the groups [[1], [0, 2, 3]]. The runs 0
    and 2 share the origin "a", and the runs 2 and 3 share the origin "c".

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
    """Estimated number with a 95% interval: a number on the axis, or a factor.

    Attributes:
        value: Estimate, or None if it lies beyond the tried places.
        low: Lower end of the interval, or None if the interval is open below.
        high: Upper end of the interval, or None if the interval is open above. With one seed, both
            ends are open, with one exception: if the value lies beyond the tried places, the
            interval begins or ends at the nearest tried place.
    """

    value: float | None
    low: float | None
    high: float | None


class AgainstBaseline(NamedTuple):
    """Comparison of an arm with the baseline along a numeric axis, such as the share of labels.

    Attributes:
        n: Number of independent seeds that exist at all places.
        crossings: Numbers on the axis at which the mean curves of arm and baseline cross.
        factors: `{place: factor}`. For example, a factor of 3 at the place 1% says that the
            baseline needs 3% of the labels to be as good as the arm with 1%.
    """

    n: int
    crossings: list[Estimate]
    factors: dict[str, Estimate]


def parse_numbers(names: Sequence[str]) -> dict[str, float] | None:
    """Return `{name: number}` if all names are positive numbers such as "400" or "1%", else None.

    A single name gives None too, because values cannot change along an axis of one number.
    """
    try:
        numbers = {name: parse_number(name) for name in names}
    except ValueError:
        return None
    are_positive = all(0 < number < math.inf for number in numbers.values())
    return numbers if are_positive and len(names) > 1 else None


def parse_number(name: str) -> float:
    """Return the number that a name stands for: 400.0 for "400", and 0.01 for "1%".

    Raises:
        ValueError: The name is not a number.
    """
    number = float(name.removesuffix("%"))
    return number / 100 if name.endswith("%") else number


def compare_along(
    rows: "DataFrame", axis: str, name: str, baseline: str, places: str
) -> AgainstBaseline | None:
    """Compare an arm with the baseline along a numeric axis, such as the share of labels.

    All compared places must have the same seeds. The function tries the set of seeds of each place,
    and takes the set that keeps the most runs. Places that lack one of these seeds are left out,
    and so are further seeds of the other places. The result is None if fewer than two places
    remain.

    Args:
        rows: Rows of one run, measure and split.
        axis: Axis of the arms.
        name: Arm to compare.
        baseline: Arm that is the baseline.
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
    complete_pairs = {
        place: paired[paired["seed"].isin(seeds)]
        for place, paired in paired_at.items()
        if seeds and seeds <= {*paired["seed"]}
    }
    if len(complete_pairs) < 2:
        return None
    origin_columns = [
        paired[side] for paired in complete_pairs.values() for side in ("origin_a", "origin_b")
    ]
    # for each seed, the origins of its runs at all places
    origins = map(" ".join, zip(*origin_columns, strict=True))
    groups = group_by_origin(origins)

    def group_means(side: str) -> np.ndarray:
        """Return the mean value of each group of seeds at each place, shape (S, L)."""
        columns = [paired[side] for paired in complete_pairs.values()]
        return np.array([[fmean(column.iloc[group]) for column in columns] for group in groups])

    name_SL, baseline_SL = group_means("value_a"), group_means("value_b")
    place_L = np.array([number_at[place] for place in complete_pairs])
    factors = {
        place: find_factor(place_L, index, name_SL, baseline_SL)
        for index, place in enumerate(complete_pairs)
    }
    return AgainstBaseline(len(groups), find_crossings(place_L, name_SL, baseline_SL), factors)


def find_crossings(place_L: np.ndarray, a_SL: np.ndarray, b_SL: np.ndarray) -> list[Estimate]:
    """Return the numbers on an axis at which the curves of two arms cross.

    For example, the axis is the share of labels, and the arms are `mae` and `scratch`. The curves
    are means over seeds.

    Args:
        place_L: At least two tried numbers of the axis, ascending, shape (L,).
        a_SL: Values of the first arm for each of S seeds, shape (S, L).
        b_SL: Values of the second arm for each of S seeds, shape (S, L).
    """
    log_point_X, difference_SX = _interpolate(place_L, a_SL - b_SL)
    crossings = _find_sign_changes(log_point_X, difference_SX.mean(0))
    return [_add_interval(crossing, log_point_X, difference_SX) for crossing in crossings]


def find_factor(
    place_L: np.ndarray, index: int, name_SL: np.ndarray, baseline_SL: np.ndarray
) -> Estimate:
    """Return how many times as much the baseline needs to match an arm, such as 3 times the labels.

    For example, the axis is the share of labels, the arm is `mae` and the baseline is `scratch`. A
    factor of 3 at the place 1% says that `scratch` needs 3% of the labels to be as good as `mae`
    with 1%. If the arm is worse than the baseline, the factor is below 1.

    Args:
        place_L: The L places, which are the tried numbers of the axis, ascending, shape (L,).
        index: Index of the place at which the arm is measured.
        name_SL: Values of the arm for each of S seeds, the higher the better, shape (S, L).
        baseline_SL: Values of the baseline, shape (S, L).

    Returns:
        The number on the axis at which the baseline reaches the arm's value, divided by
            `place_L[index]`. If there are several such numbers, the nearest counts.
    """
    # the grid has logarithms of the factor, so 0 is the place itself
    log_factor_X, baseline_SX = _interpolate(place_L / place_L[index], baseline_SL)
    difference_SX = name_SL[:, [index]] - baseline_SX
    mean_X = difference_SX.mean(0)
    lead = float((name_SL[:, index] - baseline_SL[:, index]).mean())
    if abs(lead) <= EXACT:
        return _add_interval(0.0, log_factor_X, difference_SX)
    crossings = _find_sign_changes(log_factor_X, mean_X)
    # arm and baseline may be equal (up to rounding) at a grid point without crossing there
    touching = log_factor_X[np.abs(mean_X) <= EXACT]
    # a better arm has a factor above 1 (a positive logarithm), a worse arm has a factor below 1
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
        A grid of X logarithms, ascending, shape (X,), and each seed's values at the grid points,
            shape (S, X). The grid has `POINTS` evenly spaced points and the logarithms of the
            places.
    """
    log_place_L = np.log(place_L)
    evenly_spaced = np.linspace(log_place_L[0], log_place_L[-1], POINTS)
    log_point_X = np.union1d(evenly_spaced, log_place_L)
    interpolated = [np.interp(log_point_X, log_place_L, value_L) for value_L in value_SL]
    return log_point_X, np.stack(interpolated)


def _find_sign_changes(log_point_X: np.ndarray, mean_X: np.ndarray) -> list[float]:
    """Return the points along an axis where a mean changes its sign, as logarithms.

    Between two grid points with different signs, the point is interpolated linearly. Grid points
    with a mean of zero (at most EXACT in size) are skipped. For example, the means -1, 0, 0, 1 give
    a single point, and the means 1, 0, 1 give no point.

    Args:
        log_point_X: Logarithms of the X grid points, ascending, shape (X,).
        mean_X: Mean at each grid point, shape (X,).
    """
    nonzero = np.flatnonzero(np.abs(mean_X) > EXACT)  # indices of grid points
    # True where two neighbouring nonzero points have different signs
    changes_sign = np.diff(mean_X[nonzero] > 0)
    before, after = nonzero[:-1][changes_sign], nonzero[1:][changes_sign]
    # fraction of the way from `before` to `after` at which the straight line is zero
    fraction = mean_X[before] / (mean_X[before] - mean_X[after])
    distance = log_point_X[after] - log_point_X[before]
    return [float(log_point) for log_point in log_point_X[before] + fraction * distance]


def _add_interval(
    log_estimate: float, log_point_X: np.ndarray, difference_SX: np.ndarray
) -> Estimate:
    """Return the number at which a difference is zero, with a 95% interval.

    On each side, the interval ends at the nearest grid point at which the mean difference over
    seeds is significantly different from zero (Student's t at 95%). A side without such a point is
    open.

    With one seed, significance cannot be tested, and the interval is open on both sides. There is
    one exception: if the estimate lies beyond the grid, the interval ends at the nearest grid
    point.

    Args:
        log_estimate: Logarithm of the number at which the mean difference is zero, or plus or minus
            infinity if this number lies beyond the grid.
        log_point_X: Logarithms of the X grid points, ascending, shape (X,).
        difference_SX: Difference of each of S seeds at the grid points, shape (S, X).
    """
    n, mean_X = len(difference_SX), difference_SX.mean(0)
    is_beyond_grid = math.isinf(log_estimate)
    if n > 1:
        half_width_X = stats.t_half_width(n) * difference_SX.std(0, ddof=1)
        excludes_zero_X = np.abs(mean_X) > half_width_X
    else:
        # With one seed: no grid point is an end, so both sides are open. But if the estimate is
        # beyond the grid, all grid points are possible ends, and the nearest becomes the end
        excludes_zero_X = np.full(len(log_point_X), is_beyond_grid)
    end_points = log_point_X[excludes_zero_X]
    low = max((float(np.exp(end)) for end in end_points if end < log_estimate), default=None)
    high = min((float(np.exp(end)) for end in end_points if end > log_estimate), default=None)
    return Estimate(None if is_beyond_grid else float(np.exp(log_estimate)), low, high)
