"""One order of measures in all lists and reports."""

from pathlib import Path

import pytest

import ssl_vit
from helpers.made_studies import FROZEN, changed, study
from helpers.resolving import parse_request
from ssl_vit import metrics
from ssl_vit.errors import UserError
from ssl_vit.measurements import read_flat_name


def test_the_order_is_linear_attentive_k_nn_few_shot() -> None:
    shuffled = ["loss", "few_shot_10", "accuracy_masked", "probe_knn", "few_shot_1", "attentive"]
    shuffled += ["linear", "top1"]
    assert [key.name for key in metrics.in_order(map(read_flat_name, shuffled))] == [
        *("top1", "linear", "attentive", "probe_knn", "few_shot_10", "few_shot_1"),
        *("accuracy_masked", "loss"),
    ]
    frozen = {"top1": False, "accuracy_masked": False, "probe_knn": True, "few_shot_25": True}
    assert {name: metrics.is_frozen_metric(read_flat_name(name)) for name in frozen} == frozen


@pytest.mark.parametrize(("asked", "first"), [({}, "linear"), ({"measures": ["knn"]}, "knn")])
def test_a_report_is_headed_by_the_first_measure_in_the_order(
    asked: dict[str, list[str]], first: str, tmp_path: Path
) -> None:
    """1-shot, the noisiest measure, headed a sweep's report, as it was measured first."""
    values = {"few_shot_1": 0.10, "few_shot_25": 0.20, "knn": 0.30, "linear": 0.40}

    def measured(task):
        if task.tool == "pretrain":
            return {"loss": (2.0, "validation")}
        return {name: (one + 0.01 * task.seed, "test") for name, one in values.items()}

    content = changed(FROZEN, report={"test": "probe"} | asked)
    found = ssl_vit.report(study(tmp_path / "s", content, measured))
    assert found.verdict.measure.name == first
    caption = {"linear": "linear probe", "knn": "k-NN"}[first]
    assert f"{caption}, %: each point is a seed" in (found.folder / "report.md").read_text()


def test_a_sweep_takes_the_measures_of_its_report() -> None:
    words = ["recipe=mpp", "sweep", "corruption.rate=0.15,0.5", "report.measures=[knn,few_shot_5]"]
    assert parse_request(words, look=False).study.report.measures == ("knn", "few_shot_5")
    assert parse_request(words[:3], look=False).study.report.measures == ()
    with pytest.raises(UserError, match="attentive: "):
        parse_request([*words[:3], "report.measures=attentive"], look=False)
