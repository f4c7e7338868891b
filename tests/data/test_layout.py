"""What is a split and what a class: one rule for every format; no image is trained on, or left out,
without a word. Which split and class each image of 58 odd folders has is frozen (tests/freeze)."""

import itertools
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freeze.folders import FOLDERS
from helpers.images import images, parquet, png, tar
from helpers.sources import content, everything, load, refusal
from ssl_vit.data import fingerprints
from ssl_vit.data.open import open_splits
from ssl_vit.recipe.schema import Data


def own(path, **words):
    return open_splits(Data(name="own", path=str(path), **words))


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
    "left_out": ["1 .jxl file", "2 .txt files", "1 file without an ending", *HIDDEN],
    "tar_odd": ["1 .txt file of the tars"],
}


@pytest.mark.parametrize("name", FOLDERS)
def test_what_is_assumed_of_a_folder_and_left_out_of_it_is_said(name, tmp_path):
    """And of the others nothing."""
    write, options = FOLDERS[name]
    write(tmp_path / name)
    words = {key.removeprefix("data."): value for key, value in options.items()}
    found = own(tmp_path / name, **words)
    assert bool(found.guesses) == (name in SAID) and SAID.get(name, "") in "".join(found.guesses)
    assert found.skipped == LEFT_OUT.get(name, [])


@pytest.mark.parametrize("name", ["unlabelled", "Unlabeled", "no_label", "labelled"])
def test_a_class_that_is_called_unlabelled_is_warned_of(name, tmp_path):
    """It would be most of the test images, and most of the accuracy."""
    images(tmp_path, ant=2, bee=2, **{name: 5})
    found = own(tmp_path)
    assert found.splits["train"].classes == sorted(["ant", "bee", name])
    assert [name in text for text in found.guesses] == [True] * (name != "labelled")


def test_files_called_like_splits_beside_others_are_trained_on(tmp_path):
    for name in ("test_0", "train_1", "other"):
        (tmp_path / f"{name}.png").write_bytes(png(len(name)))
    found = own(tmp_path)
    assert len(found.splits["train"]) == 3 and "2 of 3 images" in found.guesses[0]


ROLES = {  # what a folder's name says where it is not a class
    **dict.fromkeys(("train", "Train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "validation"),
    **dict.fromkeys(("test", "TEST2", "testing", "eval", "evaluation"), "test"),
}
NAMES = st.sampled_from([*ROLES, "cat", "dog", "training_shoe", "latest", "x"])


@settings(max_examples=150)
@given(st.sets(st.lists(NAMES, max_size=3).map(tuple), min_size=1, max_size=7))
def test_no_folder_of_images_is_dropped_or_split_without_a_word(paths):
    """Every folder has a split, or a warning tells of it; held out is only what a folder's whole
    name says."""
    with tempfile.TemporaryDirectory() as folder:
        for path in paths:
            Path(folder, *path).mkdir(parents=True, exist_ok=True)
            Path(folder, *path, "0.png").touch()
        found = own(folder)
        split_of = {
            Path(source.file_of(row)).parts[:-1]: split
            for split, source in found.splits.items()
            for row in range(len(source))
        }
    dropped = len(paths - split_of.keys())
    assert not dropped or any(f"{dropped} image" in text for text in found.guesses)
    for path, split in split_of.items():
        roles = {ROLES[part] for part in path if part in ROLES}
        role = next(one for name, one in ROLES.items() if name.lower().startswith(split))
        assert role == "train" or role in roles
        assert role != "train" or roles <= {"train"} or found.guesses or len(roles) > 1


def test_a_files_name_tells_its_split_in_whole_words(tmp_path):
    """Plurals, `images` behind it and capitals within a word are no other words."""
    names = {
        "train": ("traindata", "latest", "trainee", "intestine-images", "LATEST-Device"),
        "test": ("testimages-0", "set-TEST-2"),
        "val": ("ImageNetVal-000",),
        "evaluation": ("Evaluation_1",),
        "eval": ("evals-0",),
        "validation": ("validations",),
    }
    for name in itertools.chain(*names.values()):
        tar(tmp_path / f"{name}.tar", [("0.png", name.encode())])
    found = {
        split: {*source.fetch(np.arange(len(source)))[0]}
        for split, source in own(tmp_path).splits.items()
    }
    assert found == {split: {*map(str.encode, some)} for split, some in names.items()}


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
    found = own(tmp_path).splits["train"]
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
    found = own(tmp_path).splits["train"]
    assert png(77) in content(found)
    assert any("\\xff.png" in found.name(row) for row in range(5))
