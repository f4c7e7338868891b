"""Streams: every image once an epoch, in an order told by keys, resumed exactly where as many
processes go on."""

import itertools
from collections import Counter
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.images import images, numbered, parquet, png
from helpers.options import TINY, altered
from helpers.runs import assert_same_end, cut_off, run
from helpers.tables import parquet as write_table
from ssl_vit import rng
from ssl_vit.data import decoding, loaders, run_splits
from ssl_vit.data.batch_layout import BatchLayout
from ssl_vit.data.loaders import StreamReader
from ssl_vit.errors import UserError
from ssl_vit.recipe.schema import Data
from ssl_vit.training import checkpoint

SIZES = (9, 4, 7, 5)  # images of the shards


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of the first numbers, and a validation split of five."""
    place = tmp_path_factory.mktemp("stream")
    starts = np.cumsum((0, *SIZES)).tolist()
    for i, (first, last) in enumerate(itertools.pairwise(starts)):
        parquet(place / f"train-{i}.parquet", range(first, last))
    parquet(place / "val.parquet", range(100, 105))
    return place


def data(place: Path, **more) -> Data:
    return Data(path=str(place), stream=True, size=6, flip=False, crop_area=1.0, **more)


def reading(
    place: Path, batch_layout: BatchLayout, window: int = 8, most_bytes: int = 2**30, **more
) -> StreamReader:
    """With windows of so many images and encoded bytes of all processes."""
    found = run_splits.load(data(place, **more)).stream
    assert found is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loaders, "WINDOW", window)
        patch.setattr(loaders, "WINDOW_BYTES", most_bytes)
        return StreamReader(found, batch_layout)


@pytest.fixture
def _small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a run of a few steps reads several."""
    monkeypatch.setattr(loaders, "WINDOW", 10)


def drawn(some: StreamReader, start: int, stop: int, seed: int = 0) -> list[tuple[int, int, int]]:
    """(index, shard, row) of each image of these steps, in their order."""
    passes = some.micro_batches(seed, start, stop)
    return [
        (i, c.shard, c.row)
        for p in passes
        for i, c in zip(p.samples.index.tolist(), p.images, strict=True)
    ]


@settings(max_examples=12)
@given(
    window=st.integers(1, 30),
    processes=st.sampled_from([1, 2, 4]),
    images_of_bytes=st.sampled_from([0, 3, 1000]),
    start=st.integers(0, 12),
    seed=st.integers(0, 9),
)
def test_any_step_goes_on_as_the_unbroken_stream(
    folder: Path, window: int, processes: int, images_of_bytes: int, start: int, seed: int
) -> None:
    """Each process from where its window begins, told in five numbers; whatever its device batch
    was and is."""
    limits = window * processes, images_of_bytes * len(png(0)) * processes
    for rank in range(processes):
        unbroken = reading(folder, BatchLayout(8, 8 // processes, rank, processes), *limits)
        wanted = drawn(unbroken, 0, 14, seed)
        other = reading(folder, BatchLayout(8, 1, rank, processes), *limits)
        cursor = unbroken.cursor_at(start)
        other.seek(type(cursor)(*list(cursor)))
        assert drawn(other, start, 14, seed) == wanted[start * 8 // processes :]


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_an_epoch_has_every_image_once_and_a_window_is_mixed(folder: Path, processes: int) -> None:
    """Process by process: as many images as its shards of the first epoch hold are those, in
    another order."""
    everything = Counter()
    for rank in range(processes):
        some = reading(folder, BatchLayout(4, 4 // processes, rank, processes), 1000)
        mine = some.stream._order(0)[rank::processes]
        count = sum(SIZES[s] for s in mine)
        seen = drawn(some, 0, -(-count * processes // 4))[:count]
        assert {shard for _, shard, _ in seen} == set(mine.tolist())
        rows = [(shard, row) for _, shard, row in seen]
        assert rows != sorted(rows) and [i for i, _, _ in seen] == [
            rank + processes * n for n in range(count)
        ]
        everything.update(rows)
    assert everything == Counter((s, r) for s, size in enumerate(SIZES) for r in range(size))


def windows_of(some: StreamReader, images: int) -> list[tuple]:
    """The windows of a process's first images."""
    layout, limits = some.batch_layout, (some.window, some.window_bytes)
    start = some.cursor_at(0)
    return list(some.stream.windows(start, images, *limits, layout.rank, layout.processes))


@pytest.mark.parametrize("processes", [1, 2])
def test_a_window_ends_with_its_epoch_however_many_images_it_may_have(
    folder: Path, processes: int
) -> None:
    """Windows of a small set had spanned many epochs."""
    for rank in range(processes):
        some = reading(folder, BatchLayout(4, 4 // processes, rank, processes), 10_000)
        windows = windows_of(some, 60)
        assert [start.epoch for start, _ in windows] == list(range(len(windows)))
        for epoch, (start, cells) in enumerate(windows):
            shards = some.stream._order(epoch)[rank::processes].tolist()
            right = [(shard, row) for shard in shards for row in range(SIZES[shard])]
            assert [(cell.shard, cell.row) for cell in cells] == right
            assert (start.window, start.position, start.row) == (epoch, 0, 0)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_window_holds_no_more_bytes_than_its_limit_and_at_least_one_image(
    tmp_path: Path, processes: int
) -> None:
    sizes = [1000, 900, 2500, 100, 100, 3000, 700, 800]
    for shard in range(2):
        cells = [{"bytes": bytes(size), "path": None} for size in sizes[4 * shard : 4 * shard + 4]]
        write_table(tmp_path / f"train-{shard}.parquet", {"image": cells})
    for rank in range(processes):
        layout = BatchLayout(2, 1, rank, processes)
        some = reading(tmp_path, layout, 3 * processes, 2000 * processes, validation=0.0)
        windows = [cells for start, cells in windows_of(some, 24) if start.epoch == 0]
        assert all(
            len(cells) <= 3 and (sum(len(cell.image) for cell in cells) <= 2000 or len(cells) == 1)
            for cells in windows
        )
        shards = some.stream._order(0)[rank::processes].tolist()
        counts = {
            (0,): [2, 1, 1],
            (1,): [1, 1, 2],
            (0, 1): [2, 1, 2, 1, 2],
            (1, 0): [1, 1, 2, 2, 1, 1],
        }
        # by hand; two shards of one process: 1000 900 | 2500 | 100 100 | 3000 | 700 800
        assert [len(cells) for cells in windows] == counts[tuple(shards)]


def test_within_the_limits_windows_are_as_many_images_and_have_their_own_orders(
    folder: Path,
) -> None:
    """The order of a stream whose windows end with neither an epoch nor a number of bytes."""
    some = reading(folder, BatchLayout(8, 8, 0, 1), 8)
    read = [(s, r) for s in some.stream._order(0).tolist() for r in range(SIZES[s])]
    wanted = []
    for number in range(3):
        order = rng.permute(np.arange(8), 8, rng.key(5, 0, number))
        wanted += [read[8 * number + place] for place in order]
    assert [(shard, row) for _, shard, row in drawn(some, 0, 3, seed=5)] == wanted


def test_the_first_lines_say_how_large_windows_are(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture
) -> None:
    parquet(tmp_path / "own" / "train-0.parquet", range(24))
    parquet(tmp_path / "own" / "val.parquet", range(8))
    size = sum(len(png(number)) for number in range(24))
    run(altered(words, f"data.path={tmp_path / 'own'}", f"out={tmp_path}", "optim.steps=4"))
    printed = capsys.readouterr().out
    assert (
        f"a stream of 1 shard at 16 px, shuffled in windows of about 24 images ({size / 1024:.3g} KiB)"
        in printed
    )


def test_first_images_are_held_up_to_a_number_of_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = [{"bytes": png(n), "path": None} for n in range(8)]
    write_table(tmp_path / "train.parquet", {"image": cells})
    monkeypatch.setattr(run_splits, "WINDOW_BYTES", 3 * len(png(0)) + 9)
    splits = run_splits.load(data(tmp_path, validation=0.0))
    assert len(splits.train) == len(splits.validation) == 3


def test_epochs_and_seeds_have_orders_of_their_own(folder: Path) -> None:
    some = [drawn(reading(folder, BatchLayout(5, 5, 0, 1), 25), 0, 10, seed) for seed in (0, 1)]
    first, second = ([(s, r) for _, s, r in some[0][at : at + 25]] for at in (0, 25))
    assert sorted(first) == sorted(second) and first != second
    assert some[0] != some[1]
    orders = [
        run_splits.load(data(folder), seed=seed).stream._order(0).tolist() for seed in range(20)
    ]
    assert len({tuple(order) for order in orders}) > 5


@pytest.mark.parametrize("workers", [0, 2])
def test_images_are_those_of_the_shards(folder: Path, workers: int) -> None:
    """Decoded by the loader: each index has the image and the label of its place."""
    splits = run_splits.load(data(folder))
    batch_layout, starts = BatchLayout(5, 5, 0, 1), np.cumsum((0, *SIZES))
    some = reading(folder, batch_layout)
    places = {index: int(starts[shard]) + row for index, shard, row in drawn(some, 0, 5)}
    for batch in loaders.training_loader(some, data(folder), batch_layout, 0, 0, 5, workers):
        numbers = [places[index] for index in batch.index.tolist()]
        assert batch.label.tolist() == [number % 2 for number in numbers]
        for image, number in zip(batch.image, numbers, strict=True):
            assert torch.equal(image, decoding.decode(png(number)))
    assert splits.validation.fetch(np.arange(5))[0] == [png(n) for n in range(100, 105)]
    assert splits.train.classes == ["ant", "bee"] and len(splits.train) == sum(SIZES)


@pytest.mark.parametrize("kind", ["tars", "images", "tables of save_to_disk"])
def test_what_is_read_in_place_is_not_streamed(tmp_path: Path, kind: str) -> None:
    if kind == "tars":
        numbered(tmp_path / "own" / "train.tar", range(8))
    elif kind == "images":
        images(tmp_path / "own", ant=2, bee=2)
    else:
        table = parquet(tmp_path / "train.parquet", range(4))
        datasets.Dataset.from_parquet(str(table)).save_to_disk(tmp_path / "own")
    with pytest.raises(UserError, match=rf"^data\.stream=true: .* holds {kind}, "):
        run_splits.load(data(tmp_path / "own", validation=0.0))


def test_an_image_that_cannot_be_read_does_not_end_a_stream(tmp_path: Path) -> None:
    cells = [{"bytes": b"none" if n == 3 else png(n), "path": None} for n in range(8)]
    write_table(tmp_path / "train.parquet", {"image": cells})
    layout = BatchLayout(4, 4, 0, 1)
    some = reading(tmp_path, layout, validation=0.0)
    given = data(tmp_path, validation=0.0, unreadable=1.0)
    seen = list(loaders.training_loader(some, given, layout, 0, 0, 6, 0))
    assert sum(len(batch.image) for batch in seen) == 24
    texts = [text for batch in seen for text in batch.unreadable]
    assert len(texts) == 3 and all(text.startswith("shard 0, image 3: ") for text in texts)


@pytest.fixture(scope="module")
def words(folder: Path) -> list[str]:
    return altered(
        TINY,
        "data.stream=true",
        f"data.path={folder}",
        "eval.images=5",
        "optim.batch=8",
    )


@pytest.mark.usefixtures("_small_windows")
def test_a_run_goes_on_exactly_and_only_on_as_many_processes(tmp_path: Path, words) -> None:
    whole = run([*words, f"out={tmp_path}", "name=whole"])
    for step in (5, 9):
        cut_off([*words, f"out={tmp_path}", "name=broken"], step)
    newest = checkpoint.list_checkpoints(tmp_path / "broken" / "checkpoints")[-1]
    saved = checkpoint.load(newest)
    checkpoint.save(newest.parent, 8, saved | {"stream": saved["stream"] * 2}, keep=2)
    with pytest.raises(UserError, match=r"^data\.stream=true: .* Use 2 processes"):
        run([*words, f"out={tmp_path}", "name=broken"])
    checkpoint.save(newest.parent, 8, saved, keep=2)
    assert_same_end(whole.folder, run([*words, f"out={tmp_path}", "name=broken"]).folder)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (["data.train=val"], "data.validation=null: "),  # val is not held out too
        (
            ["data.validation=vall"],
            "data.validation=vall: ",
        ),
        (["data.image_column=img"], "data.image_column=img: "),
    ],
)
def test_what_a_stream_cannot_is_refused_in_one_line(
    error_line, words, changed: list[str], says: str
) -> None:
    assert says in error_line(*altered(words, *changed))


def test_a_shard_that_cannot_be_read_is_named(error_line, tmp_path: Path, words) -> None:
    parquet(tmp_path / "own" / "train-0.parquet", range(8))
    parquet(tmp_path / "own" / "val.parquet", range(8))
    text = bytearray((tmp_path / "own" / "train-0.parquet").read_bytes())
    text[4:400] = bytes(396)
    (tmp_path / "own" / "train-0.parquet").write_bytes(text)
    assert "shard 0 of 1 cannot be read: " in error_line(*words, f"data.path={tmp_path / 'own'}")


def test_fewer_shards_than_processes_are_refused(folder: Path) -> None:
    with pytest.raises(UserError, match=r"shards \(4\) .* processes \(8\)"):
        reading(folder, BatchLayout(8, 1, 0, 8))
