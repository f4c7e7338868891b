"""Shares cut off for testing and held out: the same images for all runs, by class and by group."""

import csv
from pathlib import Path

import datasets
import numpy as np
import pytest

from helpers.images import images, numbered, parquet, png
from helpers.sources import content
from ssl_vit.data import fingerprints, sources
from ssl_vit.data.shares import group_numbers
from ssl_vit.data.sources import Splits
from ssl_vit.errors import UserError
from ssl_vit.recipe.schema import Data


@pytest.fixture
def classes(tmp_path: Path) -> Path:
    """Folders of 30 ants, 20 bees and 10 cats, without splits."""
    images(tmp_path / "own", ant=30, bee=20, cat=10)
    return tmp_path / "own"


def load(place: Path, test: float | str = 0.2, **words) -> Splits:
    return sources.load(Data(name="own", path=str(place), test=test, **words), test=True)


@pytest.mark.parametrize(("share", "counts"), [(0.2, [6, 4, 2]), (0.5, [15, 10, 5])])
def test_a_test_share_has_that_share_of_each_class(
    classes: Path, share: float, counts: list[int]
) -> None:
    found = load(classes, share, validation=0.25)
    test, train, held_out = map(content, (found.test, found.train, found.validation))
    assert np.bincount(list(test.values())).tolist() == counts
    rest = 60 - sum(counts)
    assert (len(train), len(held_out)) == (rest - round(rest / 4), round(rest / 4))
    assert len(test | train | held_out) == 60


def test_all_runs_have_the_same_test_images(classes: Path) -> None:
    whole = content(load(classes).test).keys()
    for words in (
        {"share": 0.1},
        {"validation": 0.5},
        {"labels": False},
        {"share": 0.5, "share_seed": 7},
    ):
        found = load(classes, **words)
        assert content(found.test).keys() == whole
        assert not whole & (content(found.train).keys() | content(found.validation).keys())


def test_pre_training_does_not_see_the_test_share_that_it_does_not_read(classes: Path) -> None:
    test = content(load(classes).test).keys()
    found = sources.load(Data(name="own", path=str(classes), test=0.2))
    assert found.test is None
    assert len({*content(found.train), *content(found.validation)} - test) == 48
    assert any(note.startswith("test: 12 images taken from train") for note in found.notes)


def test_a_larger_test_share_contains_a_smaller_one(classes: Path) -> None:
    assert content(load(classes, 0.1).test).keys() < content(load(classes, 0.3).test).keys()


def test_images_without_labels_have_a_test_share_too(tmp_path: Path) -> None:
    images(tmp_path / "own", _=20)
    found = load(tmp_path / "own")
    assert len(content(found.test)) == 4 and len(content(found.train)) == 15
    assert found.label_source == ""


def test_a_test_share_has_a_fingerprint_of_its_own(classes: Path) -> None:
    prints = [
        fingerprints.fingerprint_splits(load(classes, share))["test"] for share in (0.2, 0.2, 0.3)
    ]
    assert prints[0] == prints[1] != prints[2]
    whole = fingerprints.fingerprint_splits(load(classes))
    assert whole["train"] == whole["validation"] != whole["test"]


def test_a_share_beside_a_test_split_is_a_split_of_its_own(tmp_path: Path) -> None:
    images(tmp_path / "own", train__ant=10, train__bee=10, test__ant=3, test__bee=3)
    data = Data(name="own", path=str(tmp_path / "own"), test=0.2)
    found = sources.every_part(data).splits
    assert {name: len(one) for name, one in found.items()} == {
        "train": 16,
        "test": 6,
        "test_share": 4,
    }


def by_patient(place: Path) -> dict[bytes, str]:
    """60 images of 12 patients of one class each; {image: patient}."""
    wrote = images(place, ant=40, bee=20)
    patients = {}
    with (place / "metadata.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["file_name", "label", "patient"])
        for name in wrote:
            for number, path in enumerate(sorted((place / name).glob("*.png"))):
                patients[path.read_bytes()] = f"{name}{number // 5}"
                rows.writerow([f"{name}/{path.name}", name, f"{name}{number // 5}"])
    return patients


def test_a_patient_is_on_one_side_of_each_share(tmp_path: Path) -> None:
    patient = by_patient(tmp_path / "own")
    found = load(tmp_path / "own", 0.25, group="patient", validation=0.2)
    sides = [
        {patient[image] for image in content(one)}
        for one in (found.test, found.validation, found.train)
    ]
    assert sum(map(len, sides)) == 12 == len(set.union(*sides))
    assert len(sides[0]) == 3  # a quarter of the images: 15, in groups of five
    of_test = [name[:3] for name in sides[0]]
    assert (of_test.count("ant"), of_test.count("bee")) == (2, 1)  # as the classes have them
    assert any("3 of 12 groups of data.group=patient" in note for note in found.notes)


def test_folders_are_groups_where_they_are_no_classes(classes: Path) -> None:
    found = load(classes, group="folder", labels=False)
    folders = [
        {one.whole.whole.name(int(row)).split("/")[-2] for row in one.full_rows()}
        for one in (found.test, found.train)
    ]
    assert not folders[0] & folders[1]
    with pytest.raises(UserError, match=r"data\.group=folder: no training images would be left of"):
        load(classes, group="folder")


def test_a_column_of_a_table_names_groups(tmp_path: Path) -> None:
    cells = {
        "image": [{"bytes": png(n), "path": None} for n in range(30)],
        "place": [n // 5 for n in range(30)],
        "several": [[n] for n in range(30)],
    }
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "place": datasets.Value("int32"),
            "several": datasets.Sequence(datasets.Value("int32")),
        }
    )
    (tmp_path / "own").mkdir()
    datasets.Dataset.from_dict(cells, features=features).to_parquet(
        str(tmp_path / "own" / "train.parquet")
    )
    found = load(tmp_path / "own", group="place")
    places = [{row // 5 for row in one.full_rows()} for one in (found.test, found.train)]
    assert len(places[0]) == 1 and not places[0] & places[1]
    for name, line in (("plaze", "did you mean place?"), ("several", "expected texts or whole")):
        with pytest.raises(UserError, match=rf"data\.group={name}: .*{line}"):
            load(tmp_path / "own", group=name)


def test_groups_that_are_not_there_are_said(classes: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data\.group=patient: .* no such column; choices: folder"):
        load(classes, group="patient")
    numbered(tmp_path / "tars" / "train.tar", range(8))
    with pytest.raises(UserError, match=r"data\.group=patient: .* tars, which have no columns"):
        load(tmp_path / "tars", group="patient")
    images(tmp_path / "flat", _=9)
    with pytest.raises(UserError, match="all 9 images are of one group"):
        load(tmp_path / "flat", group="folder")


def test_images_without_a_value_are_groups_of_one() -> None:
    assert group_numbers(["b", None, "a", "b", ""]).tolist() == [1, 2, 0, 1, 3]


@pytest.mark.parametrize("kind", ["folders", "parquet", "tar"])
def test_labels_that_are_turned_off_are_none_in_every_source(kind: str, tmp_path: Path) -> None:
    place = tmp_path / "own"
    if kind == "folders":
        images(place, ant=12, bee=12)
    elif kind == "tar":
        numbered(place / "train.tar", range(24))
    else:
        parquet(place / "train.parquet", range(24))
    shown = load(place)
    assert shown.label_source and set(content(shown.train).values()) == {0, 1}
    hidden = load(place, labels=False)
    for before, one in zip(shown[:3], hidden[:3], strict=True):
        assert content(one) == dict.fromkeys(content(before), -1)
        assert one.classes == [] and one.label_range == (-1, -1)
    assert not hidden.label_source


def test_labels_of_a_stream_are_turned_off(tmp_path: Path) -> None:
    images(tmp_path / "own", ant=6, bee=6)
    words = {"stream": True, "validation": 0.0, "path": str(tmp_path / "own")}
    shown, hidden = (
        sources.load(Data(name="own", labels=labels, **words)) for labels in (True, False)
    )
    assert set(content(shown.train).values()) == {0, 1}
    assert set(content(hidden.train).values()) == {-1} and hidden.train.classes == []
    assert "labels: names of folders, 2 classes: ant, bee" in shown.notes[-1]


def test_the_fingerprint_of_training_images_is_of_their_groups_too(tmp_path: Path) -> None:
    """An edited column of groups cuts other images off for testing."""
    by_patient(tmp_path / "own")
    table = tmp_path / "own" / "metadata.csv"
    rows = table.read_text().splitlines()

    def prints() -> list[dict[str, str]]:
        found = load(tmp_path / "own", 0.25, group="patient")
        return [
            fingerprints.fingerprint_splits(found, grouped=True),
            fingerprints.fingerprint_splits(found),
        ]

    before = prints()
    assert before[0]["train"] == fingerprints.fingerprint_train(
        load(tmp_path / "own", group="patient").train, grouped=True
    )
    table.write_text("\n".join([*rows[:-1], rows[-1].replace("bee3", "bee2")]) + "\n")
    after = prints()
    assert before[0]["train"] != after[0]["train"]
    assert before[1]["train"] == after[1]["train"]


def by_folder(place: Path, *sizes: int) -> Path:
    images(place, **{f"place{i}": size for i, size in enumerate(sizes)})
    return place


@pytest.mark.parametrize("large", range(5))
def test_a_group_that_is_most_of_the_images_is_passed_over(large: int, tmp_path: Path) -> None:
    sizes = [4] * 5
    sizes[large] = 40  # wherever it stands in the order
    found = load(by_folder(tmp_path / "own", *sizes), 0.15, group="folder", labels=False)
    assert len(found.test) == 8  # of 8.4 wanted


def test_groups_that_are_all_too_large_for_a_share_are_refused(tmp_path: Path) -> None:
    place = by_folder(tmp_path / "own", 10, 12)
    line = r"^data\.test=0\.1: the smallest group of data\.group=folder has 10 images, more than"
    with pytest.raises(UserError, match=line):
        load(place, 0.1, group="folder", labels=False)


def test_the_default_held_out_share_is_the_smallest_group_at_least(tmp_path: Path) -> None:
    place = by_folder(tmp_path / "own", 20, 10, 30)
    found = sources.load(Data(name="own", path=str(place), group="folder", labels=False))
    assert len(found.validation) == 10
