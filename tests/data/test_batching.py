"""Batches: every step is known without its past, and the processes together see each sample of it
exactly once."""

import io
import itertools
import random
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from helpers.sources import DATA, noisy
from ssl_vit.data import batching, loaders
from ssl_vit.data.batch_layout import BatchLayout
from ssl_vit.data.batching import ImageDataset
from ssl_vit.data.workers import limit_workers
from ssl_vit.errors import UserError, report_errors


def loader(batch_layout, length=50, seed=0, start=0, stop=5, workers=0, broken=()):
    return loaders.training_loader(
        noisy(length, broken), DATA, batch_layout, seed, start, stop, workers
    )


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
    parts, at = [], first
    for count in counts:
        parts.append(batching.samples_at(at, count, length, 3))
        at += count
    known = batching.samples_at(first, sum(counts), length, 3)
    assert np.array_equal(np.concatenate([p.index for p in parts]), known.index)
    assert np.array_equal(np.concatenate([p.key for p in parts]), known.key)


def test_epochs_and_seeds_have_their_own_orders_and_keys():
    streams = [
        batching.samples_at(epoch * 100, 100, 100, seed) for seed in (0, 1) for epoch in range(3)
    ]
    assert len({tuple(s.index) for s in streams}) == 6
    assert len({key for s in streams for key in s.key.tolist()}) == 600
    moved = [np.mean(a.index == b.index) for a, b in itertools.combinations(streams, 2)]
    assert max(moved) < 0.06  # 0.01 expected


def test_an_order_has_no_trace_of_the_first():
    """Neighbours in the stream are no neighbours in the split: ranks are uncorrelated (standard
    deviation 0.01)."""
    index = batching.samples_at(0, 10_000, 10_000, 0).index
    assert abs(np.corrcoef(index[1:], index[:-1])[0, 1]) < 0.04
    assert abs(np.corrcoef(index, np.arange(10_000))[0, 1]) < 0.04


def test_a_far_step_of_a_huge_set_is_like_any_other():
    """Step 10^6 of the paper's batch on JFT's 303 million images: epoch 13, position 157
    million."""
    length, first = 303_000_000, 10**6 * 4096
    far = batching.samples_at(first, 4096, length, 0)
    assert len(set(far.index.tolist())) == len(set(far.key.tolist())) == 4096
    assert far.index.min() >= 0 and far.index.max() < length
    # 512 expected, standard deviation 21
    assert np.histogram(far.index, 8, (0, length))[0].min() > 400
    again = batching.samples_at(first + 1000, 10, length, 0)
    assert np.array_equal(again.index, far.index[1000:1010]) and np.array_equal(
        again.key, far.key[1000:1010]
    )


@pytest.mark.parametrize(
    ("batch", "wanted", "limit", "processes", "device_batch", "accumulation"),
    [
        (128, None, 1000, 1, 128, 1),
        (128, None, 100, 1, 64, 2),
        (96, None, 40, 2, 24, 2),  # 48 to a process: 24 is its largest divisor up to 40
        (4096, None, 333, 8, 256, 2),
        (7, None, 6, 1, 1, 7),
        (128, 32, 1, 2, 32, 2),  # the wanted one, whatever would fit
        (12, 12, 5, 1, 12, 1),
    ],
)
def test_the_global_batch_lies_on_processes(
    batch, wanted, limit, processes, device_batch, accumulation
):
    batch_layout = BatchLayout.divide(batch, wanted, limit, processes - 1, processes)
    assert batch_layout == BatchLayout(batch, device_batch, processes - 1, processes)
    assert batch_layout.accumulation_steps == accumulation


@settings(max_examples=80)
@given(st.integers(1, 400), st.integers(1, 400), st.integers(1, 9))
def test_the_largest_device_batch_that_fits_is_taken(share, limit, processes):
    got = BatchLayout.divide(share * processes, None, limit, 0, processes).device_batch
    assert got <= limit and share % got == 0
    assert not any(share % d == 0 for d in range(got + 1, min(limit, share) + 1))


def test_what_does_not_divide_is_said():
    with pytest.raises(UserError, match=r"^optim.batch=10: .*3 processes$"):
        BatchLayout.divide(10, None, 100, 0, 3)
    with pytest.raises(UserError, match=r"^compute.batch=5: .*optim.batch=12$"):
        BatchLayout.divide(12, 5, 100, 0, 1)
    with pytest.raises(UserError, match=r"^compute.batch=8: .*optim.batch=8$"):
        BatchLayout.divide(8, 8, 100, 0, 2)


@pytest.mark.parametrize(
    ("processes", "device_batch"), [(1, 12), (1, 4), (2, 6), (2, 3), (4, 3), (4, 1)]
)
def test_processes_and_passes_together_make_the_global_batch(processes, device_batch):
    """Step s takes stream positions 12 s to 12 s + 11; of its chunks, process p takes p, P + p, 2 P
    + p, ..."""
    passes = [
        list(loader(BatchLayout(12, device_batch, rank, processes), start=3, stop=6))
        for rank in range(processes)
    ]
    accumulation = 12 // (device_batch * processes)
    assert all(len(some) == 3 * accumulation for some in passes)
    rebuilt = [
        passes[rank][step * accumulation + micro]
        for step, micro, rank in np.ndindex(3, accumulation, processes)
    ]
    stream = batching.samples_at(36, 36, 50, 0)
    assert np.array_equal(whole(rebuilt).index, stream.index) and np.array_equal(
        whole(rebuilt).key, stream.key
    )
    assert same([whole(rebuilt)], [whole(loader(BatchLayout(12, 12, 0, 1), start=3, stop=6))])
    chunks = [
        BatchLayout(12, device_batch, rank, processes).chunk_index(micro)
        for micro, rank in np.ndindex(accumulation, processes)
    ]
    assert chunks == list(range(accumulation * processes))


def test_batches_straddle_epochs():
    index = whole(loader(BatchLayout(12, 12, 0, 1), length=50, stop=25)).index.reshape(6, 50)
    assert torch.equal(index.sort(1).values, torch.arange(50).expand(6, 50))


def test_a_batch_may_be_larger_than_the_set():
    (batch,) = loader(BatchLayout(24, 24, 0, 1), length=7, stop=1)
    assert sorted(torch.bincount(batch.index, minlength=7).tolist()) == [3, 3, 3, 3, 4, 4, 4]
    assert len(set(batch.key.tolist())) == 24


def test_a_batch_holds_the_images_that_it_names():
    batch = next(iter(loader(BatchLayout(12, 12, 0, 1))))
    assert batch.image.dtype == torch.uint8 and batch.image.shape == (12, 3, 8, 8)
    assert torch.equal(batch.label, 7 * batch.index + 1)
    assert all(field.dtype == torch.int64 for field in batch[1:4])
    (fixed,) = loaders.held_out_batches(noisy(5), DATA, BatchLayout(12, 12, 0, 1), 5)
    for image, index in zip(fixed.image, fixed.index.tolist(), strict=True):
        drawn = noisy(5).fetch(np.array([index]))[0][0]
        assert np.array_equal(image.permute(1, 2, 0), drawn)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_resumed_loader_goes_on_as_the_unbroken_one(workers, rank):
    batch_layout = BatchLayout(12, 3, rank, 2)
    unbroken = list(loader(batch_layout, stop=6))
    assert len(unbroken) == 12
    assert same(loader(batch_layout, start=4, stop=6, workers=workers), unbroken[8:])


def test_workers_change_nothing():
    batch_layout = BatchLayout(12, 4, 0, 1)
    assert same(loader(batch_layout), loader(batch_layout, workers=2))
    assert not same(loader(batch_layout), loader(batch_layout, seed=1))


@pytest.mark.parametrize("workers", [0, 2])
def test_the_loader_moves_no_global_generator(workers):
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    list(loader(BatchLayout(12, 4, 0, 1), stop=2, workers=workers))
    loaders.held_out_batches(noisy(20), DATA, BatchLayout(12, 4, 0, 1), 10)
    list(loaders.first_batches(noisy(20), DATA, 0, 10))
    after = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    assert torch.equal(before[0], after[0]) and before[1:] == after[1:]


def test_a_larger_share_is_no_remedy_where_no_image_can_be_read():
    batching.check_unreadable(
        10, 400, DATA.model_copy(update={"unreadable": 0.01}), "a"
    )  # of 1,000
    with pytest.raises(UserError, match=r"11 of 400 .*; repair .* data\.unreadable=; the last: a"):
        batching.check_unreadable(11, 400, DATA.model_copy(update={"unreadable": 0.01}), "a")
    with pytest.raises(UserError, match="3 of 3 images cannot be read; repair or remove them; the"):
        batching.check_unreadable(3, 3, DATA.model_copy(update={"unreadable": 1.0}), "a")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_image_that_cannot_be_read_is_replaced_by_the_next_that_can(workers):
    plain = whole(loader(BatchLayout(12, 4, 0, 1)))
    mended = list(loader(BatchLayout(12, 4, 0, 1), broken={17, 18, 49}, workers=workers))
    assert [text.split(":")[0] for batch in mended for text in batch.unreadable].count(
        "number 49"
    ) == (plain.index == 49).sum()
    one = whole(mended)
    assert torch.equal(one.index, plain.index) and torch.equal(one.key, plain.key)
    for index, label in zip(one.index.tolist(), one.label.tolist(), strict=True):
        assert label == 7 * {17: 19, 18: 19, 49: 0}.get(index, index) + 1


@pytest.mark.parametrize("workers", [0, 1])
def test_too_many_in_a_row_are_named_in_one_line(workers, capsys, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(SystemExit), report_errors():
        list(loader(BatchLayout(12, 4, 0, 1), broken=range(10, 45), workers=workers))
    printed = capsys.readouterr().err
    assert (
        printed.startswith(
            "error: data=numbered: 20 images in a row cannot be read, the last number "
        )
        and printed.count("\n") == 1
    )


@settings(max_examples=30)
@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 9), st.integers(1, 4))
def test_held_out_images_are_each_in_one_batch_of_one_process(
    length, most, device_batch, processes
):
    if min(length, most) < processes:
        with pytest.raises(UserError, match=r"^eval\.images"):
            loaders.held_out_batches(
                noisy(length),
                DATA,
                BatchLayout(device_batch * processes, device_batch, 0, processes),
                most,
            )
        return
    shares = [
        loaders.held_out_batches(
            noisy(length),
            DATA,
            BatchLayout(device_batch * processes, device_batch, rank, processes),
            most,
        )
        for rank in range(processes)
    ]
    all_batches = [batch for share in shares for batch in share]
    together = whole(all_batches)
    assert len(together.index) == len(set(together.index.tolist())) == min(length, most)
    assert all(len(batch.index) <= device_batch for batch in all_batches)
    assert all(sum(len(batch.index) < device_batch for batch in share) <= 1 for share in shares)
    assert all(shares), "a process without a batch would miss the sums over processes"
    alone = whole(loaders.held_out_batches(noisy(length), DATA, BatchLayout(100, 100, 0, 1), most))
    order, known = together.index.argsort(), alone.index.argsort()
    assert same([together.map(lambda x: x[order])], [alone.map(lambda x: x[known])])


def test_held_out_images_are_spread_over_the_split_and_keep_their_keys():
    few, many = (
        whole(loaders.held_out_batches(noisy(1000), DATA, BatchLayout(50, 50, 0, 1), most))
        for most in (50, 200)
    )
    assert torch.equal(few.index, many.index[:50]) and torch.equal(few.key, many.key[:50])
    assert torch.bincount(many.index // 250, minlength=4).min() > 25  # 50 expected
    assert not set(many.key.tolist()) & set(batching.samples_at(0, 1000, 1000, 0).key.tolist())


def test_the_first_samples_are_those_of_the_stream_at_most_one_epoch():
    for count, wanted in ((30, 30), (80, 50)):
        got = whole(loaders.first_batches(noisy(50), DATA, 0, count, size=8))
        assert same([got], [whole(loader(BatchLayout(wanted, wanted, 0, 1), stop=1))])


def test_a_png_and_a_drawn_image_may_share_a_batch():
    class Mixed(noisy):
        def fetch(self, rows):
            images, label = super().fetch(rows)
            files = [io.BytesIO() for _ in images]
            for file, image in zip(files, images, strict=True):
                Image.fromarray(image).save(file, "PNG")
            return [
                f.getvalue() if r % 2 else i for f, i, r in zip(files, images, rows, strict=True)
            ], label

    known = loaders.held_out_batches(noisy(10), DATA, BatchLayout(5, 5, 0, 1), 10)
    assert same(loaders.held_out_batches(Mixed(10), DATA, BatchLayout(5, 5, 0, 1), 10), known)


MIB = 2**20


@pytest.mark.parametrize(
    ("free", "processes", "batch", "wanted"),
    [
        (8 * MIB, 1, MIB // 16, (4, 4)),  # room for 64 batches
        (8 * MIB, 1, MIB // 2, (4, 2)),  # for 8
        (8 * MIB, 1, MIB, (4, 1)),
        (8 * MIB, 1, 2 * MIB, (2, 1)),
        (8 * MIB, 4, MIB, (1, 1)),  # each process has its share
        (8 * MIB, 1, 5 * MIB, (0, 0)),  # none: the process itself reads
    ],
)
# of machines with fewer cores
@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker")
def test_workers_hold_no_more_than_half_of_the_shared_memory(
    monkeypatch, free, processes, batch, wanted
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    used = limit_workers(4, batch)
    assert used[:2] == wanted and used.number * used.prefetch * batch * processes <= free / 2
    assert bool(used.limit) == (wanted != (4, 4))
    made = loaders.image_loader(ImageDataset(noisy(8), DATA, train=False), [], 4, batch)
    assert (made.num_workers, made.prefetch_factor or 0) == wanted


def test_little_shared_memory_changes_no_batch(monkeypatch) -> None:
    plain = list(loader(BatchLayout(4, 4, 0, 1), stop=3))
    size = loaders.batch_bytes(DATA, BatchLayout(4, 4, 0, 1))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2 * size))
    made = loader(BatchLayout(4, 4, 0, 1), stop=3, workers=3)
    assert made.num_workers == 1 and same(list(made), plain)


def test_a_batch_is_as_large_as_is_counted() -> None:
    (batch,) = loader(BatchLayout(4, 4, 0, 1), stop=1)
    counted = loaders.batch_bytes(DATA, BatchLayout(4, 4, 0, 1))
    held = sum(x.nbytes for x in (batch.image, batch.label, batch.index, batch.key))
    assert held <= counted < held + 4 * 64
