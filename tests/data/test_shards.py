"""Shards: every row is found where it lies, indexed once, and a shard that is cut off is named
before anything runs."""

import io
import json
import tarfile

import datasets
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.disk import full_disk
from helpers.images import numbered, parquet, png, tar
from helpers.sources import content, everything, load
from ssl_vit.config.schema import Data
from ssl_vit.data import fingerprints, loaders, shard_index, shards, sources
from ssl_vit.data.base import ShardedSubset, Source, origin
from ssl_vit.data.batch_layout import BatchLayout
from ssl_vit.data.columns import FoundColumns
from ssl_vit.errors import UserError

NAMES = st.text("abcXYZ019_-/ é", min_size=1, max_size=140).filter(
    lambda name: name.strip("/ ") == name and "//" not in name
)


def the_error(path, **words):
    """The text of the UserError that loading gives, checked to be one line."""
    with pytest.raises(UserError) as caught:
        load(path, **words)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("write", [numbered, parquet])
def test_a_folder_of_shards_is_read_whole_and_by_its_splits(tmp_path, write, window):
    kind = "tar" if write is numbered else "parquet"
    write(tmp_path / f"train-0.{kind}", range(10))
    write(tmp_path / f"train-1.{kind}", range(10, 17))
    write(tmp_path / "val" / f"0.{kind}", range(20, 26))
    found = load(tmp_path, window=window)
    assert content(found.train) == {png(n): n % 2 for n in range(17)}
    assert content(found.validation) == {png(n): n % 2 for n in range(20, 26)}
    one = load(tmp_path / f"train-0.{kind}", window=window, validation=0.3)
    assert everything(one) == {png(n): n % 2 for n in range(10)}
    assert abs(len(one.validation) - 3) <= 1 and one.train.label_range == (0, 1)
    assert one.train.classes == ([] if write is numbered else ["ant", "bee"])


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(
        NAMES,
        st.tuples(st.binary(min_size=1, max_size=1500), st.none() | st.integers(0, 999)),
        min_size=1,
    ),
    st.data(),
)
def test_any_tar_is_read_as_its_members_say(tmp_path, samples, data):
    """Long and odd names, members that are no images, any of tar's dialects; an image's bytes are
    not looked at."""
    members = []
    for name, (raw, label) in samples.items():
        labels = [] if label is None else [(f"{name}.cls", str(label).encode())]
        labels += (
            [(f"{name}.json", json.dumps({"label": 5, "text": "x"}).encode())] if label else []
        )
        some = [
            (f"{name}.jpg", raw),
            (f"{name}.seg.png", b"no"),
            (f"{name}.txt", b"a text"),
            *labels,
        ]
        members += data.draw(st.permutations(some))
    path = tar(
        tmp_path / "x.tar",
        members,
        data.draw(st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])),
    )
    source = shards.Tars([path])
    raw, label = source.fetch(np.arange(len(source)))
    assert sorted(zip(raw, label.tolist(), strict=True)) == sorted(
        (r, -1 if n is None else n) for r, n in samples.values()
    )


@pytest.mark.parametrize(
    ("labels", "right"),
    [
        ({"cls": b"7"}, 7),
        ({"cls": b"7\n"}, 7),
        ({"json": b'{"label": 3}'}, 3),
        ({"json": b'{"label": 3}', "cls": b"4"}, 4),
        ({"cls": b"cat"}, -1),
        ({"json": b'{"label": "cat"}'}, -1),
        ({"json": b'{"label": true}'}, -1),
        pytest.param({"json": b"[" * 9999}, -1, id="deep"),
        ({"json": b"[3]"}, -1),
        ({"json": b"{"}, -1),
        ({"cls": b"\xff"}, -1),
        ({}, -1),
    ],
)
def test_labels_beside_a_image(tmp_path, labels, right):
    path = tar(
        tmp_path / "x.tar",
        [("a.JPG", b"some"), *((f"a.{kind}", raw) for kind, raw in labels.items())],
    )
    assert shards.Tars([path]).fetch(np.arange(1)) == ([b"some"], [right])


def test_a_damaged_index_is_made_anew(tmp_path, cache):
    place = numbered(tmp_path / "train.tar", range(4))
    whole = shard_index.index_files([place], shard_index.tar_images)[0]
    (kept,) = (cache / "ssl_vit").glob("*.npy")
    raw = kept.read_bytes()
    for damaged in (b"", raw[:-8], b"none"):
        kept.write_bytes(damaged)
        assert (
            shard_index.index_files([place], shard_index.tar_images)[0].tolist() == whole.tolist()
        )
        assert kept.read_bytes() == raw


def test_an_index_that_threads_cannot_parse_is_made_anew(tmp_path, cache, monkeypatch):
    """Python up to 3.11.7 raises SystemError where a collection of garbage comes between."""
    place = numbered(tmp_path / "train.tar", range(4))
    whole = shard_index.index_files([place], shard_index.tar_images)[0]

    def fail(path):
        raise SystemError("AST constructor recursion depth mismatch (before=33, after=31)")

    monkeypatch.setattr(np, "load", fail)
    again = shard_index.index_files([place], shard_index.tar_images)[0]
    assert again.tolist() == whole.tolist()


def test_a_image_is_named_by_its_member(tmp_path):
    numbered(tmp_path / "0.tar", range(3))
    numbered(tmp_path / "1.tar", range(3, 6))
    assert shards.Tars([tmp_path / "0.tar", tmp_path / "1.tar"]).name(4) == "1.tar, 0004.png"
    source = shards.Parquet(
        [parquet(tmp_path / "0.parquet", range(6))], FoundColumns("image", None, [], "")
    )
    assert source.name(5) == "0.parquet, row group 1, row 1"


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("write", [numbered, parquet])
def test_samples_are_the_same_on_any_number_of_processes_and_workers(tmp_path, write, workers):
    kind = "tar" if write is numbered else "parquet"
    for i in range(3):
        write(tmp_path / f"{i}.{kind}", range(20 * i, 20 * i + 20))
    data = Data(name="own", path=str(tmp_path), window=24, validation=0.1, size=8)
    train = sources.load(data).train

    def steps(processes, device_batch, start=0):
        spreads = [BatchLayout(8, device_batch, rank, processes) for rank in range(processes)]
        passes = [
            list(loaders.training_loader(train, data, batch_layout, 0, start, 15, workers))
            for batch_layout in spreads
        ]
        mixed = [batch for i in range(len(passes[0])) for batch in (some[i] for some in passes)]
        return [torch.cat(field) for field in zip(*(batch[:4] for batch in mixed), strict=True)]

    alone = steps(1, 8)
    assert len(set(alone[2][: len(train)].tolist())) == len(train)
    for batch_layout in ((2, 4), (2, 2), (4, 1)):
        assert all(
            torch.equal(one, other) for one, other in zip(steps(*batch_layout), alone, strict=True)
        )
    assert all(
        torch.equal(one, other[7 * 8 :])
        for one, other in zip(steps(2, 4, start=7), alone, strict=True)
    )
    # as not_finite.json tells
    assert loaders.step_indices(9, train, data, 8, 0).tolist() == alone[2][9 * 8 : 10 * 8].tolist()


@pytest.mark.parametrize(("processes", "device_batch"), [(1, 8), (1, 2), (2, 4), (4, 2)])
def test_a_process_reads_a_row_group_once_and_keeps_only_its_part_of_the_window(
    tmp_path, monkeypatch, processes, device_batch
):
    monkeypatch.setattr(shards, "RECENT", 1)
    parquet(tmp_path / "x.parquet", range(800), group=5)
    data = Data(name="own", path=str(tmp_path), window=200, validation=0.1, size=8)
    train, read = sources.load(data).train, []
    recent, load = train.whole._recent, train.whole._recent.load
    recent.load = lambda shard: read.append(shard) or load(shard)
    batch_layout = BatchLayout(8, device_batch, processes - 1, processes)
    list(loaders.training_loader(train, data, batch_layout, 0, 0, len(train) // 8, 0))
    windows, stretches, own = (
        -(-len(train) // 200),
        2 * batch_layout.accumulation_steps,
        200 / processes / 4.5,
    )
    assert len(read) <= windows * (own + stretches) and len(recent.kept) <= own + 2 * stretches
    assert processes > 1 or set(read) == set(range(160))


def test_a_window_without_labels_keeps_as_many_row_groups(tmp_path):
    parquet(tmp_path / "x.parquet", range(400), group=5)
    kept = []
    for labels in (True, False):
        data = Data(name="own", path=str(tmp_path), window=200, size=8, labels=labels)
        train = sources.load(data).train
        list(loaders.training_loader(train, data, BatchLayout(8, 8, 0, 1), 0, 0, 1, 0))
        kept.append(origin(train)._recent.most)
    assert kept[0] == kept[1] > shards.RECENT


def test_the_first_samples_are_read_from_few_row_groups(tmp_path):
    """So that a look at a few training images does not cost a window."""
    parquet(tmp_path / "x.parquet", range(200))
    data = Data(name="own", path=str(tmp_path), window=100, validation=0.1, size=8)
    train = sources.load(data).train
    looked = torch.cat(
        [batch.index for batch in loaders.first_batches(train, data, 0, 24, size=10)]
    )
    assert len(set(looked.tolist())) == 24 and len(train.whole._recent.kept) <= 24 / 3 + 2


@pytest.mark.parametrize("window", [None, 4])
def test_a_parquet_file_without_its_end_is_named(tmp_path, window):
    parquet(tmp_path / "0.parquet", range(8))
    cut = parquet(tmp_path / "1.parquet", range(8, 16))
    raw = cut.read_bytes()
    for length in (0, 4, len(raw) // 2, len(raw) - 1):
        cut.write_bytes(raw[:length])
        assert the_error(tmp_path, window=window).startswith(f"data.path={cut}: ")


def test_a_tar_that_ends_early_is_named_wherever_it_was_cut(tmp_path):
    """But for the zeros at its end, which hold nothing, as long as one block of them is there."""
    numbered(tmp_path / "0.tar", range(3))
    cut = numbered(tmp_path / "1.tar", range(3, 6))
    raw = cut.read_bytes()
    whole = raw.rindex(b"\n" if raw.rstrip(b"\0").endswith(b"\n") else raw.rstrip(b"\0")[-1:]) + 1
    end = -(-whole // 512) * 512 + 512
    for length in sorted({*range(0, end, 97), *range(512, end, 512), end - 1}):
        cut.write_bytes(raw[:length])
        assert the_error(tmp_path).startswith(f"data.path={cut}: "), length
    cut.write_bytes(raw[:end])
    assert len(everything(load(tmp_path))) == 6


def test_a_damaged_header_is_named_with_what_stands_before_it(tmp_path):
    path = numbered(tmp_path / "x.tar", range(6))
    raw = bytearray(path.read_bytes())
    place = raw.index(b"0004.png")
    raw[place + 120 : place + 160] = bytes(40 * [255])
    path.write_bytes(raw)
    assert (
        the_error(path) == f"data.path={path}: cut off or damaged at byte {place}, after 4 images"
    )


def _sized(size, kind=b"0"):
    """A tar of two images whose second header says this size, in base 256 where it is negative or
    huge."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as made:
        for name in ("0.png", "1.png"):
            made.addfile(tarfile.TarInfo(name))
    raw = bytearray(file.getvalue())
    field = (
        size.to_bytes(12, "big", signed=True) if size < 0 else b"\x80" + size.to_bytes(11, "big")
    )
    raw[512 + 124 : 512 + 136] = field
    raw[512 + 156 : 512 + 157] = kind
    raw[512 + 148 : 512 + 156] = b" " * 8
    raw[512 + 148 : 512 + 156] = b"%06o\0 " % sum(raw[512:1024])
    return bytes(raw)


@pytest.mark.parametrize("kind", [b"0", b"L", b"x", b"g"])
@pytest.mark.parametrize("size", [-512, -1024, -1, 2**40, 2**80])
def test_a_tar_whose_sizes_are_nonsense_is_named_and_ends(tmp_path, size, kind):
    """A negative one leads back to the member itself: read on, it would go round for ever; a huge
    one asks for the memory."""
    path = tmp_path / "x.tar"
    path.write_bytes(_sized(size, kind))
    assert the_error(path).startswith(f"data.path={path}: ")


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.lists(
        st.tuples(st.integers(0, 8191), st.binary(min_size=1, max_size=12)), min_size=1, max_size=4
    )
)
def test_a_tar_damaged_anywhere_is_read_or_named_in_one_line(tmp_path, changes):
    path = tmp_path / "x.tar"
    tar(
        path,
        [
            (f"{'long' * 40}/{n}.{kind}", b"1" * 40)
            for n in range(2)
            for kind in ("png", "cls", "json")
        ],
    )
    raw = bytearray(path.read_bytes())
    for place, new in changes:
        raw[place : place + len(new)] = new
    path.write_bytes(raw)
    try:
        source = shards.Tars([path])
    except UserError as error:
        assert str(error).startswith(f"data.path={path}: ") and "\n" not in str(error)
    else:
        source.fetch(np.arange(len(source)))
        assert all(isinstance(source.name(row), str) for row in range(len(source)))


def test_a_row_group_that_cannot_be_read_is_named(tmp_path):
    path = parquet(tmp_path / "x.parquet", range(40))
    raw = bytearray(path.read_bytes())
    raw[4:2000] = bytes(1996)
    path.write_bytes(raw)
    source = shards.Parquet([path], FoundColumns("image", "label", [], ""))
    with pytest.raises(UserError, match=rf"^data.path={path}: cannot be read: "):
        source.fetch(np.arange(40))


def test_shards_of_another_table_are_named(tmp_path):
    parquet(tmp_path / "0.parquet", range(4))
    other = tmp_path / "1.parquet"
    datasets.Dataset.from_dict({"photo": [png(n) for n in range(4)]}).to_parquet(str(other))
    with pytest.raises(UserError, match=r"different columns: image, label and photo$"):
        load(tmp_path, window=4, validation=0.5)


def test_a_shard_is_indexed_once_and_anew_when_it_changes(tmp_path, cache, monkeypatch):
    path = numbered(tmp_path / "here" / "0.tar", range(3))
    before = content(shards.Tars([path]))
    assert [p.name for p in path.parent.iterdir()] == ["0.tar"] and len(
        list(cache.rglob("*.npy"))
    ) == 1
    with monkeypatch.context() as patch:
        patch.setattr(tarfile, "open", None)
        assert content(shards.Tars([path])) == before
    numbered(path, range(3, 8))
    assert content(shards.Tars([path])) == {png(n): n % 2 for n in range(3, 8)}


def test_an_index_on_a_full_disk_is_said_and_leaves_nothing(tmp_path, monkeypatch):
    path, kept = numbered(tmp_path / "0.tar", range(60)), tmp_path / "kept"
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", kept)
    with full_disk():
        assert "cannot be kept in" in (text := the_error(path)) and "File too large" in text
    assert not [file for file in kept.rglob("*") if file.is_file()]


def test_an_index_that_cannot_be_kept_is_said(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "file")
    path = numbered(tmp_path / "0.tar", range(3))
    assert "its index cannot be kept in" in (text := the_error(path)) and text.endswith(
        "set HF_HOME"
    )


def test_what_shards_cannot_do_is_said(tmp_path):
    folder = tmp_path / "own"
    for name in ("ant", "bee"):
        (folder / name).mkdir(parents=True)
        (folder / name / "0.png").write_bytes(png(0))
    assert the_error(folder, window=4) == (
        f"data.window=4: data.path={folder} holds no shards, which are parquet files or tars"
    )
    path = numbered(tmp_path / "x.tar", range(4))
    assert (
        the_error(path, image_column="png")
        == f"data.image_column=png: data.path={path} holds tars, which have no columns"
    )
    assert the_error(tar(tmp_path / "y.tar", [("a.txt", b"x")])).endswith(
        "no images in it (key.jpg, key.png, ...)"
    )
    assert "a second image of a" in the_error(
        tar(tmp_path / "z.tar", [("a.jpg", b"x"), ("a.png", b"x")])
    )
    # a seventh is less than one row each, and the shard of one is what is rounded up
    for i, count in enumerate((3, 3, 1)):
        numbered(tmp_path / "few" / f"{i}.tar", range(count))
    error = the_error(tmp_path / "few", window=4)
    assert error.startswith("data.window=4: 1 of 7 images in 3 shards come to none; ")
    assert "data.share=" in error and "data.validation=" in error


@pytest.mark.parametrize("write", [numbered, parquet])
def test_the_fingerprint_tells_images_and_labels_but_not_where_they_lie(tmp_path, write):
    kind = "tar" if write is numbered else "parquet"

    def prints(name, numbers):
        found = load(write(tmp_path / name / f"x.{kind}", numbers).parent, window=8, validation=0.5)
        return [fingerprints.fingerprint_source(part) for part in found[:2]]

    known = prints("here", range(8))
    assert prints("there", range(8)) == known
    assert (
        prints("other", [*range(7), 9]) != known and prints("order", [1, 0, *range(2, 8)]) != known
    )


class Rows(Source):
    """Shards whose labels are the rows' numbers."""

    def __init__(self, sizes):
        self.sizes_S, self.classes = np.array(sizes), []

    def __len__(self):
        return int(self.sizes_S.sum())

    def fetch(self, rows):
        assert ((rows >= 0) & (rows < len(self))).all()
        return [b""] * len(rows), np.asarray(rows)

    def name(self, row):
        return f"row {row}"


def rows_of(part):
    return part.fetch(np.arange(len(part)))[1]


@settings(max_examples=80)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=20).filter(sum), st.data())
def test_shares_of_shards_neither_overlap_nor_lose_a_row(sizes, data):
    whole = Rows(sizes)
    count, less = sorted(data.draw(st.tuples(*[st.integers(0, len(whole))] * 2)), reverse=True)
    taken, kept = ShardedSubset(whole, 0, count, 1), ShardedSubset(whole, count, len(whole), 1)
    assert np.array_equal(
        np.sort(np.concatenate([rows_of(taken), rows_of(kept)])), np.arange(len(whole))
    )
    assert set(rows_of(ShardedSubset(whole, 0, less, 1))) <= set(rows_of(taken)), (
        "a share holds the smaller ones"
    )
    for part in (taken, kept):
        shard = np.searchsorted(np.cumsum(sizes), rows_of(part), side="right")
        assert (
            np.array_equal(np.bincount(shard, minlength=len(sizes)), part.sizes_S)
            and (np.diff(shard) >= 0).all()
        )
    assert (np.abs(taken.sizes_S - count / len(whole) * whole.sizes_S) < 1).all()


@settings(max_examples=40)
@given(st.integers(1, 50), st.integers(1, 30), st.data())
def test_of_shards_of_one_size_exactly_so_many_rows_are_taken(size, shards_, data):
    whole = Rows([size] * shards_)
    count = data.draw(st.integers(0, len(whole)))
    assert len(ShardedSubset(whole, 0, count, 1)) == count


def test_a_share_comes_from_everywhere_in_a_shard():
    """So that a shard sorted by class loses some of every class."""
    taken = rows_of(ShardedSubset(Rows([1000] * 4), 0, 400, 1)) % 1000
    assert np.bincount(taken // 250, minlength=4).min() > 60  # 100 expected, standard deviation 8


def test_cifar10_in_windows_is_what_datasets_reads(real_images):
    """Another implementation: every image and label of two row groups and of the test split."""
    plain, in_place = (
        load(real_images / "cifar10", validation="test", window=window) for window in (None, 1000)
    )
    for part, rows in (
        ("train", np.arange(24_800, 25_700)),
        ("validation", np.arange(0, 10_000, 7)),
    ):
        one, other = (getattr(splits, part).fetch(rows) for splits in (plain, in_place))
        assert one[0] == other[0] and np.array_equal(one[1], other[1])
    assert (
        plain.train.label_range == in_place.train.label_range
        and plain.train.classes == in_place.train.classes
    )
