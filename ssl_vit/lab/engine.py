"""What the lab knows of the engine: recipes by their options, their identity and cost, and the
command that runs a task. A run's folder is the other thing that it knows."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from .. import costs, hub_files
from ..config import declaration
from ..config.recipe_files import file_values, find_recipe
from ..config.resolve import resolve as resolve_options
from ..config.schema import Recipe, all_groups
from ..data.batch_layout import BatchLayout
from ..errors import UserError
from ..runs import environment, lock

WITHOUT_GPU = 3 << 28  # 0.75 GiB: Python, torch and the libraries of a process
WITH_GPU = 4 << 30  # the same with CUDA and data workers: a guess


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


def memory_need(recipe: Recipe, gpu: bool) -> int:
    """Estimated bytes of CPU memory of a run: libraries and, without a GPU, tensors.

    Activations are those of a whole batch, but at most half of the memory, as jobs/resources.py
    chooses the device batch. An evaluation keeps the features of all images, twice while it
    concatenates them.
    """
    kept = 0
    if recipe.objective == "probe":
        kept = 2 * 4 * recipe.model.width * (costs.images_seen(recipe) or 0)
    if gpu:
        return WITH_GPU + kept
    batch = recipe.compute.batch or recipe.optim.batch
    tensors = costs.memory_bytes(recipe, processes=1, zero=0, batch=batch, fused=False)
    activations = min(tensors.pop("activations"), psutil.virtual_memory().total // 2)
    return WITHOUT_GPU + activations + sum(tensors.values()) + kept


def check_processes(recipe: Recipe, processes: int) -> None:
    """
    Raises:
        UserError: so many processes do not divide the batch of a recipe that trains.
    """
    if recipe.objective != "probe":  # which takes any
        batch = recipe.optim.batch
        BatchLayout.divide(batch, recipe.compute.batch, batch, 0, processes)


def is_written(folder: Path) -> bool:
    """Whether a process writes a run's folder."""
    return lock.is_held(folder)


def cores() -> int:
    """CPU cores that this process may use."""
    return environment.cores()
