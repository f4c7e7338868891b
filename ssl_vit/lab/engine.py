"""What the lab knows of the engine: recipes by their options, their identity and cost, and the
command that runs a task. A run's folder is the other thing that it knows."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .. import costs, hub_files
from ..config import declaration
from ..config.recipe_files import file_values, find_recipe
from ..config.resolve import resolve as resolve_options
from ..config.schema import Recipe, all_groups
from ..errors import UserError


class Cost(NamedTuple):
    """What a training run costs."""

    steps: int
    warmup: int
    exaflop_a_step: float


def uses(tool: str, key: str, options: Mapping[str, str]) -> bool:
    """Whether a tool with these options uses another option of a recipe."""
    group = key.split(".")[0]
    if tool == "evaluate" or group == "probe":
        return tool == "evaluate" and group in ("probe", "data", "model", "compute")
    objective = options.get("objective")
    if objective is None:
        file = find_recipe(options.get("recipe"))
        objective = file_values(file).get("objective", Recipe.objective)
    of_objectives = {"target", *(one.name for one in all_groups())}
    declared = declaration.objectives().get(objective)
    return group not in of_objectives or (declared is not None and group in declared.groups)


def resolve(options: Sequence[str], where: str, here: bool = True) -> Recipe:
    """The recipe of options; its errors begin with `where`.

    Args:
        options: words KEY=VALUE.
        where: opens errors.
        here: check that images are on this machine.

    Raises:
        UserError: an option is wrong.
    """
    try:
        return resolve_options(list(options), here)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def cost(options: Sequence[str], where: str) -> Cost:
    """What a training run with these options costs; whether its images are there is not asked.

    Raises:
        UserError: an option is wrong, or its work is not counted.
    """
    recipe = resolve(options, where, here=False)
    a_step = costs.exaflop(recipe, recipe.optim.batch)
    if a_step is None:
        raise UserError(f"{where}: objective={recipe.objective}: its work is not counted")
    return Cost(recipe.optim.steps, recipe.optim.warmup, a_step)


def repository_beside(repository: str, name: str) -> str:
    """The Hub's repository of one of several runs."""
    return hub_files.beside(repository, name)
