"""Two names compared in pairs over seeds; what such a comparison can find; values along an axis."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from freeze import make
from freeze.numbers import PAIRS, arm_values
from ssl_vit.lab import results
from ssl_vit.lab.compare import (
    Comparison,
    PredictionOutcomes,
    Rule,
    compare,
    compare_along,
    find_crossings,
    find_factor,
    group_by_origin,
    least_difference,
    list_comparisons,
    list_limits,
    measure_difference,
    pair_rows,
    parse_numbers,
    power,
)
from ssl_vit.stats import Interval, resampled_interval

FROZEN = make.read("pairs")


def table(values, axes=("arm",), **more):
    """Rows of {(name, ...): {seed: value}}."""
    rows = [
        dict(zip(axes, names if isinstance(names, tuple) else (names,), strict=True))
        | {"run": "final", "seed": seed, "split": "test", "metric": "top1", "value": value}
        | {"folder": f"{names}-{seed}", "fingerprint": "x"}
        | {key: fact(names, seed) for key, fact in more.items()}
        for names, of_seed in values.items()
        for seed, value in of_seed.items()
    ]
    return results.frame(rows, list(axes))


def seeds(*values):
    return dict(enumerate(values))


MAE, SCRATCH = seeds(0.52, 0.55, 0.53, 0.58), seeds(0.50, 0.51, 0.52, 0.53)
BOTH, ASKED = {"mae": MAE, "scratch": SCRATCH}, Comparison("mae", "scratch")


@pytest.mark.parametrize("family", [1, 2, 6])
def test_an_interval_is_scipys_at_the_level_of_its_family(family):
    found = compare(table(BOTH), "arm", ASKED, family)
    paired = stats.ttest_rel([*MAE.values()], [*SCRATCH.values()])
    interval = paired.confidence_interval(1 - 0.05 / family)
    assert (found.n, found.mean) == (4, pytest.approx(0.03))
    assert found.sd == pytest.approx(np.std([0.02, 0.04, 0.01, 0.05], ddof=1))
    assert found.interval == pytest.approx((interval.low, interval.high))
    assert found.claimed == (paired.pvalue < 0.05 / family)


@pytest.mark.parametrize("file", FROZEN)
def test_the_committed_results_give_the_pairs_that_they_gave(file):
    count = 0
    for measure, (_, asked) in PAIRS[file].items():
        rows = table(arm_values(file, measure))
        for a, b in asked:
            found = compare(rows, "arm", Comparison(a, b))
            low, high = found.interval
            own = {"n": found.n, "mean": found.mean, "sd": found.sd, "low": low, "high": high}
            assert own == pytest.approx(FROZEN[file][measure][f"{a} - {b}"], rel=1e-9, abs=1e-12)
            count += 1
    assert count >= 8


def test_only_seeds_of_both_sides_are_pairs_and_one_tells_no_interval():
    rows = table({"mae": {0: 0.5, 1: 0.6, 2: 0.7}, "scratch": {2: 0.4, 3: 0.3}})
    found = compare(rows, "arm", ASKED, scale=100)
    assert (found.n, found.sd, found.interval, found.claimed) == (1, None, None, False)
    assert found.mean == pytest.approx(30)
    assert compare(table({"mae": MAE, "scratch": {7: 0.5}}), "arm", ASKED) is None


def test_seeds_that_go_on_from_one_pre_training_count_once():
    """Seeds 0 and 1 of mae go on from one run: their mean, 0.03, is one value. Where all do, nothing
    is claimed."""

    def from_(origin):
        return table(BOTH, origin=lambda name, seed: origin(seed) if name == "mae" else "")

    rows = from_(lambda seed: f"pretrain-{max(1, seed)}")
    found = compare(rows, "arm", ASKED)
    values = [0.03, 0.01, 0.05]
    assert (found.n, found.mean, found.sd) == (3, pytest.approx(0.03), pytest.approx(0.02))
    assert found.interval == pytest.approx(stats.t.interval(0.95, 2, 0.03, stats.sem(values)))
    # whichever side it is
    other = compare(rows, "arm", Comparison("scratch", "mae"))
    assert (other.n, other.mean) == (3, pytest.approx(-0.03))
    found = compare(from_(lambda seed: "pretrain-0"), "arm", ASKED)
    assert (found.n, found.interval, found.claimed) == (1, None, False)


def test_seeds_that_meet_through_others_are_one_group():
    """0 and 2 have nothing in common until 3, which shares a run with each."""
    assert group_by_origin(["p", "r", "q", "p q", "r", "", ""]) == [[0, 2, 3], [1, 4], [5], [6]]


def test_the_wider_interval_decides():
    """Of 20 images four or five are all that differ: over the seeds alone it is far from zero, over
    other images the difference may be none."""
    right = {
        f"{arm}-{seed}": np.arange(20) < count
        for arm, counts in (("mae", (13, 12, 12)), ("scratch", (9, 9, 9)))
        for seed, count in enumerate(counts)
    }
    rows = table({"mae": seeds(0.65, 0.6, 0.6), "scratch": seeds(0.45, 0.45, 0.45)})
    both = pair_rows(rows, "arm", ASKED)
    correct = {name: PredictionOutcomes(one, np.arange(20)) for name, one in right.items()}
    found = measure_difference(ASKED, both, 2, 100, correct)
    apart = np.stack(
        [right[f"mae-{seed}"].astype(int) - right[f"scratch-{seed}"] for seed in range(3)]
    )
    resampled = resampled_interval(apart, family=2)
    assert found.interval == pytest.approx([100 * end for end in resampled])
    alone = measure_difference(ASKED, both, 2, 100, {"mae-0": correct["mae-0"]})
    assert found.over_images and not alone.over_images
    assert alone.interval == compare(rows, "arm", ASKED, 2, 100).interval
    assert found.interval.low <= 0 < alone.interval.low and alone.claimed and not found.claimed
    assert found.interval.high > alone.interval.high
    # without those of one seed: the others' 20 and 15 points, with a t of 25.45 at one degree
    del correct["scratch-2"]
    fewer = measure_difference(ASKED, both, 2, 100, correct)
    assert fewer.over_images and not fewer.claimed and fewer.n == 3
    assert fewer.interval.low <= 17.5 - 25.45 * 2.5 and fewer.interval.high >= 17.5 + 25.45 * 2.5


def test_compute_is_told_of_what_is_compared():
    """Of mpp:mae alone it named a third arm; and an arm that was not counted was left out."""
    rows = table(dict.fromkeys("abcde", seeds(0.1)))
    rows["exaflop"] = rows["arm"].map({"a": 1, "b": 3, "c": 9, "d": math.nan, "e": 1})
    told = {}
    for pair in (("a", "b"), ("b", "d"), ("a", "e")):
        rule = Rule("test", "arm", tuple("abcde"), (), list_comparisons((), [], [pair], None))
        told[pair] = [*list_limits(rows, rule)]
    (differs,) = told["a", "b"]
    assert "factor of up to 3," in differs and "1 exaFLOP for a" in differs
    assert "3 exaFLOP for b" in differs
    (uncounted,) = told["b", "d"]
    assert "d was not counted" in uncounted
    assert told["a", "e"] == []


# ---- what can be found


@pytest.mark.parametrize(("n", "errors"), [(3, 9.6), (4, 6.4), (5, 5.3)])
def test_power_is_that_of_the_noncentral_t(n, errors):
    """Of two comparisons so many standard errors have 90%."""
    assert power(errors / math.sqrt(n), n, 2) == pytest.approx(0.9, abs=0.01)


@pytest.mark.parametrize(
    ("n", "found"), [(3, (1.0, 2.3, 3.9)), (5, (0.5, 1.2, 2.0)), (8, (0.3, 0.8, 1.4))]
)
def test_the_least_difference_is_found_at_80_percent(n, found):
    """0.3, 0.7 and 1.2 points are standard deviations of paired differences."""
    for sd, least in zip((0.3, 0.7, 1.2), found, strict=True):
        assert round(least_difference(sd, n), 1) == least
        assert power(least_difference(sd, n) / sd, n) == pytest.approx(0.8, abs=1e-6)


# ---- along an axis

SHARES = np.array([0.01, 0.1, 1.0])


def at(*values):
    """One seed's values at SHARES."""
    return np.array([values])


def test_names_that_are_numbers():
    assert parse_numbers(["1%", "10%", "100%"]) == {"1%": 0.01, "10%": 0.1, "100%": 1}
    assert parse_numbers(["50", "150", "4.5e2"]) == {"50": 50, "150": 150, "4.5e2": 450}
    for none in (["1%"], ["a", "1"], ["0", "1"], ["-1", "1"], ["nan", "1"], ["inf", "1"], []):
        assert parse_numbers(none) is None


def test_crossing_and_factor_of_two_straight_lines():
    """Accuracies a + b log10(share): they cross, and one is worth a constant factor, by hand."""
    decades = np.log10(SHARES)
    baseline = 0.8 + 0.2 * decades  # 40, 60, 80
    steep = 0.7 + 0.1 * decades  # 50, 60, 70
    (found,) = find_crossings(SHARES, steep[None], baseline[None])
    assert found.value == pytest.approx(0.1, rel=1e-3)
    assert (found.low, found.high) == (None, None)
    # 50% is 40 + 10: half a decade more of the baseline's labels
    assert find_factor(SHARES, 0, steep[None], baseline[None]).value == pytest.approx(10**0.5)
    assert find_factor(SHARES, 2, steep[None], baseline[None]).value == pytest.approx(10**-0.5)
    above = find_factor(SHARES, 2, baseline[None] + 0.1, baseline[None])
    assert above.value is None and above.low == pytest.approx(1.0) and above.high is None
    below = find_factor(SHARES, 0, baseline[None] - 0.1, baseline[None])
    assert below.value is None and below.high == pytest.approx(1.0) and below.low is None


@pytest.mark.parametrize(
    ("own", "other", "places"),
    [
        (at(0.5, 0.6, 0.7), at(0.5, 0.5, 0.5), []),  # equal at the first share, then above
        (at(0.5, 0.5, 0.5), at(0.5, 0.6, 0.7), []),
        (at(0.6, 0.5, 0.6), at(0.5, 0.5, 0.5), []),  # touches
        (at(0.4, 0.5, 0.4), at(0.5, 0.5, 0.5), []),
        (at(0.5, 0.5, 0.5), at(0.5, 0.5, 0.5), []),
        (at(0.4, 0.5, 0.6), at(0.5, 0.5, 0.5), [0.1]),  # through a share
        (at(0.6, 0.5, 0.4), at(0.5, 0.5, 0.5), [0.1]),
        (at(0.4, 0.6, 0.4), at(0.5, 0.5, 0.5), [10**-1.5, 10**-0.5]),
    ],
)
def test_names_cross_where_the_sign_changes_and_only_there(own, other, places):
    assert [one.value for one in find_crossings(SHARES, own, other)] == pytest.approx(places)


def test_a_factor_is_where_the_baseline_first_gets_there():
    rising = at(0.4, 0.6, 0.8)
    assert find_factor(SHARES, 0, at(0.4, 0, 0), rising).value == 1
    assert find_factor(SHARES, 0, at(0.8, 0, 0), rising).value == pytest.approx(100)
    beyond = find_factor(SHARES, 0, at(0.81, 0, 0), rising)
    assert (beyond.value, beyond.low, beyond.high) == (None, pytest.approx(100), None)
    below = find_factor(SHARES, 2, at(0, 0, 0.39), rising)
    assert (below.value, below.low, below.high) == (None, None, pytest.approx(0.01))
    # a baseline that falls again: at 100% the name is better, which fewer labels cannot undo
    falling = at(0.4, 0.7, 0.6)
    better = find_factor(SHARES, 2, at(0, 0, 0.65), falling)
    assert better.value is None and better.low == pytest.approx(1)
    # reached twice: the first time counts
    assert find_factor(SHARES, 0, at(0.65, 0, 0), falling).value == pytest.approx(
        10 ** (0.25 / 0.3)
    )


def test_a_bound_is_only_as_good_as_the_seeds():
    """The name is above the baseline on average and undecided everywhere."""
    baseline = np.tile(at(0.4, 0.6, 0.8), (3, 1))
    found = find_factor(SHARES, 2, baseline + np.array([[0.6], [-0.5], [0.1]]), baseline)
    assert (found.value, found.low, found.high) == (None, None, None)
    # only where the baseline is still low is it decided
    found = find_factor(SHARES, 2, baseline + np.array([[0.05], [0.01], [0.03]]), baseline)
    half = stats.t.ppf(0.975, 2) * 0.02 / math.sqrt(3)
    assert half > 0.03  # at its own share it is undecided
    assert found.low == pytest.approx(10 ** ((0.03 - half) / 0.2), rel=0.01) and found.low < 1


@given(seed=st.integers(0, 1000), shift=st.floats(-0.05, 0.05))
@settings(max_examples=30)
def test_ends_of_an_interval_are_where_scipys_interval_reaches_zero(seed, shift):
    """Differences that are a straight line in the logarithm, with another height for each seed: its
    t-interval is of one width everywhere, so the ends can be solved for."""
    height_S = np.random.default_rng(seed).normal(shift, 0.01, 4)
    own = 0.5 + height_S[:, None] + np.zeros((4, 3))
    baseline = np.tile(0.5 + 0.1 * np.log10(SHARES / 0.1), (4, 1))
    half = stats.t.interval(0.95, 3, 0, stats.sem(height_S))[1]
    mean = float(height_S.mean())
    value, low, high = (0.1 * 10 ** ((mean + x) / 0.1) for x in (0, -half, half))
    (found,) = find_crossings(SHARES, own, baseline)
    assert found.value == pytest.approx(value, rel=1e-3)
    assert found.low == (None if low < 0.01 else pytest.approx(low, rel=0.01))
    assert found.high == (None if high > 1 else pytest.approx(high, rel=0.01))
    times = find_factor(SHARES, 1, own, baseline)
    assert times.value == pytest.approx(found.value / 0.1, rel=1e-2)
    if low > 0.01:
        assert times.low == pytest.approx(low / 0.1, rel=0.01)


def test_the_committed_labels_are_worth_what_they_were():
    """results/labels_cifar10.json: 1.4 times the labels (1.1 to 1.8, 3 seeds), crossing at 2.86%
    (1.36% to 3.85%)."""
    values = {
        (arm, share): of_seed
        for share in ("0.01", "0.05", "0.1", "1")
        for arm, of_seed in arm_values("labels_cifar10", f"final_{share} top1").items()
    }
    found = compare_along(table(values, ("arm", "share")), "arm", "mpp", "scratch", "share")
    assert found.n == 3  # at 1% six seeds are finished, elsewhere three
    times = found.factors["0.01"]
    assert [round(one, 1) for one in times] == [1.4, 1.1, 1.8]
    (cross,) = found.crossings
    assert [round(one, 4) for one in cross] == [0.0286, 0.0136, 0.0385]


def test_a_place_that_is_not_finished_is_left_out_of_the_curve():
    values = {(arm, share): seeds(0.3, 0.4, 0.5) for arm in ("a", "b") for share in ("1%", "10%")}
    values["a", "100%"] = seeds(0.6)
    values["b", "100%"] = seeds(0.6)
    found = compare_along(table(values, ("arm", "share")), "arm", "a", "b", "share")
    assert (found.n, list(found.factors)) == (3, ["1%", "10%"])
    lone = {key: one for key, one in values.items() if key[1] == "1%"} | {("a", "10%"): seeds(0.5)}
    assert compare_along(table(lone, ("arm", "share")), "arm", "a", "b", "share") is None


def test_names_tested_on_different_images_have_no_difference():
    assert compare(table(BOTH, fingerprint=lambda name, seed: name), "arm", ASKED) is None


def test_an_interval_without_width_tells_nothing():
    """Three seeds that are apart by one image of 100 each, with rounding."""
    rows = table({"a": seeds(0.51, 0.61, 0.71), "b": seeds(0.5, 0.6, 0.7)})
    found = compare(rows, "arm", Comparison("a", "b"), scale=100)
    assert found.interval.low > 0.999 and not found.claimed
    # over images drawn again it has one
    assert found._replace(interval=Interval(0.2, 1.8)).claimed


def test_rows_of_two_measures_are_not_mixed():
    rows = table(BOTH)
    both = pd.concat([rows, rows.assign(metric="knn", value=0.1)])
    with pytest.raises(ValueError, match="not a one-to-one merge"):
        compare(both, "arm", ASKED)
