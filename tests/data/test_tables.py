"""Columns of images and labels in parquet files: found by type and name, whole in every split, and
the same number never two classes."""

import datasets
import numpy as np
import pytest

from helpers.channel_images import CHANNELS, values
from helpers.images import NAMED, png
from helpers.sources import content, everything, load, opened, refusal
from helpers.tables import cells, parquet
from ssl_vit.data import class_numbers, fingerprints, run_splits
from ssl_vit.data.batching import ImageDataset, Samples
from ssl_vit.errors import UserError
from ssl_vit.recipe.schema import Data


def supervised_classes(splits):
    return class_numbers.num_classes(splits, Data(name="own"), "supervised")


@pytest.fixture
def two_images(tmp_path):
    """A table with two columns of images and two of whole numbers."""
    columns = {
        "front": cells(range(8)),
        "back": cells(range(50, 58)),
        "label": [0] * 8,
        "age": list(range(8)),
        "name": ["x"] * 8,
    }
    features = datasets.Features(
        front=datasets.Image(),
        back=datasets.Image(),
        label=NAMED["label"],
        age=datasets.Value("int64"),
        name=datasets.Value("string"),
    )
    return parquet(tmp_path / "x.parquet", columns, features)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"label_column": "labl"}, "did you mean label?"),
        ({"label_column": "front"}, "data.label_column=front: "),
        ({"image_column": "photo"}, "data.image_column=photo: "),
        ({"image_column": "name"}, "data.image_column=name: "),
        ({"image_column": "age"}, "data.image_column=age: "),
    ],
)
def test_columns_that_do_not_hold_what_is_asked_for_are_said(two_images, words, says):
    assert says in refusal(two_images, **words)


def without_images(folder):
    parquet(folder / "y.parquet", {"name": ["x"] * 4, "age": [1] * 4})


def different_columns(folder):
    parquet(folder / "train-a.parquet", {"image": cells(range(8))})
    parquet(folder / "train-b.parquet", {"img": cells(range(8))})


def damaged(folder):
    datasets.Dataset.from_dict({"image": cells(range(6))}).save_to_disk(folder)
    for file in folder.rglob("*.arrow"):
        file.write_bytes(b"x")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (without_images, "data.image_column="),
        (different_columns, "(image) and (img)"),
        (damaged, "own: "),
    ],
)
def test_tables_that_cannot_be_used_are_one_line(tmp_path, make, says):
    make(tmp_path / "own")
    assert says in refusal(tmp_path / "own")


def test_a_row_without_an_image_is_named(tmp_path):
    columns = {"image": [*cells(range(3)), None], "label": [0] * 4}
    source, _ = opened(parquet(tmp_path / "x.parquet", columns, NAMED))
    rows = np.arange(4)
    batch = ImageDataset(source, Data(size=8), train=False).__getitems__(Samples(rows, rows))
    assert [line.partition(": ")[0] for line in batch.unreadable] == ["row 3"]


def named_files(folder, **names):
    """Parquet files of eight images each; with names, labels are 0, 1, 0, ... of these classes."""
    for first, (file, classes) in enumerate(names.items()):
        kind = datasets.ClassLabel(names=classes) if classes else datasets.Value("int64")
        features = datasets.Features({"image": datasets.Image(), "label": kind})
        rows = {"image": cells(range(10 * first, 10 * first + 8)), "label": [0, 1] * 4}
        parquet(folder / f"{file.replace('_', '-')}.parquet", rows, features)
    return folder


ANT, TNA = ["ant", "bee"], ["bee", "ant"]


@pytest.mark.parametrize("second", [TNA, []])
def test_labels_of_files_that_name_different_classes_are_not_used(tmp_path, second):
    """The same number is another class there: a supervised run would learn a mixture."""
    folder = named_files(tmp_path, train_a=ANT, train_b=second)
    found = load(folder)
    assert set(everything(found).values()) == {-1} and len(everything(found)) == 16
    with pytest.raises(UserError, match=r"train split .* no labels.*different classes"):
        supervised_classes(found)
    streamed = load(folder, stream=True, validation=0.0)
    assert "labels of split train are not used" in streamed.guesses[0]
    assert streamed.train.labels.lowest_and_highest == (-1, -1)


def test_splits_whose_numbers_mean_the_same_keep_their_labels(tmp_path):
    """And a split that is not used takes no labels away."""
    folder = named_files(tmp_path, train=[*ANT, "cat"], test=[*ANT, "cat", "dog"], validation=TNA)
    found = load(folder, test=True, validation=0.1)
    assert found.train.labels.lowest_and_highest == found.test.labels.lowest_and_highest == (0, 1)
    assert supervised_classes(found) == 3


@pytest.mark.parametrize(
    ("train", "test", "saved", "says"),
    [
        (ANT, TNA, False, "different classes.* train has ant, bee"),
        (ANT, TNA, True, "different classes.* train has ant, bee"),
        # class 0 of the numbers was taken for ant, the first name
        ([], ANT, False, r"(?=.*numbers \(0 to 1\))(?=.*ant, bee)"),
        (ANT, [], False, r"(?=.*numbers \(0 to 1\))(?=.*ant, bee)"),
    ],
)
def test_splits_that_name_different_classes_are_refused(tmp_path, train, test, saved, says):
    folder = named_files(tmp_path, train=train, test=test)
    if saved:
        splits = {
            split: datasets.Dataset.from_parquet(str(folder / f"{split}.parquet"))
            for split in ("train", "test")
        }
        folder = tmp_path / "saved"
        datasets.DatasetDict(splits).save_to_disk(folder)
    with pytest.raises(UserError, match=says):
        supervised_classes(load(folder, test=True))


def test_an_empty_split_of_a_saved_dictionary_is_left_out(tmp_path):
    """`datasets` itself fails on it with "list index out of range"."""
    filled = datasets.Dataset.from_dict({"image": cells(range(6))})
    datasets.DatasetDict(train=filled, test=filled.select([])).save_to_disk(tmp_path)
    opened = load(tmp_path)
    assert len(opened.train) + len(opened.validation) == 6


def test_names_that_are_the_numbers_themselves_agree_with_numbers(tmp_path):
    folder = named_files(tmp_path, train=["0", "1"], test=[])
    assert supervised_classes(load(folder, test=True)) == 2


def test_captions_are_no_classes_unless_they_are_asked_for(tmp_path):
    texts = [f"an image of {n // 2 if n < 60 else n}" for n in range(100)]
    path = parquet(tmp_path / "x.parquet", {"image": cells(range(100)), "label": texts})
    plain = load(path)
    assert plain.train.labels.lowest_and_highest == (-1, -1)
    assert "100 images have 70 different texts" in plain.guesses[0]
    assert len(load(path, label_column="label").train.classes) == 70


def test_rows_that_were_selected_before_they_were_saved_are_those(tmp_path):
    columns = {"image": cells(range(6)), "label": [0, 1] * 3}
    made = datasets.Dataset.from_dict(columns, features=NAMED)
    made.select([4, 1, 3]).save_to_disk(tmp_path / "saved")
    assert content(opened(tmp_path / "saved")[0]) == {png(4): 0, png(1): 1, png(3): 1}


def test_a_split_of_the_hub_without_rows_is_neither_held_out_nor_unsaid(monkeypatch):
    made = datasets.Dataset.from_dict({"image": cells(range(6))})
    splits = {"train": made, "validation": made.select([]), "test": made}
    monkeypatch.setattr(datasets, "load_dataset", lambda place, streaming: splits)
    found = run_splits.load(Data(name="own", hub="me/own"))
    assert (len(found.train), len(found.validation)) == (5, 1)
    assert "split validation has no images" in found.guesses[0]


def bands(path, arrays, shape):
    """A table of arrays; labels are 0, 1, 0, ..."""
    features = datasets.Features(
        bands=datasets.Array3D(shape=shape, dtype="uint16"), label=datasets.Value("int64")
    )
    given = [None if one is None else one.tolist() for one in arrays]
    return parquet(path, {"bands": given, "label": [n % 2 for n in range(len(arrays))]}, features)


@pytest.mark.parametrize("shape", [(6, 5, 4), (None, 5, 4)])
def test_arrays_of_a_table_are_read(tmp_path, shape):
    arrays = [values(n)[:6, :5] for n in range(20)]
    bands(tmp_path / "train.parquet", arrays, shape)
    source, _ = opened(tmp_path, channels=CHANNELS)
    order = np.array([3, 0, 19])
    raw, label = source.fetch(order)
    assert label.tolist() == [1, 0, 1]
    for one, row in zip(raw, order, strict=True):
        assert np.array_equal(one, arrays[row])
    data = Data(size=8, channels=CHANNELS, range=[0, 65535])
    batch = ImageDataset(source, data, train=True).__getitems__(Samples(order, order))
    assert batch.image.shape == (3, CHANNELS, 8, 8) and not batch.unreadable
    with pytest.raises(UserError, match=r"data\.channels="):  # as RGB
        ImageDataset(source, Data(size=8), train=True).__getitems__(Samples(order, order))
    assert "column bands holds arrays" in refusal(
        tmp_path, channels=CHANNELS, stream=True, validation=0.0
    )


def test_arrays_that_are_missing_or_cut_are_unreadable(tmp_path):
    prints = set()
    for first in (0, 1):
        place = tmp_path / str(first)
        bands(place / "train.parquet", [values(first)[:6, :5], None], (6, 5, 4))
        source, _ = opened(place, channels=CHANNELS)
        raw, _ = source.fetch(np.arange(2))
        assert np.array_equal(raw[0], values(first)[:6, :5]) and raw[1] == b""
        prints.add(fingerprints.fingerprint(source.all_rows()))
    assert len(prints) == 2


@pytest.mark.parametrize("rows", [5, 0])
def test_an_array_with_other_rows_than_its_column_says_is_unreadable(tmp_path, rows):
    for height in (6, None):
        path = tmp_path / str(height) / "train.parquet"
        bands(path, [values(1)[:6, :5], values(0)[:rows, :5]], (height, 5, 4))
        source, _ = opened(path.parent, channels=CHANNELS)
        (found,) = source.fetch(np.array([1]))[0]
        if height == 6:
            assert found == b""
        else:
            assert np.array_equal(found, values(0)[:rows, :5])
