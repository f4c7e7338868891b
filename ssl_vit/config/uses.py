"""Which words a recipe has a use for. No torch here."""

import dataclasses

from ..errors import UserError
from .parsing import flatten
from .schema import EMBEDDED, OBJECTIVES, OPTIONS, USES_LABELS, Recipe


def check(recipe: Recipe, given: dict[str, str]) -> None:
    """That no word is said which this recipe has no use for.

    Raises:
        UserError: the first that is.
    """
    flat = flatten(dataclasses.asdict(recipe))
    used, idle = _groups(recipe)
    for key in given:
        if key.split(".")[0] in idle or (
            key in ("data.classes", "data.label_column") and not USES_LABELS & used
        ):
            raise UserError(
                f"{key}={given[key]}: objective={recipe.objective} has no use for it{_why(recipe)}"
            )
        if (
            key in ("data.label_column", "data.image_column", "data.window")
            and recipe.data.name == EMBEDDED
        ):
            lacks = "shards" if key == "data.window" else "columns"
            raise UserError(f"{key}={given[key]}: data={EMBEDDED} is drawn and has no {lacks}")
        if key in ("probe.every", "probe.images") and recipe.objective == "probe":
            raise UserError(
                f"{key}={given[key]}: that is for probes while pre-training; objective=probe has no use for it"
            )
        if recipe.objective == "probe" and OPTIONS[key].training:
            raise UserError(
                f"{key}={given[key]}: objective=probe trains nothing and has no use for it"
            )
        if key.startswith("hub.") and key != "hub.repo" and not recipe.hub.repo:
            raise UserError(
                f"{key}={given[key]}: without hub.repo=USER/NAME there is no use for it"
            )
        required = OPTIONS[key].requires
        if required and flat[required[0]] != required[1]:
            now = f"{required[0]}={str(flat[required[0]]).lower()}"
            raise UserError(f"{key}={given[key]}: {now} has no use for it")


def _groups(recipe: Recipe) -> tuple[set[str], set[str]]:
    """The groups of keys that the objective uses, and those that it does not; a part of `joint`
    without weight uses none."""
    used = set(OBJECTIVES.get(recipe.objective, ())) | ({"probe"} if recipe.probe.every else set())
    if recipe.objective == "joint":
        gone = [name for name in ("mpp", "supervised") if not getattr(recipe.joint, name)]
        used -= {group for name in gone for group in OBJECTIVES[name]}
    return used, {group for groups in OBJECTIVES.values() for group in groups} - used


def _why(recipe: Recipe) -> str:
    gone = [
        f"joint.{name}=0"
        for name in ("mpp", "supervised")
        if recipe.objective == "joint" and not getattr(recipe.joint, name)
    ]
    return f" with {gone[0]}" if gone else ""
