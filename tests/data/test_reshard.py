"""Pre-resized shards: the same images, smaller, with their labels; made once, whole, and never over
somebody's files."""

import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from helpers.images import numbered, parquet, png
from helpers.launching import launch
from ssl_vit.config.schema import Data
from ssl_vit.data import loaders, make_shards, reshard, sources, transforms
from ssl_vit.data.batch_layout import BatchLayout
from ssl_vit.errors import UserError
from ssl_vit.runs.output_folder import OutputFolder

MANNER = reshard.Encoding(size=16, format="jpeg", quality=95)


def smooth(height: int, width: int, seed: int = 0) -> np.ndarray:
    """An image that survives JPEG: two colours blended from corner to corner."""
    one, other = np.random.default_rng(seed).integers(0, 256, (2, 3))
    share = (np.arange(height)[:, None] / height + np.arange(width)[None] / width)[..., None] / 2
    return (share * one + (1 - share) * other).astype(np.uint8)


def encode(array: np.ndarray, form: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(array).save(file, form)
    return file.getvalue()


def folder(root: Path, each: int = 5) -> Path:
    """split/class/number.png, of sides 12 to 40."""
    for s, split in enumerate(("train", "test")):
        for c, name in enumerate(("ant", "bee")):
            (root / split / name).mkdir(parents=True)
            for i in range(each):
                raw = encode(smooth(12 + 7 * i, 40 - 5 * i, seed=100 * s + 10 * c + i))
                (root / split / name / f"{i}.png").write_bytes(raw)
    return root


def make(*words: str) -> None:
    make_shards.main(
        [*words, *(["workers=1"] if not any(w.startswith("workers") for w in words) else [])]
    )


def content(place: Path) -> dict[str, list[tuple[bytes, int]]]:
    """{split: [(encoded image, label)]} in order."""
    found = sources.every_split(Data(name="own", path=str(place))).splits
    return {
        k: list(zip(*(list(part) for part in v.fetch(np.arange(len(v)))), strict=True))
        for k, v in found.items()
    }


def files(place: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in place.iterdir() if path.name != "lock"}


@settings(max_examples=40)
@given(
    st.integers(1, 90), st.integers(1, 90), st.integers(1, 60), st.sampled_from(["jpeg", "webp"])
)
def test_the_shorter_side_is_brought_down_and_never_up(
    height: int, width: int, size: int, form: str
) -> None:
    array = smooth(height, width)
    raw = encode(array)
    small = reshard.reencode(raw, reshard.Encoding(size, form, 95))
    if min(height, width) <= size:
        assert small == raw
        return
    image = transforms.decode(small)
    assert min(image.shape[1:]) == size and Image.open(io.BytesIO(small)).format == form.upper()
    assert abs(image.shape[1] / image.shape[2] * width / height - 1) < 1.01 / size
    # a few pixels share one value of colour, rounded by the format
    most = 4 if size >= 8 else 8
    assert np.abs(image.numpy().mean((1, 2)) - array.mean((0, 1))).max() < most


def test_a_smaller_image_is_as_pillow_makes_it() -> None:
    array = smooth(60, 90)
    small = (
        transforms.decode(reshard.reencode(encode(array), MANNER))
        .permute(1, 2, 0)
        .numpy()
        .astype(int)
    )
    right = np.asarray(Image.fromarray(array).resize((24, 16), Image.Resampling.BILINEAR)).astype(
        int
    )
    assert small.shape == right.shape and np.abs(small - right).max() <= 4
    assert np.array_equal(
        transforms.decode(reshard.reencode(array, MANNER)).permute(1, 2, 0), small
    ), "drawn or read"


def test_a_turned_image_is_turned_once() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    file = io.BytesIO()
    Image.fromarray(smooth(40, 80)).save(file, "JPEG", exif=exif, quality=95)
    turned, small = (
        transforms.decode(file.getvalue()),
        transforms.decode(reshard.reencode(file.getvalue(), MANNER)),
    )
    assert turned.shape == (3, 80, 40) and small.shape == (3, 32, 16)
    assert (
        np.abs(transforms.resize_short_side(turned, 16).numpy().astype(int) - small.numpy()).max()
        <= 6
    )


def test_a_folder_of_images_becomes_shards_that_training_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    before = content(folder(tmp_path / "own"))
    make(f"data.path={tmp_path}/own", f"out={tmp_path}/out", "size=16", "rows=4")
    assert sorted(p.name for p in (tmp_path / "out").glob("*.parquet")) == [
        *(f"test-{i:05d}-of-00003.parquet" for i in range(3)),
        *(f"train-{i:05d}-of-00003.parquet" for i in range(3)),
    ]
    after = content(tmp_path / "out")
    for split in ("train", "test"):
        assert [label for _, label in after[split]] == [label for _, label in before[split]]
        sides = [min(transforms.decode(raw).shape[1:]) for raw, _ in before[split]]
        assert [min(transforms.decode(raw).shape[1:]) for raw, _ in after[split]] == [
            min(side, 16) for side in sides
        ]
        pairs = zip(before[split], after[split], sides, strict=True)
        assert all(one == other for (one, _), (other, _), side in pairs if side <= 16)
    data = Data(name="own", path=f"{tmp_path}/out", window=6, size=8, validation="test")
    splits = sources.load(data)
    assert splits.train.classes == ["ant", "bee"]
    (batch,) = loaders.training_loader(splits.train, data, BatchLayout(10, 10, 0, 1), 0, 0, 1, 0)
    assert not batch.unreadable and sorted(batch.index.tolist()) == list(range(10))
    assert "next        accelerate launch tools/pretrain.py" in capsys.readouterr().out


@pytest.mark.parametrize("write", [numbered, parquet])
def test_shards_become_shards(tmp_path: Path, write: Callable) -> None:
    kind = "tar" if write is numbered else "parquet"
    write(tmp_path / f"own.{kind}", range(9))
    make(f"data.path={tmp_path}/own.{kind}", f"out={tmp_path}/out", "rows=5")
    assert content(tmp_path / "out") == {"train": [(png(n), n % 2) for n in range(9)]}


def test_bits_that_shards_do_not_hold_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    for number in range(3):
        file = tmp_path / "own" / "train" / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((12, 12), 4095, np.uint16)).save(file)
    make(f"data.path={tmp_path / 'own'}", f"out={tmp_path / 'out'}")
    (warning,) = [line for line in capsys.readouterr().out.splitlines() if "warning" in line]
    assert "3 of 3" in warning and "15 of 255; shards hold 8" in warning


def test_images_without_labels_stay_so(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    for i in range(3):
        (tmp_path / "own" / f"{i}.png").write_bytes(png(i))
    make(f"data.path={tmp_path}/own", f"out={tmp_path}/out")
    assert content(tmp_path / "out") == {"train": [(png(n), -1) for n in range(3)]}


def test_what_is_there_is_not_made_again_and_what_is_missing_is(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    words = [f"data.path={folder(tmp_path / 'own')}", f"out={tmp_path}/out", "size=16", "rows=4"]
    make(*words, "workers=2")
    whole, stamps = (
        files(tmp_path / "out"),
        {p: p.stat().st_mtime_ns for p in (tmp_path / "out").glob("*.parquet")},
    )
    gone = tmp_path / "out" / "train-00001-of-00003.parquet"
    gone.rename(gone.with_name(f".{gone.name}.123"))  # as a killed run leaves one
    own = tmp_path / "out" / ".notes.parquet.txt"
    own.write_text("mine")
    capsys.readouterr()
    make(*words)
    assert files(tmp_path / "out") == whole | {own.name: b"mine"}
    assert [p for p, stamp in stamps.items() if p.stat().st_mtime_ns != stamp] == [gone]
    output = capsys.readouterr().out
    assert output.count("there already") == 5 and output.count(" made: ") == 1


def test_images_that_cannot_be_read_are_named_and_left_out_up_to_a_share(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    own = folder(tmp_path / "own")
    (own / "train" / "bee" / "1.png").write_bytes(b"rubbish")
    words = [f"data.path={own}", "size=16", "rows=4"]
    for _ in range(2):  # and is counted when the shard is there already
        with pytest.raises(
            UserError, match=r"^data\.unreadable=0\.0: 1 of .* cannot be read; .*; the last: "
        ):
            make(*words, f"out={tmp_path}/strict", "data.unreadable=0")
    capsys.readouterr()
    make(*words, f"out={tmp_path}/out")
    output = capsys.readouterr().out
    assert (
        "warning: left out: row 6" in output
        and "bee/1.png" in output
        and "19 of 20 images" in output
    )
    after, before = content(tmp_path / "out"), content(own)
    assert [label for _, label in after["train"]] == [
        label for raw, label in before["train"] if raw != b"rubbish"
    ]


def the_error(*words: str) -> str:
    with pytest.raises(UserError) as caught:
        make(*words)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    own = folder(tmp_path / "own", each=2)
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "thesis.txt").write_text("theirs")
    assert the_error(f"data.path={own}", f"out={tmp_path}/theirs") == (
        f"out={tmp_path}/theirs: {tmp_path}/theirs holds something else; give another out="
    )
    (tmp_path / "file").write_text("theirs")
    assert the_error(f"data.path={own}", f"out={tmp_path}/file").startswith(
        f"out={tmp_path}/file: "
    )
    assert the_error(f"data.path={own}", f"out={own}/small").startswith(
        f"out={own}/small: lies in data.path={own}"
    )
    assert files(tmp_path / "theirs") == {"thesis.txt": b"theirs"} and not (own / "small").exists()


def test_shards_of_other_images_or_made_otherwise_are_left_alone(tmp_path: Path) -> None:
    words = [f"data.path={folder(tmp_path / 'own', each=2)}", f"out={tmp_path}/out"]
    make(*words, "size=16")
    before = files(tmp_path / "out")
    assert (
        the_error(*words, "size=20")
        == f"out={tmp_path}/out: holds other shards: size (16 there, 20 here); give another out="
    )
    assert "quality (90 there, 80 here)" in the_error(*words, "size=16", "quality=80")
    (tmp_path / "own" / "train" / "ant" / "0.png").write_bytes(png(77))
    assert "holds other shards: data (" in the_error(*words, "size=16")
    assert files(tmp_path / "out") == before
    (tmp_path / "out" / "shards.json").write_text("{")
    assert the_error(*words, "size=16").endswith("or give another out=")


def test_a_shard_that_is_not_the_one_that_was_written_is_not_there_already(tmp_path: Path) -> None:
    words = [f"data.path={folder(tmp_path / 'own')}", f"out={tmp_path}/out", "size=16", "rows=4"]
    make(*words)
    one, other = (tmp_path / "out" / f"train-0000{n}-of-00003.parquet" for n in (0, 1))
    written = one.read_bytes()
    flipped = bytearray(written)
    flipped[len(written) // 2] ^= 1
    for content in (flipped, written[:-9], other.read_bytes()):
        one.write_bytes(content)
        assert the_error(*words).startswith(f"{one} is not the file that was written; remove it")
        assert one.read_bytes() == content
    # of an earlier version, without hashes
    record = json.loads((tmp_path / "out" / "shards.json").read_text())
    record.pop("shards")
    (tmp_path / "out" / "shards.json").write_text(json.dumps(record))
    one.write_bytes(written[:-9])
    assert the_error(*words).startswith(f"{one} is damaged; remove it: ")
    one.unlink()
    make(*words)
    assert one.read_bytes() == written


def test_one_process_writes_and_hidden_files_that_are_not_its_own_stay(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = [f"data.path={folder(tmp_path / 'own')}", f"out={out}", "size=16", "rows=4"]
    out.mkdir()
    for name in (".mine.part", ".notes.parquet.1.part", ".shards.json.1"):
        (out / name).write_text("mine")
    (out / ".train-00000-of-00003.parquet.1.part").symlink_to(tmp_path / "thesis.txt")
    (tmp_path / "thesis.txt").write_text("mine")
    with OutputFolder("out", out, re.compile("none"), make_shards.RECORD).hold():
        process = launch("tools/shards.py", *words)
        printed = process.communicate(120)[0]
        assert process.returncode == 2, printed
        assert f"error: out={out}: {out} is being written by process " in printed
        assert not list(out.glob("*.parquet"))
    make(*words)
    assert {path.name for path in out.glob(".*")} == {".mine.part", ".notes.parquet.1.part"}
    assert (tmp_path / "thesis.txt").read_text() == "mine" and len(content(out)["train"]) == 10


WORDS = {
    "no folder": (["data.path=."], "out= is missing"),
    "no such place": (["out=x", "data.path=nowhere"], "data.path=nowhere: no such file or folder"),
    "a key of training": (
        ["out=x", "optim.lr=1"],
        "optim.lr=1: has no use here; choices: out, size",
    ),
    "a misspelt key": (["out=x", "sise=1"], "sise=1: unknown; did you mean size?"),
    "a misspelt key of the data": (["out=x", "data.pth=1"], "did you mean data.path?"),
    "no number": (
        ["out=x", "size=big"],
        "size=big: expected a whole number: at least 1 and at most 16,384",
    ),
    "nothing": (["out=x", "rows=0"], "rows=0: expected a whole number: at least 1"),
    "too good": (
        ["out=x", "quality=101"],
        "quality=101: expected a whole number: at least 1 and at most 100",
    ),
    "another format": (["out=x", "format=gif"], "format=gif: unknown; choices: jpeg, webp"),
    "an unknown set": (["out=x", "data=cifar"], "data=cifar: unknown; did you mean cifar10?"),
    "a set that is nowhere": (["out=x", "data=jft"], "data=jft lies nowhere yet"),
}


@pytest.mark.parametrize(("words", "says"), WORDS.values(), ids=WORDS)
def test_words(words: list[str], says: str) -> None:
    assert says in the_error(*words)
