"""Run the plan tool, which estimates the cost of a run or a study, without importing torch."""

import dataclasses
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..errors import UserError
from ..recipe import tool
from ..recipe.parsing import load_yaml
from ..recipe.schema import Recipe
from ..recipe.words import NAMED, check_keys, parse
from . import engine
from .estimate import RunEstimate, estimate
from .options import PlanOptions
from .study.estimate import StudyEstimate, estimate_request
from .study.request import parse_request


def main(words: list[str]) -> None:
    """Print the estimated cost of a run or a study.

    Raises:
        UserError: An option is wrong.
    """
    result = plan(words)
    print(result)
    if result.asked.as_json:
        content = dataclasses.asdict(result)
        print(json.dumps(content, default=lambda options: options.model_dump(by_alias=True)))


def plan(words: Sequence[str]) -> RunEstimate | StudyEstimate:
    """Estimate what a run or a study will cost.

    Args:
        words: Options as words of a command line.

    Raises:
        UserError: An option is wrong.
    """
    of_study = _is_study(words)
    # a study may have places called images or epochs
    leave = ("images", "epochs") if of_study else ()
    texts, rest = tool.split(PlanOptions, words, leave)
    options = tool.build(PlanOptions, texts)
    if of_study:
        if options.processes > 1:
            text = "this option belongs to a single run and not to a study"
            raise UserError(f"processes={options.processes}: {text}. Leave out processes=.")
        return estimate_request(parse_request(rest, stand_ins=True, look=options.probe), options)
    return _run(rest, options)


def _is_study(words: Sequence[str]) -> bool:
    """Return whether the options name a study, the file of a study, or a sweep over a recipe."""
    named = [word.partition("=")[2] for word in words if word.startswith("recipe=")]
    recipe = named[0] if named else ""
    if "sweep" in words or recipe.startswith("study/"):
        return True
    is_file = recipe.endswith((".yaml", ".yml")) and engine.exists(recipe)
    return is_file and "runs" in load_yaml(Path(recipe))


def _run(words: Sequence[str], plan_options: PlanOptions) -> RunEstimate:
    texts = parse(words)
    engine.run_plugin(texts.get("plugin"))  # the plugin's keys are known from here on
    options = [key for key, option in PlanOptions.options().items() if not option.form]
    check_keys([key for key in texts if key not in NAMED], others=options)
    recipe = engine.resolve(words, "", here=plan_options.probe)
    if plan_options.epochs is not None:
        steps = f"optim.steps={_steps(words, recipe, plan_options)}"
        recipe = engine.resolve([*words, steps], "", here=plan_options.probe)
    result = estimate(recipe, plan_options, engine.measure(recipe) if plan_options.probe else None)
    return dataclasses.replace(result, notice=engine.image_notice(words, recipe))


def _steps(words: Iterable[str], recipe: Recipe, options: PlanOptions) -> int:
    """Return the optimiser steps that `epochs` stands for."""
    where = f"epochs={options.epochs:g}"
    count = engine.count_images(recipe, options.images).trained
    if any(word.startswith("optim.steps=") for word in words):
        raise UserError(f"{where}: optim.steps= is also given. Use only epochs= or optim.steps=.")
    if not recipe.trains:
        raise UserError(f"{where}: an evaluation has no epochs. Leave out epochs=.")
    if count is None:
        text = f"the number of images of data={recipe.data.name} is unknown. Add images=."
        raise UserError(f"{where}: {text}")
    return max(1, round((options.epochs or 0) * count / recipe.optim.batch))
