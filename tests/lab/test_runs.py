"""The runs tool: what it lists, what it ranks against one another, and what it removes."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

import ssl_vit
from helpers import arm_studies
from helpers.made_studies import alter
from helpers.measurements import altered_records, by_name
from helpers.options import TINY, altered
from helpers.refusals import refusal
from ssl_vit.lab.runs import listed
from ssl_vit.lab.runs import tool as runs_tool
from ssl_vit.pages import run_record

OPTIONS = altered(TINY, "optim.steps=2", "optim.warmup=1", "checkpoint.every=1", "log.every=1")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run with two checkpoints."""
    out = tmp_path_factory.mktemp("made")
    ssl_vit.pretrain([*OPTIONS, f"out={out}", "name=run"])
    return out / "run"


SECOND = "study/deeper/second"


@pytest.fixture
def runs(finished: Path, tmp_path: Path) -> Path:
    """A folder with that run, and another in a study's folder."""
    shutil.copytree(finished, tmp_path / "runs" / "first")
    shutil.copytree(finished, tmp_path / "runs" / SECOND)
    return tmp_path / "runs"


@pytest.fixture
def one(finished: Path, tmp_path: Path) -> Path:
    """A folder with that run alone."""
    shutil.copytree(finished, tmp_path / "runs" / "first")
    return tmp_path / "runs"


def content(path: Path) -> dict:
    return json.loads(path.read_text())


def replace(run: Path, old: str, new: str) -> None:
    """The run with other words in its recipe."""
    text = (run / "recipe.yaml").read_text()
    assert old in text
    (run / "recipe.yaml").write_text(text.replace(old, new))


def copied(runs: Path, name: str) -> Path:
    return shutil.copytree(runs / "first", runs / name)


def measured(run: Path, **values: dict) -> None:
    """The run with other facts of its metrics."""
    result = content(run / "result.json")
    changes = {name: values.get(name, values.get("all", {})) for name in by_name(result)}
    alter(run / "result.json", measurements=altered_records(result, changes))


def record(capsys: pytest.CaptureFixture, *options: str) -> dict:
    runs_tool.main([*options, "--json"])
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def ranked(folder: Path, metric: str) -> list[list[str]]:
    groups = ssl_vit.list_runs(folder, best=metric).groups
    return [[run.name for run in group.runs] for group in groups]


def printed(folder: Path, *words: str) -> str:
    return str(ssl_vit.list_runs([str(folder), *words]))


def test_runs_are_listed_with_state_metrics_and_disk(
    runs: Path, capsys: pytest.CaptureFixture
) -> None:
    (runs / SECOND / "result.json").unlink()
    (copied(runs, "third") / "result.json").write_text("{")
    weights = copied(runs, "fourth") / "export" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    (runs / "linked").symlink_to(runs)  # not round and round
    (runs / "first" / "again").hardlink_to(weights)  # of one size, and counted once
    (runs / "first" / "once more").hardlink_to(weights)
    made = record(capsys, str(runs))["runs"]
    assert {one["name"]: one["state"].partition(" (")[0] for one in made} == {
        "first": "finished",
        "fourth": "damaged: export/model.safetensors is missing or damaged",
        SECOND: "stopped, resumes after step 2 of 2",
        "third": "damaged: result.json is damaged",
    }
    result = content(runs / "first" / "result.json")
    first = next(one for one in made if one["name"] == "first")
    assert first["measurements"] == result["measurements"]
    assert (first["step"], first["steps"]) == (2, 2)
    assert first["total_exaflop"] == result["total_exaflop"]
    used = subprocess.run(
        ["du", "-s", "--block-size=1", runs / "first"], capture_output=True, check=True, text=True
    )
    assert first["disk"] == int(used.stdout.split()[0])


def test_runs_are_ranked_by_a_metric_the_best_first(runs: Path) -> None:
    """A loss from the lowest, an accuracy from the highest."""
    measured(runs / SECOND, loss={"value": -1.0}, accuracy_masked={"value": -1.0})
    assert ranked(runs, "loss") == [[SECOND, "first"]]
    assert ranked(runs, "accuracy_masked") == [["first", SECOND]]


def test_runs_are_sorted_by_texts_and_those_without_a_value_come_last(
    runs: Path, capsys: pytest.CaptureFixture
) -> None:
    for name in ("result.json", "metrics.jsonl"):
        (runs / SECOND / name).unlink()
    replace(runs / SECOND, "objective: mpp", "objective: ijepa")
    for sort, first in (
        ("state", "first"),  # finished, stopped
        ("-state", SECOND),
        ("objective", SECOND),
        ("total_exaflop", "first"),
        ("-total_exaflop", "first"),
    ):
        assert record(capsys, str(runs), f"sort={sort}")["runs"][0]["name"] == first, sort
    *_, last = (line for line in printed(runs).splitlines() if "second" in line)
    assert last.split()[1] == "ijepa" and " - " in last


def test_a_run_of_which_nothing_tells_a_time_has_none() -> None:
    found = listed.ListedRun("gone", run_record.read_run(Path("gone")))
    assert found.ended is None and listed.COLUMNS["ended"].text(found) == "-"


def test_only_runs_of_one_question_are_ranked_together(runs: Path) -> None:
    replace(copied(runs, "seed"), "seed: 0", "seed: 1")
    replace(copied(runs, "rate"), "rate: 0.5", "rate: 0.25")
    replace(copied(runs, "data"), "name: shapes", "name: others")
    (runs / SECOND / "result.json").unlink()
    first, *others = ranked(runs, "loss")
    assert sorted(first) == ["first", "seed"] and sorted(others) == [["data"], ["rate"]]
    text = printed(runs, "best=loss")
    assert f"left out    {SECOND}: stopped" in text and "may be chance" in text
    assert "\nsplit=validation, objective=mpp, data=shapes, data.size=" in text


def test_a_loss_that_collapsed_features_have_ranks_nothing(one: Path) -> None:
    replace(one / "first", "objective: mpp", "objective: ijepa")
    assert ranked(one, "loss") == [] and len(ranked(one, "accuracy_masked")) == 1
    assert "left out    first: " in printed(one, "best=loss")


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ({"held_out": "0123"}, "images"),
        ({"held_out": None, "data": {"train": "0123", "validation": "4567"}}, "images"),
        ({"measured_on": {"validation": 12}}, "n"),
    ],
)
def test_runs_measured_on_other_images_are_ranked_apart(change: dict, fact: str, one: Path) -> None:
    """Each is of the split `validation` of one data set, and its value alone would win."""
    path = copied(one, "other") / "environment.json"
    known = {key: value for key, value in (content(path) | change).items() if value is not None}
    path.write_text(json.dumps(known))
    alter(one / "other" / "result.json", measured_on=known["measured_on"])
    own, other = (group.facts for group in ssl_vit.list_runs(one, best="loss").groups)
    assert [name for name in own if own[name] != other[name]] == [fact]


def test_runs_of_other_splits_or_unknown_images_are_ranked_apart(one: Path) -> None:
    known = content(one / "first" / "environment.json")
    known = {key: value for key, value in known.items() if key != "held_out"}
    known["data"] = {"train": "0", "test": "1"}
    for name in ("tested", "a", "b"):
        (copied(one, name) / "environment.json").write_text(json.dumps(known))
    measured(one / "tested", all={"split": "test"})
    assert sorted(ranked(one, "loss")) == [["a"], ["b"], ["first"], ["tested"]]
    assert "images=unknown images of a" in printed(one, "best=loss")


def test_runs_are_listed_the_newest_first(runs: Path, capsys: pytest.CaptureFixture) -> None:
    for name, time in (("old", "2026-01-01T00:00:00"), ("new", "2036-01-01T00:00:00+00:00")):
        alter(copied(runs, name) / "result.json", finished=time)
    found = [run["name"] for run in record(capsys, str(runs))["runs"]]
    assert (found[0], found[-1]) == ("new", "old")


def test_in_python_the_runs_are_a_frame_and_in_a_notebook_a_table(runs: Path) -> None:
    found = ssl_vit.list_runs(runs, sort="name")
    assert [*found.frame["name"]] == ["first", SECOND]
    loss = by_name(content(runs / "first" / "result.json"))["loss"]["value"]
    assert found.frame["loss"][0] == loss and found.frame["state"][0] == "finished"
    assert found._repr_html_().count("<tr") == 3 and "<td>first</td>" in found._repr_html_()
    assert ranked(runs, "loss") == [["first", SECOND]]
    replace(copied(runs, "third"), "seed: 0", "seed: 1")
    assert [*ssl_vit.list_runs(runs, sort="name").frame["seed"]] == [0, 0, 1]


WRONG = {
    "sort=total_exaflops": "did you mean total_exaflop?",
    "sort=loss": "unknown column (choices: name, objective",
    "sort=held out": "unknown column",
    "best=los": "did you mean loss?",
    "best=entropy": "a baseline",
}


@pytest.mark.parametrize(("option", "says"), WRONG.items(), ids=WRONG)
def test_a_wrong_option_is_answered_in_one_line(option: str, says: str, finished: Path) -> None:
    assert says in refusal(ssl_vit.list_runs, [str(finished), option])


def test_a_folder_without_runs_is_an_error(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        assert refusal(ssl_vit.list_runs, folder).startswith(f"{folder}: ")


# files and folders that tools write beside runs or in them
RESERVED = {
    *["report.html", "report.md", "results.csv", "tables.tex", "differences.csv", "figures"],
    *[
        "study.json",
        "worth.json",
        "hours.json",
        "logs",
        "slurm",
        "shared",
        "lock",
        "export",
        "checkpoints",
    ],
}


@pytest.mark.parametrize("name", [*sorted(RESERVED), "sweep/report.html"])
def test_a_run_is_not_called_as_what_tools_write_beside_runs(name: str, tmp_path: Path) -> None:
    """A run called report.html would keep the page of its study from being written."""
    said = refusal(ssl_vit.pretrain, [*OPTIONS, f"out={tmp_path}", f"name={name}"])
    assert f"name={name}: expected a folder's name" in said and not any(tmp_path.iterdir())


def test_what_is_written_beside_runs_is_no_name_of_one(tmp_path: Path) -> None:
    study = arm_studies.study(tmp_path / "gap")
    runs = {path.name for path in study.iterdir() if path.name != "study.json"}
    ssl_vit.report(study)
    written = {path.name for path in study.iterdir()} - runs
    assert written >= {"report.html", "report.md", "figures"} and written <= RESERVED
    assert {path.name for path in tmp_path.iterdir()} - {"gap"} <= RESERVED


def test_every_list_says_whose_weights_had_learned_labels_of_test_images(runs: Path) -> None:
    measured(runs / "first", all={"split": "test"})
    seen = {"run": "other", "of": {"test": 9}, "images": {"test": 8}, "labels": {"test": 7}}
    alter(runs / "first" / "result.json", seen=[seen])
    for words in ([], ["best=loss"]):
        assert printed(runs, *words).count("do not compare") == 1
