"""Intervals and tests against scipy, hand-worked values, and simulations whose truth is known."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats as scipy_stats

from ssl_vit import stats

ACCURACIES = st.lists(st.floats(0, 1, width=32), min_size=2, max_size=12)


def test_three_seeds_by_hand():
    """70, 72, 74: mean 72, sd 2, t(2) = 4.3027 from the tables, half-width 4.3027 x 2 / sqrt(3) =
    4.9683."""
    found = stats.summarize([70, 72, 74])
    assert (found.n, found.mean, found.sd) == (3, 72, 2)
    assert found.interval == pytest.approx((67.0317, 76.9683), abs=1e-4)
    assert round(stats.t_factor(3), 2) == 4.30
    assert round(stats.t_half_width(3), 2) == 2.48


@given(ACCURACIES)
def test_spread_is_scipys_t_interval(values):
    found = stats.summarize(values)
    if found.sd == 0:
        assert found.interval == (found.mean, found.mean)
    else:
        scale = scipy_stats.sem(values)
        assert found.interval == pytest.approx(
            scipy_stats.t.interval(0.95, len(values) - 1, np.mean(values), scale)
        )


def test_one_seed_has_neither_spread_nor_interval():
    assert stats.summarize([0.5]) == (1, 0.5, None, None)
    assert stats.resampled_interval(np.ones((1, 10), np.int64)) is None


def test_an_interval_that_touches_zero_does_not_exclude_it():
    assert not stats.Interval(0.0, 1.0).excludes_zero
    assert not stats.Interval(-1.0, 1.0).excludes_zero
    assert stats.Interval(0.1, 1.0).excludes_zero
    assert stats.Interval(-1.0, -0.1).excludes_zero


def by_hand(right_SM, resamples, generator):
    """The same interval, one resample at a time and by picking rows and columns."""
    seeds, images = right_SM.shape
    z, t = scipy_stats.norm.ppf(0.975), scipy_stats.t.ppf(0.975, seeds - 1)
    means = []
    for _ in range(resamples):
        rows, columns = generator.integers(0, seeds, seeds), generator.integers(0, images, images)
        of_seeds = right_SM[rows].mean() - right_SM.mean()
        means.append(
            right_SM[np.ix_(rows, columns)].mean()
            - of_seeds
            + of_seeds * math.sqrt(seeds / (seeds - 1)) * t / z
        )
    return np.percentile(means, [2.5, 97.5])


@pytest.mark.parametrize("seeds", [2, 3, 8])
def test_resampled_as_by_hand(seeds):
    generator = np.random.default_rng(seeds)
    right_SM = (generator.random((seeds, 300)) < generator.random(300)).astype(np.int64)
    low, high = stats.resampled_interval(right_SM)
    theirs = by_hand(right_SM, 4000, generator)
    assert (low, high) == pytest.approx(tuple(theirs), abs=0.08 * (high - low))


def test_resampled_counts_its_randomness():
    right_SM = (np.random.default_rng(0).random((3, 200)) < 0.7).astype(np.int64)
    assert stats.resampled_interval(right_SM) == stats.resampled_interval(right_SM)
    assert stats.resampled_interval(right_SM) != stats.resampled_interval(right_SM, seed=1)
    shuffled = right_SM[:, np.random.default_rng(1).permutation(200)]
    assert stats.resampled_interval(shuffled) == stats.resampled_interval(right_SM), (
        "the order of the images says nothing"
    )


def test_many_kinds_of_images_are_resampled_in_blocks(monkeypatch):
    right_SM = (np.random.default_rng(0).random((12, 500)) < 0.7).astype(np.int64)
    whole = stats.resampled_interval(right_SM, 500)
    monkeypatch.setattr(stats, "ENTRIES", 50_000)
    assert stats.resampled_interval(right_SM, 500) == pytest.approx(whole, abs=0.005)


@settings(max_examples=40)
@given(
    hnp.arrays(
        np.int64, st.tuples(st.integers(2, 5), st.integers(1, 40)), elements=st.integers(-1, 1)
    )
)
def test_resampled_differences_turn_with_their_sign(apart_SM):
    low, high = stats.resampled_interval(apart_SM, 400)
    assert low <= apart_SM.mean() + 1e-9
    assert high >= apart_SM.mean() - 1e-9
    if (apart_SM == apart_SM[0, 0]).all():
        assert (low, high) == (apart_SM.mean(),) * 2


def simulated(generator, seeds, images, of_seeds, of_images):
    """Right where 1 + seed + image + noise > 0, all normal: a table, and the accuracy of all seeds
    on all images."""
    shape = (seeds, images)
    latent = (
        1
        + of_seeds * generator.normal(size=(seeds, 1))
        + of_images * generator.normal(size=(1, images))
    )
    truth = scipy_stats.norm.cdf(1 / math.sqrt(1 + of_seeds**2 + of_images**2))
    return (latent + generator.normal(size=shape) > 0).astype(np.int64), truth


@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize(
    ("of_seeds", "of_images"), [(0.2, 0.0), (0.2, 1.5), (0.05, 1.5), (0.0, 1.5)]
)
def test_intervals_cover_the_truth(seeds, of_seeds, of_images):
    """95% within Monte-Carlo error where the seeds' spread leads; never fewer elsewhere, where
    resampling both is cautious."""
    generator, trials, covered, stayed = np.random.default_rng(3), 300, 0, 0
    for _ in range(trials):
        right_SM, truth = simulated(generator, seeds, 400, of_seeds, of_images)
        low, high = stats.resampled_interval(right_SM, 500)
        covered += low <= truth <= high
        interval = stats.summarize(right_SM.mean(1).tolist()).interval
        stayed += interval.low <= truth <= interval.high
    error = math.sqrt(0.05 * 0.95 / trials)
    assert covered / trials > 0.95 - 3 * error
    if of_images == 0:
        assert abs(stayed / trials - 0.95) < 3 * error
        assert abs(covered / trials - 0.95) < 4 * error


@settings(max_examples=25)
@given(
    seeds=st.integers(2, 5),
    images=st.sampled_from([50, 2000]),
    apart=st.floats(0, 0.2),
    number=st.integers(0, 99),
)
def test_with_the_images_an_interval_is_never_inside_that_of_the_seeds(
    seeds, images, apart, number
):
    draw = np.random.default_rng(number)
    rates = np.clip(0.5 + apart * draw.standard_normal(seeds), 0.01, 0.99)
    right = (draw.random((seeds, images)) < rates[:, None]).astype(np.int64)
    alone, both = (
        stats.summarize(right.mean(1).tolist()).interval,
        stats.resampled_interval(right, 500),
    )
    assert both.low <= alone.low and both.high >= alone.high


def test_the_error_of_images_is_what_more_seeds_do_not_reduce() -> None:
    """Simulated: 500 images whose difference is 0.3 times a sign that all three seeds share, plus
    five times as much that differs between seeds. It was taken from the width of intervals over few
    seeds, which named 2.5 points where 0.1 were due to the images."""
    generator = np.random.default_rng(5)
    squares = []
    for _ in range(300):
        shared_M = 0.3 * generator.choice([-1, 1], 500)
        by_seed_SM = 1.5 * generator.normal(size=(3, 500))
        squares.append(stats.image_error(shared_M + by_seed_SM) ** 2)
    # a negative estimate counts as zero, so the mean is a little too large
    assert 0.3**2 / 500 * 0.9 < np.mean(squares) < 0.3**2 / 500 * 2
    exact_M = 0.3 * generator.choice([-1, 1], 500)
    three = np.stack([exact_M] * 3)
    assert stats.image_error(three) == pytest.approx(exact_M.std() / 500**0.5)
    # every image twice is no more evidence
    twice = np.concatenate([three, three], axis=1)
    copies_M = np.tile(np.arange(500), 2)
    assert stats.image_error(twice, copies_M) == pytest.approx(stats.image_error(three))
