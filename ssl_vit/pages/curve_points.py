"""The points of a line that a page holds, of a curve that has more. No torch here."""

import itertools
import math
from collections.abc import Sequence

# Points of a line in a page: two for each of the screen's columns that a chart is wide
DRAWN = 600
POINTS = 20  # values up to which each is drawn as a point


def thinned(
    steps: Sequence[float], values: Sequence[float], most: int = DRAWN
) -> tuple[list[float], list[float]]:
    """At most `most` points of a line, more than 4: its ends, and of each stretch of equally many
    points the lowest and the highest, so that no peak is lost; what is not finite counts as a peak
    too."""
    if len(steps) <= most:
        return list(steps), list(values)
    stretches = (most - 2) // 2
    last = len(steps) - 1
    chosen = {0, last}

    def height(at: int) -> float:
        return values[at] if math.isfinite(values[at]) else math.inf

    for i in range(stretches):
        stretch = range(1 + i * (last - 1) // stretches, 1 + (i + 1) * (last - 1) // stretches)
        chosen |= {min(stretch, key=height), max(stretch, key=height)}
    kept = sorted(chosen)
    return [steps[at] for at in kept], [values[at] for at in kept]


def averaged(
    steps: Sequence[float], values: Sequence[float], most: int
) -> tuple[list[float], list[float]]:
    """At most `most` points of a line: the means of as many stretches of it, each at its last step;
    a stretch with a value that is not finite is a gap."""
    if len(steps) <= most:
        return list(steps), list(values)
    ends = [(i + 1) * len(steps) // most for i in range(most)]
    stretches = [values[start:end] for start, end in itertools.pairwise([0, *ends])]
    return [steps[end - 1] for end in ends], [sum(one) / len(one) for one in stretches]
