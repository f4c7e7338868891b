"""Labels beside images, in CSV and JSON; and sets that must be divided as their authors did."""

import json

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from helpers.images import images, png
from helpers.options import altered
from helpers.runs import run
from helpers.sources import content, load, numbers
from ssl_vit.data import sources
from ssl_vit.data.labels import encode
from ssl_vit.data.open import Found
from ssl_vit.data.source import labelled_images
from ssl_vit.errors import UserError
from ssl_vit.recipe.load import resolve
from ssl_vit.recipe.schema import Data

ROWS = [
    {"file_name": f"{n}.png", "caption": f"no {n}", "label": ["dog", "ant", "bee"][n % 3]}
    for n in range(6)
]
WANTED = {png(n): {"ant": 0, "bee": 1, "dog": 2}[row["label"]] for n, row in enumerate(ROWS)}


def write(folder, kind, rows):
    file = folder / f"metadata.{kind}"
    if kind == "csv":
        lines = [
            ",".join(rows[0]),
            *(",".join(f'"{value}"' for value in row.values()) for row in rows),
        ]
        file.write_text("\n".join(lines))
    elif kind == "jsonl":
        file.write_text("\n".join(map(json.dumps, rows)))
    elif kind == "json":
        file.write_text(json.dumps(rows))
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "json", "parquet"])
def test_an_image_folder_with_metadata_has_their_labels(tmp_path, kind):
    images(tmp_path, _=6)
    write(tmp_path, kind, ROWS)
    found = load(tmp_path, validation=0.0)
    assert content(found.train) == WANTED and found.train.classes == ["ant", "bee", "dog"]
    assert not found.guesses


def test_joint_training_and_its_probes_learn_from_images_whose_label_is_not_null(
    tmp_path, tiny, capsys
):
    """Of the 36 training images a third has a label."""
    images(tmp_path / "own", _=40)
    names = [f"{n}.png" for n in range(40)]
    rows = [
        {"file_name": name, "label": "ab"[n % 2] if n % 3 == 0 else None}
        for n, name in enumerate(names)
    ]
    write(tmp_path / "own", "jsonl", rows)
    train = load(tmp_path / "own", validation=0.1).train
    number_N = np.array([int(train.file_of(row).removesuffix(".png")) for row in range(36)])
    wanted_N = np.where(number_N % 3 == 0, number_N % 2, -1)
    np.testing.assert_array_equal(train.label_of(np.arange(36)), wanted_N)
    assert train.labels.lowest_and_highest == (-1, 1) and train.classes == ["a", "b"]
    labelled = labelled_images(train)
    np.testing.assert_array_equal(labelled.store_rows(), train.store_rows()[wanted_N >= 0])
    options = altered(
        tiny,
        "recipe=joint",
        f"data.path={tmp_path / 'own'}",
        "data.validation=0.1",
        "eval.images=4",
        "probe.every=4",
        "probe.images=12",
        "probe.shots=[2]",
        "probe.steps=5",
        "probe.neighbors=5",
    )
    found = run(options).rows()
    assert {"probe/few_shot_2", "features/rank"} <= found[-1].keys()
    assert "failed" not in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_whole_numbers_of_metadata_stay_as_they_are(tmp_path, kind):
    images(tmp_path, _=6)
    write(tmp_path, kind, [{"file_name": f"{n}.png", "age": 3 * n} for n in range(6)])
    plain = load(tmp_path, validation=0.0).train
    assert (
        plain.labels.lowest_and_highest == (-1, -1)
        and "age" in plain.labels.columns
        and "data.label_column=" in plain.labels.columns
    )
    found = load(tmp_path, validation=0.0, label_column="age").train
    assert content(found) == {png(n): 3 * n for n in range(6)} and found.classes == []
    with pytest.raises(UserError, match=r"data\.label_column=agee: .* did you mean age"):
        load(tmp_path, label_column="agee")


def test_metadata_of_each_split_give_the_same_numbers(tmp_path):
    wrote = images(tmp_path, train=3, val=2)
    for split, first, labels in (("train", 0, ["b", "c", "b"]), ("val", 3, ["c", "a"])):
        rows = [
            {"file_name": f"./{first + i}.png", "label": label} for i, label in enumerate(labels)
        ]
        write(tmp_path / split, "jsonl", rows)
    found = load(tmp_path, validation="val")
    assert found.train.classes == found.validation.classes == ["a", "b", "c"]
    assert content(found.train) == {png(0): 1, png(1): 2, png(2): 1}
    assert content(found.validation) == {png(3): 2, png(4): 0} and len(wrote["val"]) == 2


def test_images_that_the_metadata_do_not_name_are_kept_and_counted(tmp_path):
    images(tmp_path, _=8)
    write(tmp_path, "csv", [*ROWS[1:], {"file_name": "gone.png", "caption": "", "label": "ant"}])
    found = load(tmp_path, validation=0.0)
    assert content(found.train) == {png(n): WANTED.get(png(n), -1) if n else -1 for n in range(8)}
    assert "3 images are not in the metadata" in found.guesses[0]
    assert "1 rows of the metadata name no image" in found.guesses[1]


def test_json_of_another_kind_is_passed_over_with_a_word(tmp_path):
    images(tmp_path, ant=2, bee=2)
    (tmp_path / "metadata.json").write_text('{"license": "none"}')
    found = load(tmp_path, validation=0.0)
    assert len(found.train.classes) == 2
    assert "metadata.json has no column file_name and is not used" in found.guesses[0]


@pytest.mark.parametrize(
    ("kind", "text"),
    [("json", "[{"), ("jsonl", "{}\n{"), ("json", "[" * 100_000), ("parquet", "x")],
)
def test_damaged_metadata_are_named_in_one_line(tmp_path, kind, text):
    images(tmp_path, _=4)
    (tmp_path / f"metadata.{kind}").write_text(text)
    with pytest.raises(
        UserError, match=rf"data\.path=.*metadata\.{kind}: cannot be read: "
    ) as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [1.5, True, ["a"], {"a": 1}])
def test_labels_that_are_no_classes_are_refused(value):
    with pytest.raises(UserError, match="neither a whole number nor the name of a class"):
        encode(["a", value], "data.label_column=x")


def test_a_label_that_is_no_number_of_a_class_is_refused() -> None:
    with pytest.raises(UserError, match=f"x: {10**25} is no number of a class"):
        encode(["1", str(10**25)], "x")


def test_an_image_with_several_labels_is_counted(tmp_path):
    images(tmp_path, _=4)
    rows = [{"file_name": f"{n % 4}.png", "label": n % 3} for n in range(6)]
    write(tmp_path, "csv", [*rows, rows[5]])
    found = load(tmp_path, validation=0.0)
    assert content(found.train) == {png(0): 1, png(1): 2, png(2): 2, png(3): 0}
    assert found.guesses[0].endswith(
        "2 images have several labels in the metadata, as 0.png: the last one counts"
    )


def test_labels_are_numbers_or_sorted_names():
    assert encode(["1_0", "10"], "x")[1] == ["10", "1_0"]
    numbers, names = encode(["2", "", None, "10"], "x")
    assert numbers.tolist() == [2, -1, -1, 10] and names == []
    numbers, names = encode(["b", 1, None, "a"], "x")
    assert names == ["1", "a", "b"] and numbers.tolist() == [2, 0, -1, 1]


def test_flowers102_is_refused_where_it_is_not_divided_as_its_authors_did(monkeypatch, tmp_path):
    """A copy on the Hub trains on 7,169, most of which are the authors' test; the paper's split has
    1,020."""
    splits = {"train": numbers(7169), "test": numbers(1020)}
    monkeypatch.setattr(sources, "open_splits", lambda data: Found(splits, [], []))
    with pytest.raises(
        UserError,
        match=r"data=flowers102: .* has 7,169 training images, its authors' division 1,020",
    ):
        sources.load(Data(name="flowers102", path="anywhere"))
    splits["train"] = numbers(1020)
    assert len(sources.load(Data(name="flowers102", path="anywhere", validation=0.0)).train) == 1020
    with pytest.raises(UserError, match=r"data=flowers102 lies nowhere yet; add data\.path="):
        resolve(["recipe=paper/finetune_flowers102", "init=scratch"])
    recipe = resolve(["recipe=paper/finetune_flowers102", "init=scratch", f"data.path={tmp_path}"])
    assert recipe.data.name == "flowers102" and recipe.data.classes == 102


def test_shares_of_an_image_folder_are_told(tmp_path):
    images(tmp_path, ant=50, bee=50)
    found = load(tmp_path, validation=0.1, share=0.5)
    assert found.notes[0].endswith("its split train, of which data.share=0.5")
    assert found.notes[1] == "validation: 5 images taken from train, which keeps 45"
    rows = np.arange(45)
    assert set(found.train.fetch(rows)[1].tolist()) == {0, 1}


def test_a_usual_name_in_another_case_is_a_column_of_labels(tmp_path):
    """`Label` had been passed over without a word."""
    images(tmp_path, _=6)
    write(tmp_path, "csv", [{"file_name": f"{n}.png", "Label": n % 2} for n in range(6)])
    found = load(tmp_path, validation=0.0).train
    assert content(found) == {png(n): n % 2 for n in range(6)}
    assert found.labels.source == "column Label of the metadata"
