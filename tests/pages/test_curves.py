"""Baselines in the charts of a run's curves."""

import numpy as np

from ssl_vit.measurements import read_flat_name
from ssl_vit.pages import curves
from ssl_vit.pages.curves import Curve


def levels(**values: float) -> dict[str, list[str]]:
    """{title: the lines that are baselines}, with two underscores for a slash."""
    steps = np.array([10, 20])
    found = {
        name: Curve(
            steps, np.array([value if read_flat_name(name).subject else 0.5 * value, value])
        )
        for name, value in ((name.replace("__", "/"), value) for name, value in values.items())
    }
    charts = curves.charts(found)
    return {
        chart.title: [line.name for line in chart.lines if line.kind == "level"] for chart in charts
    }


def test_fresh_weights_stand_beside_each_probe() -> None:
    """Probes alone in their chart, though metrics.jsonl has what untrained weights reach."""
    found = levels(probe__knn=0.4, probe__fresh_knn=0.3, probe__linear=0.5, probe__fresh_linear=0.2)
    assert found == {
        "Probes of the frozen features": [
            "baseline: untrained weights, k-NN",
            "baseline: untrained weights, linear probe",
        ]
    }


def test_a_part_of_joint_training_has_its_own_baseline() -> None:
    """Baselines of joint training, whose names begin with a part's, in no chart."""
    held_out = {"loss": 2.0, "mpp__loss_masked": 1.5, "mpp__entropy": 4.0}
    found = levels(**{f"validation__{name}": value for name, value in held_out.items()})
    assert found == {"Loss": [], "mpp/loss": ["baseline: the training colours' entropy"]}


def test_a_baseline_stands_beside_the_metric_that_it_is_compared_with() -> None:
    """That of masked patches: the loss of all corrupted ones counts patches that are seen."""
    held_out = {"loss": 2.0, "loss_masked": 2.5, "loss_kept": 0.5, "entropy": 4.0}
    found = levels(**{f"validation__{name}": value for name, value in held_out.items()})
    named = ["baseline: the training colours' entropy"]
    assert found == {"Loss": named, "Loss by kind of patch": []}


def test_what_is_not_finite_or_of_training_is_no_level() -> None:
    """A line across at a value that nobody measured on held-out images."""
    assert levels(loss=1.0, entropy=4.0, validation__entropy=float("nan")) == {"Loss": []}


def test_a_baseline_that_moves_is_a_curve() -> None:
    """Of a teacher's features: its last value stood over the whole run."""
    steps = np.array([10, 20])
    loss, near = Curve(steps, np.array([0.3, 0.1])), Curve(steps, np.array([0.4, 0.2]))
    found = {"validation/loss": loss, "validation/neighbors_error": near}
    lines = {line.name: line for chart in curves.charts(found) for line in chart.lines}
    assert lines["baseline: the neighbours' mean"].values == [0.4, 0.2]
