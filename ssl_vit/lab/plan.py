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
        print(json.dumps(content, default=lambda options: options.model_dump(by_alias=True)))


def plan(arguments: Arguments) -> RunEstimate | StudyEstimate:
    """Estimate what a run or a study will cost.

    Raises:
        UserError: An option is wrong.
    """
    if not _is_study(arguments):
        return _plan_run(parse(PlanOptions, arguments))
    # a study may have places called images or epochs
    own, rest = arguments.split({*PlanOptions.options()} - {"images", "epochs"})
    options = parse(PlanOptions, own)
    if options.processes > 1:
        text = "this option belongs to a single run and not to a study"
        raise UserError(f"processes={options.processes}: {text}. Leave out processes=.")
    return estimate_request(parse_request(rest, stand_ins=True, look=options.probe), options)


def _is_study(arguments: Arguments) -> bool:
    """Return whether the arguments name a study, the file of a study, or a sweep over a recipe."""
    pairs = dict(arguments.pairs or ())
    named = [word.partition("=")[2] for word in arguments.words if word.startswith("recipe=")]
    recipe = str(named[0] if named else pairs.get("recipe", ""))
    if SWEEP in arguments.words or SWEEP in pairs or recipe.startswith("study/"):
        return True
    is_file = recipe.endswith((".yaml", ".yml")) and exists(recipe)
    return is_file and "runs" in load_yaml(Path(recipe))


def _plan_run(options: PlanOptions) -> RunEstimate:
    """Return the estimate of a single run.

    Raises:
        UserError: An option is wrong.
    """
    unread = options.unread
    unread.run_plugin()
    names = [key for key, option in PlanOptions.options().items() if not option.form]
    check_keys([key for key in unread.keys if key not in NAMED], others=names)
    given = unread.read()
    resolved = resolve(given, here=options.probe)
    if options.epochs is not None:
        given = given.with_values({"optim.steps": _steps(resolved, options)})
        resolved = resolve(given, here=options.probe)
    timed = None
    if options.probe:
        from ..jobs import step_time  # imports torch

        timed = step_time.measure(resolved.recipe)
    result = estimate(resolved.recipe, options, timed)
    return dataclasses.replace(result, notice=image_notice(resolved))


def _steps(resolved: Resolved, options: PlanOptions) -> int:
    """Return the optimiser steps that `epochs` stands for."""
    recipe, where = resolved.recipe, f"epochs={options.epochs:g}"
    count = count_images(recipe, options.images).trained
    if "optim.steps" in resolved.given.values:
        raise UserError(f"{where}: optim.steps= is also given. Use only epochs= or optim.steps=.")
    if not recipe.trains:
        raise UserError(f"{where}: an evaluation has no epochs. Leave out epochs=.")
    if count is None:
        text = f"the number of images of data={recipe.data.name} is unknown. Add images=."
        raise UserError(f"{where}: {text}")
    return max(1, round((options.epochs or 0) * count / recipe.optim.batch))
