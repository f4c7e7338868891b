"""Arms at equal compute: the optimiser steps with which an arm costs as many exaFLOP as the setting
that all arms start from."""

from ...config import declaration
from ...config.resolve import resolve
from ...config.schema import Recipe
from ...costs import exaflop
from ...errors import UserError
from .axes import PLACEHOLDER, fill
from .study import Part

TOLERANCE = 0.25  # share of the cost that whole steps may differ by
SCALED = ("optim.steps", "optim.warmup")


def steps(
    part: Part, arm: str, overrides: dict[str, str], places: dict[str, str]
) -> dict[str, str]:
    """The options of one arm's steps and warm-up that cost what the part's own options would.

    Args:
        part: of pre-training; every arm starts from its `base` options.
        arm: of the part.
        overrides: options of the command line.
        places: {name: path} of the study's places.

    Raises:
        UserError: options are wrong, the arm sets what is matched, its work is not counted, or so
            few steps cannot match.
    """
    where = f"match=exaflop: part {part.name}"
    options = part.options[arm]
    for key in SCALED:
        if options.get(key) != part.base.get(key):
            text = f"{key}={options.get(key)}: is what is matched; leave it out"
            raise UserError(f"{where}, arm {arm}: {text}")
    base = _recipe(part.base | overrides, places, f"{where}, before any setting")
    recipe = _recipe(options | overrides, places, f"{where}, arm {arm}")
    whole = _exaflop(base, base.optim.steps * base.optim.batch, f"{where}, before any setting")
    step = _exaflop(recipe, recipe.optim.batch, f"{where}, arm {arm}")
    count = max(1, round(whole / step))
    cost = count * step / whole
    if abs(cost - 1) > TOLERANCE:
        text = f"{count} steps cost {cost:.0%} of the others' and no other number is nearer"
        raise UserError(f"{where}, arm {arm}: {text}; expected more optim.steps=")
    warmup = min(count - 1, round(recipe.optim.warmup * count / recipe.optim.steps))
    return {"optim.steps": str(count), "optim.warmup": str(warmup)}


def _exaflop(recipe: Recipe, images: int, where: str) -> float:
    work = exaflop(recipe, images)
    if work is None:
        predicts = recipe.declared.predicts_patches
        uncounted = predicts and not declaration.target(recipe.target).outputs(recipe.model.patch)
        key = "target" if uncounted else "objective"
        text = f"{key}={getattr(recipe, key)}: its work is not counted, as the plugin does not"
        raise UserError(f"{where}: {text} declare it (docs/extend.md); expected match=steps")
    return work


def _recipe(options: dict[str, str], places: dict[str, str], where: str) -> Recipe:
    """The recipe of the options that do not depend on another part's run."""
    placed = fill(options, places).items()
    known = [f"{key}={value}" for key, value in placed if not PLACEHOLDER.search(value)]
    try:
        return resolve(known, here=False)  # whether images are there is the tasks' own question
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
