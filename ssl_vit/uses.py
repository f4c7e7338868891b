"""Which words a recipe has a use for. No torch here."""

import dataclasses

from .recipe import EMBEDDED, LEARNS_LABELS, OBJECTIVES, Recipe, UserError, flatten

# key -> the key and the value of it without which it has no use
USED_WITH = {
    "optim.momentum": ("optim.name", "sgd"),
    "optim.betas": ("optim.name", "adamw"),
    "corruption.side": ("corruption.shape", "patches"),
    "data.eval_crop": ("data.eval_mode", "crop"),
}
TRAINING = ("optim.", "checkpoint.", "log.", "hub.", "eval.every", "eval.pictures", "eval.test", "data.mixup", "data.cutmix")


def check(recipe: Recipe, given: dict[str, str]) -> None:
    """That no word is said which this recipe has no use for.

    Raises:
        UserError: the first that is.
    """
    flat = flatten(dataclasses.asdict(recipe))
    used, idle = _groups(recipe)
    for key in given:
        if key.split(".")[0] in idle or (key in ("data.classes", "data.label_column") and not LEARNS_LABELS & used):
            raise UserError(f"{key}={given[key]}: objective={recipe.objective} has no use for it{_why(recipe)}")
        if key in ("data.label_column", "data.image_column", "data.window") and recipe.data.name == EMBEDDED:
            lacks = "shards" if key == "data.window" else "columns"
            raise UserError(f"{key}={given[key]}: data={EMBEDDED} is drawn and has no {lacks}")
        if key in ("probe.every", "probe.pictures") and recipe.objective == "probe":
            raise UserError(f"{key}={given[key]}: that is for probes while pre-training; objective=probe has no use for it")
        if recipe.objective == "probe" and key.startswith(TRAINING):
            raise UserError(f"{key}={given[key]}: objective=probe trains nothing and has no use for it")
        if key.startswith("hub.") and key != "hub.repo" and not recipe.hub.repo:
            raise UserError(f"{key}={given[key]}: without hub.repo=USER/NAME there is no use for it")
        other, value = USED_WITH.get(key, ("", None))
        if other and flat[other] != value:
            raise UserError(f"{key}={given[key]}: {other}={str(flat[other]).lower()} has no use for it")


def _groups(recipe: Recipe) -> tuple[set[str], set[str]]:
    """The groups of keys that the objective uses, and those that it does not; a part of `joint` without weight uses none."""
    used = set(OBJECTIVES.get(recipe.objective, ())) | ({"probe"} if recipe.probe.every else set())
    if recipe.objective == "joint":
        gone = [name for name in ("mpp", "supervised") if not getattr(recipe.joint, name)]
        used -= {group for name in gone for group in OBJECTIVES[name]}
    return used, {group for groups in OBJECTIVES.values() for group in groups} - used


def _why(recipe: Recipe) -> str:
    gone = [
        f"joint.{name}=0" for name in ("mpp", "supervised") if recipe.objective == "joint" and not getattr(recipe.joint, name)
    ]
    return f" with {gone[0]}" if gone else ""
