"""Whether the images that a study's tasks need are in the folders that are here, and how many."""

import json
from dataclasses import asdict

from ...config.parsing import exists
from ...config.schema import Recipe, chosen_on_held_out, more_held_out, options
from ...errors import UserError
from ...formatting import few_images
from . import compared_parts
from .expand import Plan
from .mistakes import within
from .study import Study


def check(study: Study, plan: Plan, recipes: dict[str, Recipe]) -> list[str]:
    """Check the splits that tasks name, each data set read once; cautions of those with few
    images.

    Args:
        study, plan: the study and its tasks.
        recipes: {task: its recipe}; those of images that are not on this machine are left out.

    Raises:
        UserError: a split is not there, or cannot be read; it names part and arm.
    """
    from ...data import sources  # takes seconds to import
    from ...data.layout import NoTestSplit
    from ...jobs import split_images

    tested = compared_parts.final_parts(study)
    known: dict[tuple[str, bool], sources.Splits] = {}
    cautions: dict[str, str] = {}
    for name, recipe in recipes.items():
        data, part = recipe.data, plan[name].part
        if not data.path or not exists(data.path) or data.stream:
            continue
        tests = recipe.eval.test or recipe.objective == "probe"
        key = json.dumps({key: one for key, one in asdict(data).items() if _decides(key)}), tests
        where = f"part {part}, arm {plan[name].arm}"
        if key not in known:
            with within(where):
                try:
                    known[key] = sources.load(data, tests)
                except NoTestSplit as error:
                    remedy = split_images.with_remedy(recipe, error, part not in tested)
                    raise UserError(remedy) from None
        counts = split_images.measured_on(recipe, known[key])
        chosen = chosen_on_held_out(recipe)
        if part in study.chosen_among:
            chosen = [*chosen, "the best of a grid"]
        for text in few_images(counts, chosen, more_held_out(recipe)):
            cautions.setdefault(text, f"{where}: {text}")
    return list(cautions.values())


def _decides(key: str) -> bool:
    """Whether a key of `data` decides which images there are, or how many of them are drawn."""
    option = options()[f"data.{key}"]
    chosen = option.splits or option.subset or option.reading
    return bool(chosen) and key != "share_seed"  # which draws others, as many
