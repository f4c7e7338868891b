"""Tars and parquet files: every image is found where it lies, and a file that is cut off is named
before anything runs."""

import io
import json
import tarfile

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.images import images, numbered, parquet, png, tar
from helpers.sources import content, everything, load
from ssl_vit.data import fingerprints, loaders, sources
from ssl_vit.data.batch_layout import BatchLayout
from ssl_vit.data.open import open_splits
from ssl_vit.errors import UserError
from ssl_vit.recipe.schema import Data

NAMES = st.text("abcXYZ019_-/ é", min_size=1, max_size=140).filter(
    lambda name: name.strip("/ ") == name and "//" not in name
)


def opened(*files):
    place = files[0] if len(files) == 1 else files[0].parent
    return open_splits(Data(name="own", path=str(place))).splits["train"]


def the_error(path, **words):
    """The text of the UserError that loading gives, checked to be one line."""
    with pytest.raises(UserError) as caught:
        load(path, **words)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("write", [numbered, parquet])
def test_a_folder_of_files_is_read_whole_and_by_its_splits(tmp_path, write):
    kind = "tar" if write is numbered else "parquet"
    write(tmp_path / f"train-0.{kind}", range(10))
    write(tmp_path / f"train-1.{kind}", range(10, 17))
    write(tmp_path / "val" / f"0.{kind}", range(20, 26))
    found = load(tmp_path, validation="val")
    assert content(found.train) == {png(n): n % 2 for n in range(17)}
    assert content(found.validation) == {png(n): n % 2 for n in range(20, 26)}
    one = load(tmp_path / f"train-0.{kind}", validation=0.3)
    assert everything(one) == {png(n): n % 2 for n in range(10)}
    assert abs(len(one.validation) - 3) <= 1 and one.train.labels.lowest_and_highest == (0, 1)
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
    source = opened(path)
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
        ({"cls": b"cat"}, "cat"),
        ({"json": b'{"label": "cat"}'}, "cat"),
        ({"json": b'{"label": null}'}, -1),
        pytest.param({"json": b"[" * 9999}, -1, id="deep"),
        ({"json": b"[3]"}, -1),
        ({"json": b"{"}, -1),
        ({}, -1),
    ],
)
def test_labels_beside_a_image(tmp_path, labels, right):
    path = tar(
        tmp_path / "x.tar",
        [("a.JPG", b"some"), *((f"a.{kind}", raw) for kind, raw in labels.items())],
    )
    source = opened(path)
    (image,), (label,) = source.fetch(np.arange(1))
    assert image == b"some" and (source.classes[label] if source.classes else label) == right


def test_a_image_is_named_by_its_member(tmp_path):
    numbered(tmp_path / "0.tar", range(3))
    numbered(tmp_path / "1.tar", range(3, 6))
    assert opened(tmp_path / "0.tar", tmp_path / "1.tar").name(4) == "1.tar, 0004.png"


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["tar", "parquet", "folder"])
def test_samples_are_the_same_on_any_number_of_processes_and_workers(tmp_path, kind, workers):
    for i in range(3):
        if kind == "folder":
            images(tmp_path / f"{i}", _=20)
        else:
            write = numbered if kind == "tar" else parquet
            write(tmp_path / f"{i}.{kind}", range(20 * i, 20 * i + 20))
    data = Data(name="own", path=str(tmp_path), validation=0.1, size=8)
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
    assert loaders.step_indices(9, train, 8, 0).tolist() == alone[2][9 * 8 : 10 * 8].tolist()


def test_a_parquet_file_without_its_end_is_named(tmp_path):
    parquet(tmp_path / "0.parquet", range(8))
    cut = parquet(tmp_path / "1.parquet", range(8, 16))
    raw = cut.read_bytes()
    for length in (0, 4, len(raw) // 2, len(raw) - 1):
        cut.write_bytes(raw[:length])
        assert the_error(tmp_path).startswith(f"data.path={cut}: ")


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
        source = opened(path)
    except UserError as error:
        assert f"data.path={path}: " in str(error) and "\n" not in str(error)
    else:
        source.fetch(np.arange(len(source)))
        assert all(isinstance(source.name(row), str) for row in range(len(source)))


def test_what_tars_cannot_do_is_said(tmp_path):
    path = numbered(tmp_path / "x.tar", range(4))
    assert (
        the_error(path, image_column="png")
        == f"data.image_column=png: data.path={path} holds tars, which have no columns"
    )
    assert the_error(tar(tmp_path / "y.tar", [("a.txt", b"x")])).endswith(
        "no images in it (key.jpg, key.png, ...)"
    )


def test_what_is_left_out_of_a_tar_is_counted_and_said(tmp_path):
    members = [(f"{n}.png", png(n)) for n in range(4)]
    others = ["1.jpg", "2.seg.png", "._3.png", "a/.b/7.png", "5.heic", "6.v1.dcm", "README"]
    path = tar(tmp_path / "x.tar", [*members, *((name, b"x") for name in others)])
    with tarfile.open(path, "a") as file:
        for kind, name in ((tarfile.SYMTYPE, "9.png"), (tarfile.LNKTYPE, "10.png")):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "0.png"
            file.addfile(info)
    splits = load(tmp_path, validation=0.0)
    assert content(splits.train).keys() == {png(n) for n in range(4)}
    assert (
        "left out: 1 .dcm file of the tars, 1 .heic file of the tars, 1 file without an ending of"
        " the tars, 2 hidden files of the tars, 2 links of the tars"
    ) in splits.notes
    (guess,) = splits.guesses
    assert "2 images in tars have the key of another image, as 1.jpg" in guess


def test_arrays_in_tars_are_images_where_there_are_no_others(tmp_path):
    arrays = {}
    for number in range(3):
        file = io.BytesIO()
        np.save(file, np.full((4, 5, 3), number, np.uint8))
        arrays[f"{number}.npy"] = file.getvalue()
    source = opened(tar(tmp_path / "x.tar", list(arrays.items())))
    assert source.fetch(np.arange(3))[0] == list(arrays.values())


def test_the_fingerprint_tells_images_and_labels_but_not_where_they_lie(tmp_path):
    def prints(name, numbers):
        found = load(numbered(tmp_path / name / "x.tar", numbers).parent, validation=0.5)
        return [fingerprints.fingerprint(part.whole()) for part in found[:2]]

    known = prints("here", range(8))
    assert prints("there", range(8)) == known
    assert prints("other", [*range(7), 9]) != known
    assert prints("order", [1, 0, *range(2, 8)]) != known
