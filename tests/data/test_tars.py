"""Tars: every image is found where it lies, and a file that is cut off or damaged is named before
anything runs."""

import io
import json
import tarfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.images import numbered, png, tar
from helpers.sources import content, opened, refusal
from ssl_vit.data.open import open_splits
from ssl_vit.errors import UserError
from ssl_vit.recipe.schema import Data

NAMES = st.text("abcXYZ019_-/ é", min_size=1, max_size=140).filter(
    lambda name: name.strip("/ ") == name and "//" not in name
)
COMMON = {"suppress_health_check": [HealthCheck.function_scoped_fixture]}


def train(place):
    return open_splits(Data(name="own", path=str(place))).splits["train"]


@settings(max_examples=40, **COMMON)
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
        some = [(f"{name}.jpg", raw), (f"{name}.seg.png", b"no"), (f"{name}.txt", b"a text")]
        if label is not None:
            some.append((f"{name}.cls", str(label).encode()))
            some.append((f"{name}.json", json.dumps({"label": 5, "text": "x"}).encode()))
        members += data.draw(st.permutations(some))
    form = data.draw(st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]))
    source = train(tar(tmp_path / "x.tar", members, form))
    raw, label = source.fetch(np.arange(len(source)))
    assert sorted(zip(raw, label.tolist(), strict=True)) == sorted(
        (r, -1 if n is None else n) for r, n in samples.values()
    )


@pytest.mark.parametrize(
    ("labels", "right"),
    [
        ({"cls": b"7\n"}, 7),
        ({"json": b'{"label": 3}'}, 3),
        ({"json": b'{"label": 3}', "cls": b"4"}, 4),
        ({"cls": b"cat"}, "cat"),
        ({"json": b'{"label": "cat"}'}, "cat"),
        ({"json": b'{"label": null}'}, -1),
        pytest.param({"json": b"[" * 9999}, -1, id="deep"),
        ({"json": b"[3]"}, -1),
        ({"json": b"{"}, -1),
    ],
)
def test_labels_beside_an_image(tmp_path, labels, right):
    members = [("a.JPG", b"some"), *((f"a.{kind}", raw) for kind, raw in labels.items())]
    source = train(tar(tmp_path / "x.tar", members))
    (image,), (label,) = source.fetch(np.arange(1))
    assert image == b"some" and (source.classes[label] if source.classes else label) == right


def test_a_tar_that_ends_early_is_named_wherever_it_was_cut(tmp_path):
    """But for the zeros at its end, which hold nothing, as long as one block of them is there."""
    numbered(tmp_path / "0.tar", range(3))
    cut = numbered(tmp_path / "1.tar", range(3, 6))
    raw = cut.read_bytes()
    end = -(-len(raw.rstrip(b"\0")) // 512) * 512 + 512
    for length in sorted({*range(0, end, 197), *range(512, end, 512), end - 1}):
        cut.write_bytes(raw[:length])
        assert refusal(tmp_path).startswith(f"data.path={cut}: "), length
    cut.write_bytes(raw[:end])
    assert len(train(tmp_path)) == 6


def test_a_damaged_header_is_named_with_what_stands_before_it(tmp_path):
    path = numbered(tmp_path / "x.tar", range(6))
    raw = bytearray(path.read_bytes())
    place = raw.index(b"0004.png")
    raw[place + 120 : place + 160] = bytes(40 * [255])
    path.write_bytes(raw)
    line = refusal(path)
    assert line.startswith(f"data.path={path}: ")
    assert f"at byte {place}" in line and "after 4 images" in line


def sized(size, kind):
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
    path.write_bytes(sized(size, kind))
    assert refusal(path).startswith(f"data.path={path}: ")


@settings(max_examples=100, **COMMON)
@given(
    changes=st.lists(
        st.tuples(st.integers(0, 8191), st.binary(min_size=1, max_size=12)), min_size=1, max_size=4
    )
)
def test_a_tar_damaged_anywhere_is_read_or_named_in_one_line(tmp_path, changes):
    names = [f"{'long' * 40}/{n}.{kind}" for n in range(2) for kind in ("png", "cls", "json")]
    path = tar(tmp_path / "x.tar", [(name, b"1" * 40) for name in names])
    raw = bytearray(path.read_bytes())
    for place, new in changes:
        raw[place : place + len(new)] = new
    path.write_bytes(raw)
    try:
        source = train(path)
    except UserError as error:
        assert f"data.path={path}" in str(error) and "\n" not in str(error)
    else:
        source.fetch(np.arange(len(source)))
        assert all(isinstance(source.name(row), str) for row in range(len(source)))


def test_what_is_left_out_of_a_tar_is_counted_and_said(tmp_path):
    members = [(f"{n}.png", png(n)) for n in range(4)]
    others = ["1.jpg", "2.seg.png", "._3.png", "a/.b/7.png", "5.jp2", "6.v1.jxl", "README"]
    path = tar(tmp_path / "x.tar", [*members, *((name, b"x") for name in others)])
    with tarfile.open(path, "a") as file:
        for kind, name in ((tarfile.SYMTYPE, "9.png"), (tarfile.LNKTYPE, "10.png")):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "0.png"
            file.addfile(info)
    source, said = opened(tmp_path)
    assert content(source).keys() == {png(n) for n in range(4)}
    (left,) = [line for line in said if line.startswith("left out: ")]
    assert {*left.removeprefix("left out: ").split(", ")} == {
        "1 .jp2 file of the tars",
        "1 .jxl file of the tars",
        "1 file without an ending of the tars",
        "2 hidden files of the tars",
        "2 links of the tars",
    }
    assert any("Left out: 2 images, such as " in line for line in said)
    assert "no images" in refusal(tar(tmp_path / "y.tar", [("a.txt", b"x")]))
