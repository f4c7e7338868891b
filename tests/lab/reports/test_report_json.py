"""The report's JSON: a table of results, and numbers that are of its rows."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import arm_studies, key_studies
from helpers.arm_studies import RIGHT
from helpers.reports import altered, do_not_draw, write
from ssl_vit.errors import UserError
from ssl_vit.lab import reports
from ssl_vit.lab.reports import load, results


@pytest.fixture(autouse=True)
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    do_not_draw(monkeypatch)


@pytest.fixture
def gap(tmp_path: Path) -> Path:
    return arm_studies.study(tmp_path / "gap")


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


def test_a_value_that_is_not_finite_is_null_and_in_no_mean(gap: Path) -> None:
    path = gap / "probe-mpp-1" / "result.json"
    metrics = json.loads(path.read_text())["metrics"]
    altered(path, metrics=metrics | {"linear": metrics["linear"] | {"value": math.nan}})
    report = reports.write(gap).content()
    (row,) = [
        row for row in report["results"] if (row["run"], row["metric"]) == ("probe-mpp-1", "linear")
    ]
    assert row["value"] is None
    assert report["numbers"]["measures"][-1]["name"] == "linear"
    seeds = {
        one["arm"]: [run[-1] for run in one["runs"]]
        for one in report["numbers"]["summaries"]
        if one["measure"] == "linear"
    }
    assert [*seeds.values()] == [["0", "1", "2"], ["0", "2"], ["0", "1", "2"]]


def test_coordinates_are_those_of_the_plan_or_come_of_an_older_one(gap: Path) -> None:
    """A task may have a coordinate of any name beside those that its values say."""
    table = load.load_study(gap).table
    swept = table[table["setting"] != ""]
    assert set(swept["optim.lr"]) == {0.01, 0.03, 0.1} and set(swept["part"]) == {"sweep"}
    plan = json.loads((gap / "study.json").read_text())
    for task in plan["tasks"]:
        task["coordinates"] = task["values"] | {"data.size": [32, task["seed"]]}
    write(gap / "study.json", plan)
    table = load.load_study(gap).table
    assert all(
        size == [32, seed] for size, seed in zip(table["data.size"], table["seed"], strict=True)
    )
    assert reports.write(gap).content()["results"][0]["data.size"] == [32, 0]


@pytest.mark.parametrize("coordinates", [{}, {"optim.lr": 0.5}])
def test_coordinates_that_contradict_the_plan_are_refused(
    gap: Path, coordinates: dict[str, Any]
) -> None:
    plan = json.loads((gap / "study.json").read_text())
    task = next(one for one in plan["tasks"] if one["values"])
    task["coordinates"] = coordinates
    write(gap / "study.json", plan)
    with pytest.raises(UserError) as error:
        load.load_study(gap)
    text = str(error.value)
    assert task["name"] in text and str(coordinates) in text and str(task["values"]) in text


@pytest.mark.parametrize("axis", ["value", "arm"])
def test_coordinates_named_like_a_column_of_the_results_are_refused(gap: Path, axis: str) -> None:
    """They ended in a traceback of pandas."""
    plan = json.loads((gap / "study.json").read_text())
    for task in plan["tasks"]:
        task["coordinates"] = task["values"] | {axis: 1}
    write(gap / "study.json", plan)
    with pytest.raises(
        UserError, match=rf"^[^\n]*: coordinates: {axis} is a column of the results"
    ):
        load.load_study(gap)


def test_a_coordinate_of_null_is_not_one_that_is_missing(tmp_path: Path) -> None:
    study = key_studies.study(tmp_path / "s")
    plan = json.loads((study / "study.json").read_text())
    for task in plan["tasks"]:
        if task["part"] == "probe":
            task["coordinates"] = plan["vary"][task["arm"]] | {"probe.few": None}
    write(study / "study.json", plan)
    report = reports.write(study)
    rows = report.content()["results"]
    assert {row["part"] for row in rows if "probe.few" in row} == {"probe"}
    assert all(row.get("probe.few") is None for row in rows)


def test_held_out_values_under_a_test_metrics_name_are_not_pooled(gap: Path) -> None:
    path = gap / "final-mpp-1" / "result.json"
    metrics = json.loads(path.read_text())["metrics"]
    metrics["top1"]["split"] = "validation"
    altered(path, metrics=metrics)
    with pytest.raises(UserError, match=r"final-mpp-1/.* has no top1 of the test images"):
        reports.write(gap)


def test_what_is_not_finite_is_of_no_images(gap: Path) -> None:
    """A value that is left out counted among the images that the measure is of."""
    path = gap / "pretrain-mpp-1" / "result.json"
    metrics = json.loads(path.read_text())["metrics"]
    name = next(name for name, one in metrics.items() if one["split"] == "validation")
    metrics[name] |= {"value": math.nan, "n": 1}
    altered(path, metrics=metrics)
    report = reports.write(gap).content()
    (row,) = (
        one for one in report["results"] if (one["run"], one["metric"]) == ("pretrain-mpp-1", name)
    )
    assert [row[key] for key in ("value", "n", "measured_on")] == [None, None, None]
    assert 1 not in {one["images"] for one in report["numbers"]["measures"]}


def test_no_two_settings_have_one_text() -> None:
    values = [1, "1", 1.0, True, "true", None, "null", "", "a, b=1", "[a,1]", ["a", 1], ["a", "1"]]
    texts = [results.setting_text({"key": value}) for value in values]
    assert len(set(texts)) == len(values)
    assert {"key=true", "key=null", "key=1", "key=[a,1]"} <= set(texts)
    assert results.setting_text({"a": 1, "b": 2}) != results.setting_text({"a": "1, b=2"})


def test_measures_of_one_name_are_told_by_their_part(tmp_path: Path) -> None:
    """A loss of test images had its values in the held-out loss of pre-training, too."""
    study = key_studies.study(tmp_path / "s")
    for path in study.glob("probe-*/result.json"):
        metrics = json.loads(path.read_text())["metrics"]
        altered(path, metrics=metrics | {"loss": {"value": 0.125, "split": "test", "n": 9}})
    report = reports.write(study).content()
    losses = [one["part"] for one in report["numbers"]["measures"] if one["name"] == "loss"]
    assert len(losses) == 2
    rows = {(row["run"], row["metric"]): row["value"] for row in report["results"]}
    for part in losses:
        own = [
            one
            for one in report["numbers"]["summaries"]
            if (one["measure"], one["part"]) == ("loss", part)
        ]
        values = {rows[run, "loss"] for one in own for run in one["runs"]}
        assert (values == {0.125}) is (part == "probe")
        assert len(own) == len({one["arm"] for one in own})


def test_a_seed_that_stands_twice_is_refused(gap: Path) -> None:
    """One of the two would count, and both be resampled."""
    about = json.loads((gap / "study.json").read_text())
    task = next(one for one in about["tasks"] if one["name"] == "final-mpp-0")
    shutil.copytree(gap / "final-mpp-0", gap / "final-mpp-0b")
    about["tasks"].append(task | {"name": "final-mpp-0b"})
    write(gap / "study.json", about)
    with pytest.raises(UserError, match="final-mpp-0 and final-mpp-0b are both of part final"):
        load.load_study(gap)
