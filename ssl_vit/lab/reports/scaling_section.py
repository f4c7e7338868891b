"""The report's section of a study over shares of labels, of pre-training images, or over compute.
No torch here."""

import numpy as np

from ...pages.blocks import Table
from . import figures
from .axes import CURVE_OF, arm_label
from .formats import BEHIND, NONE, SEEDS, exaflop, short_place, summary, whole
from .results import StudyResults
from .statistics import Numbers
from .texts import Values, captioned


def section(of: str, study: StudyResults, numbers: Numbers) -> Values | None:
    """Accuracy along the curve: every arm at every point, where arms cross, and what an arm is
    worth in labels (images, exaFLOP); nothing of a study whose curve is over anything but `of`."""
    curve = numbers.scaling
    if curve is None or curve.of != of:
        return None
    head = [
        CURVE_OF[curve.of],
        "images",
        "top-1 after fine-tuning, %: arm",
        "n",
        "mean",
        "sd",
        SEEDS,
    ]
    if curve.baseline:
        head += [f"minus {arm_label(curve.baseline, numbers.settings)}, points", SEEDS]
    head += ["exaFLOP"]
    rows: list[list[str]] = []
    marked: list[int] = []
    for point in curve.points:
        measure = point.measure
        for one in (*measure.results, *measure.not_compared):
            if one in measure.not_compared:
                marked.append(len(rows))
            cells = [short_place(point.share, curve.of)]
            cells += [whole(point.images)]
            cells += [arm_label(one.arm, numbers.settings), *summary(one.value, measure)]
            if curve.baseline:
                apart = point.apart.get(one.arm)
                cells += summary(apart, measure, signed=True)[1::2] if apart else [NONE, NONE]
            spent = list(one.exaflop.values())
            rows.append([*cells, exaflop(float(np.mean(spent)) if spent else None)])
    points = Table(head, rows, 3, frozenset(marked), behind=BEHIND)
    return {
        "figures": [*figures.scaling(study, numbers), *figures.worth(study, numbers)],
        "points": captioned(points, "points", study, numbers),
    }
