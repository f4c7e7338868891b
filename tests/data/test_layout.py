"""What is a split and what a class: one rule for every format; no image is trained on, or left out,
without a word. Which split and class each image of 58 odd folders has is frozen (tests/freeze)."""

import os
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.images import images, numbered, parquet, png
from helpers.sources import content, everything, load, refusal
from ssl_vit.data import fingerprints, layout
from ssl_vit.data.layout import Folder
from ssl_vit.data.open import open_splits
from ssl_vit.recipe.schema import Data

SPLITS = [word for words in layout.ROLES.values() for word in words]


def kept(path):
    """({split: {image: class or None}}, what was guessed); each image is in one split."""
    found = open_splits(Data(name="own", path=str(path)))
    splits = {
        name: {raw: source.classes[n] if n >= 0 else None for raw, n in content(source).items()}
        for name, source in found.splits.items()
    }
    assert max(Counter(raw for one in splits.values() for raw in one).values()) == 1
    return splits, found.guesses


ASSUMED = {
    "could be a split's name": {"train": 2, "cat": 2, "dog": 2},
    "7 images in extra, the top": {"train__ant": 3, "test__ant": 1, "extra": 5, "_": 2},
    "have no label": {"ant": 2, "bee": 2, "_": 3},
    "different depths": {"ant": 2, "bee__more": 2, "bee": 1},
}


@pytest.mark.parametrize(("says", "counts"), ASSUMED.items(), ids=ASSUMED)
def test_what_is_assumed_of_folders_is_said(tmp_path, says, counts):
    images(tmp_path, **counts)
    (guess,) = kept(tmp_path)[1]
    assert says in guess


def test_files_called_like_splits_in_one_folder(tmp_path):
    for n in range(6):
        (tmp_path / f"{'test' if n < 2 else 'train'}_{n}.png").write_bytes(png(n))
    splits, _ = kept(tmp_path)
    assert {name: len(some) for name, some in splits.items()} == {"test": 2, "train": 4}
    (tmp_path / "other.png").write_bytes(png(9))
    splits, guesses = kept(tmp_path)
    assert {name: len(some) for name, some in splits.items()} == {"train": 7}
    assert "6 of 7 images" in guesses[0]


def test_what_was_left_out_of_a_folder_is_counted_and_said(tmp_path):
    """Arrays beside images may be masks, boxes, or embeddings."""
    images(tmp_path, ant=2, bee=2)
    for name in ("a.txt", "ant/b.TXT", "c.heic", "README", ".DS_Store", "bee/._0.png", "d.npy"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / ".cache").mkdir()
    found = load(tmp_path)
    assert len(everything(found)) == 4
    (left,) = [note for note in found.notes if note.startswith("left out: ")]
    counted = {"1 .heic file", "2 .txt files", "1 file without an ending", "2 hidden files"}
    assert {*left.removeprefix("left out: ").split(", ")} == {*counted, "1 hidden folder"}
    assert any("1 .npy file beside images" in text for text in found.guesses)


NAMES = st.sampled_from([*SPLITS, "Train", "TEST2", "cat", "dog", "training_shoe", "latest", "x"])


@settings(max_examples=150)
@given(st.sets(st.lists(NAMES, max_size=3).map(tuple), min_size=1, max_size=7))
def test_no_folder_of_images_is_dropped_or_split_without_a_word(paths):
    """Every folder has a split, or a warning tells of it; held out is only what a folder's whole
    name says."""
    folders = [Folder("/".join(path), {"images": ["0.png"]}) for path in sorted(paths)]
    found = layout.divide(folders, "images")
    dropped = [f for f, split in zip(folders, found.split, strict=True) if split is None]
    assert not dropped or any(f"{len(dropped):,} images in " in text for text in found.guesses)
    for folder, split in zip(folders, found.split, strict=True):
        parts = folder.path.split("/")
        if split is not None and layout.ROLE[split] != "train":
            assert split in map(layout.split_of_folder, parts)
        if split == "train" and any(
            layout.ROLE.get(layout.split_of_folder(p) or "train") != "train" for p in parts
        ):
            others = {s for part in parts if (s := layout.split_of_folder(part))}
            assert found.guesses or len(others) > 1, (folder, found)


@pytest.mark.parametrize(
    ("name", "splits"),
    [
        ("testimages-0.parquet", ["test"]),
        ("traindata.parquet", ["train"]),
        ("ImageNetVal-000.tar", ["val"]),
        ("set-TEST-2.tar", ["test"]),
        ("Evaluation_1.parquet", ["evaluation"]),
        ("evals-0.parquet", ["eval"]),
        ("validations.parquet", ["validation"]),
        ("latest.tar", []),
        ("trainee.parquet", []),
        ("intestine-images.parquet", []),
        ("LATEST-Device.tar", []),
    ],
)
def test_a_files_name_tells_its_split_in_whole_words(name, splits):
    """Plurals, `images` behind it and capitals within a word are no other words."""
    assert layout.splits_in_file(name) == splits


@pytest.mark.parametrize("write", [numbered, parquet])
def test_held_out_shards_are_not_trained_on(tmp_path, write):
    kind = "tar" if write is numbered else "parquet"
    write(tmp_path / f"latest.{kind}", range(6))
    write(tmp_path / f"imagenet-eval-000.{kind}", range(10, 13))
    splits = load(tmp_path, test=True)
    assert everything(splits).keys() == {png(n) for n in range(6)}
    assert content(splits.test).keys() == {png(n) for n in range(10, 13)}
    (guess,) = splits.guesses
    assert f"latest.{kind} beside named splits: taken as train" in guess
    if kind == "parquet":
        streamed = load(tmp_path, stream=True, validation=0.0)
        assert content(streamed.train).keys() == {png(n) for n in range(6)}


def test_a_held_out_file_given_alone_is_trained_on_with_a_warning(tmp_path):
    splits = load(parquet(tmp_path / "test-0.parquet", range(8)))
    assert len(everything(splits)) == 8
    assert "test-0.parquet is the only file" in splits.guesses[0]


def test_images_beside_shards_are_left_out_with_a_warning(tmp_path):
    parquet(tmp_path / "train.parquet", range(6))
    images(tmp_path, images=4)
    found = load(tmp_path)
    assert len(everything(found)) == 6
    assert any("4 images beside parquet files are left out" in text for text in found.guesses)


def test_linked_class_folders_are_followed_and_loops_refused(tmp_path):
    wrote = images(tmp_path, far=3, near__ant=3)
    (tmp_path / "near" / "bee").symlink_to(tmp_path / "far")
    splits, _ = kept(tmp_path / "near")
    ants, bees = (dict.fromkeys(wrote[name], label) for name, label in (("near__ant", "ant"), ("far", "bee")))  # fmt: skip
    assert splits == {"train": ants | bees}
    (tmp_path / "near" / "ant" / "up").symlink_to(tmp_path / "near")
    assert "ant/up is a link to a folder that it lies in" in refusal(tmp_path / "near")


def test_a_link_to_nothing_is_named_where_it_is_read(tmp_path):
    images(tmp_path, ant=2, bee=2)
    (tmp_path / "ant" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    (tmp_path / "bee" / "self.png").symlink_to(tmp_path / "bee" / "self.png")
    found = open_splits(Data(name="own", path=str(tmp_path))).splits["train"]
    names = [found.name(row) for row in range(6)]
    assert sum("gone.png" in name or "self.png" in name for name in names) == 2
    known = fingerprints.fingerprint(found)
    (tmp_path / "ant" / "gone.png").unlink()
    (tmp_path / "ant" / "gone.png").write_bytes(png(7))
    assert fingerprints.fingerprint(load(tmp_path).train.whole()) != known


@pytest.mark.skipif(os.name != "posix", reason="names are bytes on POSIX alone")
def test_a_name_that_is_no_utf8_is_read_and_told(tmp_path):
    images(tmp_path, ant=2, bee=2)
    (tmp_path / "ant" / os.fsdecode(b"\xff.png")).write_bytes(png(77))
    found = open_splits(Data(name="own", path=str(tmp_path))).splits["train"]
    assert png(77) in content(found)
    assert any("\\xff.png" in found.name(row) for row in range(5))
