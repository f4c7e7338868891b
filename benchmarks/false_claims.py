"""Measure how often a study claims a difference where there is none.

    python benchmarks/false_claims.py study=FOLDER studies=10000

FOLDER is a finished study of one recipe with many seeds, each pre-trained by itself, whose run
`final` has predictions (predictions.npz). Two measurements come out as one JSON object, both made
with the functions of a study's report:

- real: each pseudo-study calls 3 of the fine-tunings arm A, and 3 other ones arm B. All are of the
  same recipe, so every claim is wrong.
- drawn: accuracies are drawn, with two equal arms. The hours of the study decide how many seeds (3
  to 8) it has, by the code that decides it in a real study, while tasks take random times.

The pseudo-studies of `real` share the same few fine-tunings, so their interval is computed by
leaving out one fine-tuning at a time (jackknife).
"""

import json
import math
import sys
import tempfile
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ssl_vit import stats
from ssl_vit.lab import results
from ssl_vit.lab.compare import Comparison, PredictionOutcomes, measure_difference
from ssl_vit.lab.study.hours import Group, Hours, HoursPlan

DEFAULTS = {"study": "", "studies": "10000", "seed": "0"}
ARMS = Comparison("a", "b")
FEWEST, MOST = 3, 8  # seeds
# Of a drawn study: test images, its images' mean accuracy, and the standard deviation of an
# image's probability to be classified right (over images, and of each run around it)
IMAGES, ACCURACY, OF_IMAGES, OF_RUNS = 600, 0.35, 0.3, 0.02


def is_claimed(right_SM: dict[str, np.ndarray], content_M: np.ndarray) -> bool:
    """Return whether a report claims a difference of two arms, by their test images (S, M)."""
    count = len(right_SM["a"])
    rows: dict[str, list[Any]] = {}
    outcomes: dict[str, PredictionOutcomes] = {}
    for arm in ("a", "b"):
        names = [f"{arm}{seed}" for seed in range(count)]
        for name, right_M in zip(names, right_SM[arm], strict=True):
            outcomes[name] = PredictionOutcomes(right_M, content_M)
        rows |= {f"folder_{arm}": names, f"origin_{arm}": names}
        rows[f"value_{arm}"] = [right_M.mean() for right_M in right_SM[arm]]
    found = measure_difference(ARMS, pd.DataFrame(rows), scale=100.0, correct=outcomes)
    assert found is not None and found.over_images
    return found.claimed


def claims_of_real(right_RM: np.ndarray, content_M: np.ndarray, studies: int, seed: int) -> Any:
    """Return the share of pseudo-studies of real fine-tunings that claim a difference."""
    generator = np.random.default_rng(seed)
    runs, wrong = len(right_RM), np.zeros(studies, bool)
    drawn = np.zeros((studies, runs), bool)
    for study in range(studies):
        chosen = generator.permutation(runs)[: 2 * FEWEST]
        drawn[study, chosen] = True
        arms = {"a": right_RM[chosen[:FEWEST]], "b": right_RM[chosen[FEWEST:]]}
        wrong[study] = is_claimed(arms, content_M)
    # without one fine-tuning: the pseudo-studies that it is not in
    left = np.array([wrong[~drawn[:, run]].mean() for run in range(runs)])
    error = math.sqrt((runs - 1) / runs * ((left - left.mean()) ** 2).sum())
    share = wrong.mean()
    reach = stats.t_factor(runs) * error
    return {
        "fine-tunings": runs,
        "studies": studies,
        "claims": int(wrong.sum()),
        "share": share,
        "95%, over fine-tunings": [max(0.0, share - reach), share + reach],
        "accuracies": [round(float(right_M.mean()), 4) for right_M in right_RM],
    }


def seeds_by_time(generator: np.random.Generator, folder: Path) -> int:
    """Return how many seeds a study has whose tasks take random times, by the code that keeps a
    study to its hours."""
    now = 0.0
    names = [[f"final-{arm}-{seed}" for arm in "ab"] for seed in range(MOST)]
    order = [Group(name="seeds 0 to 2", kind="", tasks=[*chain(*names[:FEWEST])])]
    order += [
        Group(name=f"seed {seed}", kind="seeds", tasks=names[seed]) for seed in range(FEWEST, MOST)
    ]
    tasks = [name for group in order for name in group.tasks]
    # planned for about five seeds; this machine is up to half as fast or twice as fast
    plan = HoursPlan(hours=11 / 60, spent=0.0, expected={"final": 60.0})
    speed = math.exp(generator.uniform(-0.7, 0.7))
    needs: dict[str, tuple[str, ...]] = dict.fromkeys(tasks, ())
    (folder / "hours.json").unlink(missing_ok=True)
    hours = Hours(folder, plan, order, needs, dict.fromkeys(tasks, "final"), 1, lambda: now)
    took: dict[str, float] = {}
    while waiting := [name for name in hours.runs if name not in took]:
        seconds = 60 * speed * math.exp(generator.normal(0, 0.2))
        now += seconds
        took[waiting[0]] = seconds
        if len(waiting) == 1:
            while (decision := hours.decide(took, {})) and not decision.starts:
                pass
    return len(took) // 2


def claims_of_drawn(studies: int, seed: int) -> Any:
    """Return the share of studies of two equal arms, with drawn accuracies, that claim a
    difference, by the number of seeds that their hours left time for."""
    generator = np.random.default_rng(seed)
    wrong: dict[int, list[bool]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(studies):
            count = seeds_by_time(generator, Path(folder))
            images_M = ACCURACY + generator.normal(0, OF_IMAGES, IMAGES)
            shape = (count, 1)
            arms = {
                arm: generator.random((count, IMAGES))
                < images_M + generator.normal(0, OF_RUNS, shape)
                for arm in "ab"
            }
            content_M = np.arange(IMAGES)
            wrong.setdefault(count, []).append(is_claimed(arms, content_M))
    every = [*chain(*wrong.values())]
    low, high = stats.wilson_interval(float(np.mean(every)), len(every))
    return {
        "studies": studies,
        "claims": sum(every),
        "share": float(np.mean(every)),
        "95%": [low, high],
        "by seeds": {
            count: {"studies": len(found), "claims": sum(found)}
            for count, found in sorted(wrong.items())
        },
    }


def main(words: list[str]) -> None:
    options = DEFAULTS | dict(word.split("=", 1) for word in words)
    studies, seed = int(options["studies"]), int(options["seed"])
    measured: dict[str, Any] = {}
    if options["study"]:
        study = results.load(Path(options["study"]))
        names = [task.name for task in study.plan.tasks if task.run == "final"]
        correct = study.load_outcomes(names)
        right_RM = np.stack([correct[name].correct_M for name in names])
        content_M = correct[names[0]].content_M
        measured["real"] = claims_of_real(right_RM, content_M, studies, seed)
    measured["drawn"] = claims_of_drawn(studies, seed)
    print(json.dumps(measured, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
