"""The report's JSON: a table of results, and numbers that are of its rows."""

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import arm_studies, key_studies
from helpers.arm_studies import IMAGES, RIGHT
from helpers.options import ROOT
from helpers.reports import altered, do_not_draw, write
from ssl_vit.errors import UserError
from ssl_vit.lab import reports
from ssl_vit.lab.reports import load


@pytest.fixture(autouse=True)
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    do_not_draw(monkeypatch)


@pytest.fixture
def gap(tmp_path: Path) -> Path:
    return arm_studies.study(tmp_path / "gap")


def as_version_1(report: dict[str, Any]) -> dict[str, Any]:
    """As a user converts it."""
    command = [sys.executable, str(ROOT / "docs" / "report_json_v1.py")]
    text = json.dumps(report)
    done = subprocess.run(command, input=text, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def test_each_summary_is_of_the_rows_of_its_runs(gap: Path) -> None:
    report = reports.write(gap).content()
    assert report["version"] == 2
    rows = {(row["run"], row["metric"]): row["value"] for row in report["results"]}
    metrics = {one["name"]: one["metric"] for one in report["numbers"]["measures"]}
    for one in report["numbers"]["summaries"]:
        values = [rows[run, metrics[one["measure"]]] for run in one["runs"]]
        assert one["value"]["mean"] == pytest.approx(np.mean(values), rel=1e-12)
        assert one["value"]["n"] == len(values) == 3
    arms = {one["arm"]: one["compared"] for one in report["numbers"]["summaries"]}
    assert arms == {**dict.fromkeys(RIGHT, True), "extra: scratch, direct": False}


def test_version_1_has_the_values_by_seed(gap: Path) -> None:
    old = as_version_1(reports.write(gap).content())
    assert list(old) == ["answer", "numbers"]
    measure = old["numbers"]["measures"][0]
    assert list(measure) == [
        *("name", "label", "part", "percent", "higher", "question_keys"),
        *("results", "not_compared", "images"),
    ]
    for one in measure["results"]:
        shares = {str(seed): right / IMAGES for seed, right in enumerate(RIGHT[one["arm"]])}
        assert one["seeds"] == shares
        assert one["exaflop"] == dict.fromkeys(shares, pytest.approx(0.024))
    assert [one["arm"] for one in measure["not_compared"]] == ["extra: scratch, direct"]
    assert "summaries" not in old["numbers"] and old["numbers"]["pairs"][0]["arm"] == "mpp"


def test_a_value_that_is_not_finite_is_null_and_in_no_mean(gap: Path) -> None:
    path = gap / "probe-mpp-1" / "result.json"
    metrics = json.loads(path.read_text())["metrics"]
    altered(path, metrics=metrics | {"linear": metrics["linear"] | {"value": math.nan}})
    report = reports.write(gap).content()
    (row,) = [
        row for row in report["results"] if (row["run"], row["metric"]) == ("probe-mpp-1", "linear")
    ]
    assert row["value"] is None
    linear = as_version_1(report)["numbers"]["measures"][-1]
    assert [list(one["seeds"]) for one in linear["results"]] == [
        ["0", "1", "2"],
        ["0", "2"],
        ["0", "1", "2"],
    ]


def test_coordinates_are_those_of_the_plan_or_come_of_an_older_one(gap: Path) -> None:
    """A task may have a coordinate of any name."""
    table = load.load_study(gap).table
    swept = table[table["setting"] != ""]
    assert set(swept["optim.lr"]) == {0.01, 0.03, 0.1} and set(swept["part"]) == {"sweep"}
    plan = json.loads((gap / "study.json").read_text())
    for task in plan["tasks"]:
        task["coordinates"] = {"data.size": [32, task["seed"]]}
    write(gap / "study.json", plan)
    table = load.load_study(gap).table
    assert "optim.lr" not in table and all(
        size == [32, seed] for size, seed in zip(table["data.size"], table["seed"], strict=True)
    )
    assert reports.write(gap).content()["results"][0]["data.size"] == [32, 0]


def test_measures_of_one_name_are_told_by_their_part(tmp_path: Path) -> None:
    """A loss of test images had its values in the held-out loss of pre-training, too."""
    study = key_studies.study(tmp_path / "s")
    for path in study.glob("probe-*/result.json"):
        metrics = json.loads(path.read_text())["metrics"]
        altered(path, metrics=metrics | {"loss": {"value": 0.125, "split": "test", "n": 9}})
    old = as_version_1(reports.write(study).content())
    losses = [one for one in old["numbers"]["measures"] if one["name"] == "loss"]
    assert len(losses) == 2
    for one in losses:
        arms = [arm["arm"] for arm in one["results"]]
        values = {value for arm in one["results"] for value in arm["seeds"].values()}
        assert (values == {0.125}) is (one["part"] == "probe") and len(arms) == len({*arms})


def test_a_seed_that_stands_twice_is_refused(gap: Path) -> None:
    """One of the two would count, and both be resampled."""
    about = json.loads((gap / "study.json").read_text())
    task = next(one for one in about["tasks"] if one["name"] == "final-mpp-0")
    shutil.copytree(gap / "final-mpp-0", gap / "final-mpp-0b")
    about["tasks"].append(task | {"name": "final-mpp-0b"})
    write(gap / "study.json", about)
    with pytest.raises(UserError, match="final-mpp-0 and final-mpp-0b are both of part final"):
        load.load_study(gap)
