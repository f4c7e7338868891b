"""The study of VTAB-1k's tasks, and its report, against values worked out by hand."""

import io
import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from helpers.arm_studies import finish, task
from helpers.reports import do_not_draw
from ssl_vit.config.recipe_files import RECIPES
from ssl_vit.errors import UserError
from ssl_vit.evaluation import vtab, vtab_folder
from ssl_vit.lab import reports
from ssl_vit.lab.study.read import read
from ssl_vit.lab.study.request import Request, requested

ROWS = vtab.tasks()
TESTS = 4  # images of a test split


def write_task(folder: Path, name: str) -> None:
    """A task's files as docs/examples/prepare_vtab.py writes them."""
    file = io.BytesIO()
    Image.new("RGB", (2, 2), (7, 7, 7)).save(file, "PNG")
    for part, sizes in vtab_folder.SIZES.items():
        (folder / name / part).mkdir(parents=True)
        for split, count in sizes.items():
            labels = [i % ROWS[name]["classes"] for i in range(count or TESTS)]
            rows = [{"image": {"bytes": file.getvalue(), "path": None}, "label": k} for k in labels]
            table = pyarrow.Table.from_pylist(rows)
            pyarrow.parquet.write_table(table, folder / name / part / f"{split}.parquet")


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """A folder of three of the tasks, which may be changed."""
    for name in ("dtd", "camelyon", "dmlab"):
        write_task(tmp_path / "data", name)
    return tmp_path / "data"


def asked(data: Path, *words: str) -> Request:
    return requested(
        ["recipe=study/vtab", "init=scratch", f"data={data}", f"out={data.parent}", *words]
    )


def test_the_tasks_that_are_there_are_run_with_their_own_classes(three: Path) -> None:
    found = asked(three, "seeds=2", "optim.steps=200")
    assert list(found.tasks) == [
        f"final-{name}-{seed}" for name in ("dtd", "camelyon", "dmlab") for seed in (0, 1)
    ]
    options = found.tasks["final-dmlab-1"].options
    assert options["data.path"] == f"{three}/dmlab/final" and options["data.classes"] == "6"
    setting = {"optim.steps": "200", "optim.lr": "0.01", "optim.batch": "512", "data.size": "384"}
    assert setting.items() <= options.items()
    assert f"task svhn is left out: no {three}/svhn/final" in found.cautions
    assert sum("is left out" in line for line in found.cautions) == 16


def test_the_file_has_the_tables_tasks_classes_and_groups() -> None:
    found = read(RECIPES / "study" / "vtab.yaml")
    classes = {
        name: int(settings["final"].options["data.classes"])
        for name, settings in found.axes["task"].settings.items()
    }
    assert classes == {name: row["classes"] for name, row in ROWS.items()}
    groups = found.report.mean_over["task"]
    assert {name: group for group, names in groups.items() for name in names} == {
        name: row["group"] for name, row in ROWS.items()
    }


def rewritten(path: Path, change: Any) -> None:
    table = change(pyarrow.parquet.read_table(path))
    pyarrow.parquet.write_table(table, path)


def relabelled(table: pyarrow.Table, label: object) -> pyarrow.Table:
    column = pyarrow.array([label] * len(table))
    return table.set_column(table.column_names.index("label"), "label", column)


WRONG = {
    "a class too many": (lambda t: relabelled(t, 6), "labels from 6 to 6 in its train split, with"),
    "no labels": (lambda t: t.drop_columns("label"), "no labels in its train split"),
}


@pytest.mark.parametrize(("change", "says"), WRONG.values(), ids=WRONG)
def test_labels_that_are_none_of_its_classes_start_nothing(
    change: Any, says: str, three: Path
) -> None:
    rewritten(three / "dmlab" / "final" / "train.parquet", change)
    with pytest.raises(UserError, match=says) as caught:
        asked(three)
    assert str(caught.value).startswith("run final, task dmlab: ")
    assert "\n" not in str(caught.value)


def test_without_any_task_nothing_starts(three: Path) -> None:
    with pytest.raises(UserError, match=r"^task: none of its names can be run: no .*/caltech101/"):
        asked(three / "nothing")


# right of 400 test images, by seed
RIGHT = {"dtd": (200, 210), "pets": (100, 110), "camelyon": (300, 320), "dmlab": (80, 60)}


@pytest.fixture
def scored(tmp_path: Path, monkeypatch) -> Path:
    """A finished study of four tasks over two seeds."""
    do_not_draw(monkeypatch)
    folder = tmp_path / "vtab"
    tasks = [task("final", name, seed) for name in RIGHT for seed in (0, 1)]
    about = {"name": "vtab", "title": "tasks", "seeds": [0, 1], "benchmark": "vtab"}
    about |= {"arms": dict.fromkeys(RIGHT, "a task"), "report": {"final": "final"}, "tasks": tasks}
    folder.mkdir()
    (folder / "study.json").write_text(json.dumps(about))
    for one in tasks:
        finish(folder, one, RIGHT[one["arm"]][one["seed"]])
        path = folder / one["name"] / "environment.json"
        environment = json.loads(path.read_text())
        environment["data"] |= {"test": one["arm"], "train": one["arm"]}  # fingerprints
        path.write_text(json.dumps(environment))
    return folder


def test_the_report_has_the_means_worked_by_hand(scored: Path) -> None:
    found = reports.write(scored)
    scores = {one.group: one for one in found.numbers.benchmark.scores}
    # natural: (50 + 25) / 2 = 37.5 and (52.5 + 27.5) / 2 = 40; specialized: 75, 80;
    # structured: 20, 15; all: (50 + 25 + 75 + 20) / 4 = 42.5 and (52.5 + 27.5 + 80 + 15) / 4 = 43.75
    means = {"natural": 0.3875, "specialized": 0.775, "structured": 0.175, "mean": 0.43125}
    assert {name: one.value.mean for name, one in scores.items()} == pytest.approx(means)
    assert scores["mean"].value.sd == pytest.approx(0.0125 / 2**0.5)
    assert [(one.of, len(one.tasks)) for one in scores.values()] == [
        (7, 2),
        (4, 1),
        (8, 1),
        (19, 4),
    ]
    assert found.answer.startswith("Not a score of VTAB-1k") and "43.12%" in found.answer
    text = (scored / "report.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| all tasks")]
    assert len(rows) == 1 and "43.12" in rows[0] and "4 of 19" in rows[0]
    assert "Without images, and so left out: caltech101, cifar100, flowers102, sun397" in text
    assert "dtd (400, not 1,880)" in text
    assert "tested on the same images" not in text


def test_tasks_are_no_pairs(scored: Path) -> None:
    with pytest.raises(UserError, match=r"^pairs=dtd:pets: the arms are tasks, each with test"):
        reports.write(scored, ["dtd:pets"])


def test_a_seed_with_fewer_finished_tasks_is_not_in_the_mean(scored: Path) -> None:
    (scored / "final-pets-1" / "result.json").unlink()
    scores = {one.group: one for one in reports.write(scored).numbers.benchmark.scores}
    assert scores["natural"].value.n == 1 and scores["natural"].value.mean == pytest.approx(0.375)
    assert scores["structured"].value.n == 2
    assert scores["mean"].value.mean == pytest.approx(0.425) and scores["mean"].value.n == 1
    for seed in (0, 1):
        (scored / f"final-dmlab-{seed}" / "result.json").unlink()
    found = reports.write(scored).numbers.benchmark
    assert found.unfinished == ["dmlab"]
    assert [one.group for one in found.scores] == ["natural", "specialized", "mean"]


def test_all_tasks_on_their_whole_test_splits_are_the_score() -> None:
    """The mean over tasks, (7 x 80 + 4 x 60 + 8 x 40) / 19, not over groups, which is 60."""
    accuracy = {"natural": 80.0, "specialized": 60.0, "structured": 40.0}
    means = vtab.partial_means({name: accuracy[row["group"]] for name, row in ROWS.items()})
    assert means["mean"].value == pytest.approx(1120 / 19) and len(means["mean"].tasks) == 19
    assert "structured" not in vtab.partial_means({"dtd": 1.0})
