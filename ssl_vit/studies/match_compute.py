"""Arms on equal terms: as many optimiser steps as give an arm the exaFLOP of the setting that all
arms start from."""

from ..config.resolve import resolve
from ..config.schema import Recipe
from ..costs import exaflop
from ..errors import UserError
from .spec import PLACEHOLDER, Part

OFF = 0.25  # share of the cost that whole steps may miss
SCALED = ("optim.steps", "optim.warmup")


def steps(part: Part, arm: str, over: dict[str, str], places: dict[str, str]) -> dict[str, str]:
    """The steps and warm-up of one arm that cost what the part's own words would, as words.

    Args:
        part: of pre-training; its `base` words are what every arm starts from.
        over, places: words of the command line, and where the study's places lie.

    Raises:
        UserError: the words are refused, the arm sets what is matched, or so few steps cannot
        match.
    """
    where = f"match=exaflop: part {part.name}"
    if own := [key for key in SCALED if part.options[arm].get(key) != part.base.get(key)]:
        raise UserError(
            f"{where}, arm {arm}: {own[0]}={part.options[arm].get(own[0])}: is what is matched; leave it out"
        )
    base = _recipe(part.base | over, places, f"{where}, before any setting")
    recipe = _recipe(part.options[arm] | over, places, f"{where}, arm {arm}")
    whole = exaflop(base, base.optim.steps * base.optim.batch)
    count = max(1, round(whole / exaflop(recipe, recipe.optim.batch)))
    cost = count * exaflop(recipe, recipe.optim.batch) / whole
    if abs(cost - 1) > OFF:
        text = f"{count} steps cost {cost:.0%} of the others' and no other number is nearer; more optim.steps= are asked for"
        raise UserError(f"{where}, arm {arm}: {text}")
    warmup = min(count - 1, round(recipe.optim.warmup * count / recipe.optim.steps))
    return {"optim.steps": str(count), "optim.warmup": str(warmup)}


def _recipe(words: dict[str, str], places: dict[str, str], where: str) -> Recipe:
    """What the words mean; those that start from another part's run are left out."""
    placed = {
        key: PLACEHOLDER.sub(lambda found: places.get(found[1], found[0]), value)
        for key, value in words.items()
    }
    try:
        return resolve(
            [f"{key}={value}" for key, value in placed.items() if not PLACEHOLDER.search(value)]
        )
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
