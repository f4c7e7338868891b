"""Folders and files that were read wrongly (the owner's cases, and others found since), each a small
one of its kind, with the right answer. odd_images.md and exif_after_xmp are in test_decoding.py."""

import os
import unicodedata
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers.images import images, parquet, png, tar
from helpers.sources import content, load, opened, refusal
from helpers.tables import cells, raw_parquet
from helpers.tables import parquet as table
from ssl_vit.data import run_splits
from ssl_vit.data.batching import ImageDataset, Samples
from ssl_vit.recipe.schema import Data

CELL = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def class_names(path: Path) -> dict[bytes, str]:
    """The name, or the number where there are no names, of each training image's class."""
    source, _ = opened(path)
    names = source.classes
    return {raw: names[n] if names else str(n) for raw, n in content(source).items()}


def test_folders_named_by_numbers_are_the_classes_of_these_numbers(tmp_path):
    """numbered_class_folders: folders 0 to 11 sorted as texts would be 0, 1, 10, 11, 2, ...: a head
    trained on them would be wrong on the same images with whole numbers as labels."""
    wrote = images(tmp_path / "folder", **{str(label): 2 for label in range(12)})
    right = {raw: int(name) for name, some in wrote.items() for raw in some}
    rows = [{"bytes": raw, "path": None} for raw in right]
    table(tmp_path / "own" / "train.parquet", {"image": rows, "label": [*right.values()]})
    folder, _ = opened(tmp_path / "folder")
    assert folder.classes == [str(label) for label in range(12)] and content(folder) == right
    assert class_names(tmp_path / "own") == class_names(tmp_path / "folder")


def test_names_of_classes_are_equal_whatever_their_unicode_form(tmp_path):
    """class_names_nfd: archives made on macOS hold names in decomposed form."""
    for split, form in (("train", "NFC"), ("test", "NFD")):
        for number, name in enumerate(("café", "thé")):
            folder = tmp_path / split / unicodedata.normalize(form, name)
            folder.mkdir(parents=True)
            (folder / "0.png").write_bytes(png(10 * number + (split == "test")))
    splits = load(tmp_path, validation=0, test=True)
    assert splits.train.classes == splits.test.classes == ["café", "thé"]
    assert sorted(content(splits.test).values()) == [0, 1]


def test_names_in_tables_and_metadata_are_equal_whatever_their_unicode_form(tmp_path):
    """Parts of a data set, one of them written on macOS; and a table of files that lie there."""
    for part, form in enumerate(("NFC", "NFD")):
        names = [unicodedata.normalize(form, one) for one in ("café", "thé")]
        features = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=names))
        place = tmp_path / "tables" / f"train-{part}.parquet"
        table(place, {"image": cells([part]), "label": [1]}, features)
    assert class_names(tmp_path / "tables") == {png(0): "thé", png(1): "thé"}
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / unicodedata.normalize("NFD", "é.png")).write_bytes(png(2))
    (tmp_path / "files" / "metadata.csv").write_text("file_name,label\né.png,4\n")
    assert class_names(tmp_path / "files") == {png(2): "4"}


@pytest.mark.parametrize("words", [{}, {"group": "folder", "labels": False}])
def test_a_share_by_name_is_the_same_in_a_copy_and_from_the_folder_of_the_split(tmp_path, words):
    def tested(path: Path) -> set[bytes]:
        data = Data(name="own", path=str(path), test=0.3, validation=0, **words)
        return {*content(run_splits.load(data, test=True).test)}

    for form in ("NFC", "NFD"):
        for number in range(30):
            name = unicodedata.normalize(form, f"é{number // 2}")
            (tmp_path / form / "train" / name).mkdir(parents=True, exist_ok=True)
            (tmp_path / form / "train" / name / f"{number}.png").write_bytes(png(number))
    known = tested(tmp_path / "NFC")
    assert 0 < len(known) < 30
    assert known == tested(tmp_path / "NFC" / "train") == tested(tmp_path / "NFD")


def test_a_class_without_training_images_is_named(tmp_path):
    """class_without_training_images; where it is every class of the test images, an error."""
    images(tmp_path / "own" / "train", a=3, c=3)
    images(tmp_path / "own" / "test", bramble=2, c=2)
    (tmp_path / "own" / "train" / "bramble").mkdir()
    splits = load(tmp_path / "own", validation=0, test=True)
    assert any("bramble" in line for line in splits.guesses)
    images(tmp_path / "none", train__a=3, train__c=3, test__bramble=2, test__d=2)
    assert "bramble" in refusal(tmp_path / "none", validation=0, test=True)


def test_no_image_of_a_tar_is_left_out_in_silence(tmp_path):
    """tar_dotted_names: a WebDataset key ends at the first dot, `photo 3.v1.jpg` is no partner of
    `photo3.cls`."""
    members = []
    for number in range(12):
        name = f"photo {number}.v1.png" if number % 3 == 0 else f"photo{number}.png"
        members += [(name, png(number)), (f"photo{number}.cls", str(number % 3).encode())]
    tar(tmp_path / "train-000.tar", members)
    source, said = opened(tmp_path)
    assert len(source) == 12 or any("4 images" in line for line in said)


def test_of_a_key_that_a_tar_has_twice_image_and_label_are_the_first(tmp_path):
    """As two shards that were joined have it: the image stayed, and got the other's label."""
    members = [("0.png", png(0)), ("0.cls", b"0"), ("1.png", png(1)), ("1.cls", b"1")]
    tar(tmp_path / "train.tar", [*members, ("0.png", png(2)), ("0.cls", b"7")])
    assert class_names(tmp_path) == {png(0): "0", png(1): "1"}
    assert any("0.png" in x for x in opened(tmp_path)[1])


@pytest.mark.parametrize("stream", [False, True])
def test_a_part_without_rows_is_passed_over(tmp_path, stream):
    """parquet_empty_part."""
    for part, rows in enumerate((range(0), range(24))):
        labels = pa.array([n % 2 for n in rows], pa.int64())
        image = pa.array(cells(rows), CELL)
        raw_parquet(tmp_path / f"part-0000{part}.parquet", image=image, label=labels)
    splits = load(tmp_path, validation=0, stream=stream)
    assert content(splits.train) == {png(n): n % 2 for n in range(24)}
    (tmp_path / "part-00001.parquet").rename(tmp_path / "test.parquet")
    if not stream:
        assert refusal(tmp_path).startswith("data.train=train: ")


def test_a_parquet_file_that_is_damaged_inside_is_named(tmp_path):
    """Its footer is whole; what it tells of one group of rows is no longer there."""
    for part in range(2):
        parquet(tmp_path / f"train-{part}.parquet", range(8 * part, 8 * part + 8))
    damaged = tmp_path / "train-1.parquet"
    group = pq.ParquetFile(damaged).metadata.row_group(1).column(0)
    raw = bytearray(damaged.read_bytes())
    start = group.dictionary_page_offset or group.data_page_offset
    raw[start : start + group.total_compressed_size] = bytes(group.total_compressed_size)
    damaged.write_bytes(raw)
    assert "train-1.parquet" in refusal(tmp_path)


def test_fractions_are_no_classes(tmp_path):
    """csv_float_labels."""
    images(tmp_path, cat=12)
    lines = [f"cat/{n}.png,{0.37 * n:.3f}" for n in range(12)]
    (tmp_path / "metadata.csv").write_text("\n".join(["file_name,label", *lines]) + "\n")
    assert "0.370" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("header", "separator"),
    [
        pytest.param("file_name,label", "\\", id="csv_backslash"),
        pytest.param("file_name, label", "/", id="csv_space"),
    ],
)
def test_metadata_of_other_programs_is_read(tmp_path, header, separator):
    """Paths as Windows writes them, and a space after each comma."""
    images(tmp_path, cat=1, dog=1)
    lines = [header, f"cat{separator}0.png,cat2", f"dog{separator}1.png,dog2", ""]
    (tmp_path / "metadata.csv").write_text("\n".join(lines))
    assert class_names(tmp_path) == {png(0): "cat2", png(1): "dog2"}


def test_rows_that_hold_addresses_in_place_of_images_are_refused_as_such(tmp_path):
    """pq_struct_url."""
    rows = [{"bytes": None, "path": f"https://example.com/{n}.jpg"} for n in range(12)]
    kind = pa.struct([("bytes", pa.null()), ("path", pa.string())])
    labels = [n % 2 for n in range(12)]
    raw_parquet(tmp_path / "train.parquet", image=pa.array(rows, kind), label=labels)
    line = refusal(tmp_path)
    assert "https://example.com/" in line and "not downloaded" in line


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("../outside.png", "outside the folder"),
        ("/etc/hostname", "outside the folder"),
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
    raw_parquet(folder / "train.parquet", image=pa.array(rows, CELL))
    source, _ = opened(folder)
    right, wrong = source.fetch(np.arange(2))[0]
    assert right == png(0) and wrong == b""
    rows = np.arange(2)
    batch = ImageDataset(source, Data(size=8), train=False).__getitems__(Samples(rows, rows))
    (unreadable,) = batch.unreadable
    assert reason in unreadable


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes with names are POSIX's")
@pytest.mark.parametrize("place", ["own/ant/pipe.png", "own/link.png", "own.tar"])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path, place):
    images(tmp_path / "own", ant=2, bee=2)
    pipe = tmp_path / ("pipe" if "link" in place else place)
    os.mkfifo(pipe)
    if "link" in place:
        (tmp_path / place).symlink_to(pipe)
    assert "regular file" in refusal(tmp_path / place.partition("/")[0])


def test_whole_numbers_beside_texts_are_the_same_classes(tmp_path):
    """Train held 0 to 2 without names, test two names: each label was one too low."""
    table(tmp_path / "train.parquet", {"image": cells(range(6)), "label": [0, 1, 2] * 2})
    table(tmp_path / "test.parquet", {"image": cells(range(6, 10)), "label": ["1", "2"] * 2})
    splits = load(tmp_path, validation=0, test=True)
    assert splits.train.classes == splits.test.classes == ["0", "1", "2"]
    assert splits.test.label_of(np.arange(4)).tolist() == [1, 2, 1, 2]


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path, monkeypatch):
    """A stream needs none."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", Path("/dev/null/cache"))
    parquet(tmp_path / "train.parquet", range(8))
    assert "/dev/null/cache (" in refusal(tmp_path)
    assert len(opened(tmp_path, stream=True)[0]) == 8


@pytest.mark.parametrize(("words", "count"), [({}, 1), ({"validation": "val"}, 0)])
def test_a_stream_that_holds_out_what_is_tested_on_says_so(tmp_path, words, count):
    for split, numbers in (("train", range(4)), ("val", range(4, 6))):
        parquet(tmp_path / f"{split}.parquet", numbers)
    guesses = load(tmp_path, stream=True, **words).guesses
    assert len([text for text in guesses if "val is both held out" in text]) == count
