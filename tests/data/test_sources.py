"""Sources: whatever lies at a place is found whole, cut without overlap, and named in one line when
it is not there."""

import io
import json
import shutil
import tarfile
from pathlib import Path

import datasets
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from helpers.images import NAMED, images, png
from helpers.sources import content, everything, load, numbers
from helpers.tables import cells, parquet
from ssl_vit.data import (
    class_numbers,
    decoding,
    fingerprints,
    loaders,
    sources,
    synthetic,
)
from ssl_vit.data.batch_layout import BatchLayout
from ssl_vit.data.open import Found
from ssl_vit.errors import UserError
from ssl_vit.recipe.schema import Data


def image_folder(root, splits=("train", "test"), each=3):
    """Write split/class/number.png, the first of each class greyscale; {split: {bytes: class}}."""
    wrote, number = {split: {} for split in splits}, 0
    for split in splits:
        for name in ("ant", "bee"):
            (root / split / name).mkdir(parents=True)
            for i in range(each):
                raw, number = png(number, width=7, grey=i == 0), number + 1
                (root / split / name / f"{i}.png").write_bytes(raw)
                wrote[split][raw] = name
    return wrote


def labelled(path, numbers):
    """A parquet file of these images, odd ones bees."""
    return parquet(path, {"image": cells(numbers), "label": [n % 2 for n in numbers]}, NAMED)


def cut(length, share):
    """The splits when a train split of `length` is all there is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            sources,
            "open_splits",
            lambda data: Found({"train": numbers(length)}, [], []),
        )
        return load("anywhere", validation=share)


def rows_of(splits):
    return [part.fetch(np.arange(len(part)))[1] for part in splits[:2]]


def the_error(path, **words):
    """The text of the UserError that this place and these words give, checked to be one line."""
    with pytest.raises(UserError) as caught:
        splits = load(path, **words)
        for part in splits:
            part.fetch(np.arange(len(part)))
    text = str(caught.value)
    assert text and "\n" not in text
    return text


def test_the_embedded_set_is_drawn():
    splits = sources.load(Data(size=32))
    assert (len(splits.train), len(splits.validation)) == (50_000, 5_000)
    rows = np.array([7, 4999])
    image, label = splits.validation.fetch(rows)
    assert np.array_equal(image, synthetic.render(rows, 32, "validation"))
    assert np.array_equal(label, synthetic.labels(rows))


def test_an_image_folders_splits_and_classes_are_found(tmp_path):
    wrote = image_folder(tmp_path)
    splits = load(tmp_path, validation="test")
    assert splits.train.classes == ["ant", "bee"]
    for part, split in zip(splits[:2], ("train", "test"), strict=True):
        assert {raw: part.classes[label] for raw, label in content(part).items()} == wrote[split]


def test_a_test_split_is_not_held_out_unasked(tmp_path):
    wrote = image_folder(tmp_path)
    assert everything(load(tmp_path)).keys() == wrote["train"].keys()


@pytest.mark.parametrize("name", ["validation", "dev"])
def test_the_split_that_is_trained_on_is_not_held_out(tmp_path, name):
    """Every held-out image was a training image."""
    wrote = image_folder(tmp_path, splits=("train", "val"))
    found = load(tmp_path, train=name)
    assert everything(found).keys() == wrote["val"].keys()
    assert (len(found.train), len(found.validation)) == (5, 1)


def test_of_two_validation_splits_the_other_is_held_out(tmp_path):
    feature = datasets.Features({"image": datasets.Image()})
    parts = {
        name: datasets.Dataset.from_dict({"image": cells(numbers)}, features=feature)
        for name, numbers in (("val", range(6)), ("dev", range(6, 8)))
    }
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "own"))
    for trained, other, sizes in (("val", "dev", (6, 2)), ("dev", "val", (2, 6))):
        found = load(tmp_path / "own", train=trained, validation=other)
        assert (len(found.train), len(found.validation)) == sizes
        assert len(everything(found)) == 8


def test_a_single_parquet_file(tmp_path):
    found = load(labelled(tmp_path / "some.parquet", range(10)))
    assert everything(found) == {png(n): n % 2 for n in range(10)}
    assert found.train.classes == found.validation.classes == ["ant", "bee"]


@pytest.mark.parametrize("held_out", ["validation", "valid", "val", "dev"])
def test_a_parquet_folders_splits_are_found_by_name(tmp_path, held_out):
    labelled(tmp_path / "data" / "train-00000-of-00002.parquet", range(6))
    labelled(tmp_path / "data" / "train-00001-of-00002.parquet", range(6, 9))
    labelled(tmp_path / "data" / f"{held_out}-00000-of-00001.parquet", range(10, 14))
    labelled(tmp_path / "data" / "test-00000-of-00001.parquet", range(20, 23))
    found = load(tmp_path)
    assert content(found.train) == {png(n): n % 2 for n in range(9)}
    assert content(found.validation) == {png(n): n % 2 for n in range(10, 14)}
    assert content(load(tmp_path, validation="test").validation) == {
        png(n): n % 2 for n in range(20, 23)
    }


@pytest.mark.parametrize(
    "file", ["{}/0000.parquet", "default/{}/0000.parquet", "{}_0.parquet", "{}.parquet"]
)
def test_a_held_out_parquet_file_is_never_trained_on(tmp_path, file):
    """The first two are how the Hub itself lays out what it converts."""
    labelled(tmp_path / file.format("train"), range(6))
    labelled(tmp_path / file.format("test"), range(10, 13))
    assert everything(load(tmp_path)).keys() == {png(n) for n in range(6)}


@pytest.mark.parametrize("encoded", ["struct", "bytes"])
@pytest.mark.parametrize("name", ["img", "picture", "photo"])
def test_columns_of_other_names_are_found(tmp_path, name, encoded):
    image = cells(range(8)) if encoded == "struct" else [png(n) for n in range(8)]
    path = parquet(
        tmp_path / "x.parquet",
        {"id": list(range(8)), name: image, "fine_label": [n % 3 for n in range(8)]},
    )
    assert everything(load(path)) == {png(n): n % 3 for n in range(8)}


def test_columns_can_be_said(tmp_path):
    columns = {
        "front": cells(range(8)),
        "back": cells(range(50, 58)),
        "label": [0] * 8,
        "age": list(range(8)),
    }
    features = datasets.Features(
        front=datasets.Image(),
        back=datasets.Image(),
        label=NAMED["label"],
        age=datasets.Value("int64"),
    )
    path = parquet(tmp_path / "x.parquet", columns, features)
    assert everything(load(path)) == {png(n): 0 for n in range(8)}
    assert everything(load(path, image_column="back", label_column="age")) == {
        png(50 + n): n for n in range(8)
    }


@pytest.mark.parametrize("kind", ["int8", "int32", "uint8", "uint16"])
def test_labels_are_whole_numbers_of_any_kind(tmp_path, kind):
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value(kind)})
    path = parquet(
        tmp_path / "x.parquet",
        {"image": cells(range(8)), "label": [n % 3 for n in range(8)]},
        features,
    )
    assert everything(load(path)) == {png(n): n % 3 for n in range(8)}


def test_no_label_is_minus_one(tmp_path):
    path = parquet(tmp_path / "none.parquet", {"image": cells(range(5))})
    assert everything(load(path)) == {png(n): -1 for n in range(5)}
    path = parquet(
        tmp_path / "some.parquet", {"image": cells(range(5)), "label": [0, None, 1, None, 0]}, NAMED
    )
    assert everything(load(path)) == dict(zip(map(png, range(5)), [0, -1, 1, -1, 0], strict=True))


def test_labels_that_are_texts_are_the_sorted_names_of_classes_alike_in_all_splits(tmp_path):
    names = {
        "train": ["dog", "ant", "dog", None],
        "validation": ["cat", "dog"],
        "test": ["ant", "bee"],
    }
    for i, (split, labels) in enumerate(names.items()):
        numbers = range(10 * i, 10 * i + len(labels))
        parquet(tmp_path / f"{split}.parquet", {"image": cells(numbers), "label": labels})
    found = sources.load(Data(name="own", path=str(tmp_path)), test=True)
    known = ["ant", "bee", "cat", "dog"]
    for i, (part, labels) in enumerate(zip(found[:3], names.values(), strict=True)):
        assert part.classes == known and part.labels.lowest_and_highest[1] == max(
            known.index(x) for x in labels if x
        )
        wanted = {png(10 * i + n): known.index(x) if x else -1 for n, x in enumerate(labels)}
        assert content(part) == wanted
        rows = np.arange(len(part))
        assert np.array_equal(part.label_of(rows), part.fetch(rows)[1])
    assert (
        found.train.labels.lowest_and_highest[0] == -1
        and found.test.labels.lowest_and_highest[0] == 0
    )
    assert supervised_classes(found) == 4


def named_files(folder, **names):
    """Parquet files of eight images each; with names, labels are 0, 1, 0, ... of these classes."""
    for first, (file, classes) in enumerate(names.items()):
        numbers = range(10 * first, 10 * first + 8)
        kind = datasets.ClassLabel(names=classes) if classes else datasets.Value("int64")
        features = datasets.Features({"image": datasets.Image(), "label": kind})
        rows = {"image": cells(numbers), "label": [0, 1] * 4}
        parquet(folder / f"{file.replace('_', '-')}.parquet", rows, features)
    return folder


ANT, TNA = ["ant", "bee"], ["bee", "ant"]


@pytest.mark.parametrize("second", [TNA, []])
def test_labels_of_files_that_name_different_classes_are_not_used(tmp_path, second):
    """The same number is another class there: a supervised run would learn a mixture."""
    folder = named_files(tmp_path, train_a=ANT, train_b=second)
    found = load(folder)
    assert set(everything(found).values()) == {-1} and len(everything(found)) == 16
    note = "split train: its files name different classes: labels are not used"
    assert note in found.guesses[0]
    with pytest.raises(UserError, match=r"no labels in its train split \(its files name diff"):
        supervised_classes(found)
    streamed = sources.load(
        Data(name="own", path=str(folder), stream=True, validation=0.0), test=False
    )
    assert note in streamed.guesses[0]
    assert streamed.train.labels.lowest_and_highest == (-1, -1)


@pytest.mark.parametrize("others", [ANT, [*ANT, "cat"], []])
def test_splits_whose_numbers_mean_the_same_keep_their_labels(tmp_path, others):
    folder = named_files(tmp_path, train=[*ANT, "cat"], test=others)
    found = sources.load(Data(name="own", path=str(folder)), test=True)
    assert (
        found.train.labels.lowest_and_highest == found.test.labels.lowest_and_highest == (0, 1)
        and not found.guesses
    )
    assert supervised_classes(found) == 3


def test_a_split_that_is_not_used_takes_no_labels_away(tmp_path):
    folder = named_files(tmp_path, train=ANT, validation=ANT, test=TNA)
    found = sources.load(Data(name="own", path=str(folder)), test=False)
    assert supervised_classes(found) == 2


@pytest.mark.parametrize("saved", [False, True])
def test_splits_that_name_different_classes_are_refused(tmp_path, saved):
    folder = named_files(tmp_path, train=ANT, test=TNA)
    if saved:
        splits = {
            split: datasets.Dataset.from_parquet(str(folder / f"{split}.parquet"))
            for split in ("train", "test")
        }
        folder = tmp_path / "saved"
        datasets.DatasetDict(splits).save_to_disk(folder)
    with pytest.raises(UserError, match="its splits name different classes; train: ant, bee"):
        supervised_classes(sources.load(Data(name="own", path=str(folder)), test=True))


def test_files_with_other_columns_are_named(tmp_path):
    parquet(tmp_path / "train-a.parquet", {"image": cells(range(8))})
    parquet(tmp_path / "train-b.parquet", {"img": cells(range(8))})
    text = "files of its split train have different columns: image and img"
    assert text in the_error(tmp_path)


def test_captions_are_no_classes_unless_they_are_asked_for(tmp_path):
    rows = {
        "image": cells(range(100)),
        "label": [f"an image of {n // 2 if n < 60 else n}" for n in range(100)],
    }
    path = parquet(tmp_path / "x.parquet", rows)
    plain = load(path)
    assert (
        plain.train.labels.lowest_and_highest == (-1, -1)
        and "70 different texts for 100 images" in plain.guesses[0]
    )
    assert len(load(path, label_column="label").train.classes) == 70


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
    assert [len(cut(length, None).validation) for length in (2, 150, 5_000, 2_000_000)] == [
        1,
        1,
        50,
        10_000,
    ]
    assert len(cut(1_000_000, 0.5).validation) == 500_000


def test_a_share_comes_from_everywhere():
    """So that rows sorted by class lose some of every class."""
    _, held_out = rows_of(cut(10_000, 0.02))
    assert np.bincount(held_out // 1000, minlength=10).min() > 5  # 20 expected


def test_images_that_are_not_there_are_said(tmp_path):
    (tmp_path / "empty").mkdir()
    assert str(tmp_path / "empty") in the_error(tmp_path / "empty")
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "readme.txt").write_text("no image")
    assert str(tmp_path / "texts") in the_error(tmp_path / "texts")
    (tmp_path / "torn.parquet").write_bytes(b"PAR1")
    assert "torn.parquet" in the_error(tmp_path / "torn.parquet")
    assert "at least 2" in the_error(labelled(tmp_path / "one.parquet", [1]))


def test_a_file_of_another_kind_is_said_without_asking_the_hub(tmp_path):
    (tmp_path / "alone.png").write_bytes(png(1))
    text = the_error(tmp_path / "alone.png")
    assert "alone.png" in text and "Hub" not in text


def test_splits_that_are_not_there_are_said_with_the_choices(tmp_path):
    image_folder(tmp_path)
    assert the_error(tmp_path, train="trian").startswith(
        "data.train=trian: no such split; did you mean train? choices: "
    )
    text = the_error(tmp_path, validation="holdout")
    assert (
        text.startswith("data.validation=holdout: no such split")
        and "train" in text
        and "test" in text
    )


def test_columns_that_are_not_there_are_said_with_the_choices(tmp_path):
    path = labelled(tmp_path / "x.parquet", range(4))
    assert the_error(path, label_column="labl") == (
        f"data.label_column=labl: data.path={path} has no such column; did you mean label? "
        f"choices: image, label"
    )
    assert the_error(path, image_column="photo").startswith(
        f"data.image_column=photo: data.path={path} has no such column"
    )
    path = parquet(tmp_path / "y.parquet", {"name": ["x"] * 4, "age": [1] * 4})
    assert "data.image_column=" in the_error(path)


@pytest.mark.parametrize("column", ["name", "age"])
def test_a_column_without_images_is_said(tmp_path, column):
    path = parquet(
        tmp_path / "x.parquet", {"name": ["x"] * 4, "age": [1] * 4, "image": cells(range(4))}
    )
    assert column in the_error(path, image_column=column)


def test_a_row_without_a_image_is_named_where_it_is_looked_at(tmp_path):
    path = parquet(
        tmp_path / "x.parquet", {"image": [*cells(range(3)), None], "label": [0] * 4}, NAMED
    )
    own, batch_layout = Data(name="own", size=8), BatchLayout(2, 2, 0, 1)
    looked = [
        loaders.held_out_batches(part, own, batch_layout, 2)
        for part in load(path, validation=0.5)[:2]
    ]
    unreadable = [text for share in looked for batch in share for text in batch.unreadable]
    assert len(unreadable) == 1 and unreadable[0].startswith("row 3: there is no image in this row")


@pytest.mark.parametrize("kind", ["folder", "parquet"])
def test_the_fingerprint_tells_images_and_labels_but_not_where_they_lie(tmp_path, kind):
    def write(root, numbers, first=0):
        if kind == "parquet":
            rows = {
                "image": cells(numbers),
                "label": [first, *(n % 2 for n in range(1, len(numbers)))],
            }
            return fingerprint(parquet(root / "train.parquet", rows, NAMED).parent)
        for i, n in reversed(list(enumerate(numbers))):  # the order of writing must not matter
            path = root / "train" / (["ant", "bee"][first if i == 0 else i % 2]) / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(png(n))
        return fingerprint(root)

    def fingerprint(root):
        return [fingerprints.fingerprint(part.whole()) for part in load(root, validation=0.3)[:2]]

    known = write(tmp_path / "here", [0, 1, 2, 3, 4, 5])
    shutil.copytree(tmp_path / "here", tmp_path / "there" / "copy")
    assert fingerprint(tmp_path / "there" / "copy") == known
    assert write(tmp_path / "again", [0, 1, 2, 3, 4, 5]) == known
    others = [
        write(tmp_path / "image", [0, 1, 2, 3, 4, 99]),
        write(tmp_path / "label", [0, 1, 2, 3, 4, 5], first=1),
        write(tmp_path / "more", [0, 1, 2, 3, 4, 5, 6]),
        write(tmp_path / "order", [2, 1, 0, 3, 4, 5]),
    ]
    assert len({tuple(prints) for prints in [known, *others]}) == 5


def test_the_fingerprint_tells_the_classes(tmp_path):
    for name, names in (("a", ["ant", "bee"]), ("b", ["bee", "ant"])):
        features = datasets.Features(
            {"image": datasets.Image(), "label": datasets.ClassLabel(names=names)}
        )
        parquet(
            tmp_path / f"{name}.parquet",
            {"image": cells(range(4)), "label": [0, 1, 0, 1]},
            features,
        )
    prints = {
        fingerprints.fingerprint(load(tmp_path / f"{name}.parquet").train.whole()) for name in "ab"
    }
    assert len(prints) == 2


def test_cifar10_is_read_as_it_is(real_images):
    found = load(real_images / "cifar10", validation=0.02)
    assert (len(found.train), len(found.validation)) == (49_000, 1_000)
    assert len(found.train.classes) == 10 and "airplane" in found.train.classes
    assert len(load(real_images / "cifar10", validation="test").validation) == 10_000
    raw, label = found.validation.fetch(np.arange(1000))
    assert np.bincount(label, minlength=10).min() > 60 and label.max() == 9
    for one in raw[:200]:
        assert np.array_equal(
            decoding.decode(one).permute(1, 2, 0).numpy(),
            Image.open(io.BytesIO(one)).convert("RGB"),
        )


def test_tiny_imagenet_is_read_as_it_is_and_its_grey_images_get_three_channels(real_images):
    found = load(real_images / "tinyimagenet", validation="validation")
    assert (len(found.train), len(found.validation)) == (34_000, 5_000)
    assert len(found.train.classes) == 200
    raw, label = found.validation.fetch(np.arange(5000))
    assert set(label.tolist()) == set(range(200))
    grey = [one for one in raw if Image.open(io.BytesIO(one)).mode == "L"]
    assert len(grey) > 10
    for one in grey:
        image = decoding.decode(one)
        assert image.shape == (3, 64, 64) and (image == image[:1]).all()


def supervised_classes(splits, **words):
    return class_numbers.num_classes(splits, Data(name="own", **words), "supervised")


def test_classes_are_those_named_or_counted(tmp_path):
    named = load(labelled(tmp_path / "a.parquet", range(8)))
    assert supervised_classes(named) == 2
    plain = load(
        parquet(tmp_path / "b.parquet", {"image": cells(range(8)), "label": [0, 4, 2, 3] * 2})
    )
    assert supervised_classes(plain) == 5
    assert supervised_classes(plain, classes=7) == 7
    assert class_numbers.num_classes(plain, Data(name="own"), "mpp") == 0, "nobody asks"


def test_labels_that_are_missing_or_out_of_range_are_said(tmp_path):
    none = load(parquet(tmp_path / "a.parquet", {"image": cells(range(8))}))
    with pytest.raises(
        UserError, match=r"no labels in its train split \(columns: .*\); data\.label_column="
    ):
        supervised_classes(none)
    plain = load(
        parquet(tmp_path / "b.parquet", {"image": cells(range(8)), "label": [0, 4, 2, 3] * 2})
    )
    with pytest.raises(UserError, match=r"labels from 0 to 4 .* with 3 classes"):
        supervised_classes(plain, classes=3)
    below = load(
        parquet(tmp_path / "c.parquet", {"image": cells(range(8)), "label": [0, -2, 2, 3] * 2})
    )
    with pytest.raises(UserError, match=r"labels from -2 to 3"):
        supervised_classes(below)


def test_a_data_set_that_is_not_in_the_cache_names_the_offline_mode() -> None:
    with pytest.raises(UserError, match=r"^data.hub=someone/images: HF_HUB_OFFLINE is set, and it"):
        sources.load(Data(name="hub", hub="someone/images"))


FAR = 999_999_999  # a head of as many classes is 384 GB at a width of 96


def written(kind, folder, numbers):
    """Six images with these labels, as `kind` of files; the place and the options to read it."""
    if kind in ("csv", "jsonl", "jsonl lists"):
        folder.mkdir()
        rows = [{"file_name": f"{n}.png", "label": label} for n, label in enumerate(numbers)]
        if kind == "jsonl lists":
            rows = [row | {"label": [row["label"]]} for row in rows]
        for n in range(6):
            (folder / f"{n}.png").write_bytes(png(n))
        lines = [json.dumps(row) for row in rows]
        if kind == "csv":
            lines = ["file_name,label", *(f"{row['file_name']},{row['label']}" for row in rows)]
        (folder / f"metadata.{kind.split()[0]}").write_text("\n".join(lines))
        return folder, {"label_column": "label"}
    if kind == "tar":
        folder.mkdir()
        with tarfile.open(folder / "train.tar", "w") as tar:
            for n, label in enumerate(numbers):
                for name, raw in ((f"{n}.png", png(n)), (f"{n}.cls", str(label).encode())):
                    info = tarfile.TarInfo(name)
                    info.size = len(raw)
                    tar.addfile(info, io.BytesIO(raw))
        return folder, {}
    lists = kind == "parquet lists"
    cell = pyarrow.list_(pyarrow.uint64()) if lists else pyarrow.uint64()
    labels = pyarrow.array([[n] if lists else n for n in numbers], cell)
    table = pyarrow.table({"image": cells(range(6)), "label": labels})
    if kind == "saved":
        datasets.Dataset(table).save_to_disk(folder)
    else:
        folder.mkdir()
        pyarrow.parquet.write_table(table, folder / "train.parquet", row_group_size=2)
    named = {"label_column": "label"} if lists else {}
    return folder, named


@pytest.mark.parametrize(
    "kind",
    [
        "csv",
        "jsonl",
        "jsonl lists",
        "tar",
        "parquet",
        "parquet lists",
        "saved",
    ],
)
def test_a_label_far_above_the_number_of_classes_is_one_line(tmp_path, kind):
    place, words = written(kind, tmp_path / "far", [0, 1, 0, 1, 0, FAR])
    far = load(place, validation=0.2, share=0.5, **words)
    says = rf"labels up to {FAR} in its (train|validation) split; .* data\.classes="
    with pytest.raises(UserError, match=says):
        supervised_classes(far)
    place, words = written(kind, tmp_path / "near", [0, 1, 0, 1, 0, 21_840])
    near = load(place, validation=0.2, **words)
    assert supervised_classes(near) == 21_841, "a few images of ImageNet-21k"
    assert supervised_classes(near, classes=2**24) == 2**24, "said is said"
    with pytest.raises(UserError, match=r"18446744073709551615\b"):
        place, words = written(kind, tmp_path / "none", [0, 1, 0, 1, 0, 2**64 - 1])
        load(place, validation=0.2, **words)


def test_a_label_beyond_the_classes_of_a_streams_first_images_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "PREVIEW", 6)
    labels = [0, 1, 0, 1, 0, 1, 7, 0]
    parquet(tmp_path / "own" / "train.parquet", {"image": cells(range(8)), "label": labels})
    place = Data(name="own", path=str(tmp_path / "own"), stream=True, validation=0.0)
    found = sources.load(place, first=6)
    assert class_numbers.num_classes(found, place, "mpp") == 0 and len(found.stream.take(8)) == 8
    assert class_numbers.num_classes(found, place, "supervised") == 2
    with pytest.raises(UserError, match=r"label 7 in row 6 is none of 2 classes; data\.classes="):
        found.stream.take(8)


@pytest.mark.parametrize("key", ["test", "validation"])
@pytest.mark.parametrize("name", ["train", "training"])
def test_a_split_that_is_trained_on_is_neither_for_testing_nor_held_out(
    key: str, name: str, tmp_path: Path
) -> None:
    images(tmp_path / "own", train__ant=3, test__ant=2, val__ant=2)
    data = Data(name="own", path=str(tmp_path / "own"), **{key: name})
    wanted = rf"^data\.{key}={name}: is what data\.train=train names; choices: .*test"
    with pytest.raises(UserError, match=wanted):
        sources.load(data, test=True)


@pytest.mark.parametrize("words", [{"test": "val", "validation": "val"}, {"validation": "test"}])
def test_a_split_that_is_both_for_testing_and_held_out_is_said(
    words: dict[str, str], tmp_path: Path
) -> None:
    images(tmp_path / "own", train__ant=3, test__ant=2, val__ant=2)
    place = str(tmp_path / "own")
    (guess,) = sources.load(Data(name="own", path=place, **words), test=True).guesses
    assert guess.startswith(f"data.test={words.get('test', 'test')}: its images are the held-out")
    assert not sources.load(Data(name="own", path=place), test=True).guesses
    assert not sources.load(Data(name="own", path=place, **words)).guesses
