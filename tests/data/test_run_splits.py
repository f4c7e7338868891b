"""Which images are trained on, held out and tested on: no image is on two sides, and a wrong key is
answered in one line."""

import json
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.images import images, png
from helpers.options import altered
from helpers.sources import content, everything, load, numbers, refusal, with_test_images
from helpers.tables import cells, parquet, raw_parquet
from ssl_vit.data import class_numbers, run_splits
from ssl_vit.data.open import OpenedData
from ssl_vit.errors import UserError
from ssl_vit.jobs import cli
from ssl_vit.recipe.schema import Data
from ssl_vit.recipe.split_counts import held_out_count


def cut(length, share):
    """The splits when a train split of `length` is all there is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            run_splits, "open_splits", lambda data: OpenedData({"train": numbers(length)}, [], [])
        )
        return load("anywhere", validation=share)


def rows_of(splits):
    return [part.fetch(np.arange(len(part)))[1] for part in splits[:2]]


def test_the_embedded_set_has_three_channels():
    with pytest.raises(UserError, match="data=shapes "):
        run_splits.load(Data(channels=4))


def test_a_test_split_is_not_held_out_unasked(tmp_path):
    wrote = images(tmp_path, train__ant=3, train__bee=3, test__ant=2, test__bee=2)
    trained = wrote["train__ant"] | wrote["train__bee"]
    assert everything(load(tmp_path)).keys() == trained
    asked = load(tmp_path, validation="test")
    assert content(asked.train).keys() == trained
    bees = {raw for raw, label in content(asked.validation).items() if label == 1}
    assert asked.train.classes == ["ant", "bee"] and bees == wrote["test__bee"]


@pytest.mark.parametrize("name", ["validation", "dev"])
def test_the_split_that_is_trained_on_is_not_held_out(tmp_path, name):
    """Every held-out image was a training image."""
    wrote = images(tmp_path, train=3, val=6)
    found = load(tmp_path, train=name)
    assert everything(found).keys() == wrote["val"]
    assert (len(found.train), len(found.validation)) == (5, 1)


@pytest.mark.parametrize(("trained", "other"), [("val", "dev"), ("dev", "val")])
def test_of_two_validation_splits_the_other_is_held_out(tmp_path, trained, other):
    feature = datasets.Features({"image": datasets.Image()})
    parts = {
        name: datasets.Dataset.from_dict({"image": cells(numbers)}, features=feature)
        for name, numbers in (("val", range(6)), ("dev", range(6, 8)))
    }
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "own"))
    found = load(tmp_path / "own", train=trained, validation=other)
    assert (len(found.train), len(found.validation)) == (len(parts[trained]), len(parts[other]))
    assert len(everything(found)) == 8


@settings(max_examples=60)
@given(st.integers(2, 3000), st.none() | st.floats(0.001, 0.999))
def test_a_share_is_cut_off_train_without_overlap(length, share):
    train, held_out = rows_of(cut(length, share))
    assert np.array_equal(np.sort(np.concatenate([train, held_out])), np.arange(length))
    assert 1 <= len(held_out) < length
    wanted = share * length if share else length / 100
    assert len(held_out) in {1, length - 1} or abs(len(held_out) - wanted) <= (0.5 if share else 1)
    again = rows_of(cut(length, share))
    assert np.array_equal(train, again[0]) and np.array_equal(held_out, again[1])


def test_the_default_share_is_one_in_a_hundred_and_at_most_ten_thousand():
    assert [len(cut(length, None).validation) for length in (2, 150, 5_000)] == [1, 1, 50]
    assert held_out_count(None, 2_000_000) == 10_000
    assert held_out_count(0.5, 1_000_000) == 500_000


def test_shares_are_told(tmp_path):
    images(tmp_path, ant=50, bee=50)
    found = load(tmp_path, validation=0.1, share=0.5)
    assert (len(found.train), len(found.validation)) == (45, 5)
    assert "data.share=0.5" in found.notes[0] and " 45 " in found.notes[1]
    assert set(content(found.train).values()) == {0, 1}


def texts(root):
    root.mkdir()
    (root / "readme.txt").write_text("no image")


def torn(root):
    root.mkdir()
    (root / "torn.parquet").write_bytes(b"PAR1")


def two_splits(root):
    images(root, train__ant=3, train__bee=3, test__ant=2, val__ant=2)


WRONG = {  # (what is there, the keys, what the line says)
    "no files": (Path.mkdir, {}, "own: this folder has no images"),
    "no images": (texts, {}, "1 .txt file"),
    "a torn file": (torn, {}, "torn.parquet"),
    "one image": (lambda root: parquet(root / "one.parquet", {"image": cells([1])}), {}, "at least 2"),
    "no such training split": (two_splits, {"train": "trian"}, "data.train=trian: "),
    "no such held-out split": (two_splits, {"validation": "holdout"}, "data.validation=holdout: "),
    "held out what is trained on": (two_splits, {"validation": "train"}, "data.validation=train: "),
    "a file of no kind": (lambda root: root.write_bytes(png(1)), {}, "own"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "words", "says"), WRONG.values(), ids=WRONG)
def test_what_is_not_there_is_one_line(tmp_path, make, words, says):
    make(tmp_path / "own")
    assert says in refusal(tmp_path / "own", **words)


def test_what_is_trained_on_is_not_tested_on(tmp_path):
    two_splits(tmp_path / "own")
    with pytest.raises(UserError, match=r"^data\.test=training: "):
        with_test_images(tmp_path / "own", "training")


@pytest.mark.parametrize(("split", "validation"), [("val", "val"), ("test", "test")])
def test_a_split_that_is_both_for_testing_and_held_out_is_said(tmp_path, split, validation):
    two_splits(tmp_path / "own")
    (guess,) = with_test_images(tmp_path / "own", split, validation=validation).guesses
    assert guess.startswith(f"data.test={split}: ")
    assert not with_test_images(tmp_path / "own").guesses
    assert not load(tmp_path / "own", validation=validation).guesses


def test_without_a_test_split_the_validation_split_is_tested_on(tmp_path):
    """ImageNet's layout: what is tested on chooses nothing."""
    wrote = images(tmp_path, train__a=30, train__b=30, val__a=2, val__b=2)
    tested = wrote["val__a"] | wrote["val__b"]
    for test in (False, True):
        splits = load(tmp_path, test=test)
        assert everything(splits).keys() == wrote["train__a"] | wrote["train__b"]
        assert len(splits.validation) == 1
        line = f"test: 4 images from {tmp_path}, split val (no test split"
        assert any(note.startswith(line) for note in splits.notes)
    assert content(splits.test).keys() == tested
    said = with_test_images(tmp_path, "val")
    assert content(said.test).keys() == tested and len(said.validation) == 1
    # a larger share, as the few-images warning advises, ended in "no such split" for the test
    more = with_test_images(tmp_path, validation=0.2)
    assert content(more.test).keys() == tested and len(more.validation) == 12


def test_a_split_is_asked_for_by_another_name_of_its_role(tmp_path):
    images(tmp_path, train__a=3, train__b=3, dev__a=1, dev__b=1)
    assert len(load(tmp_path, validation="validation").validation) == 2
    line = refusal(tmp_path, test=True, validation="validation")
    assert line.startswith("data.test=test: ") and "dev, train" in line


def test_a_data_set_that_is_not_in_the_cache_names_the_offline_mode():
    with pytest.raises(UserError, match=r"^data.hub=someone/images: HF_HUB_OFFLINE is set"):
        run_splits.load(Data(name="hub", hub="someone/images"))


def test_flowers102_is_refused_where_it_is_not_divided_as_its_authors_did(monkeypatch):
    """A copy on the Hub trains on 7,169, most of which are the authors' test; the paper's split has
    1,020."""
    splits = {"train": numbers(7169), "test": numbers(1020)}
    monkeypatch.setattr(run_splits, "open_splits", lambda data: OpenedData(splits, [], []))
    data = Data(name="flowers102", path="anywhere", validation=0.0)
    with pytest.raises(UserError, match=r"data=flowers102: .* 7,169 .* 1,020"):
        run_splits.load(data)
    splits["train"] = numbers(1020)
    assert len(run_splits.load(data).train) == 1020


def test_a_run_says_at_the_start_what_it_took_for_what(tmp_path, tiny, capsys):
    place = tmp_path / "own"
    images(place, train=20, ant=20, bee=20)
    (place / "notes.txt").write_text("x")
    short = ["optim.steps=2", "optim.warmup=1", "eval.images=2", "eval.every=2"]
    cli.pretrain(altered(tiny, *short, f"data.path={place}", "data.validation=0.1", "name=own"))
    head = capsys.readouterr().out.partition("model ")[0]
    found = load(place, validation=0.1)
    assert found.guesses and len(found.notes) == 4
    for text in (*found.notes, *found.guesses):
        assert text in head
    known = json.loads((tmp_path / "runs" / "own" / "environment.json").read_text())
    assert known["classes"] == [], "nothing is learned of folders, which need not be classes"


def classes_of(splits, objective="supervised", **words):
    return class_numbers.num_classes(splits, Data(name="own", **words), objective)


def labelled(path, labels):
    return parquet(path, {"image": cells(range(len(labels))), "label": labels})


def test_classes_are_those_named_or_counted(tmp_path):
    images(tmp_path / "own", ant=4, bee=4)
    assert classes_of(load(tmp_path / "own")) == 2
    plain = load(labelled(tmp_path / "b.parquet", [0, 4, 2, 3] * 2))
    assert classes_of(plain) == 5
    assert classes_of(plain, classes=7) == 7
    assert classes_of(plain, "mpp") == 0, "nobody asks"
    with pytest.raises(UserError, match=r"labels from 0 to 4\b.* 3 classes\b"):
        classes_of(plain, classes=3)
    with pytest.raises(UserError, match=r"with 1 class a label"):
        classes_of(plain, classes=1)
    with pytest.raises(UserError, match=r"labels from -2 to 3"):
        classes_of(load(labelled(tmp_path / "c.parquet", [0, -2, 2, 3] * 2)))
    none = load(parquet(tmp_path / "a.parquet", {"image": cells(range(8))}))
    with pytest.raises(UserError, match=r"train split .* no labels.*data\.label_column="):
        classes_of(none)


FAR = 999_999_999  # a head of as many classes is 384 GB at a width of 96


def written(kind, folder, labels):
    """Images with these labels, as `kind` of files; and the options to read them."""
    folder.mkdir()
    if kind == "csv":
        for n in range(len(labels)):
            (folder / f"{n}.png").write_bytes(png(n))
        lines = [f"{n}.png,{label}" for n, label in enumerate(labels)]
        (folder / "metadata.csv").write_text("\n".join(["file_name,label", *lines]))
        return {}
    column = pa.array(labels, pa.uint64())
    if kind == "lists":
        column = pa.array([[label] for label in labels], pa.list_(pa.uint64()))
    raw_parquet(folder / "train.parquet", image=cells(range(len(labels))), label=column)
    return {"label_column": "label"} if kind == "lists" else {}


@pytest.mark.parametrize("kind", ["csv", "parquet", "lists"])
def test_a_label_far_above_the_number_of_classes_is_one_line(tmp_path, kind):
    words = {"validation": 0.2} | written(kind, tmp_path / "far", [0, 1, 0, 1, 0, FAR])
    far = load(tmp_path / "far", share=0.5, **words)
    with pytest.raises(UserError, match=rf"labels up to {FAR}\. .* data\.classes="):
        classes_of(far)
    written(kind, tmp_path / "near", [0, 1, 0, 1, 0, 21_840])
    near = load(tmp_path / "near", **words)
    assert classes_of(near) == 21_841, "a few images of ImageNet-21k"
    assert classes_of(near, classes=2**24) == 2**24, "said is said"
    written(kind, tmp_path / "none", [0, 1, 0, 1, 0, 2**64 - 1])
    assert "18446744073709551615" in refusal(tmp_path / "none", **words)


def test_a_label_beyond_the_classes_of_a_streams_first_images_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(run_splits, "PREVIEW", 6)
    labelled(tmp_path / "own" / "train.parquet", [0, 1, 0, 1, 0, 1, 7, 0])
    place = Data(name="own", path=str(tmp_path / "own"), stream=True, validation=0.0)
    found = run_splits.load(place, first=6)
    assert class_numbers.num_classes(found, place, "mpp") == 0 and len(found.stream.take(8)) == 8
    assert class_numbers.num_classes(found, place, "supervised") == 2
    with pytest.raises(UserError, match=r"row 6 has label 7.* 2 classes.*data\.classes="):
        found.stream.take(8)


def test_a_table_without_rows_is_one_line_where_all_of_it_is_embedded(tmp_path):
    """What tools/embed.py reads."""
    raw_parquet(tmp_path / "train.parquet", image=pa.array([], pa.binary()))
    with pytest.raises(UserError, match="no images"):
        run_splits.open_for_testing(Data(path=str(tmp_path)))
