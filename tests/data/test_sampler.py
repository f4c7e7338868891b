"""The order of rows in shards: a permutation of all of them, whatever their sizes, of which a
window is read from few."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from ssl_vit.data import batching
from ssl_vit.data.sampler import WindowSampler

SIZES = st.lists(st.integers(0, 60), min_size=1, max_size=30).filter(sum)


def epoch(windows, number=0, seed=0):
    """Every row of an epoch, in order."""
    return batching.samples_at(
        number * windows.length, windows.length, windows.length, seed, windows
    ).index


def shard_of(rows, sizes):
    return np.searchsorted(np.cumsum(sizes), rows, side="right")


@settings(max_examples=150)
@given(SIZES, st.integers(1, 700), st.integers(1, 80), st.integers(0, 1000), st.integers(0, 2**40))
def test_every_epoch_is_a_permutation(sizes, window, batch, number, seed):
    windows = WindowSampler(np.array(sizes), window, batch)
    assert np.array_equal(np.sort(epoch(windows, number, seed)), np.arange(sum(sizes)))


@settings(max_examples=80)
@given(
    SIZES,
    st.integers(1, 200),
    st.integers(1, 40),
    st.integers(0, 500),
    st.lists(st.integers(1, 90), min_size=1, max_size=6),
)
def test_the_stream_is_the_same_however_it_is_cut_and_whatever_was_read_before(
    sizes, window, batch, first, counts
):
    length = sum(sizes)
    known = batching.samples_at(
        first, sum(counts), length, 3, WindowSampler(np.array(sizes), window, batch)
    )
    cuts = [(first + sum(counts[:i]), count) for i, count in enumerate(counts)]
    fresh = [
        batching.samples_at(*cut, length, 3, WindowSampler(np.array(sizes), window, batch))
        for cut in reversed(cuts)
    ]
    assert np.array_equal(np.concatenate([part.index for part in reversed(fresh)]), known.index)
    assert np.array_equal(np.concatenate([part.key for part in reversed(fresh)]), known.key)


@settings(max_examples=40)
@given(st.integers(1, 50), st.integers(1, 100), st.integers(1, 300), st.integers(1, 70))
def test_a_window_is_read_from_no_more_shards_than_it_must_touch(count, size, window, batch):
    order = epoch(WindowSampler(np.full(count, size), window, batch))
    for first in range(0, len(order), window):
        part = order[first : first + window]
        assert len(np.unique(part // size)) <= -(-len(part) // size) + 1


@settings(max_examples=40)
@given(st.integers(1, 8), st.integers(1, 6), st.integers(1, 20), st.integers(1, 4))
def test_processes_read_parts_of_a_window_that_no_other_reads(
    processes, device_batch, turns, accumulation
):
    """Rows of 10 to a shard: what a process reads of a window lies as close together as it can."""
    batch = processes * device_batch * accumulation
    window = batch * turns
    order = epoch(WindowSampler(np.full(-(-3 * window // 10), 10), window, batch))[:window].reshape(
        turns, batch
    )
    chunks = order.reshape(turns, accumulation, processes, device_batch)
    for micro, rank in np.ndindex(accumulation, processes):
        touched = np.unique(chunks[:, micro, rank] // 10)
        assert len(touched) <= -(-turns * device_batch // 10) + 1


def test_by_hand():
    """Two shards of two rows, one window, batches of 2: each part is a shard, and a batch has a
    row of each."""
    order = epoch(WindowSampler(np.array([2, 2]), 4, 2))
    assert {tuple(sorted(pair // 2)) for pair in order.reshape(2, 2)} == {(0, 1)}
    assert len(set(order[::2] // 2)) == len(set(order[1::2] // 2)) == 1


def test_epochs_and_seeds_have_their_own_shards_and_rows():
    windows = WindowSampler(np.full(40, 25), 200, 16)
    orders = [epoch(windows, number, seed) for number in range(3) for seed in range(2)]
    for one, other in itertools.combinations(orders, 2):
        assert np.mean(one == other) < 0.02  # 0.001 expected
        shards = [set(order[:200] // 25) for order in (one, other)]
        assert len(shards[0] & shards[1]) < 8


def test_a_shard_comes_as_likely_early_as_late():
    """Over 300 epochs: the window that row 0 is in is uniform."""
    windows = WindowSampler(np.full(20, 3), 12, 5)
    places = np.array([np.flatnonzero(epoch(windows, number) == 0)[0] for number in range(300)])
    assert chisquare(np.bincount(places // 12, minlength=5)).pvalue > 1e-3


def test_a_batch_has_as_many_rows_of_every_part_of_its_window():
    """And the order within a part has no trace of the first: here a part is a shard (standard
    deviation 0.01)."""
    order = epoch(WindowSampler(np.full(64, 156), 64 * 156, 64))
    assert all(len(np.unique(batch // 156)) == 64 for batch in order.reshape(156, 64))
    place = order % 156
    assert abs(np.corrcoef(place[64:], place[:-64])[0, 1]) < 0.04
    assert abs(np.corrcoef(place, np.arange(len(place)))[0, 1]) < 0.04


def test_a_far_step_of_a_huge_set_needs_only_the_shards_sizes():
    """Step 10^6 of the paper's batch on JFT's 303 million images, in shards of 1,000 and windows of
    a million."""
    windows = WindowSampler(np.full(303_000, 1000), 2**20, 4096)
    far = batching.samples_at(10**6 * 4096, 4096, 303_000_000, 0, windows)
    assert len(set(far.index.tolist())) == 4096
    near = batching.samples_at(10**6 * 4096 + 1000, 10, 303_000_000, 0, windows)
    assert np.array_equal(near.index, far.index[1000:1010])
    turns = [
        batching.samples_at((10**6 + turn) * 4096, 8, 303_000_000, 0, windows).index
        for turn in range(100)
    ]
    # by one of 512 processes, in 100 steps, of two windows at most
    touched = np.unique(np.concatenate(turns) // 1000)
    assert len(touched) <= 2 * (-(-8 * 256 // 1000) + 1)


@pytest.mark.parametrize("batch", [1, 7, 64])
def test_no_row_group_is_read_twice_where_the_last_few_are_kept(batch):
    """A single process that keeps what a window lies in."""
    sizes, window = np.full(60, 10), 100
    kept, read = [], 0
    for shard in shard_of(epoch(WindowSampler(sizes, window, batch)), sizes).tolist():
        if shard not in kept:
            read += 1
        kept = [*(s for s in kept if s != shard), shard][-(window // 10 + 2) :]
    assert read <= 60 + 600 // window, "a row group on a border may be read again"
