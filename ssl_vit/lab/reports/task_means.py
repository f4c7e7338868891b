"""The scores of a study whose arms are a benchmark's tasks: the means of groups and of all tasks,
and what of the benchmark is not there. No torch here."""

from typing import Any, NamedTuple

from ... import stats
from ...evaluation import vtab
from ...evaluation.vtab import PartialMean
from ...stats import SeedSummary
from .measures import Measure
from .results import StudyResults

TITLES = {"vtab": "VTAB-1k"}


class Score(NamedTuple):
    """The mean over `tasks` of top-1, over the seeds in which all of them are finished; `of` tasks
    are in the group (or, of `mean`, the benchmark)."""

    group: str
    tasks: list[str]
    of: int
    value: SeedSummary

    @property
    def label(self) -> str:
        return "all tasks" if self.group == vtab.MEAN else self.group


class Benchmark(NamedTuple):
    """The scores of each group and, last, over all tasks.

    Attributes:
        missing: tasks without images.
        unfinished: tasks without a finished run.
        other_test: {task: (test images, those of the benchmark)} where they differ.
        whole: whether the mean is the benchmark's: all tasks, each on its whole test split.
    """

    title: str
    scores: list[Score]
    missing: list[str]
    unfinished: list[str]
    other_test: dict[str, tuple[int, int]]
    whole: bool


def build(study: StudyResults, measures: list[Measure]) -> Benchmark | None:
    """None of a study that is not of a benchmark's tasks."""
    if not study.benchmark:
        return None
    rows = vtab.tasks()
    found: dict[int, dict[str, float]] = {}  # by seed
    results = next(one.results for one in measures if one.part == study.final)
    for one in results:
        for seed, value in one.seeds.items():
            found.setdefault(seed, {})[one.arm] = value
    means = [vtab.partial_means(accuracy) for accuracy in found.values()]
    groups = [*dict.fromkeys(row["group"] for row in rows.values()), vtab.MEAN]
    scores = [
        _score(group, [one[group] for one in means if group in one])
        for group in groups
        if any(group in one for one in means)
    ]
    planned = study.plan.arms
    finished = {one.arm for one in results}
    other = _other_test(study, rows)
    return Benchmark(
        title=TITLES[study.benchmark],
        scores=scores,
        missing=[task for task in rows if task not in planned],
        unfinished=[task for task in planned if task not in finished],
        other_test=other,
        whole=not other and len(scores[-1].tasks) == len(rows),
    )


def _score(group: str, means: list[PartialMean]) -> Score:
    """Of the seeds with the most tasks, as means over other tasks do not compare; of several such
    sets of tasks the first seed's."""
    most = max(means, key=lambda one: len(one.tasks))
    same = [one.value for one in means if one.tasks == most.tasks]
    return Score(group, most.tasks, most.of, stats.summarize(same))


def _other_test(study: StudyResults, tasks: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """{task: (images that its runs were tested on, those of its test split)} where they differ."""
    rows = study.measured_by_all(study.final, "top1")
    counts = zip(rows["arm"], rows["n"].fillna(0).tolist(), strict=True)
    wanted = {task: one["test_images"] for task, one in tasks.items()}
    return {task: (n, wanted[task]) for task, n in counts if n not in (0, wanted[task])}
