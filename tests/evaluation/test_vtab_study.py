"""The study of VTAB-1k's tasks, and its report, against values worked out by hand."""

import io
import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from helpers import made_studies
from helpers.reports import table
from ssl_vit.errors import UserError
from ssl_vit.lab import report
from ssl_vit.lab.study.read import read
from ssl_vit.lab.study.request import Request, requested
from ssl_vit.recipe.parsing import load_yaml
from ssl_vit.recipe.recipe_files import RECIPES, TABLES

ROWS = load_yaml(TABLES / "vtab.yaml")
SIZES = {"tune": {"train": 800, "validation": 200}, "final": {"train": 1000, "test": 4}}


def write_task(folder: Path, name: str) -> None:
    """A task's files as docs/examples/prepare_vtab.py writes them."""
    file = io.BytesIO()
    Image.new("RGB", (2, 2), (7, 7, 7)).save(file, "PNG")
    for part, sizes in SIZES.items():
        (folder / name / part).mkdir(parents=True)
        for split, count in sizes.items():
            labels = [i % ROWS[name]["classes"] for i in range(count)]
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
        for name, settings in found.axes["task"].items()
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
    "a class too many": (
        lambda t: relabelled(t, 6),
        r"labels from 6 to 6 in its train split, with|none of those of the training images \(6\)",
    ),
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
def scored(tmp_path: Path) -> Path:
    """A finished study of four tasks over two seeds, with the images of others left out."""
    content = load_yaml(RECIPES / "study" / "vtab.yaml") | {"seeds": [0, 1], "places": []}
    settings = {"init": "scratch", "model": "vit_p8", "data.size": 32, "optim.steps": 200}
    content["runs"]["final"]["options"] |= settings
    content["axes"]["task"] = {
        name: {"final": {"data.path": f"/images/{name}", "data.classes": ROWS[name]["classes"]}}
        for name in RIGHT
    }
    groups = content["report"].pop("mean_over")
    content["report"]["mean_over"] = "task"
    folder = made_studies.study(
        tmp_path / "vtab",
        content,
        lambda task: {"top1": (RIGHT[task.at["task"]][task.seed] / 400, "test")},
    )
    record = json.loads((folder / "study.json").read_text())
    record["report"]["mean_over"] = groups  # with the names whose images are not there
    (folder / "study.json").write_text(json.dumps(record))
    for path in folder.glob("*/environment.json"):
        environment = json.loads(path.read_text())
        environment["data"] |= dict.fromkeys(("test", "train"), path.parent.name.split("-")[1])
        path.write_text(json.dumps(environment))
    return folder


def change_report(folder: Path, **more: Any) -> None:
    """Add keys to the report in study.json, with the comparisons of its pairs."""
    path = folder / "study.json"
    content = json.loads(path.read_text())
    content["report"] |= more
    content["rule"]["asked"] = [[*pair, []] for pair in more["pairs"]]
    path.write_text(json.dumps(content))


def means(folder: Path) -> dict[str, list[str]]:
    """{group: n, mean, sd} of the report."""
    text = report.write(folder) and (folder / "report.md").read_text()
    _, *rows = table(text.partition("Mean over task:")[2], "task")
    return {row[0]: row[1:4] for row in rows}


def test_the_report_has_the_means_worked_by_hand(scored: Path) -> None:
    """natural: (50 + 25) / 2 = 37.5 and (52.5 + 27.5) / 2 = 40; specialized: 75, 80; structured:
    20, 15; all: (50 + 25 + 75 + 20) / 4 = 42.5 and (52.5 + 27.5 + 80 + 15) / 4 = 43.75."""
    assert means(scored) == {
        "natural, 2 of 7": ["2", "38.75", "1.77"],
        "specialized, 1 of 4": ["2", "77.50", "3.54"],
        "structured, 1 of 8": ["2", "17.50", "3.54"],
        "all, 4 of 19": ["2", "43.12", "0.88"],
    }
    text = (scored / "report.md").read_text()
    left_out = ", ".join(name for name in ROWS if name not in RIGHT)
    assert f"Not in the study: {left_out}." in text


def test_a_partial_test_split_is_seen_in_the_table(scored: Path) -> None:
    for path in scored.glob("final-dtd-*/result.json"):
        found = json.loads(path.read_text())
        found["metrics"]["top1"]["n"] = ROWS["dtd"]["test_images"]
        path.write_text(json.dumps(found))
        (path.parent / "predictions.npz").unlink()
    report.write(scored)
    head, *rows = table((scored / "report.md").read_text(), "task")
    images = {row[0]: row[head.index("images")] for row in rows}
    assert images == {"dtd": "1880", "pets": "400", "camelyon": "400", "dmlab": "400"}


def test_tasks_are_no_pairs(scored: Path) -> None:
    verdict = report.write(scored).verdict
    assert verdict.sentences[0] == "Nothing is compared." and not verdict.found.differences
    change_report(scored, pairs=[["dtd", "pets"]])
    with pytest.raises(UserError, match="dtd minus pets: they were tested on different images"):
        report.write(scored)


def test_a_seed_with_fewer_finished_tasks_is_not_in_the_mean(scored: Path) -> None:
    (scored / "final-pets-1" / "result.json").unlink()
    found = means(scored)
    assert found["natural, 2 of 7"][:2] == ["1", "37.50"]
    assert found["structured, 1 of 8"][:2] == ["2", "17.50"]
    assert found["all, 4 of 19"][:2] == ["1", "42.50"]
    for seed in (0, 1):
        (scored / f"final-dmlab-{seed}" / "result.json").unlink()
    assert means(scored).keys() == {"natural, 2 of 7", "specialized, 1 of 4", "all, 3 of 19"}
