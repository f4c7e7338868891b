"""Batches for processes: together they see each sample exactly once, whatever their number, that of
their workers, and where they begin."""

import itertools
import pickle
import random
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from helpers.images import images, numbered, parquet
from helpers.resolving import resolve
from helpers.sources import DATA, content, noisy, opened
from ssl_vit.data import batching, loaders
from ssl_vit.data.batch_layout import BatchLayout
from ssl_vit.data.batching import Batch
from ssl_vit.data.workers import PREFETCH, limit_workers
from ssl_vit.errors import report_errors

ALONE = BatchLayout(12, 4, 0, 1)
TWO_VIEWS = resolve(["recipe=moco_v3"]).groups["views"]
VIEWS = TWO_VIEWS.model_copy(update={"local": 2, "local_size": 4})


def loader(batch_layout, length=50, start=0, stop=5, workers=0, broken=(), views=None):
    source = noisy(length, broken)
    return loaders.training_loader(source, DATA, batch_layout, 0, start, stop, workers, views)


def held_out(length, most, device_batch=100, rank=0, processes=1, **views):
    batch_layout = BatchLayout(device_batch * processes, device_batch, rank, processes)
    return loaders.held_out_batches(noisy(length), DATA, batch_layout, most, **views)


def fields(batch: Batch) -> dict[str, torch.Tensor]:
    return {name: x for name, x in batch._asdict().items() if isinstance(x, torch.Tensor)}


def whole(some) -> dict[str, torch.Tensor]:
    """The fields of batches put one after the other."""
    each = [fields(batch) for batch in some]
    return {name: torch.cat([one[name] for one in each]) for name in each[0]}


def same(some: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> bool:
    return some.keys() == others.keys() and all(torch.equal(x, others[n]) for n, x in some.items())


@pytest.mark.parametrize(
    ("processes", "device_batch"), [(1, 12), (1, 4), (2, 6), (2, 3), (4, 3), (4, 1)]
)
@pytest.mark.parametrize("views", [None, VIEWS])
def test_processes_and_passes_together_make_the_global_batch(processes, device_batch, views):
    """Step s takes stream positions 12 s to 12 s + 11; of its chunks, process p takes p, P + p, 2 P
    + p, ..."""
    layouts = [BatchLayout(12, device_batch, rank, processes) for rank in range(processes)]
    passes = [list(loader(layout, start=3, stop=5, views=views)) for layout in layouts]
    accumulation = 12 // (device_batch * processes)
    assert all(len(some) == 2 * accumulation for some in passes)
    rebuilt = whole(
        passes[rank][step * accumulation + micro]
        for step, micro, rank in np.ndindex(2, accumulation, processes)
    )
    stream = batching.samples_at(36, 24, 50, 0)
    assert np.array_equal(rebuilt["index"], stream.index)
    assert np.array_equal(rebuilt["key"], stream.key)
    assert same(rebuilt, whole(loader(BatchLayout(12, 12, 0, 1), start=3, stop=5, views=views)))
    if views:
        assert rebuilt["views"].shape == (24, 2, 3, 8, 8)
        assert rebuilt["local"].shape == (24, 2, 3, 4, 4)
        assert torch.equal(rebuilt["image"], rebuilt["views"][:, 0])
    chunks = [
        layouts[rank].chunk_index(micro) for micro, rank in np.ndindex(accumulation, processes)
    ]
    assert chunks == list(range(accumulation * processes))
    # as not_finite.json tells
    assert loaders.step_indices(4, noisy(50), 12, 0).tolist() == rebuilt["index"][12:].tolist()


def test_a_batch_may_be_larger_than_the_set():
    (batch,) = loader(BatchLayout(24, 24, 0, 1), length=7, stop=1)
    assert sorted(torch.bincount(batch.index, minlength=7).tolist()) == [3, 3, 3, 3, 4, 4, 4]
    assert len(set(batch.key.tolist())) == 24


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("views", [None, VIEWS])
def test_a_resumed_loader_goes_on_as_the_unbroken_one_and_moves_no_generator(workers, views):
    """Nor does it read one."""

    def states():
        return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002

    batch_layout = BatchLayout(12, 3, 1, 2)
    unbroken = list(loader(batch_layout, stop=4, views=views))
    assert len(unbroken) == 8
    with torch.random.fork_rng():
        torch.manual_seed(8)
        before = states()
        resumed = whole(loader(batch_layout, start=3, stop=4, workers=workers, views=views))
        held_out(20, 10)
        assert states() == before
    assert same(resumed, whole(unbroken[6:]))


@pytest.mark.parametrize("workers", [0, 1])
def test_an_image_that_cannot_be_read_is_replaced_by_the_next_that_can(workers):
    plain = whole(loader(ALONE))
    mended = list(loader(ALONE, broken={17, 18, 49}, workers=workers))
    named = [text.split(":")[0] for batch in mended for text in batch.unreadable]
    assert named.count("number 49") == (plain["index"] == 49).sum()
    one = whole(mended)
    assert torch.equal(one["index"], plain["index"]) and torch.equal(one["key"], plain["key"])
    for index, label in zip(one["index"].tolist(), one["label"].tolist(), strict=True):
        assert label == 7 * {17: 19, 18: 19, 49: 0}.get(index, index) + 1


@pytest.mark.parametrize("workers", [0, 1])
def test_too_many_in_a_row_are_named_in_one_line(workers, capsys, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(SystemExit), report_errors():
        list(loader(ALONE, broken=range(10, 45), workers=workers))
    printed = capsys.readouterr().err
    assert printed.startswith("error: data=numbered: cannot read 20 images in a row")
    assert " number " in printed and printed.count("\n") == 1


def test_nothing_is_measured_in_place_of_an_image_that_cannot_be_read():
    rows = np.array([3, 17, 49])
    (whole_batch,) = loaders.evaluation_loader(noisy(50), DATA, ALONE, 0, rows)
    (left,) = loaders.evaluation_loader(noisy(50, {17}), DATA, ALONE, 0, rows)
    assert left.index.tolist() == [3, 49] and left.label.tolist() == [22, 344]
    assert torch.equal(left.image, whole_batch.image[[0, 2]])
    assert len(left.unreadable) == 1 and left.unreadable[0].startswith("number 17: ")
    held_out = loaders.held_out_batches(noisy(50, {17}), DATA, ALONE, 50)
    index = torch.cat([batch.index for batch in held_out])
    assert sorted(index.tolist()) == [row for row in range(50) if row != 17]


@settings(max_examples=30)
@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 9), st.integers(1, 4))
def test_held_out_images_are_each_in_one_batch_of_one_process(
    length, most, device_batch, processes
):
    assume(min(length, most) >= processes)
    shares = [held_out(length, most, device_batch, rank, processes) for rank in range(processes)]
    assert all(shares), "a process without a batch would miss the sums over processes"
    for share in shares:
        sizes = [len(batch.index) for batch in share]
        assert sizes[:-1] == [device_batch] * (len(sizes) - 1) and 0 < sizes[-1] <= device_batch
    together = whole(itertools.chain(*shares))
    assert len(set(together["index"].tolist())) == min(length, most)
    alone = whole(held_out(length, most))
    in_order = [{n: x[one["index"].argsort()] for n, x in one.items()} for one in (together, alone)]
    assert same(*in_order)


def test_held_out_images_are_spread_over_the_split_and_keep_their_keys():
    few, many = (whole(held_out(1000, most, 50)) for most in (50, 200))
    assert torch.equal(few["index"], many["index"][:50])
    assert torch.equal(few["key"], many["key"][:50])
    assert torch.bincount(many["index"] // 250, minlength=4).min() > 25  # 50 expected
    trained = batching.samples_at(0, 1000, 1000, 0).key.tolist()
    assert not set(many["key"].tolist()) & set(trained)


@pytest.mark.parametrize(("count", "group"), [(30, 8), (30, 16), (40, 100)])
def test_groups_of_held_out_views_are_the_same_on_any_number_of_processes(count, group):
    """Sizes differ by one at most, and `image` stays the evaluation's. With more processes than
    groups there were as many groups as processes, and so another loss."""

    def groups(processes: int) -> list[Batch]:
        views = {"views": VIEWS, "most_in_batch": group}
        shares = [held_out(40, count, 4, rank, processes, **views) for rank in range(processes)]
        return list(itertools.chain(*shares))

    one = groups(1)
    sizes = [len(batch.key) for batch in one]
    assert sum(sizes) == count and max(sizes) <= group and max(sizes) - min(sizes) <= 1
    assert torch.equal(whole(one)["image"], held_out(40, count)[0].image)
    for processes in (2, 3):
        by_first = {int(batch.index[0]): batch.views for batch in groups(processes)}
        assert len(by_first) == len(one)
        assert all(torch.equal(by_first[int(b.index[0])], b.views) for b in one)


def test_the_first_samples_are_those_of_the_stream_at_most_one_epoch():
    for count, wanted in ((30, 30), (80, 50)):
        got = whole(loaders.first_batches(noisy(50), DATA, 0, count, size=8))
        assert same(got, whole(loader(BatchLayout(wanted, wanted, 0, 1), stop=1)))


MIB = 2**20


@pytest.mark.parametrize(
    ("processes", "batch", "wanted"),
    [
        (1, MIB // 16, 4),  # room for 64 batches
        (1, MIB // 2, 2),  # for 8
        (4, MIB // 4, 1),  # each process has its share
        (1, 2 * MIB, 0),  # none: the process itself reads
    ],
)
def test_workers_hold_no_more_than_half_of_the_shared_memory(
    monkeypatch, processes, batch, wanted
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=8 * MIB))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    assert limit_workers(4, batch) == wanted
    assert wanted * PREFETCH * batch * processes <= 4 * MIB


def test_little_shared_memory_changes_no_batch(monkeypatch) -> None:
    plain = whole(loader(ALONE, stop=3))
    size = loaders.batch_bytes(DATA, ALONE)
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: SimpleNamespace(free=2 * PREFETCH * size)
    )
    made = loader(ALONE, stop=3, workers=3)
    assert made.num_workers == 1 and same(whole(made), plain)


@pytest.mark.parametrize("views", [None, TWO_VIEWS, VIEWS])
def test_a_batch_is_as_large_as_is_counted(views) -> None:
    found = fields(next(iter(loader(ALONE, views=views))))
    # with views the image is the first of them
    held = sum(x.nbytes for name, x in found.items() if views is None or name != "image")
    assert held <= loaders.batch_bytes(DATA, ALONE, views) < held + 4 * 64


@pytest.mark.parametrize("kind", ["folder", "tar", "parquet"])
def test_images_that_workers_read_are_the_same_however_workers_begin(tmp_path, kind):
    """Forked, or spawned as on macOS, where a data worker gets what it reads as bytes and inherits
    nothing."""
    if kind == "folder":
        images(tmp_path, a=8, b=8, c=8)
    for i in range(3) if kind != "folder" else ():
        write = numbered if kind == "tar" else parquet
        write(tmp_path / f"{i}.{kind}", range(8 * i, 8 * i + 8))
    source, _ = opened(tmp_path)
    alone, forked = (
        whole(loaders.training_loader(source, DATA, ALONE, 0, 0, 2, workers)) for workers in (0, 2)
    )
    assert same(forked, alone) and len(set(alone["index"].tolist())) == len(source) == 24
    sent = pickle.loads(pickle.dumps(batching.ImageDataset(source, DATA, train=True)))
    assert content(sent.source) == content(source)
