"""What planned contrasts need beside Student's t: Holm's procedure over several, and which test
images each run classifies correctly."""

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import tuning
from scipy import special

from ssl_vit import stats
from ssl_vit.lab.reports import read_files


def holm(found: Sequence[stats.SeedSummary]) -> list[bool]:
    """Which of these mean differences are not zero (Holm, 1979): the least p-value against 5%
    divided by their number, the next by one less, until the first that is not below."""
    p_values = [p_value(one) for one in found]
    decided = [False] * len(found)
    for left, index in zip(
        range(len(found), 0, -1), sorted(range(len(found)), key=p_values.__getitem__), strict=True
    ):
        if p_values[index] > 2 * stats.TAIL / left:
            break
        decided[index] = True
    return decided


def p_value(found: stats.SeedSummary) -> float:
    """Of Student's two-sided t test against zero; 1 with one seed."""
    if found.sd is None:
        return 1.0
    t = abs(found.mean) / max(found.sd, 1e-12) * math.sqrt(found.n)
    return float(2 * special.stdtr(found.n - 1, -t))


def pack_right(runs: Path, out: Path) -> None:
    """Of every fine-tuned run of the study in a folder whether each test image is classified
    correctly, in the order of the images, as bits."""
    found: dict[str, np.ndarray] = {}
    for name, task in tuning.finished(runs).items():
        if task["part"].startswith("final"):
            index, _, right = read_files.read_predictions(runs / name / "predictions.npz")
            found[name] = np.packbits(right[np.argsort(index)])
            found["images"] = np.array(len(right))
    np.savez_compressed(out, **found)


def correct(
    right: Mapping[str, np.ndarray], share: float, arm: str, top1: Mapping[int, float]
) -> np.ndarray:
    """Whether each seed's run classifies each test image correctly (S, M).

    Raises:
        SystemExit: a run is missing, or that is not its top-1.
    """
    rows = []
    for seed, value in top1.items():
        name = f"final_{share:g}-{arm}-{seed}"
        if name not in right:
            sys.exit(f"error: worth_right.npz: no run {name}")
        rows.append(np.unpackbits(right[name], count=int(right["images"])))
        if abs(rows[-1].mean() - value) > 1e-6:
            sys.exit(f"error: worth_right.npz: {name} has another top-1 than worth.json")
    return np.stack(rows)
