"""One order of measures in all lists and reports, and encoders of several objectives in one list."""

import json
from pathlib import Path

import pytest

from helpers.made_studies import FROZEN, changed, study
from helpers.resolving import parse_request
from helpers.run_pages import make_run
from ssl_vit import metrics
from ssl_vit.errors import UserError
from ssl_vit.lab import report, results, verdict
from ssl_vit.lab.options import RunsOptions
from ssl_vit.lab.runs import listed
from ssl_vit.lab.runs import tool as runs_tool
from ssl_vit.measurements import read_flat_name
from ssl_vit.pages.run_record import read_run


def test_the_order_is_linear_attentive_k_nn_few_shot() -> None:
    shuffled = ["loss", "few_shot_10", "accuracy_masked", "probe_knn", "few_shot_1", "attentive"]
    shuffled += ["linear", "top1"]
    assert [key.name for key in metrics.in_order(map(read_flat_name, shuffled))] == [
        *("top1", "linear", "attentive", "probe_knn", "few_shot_10", "few_shot_1"),
        *("accuracy_masked", "loss"),
    ]
    frozen = {"top1": False, "accuracy_masked": False, "probe_knn": True, "few_shot_25": True}
    assert {name: metrics.is_frozen_metric(read_flat_name(name)) for name in frozen} == frozen


def test_a_report_is_headed_by_the_first_measure_in_the_order(tmp_path: Path) -> None:
    """1-shot, the noisiest measure, headed a sweep's report, as it was measured first."""
    values = {"few_shot_1": 0.10, "few_shot_25": 0.20, "knn": 0.30, "linear": 0.40}

    def measured(task):
        if task.tool == "pretrain":
            return {"loss": (2.0, "validation")}
        return {name: (one + 0.01 * task.seed, "test") for name, one in values.items()}

    folder = study(tmp_path / "s", FROZEN, measured)
    measure = verdict.decide_claims(results.load(folder)).measure
    assert measure is not None and measure.name == "linear"
    report.write(folder)
    assert "linear probe, %: each point is a seed" in (folder / "report.md").read_text()
    named = changed(FROZEN, report__measures=["knn"])
    other = study(tmp_path / "named", named, measured)
    measure = verdict.decide_claims(results.load(other)).measure
    assert measure is not None and measure.name == "knn"


def test_a_sweep_takes_the_measures_of_its_report() -> None:
    words = ["recipe=mpp", "sweep", "corruption.rate=0.15,0.5", "report.measures=[knn,few_shot_5]"]
    assert parse_request(words, look=False).study.report.measures == ("knn", "few_shot_5")
    assert parse_request(words[:3], look=False).study.report.measures == ()
    with pytest.raises(UserError, match="attentive: "):
        parse_request([*words[:3], "report.measures=attentive"], look=False)


def made(folder: Path, objective: str, accuracy: float, n: int = 500) -> None:
    """A pre-training whose k-NN was measured on held-out images, 5 points above untrained weights."""
    above = {"mean": 0.05, "low": 0.01, "high": 0.09}
    found = {
        "probe_knn": {"value": accuracy, "n": n, "split": "validation"},
        "fresh_probe_knn": {"value": accuracy - 0.05, "n": n, "split": "validation"}
        | {"difference": above},
    }
    environment = {"data": {"train": "t", "validation": "v"}, "held_out": "h"}
    make_run(folder, f"objective={objective}", found=found, environment=environment)


def test_encoders_of_several_objectives_are_listed_and_ranked_by_their_features(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were listed by losses that cannot be compared, and k-NN was missing."""
    monkeypatch.setattr(listed, "export_problem", lambda export: "")
    for objective, accuracy in (("mpp", 0.30), ("mae", 0.50), ("ibot", 0.40)):
        made(tmp_path / objective, objective, accuracy)
    run = listed.list_run(tmp_path, read_run(tmp_path / "mae"))
    said = run.frozen()
    assert said is not None and said.startswith("k-NN 50.0% (45.6 to 54.4) of 500 held-out images")
    assert "untrained 45.0%: +5.0 (+1.0 to +9.0)" in said
    table = runs_tool.table(RunsOptions(folder=tmp_path))
    column = table.rows[0].index("frozen encoder")
    assert all(row[column].startswith("k-NN") for row in table.rows[1:])
    groups = runs_tool.table(RunsOptions(folder=tmp_path, best="probe_knn")).groups
    assert [[one.name for one in group.runs] for group in groups] == [["mae", "ibot", "mpp"]]
    losses = runs_tool.table(RunsOptions(folder=tmp_path, best="loss")).groups
    assert {len(group.runs) for group in losses} == {1}


def test_frozen_encoders_whose_probes_learn_from_fewer_images_are_not_ranked_with_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training run's probes take a share of its work, so cheap objectives have fewer images."""
    monkeypatch.setattr(listed, "export_problem", lambda export: "")
    for objective, learned_from in (("mpp", 4000), ("mae", 1000), ("ibot", 4000)):
        made(tmp_path / objective, objective, 0.3)
        path = tmp_path / objective / "result.json"
        content = json.loads(path.read_text()) | {"learned_from": learned_from}
        path.write_text(json.dumps(content))
    groups = runs_tool.table(RunsOptions(folder=tmp_path, best="probe_knn")).groups
    assert [len(group.runs) for group in groups] == [2, 1]
    assert groups[1].facts["training images"] == "1,000"


def test_frozen_encoders_on_other_images_are_not_ranked_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listed, "export_problem", lambda export: "")
    made(tmp_path / "many", "mpp", 0.3)
    made(tmp_path / "few", "mae", 0.4, n=100)
    groups = runs_tool.table(RunsOptions(folder=tmp_path, best="probe_knn")).groups
    assert sorted(len(group.runs) for group in groups) == [1, 1]
