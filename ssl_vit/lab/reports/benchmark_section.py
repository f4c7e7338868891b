"""The report's section of a study of a benchmark's tasks. No torch here."""

from collections.abc import Iterator

from ...evaluation.vtab import MEAN
from ...pages.blocks import Block, Table, Text
from .numbers import Numbers
from .results import StudyResults
from .task_means import Score
from .wording import SEEDS, summary

METHOD = (
    "n counts seeds of fine-tuning one encoder; sd is over them, and intervals are Student's t. "
    "Each task has images of its own: no two rows compare, and what other images would give is in "
    "no interval but those of seeds and images."
)


def section(study: StudyResults, numbers: Numbers) -> Iterator[Block]:
    """The means of the groups and of all tasks, and what of the benchmark is not in them."""
    found = numbers.benchmark
    if found is None:
        return
    measure = numbers.measure(numbers.main)
    head = ["top-1, %: mean of", "tasks", "n", "mean", "sd", SEEDS]
    rows = [
        [_name(one), f"{len(one.tasks)} of {one.of}", *summary(one.value, measure)]
        for one in found.scores
    ]
    yield Table(head, rows)
    yield Text(
        "A group's mean is over its tasks, the last row's over all tasks and not over the groups; "
        "each is taken for a seed, over the tasks that are finished in it, and then summarised "
        "over the seeds with the most tasks."
    )
    if found.missing:
        yield Text(f"Without images, and so left out: {', '.join(found.missing)}.", warning=True)
    if found.unfinished:
        yield Text(f"Not finished: {', '.join(found.unfinished)}.", warning=True)
    if found.other_test:
        counts = [f"{task} ({n:,}, not {of:,})" for task, (n, of) in found.other_test.items()]
        yield Text(
            f"Tested on other numbers of images than the benchmark's: {', '.join(counts)}.",
            warning=True,
        )


def _name(one: Score) -> str:
    return "all tasks" if one.group == MEAN else one.group
