"""What is a split and what a class: one rule for every format; no image is trained on, or left out,
without a word. Which split and class each image of 58 odd folders has is frozen (tests/freeze)."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freeze.folders import FOLDERS
from helpers.images import images, parquet, png
from helpers.sources import content, everything, load, refusal
from ssl_vit.data import fingerprints, layout
from ssl_vit.data.layout import Folder
from ssl_vit.data.open import open_splits
from ssl_vit.formatting import format_image_count
from ssl_vit.recipe.schema import Data

SPLITS = [word for words in layout.ROLES.values() for word in words]


SAID = {  # of odd folders, by their names in the freeze
    "splits_and_others": "7 images in extra, the top folder",
    "class_called_train": "train could name a split, but cat, dog ",
    "loose_images": "images in the top folder ",
    "depths": "different depths",
    "same_name_below": "one class: ant",
    "metadata_of_some": "no row for 2 images",
    "arrays_beside_images": "not 2 .npy files",  # masks, or boxes
    "parquet_unnamed": "train: latest.parquet",
    "parquet_beside_images": "not 3 images",
    "parquet_different_classes": "labels of split train are not used",
    "tar_odd": "Left out: 1 image, such as ",
}
HIDDEN = ["2 hidden files", "2 hidden folders"]
LEFT_OUT = {
    "left_out": ["1 .heic file", "2 .txt files", "1 file without an ending", *HIDDEN],
    "tar_odd": ["1 .txt file of the tars"],
}


@pytest.mark.parametrize("name", FOLDERS)
def test_what_is_assumed_of_a_folder_and_left_out_of_it_is_said(name, tmp_path):
    """And of the others nothing."""
    write, options = FOLDERS[name]
    write(tmp_path / name)
    words = {key.removeprefix("data."): value for key, value in options.items()}
    found = open_splits(Data(name="own", path=str(tmp_path / name), **words))
    assert bool(found.guesses) == (name in SAID) and SAID.get(name, "") in "".join(found.guesses)
    assert found.skipped == LEFT_OUT.get(name, [])


@pytest.mark.parametrize("name", ["unlabelled", "Unlabeled", "no_label", "labelled"])
def test_a_class_that_is_called_unlabelled_is_warned_of(name, tmp_path):
    """It would be most of the test images, and most of the accuracy."""
    images(tmp_path, ant=2, bee=2, **{name: 5})
    found = open_splits(Data(name="own", path=str(tmp_path)))
    assert found.splits["train"].classes == sorted(["ant", "bee", name])
    assert [name in text for text in found.guesses] == [True] * (name != "labelled")


def test_files_called_like_splits_beside_others_are_trained_on(tmp_path):
    for name in ("test_0", "train_1", "other"):
        (tmp_path / f"{name}.png").write_bytes(png(len(name)))
    found = open_splits(Data(name="own", path=str(tmp_path)))
    assert len(found.splits["train"]) == 3 and "2 of 3 images" in found.guesses[0]


NAMES = st.sampled_from([*SPLITS, "Train", "TEST2", "cat", "dog", "training_shoe", "latest", "x"])


@settings(max_examples=150)
@given(st.sets(st.lists(NAMES, max_size=3).map(tuple), min_size=1, max_size=7))
def test_no_folder_of_images_is_dropped_or_split_without_a_word(paths):
    """Every folder has a split, or a warning tells of it; held out is only what a folder's whole
    name says."""
    folders = [Folder("/".join(path), {"images": ["0.png"]}) for path in sorted(paths)]
    found = layout.divide(folders, "images")
    dropped = [f for f, split in zip(folders, found.split, strict=True) if split is None]
    assert not dropped or any(
        f"{format_image_count(len(dropped))} in " in text for text in found.guesses
    )
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


def test_held_out_shards_of_a_stream_are_not_trained_on(tmp_path):
    parquet(tmp_path / "latest.parquet", range(6))
    parquet(tmp_path / "imagenet-eval-000.parquet", range(10, 13))
    streamed = load(tmp_path, stream=True, validation=0.0)
    assert content(streamed.train).keys() == {png(n) for n in range(6)}


def test_a_held_out_file_given_alone_is_trained_on_with_a_warning(tmp_path):
    splits = load(parquet(tmp_path / "test-0.parquet", range(8)))
    assert len(everything(splits)) == 8
    assert "test-0.parquet is the only file" in splits.guesses[0]


def test_a_link_to_a_folder_around_it_is_refused(tmp_path):
    images(tmp_path, near__ant=3)
    (tmp_path / "near" / "ant" / "up").symlink_to(tmp_path / "near")
    assert "link ant/up " in refusal(tmp_path / "near")


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
    assert fingerprints.fingerprint(load(tmp_path).train.all_rows()) != known


@pytest.mark.skipif(os.name != "posix", reason="names are bytes on POSIX alone")
def test_a_name_that_is_no_utf8_is_read_and_told(tmp_path):
    images(tmp_path, ant=2, bee=2)
    (tmp_path / "ant" / os.fsdecode(b"\xff.png")).write_bytes(png(77))
    found = open_splits(Data(name="own", path=str(tmp_path))).splits["train"]
    assert png(77) in content(found)
    assert any("\\xff.png" in found.name(row) for row in range(5))
