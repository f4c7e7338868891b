"""Batches: every step is known without its past, and the processes together see each sample of it
exactly once."""

import itertools
import random
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.sources import DATA, noisy
from ssl_vit.data import batching, loaders
from ssl_vit.data.batch_layout import BatchLayout
from ssl_vit.data.workers import PREFETCH, limit_workers
from ssl_vit.errors import UserError, report_errors
from ssl_vit.recipe.shared_groups import ViewOptions

ALONE = BatchLayout(12, 4, 0, 1)


def loader(batch_layout, length=50, seed=0, start=0, stop=5, workers=0, broken=(), views=None):
    source = noisy(length, broken)
    return loaders.training_loader(source, DATA, batch_layout, seed, start, stop, workers, views)


def held_out(length, most, device_batch=100, rank=0, processes=1):
    batch_layout = BatchLayout(device_batch * processes, device_batch, rank, processes)
    return loaders.held_out_batches(noisy(length), DATA, batch_layout, most)


def same(some, others):
    """Whether two runs of batches are equal in every field."""
    pairs = itertools.zip_longest(some, others)
    return all(
        all(torch.equal(a, b) for a, b in zip(*(batch[:4] for batch in pair), strict=True))
        for pair in pairs
    )


def whole(some):
    """Batches put one after the other, as one."""
    return batching.Batch(*map(torch.cat, zip(*(batch[:4] for batch in some), strict=True)))


@settings(max_examples=60)
@given(st.integers(1, 500), st.integers(0, 2**31), st.integers(0, 10**6))
def test_every_epoch_is_a_permutation(length, seed, epoch):
    stream = batching.samples_at(epoch * length, length, length, seed)
    assert stream.index.dtype == stream.key.dtype == np.int64
    assert np.array_equal(np.sort(stream.index), np.arange(length))


@settings(max_examples=60)
@given(
    st.integers(1, 60), st.integers(0, 300), st.lists(st.integers(1, 40), min_size=1, max_size=8)
)
def test_the_stream_is_the_same_however_it_is_cut(length, first, counts):
    starts = first + np.cumsum([0, *counts[:-1]])
    parts = [batching.samples_at(at, n, length, 3) for at, n in zip(starts, counts, strict=True)]
    known = batching.samples_at(first, sum(counts), length, 3)
    for joined, right in zip(map(np.concatenate, zip(*parts, strict=True)), known, strict=True):
        assert np.array_equal(joined, right)


def test_epochs_and_seeds_have_their_own_orders_and_keys():
    streams = [
        batching.samples_at(epoch * 100, 100, 100, seed) for seed in (0, 1) for epoch in range(3)
    ]
    assert len({key for s in streams for key in s.key.tolist()}) == 600
    moved = [np.mean(a.index == b.index) for a, b in itertools.combinations(streams, 2)]
    assert max(moved) < 0.06  # 0.01 expected


def test_a_far_step_of_a_huge_set_is_like_any_other():
    """Step 10^6 of the paper's batch on JFT's 303 million images: epoch 13, position 157
    million."""
    length = 303_000_000
    far = batching.samples_at(10**6 * 4096, 4096, length, 0)
    assert len(set(far.index.tolist())) == len(set(far.key.tolist())) == 4096
    # 512 expected, standard deviation 21
    assert np.histogram(far.index, 8, (0, length))[0].min() > 400


@settings(max_examples=80)
@given(st.integers(1, 400), st.integers(1, 400), st.integers(1, 9))
def test_the_largest_device_batch_that_fits_is_taken(share, limit, processes):
    got = BatchLayout.divide(share * processes, None, limit, processes - 1, processes)
    assert got[2:] == (processes - 1, processes)
    assert got.device_batch <= limit and share == got.device_batch * got.accumulation_steps
    assert not any(share % d == 0 for d in range(got.device_batch + 1, min(limit, share) + 1))


def test_a_wanted_device_batch_is_taken_whatever_fits_if_it_divides():
    assert BatchLayout.divide(128, 32, 1, 1, 2) == BatchLayout(128, 32, 1, 2)
    for batch, wanted, processes, text in (
        (10, None, 3, r"^optim.batch=10: .*3 processes$"),
        (12, 5, 1, r"^compute.batch=5: .*optim.batch=12$"),
        (8, 8, 2, r"^compute.batch=8: .*optim.batch=8$"),
    ):
        with pytest.raises(UserError, match=text):
            BatchLayout.divide(batch, wanted, 100, 0, processes)


@pytest.mark.parametrize(
    ("processes", "device_batch"), [(1, 12), (1, 4), (2, 6), (2, 3), (4, 3), (4, 1)]
)
def test_processes_and_passes_together_make_the_global_batch(processes, device_batch):
    """Step s takes stream positions 12 s to 12 s + 11; of its chunks, process p takes p, P + p, 2 P
    + p, ..."""
    layouts = [BatchLayout(12, device_batch, rank, processes) for rank in range(processes)]
    passes = [list(loader(layout, start=3, stop=6)) for layout in layouts]
    accumulation = 12 // (device_batch * processes)
    assert all(len(some) == 3 * accumulation for some in passes)
    rebuilt = whole(
        passes[rank][step * accumulation + micro]
        for step, micro, rank in np.ndindex(3, accumulation, processes)
    )
    stream = batching.samples_at(36, 36, 50, 0)
    assert np.array_equal(rebuilt.index, stream.index) and np.array_equal(rebuilt.key, stream.key)
    assert same([rebuilt], [whole(loader(BatchLayout(12, 12, 0, 1), start=3, stop=6))])
    chunks = [
        layouts[rank].chunk_index(micro) for micro, rank in np.ndindex(accumulation, processes)
    ]
    assert chunks == list(range(accumulation * processes))


def test_a_batch_may_be_larger_than_the_set():
    (batch,) = loader(BatchLayout(24, 24, 0, 1), length=7, stop=1)
    assert sorted(torch.bincount(batch.index, minlength=7).tolist()) == [3, 3, 3, 3, 4, 4, 4]
    assert len(set(batch.key.tolist())) == 24


def test_a_batch_holds_the_images_that_it_names():
    batch = next(iter(loader(BatchLayout(12, 12, 0, 1))))
    assert batch.image.dtype == torch.uint8 and batch.image.shape == (12, 3, 8, 8)
    assert torch.equal(batch.label, 7 * batch.index + 1)
    assert all(field.dtype == torch.int64 for field in batch[1:4])
    (fixed,) = held_out(5, 5)
    drawn = noisy(5).fetch(fixed.index)[0]
    assert np.array_equal(fixed.image.permute(0, 2, 3, 1), np.stack(drawn))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_resumed_loader_goes_on_as_the_unbroken_one(workers, rank):
    batch_layout = BatchLayout(12, 3, rank, 2)
    unbroken = list(loader(batch_layout, stop=6))
    assert len(unbroken) == 12
    assert same(loader(batch_layout, start=4, stop=6, workers=workers), unbroken[8:])


@pytest.mark.parametrize("workers", [0, 2])
def test_the_loader_moves_no_global_generator(workers):
    def states():
        return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002

    before = states()
    list(loader(ALONE, stop=2, workers=workers))
    held_out(20, 10)
    list(loaders.first_batches(noisy(20), DATA, 0, 10))
    assert states() == before


def test_a_larger_share_is_no_remedy_where_no_image_can_be_read():
    one, all_of_them = (DATA.model_copy(update={"unreadable": share}) for share in (0.01, 1.0))
    batching.check_unreadable(10, 400, one, "a")  # of 1,000
    with pytest.raises(UserError, match=r"11 of 400 .*; repair .* data\.unreadable=; the last: a"):
        batching.check_unreadable(11, 400, one, "a")
    with pytest.raises(UserError, match="3 of 3 images cannot be read; repair or remove them; the"):
        batching.check_unreadable(3, 3, all_of_them, "a")


@pytest.mark.parametrize("workers", [0, 1])
def test_an_image_that_cannot_be_read_is_replaced_by_the_next_that_can(workers):
    plain = whole(loader(ALONE))
    mended = list(loader(ALONE, broken={17, 18, 49}, workers=workers))
    named = [text.split(":")[0] for batch in mended for text in batch.unreadable]
    assert named.count("number 49") == (plain.index == 49).sum()
    one = whole(mended)
    assert torch.equal(one.index, plain.index) and torch.equal(one.key, plain.key)
    for index, label in zip(one.index.tolist(), one.label.tolist(), strict=True):
        assert label == 7 * {17: 19, 18: 19, 49: 0}.get(index, index) + 1


@pytest.mark.parametrize("workers", [0, 1])
def test_too_many_in_a_row_are_named_in_one_line(workers, capsys, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(SystemExit), report_errors():
        list(loader(ALONE, broken=range(10, 45), workers=workers))
    printed = capsys.readouterr().err
    line = "error: data=numbered: 20 images in a row cannot be read, the last number "
    assert printed.startswith(line) and printed.count("\n") == 1


def test_an_evaluation_does_not_count_what_cannot_be_read_and_an_embedding_leaves_it_out():
    rows = np.array([3, 17, 49])
    given = (noisy(50, {17}), DATA, ALONE, 0, rows)
    (counted,) = loaders.evaluation_loader(*given)
    assert counted.index.tolist() == [3, 17, 49] and counted.label.tolist() == [22, -1, 344]
    (left,) = loaders.evaluation_loader(*given, batching.Unreadable.LEFT_OUT)
    assert left.index.tolist() == [3, 49] and left.label.tolist() == [22, 344]
    assert torch.equal(left.image, counted.image[[0, 2]])
    assert left.unreadable == counted.unreadable and left.unreadable[0].startswith("number 17: ")


@settings(max_examples=30)
@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 9), st.integers(1, 4))
def test_held_out_images_are_each_in_one_batch_of_one_process(
    length, most, device_batch, processes
):
    if min(length, most) < processes:
        with pytest.raises(UserError, match=r"^eval\.images"):
            held_out(length, most, device_batch, 0, processes)
        return
    shares = [held_out(length, most, device_batch, rank, processes) for rank in range(processes)]
    assert all(shares), "a process without a batch would miss the sums over processes"
    for share in shares:
        sizes = [len(batch.index) for batch in share]
        assert sizes[:-1] == [device_batch] * (len(sizes) - 1) and 0 < sizes[-1] <= device_batch
    together = whole(itertools.chain(*shares))
    assert len(together.index) == len(set(together.index.tolist())) == min(length, most)
    alone = whole(held_out(length, most))
    order, known = together.index.argsort(), alone.index.argsort()
    assert same([together.map(lambda x: x[order])], [alone.map(lambda x: x[known])])


def test_held_out_images_are_spread_over_the_split_and_keep_their_keys():
    few, many = (whole(held_out(1000, most, 50)) for most in (50, 200))
    assert torch.equal(few.index, many.index[:50]) and torch.equal(few.key, many.key[:50])
    assert torch.bincount(many.index // 250, minlength=4).min() > 25  # 50 expected
    assert not set(many.key.tolist()) & set(batching.samples_at(0, 1000, 1000, 0).key.tolist())


def test_the_first_samples_are_those_of_the_stream_at_most_one_epoch():
    for count, wanted in ((30, 30), (80, 50)):
        got = whole(loaders.first_batches(noisy(50), DATA, 0, count, size=8))
        assert same([got], [whole(loader(BatchLayout(wanted, wanted, 0, 1), stop=1))])


MIB = 2**20


@pytest.mark.parametrize(
    ("free", "processes", "batch", "wanted"),
    [
        (8 * MIB, 1, MIB // 16, 4),  # room for 64 batches
        (8 * MIB, 1, MIB // 2, 2),  # for 8
        (8 * MIB, 1, MIB, 1),
        (8 * MIB, 4, MIB // 4, 1),  # each process has its share
        (8 * MIB, 1, 2 * MIB, 0),  # none: the process itself reads
    ],
)
def test_workers_hold_no_more_than_half_of_the_shared_memory(
    monkeypatch, free, processes, batch, wanted
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    assert limit_workers(4, batch) == wanted
    assert wanted * PREFETCH * batch * processes <= free / 2


def test_little_shared_memory_changes_no_batch(monkeypatch) -> None:
    plain = list(loader(ALONE, stop=3))
    size = loaders.batch_bytes(DATA, ALONE)
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: SimpleNamespace(free=2 * PREFETCH * size)
    )
    made = loader(ALONE, stop=3, workers=3)
    assert made.num_workers == 1 and same(made, plain)


@pytest.mark.parametrize("views", [None, ViewOptions(), ViewOptions(local=2, local_size=4)])
def test_a_batch_is_as_large_as_is_counted(views: ViewOptions | None) -> None:
    batch = next(iter(loader(ALONE, views=views)))
    kept = batch if views is None else batch._replace(image=None)  # it is the first of the views
    held = sum(x.nbytes for x in kept if isinstance(x, torch.Tensor))
    assert held <= loaders.batch_bytes(DATA, ALONE, views) < held + 4 * 64
