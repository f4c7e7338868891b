"""What is a split: one rule for every format; no image is trained on, or left out, without a
word."""

import os
import pickle
from collections import Counter

import datasets
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.images import images, numbered, parquet, png
from helpers.sources import content, load
from ssl_vit.data import batching, fingerprints, layout, sources
from ssl_vit.data.layout import Folder
from ssl_vit.data.open import open_splits
from ssl_vit.errors import UserError
from ssl_vit.recipe.schema import Data

SPLITS = [word for words in layout.ROLES.values() for word in words]


def kept(path, **words):
    """{image: class or None} of all splits that are there, whatever they are called, each image
    once."""
    found = open_splits(Data(name="own", path=str(path), **words))
    both = Counter()
    class_of = {}
    for source in found.splits.values():
        for raw, label in content(source).items():
            class_of[raw] = source.classes[label] if label >= 0 else None
            both[raw] += 1
    assert set(both.values()) <= {1}
    return class_of, found


def test_a_class_called_train_among_a_hundred_drops_none(tmp_path):
    """As CIFAR-100 lies in folders."""
    names = ["train", *(f"class{i}" for i in range(99))]
    wrote = images(tmp_path, **dict.fromkeys(names, 3))
    class_of, found = kept(tmp_path)
    assert (
        class_of == {raw: name for name, some in wrote.items() for raw in some}
        and len(class_of) == 300
    )
    assert list(found.splits) == ["train"] and "train could be a split's name" in found.guesses[0]
    splits = load(tmp_path, validation=0.1)
    assert (len(splits.train), len(splits.validation)) == (270, 30)
    assert splits.notes[0] == f"train: 300 images from {tmp_path}, its split train"


def test_a_word_within_a_folders_name_makes_no_split(tmp_path):
    wrote = images(tmp_path, cat=2, dog=3, training_shoe=4, test_tube=1)
    class_of, found = kept(tmp_path)
    assert class_of == {raw: name for name, some in wrote.items() for raw in some}
    assert list(found.splits) == ["train"] and not found.guesses


@pytest.mark.parametrize(
    ("folders", "wanted"),
    [
        (("Train", "VAL"), {"train": "train", "validation": "val"}),
        (
            ("training", "dev", "testing"),
            {"train": "training", "validation": "dev", "test": "testing"},
        ),
        (("train2017", "val2017"), {"train": "train", "validation": "val"}),
        (
            ("trainset", "valid_set", "Eval-Images"),
            {"train": "train", "validation": "valid", "test": "eval"},
        ),
        (("data__train", "data__evaluation"), {"train": "train", "test": "evaluation"}),
    ],
)
def test_folders_of_splits_are_found_whatever_their_case(tmp_path, folders, wanted):
    wrote = images(
        tmp_path, **{f"{folder}__{name}": 3 for folder in folders for name in ("ant", "bee")}
    )
    class_of, found = kept(tmp_path)
    assert class_of == {raw: key.rpartition("__")[2] for key, some in wrote.items() for raw in some}
    assert set(found.splits) == set(wanted.values()) and not found.guesses
    held_out = {"validation": "validation"} if "validation" in wanted else {}
    splits = load(tmp_path, test="test" in wanted, **held_out)
    train = {raw for key, some in wrote.items() if key.startswith(folders[0]) for raw in some}
    tested = {raw for key, some in wrote.items() if key.startswith(folders[-1]) for raw in some}
    assert train >= content(splits.train).keys()
    if "validation" in wanted:
        assert train == content(splits.train).keys()
    if "test" in wanted:
        assert tested == content(splits.test).keys()


def test_splits_inside_of_classes_are_not_mixed(tmp_path):
    wrote = images(tmp_path, ant__train=4, ant__test=2, bee__train=3, bee__test=1)
    class_of, found = kept(tmp_path)
    assert class_of == {raw: key.partition("__")[0] for key, some in wrote.items() for raw in some}
    assert content(found.splits["test"]).keys() == wrote["ant__test"] | wrote["bee__test"]


def test_what_lies_beside_clear_splits_is_left_out_and_counted(tmp_path):
    wrote = images(tmp_path, train__ant=3, train__bee=3, test__ant=1, test__bee=1, extra=5, _=2)
    splits = load(tmp_path)
    assert not content(splits.train).keys() & (wrote["extra"] | wrote["test__ant"])
    assert any(
        "7 images in extra, the top" in text and "left out" in text for text in splits.guesses
    )
    assert "not used: test (2 images)" in splits.notes


def test_images_beside_folders_of_classes_are_kept_without_a_label(tmp_path):
    wrote = images(tmp_path, ant=2, bee=2, _=3)
    class_of, found = kept(tmp_path)
    assert class_of == {
        raw: None if name == "_" else name for name, some in wrote.items() for raw in some
    }
    assert "have no label" in found.guesses[0]


def test_folders_at_different_depths_keep_their_labels(tmp_path):
    wrote = images(tmp_path, ant=2, bee__more=2, bee=1)
    class_of, found = kept(tmp_path)
    assert class_of == {
        raw: name.partition("__")[0] for name, some in wrote.items() for raw in some
    }
    assert "different depths" in found.guesses[0]


def test_files_called_like_splits_in_one_folder(tmp_path):
    for n in range(6):
        (tmp_path / f"{'test' if n < 2 else 'train'}_{n}.png").write_bytes(png(n))
    _, found = kept(tmp_path)
    assert {name: len(source) for name, source in found.splits.items()} == {"test": 2, "train": 4}
    (tmp_path / "other.png").write_bytes(png(9))
    class_of, found = kept(tmp_path)
    assert (
        len(class_of) == 7
        and list(found.splits) == ["train"]
        and "6 of 7 images" in found.guesses[0]
    )


def test_what_was_left_out_of_a_folder_is_counted_and_said(tmp_path):
    images(tmp_path, ant=2, bee=2)
    for name in ("a.txt", "ant/b.TXT", "c.heic", "README", ".DS_Store", "bee/._0.png"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / ".cache").mkdir()
    left = (
        "left out: 1 .heic file, 2 .txt files, 1 file without an ending, 2 hidden files, 1 "
        "hidden folder"
    )
    assert left in load(tmp_path).notes


NAMES = st.sampled_from([*SPLITS, "Train", "TEST2", "cat", "dog", "training_shoe", "latest", "x"])


@settings(max_examples=300)
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


@pytest.mark.parametrize("write", [numbered, parquet])
@pytest.mark.parametrize(
    "name", ["testing-0", "eval", "Evaluation_1", "set-TEST-2", "imagenet-eval-000"]
)
def test_held_out_shards_are_not_trained_on(tmp_path, name, write):
    kind = "tar" if write is numbered else "parquet"
    write(tmp_path / f"train-0.{kind}", range(6))
    write(tmp_path / f"{name}.{kind}", range(10, 13))
    splits = load(tmp_path, test=True)
    assert content(splits.train).keys() | content(splits.validation).keys() == {
        png(n) for n in range(6)
    }
    assert content(splits.test).keys() == {png(n) for n in range(10, 13)}
    assert not splits.guesses
    if kind == "parquet":
        data = Data(name="own", path=str(tmp_path), stream=True, validation=0.0)
        assert content(sources.load(data).train).keys() == {png(n) for n in range(6)}


@pytest.mark.parametrize("write", [numbered, parquet])
def test_shards_that_name_no_split_beside_some_that_do_are_taken_with_a_warning(tmp_path, write):
    kind = "tar" if write is numbered else "parquet"
    write(tmp_path / f"latest.{kind}", range(6))
    write(tmp_path / f"val.{kind}", range(10, 13))
    splits = load(tmp_path, validation="val")
    assert content(splits.train).keys() == {png(n) for n in range(6)}
    (guess,) = splits.guesses
    assert f"latest.{kind} beside named splits: taken as train" in guess


def test_a_held_out_file_given_alone_is_trained_on_with_a_warning(tmp_path):
    splits = load(parquet(tmp_path / "test-0.parquet", range(8)))
    assert len(splits.train) + len(splits.validation) == 8
    assert "test-0.parquet is the only file" in splits.guesses[0]


def test_images_beside_shards_are_left_out_with_a_warning(tmp_path):
    parquet(tmp_path / "train.parquet", range(6))
    images(tmp_path, images=4)
    assert any(
        "4 images beside parquet files are left out" in text for text in load(tmp_path).guesses
    )


def test_a_split_is_asked_for_by_another_name_of_its_role(tmp_path):
    images(tmp_path, train__a=3, train__b=3, dev__a=1, dev__b=1)
    assert len(load(tmp_path, validation="validation").validation) == 2
    with pytest.raises(UserError, match=r"data\.test=test: no such split; choices: dev, train"):
        load(tmp_path, test=True, validation="validation")


def test_without_a_test_split_the_validation_split_is_tested_on(tmp_path):
    """ImageNet's layout: what is tested on chooses nothing."""
    wrote = images(tmp_path, train__a=30, train__b=30, val__a=2, val__b=2)
    tested = wrote["val__a"] | wrote["val__b"]
    for test in (False, True):
        splits = load(tmp_path, test=test)
        seen = content(splits.train).keys() | content(splits.validation).keys()
        assert seen == wrote["train__a"] | wrote["train__b"]
        assert len(splits.validation) == 1
        line = f"test: 4 images from {tmp_path}, its split val; there is no test split, so a share"
        assert any(note.startswith(line) for note in splits.notes)
    assert content(splits.test).keys() == tested
    said = sources.load(Data(name="own", path=str(tmp_path), test="val"), test=True)
    assert content(said.test).keys() == tested and len(said.validation) == 1


def test_linked_class_folders_are_followed_and_loops_refused(tmp_path):
    wrote = images(tmp_path, far=3, near__ant=3)
    (tmp_path / "near" / "bee").symlink_to(tmp_path / "far")
    class_of, _ = kept(tmp_path / "near")
    assert class_of == dict.fromkeys(wrote["near__ant"], "ant") | dict.fromkeys(wrote["far"], "bee")
    (tmp_path / "near" / "ant" / "up").symlink_to(tmp_path / "near")
    with pytest.raises(UserError, match="ant/up is a link to a folder that it lies in"):
        load(tmp_path / "near")


def test_a_link_to_nothing_is_named_where_it_is_read(tmp_path):
    images(tmp_path, ant=2, bee=2)
    (tmp_path / "ant" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    (tmp_path / "bee" / "self.png").symlink_to(tmp_path / "bee" / "self.png")
    found = open_splits(Data(name="own", path=str(tmp_path)))
    names = [found.splits["train"].name(row) for row in range(6)]
    assert sum("gone.png" in name or "self.png" in name for name in names) == 2
    known = fingerprints.fingerprint(found.splits["train"])
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


def test_one_split_saved_by_datasets_keeps_its_name(tmp_path):
    rows = {
        "image": [{"bytes": png(n), "path": None} for n in range(6)],
        "label": [n % 2 for n in range(6)],
    }
    features = datasets.Features(
        image=datasets.Image(), label=datasets.ClassLabel(names=["ant", "bee"])
    )
    made = datasets.Dataset.from_dict(rows, features=features)
    made.save_to_disk(tmp_path / "plain")
    splits = load(tmp_path / "plain", validation=0.5)
    assert content(splits.train) | content(splits.validation) == {png(n): n % 2 for n in range(6)}
    made = datasets.Dataset.from_dict(rows, features=features, split="test")
    made.save_to_disk(tmp_path / "test")
    with pytest.raises(UserError, match=r"data\.train=train: no such split; .*test"):
        load(tmp_path / "test")
    path = tmp_path / "train+test"
    both = f"data.path={path}: its rows are those of train+test: taken as train"
    for was, guesses in (("train[:50%]", []), ("train+test", [both])):
        made = datasets.Dataset.from_dict(rows, features=features, split=datasets.NamedSplit(was))
        made.save_to_disk(tmp_path / was)
        splits = load(tmp_path / was, validation=0.5)
        assert len(splits.train) + len(splits.validation) == 6
        assert [note for note in splits.guesses if "taken as train" in note] == guesses


def test_several_splits_saved_by_datasets_load(tmp_path):
    def part(first):
        numbers = range(first, first + 5)
        rows = {
            "image": [{"bytes": png(n), "path": None} for n in numbers],
            "label": [n % 2 for n in numbers],
        }
        return datasets.Dataset.from_dict(rows, features=features)

    features = datasets.Features(
        image=datasets.Image(), label=datasets.ClassLabel(names=["ant", "bee"])
    )
    datasets.DatasetDict(train=part(0), validation=part(10), test=part(20)).save_to_disk(
        tmp_path / "saved"
    )
    splits = load(tmp_path / "saved")
    assert content(splits.train) == {png(n): n % 2 for n in range(5)}
    assert content(splits.validation) == {png(n): n % 2 for n in range(10, 15)}
    assert splits.train.classes == ["ant", "bee"]
    assert any(text.startswith("not used: test") for text in splits.notes)
    for file in (tmp_path / "saved").rglob("*.arrow"):
        file.write_bytes(b"x")
    with pytest.raises(UserError, match="saved: "):
        load(tmp_path / "saved")


def test_sources_go_to_workers_that_are_spawned(tmp_path):
    """As on macOS, where a data worker gets what it reads as bytes and inherits nothing."""
    images(tmp_path / "files", ant=3, bee=3)
    numbered(tmp_path / "train.tar", range(6))
    parquet(tmp_path / "train.parquet", range(6))
    for name in ("files", "train.tar", "train.parquet"):
        data = Data(name="own", path=str(tmp_path / name), size=6)
        source = sources.load(data, seed=0).train
        sent = pickle.loads(pickle.dumps(batching.ImageDataset(source, data, train=True)))
        assert content(sent.source) == content(source)


@pytest.mark.parametrize(
    ("name", "splits"),
    [
        ("testimages-0.parquet", ["test"]),
        ("traindata.parquet", ["train"]),
        ("ImageNetVal-000.tar", ["val"]),
        ("evals-0.parquet", ["eval"]),
        ("validations.parquet", ["validation"]),
        ("latest.tar", []),
        ("trainee.parquet", []),
        ("intestine-images.parquet", []),
        ("LATEST-Device.tar", []),
    ],
)
def test_a_files_name_tells_its_split_in_whole_words(name: str, splits: list[str]) -> None:
    """Plurals, `images` behind it and capitals within a word are no other words."""
    assert layout.splits_in_file(name) == splits
