"""What a report says to be careful about, by its numbers and runs. No torch here."""

from collections.abc import Sequence
from typing import Any

from ...config.parsing import flatten, load_yaml
from ...formatting import FEW_IMAGES
from .axes import axes
from .measures import Measure
from .results import StudyResults
from .statistics import Numbers, Pair, Sweep, edges

UNEQUAL = 1.1  # ratio of two arms' compute from which the answer says so


def unequal_compute(pairs: list[Pair], main: Measure) -> list[tuple[Pair, float]]:
    """Of pairs whose training did not cost the same, how many times the other's exaFLOP the arm
    took."""
    spent = {
        one.arm: sum(one.exaflop.values()) / len(one.exaflop) for one in main.results if one.exaflop
    }
    both = (pair for pair in pairs if spent.get(pair.arm) and spent.get(pair.other))
    times = ((pair, spent[pair.arm] / spent[pair.other]) for pair in both)
    return [(pair, one) for pair, one in times if max(one, 1 / one) >= UNEQUAL]


def end_of_axis(study: StudyResults, numbers: Numbers) -> dict[str, Any]:
    """{key: its best value} where that is at an end of three values or more of a number."""
    along = axes(numbers.settings, study.report.axis)
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
    """Whether several seeds of the final part learn a share of the labels, the same for all."""
    runs = [study.runs(study.final, arm) for arm in study.plan.arms] if study.final else []
    several = next((list(found.values()) for found in runs if len(found) > 1), [])
    paths = (run.run.folder / "recipe.yaml" for run in several)
    recipe = next((flatten(load_yaml(path)) for path in paths if path.exists()), {})
    return recipe.get("data.share", 1) != 1 and recipe.get("data.share_seed") is None


def choosing_seeds(study: StudyResults) -> list[int]:
    """The seeds of sweeps that choose for the final part, which has them too."""
    final = [task for task in study.plan.tasks if task.part == study.final]
    chose = {task.seed for task in study.plan.tasks if task.values}
    return sorted(chose & {task.seed for task in final if not task.values})
