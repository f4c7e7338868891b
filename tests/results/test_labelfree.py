"""What results/labelfree.py says of made-up runs whose answers are known."""

import json
import math
import sys
from pathlib import Path

import pytest

from helpers.options import ROOT

sys.path.insert(0, str(ROOT / "results"))
import labelfree


def made_run(name: str, **columns: list[float]) -> dict:
    """A run with a checkpoint for each entry of the columns; other measures are constant."""
    length = len(columns["knn"])
    rows = [
        dict.fromkeys((*labelfree.PROBES, "loss"), 1.0)
        | {"step": 10 * number + 10}
        | {key: values[number] for key, values in columns.items()}
        for number in range(length)
    ]
    return {"name": name, "fine_tuned": math.nan, "checkpoints": rows}


def test_along_a_run_and_across_runs_are_two_questions() -> None:
    """RankMe rises along each run as accuracy does, and runs of higher rank are the worse ones."""
    runs = [
        made_run(f"{n}", knn=[0.1 + n / 10, 0.2 + n / 10], rankme=[10 - n, 11 - n])
        for n in range(4)
    ]
    found = {
        question: labelfree.estimate(runs, question, "rankme", "knn", "correlation")
        for question in labelfree.BASELINES
    }
    assert found == {
        "which run": pytest.approx([-1] * 3),
        "which checkpoint": pytest.approx([1] * 3),
    }
    lost = labelfree.estimate(runs, "which run", "rankme", "knn", "regret")
    assert lost[0] == pytest.approx(30) and lost[1] < lost[2] <= 30 + 1e-9
    assert labelfree.estimate(runs, "which checkpoint", "rankme", "knn", "regret")[0] == 0
    # the step number rises as well, so RankMe says no more than it
    beyond = labelfree.estimate(runs, "which checkpoint", "rankme", "knn", "correlation", "step")
    assert beyond == pytest.approx([0] * 3)


def test_scores_are_as_the_papers_orient_them() -> None:
    """alpha-ReQ is best at 1, and the lowest uniformity, alignment and loss are the best."""
    run = made_run(
        "one",
        knn=[0.3, 0.4, 0.2],
        alpha_req=[1.5, 0.9, 0.2],
        uniformity=[-2, -3, -1],
        alignment=[0.2, 0.1, 0.5],
        loss=[5, 4, 6],
    )
    for name in ("alpha_req", "uniformity", "alignment", "loss"):
        assert labelfree.estimate([run], "which checkpoint", name, "knn", "correlation")[
            0
        ] == pytest.approx(1)
        assert labelfree.estimate([run], "which checkpoint", name, "knn", "regret")[0] == 0


def test_a_constant_score_has_no_correlation_and_the_regret_of_chance() -> None:
    runs = [made_run(f"{n}", knn=[n / 10]) for n in range(3)]
    assert math.isnan(labelfree.estimate(runs, "which run", "lidar", "knn", "correlation")[0])
    lost = labelfree.estimate(runs, "which run", "lidar", "knn", "regret")
    assert lost[0] == pytest.approx(10)  # the mean is 0.1, the best 0.2


def test_folders_of_a_study_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "pretrain-mae-0.001-0"
    folder.mkdir()
    rows = [
        {"step": 5, "loss": 2.0},
        {"step": 10, "loss": 1.0, "probe/knn": 0.3, "probe/lidar": 7.0},
    ]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "environment.json").write_text('{"revision": "abc"}')
    assert labelfree.read_study(tmp_path) == []  # has not finished
    (folder / "result.json").write_text("{}")
    tuned = tmp_path / "final-mae-0.001-0"
    tuned.mkdir()
    measured = [{"metric": "top1", "subject": "majority_top1", "value": 0.1}]
    measured += [{"metric": "top1", "value": 0.6}]
    (tuned / "result.json").write_text(json.dumps({"measurements": measured}))
    (run,) = labelfree.read_study(tmp_path)
    assert run["name"] == "mae-0.001-0" and run["fine_tuned"] == 0.6 and run["revision"] == "abc"
    (row,) = run["checkpoints"]
    assert (row["step"], row["loss"], row["knn"], row["lidar"]) == (10, 1.0, 0.3, 7.0)
    assert math.isnan(row["rankme"])
