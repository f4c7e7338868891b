"""The pretrain, finetune and evaluate tools: from options to a finished run. Torch is imported
late."""

import gc
import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

from ..errors import UserError, report_errors
from ..formatting import shell_command, tool_command
from ..recipe import recipe_files, tool, words
from ..recipe.check import check_place
from ..recipe.init_source import CHOICES, DESCRIBED
from ..recipe.load import recipe_file, resolve, warmup_notice
from ..recipe.records.run import Result
from ..recipe.schema import Recipe, all_keys
from ..recipe.tools import EvaluateOptions, FinetuneOptions, JobOptions, PretrainOptions
from ..recipe.which_images import OTHERS, crop_notice, image_notice, size_notice
from ..runs import trackers
from ..runs.folder import Run
from ..runs.lock import hold_process
from ..training.preemption import SignalHandler
from . import reuse


class JobKind(NamedTuple):
    """What differs between the tools that make one run: `options` of the tool itself, `check` of
    the recipe and the options, and `run`."""

    options: type[JobOptions]
    check: Callable[[Recipe, list[str]], None]
    run: Callable[[Run], Result | None]


def pretrain(options: list[str]) -> None:
    """Train what the options say, or resume it; print the result."""
    _main(options, PRETRAIN)


def finetune(options: list[str]) -> None:
    """The same on labels, from the weights that init= names."""
    _main(options, FINETUNE)


def evaluate(options: list[str]) -> None:
    """Measure a frozen encoder; print the result."""
    _main(options, EVALUATE)


def _main(arguments: list[str], job: JobKind) -> None:
    with report_errors():
        tool_words, options = tool.split(job.options, arguments)
        as_json = tool.build(job.options, tool_words).as_json
        run, result = open_job(options, job)
    if result is None:
        with report_errors(everywhere=True):
            result = job.run(run)
    if result is not None and _is_main():
        from .run_result import run_result  # half a second of imports

        summary = run_result(run, result)
        print(summary)
        if run.recipe.trains and run.recipe.hub.repo:
            from ..hub.manifest import status_lines  # a second of imports

            for name, text in status_lines(run):
                print(f"{name:<11} {text}")
        if as_json:
            print(json.dumps(summary.content()))


def _is_main() -> bool:
    return os.environ.get("RANK", "0") == "0"


def open_job(options: list[str], job: JobKind) -> tuple[Run, Result | None]:
    """The run of a tool's options but its own, and its result where it has finished.

    Raises:
        UserError: as `resolve` and `open_run`, or the recipe is not for this tool.
    """
    recipe = resolve(options, here=False)
    job.check(recipe, options)
    return open_run(recipe, options)


def open_run(recipe: Recipe, options: list[str] | None = None) -> tuple[Run, Result | None]:
    """The recipe's run, and its result where it has finished; `options` are those that the recipe
    was made of, None for none.

    Raises:
        UserError: the folder holds another run, or the images are not where the recipe says.
    """
    run = Run(recipe)
    taken = None  # says which images are used where nobody has named any
    if options:
        run.recipe_file = recipe_file(options, recipe)
        taken = image_notice(options, recipe)
        notices = taken, size_notice(options, recipe), crop_notice(options, recipe)
        _print(*notices, warmup_notice(options, recipe))
        run.printed = [text for text in notices if text and text.startswith("warning: ")]
    run.reconcile()
    result = run.result()
    if result is not None and (again := reuse.measured_again(run)):
        result = None
        _print(again)
    if result is not None:
        if _is_main():  # the other processes only exit
            _print(*(f"warning: {text}" for text in reuse.check(run)))
        return run, result
    reuse.check_unfinished(run)
    try:
        check_place(recipe.data)
    except UserError as error:
        if taken is None:
            raise
        whose = f"the images of init={recipe.init}; {OTHERS}"
        raise UserError(f"{error}; these are {whose}") from None
    trackers.check_installed(recipe.log.trackers or ())
    _print(f"{'run':<11} {run.folder}")  # before the imports of seconds
    return run, None


def _print(*lines: str | None) -> None:
    """Print those that there are, on rank 0."""
    for line in filter(None, lines):
        if _is_main():
            print(line, flush=True)


def _check_pretrain(recipe: Recipe, options: list[str]) -> None:
    if recipe.objective == "probe":
        command = shell_command("python", *tool_command("evaluate"), *options)
        raise UserError(f"objective=probe trains nothing; type {command}")
    for key in recipe.values().keys() - recipe.sources().keys():
        if key in all_keys() and all_keys()[key].names_weights:
            raise UserError(f"{key}= is missing; choices: {DESCRIBED}")
    _check_init_given(recipe, options, only_tested=True)


def _check_finetune(recipe: Recipe, options: list[str]) -> None:
    _check_init_given(recipe, options)
    declared = recipe.declared
    if not declared.labels or declared.parts or not recipe.trains:
        raise recipe.error("objective", "expected objective=supervised, as in recipe=finetune")


def _check_evaluate(recipe: Recipe, options: list[str]) -> None:
    _check_init_given(recipe, options)
    if recipe.objective != "probe":
        raise recipe.error("objective", "expected objective=probe, as in recipe=evaluate")


def _check_init_given(recipe: Recipe, options: list[str], only_tested: bool = False) -> None:
    """Check that init= is given, by a word or in the recipe's file: scratch as a default would hide
    a forgotten option. `only_tested`: where the file says eval.test=true, as those of fine-tuning
    do; training from scratch is what other recipes are for."""
    texts = words.parse(options)
    if not recipe.init_source.is_scratch or "init" in texts:
        return
    values = recipe_files.file_values(recipe_files.find_recipe(texts.get("recipe")))
    if "init" not in values and (values.get("eval.test") or not only_tested):
        raise UserError(f"init= is missing; {CHOICES}")


@contextmanager
def without_collections() -> Iterator[None]:
    """Collect no garbage meanwhile. What an import makes stays; looking through it again and again
    takes a sixth of the time that torch and the other libraries need."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _train(run: Run) -> Result | None:
    """A signal during the import of torch stops the run before its first step."""
    with _hold_process(run), SignalHandler() as signals:
        with without_collections():
            from .train import train

        result = train(run, signals)
        run.signal = signals.reason
    return result


def _probe(run: Run) -> Result | None:
    with _hold_process(run), without_collections():
        from .evaluate import evaluate

        return evaluate(run)


def _hold_process(run: Run) -> AbstractContextManager[None]:
    return hold_process(f"name={run.recipe.name}")


# Functions are looked up at the call, so that a test can replace one.
PRETRAIN = JobKind(PretrainOptions, _check_pretrain, lambda run: _train(run))
FINETUNE = JobKind(FinetuneOptions, _check_finetune, lambda run: _train(run))
EVALUATE = JobKind(EvaluateOptions, _check_evaluate, lambda run: _probe(run))
