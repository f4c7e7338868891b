"""Shares cut off for testing and held out: the same images for all runs, by name, by class and by
group."""

from pathlib import Path

import datasets
import numpy as np
import pytest

from helpers.images import images, numbered, parquet, png
from helpers.sources import content, with_test_images
from helpers.tables import cells
from helpers.tables import parquet as write_table
from ssl_vit.data import fingerprints, run_splits
from ssl_vit.data.run_splits import Splits
from ssl_vit.data.source import Groups
from ssl_vit.errors import UserError
from ssl_vit.recipe.schema import Data

NAMES = datasets.ClassLabel(names=["ant", "bee", "cat"])


def table(place: Path, /, **columns: list) -> Path:
    """Parquet of an image a row; labels are whole numbers of NAMES."""
    text, several = datasets.Value("string"), datasets.List(datasets.Value("int32"))
    kinds = {
        name: NAMES if name == "label" else several if isinstance(values[0], list) else text
        for name, values in columns.items()
    }
    rows = {"image": cells(range(len(next(iter(columns.values()))))), **columns}
    features = datasets.Features({"image": datasets.Image(), **kinds})
    write_table(place / "train.parquet", rows, features)
    return place


@pytest.fixture
def classes(tmp_path: Path) -> Path:
    """30 ants, 20 bees and 10 cats in parquet, without splits."""
    return table(tmp_path / "own", label=[0] * 30 + [1] * 20 + [2] * 10)


def load(place: Path, test: float = 0.2, **words) -> Splits:
    return with_test_images(place, test, **words)


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


def test_a_folder_may_grow_without_moving_its_test_images(tmp_path: Path) -> None:
    """One file more, before the others, made 40 of 48 test images trained on."""
    images(tmp_path / "own", a=60, b=60, c=60)
    before = load(tmp_path / "own")
    was = [content(part).keys() for part in (before.test, before.train, before.validation)]
    assert 20 < len(was[0]) < 52  # a fifth of 180, four standard deviations
    (tmp_path / "own" / "a" / "000_new.png").write_bytes(png(999))
    (tmp_path / "own" / "d").mkdir()
    for number in range(20):
        (tmp_path / "own" / "d" / f"{number}.png").write_bytes(png(2000 + number))
    after = load(tmp_path / "own")
    seen = content(after.train).keys() | content(after.validation).keys()
    assert was[0] <= content(after.test).keys() and not was[0] & seen
    assert was[1] | was[2] <= seen
    assert any("taken from train (by name)" in note for note in after.notes)


def test_classes_left_without_test_images_are_named(tmp_path: Path) -> None:
    images(tmp_path / "own", ant=60, bee=1)
    only = load(tmp_path / "own", 0.3)
    labels = set(content(only.test).values())  # the bee is on one of the sides
    side = "test images" if labels == {0} else "training images"
    assert [text for text in only.guesses if f"the {side} lack" in text and "bee" in text]


@pytest.mark.parametrize("share", [1e-9, 1 - 1e-9])
def test_a_share_that_takes_all_images_or_none_is_refused(tmp_path: Path, share: float) -> None:
    images(tmp_path / "own", _=9)
    side = "training" if share > 0.5 else "testing"
    with pytest.raises(UserError, match=rf"^data\.test=.* 9 images of .* {side}"):
        load(tmp_path / "own", share)


@pytest.mark.parametrize("kind", ["folder", "parquet"])
def test_all_runs_have_the_same_test_images(tmp_path: Path, kind: str) -> None:
    """Also those that do not test: they do not see them."""
    place = tmp_path / "own"
    if kind == "folder":
        images(place, ant=30, bee=20, cat=10)
    else:
        table(place, label=[0] * 30 + [1] * 20 + [2] * 10)
    whole = content(load(place).test).keys()
    for words in (
        {"share": 0.1},
        {"validation": 0.5},
        {"labels": False},
        {"share": 0.5, "share_seed": 7},
    ):
        found = load(place, **words)
        assert content(found.test).keys() == whole
        assert not whole & (content(found.train).keys() | content(found.validation).keys())
    assert content(load(place, 0.1).test).keys() < content(load(place, 0.3).test).keys()
    blind = run_splits.load(Data(name="own", path=str(place), test=0.2))
    assert blind.test is None
    assert not whole & {*content(blind.train), *content(blind.validation)}
    assert any(note.startswith(f"test: {len(whole)} images taken") for note in blind.notes)


def test_fingerprints_tell_test_shares_and_groups(classes: Path, tmp_path: Path) -> None:
    """An edited column of groups cuts other images off for testing."""
    prints = [fingerprints.fingerprint_splits(load(classes, share)) for share in (0.2, 0.2, 0.3)]
    assert prints[0]["test"] == prints[1]["test"] != prints[2]["test"]
    assert prints[0]["train"] == prints[0]["validation"] != prints[0]["test"]
    edited = [*PATIENTS[:-1], "bee2"]
    places = by_patient(tmp_path / "before"), by_patient(tmp_path / "after", edited)
    found = [load(place, 0.25, group="patient") for place in places]
    for grouped in (True, False):
        one, other = (fingerprints.fingerprint_splits(x, grouped=grouped)["train"] for x in found)
        assert (one != other) == grouped


def test_a_share_beside_a_test_split_is_a_split_of_its_own(tmp_path: Path) -> None:
    images(tmp_path / "own", train__ant=10, train__bee=10, test__ant=3, test__bee=3)
    data = Data(name="own", path=str(tmp_path / "own"), test=0.2)
    found = run_splits.open_for_testing(data).splits
    assert found.keys() == {"train", "test", "test_share"} and len(found["test"]) == 6
    assert len(found["train"]) + len(found["test_share"]) == 20


PATIENTS = [f"{name}{n // 5}" for name, count in (("ant", 40), ("bee", 20)) for n in range(count)]


def by_patient(place: Path, patients: list[str] = PATIENTS) -> Path:
    """60 images of 12 patients of one class each."""
    return table(place, label=[0] * 40 + [1] * 20, patient=patients)


PATIENT = {png(n): name for n, name in enumerate(PATIENTS)}


def test_a_patient_is_on_one_side_of_each_share(tmp_path: Path) -> None:
    found = load(by_patient(tmp_path / "own"), 0.25, group="patient", validation=0.2)
    sides = [
        {PATIENT[image] for image in content(one)}
        for one in (found.test, found.validation, found.train)
    ]
    assert sum(map(len, sides)) == 12 == len(set.union(*sides))
    assert len(sides[0]) == 3  # a quarter of the images: 15, in groups of five
    of_test = [name[:3] for name in sides[0]]
    assert (of_test.count("ant"), of_test.count("bee")) == (2, 1)  # as the classes have them
    assert any("3 of 12 groups of data.group=patient" in note for note in found.notes)


def test_an_image_without_a_label_is_held_out_with_its_group_alone(tmp_path: Path) -> None:
    """It measured nothing, and pre-training lacked it. Two images of each patient have a label."""
    labels = [n // 40 if n % 5 < 2 else None for n in range(60)]
    place = str(table(tmp_path / "own", label=labels, patient=PATIENTS))
    for group, lost in ((None, 0), ("patient", 6)):
        words = {"validation": 1 / 6, "validation_from": "labelled", "group": group}
        found = run_splits.load(Data(name="own", path=place, **words))
        train, held_out = content(found.train), content(found.validation)
        assert (len(held_out), -1 in held_out.values()) == (4, False)
        assert not held_out.keys() & train.keys() and len(train) == 56 - lost
        patients = [{PATIENT[image] for image in one} for one in (train, held_out)]
        assert bool(patients[0] & patients[1]) == (group is None)
        hidden = run_splits.load(Data(name="own", path=place, labels=False, **words))
        assert content(hidden.train).keys() == train.keys()
        assert "60 images (24 labelled)" in found.notes[0] and "labelled" not in hidden.notes[0]


def test_folders_are_groups_by_their_names_where_they_are_no_classes(tmp_path: Path) -> None:
    place = tmp_path / "own"
    images(place, **{f"place{i}": 3 for i in range(30)})
    found = load(place, group="folder", labels=False)
    folders = [
        {one.name(row).split("/")[-2] for row in range(len(one))}
        for one in (found.test, found.train, found.validation)
    ]
    assert sum(map(len, folders)) == 30 == len(set.union(*folders))
    assert 1 <= len(folders[0]) <= 14  # a fifth of 30, four standard deviations
    images(place, place30=1)
    after = load(place, group="folder", labels=False)
    assert content(found.test).keys() <= content(after.test).keys()
    assert not content(found.test).keys() & content(after.train).keys()
    with pytest.raises(
        UserError, match=r"data\.group=folder: the classes .* would have no training images"
    ):
        load(place, group="folder")


def test_wrong_groups_are_one_line(tmp_path: Path) -> None:
    table(tmp_path / "own", place=["a", "b"], several=[[1], [2]])
    table(tmp_path / "class", label=[0] * 4 + [1] * 16, place=["a"] * 4 + ["b"] * 16)
    images(tmp_path / "folder", ant=3, bee=3)
    numbered(tmp_path / "tars" / "train.tar", range(8))
    by_place(tmp_path / "one", 30)
    for folder, name, says in (
        ("own", "plaze", "did you mean place?"),
        ("own", "several", "texts or whole numbers"),
        ("folder", "patient", "no such column, choices: folder"),
        ("tars", "patient", "tars, which have no columns"),
        ("one", "place", "all 30 images "),
        # it would be tested without having been trained on
        ("class", "place", "the classes ant would have no training images"),
    ):
        with pytest.raises(UserError, match=rf"data\.group={name}: .*{says}".replace("?", r"\?")):
            load(tmp_path / folder, group=name)


def test_images_without_a_value_are_groups_of_one() -> None:
    found = Groups.by_value(["b", None, "a", "b", "", float("nan")])
    assert found.number_N.tolist() == [1, 2, 0, 1, 3, 4]


def by_place(place: Path, *sizes: int) -> Path:
    return table(place, place=[str(i) for i, size in enumerate(sizes) for _ in range(size)])


@pytest.mark.parametrize("large", range(5))
def test_a_group_that_is_most_of_the_images_is_passed_over(large: int, tmp_path: Path) -> None:
    sizes = [4] * 5
    sizes[large] = 40  # wherever it stands in the order
    found = load(by_place(tmp_path / "own", *sizes), 0.15, group="place")
    assert len(found.test) == 8  # of 8.4 wanted


def test_of_groups_that_are_too_large_only_the_default_share_takes_one(tmp_path: Path) -> None:
    """The smallest; a share that is asked for is refused."""
    place = by_place(tmp_path / "own", 20, 10, 30)
    line = r"^data\.test=0\.05: the smallest group of data\.group=place has 10 images, more than"
    with pytest.raises(UserError, match=line + r".*Use data\.test=0\.167,"):
        load(place, 0.05, group="place")
    assert load(place, 0.167, group="place").test
    found = run_splits.load(Data(name="own", path=str(place), group="place"))
    assert len(found.validation) == 10


@pytest.mark.parametrize("kind", ["folders", "parquet", "stream", "tar"])
def test_labels_that_are_turned_off_are_none_in_every_source(kind: str, tmp_path: Path) -> None:
    place = tmp_path / "own"
    words = {"stream": True, "validation": 0.0} if kind == "stream" else {}
    if kind == "folders":
        images(place, ant=12, bee=12)
    elif kind == "tar":
        numbered(place / "train.tar", range(24))
    else:
        parquet(place / "train.parquet", range(24))
    shown, hidden = (load(place, labels=labels, **words) for labels in (True, False))
    assert set(content(shown.train).values()) == {0, 1}
    assert any("ant, bee" in note for note in shown.notes) == (kind != "tar")
    assert bool(shown.label_source) == (kind != "stream") and not hidden.label_source
    for before, one in zip(shown[:3], hidden[:3], strict=True):
        if before is not None:
            assert content(one) == dict.fromkeys(content(before), -1)
            assert one.classes == [] and one.labels.lowest_and_highest == (-1, -1)
