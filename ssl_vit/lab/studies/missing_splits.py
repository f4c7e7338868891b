"""Whether the images that a study's tasks need are in the folders that are here."""

import json
from dataclasses import asdict

from ...config.parsing import exists
from ...config.schema import Recipe, options
from ...errors import UserError
from .expand import Plan
from .mistakes import Mistakes


def check(plan: Plan, recipes: dict[str, Recipe], mistakes: Mistakes) -> None:
    """Collect the mistakes of the splits that tasks name, each data set read once.

    Args:
        plan: the tasks.
        recipes: {task: its recipe}; those of images that are not on this machine are left out.
        mistakes: collects them.
    """
    known: dict[tuple[str, bool], str] = {}
    for name, recipe in recipes.items():
        data = recipe.data
        if not data.path or not exists(data.path) or data.stream:
            continue
        tests = recipe.eval.test or recipe.objective == "probe"
        key = json.dumps({key: one for key, one in asdict(data).items() if _decides(key)}), tests
        if key not in known:
            known[key] = _mistake(recipe, tests)
        if known[key]:
            with mistakes.of(f"part {plan[name].part}, arm {plan[name].arm}"):
                raise UserError(known[key])


def _decides(key: str) -> bool:
    """Whether a key of `data` decides which images there are, or how many of them are drawn."""
    option = options()[f"data.{key}"]
    chosen = option.splits or option.subset or option.reading
    return bool(chosen) and key != "share_seed"  # which draws others, as many


def _mistake(recipe: Recipe, tests: bool) -> str:
    from ...data import sources  # takes seconds to import

    try:
        sources.load(recipe.data, tests)
    except UserError as error:
        return str(error)
    return ""
