"""Run the tools pretrain, finetune and evaluate, from the options to a finished run.

Torch is imported late, so that mistakes in the options are reported at once.
"""

import gc
import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

from ..errors import UserError, report_errors
from ..formatting import typed_command
from ..recipe import notices, tool
from ..recipe.check import check_place
from ..recipe.given import Arguments, Given
from ..recipe.init_source import CHOICES, DESCRIBED
from ..recipe.load import DEFAULT, Resolved, resolve
from ..recipe.records.run import Result
from ..recipe.schema import all_keys
from ..recipe.tools import EvaluateOptions, FinetuneOptions, JobOptions, PretrainOptions
from ..recipe.which_images import OTHERS
from ..runs import identity, trackers
from ..runs.folder import Run
from ..runs.lock import hold_process
from ..training.preemption import SignalHandler
from .image_facts import fingerprint


class JobKind(NamedTuple):
    """Differences between the tools that make a run.

    Attributes:
        options: Class of the options of the tool itself, such as `json`.
        check: Checks that a resolved recipe suits the tool, or raises a UserError.
        run: Does the work of a run, and returns the content of result.json, or None on processes
            other than rank 0.
    """

    options: type[JobOptions]
    check: Callable[[Resolved], None]
    run: Callable[[Run], Result | None]


def pretrain(options: list[str]) -> None:
    """Train a run with these options, or resume the run, and print the result."""
    _main(options, PRETRAIN)


def finetune(options: list[str]) -> None:
    """Fine-tune the encoder of `init=` on labels, or resume the run, and print the result."""
    _main(options, FINETUNE)


def evaluate(options: list[str]) -> None:
    """Evaluate the frozen encoder of `init=`, and print the result."""
    _main(options, EVALUATE)


def _main(arguments: list[str], job: JobKind) -> None:
    with report_errors():
        options = tool.parse(job.options, Arguments(arguments))
        run, result = open_job(options.given, job)
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
        if options.as_json:
            print(json.dumps(summary.content()))


def _is_main() -> bool:
    return os.environ.get("RANK", "0") == "0"


def open_job(given: Given, job: JobKind) -> tuple[Run, Result | None]:
    """Open the run that the user's values describe.

    The images need not be on this machine: a finished run is opened without them.

    Args:
        given: Values of the user.
        job: The tool.

    Returns:
        The run, and the run's result if the run has finished, else None.

    Raises:
        UserError: As for `resolve` and `open_run`, or the recipe does not suit the tool.
    """
    resolved = resolve(given, here=False)
    job.check(resolved)
    return open_run(resolved)


def open_run(resolved: Resolved) -> tuple[Run, Result | None]:
    """Open the run of a recipe, and print the folder and what the user should know.

    There are three cases. A finished run is checked and returned with its result. A finished run
    for which the recipe now asks for further measurements, such as `eval.test`, is returned without
    a result. A run that has not finished is checked before the slow imports of training.

    Returns:
        The run, and the run's result if the run has finished and needs no new measurements, else
        None.

    Raises:
        UserError: The folder holds another run, or the images are not where the recipe says.
    """
    recipe = resolved.recipe
    run = Run(recipe)
    image_notice = None  # says which images are used if the user and the recipe file name none
    if resolved.file is not None:
        run.recipe_file = resolved.recipe_file()
        image_notice = notices.image_notice(resolved)
        lines = image_notice, notices.size_notice(resolved), notices.crop_notice(resolved)
        _print(*lines, notices.warmup_notice(resolved))
        run.printed = [text for text in lines if text and text.startswith("warning: ")]
    run.reconcile()
    result = run.result()
    remeasurement = identity.describe_remeasurement(run) if result is not None else ""
    _print(remeasurement)
    if result is not None and not remeasurement:
        if _is_main():  # the other processes exit without printing
            _print(*(f"warning: {text}" for text in identity.check_finished(run, fingerprint)))
        return run, result
    identity.check_same_plugin(run)
    try:
        check_place(recipe.data)
    except UserError as error:
        if image_notice is None:
            raise
        text = f"No option names images, so the training images of init={recipe.init} are used."
        raise UserError(f"{error} {text} For other images, {OTHERS}.") from None
    trackers.check_installed(recipe.log.trackers or ())
    _print(f"{'run':<11} {run.folder}")  # before imports that take seconds
    return run, None


def _print(*lines: str | None) -> None:
    """Print on rank 0 the lines that are not empty or None."""
    for line in filter(None, lines):
        if _is_main():
            print(line, flush=True)


def _check_pretrain(resolved: Resolved) -> None:
    recipe = resolved.recipe
    if recipe.objective == "probe":
        command = typed_command("evaluate", *resolved.given.words)
        raise UserError(f"objective=probe: pretrain cannot evaluate an encoder. Type {command}")
    for key in recipe.values().keys() - recipe.sources().keys():
        if key in all_keys() and all_keys()[key].names_weights:
            raise UserError(f"{key}= is missing, choices: {DESCRIBED}")
    _check_init_given(resolved, only_if_tested=True)


def _check_finetune(resolved: Resolved) -> None:
    _check_init_given(resolved)
    declared = resolved.recipe.declared
    if not declared.labels or declared.parts or not resolved.recipe.trains:
        text = "finetune cannot train this objective. Use objective=supervised."
        raise resolved.recipe.error("objective", text)


def _check_evaluate(resolved: Resolved) -> None:
    _check_init_given(resolved)
    if resolved.recipe.objective != "probe":
        text = "evaluate only measures an encoder. Use objective=probe, or recipe=evaluate."
        raise resolved.recipe.error("objective", text)


def _check_init_given(resolved: Resolved, only_if_tested: bool = False) -> None:
    """Check that the user or the recipe file gives `init=`, the weights to begin with.

    With scratch as a silent default, a forgotten `init=` would go unnoticed.

    Args:
        resolved: The checked recipe.
        only_if_tested: Whether to require `init=` only if the recipe file sets eval.test=true, as
            recipes for fine-tuning do. Without eval.test, a recipe is for training from scratch.

    Raises:
        UserError: `init=` is missing.
    """
    is_default = resolved.origins.get("init") == DEFAULT
    if is_default and (resolved.file_values.get("eval.test") or not only_if_tested):
        raise UserError(f"init= is missing, {CHOICES}")


@contextmanager
def without_collections() -> Iterator[None]:
    """Switch the garbage collector off while the body imports modules.

    The objects that imports create stay alive. Examining them again and again takes a sixth of the
    time for importing torch and the other libraries.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _train(run: Run) -> Result | None:
    """Train the run. A signal during the import of torch stops the run before the first step."""
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


# The lambdas look the functions up when they are called, so that a test can replace a function.
PRETRAIN = JobKind(PretrainOptions, _check_pretrain, lambda run: _train(run))
FINETUNE = JobKind(FinetuneOptions, _check_finetune, lambda run: _train(run))
EVALUATE = JobKind(EvaluateOptions, _check_evaluate, lambda run: _probe(run))
