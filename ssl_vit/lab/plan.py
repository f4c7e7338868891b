"""Run the plan tool, which estimates the cost of a run or a study, without importing torch."""

import dataclasses
import json
from pathlib import Path

from ..errors import UserError
from ..recipe.given import Arguments
from ..recipe.load import Resolved, resolve
from ..recipe.notices import image_notice
from ..recipe.parsing import exists, load_yaml
from ..recipe.tool import parse
from ..recipe.words import NAMED, SWEEP, check_keys
from .estimate import RunEstimate, estimate
from .images import count_images
from .options import PlanOptions
from .study.estimate import StudyEstimate, estimate_request
from .study.request import parse_request


def main(words: list[str]) -> None:
    """Print the estimated cost of a run or a study.

    Raises:
        UserError: An option is wrong.
    """
    result = plan(Arguments(words))
    print(result)
    if result.asked.as_json:
        content = dataclasses.asdict(result)
        # the options in `asked` are a pydantic model, the only value that json cannot write itself
        print(json.dumps(content, default=lambda asked: asked.model_dump(by_alias=True)))


def plan(arguments: Arguments) -> RunEstimate | StudyEstimate:
    """Estimate what a run or a study will cost.

    A study's images need not be on this machine. If a study's file asks for a path, such as
    `cifar10=`, and the user sets none, the plan uses a made-up path. Without `probe`, the plan
    opens images only to count them, and only if their path exists.

    Raises:
        UserError: An option is wrong.
    """
    if not _is_study(arguments):
        return _plan_run(parse(PlanOptions, arguments))
    # The plan's own images= and epochs= are for single runs. A study's file may declare options
    # with these two names, so here they are passed on to the study.
    plan_keys = {*PlanOptions.options()} - {"images", "epochs"}
    plan_arguments, study_arguments = arguments.split(plan_keys)
    options = parse(PlanOptions, plan_arguments)
    if options.processes > 1:
        raise UserError(
            f"processes={options.processes}: this option belongs to a single run and not to a"
            " study. Leave out processes=."
        )
    request = parse_request(study_arguments, stand_ins=True, look=options.probe)
    return estimate_request(request, options)


def _is_study(arguments: Arguments) -> bool:
    """Return whether the arguments ask for a study: by name, by file, or as a sweep."""
    pairs = dict(arguments.pairs or ())
    recipe = str(pairs.get("recipe", ""))
    for word in arguments.words:
        if word.startswith("recipe="):
            recipe = word.removeprefix("recipe=")
            break
    if SWEEP in arguments.words or SWEEP in pairs or recipe.startswith("study/"):
        return True
    is_file = recipe.endswith((".yaml", ".yml")) and exists(recipe)
    return is_file and "runs" in load_yaml(Path(recipe))


def _plan_run(options: PlanOptions) -> RunEstimate:
    """Estimate the cost of a single run.

    Args:
        options: Options of the plan. `options.unread` has the recipe keys from the command line,
            still as texts, because a plugin must run first to declare its own keys.

    Raises:
        UserError: An option is wrong.
    """
    recipe_keys = options.unread
    recipe_keys.run_plugin()
    # For a misspelt key, the error also suggests the plan's own options. Options with a `form`
    # (flags, for example) are left out, because they are not typed as KEY=VALUE.
    plan_keys = [key for key, option in PlanOptions.options().items() if not option.form]
    # `recipe`, `data` and `model` name files and presets, so they are not keys of a recipe
    check_keys([key for key in recipe_keys.keys if key not in NAMED], others=plan_keys)
    given = recipe_keys.read()
    # only a run that is timed needs its images on this machine (`here`)
    resolved = resolve(given, here=options.probe)
    if options.epochs is not None:
        # the steps of an epoch follow from the images and the batch of the resolved recipe
        given = given.with_values({"optim.steps": _steps(resolved, options)})
        resolved = resolve(given, here=options.probe)
    timed = None
    if options.probe:
        from ..jobs import step_time  # imports torch

        timed = step_time.measure(resolved.recipe)
    result = estimate(resolved.recipe, options, timed)
    return dataclasses.replace(result, notice=image_notice(resolved))


def _steps(resolved: Resolved, options: PlanOptions) -> int:
    """Return the number of optimiser steps in `options.epochs`.

    Raises:
        UserError: `optim.steps` is also set, the run is an evaluation, or the number of training
            images is unknown.
    """
    recipe, where = resolved.recipe, f"epochs={options.epochs:g}"
    count = count_images(recipe, options.images).trained
    if "optim.steps" in resolved.given.values:
        raise UserError(f"{where}: optim.steps= is also given. Use only epochs= or optim.steps=.")
    if not recipe.trains:
        raise UserError(f"{where}: an evaluation has no epochs. Leave out epochs=.")
    if count is None:
        raise UserError(
            f"{where}: the number of images of data={recipe.data.name} is unknown. Add"
            " images=NUMBER."
        )
    return max(1, round((options.epochs or 0) * count / recipe.optim.batch))
