"""What a study's report compares, by the recipes of its tasks before any of them starts."""

from collections.abc import Iterator, Mapping

from ...config.schema import Recipe
from ..arms import different_encoders
from .expand import Plan
from .study import Study

ROLES = ("baseline", "candidate", "reference", "pairs")


def final_parts(study: Study) -> list[str]:
    """The parts whose test predictions are compared or shown, along the curve where there is
    one."""
    if study.points:
        return [part for one in study.points for part in (one.final, *one.extra)]
    final = [study.report["final"]] if "final" in study.report else []
    return [*final, *_listed(study, "extra")]


def warnings(study: Study, plan: Plan, recipes: Mapping[str, Recipe]) -> Iterator[str]:
    """Lines for arms that no part of the report has, and for the parts that compare encoders of
    different architectures.

    Args:
        study, plan: the study and its tasks.
        recipes: {task: its recipe}.
    """
    if study.benchmark or not (study.vary or any(study.report.get(role) for role in ROLES)):
        return
    arm_tasks = [
        (task.part, task.arm, [f"{key}={text}" for key, text in task.options.items()])
        for task in plan.values()
    ]
    yield from _not_shown(study)
    found: dict[str, list[str]] = {}
    for part in _measured(study):
        values = {
            task.arm: recipes[name].values()
            for name, task in plan.items()
            if task.part == part and name in recipes
        }
        if text := different_encoders(values, study.vary, arm_tasks):
            found.setdefault(text, []).append(part)
    for text, parts in found.items():
        yield f"{', '.join(parts)}: compares encoders of different architectures, {text}"


def _not_shown(study: Study) -> Iterator[str]:
    """A line for the arms that no part of the report has."""
    reported = {*_measured(study), *final_parts(study)}
    parts = study.parts
    shown = {arm for name in reported & parts.keys() for arm in parts[name].options}
    left = [arm for arm in study.arms if arm not in shown]
    if reported and left:
        yield f"arms {', '.join(left)}: in no part that the report shows (final, probes, extra)"


def _measured(study: Study) -> list[str]:
    """The parts whose arms are compared."""
    finals = [one.final for one in study.points] or final_parts(study)[:1]
    return [*finals, *_listed(study, "probes")]


def _listed(study: Study, key: str) -> list[str]:
    """A list of the report; none of what is no list, which is a mistake."""
    found = study.report.get(key)
    return found if isinstance(found, list) else []
