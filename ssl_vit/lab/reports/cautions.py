"""What a report says to be careful about, by its numbers and runs. No torch here."""

from collections.abc import Sequence
from typing import Any

from ...config.parsing import flatten, load_yaml
from ...formatting import FEW_IMAGES
from . import figures
from .measures import Measure
from .results import FinishedRun, StudyResults
from .statistics import Numbers, Pair, Sweep, edges

UNEQUAL = 1.1  # ratio of two arms' compute from which the answer says so


def unequal_compute(
    study: StudyResults, pairs: list[Pair], main: Measure
) -> list[tuple[Pair, float]]:
    """Of pairs whose training did not cost the same, how many times the other's exaFLOP the arm
    took; none where an arm's first weights are not the study's, as what made them is not
    counted."""
    spent = {
        one.arm: sum(one.exaflop.values()) / len(one.exaflop)
        for one in main.results
        if one.exaflop and not _from_outside(study, one.arm)
    }
    both = (pair for pair in pairs if spent.get(pair.arm) and spent.get(pair.other))
    times = ((pair, spent[pair.arm] / spent[pair.other]) for pair in both)
    return [(pair, one) for pair, one in times if max(one, 1 / one) >= UNEQUAL]


def _from_outside(study: StudyResults, arm: str) -> bool:
    """Whether a task of an arm starts from weights that are neither fresh nor of another task."""
    given = (word for task in study.plan.tasks if task.arm == arm for word in task.options or ())
    inits = (word.removeprefix("init=") for word in given if word.startswith("init="))
    return any(init != "scratch" and not init.startswith("{") for init in inits)


def end_of_axis(study: StudyResults, numbers: Numbers) -> dict[str, Any]:
    """{key: its best value} where that is at an end of three values or more of a number."""
    along = figures.study_axes(study, numbers)
    main = numbers.measure(numbers.main)
    tried = [numbers.settings[one.arm] for one in main.results]
    best = numbers.settings[main.best.arm]
    if along.ticks or len(tried) < 3:
        return {}
    return {key: best[key] for key in edges(tried, best)}


def by_few_images(found: Sequence[Measure | Sweep]) -> dict[int, list[Measure | Sweep]]:
    """{images: those on so many}, of those on so few that they tell hardly anything."""
    few: dict[int, list[Measure | Sweep]] = {}
    for one in found:
        if one.images and one.images < FEW_IMAGES:
            few.setdefault(one.images, []).append(one)
    return few


def share_one_draw(study: StudyResults) -> bool:
    """Whether several seeds of an arm in the final part learn the same share of the labels."""
    every = (list(study.runs(study.final, arm).values())[:2] for arm in study.plan.arms)
    return any(_same_share(runs) for runs in every if len(runs) > 1)


def _same_share(runs: list[FinishedRun]) -> bool:
    paths = [run.run.folder / "recipe.yaml" for run in runs]
    if not all(path.exists() for path in paths):
        return False
    one, other = (flatten(load_yaml(path)) for path in paths)
    same = one.get("data.share_seed") == other.get("data.share_seed")
    return same and one.get("data.share", 1) != 1


def choosing_seeds(study: StudyResults) -> list[int]:
    """The seeds of sweeps that the final part's runs come from, and which it has too."""
    tasks = {task.name: task for task in study.plan.tasks}
    final = [task for task in tasks.values() if task.part == study.final and not task.values]
    needed, left = set(), [name for task in final for name in task.needs]
    while left:
        name = left.pop()
        if name in tasks and name not in needed:
            needed.add(name)
            left += tasks[name].needs
    chose = {tasks[name].seed for name in needed if tasks[name].values}
    return sorted(chose & {task.seed for task in final})
