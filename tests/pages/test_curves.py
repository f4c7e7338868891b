"""Baselines in the charts of a run's curves."""

import json
from pathlib import Path

from helpers.reports import Page
from helpers.run_pages import make_run
from ssl_vit.pages import run_page


def charts(folder: Path, **values: list[float]) -> list[dict]:
    """The charts of a run whose rows have these values, with two underscores for a slash."""
    rows = [
        {"step": 10 * (place + 1)}
        | {name.replace("__", "/"): found[place] for name, found in values.items()}
        for place in range(2)
    ]
    run_page.write(make_run(folder / "made", metrics=rows))
    return [json.loads(text) for text in Page((folder / "made" / "report.html").read_text()).data]


def levels(folder: Path, **values: float) -> dict[str, list[str]]:
    """{title: the lines that are baselines}, of baselines that stay and of other curves."""
    stays = ("fresh", "entropy")
    found = {
        name: [value if any(part in name for part in stays) else 0.5 * value, value]
        for name, value in values.items()
    }
    return {
        chart["title"]: [line["name"] for line in chart["lines"] if line["kind"] == "level"]
        for chart in charts(folder, **found)
    }


def test_fresh_weights_stand_beside_each_probe(tmp_path: Path) -> None:
    """Probes alone in their chart, though metrics.jsonl has what untrained weights reach."""
    knn, linear = {"probe__knn": 0.4, "probe__fresh_knn": 0.3}, {"probe__fresh_linear": 0.2}
    assert levels(tmp_path, **knn, probe__linear=0.5, **linear) == {
        "Probes of the frozen features": [
            "baseline: untrained weights, k-NN",
            "baseline: untrained weights, linear probe",
        ]
    }


def test_a_part_of_joint_training_has_its_own_baseline(tmp_path: Path) -> None:
    """Baselines of joint training, whose names begin with a part's, in no chart."""
    held_out = {"validation__mpp__loss_masked": 1.5, "validation__mpp__entropy": 4.0}
    found = levels(tmp_path, validation__loss=2.0, **held_out)
    assert found == {"Loss": [], "mpp/loss": ["baseline: the training colours' entropy"]}


def test_a_baseline_stands_beside_the_metric_that_it_is_compared_with(tmp_path: Path) -> None:
    """That of masked patches: the loss of all corrupted ones counts patches that are seen."""
    kinds = {"validation__loss_masked": 2.5, "validation__loss_kept": 0.5}
    found = levels(tmp_path, validation__loss=2.0, **kinds, validation__entropy=4.0)
    named = ["baseline: the training colours' entropy"]
    assert found == {"Loss": named, "Loss by kind of patch": []}


def test_what_is_not_finite_or_of_training_is_no_level(tmp_path: Path) -> None:
    """A line across at a value that nobody measured on held-out images."""
    found = levels(tmp_path, loss=1.0, entropy=4.0, validation__entropy=float("nan"))
    assert found == {"Loss": []}


def test_a_baseline_that_moves_is_a_curve(tmp_path: Path) -> None:
    """Of a teacher's features: its last value stood over the whole run."""
    near = {"validation__neighbors_error": [0.4, 0.2]}
    found = charts(tmp_path, validation__loss=[0.3, 0.1], **near)
    lines = {line["name"]: line["y"] for chart in found for line in chart["lines"]}
    assert lines["baseline: the neighbours' mean"] == [0.4, 0.2]
