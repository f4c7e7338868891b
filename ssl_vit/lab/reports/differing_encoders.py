"""Whether the arms that a report compares end in encoders of one architecture. No torch here."""

from ...config.parsing import flatten, load_yaml
from ..arms import different_encoders
from .results import StudyResults


def find(study: StudyResults, part: str | None) -> str:
    """The arms of a part by the architecture of their encoders; empty where all have one, or none
    is known."""
    if not study.compares:
        return ""
    runs = {arm: list(study.runs(part, arm).values())[:1] for arm in study.plan.arms}
    paths = {arm: one[0].run.folder / "recipe.yaml" for arm, one in runs.items() if one}
    recipes = {arm: flatten(load_yaml(path)) for arm, path in paths.items() if path.exists()}
    arm_tasks = [(task.part, task.arm, task.options or []) for task in study.plan.tasks]
    return different_encoders(recipes, study.vary, arm_tasks)
