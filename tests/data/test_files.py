"""Labels beside images, in CSV, JSON and parquet."""

import csv
import json

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from helpers.images import images, png
from helpers.options import altered
from helpers.runs import run
from helpers.sources import content, load, opened, refusal
from ssl_vit.data import run_splits
from ssl_vit.data.open import open_splits
from ssl_vit.data.source import labelled_images
from ssl_vit.recipe.schema import Data

ROWS = [
    {"file_name": f"{n}.png", "caption": f"no {n}", "label": ["dog", "ant", "bee"][n % 3]}
    for n in range(6)
]
WANTED = {png(n): {"ant": 0, "bee": 1, "dog": 2}[row["label"]] for n, row in enumerate(ROWS)}


def write(folder, kind, rows):
    file = folder / f"metadata.{kind}"
    if kind == "csv":
        with file.open("w", newline="") as text:
            writer = csv.DictWriter(text, [*rows[0]])
            writer.writeheader()
            writer.writerows(rows)
    elif kind == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    else:
        file.write_text("\n".join(map(json.dumps, rows)) if kind == "jsonl" else json.dumps(rows))


def labelled(folder, kind, labels, column="label"):
    """Images 0.png, 1.png, ... and a table of their labels."""
    images(folder, _=len(labels))
    write(folder, kind, [{"file_name": f"{n}.png", column: x} for n, x in enumerate(labels)])


def test_joint_training_and_its_probes_learn_from_images_whose_label_is_not_null(
    tmp_path, tiny, capsys
):
    """Of the 36 training images a third has a label."""
    labels = ["ab"[n % 2] if n % 3 == 0 else None for n in range(40)]
    labelled(tmp_path / "own", "jsonl", labels)
    train = load(tmp_path / "own", validation=0.1).train
    number_N = np.array([int(train.file_of(row).removesuffix(".png")) for row in range(36)])
    wanted_N = np.where(number_N % 3 == 0, number_N % 2, -1)
    np.testing.assert_array_equal(train.label_of(np.arange(36)), wanted_N)
    chosen = labelled_images(train)
    np.testing.assert_array_equal(chosen.store_rows(), train.store_rows()[wanted_N >= 0])
    words = ["recipe=joint", f"data.path={tmp_path / 'own'}", "data.validation=0.1"]
    steps = ["optim.steps=2", "optim.warmup=1", "eval.images=4", "eval.every=2", "log.every=1"]
    probe = ["probe.every=2", "probe.images=12", "probe.shots=[2]", "probe.steps=2"]
    found = run(altered(tiny, *words, *steps, *probe, "probe.neighbors=5")).rows()
    assert {"probe/few_shot_2", "features/rank"} <= found[-1].keys()
    assert "failed" not in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_whole_numbers_of_metadata_stay_as_they_are(tmp_path, kind):
    labelled(tmp_path, kind, [*range(0, 18, 3)], "age")
    plain, _ = opened(tmp_path)
    assert plain.labels.lowest_and_highest == (-1, -1) and "age" in plain.labels.columns
    found, _ = opened(tmp_path, label_column="age")
    assert content(found) == {png(n): 3 * n for n in range(6)} and found.classes == []
    assert "did you mean age" in refusal(tmp_path, label_column="agee")


def test_images_and_rows_that_do_not_meet_are_counted(tmp_path):
    """Of an image with several labels the last one counts."""
    images(tmp_path, _=8)
    gone, twice = ROWS[1] | {"file_name": "gone.png"}, ROWS[1] | {"label": "dog"}
    write(tmp_path, "csv", [*ROWS[1:], gone, twice, twice])
    source, said = opened(tmp_path)
    wanted = WANTED | {png(0): -1, png(1): 2, png(6): -1, png(7): -1}
    assert content(source) == wanted
    for text in (
        "several labels for 1 image, such as 1.png",
        "no row for 3 images",
        ": gone.png",
    ):
        assert any(text in line for line in said)


def test_json_of_another_kind_is_passed_over_with_a_word(tmp_path):
    images(tmp_path, ant=2, bee=2)
    (tmp_path / "metadata.json").write_text('{"license": "none"}')
    source, said = opened(tmp_path)
    assert len(source.classes) == 2
    assert any("metadata.json has no column file_name" in line for line in said)
    assert "metadata.json has no column file_name" in refusal(tmp_path, label_column="license")


@pytest.mark.parametrize(
    ("kind", "text"),
    [("json", "[{"), ("jsonl", "{}\n{"), ("json", "[" * 100_000), ("parquet", "x")],
)
def test_damaged_metadata_are_named_in_one_line(tmp_path, kind, text):
    images(tmp_path, _=4)
    (tmp_path / f"metadata.{kind}").write_text(text)
    assert f"metadata.{kind}: cannot be read: " in refusal(tmp_path)


def test_a_usual_name_in_another_case_is_a_column_of_labels(tmp_path):
    """`Label` had been passed over without a word."""
    labelled(tmp_path, "csv", [0, 1] * 3, "Label")
    found, _ = opened(tmp_path)
    assert content(found) == {png(n): n % 2 for n in range(6)}
    assert found.labels.source == "column Label of the metadata"


@pytest.mark.parametrize(
    ("columns", "words", "says"),
    [
        (["what"], {}, "data.label_column=what"),
        (["what", "where"], {}, "what, where "),
        (["what"], {"label_column": "what"}, ""),
        (["what"], {"labels": False}, ""),
        (["what"], {"group": "what"}, ""),
        (["what", "label"], {}, ""),
    ],
)
def test_metadata_whose_labels_have_another_name_are_not_passed_over_in_silence(
    tmp_path, columns, words, says
):
    """The names of folders were the labels in place of a file of labels."""
    images(tmp_path, ant=6, bee=6)
    rows = [{"file_name": f"ant/{n}.png"} | dict.fromkeys(columns, "ab"[n % 2]) for n in range(6)]
    write(tmp_path, "csv", rows)
    guesses = load(tmp_path, **words).guesses
    found = [text for text in guesses if "not used" in text]
    assert len(found) == bool(says) and says in "".join(found)


def test_folders_named_as_months_are_warned_of_in_every_tool(tmp_path):
    """Evaluations and studies of one's images took months for classes without a word: they read
    labels through this, or through what opens all splits."""
    images(tmp_path / "photos", **{"2024-01": 9, "2024-02": 9})
    data = Data(name="own", path=str(tmp_path / "photos"))
    unlabelled = data.model_copy(update={"labels": False})
    for read in (run_splits.load, run_splits.open_for_testing, open_splits):
        assert sum("years or dates" in text for text in read(data).guesses) == 1
        assert not read(unlabelled).guesses
    images(tmp_path / "numbers", **{"2024": 9, "12": 9})
    assert not load(tmp_path / "numbers").guesses


@pytest.mark.parametrize(
    ("kind", "given", "classes", "right"),
    [
        (  # whatever a program writes for a missing number
            "csv",
            ["0", "1", "NA", "null", "nan", "None", "", "+2"],
            [],
            [0, 1, -1, -1, -1, -1, -1, 2],
        ),
        ("csv", ["1_0", "10"], ["10", "1_0"], [1, 0]),
        ("jsonl", ["2", "", None, "10"], [], [2, -1, -1, 10]),
        ("jsonl", ["b", 1, None, "a"], ["1", "a", "b"], [2, 0, -1, 1]),
    ],
)
def test_labels_are_numbers_or_sorted_names(tmp_path, kind, given, classes, right):
    labelled(tmp_path, kind, given)
    source, _ = opened(tmp_path)
    assert source.classes == classes
    assert source.label_of(np.arange(len(given))).tolist() == right


@pytest.mark.parametrize(
    ("value", "says"),
    [(1.5, "1.5"), (True, "True"), (["a"], "lists of class numbers"), ({"a": 1}, "{'a': 1}")],
)
def test_labels_that_are_no_classes_are_refused(tmp_path, value, says):
    labelled(tmp_path, "jsonl", ["a", value])
    line = refusal(tmp_path, label_column="label")
    assert line.startswith("data.label_column=label: ") and says in line
