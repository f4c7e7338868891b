"""Test images that the runs which weights come from were trained on, by part and arm, as each run
recorded it. No torch here."""

from collections.abc import Iterator
from typing import NamedTuple

from .results import StudyResults


class SeenTest(NamedTuple):
    """Test images of an arm of a part that its weights have been trained on before: of its seeds,
    and of the runs before each, the most.

    Attributes:
        images: how many were trained on.
        labels: of how many the labels were learned.
        of: how many test images there are; 0 where none is known.
        unknown: runs before of which it is not known.
    """

    part: str
    arm: str
    images: int
    labels: int
    of: int
    unknown: list[str]


def build(study: StudyResults) -> Iterator[SeenTest]:
    """For each part that the report is about and each arm, where images were seen or it is not
    known. Nothing of runs that did not record it, as earlier versions'."""
    for part in dict.fromkeys((*study.finals, *study.extra, *study.probes)):
        for arm in study.plan.arms:
            found = _of_arm(study, part, arm)
            if found.images or found.unknown:
                yield found


def _of_arm(study: StudyResults, part: str, arm: str) -> SeenTest:
    runs = study.runs(part, arm).values()
    before = [one for run in runs for one in run.environment.seen or ()]
    images, labels, of = (
        max((getattr(one, name).get("test", 0) for one in before), default=0)
        for name in ("images", "labels", "of")
    )
    return SeenTest(part, arm, images, labels, of, sorted({o.run for o in before if o.unknown}))
