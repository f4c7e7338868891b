"""Folders and files that were read wrongly, each a small one of its kind, with the right answer."""

import io
import json
import os
import struct
import tarfile
import unicodedata
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image, ImageOps

from helpers.images import encode, images, parquet, png, tar
from ssl_vit.data import decoding, sources
from ssl_vit.errors import UserError
from ssl_vit.recipe.schema import Data


def opened(path: Path, **words):
    """The training images at a path, and all that is said about them."""
    found = sources.load(Data(name="own", path=str(path), validation=0, **words), test=False)
    return found.train, [*found.notes, *found.guesses]


def class_names(path: Path, **words) -> dict[bytes, str]:
    """The name, or the number where there are no names, of each training image's class."""
    source, _ = opened(path, **words)
    raw, label = source.fetch(np.arange(len(source)))
    return {
        one: source.classes[number] if source.classes else str(number)
        for one, number in zip(raw, label.tolist(), strict=True)
    }


def segment(marker: int, payload: bytes) -> bytes:
    """A segment of a JPEG file (ITU T.81, B.1.1.4)."""
    return bytes((0xFF, marker)) + struct.pack(">H", len(payload) + 2) + payload


def turned_jpeg(*, before: bool, after: bool, order: str) -> bytes:
    """A JPEG of 40 x 64 stored pixels (height, width) whose EXIF orientation 6 asks for a quarter
    turn, with an XMP segment before or after EXIF; both are APP1."""
    letters = {"<": b"II*\0", ">": b"MM\0*"}[order]
    count, tag, short = 1, 0x0112, 3
    entry = struct.pack(f"{order}HHIHH", tag, short, 1, 6, 0)
    tiff = letters + struct.pack(f"{order}I", 8) + struct.pack(f"{order}H", count) + entry
    exif = segment(0xE1, b"Exif\0\0" + tiff + bytes(4))
    xmp = segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0<x:xmpmeta xmlns:x='adobe:ns:meta/'/>")
    plain = encode(Image.fromarray(np.tile(np.arange(64, dtype=np.uint8), (40, 1))), "JPEG")
    return plain[:2] + xmp * before + exif + xmp * after + plain[2:]


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (False, False),
        (False, True),
        (True, False),
    ],
)
def test_exif_turns_an_image_wherever_its_segment_stands(before, after, order):
    raw = turned_jpeg(before=before, after=after, order=order)
    right = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(raw))).convert("RGB"))
    found = decoding.decode(raw).permute(1, 2, 0).numpy()
    assert right.shape == (64, 40, 3) and found.shape == right.shape
    assert np.abs(found.astype(int) - right).max() <= 2  # of two decoders


def test_folders_named_by_numbers_are_the_classes_of_these_numbers(tmp_path):
    """Folders 0 to 11 sorted as texts would be 0, 1, 10, 11, 2, ...: a head trained on them would
    be wrong on the same images with whole numbers as labels."""
    wrote = images(tmp_path / "folder", **{str(label): 2 for label in range(12)})
    rows = [(raw, int(name)) for name, some in wrote.items() for raw in some]
    (tmp_path / "parquet").mkdir()
    table = {
        "image": [{"bytes": raw, "path": None} for raw, _ in rows],
        "label": [label for _, label in rows],
    }
    pq.write_table(pa.table(table), tmp_path / "parquet" / "train.parquet")
    folder, _ = opened(tmp_path / "folder")
    assert list(folder.classes) == [str(label) for label in range(12)]
    raw, label = folder.fetch(np.arange(len(folder)))
    right = dict(rows)
    assert label.tolist() == [right[one] for one in raw]
    assert class_names(tmp_path / "parquet") == class_names(tmp_path / "folder")


def test_names_of_classes_are_equal_whatever_their_unicode_form(tmp_path):
    """Archives made on macOS hold names in decomposed form."""
    for split, form in (("train", "NFC"), ("test", "NFD")):
        for number, name in enumerate(("café", "thé")):
            folder = tmp_path / split / unicodedata.normalize(form, name)
            folder.mkdir(parents=True)
            for image in range(3):
                (folder / f"{image}.png").write_bytes(png(10 * number + image))
    splits = sources.load(Data(name="own", path=str(tmp_path), validation=0), test=True)
    assert splits.test is not None
    assert list(splits.train.classes) == list(splits.test.classes) == ["café", "thé"]
    assert sorted(splits.test.label_of(np.arange(6)).tolist()) == [0, 0, 0, 1, 1, 1]


def test_a_class_without_training_images_is_named(tmp_path):
    images(tmp_path / "train", a=3, c=3)
    images(tmp_path / "test", a=2, bramble=2, c=2)
    (tmp_path / "train" / "bramble").mkdir()
    splits = sources.load(Data(name="own", path=str(tmp_path), validation=0), test=True)
    assert any("bramble" in line for line in splits.guesses)


def test_no_image_of_a_tar_is_left_out_in_silence(tmp_path):
    """A WebDataset key ends at the first dot: `photo 3.v1.jpg` is no partner of `photo3.cls`."""
    members = []
    for number in range(12):
        name = f"photo {number}.v1.png" if number % 3 == 0 else f"photo{number}.png"
        members += [(name, png(number)), (f"photo{number}.cls", str(number % 3).encode())]
    tar(tmp_path / "train-000.tar", members)
    source, said = opened(tmp_path)
    assert len(source) == 12 or any("4 images" in line for line in said)


def test_a_parquet_file_that_is_damaged_inside_is_named(tmp_path):
    """Its footer is whole; what it tells of one group of rows is no longer there."""
    for part in range(2):
        parquet(tmp_path / f"train-{part}.parquet", range(8 * part, 8 * part + 8))
    damaged = tmp_path / "train-1.parquet"
    group = pq.ParquetFile(damaged).metadata.row_group(1).column(0)
    content = bytearray(damaged.read_bytes())
    start = group.dictionary_page_offset or group.data_page_offset
    content[start : start + group.total_compressed_size] = bytes(group.total_compressed_size)
    damaged.write_bytes(content)
    with pytest.raises(UserError, match=r"train-1\.parquet"):
        opened(tmp_path)


@pytest.mark.parametrize("stream", [False, True])
def test_a_part_without_rows_is_passed_over(tmp_path, stream):
    kind = pa.schema(
        [("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())])), ("label", "int64")]
    )
    rows = [{"image": {"bytes": png(n), "path": None}, "label": n % 2} for n in range(24)]
    for part, some in enumerate(([], rows)):
        table = pa.Table.from_pylist(some, schema=kind)
        pq.write_table(table, tmp_path / f"part-0000{part}.parquet")
    words = {"validation": 0, "stream": stream}
    splits = sources.load(Data(name="own", path=str(tmp_path), **words), first=100)
    assert len(splits.train) == 24


def test_fractions_are_no_classes(tmp_path):
    images(tmp_path, cat=12)
    names = sorted(path.name for path in (tmp_path / "cat").iterdir())
    lines = [f"cat/{name},{0.37 * n:.3f}" for n, name in enumerate(names)]
    (tmp_path / "metadata.csv").write_text("\n".join(["file_name,label", *lines]) + "\n")
    with pytest.raises(UserError, match=r"0\.370? is neither a whole number nor"):
        opened(tmp_path)


def test_labels_in_the_json_members_of_a_tar_are_read(tmp_path):
    """A stream, which lost them, is refused: tars are read in place."""
    members = []
    for number in range(12):
        label = json.dumps({"label": number % 2}).encode()
        members += [(f"{number:03}.png", png(number)), (f"{number:03}.json", label)]
    tar(tmp_path / "train-000.tar", members)
    found, _ = opened(tmp_path)
    assert found.label_of(np.arange(12)).tolist() == [0, 1] * 6
    with pytest.raises(UserError, match=r"^data\.stream=true: .* tars"):
        opened(tmp_path, stream=True)


@pytest.mark.parametrize(
    ("header", "separator"),
    [
        pytest.param("file_name,label", "\\", id="backslash"),
        pytest.param("file_name, label", "/", id="space"),
    ],
)
def test_metadata_of_other_programs_is_read_or_a_line_says_why_not(tmp_path, header, separator):
    """Paths as Windows writes them, and a space after each comma."""
    wrote = images(tmp_path, cat=3, dog=3)
    lines = [
        f"{path.parent.name}{separator}{path.name},{path.parent.name}2"
        for path in sorted(tmp_path.glob("*/*.png"))
    ]
    (tmp_path / "metadata.csv").write_text("\n".join([header, *lines]) + "\n")
    _, said = opened(tmp_path)
    read = class_names(tmp_path)
    right = {raw: f"{name}2" for name, some in wrote.items() for raw in some}
    example = lines[0].partition(",")[0]
    assert read == right or any(example in line or "' label'" in line for line in said)


def test_rows_that_hold_addresses_in_place_of_images_are_refused_as_such(tmp_path):
    rows = [{"bytes": None, "path": f"https://example.com/{n}.jpg"} for n in range(12)]
    kind = pa.struct([("bytes", pa.null()), ("path", pa.string())])
    table = {"image": pa.array(rows, kind), "label": pa.array([n % 2 for n in range(12)])}
    pq.write_table(pa.table(table), tmp_path / "train.parquet")
    with pytest.raises(UserError, match=r"https://example\.com/.*not downloaded"):
        opened(tmp_path)


def test_the_tar_of_these_tests_is_one(tmp_path):
    """What is expected to fail above fails for its reason, not for a broken input."""
    made = tar(tmp_path / "train-000.tar", [("0.png", png(0)), ("0.cls", b"1")])
    with tarfile.open(made) as file:
        assert file.getnames() == ["0.png", "0.cls"]
    assert class_names(tmp_path) == {png(0): "1"}


def labelled_parquet(path: Path, numbers: range, labels: pa.Array | list) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    cells = [{"bytes": png(number), "path": None} for number in numbers]
    pq.write_table(pa.table({"image": cells, "label": labels}), path)


def test_whole_numbers_beside_texts_are_the_same_classes(tmp_path):
    """Train held 0 to 2 without names, test two names: each label was one too low."""
    labelled_parquet(tmp_path / "train.parquet", range(6), [0, 1, 2] * 2)
    labelled_parquet(tmp_path / "test.parquet", range(6, 10), ["1", "2"] * 2)
    splits = sources.load(Data(name="own", path=str(tmp_path), validation=0), test=True)
    assert splits.test is not None
    assert splits.train.classes == splits.test.classes == ["0", "1", "2"]
    assert splits.test.label_of(np.arange(4)).tolist() == [1, 2, 1, 2]


def test_lists_beside_texts_are_one_line(tmp_path):
    labelled_parquet(tmp_path / "train.parquet", range(4), [[0, 1]] * 4)
    labelled_parquet(tmp_path / "test.parquet", range(4, 6), ["ant"] * 2)
    with pytest.raises(UserError, match="ant: expected numbers of classes, from 0"):
        opened(tmp_path, label_column="label")


def test_a_missing_number_is_no_class_whatever_a_program_writes_for_it(tmp_path):
    images(tmp_path, _=8)
    given = ["0", "1", "NA", "null", "nan", "None", "", "+2"]
    lines = [f"{n}.png,{label}" for n, label in enumerate(given)]
    (tmp_path / "metadata.csv").write_text("\n".join(["file_name,label", *lines]))
    source, _ = opened(tmp_path)
    assert source.classes == []
    assert source.label_of(np.arange(8)).tolist() == [0, 1, -1, -1, -1, -1, -1, 2]


def test_of_a_key_that_a_tar_has_twice_image_and_label_are_the_first(tmp_path):
    """As two shards that were joined have it: the image stayed, and got the other's label."""
    members = [("0.png", png(0)), ("0.cls", b"0"), ("1.png", png(1)), ("1.cls", b"1")]
    tar(tmp_path / "train.tar", [*members, ("0.png", png(2)), ("0.cls", b"7")])
    source, said = opened(tmp_path)
    assert class_names(tmp_path) == {png(0): "0", png(1): "1"} and len(source) == 2
    assert any("1 images in tars have the key of another image, as 0.png" in line for line in said)


@pytest.mark.parametrize("words", [{}, {"group": "folder", "labels": False}])
def test_a_share_by_name_is_the_same_in_a_copy_and_from_the_folder_of_the_split(tmp_path, words):
    def tested(path: Path) -> set[bytes]:
        data = Data(name="own", path=str(path), test=0.3, validation=0, **words)
        part = sources.load(data, test=True).test
        assert part is not None
        return set(part.fetch(np.arange(len(part)))[0])

    for form in ("NFC", "NFD"):
        for number in range(30):
            name = unicodedata.normalize(form, f"é{number // 2}")
            (tmp_path / form / "train" / name).mkdir(parents=True, exist_ok=True)
            (tmp_path / form / "train" / name / f"{number}.png").write_bytes(png(number))
    known = tested(tmp_path / "NFC")
    assert 0 < len(known) < 30
    assert known == tested(tmp_path / "NFC" / "train") == tested(tmp_path / "NFD")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes with names are POSIX's")
@pytest.mark.parametrize("place", ["own/ant/pipe.png", "own/link.png", "own.tar"])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path, place):
    images(tmp_path / "own", ant=2, bee=2)
    pipe = tmp_path / ("pipe" if "link" in place else place)
    os.mkfifo(pipe)
    if "link" in place:
        (tmp_path / place).symlink_to(pipe)
    with pytest.raises(UserError, match="expected a regular file"):
        opened(tmp_path / place.partition("/")[0])


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("../outside.png", "lies outside of the data set's folder"),
        ("/etc/hostname", "lies outside of the data set's folder"),
        ("loop.png", "loop"),
        ("a\0b.png", "null"),
        ("gone.png", "No such file"),
    ],
)
def test_a_row_names_no_file_but_one_below_the_folder(tmp_path, path, reason):
    (tmp_path / "outside.png").write_bytes(png(9))
    folder = tmp_path / "own"
    images(folder / "files", _=1)
    (folder / "loop.png").symlink_to(folder / "loop.png")
    rows = [{"bytes": None, "path": name} for name in ("files/0.png", path)]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    pq.write_table(pa.table({"image": pa.array(rows, kind)}), folder / "train.parquet")
    source, _ = opened(folder)
    right, wrong = source.fetch(np.arange(2))[0]
    assert right == png(0) and wrong == b""
    with pytest.raises(ValueError, match=reason):
        decoding.decode(wrong)


def test_a_cache_that_cannot_be_written_is_gone_round(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", Path("/dev/null/cache"))
    for part in range(2):
        labelled_parquet(
            tmp_path / f"train-{part}.parquet",
            range(4 * part, 4 * part + 4),
            pa.array([0, 1] * 2, (pa.int64(), pa.int32())[part]),
        )
    assert class_names(tmp_path) == {png(n): str(n % 2) for n in range(8)}
    assert "cannot be written" in capsys.readouterr().out
    streamed, _ = opened(tmp_path, stream=True)
    assert len(streamed) == 8


def test_a_split_whose_parts_are_all_empty_has_no_images(tmp_path):
    labelled_parquet(tmp_path / "train.parquet", range(0), pa.array([], pa.int64()))
    labelled_parquet(tmp_path / "test.parquet", range(4), [0, 1] * 2)
    with pytest.raises(UserError, match=r"^data\.train=train: .* has no images in that split"):
        opened(tmp_path)


def test_names_in_tables_and_metadata_are_equal_whatever_their_unicode_form(tmp_path):
    """Parts of a data set, one of them written on macOS; and a table of files that lie there."""
    names = ["café", "thé"]
    for part, form in enumerate(("NFC", "NFD")):
        features = datasets.Features(
            image=datasets.Image(),
            label=datasets.ClassLabel(names=[unicodedata.normalize(form, one) for one in names]),
        )
        rows = {"image": [{"bytes": png(part), "path": None}], "label": [1]}
        made = datasets.Dataset.from_dict(rows, features=features)
        made.to_parquet(str(tmp_path / "tables" / f"train-{part}.parquet"))
    assert class_names(tmp_path / "tables") == {png(0): "thé", png(1): "thé"}
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / unicodedata.normalize("NFD", "é.png")).write_bytes(png(2))
    (tmp_path / "files" / "metadata.csv").write_text("file_name,label\né.png,4\n")
    source, said = opened(tmp_path / "files")
    assert source.label_of(np.arange(1)).tolist() == [4]
    assert not any("metadata name no image" in line for line in said)


def test_a_stream_that_holds_out_what_is_tested_on_says_so(tmp_path):
    for split, numbers in (("train", range(4)), ("val", range(4, 6))):
        parquet(tmp_path / f"{split}.parquet", numbers)
    for words, count in (({}, 1), ({"validation": "val"}, 0)):
        data = Data(name="own", path=str(tmp_path), stream=True, **words)
        found = [text for text in sources.load(data).guesses if "what is tested on" in text]
        assert len(found) == count
