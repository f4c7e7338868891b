"""The study of VTAB-1k's tasks, and its report, against values worked out by hand."""

import io
import json
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from helpers.arm_studies import finish, task
from helpers.reports import do_not_draw
from ssl_vit.errors import UserError
from ssl_vit.evaluation import vtab, vtab_folder
from ssl_vit.lab import plan_tool, reports, study_tool
from ssl_vit.lab.studies import read_study
from ssl_vit.lab.studies.request import parse_request

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


def request(data: Path, *words: str, study: str = "study/vtab"):
    found = parse_request(
        [f"recipe={study}", "init=scratch", f"data={data}", f"out={data.parent}", *words]
    )
    return study_tool._with_images(found)


def test_the_tasks_that_are_there_are_the_arms_with_their_own_classes(three, capsys) -> None:
    found = request(three, "seeds=2", "optim.steps=9")
    printed = capsys.readouterr().out.splitlines()
    assert list(found.plan) == [
        f"final-{name}-{seed}" for name in ("dtd", "camelyon", "dmlab") for seed in (0, 1)
    ]
    options = found.plan["final-dmlab-1"].options
    assert options["data.path"] == f"{three}/dmlab/final" and options["data.classes"] == "6"
    setting = {"optim.steps": "9", "optim.lr": "0.01", "optim.batch": "512", "data.size": "384"}
    assert setting.items() <= options.items()
    missing = [line.split()[1].rstrip(":") for line in printed if line.startswith("missing ")]
    assert missing == [name for name in ROWS if name not in found.study.arms]
    assert f"missing     svhn: no {three}/svhn/final" in printed
    assert any("dtd: 4 test images, the benchmark's has 1,880" in line for line in printed)


SWEEP = """title: each task with a learning rate and a length of its own
extends: study/vtab
parts:
  tune:
    tool: finetune
    seeds: [0]
    grid: {optim.lr: [0.1, 0.01], optim.steps: [2500, 10000]}
    options: {data.path: "{data}/{task}/tune", data.validation: validation, eval.test: false}
  final:
    best: {of: tune, by: accuracy}
"""


def test_a_sweep_is_judged_on_200_and_the_final_run_has_all_1000(
    three: Path, tmp_path: Path
) -> None:
    (three / "dtd" / "tune" / "train.parquet").unlink()
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    found = request(three, "seeds=1", study=f"{tmp_path}/sweep.yaml")
    assert list(found.study.arms) == ["camelyon", "dmlab"]
    tune = [one for one in found.plan.values() if (one.part, one.arm) == ("tune", "dmlab")]
    values = [tuple(one.values.values()) for one in tune]
    assert values == [(0.1, 2500), (0.1, 10000), (0.01, 2500), (0.01, 10000)]
    for one in tune:
        assert one.options["data.path"] == f"{three}/dmlab/tune"
        assert one.options["data.validation"] == "validation"
        assert one.options["eval.test"] == "false"
    final = found.plan["final-dmlab-0"]
    assert final.best == "tune" and set(final.needs) == {one.name for one in tune}
    assert final.options["data.path"] == f"{three}/dmlab/final"


def rewritten(path: Path, change) -> None:
    table = change(pyarrow.parquet.read_table(path))
    pyarrow.parquet.write_table(table, path)


def relabelled(table: pyarrow.Table, label: object) -> pyarrow.Table:
    column = pyarrow.array([label] * len(table))
    return table.set_column(table.column_names.index("label"), "label", column)


WRONG = {
    "too few": (lambda t: t.slice(0, 999), "train.parquet: expected 1,000 images, it has 999"),
    "a class too many": (lambda t: relabelled(t, 6), "expected labels from 0 to 5, .*it has 6"),
    "below 0": (lambda t: relabelled(t, -1), "expected labels from 0 to 5, .*it has -1"),
    "words": (lambda t: relabelled(t, "six"), "expected whole numbers as labels"),
    "no labels": (lambda t: t.drop_columns("label"), "expected a column label"),
    "none": (lambda t: relabelled(t, None).cast(t.schema), "1000 have none"),
}


@pytest.mark.parametrize(("change", "says"), WRONG.values(), ids=WRONG)
def test_images_that_cannot_be_the_benchmarks_start_nothing(change, says, three: Path) -> None:
    rewritten(three / "dmlab" / "final" / "train.parquet", change)
    with pytest.raises(UserError, match=says) as caught:
        request(three)
    assert "dmlab" in str(caught.value) and "\n" not in str(caught.value)


def test_other_folders_that_cannot_be_the_benchmarks(three: Path) -> None:
    final = three / "dmlab" / "final"
    (final / "train-more.parquet").symlink_to(final / "test.parquet")
    with pytest.raises(UserError, match=r"expected no other files than .*train-more\.parquet"):
        request(three)
    (final / "train-more.parquet").unlink()
    (final / "test.parquet").unlink()
    (final / "test.parquet").write_text("no table")
    with pytest.raises(UserError, match=r"test\.parquet: cannot be read as parquet"):
        request(three)
    with pytest.raises(UserError, match=r"none of 19 tasks has images; caltech101: no "):
        request(three / "nothing")


def test_kitti_s_whole_test_split_is_the_711_images_that_the_benchmark_loads(
    tmp_path: Path, capsys
) -> None:
    """Not the 634 that its test declared before 2020-11-27."""
    write_task(tmp_path, "kitti_distance")
    test = tmp_path / "kitti_distance" / "final" / "test.parquet"
    for images in (711, 634):
        rewritten(test, lambda table, n=images: table.take(np.arange(n) % len(table)))
        request(tmp_path)
        warned = "634 test images, the benchmark's has 711" in capsys.readouterr().out
        assert warned == (images == 634)


def test_what_the_tasks_decide_cannot_be_set(three: Path) -> None:
    for word in ("data.classes=3", "data.path=/x"):
        with pytest.raises(UserError, match="the study's benchmark sets it"):
            request(three, word)


STUDY = {
    "title": "tasks",
    "places": ["data"],
    "benchmark": "vtab",
    "options": {"recipe": "finetune", "init": "scratch"},
    "parts": {"final": {"tool": "finetune", "options": {"data.path": "{data}/{task}/final"}}},
    "report": {"final": "final"},
}
MISTAKES = {
    "unknown": ({"benchmark": "vtap"}, "benchmark=vtap: unknown"),
    "arms": ({"arms": {"a": "b"}}, "arms: the arms are the tasks of vtab"),
    "compared": ({"report": {"final": "final", "baseline": "dtd"}}, "as tasks differ"),
    "one folder": (
        {"parts": {"final": {"tool": "finetune", "options": {"data.path": "{data}/final"}}}},
        "data.path=None: expected one that ends in /{task}/tune or /{task}/final",
    ),
}


@pytest.mark.parametrize(("change", "says"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistaken_file_is_refused(change: dict, says: str) -> None:
    assert len(read_study.build(STUDY, "file").arms) == 19
    with pytest.raises(UserError) as caught:
        read_study.build(STUDY | change, "file")
    assert says in str(caught.value)


def test_the_plan_tool_counts_all_tasks_without_images(capsys) -> None:
    plan_tool.main(["recipe=study/vtab", "seeds=1"])
    assert "19" in capsys.readouterr().out


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
