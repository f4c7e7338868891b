"""The report's section of a study over shares of labels, of pre-training images, or over compute.
No torch here."""

from collections.abc import Iterator

import numpy as np

from ...formatting import NOT_COUNTED, format_share
from ...pages.blocks import Block, Listing, Table, Text
from . import figures
from .axes import CURVE_OF, arm_label
from .numbers import Numbers
from .results import StudyResults
from .wording import NONE, SEEDS, crossings, summary, worth


def section(of: str, study: StudyResults, numbers: Numbers) -> Iterator[Block]:
    """Accuracy along the curve: every arm at every point, where arms cross, and what an arm is
    worth in labels (images, exaFLOP); nothing of a study whose curve is over anything but `of`."""
    curve = numbers.scaling
    if curve is None or curve.of != of:
        return
    yield from figures.scaling(numbers)
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
            place = format_share(point.share)
            cells = [f"{point.share:.3g}" if curve.of == "compute" else place]
            cells += [NONE if point.images is None else f"{point.images:,}"]
            cells += [arm_label(one.arm, numbers.settings), *summary(one.value, measure)]
            if curve.baseline:
                apart = point.apart.get(one.arm)
                cells += summary(apart, measure, signed=True)[1::2] if apart else [NONE, NONE]
            spent = list(one.exaflop.values())
            rows.append([*cells, f"{np.mean(spent):.3g}" if spent else NOT_COUNTED])
    yield Table(head, rows, labels=3, marked=frozenset(marked))
    for found in curve.comparisons:
        yield Listing([*crossings(found, numbers), *worth(found, numbers).values()])
    along = "exaFLOP" if curve.of == "compute" else "share"
    less = "less" if curve.of == "compute" else "fewer"
    yield Text(
        "Between two points each seed's accuracy is taken to be linear in the logarithm of the "
        f"{along}. A factor is that by which the baseline first reaches the arm: with more "
        f"{CURVE_OF[curve.of]} where the arm is the better, with {less} where it is not. The "
        "interval of a crossing or a factor holds the places around it at which the 95% interval "
        "of the difference, in pairs of one seed, includes zero; it is open where they go on to "
        "the first or the last point. exaFLOP: pre-training and fine-tuning, the mean of a seed."
    )
