"""Do measures without labels predict accuracy? Rank correlations and regrets of the study labelfree.

python results/labelfree.py                   the tables, from labelfree.json
python results/labelfree.py read FOLDER ...   read folders of the study first, and write labelfree.json

Two questions are kept apart. Which run: runs of several objectives and learning rates, all at their
last step. Which checkpoint: the checkpoints along a single run, then the mean over runs. A regret is
the accuracy that is lost, in points, by choosing the highest score instead of the best accuracy.

Scores are oriented as the papers say: a higher RankMe and LiDAR, an alpha-ReQ closer to 1, a lower
uniformity, alignment and training loss count as better, and a later step. Intervals are 95%, from a
bootstrap over whole runs, because the checkpoints of a run are not independent.
"""

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

FILE = Path(__file__).with_suffix(".json")
RESAMPLES = 2000
SCORES: dict[str, Callable[[dict[str, float]], float]] = {
    "rankme": lambda row: row["rankme"],
    "lidar": lambda row: row["lidar"],
    "alpha_req": lambda row: -abs(row["alpha_req"] - 1),
    "uniformity": lambda row: -row["uniformity"],
    "alignment": lambda row: -row["alignment"],
    "loss": lambda row: -row["loss"],
    "step": lambda row: row["step"],
    "any": lambda row: 0.0,  # a choice by chance
}
PROBES = ("knn", "linear", *list(SCORES)[:5])
ACCURACIES = ("knn", "linear", "fine_tuned")
Run = dict[str, Any]


def read_run(folder: Path) -> Run:
    """Return the checkpoints of a pre-training, and the accuracy of the fine-tuning after it."""
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    checkpoints = [
        {"step": row["step"], "loss": row["loss"]}
        | {name: row.get(f"probe/{name}", math.nan) for name in PROBES}
        for row in rows
        if "probe/knn" in row
    ]
    tuned = folder.with_name(folder.name.replace("pretrain-", "final-", 1)) / "result.json"
    fine_tuned = math.nan
    if tuned.exists():
        measured = json.loads(tuned.read_text())["measurements"]
        fine_tuned = next(
            one["value"] for one in measured if one["metric"] == "top1" and not one.get("subject")
        )
    environment = json.loads((folder / "environment.json").read_text())
    return {
        "name": folder.name.removeprefix("pretrain-"),
        "revision": environment.get("revision"),
        "fine_tuned": fine_tuned,
        "checkpoints": checkpoints,
    }


def read_study(folder: Path) -> list[Run]:
    """Return the finished pre-trainings of a study's folder."""
    results = sorted(folder.glob("pretrain-*/result.json"))
    return [read_run(result.parent) for result in results]


def correlation(score: np.ndarray, accuracy: np.ndarray) -> float:
    """Return Spearman's rank correlation, NaN if a side is constant or has a gap."""
    if not np.isfinite([score, accuracy]).all() or np.ptp(score) == 0 or np.ptp(accuracy) == 0:
        return math.nan
    # like scipy's spearmanr, but faster
    return float(np.corrcoef(stats.rankdata(score), stats.rankdata(accuracy))[0, 1])


def regret(score: np.ndarray, accuracy: np.ndarray) -> float:
    """Return the lost accuracy in points: the best minus the mean of those with the top score."""
    if not np.isfinite([score, accuracy]).all():
        return math.nan
    return 100 * float(accuracy.max() - accuracy[score == score.max()].mean())


STATISTICS = {"correlation": correlation, "regret": regret}


def table_of(runs: list[Run], name: str, accuracy: str) -> np.ndarray:
    """Return scores and accuracies of all checkpoints, (runs, checkpoints, 2)."""
    return np.array(
        [
            [
                (
                    SCORES[name](row),
                    run["fine_tuned"] if accuracy == "fine_tuned" else row[accuracy],
                )
                for row in run["checkpoints"]
            ]
            for run in runs
        ]
    )


# Losses of different objectives cannot be compared, so "which run" has no baseline but chance
BASELINES = {"which run": "", "which checkpoint": "step"}


def estimate(
    runs: list[Run], question: str, name: str, accuracy: str, statistic: str, baseline: str = ""
) -> list[float]:
    """Return a statistic and its 95% interval, from resamples of whole runs.

    With `baseline`, the statistic of this score is subtracted, such as that of the step number.
    """
    tables = [table_of(runs, score, accuracy) for score in (name, baseline) if score]
    compute = STATISTICS[statistic]
    rows = np.random.default_rng(0).integers(0, len(runs), (RESAMPLES, len(runs)))
    if question == "which run":  # at the last checkpoint

        def across(row: np.ndarray) -> float:
            values = [compute(*table[row, -1].T) for table in tables]
            return values[0] - sum(values[1:])

        value, resampled = across(np.arange(len(runs))), np.array([across(row) for row in rows])
    else:  # the mean of the values along each run, without the runs that have no value
        values = np.array([[compute(*run.T) for run in table] for table in tables])
        along = values[0] - values[1:].sum(0)
        along = along[np.isfinite(along)]
        if not len(along):
            return [math.nan] * 3
        value = along.mean()
        rows = np.random.default_rng(0).integers(0, len(along), (RESAMPLES, len(along)))
        resampled = along[rows].mean(1)
    resampled = resampled[np.isfinite(resampled)]
    if not math.isfinite(value) or not len(resampled):
        return [math.nan] * 3
    low, high = np.percentile(resampled, [2.5, 97.5])
    return [value, float(low), float(high)]


def text(estimated: list[float], digits: int) -> str:
    value, low, high = estimated
    if not math.isfinite(value):
        return "-"
    sign = "+" if digits == 2 else ""
    return f"{value:{sign}.{digits}f} ({low:{sign}.{digits}f} to {high:{sign}.{digits}f})"


def table_lines(runs: list[Run], question: str) -> list[str]:
    """Return the rows of a Markdown table: for each accuracy and score, what it predicts."""
    baseline = BASELINES[question]
    lines = [
        f"| accuracy, {question} | score | rank correlation | minus {baseline or '-'} | regret |",
        "|---|---|---|---|---|",
    ]
    for accuracy in ACCURACIES:
        if accuracy == "fine_tuned" and question == "which checkpoint":
            continue  # only the last checkpoint was fine-tuned
        for name in SCORES:
            if name in ("step", "loss") and question == "which run":
                continue  # all runs are at the same step, and losses of objectives differ
            rank = estimate(runs, question, name, accuracy, "correlation")
            beyond = [math.nan] * 3
            if baseline and name not in ("loss", "step", "any"):
                beyond = estimate(runs, question, name, accuracy, "correlation", baseline)
            lost = estimate(runs, question, name, accuracy, "regret")
            cells = [accuracy, name, text(rank, 2), text(beyond, 2), text(lost, 1)]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def print_tables(studies: dict[str, list[Run]]) -> None:
    for study, runs in studies.items():
        checkpoints = sum(len(run["checkpoints"]) for run in runs)
        print(f"\n{study}: {len(runs)} runs, {checkpoints} checkpoints")
        for question in BASELINES:
            print("", *table_lines(runs, question), sep="\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["read"]:
        read = {Path(folder).name: read_study(Path(folder)) for folder in sys.argv[2:]}
        stored = json.loads(FILE.read_text()) if FILE.exists() else {}
        FILE.write_text(json.dumps(stored | read, indent=1) + "\n")
    print_tables(json.loads(FILE.read_text()))
