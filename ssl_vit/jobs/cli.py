"""Run the tools pretrain, finetune and evaluate, from the options to a finished run.

Torch is imported late, so that mistakes in the options are reported at once.
"""

import gc
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

from ..errors import UserError, is_first_process, report_errors
from ..formatting import typed_command
from ..recipe import augmentations, notices, tool
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
    """What distinguishes the tools pretrain, finetune and evaluate.

    Attributes:
        options: Class of the tool's own options, such as `json`.
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
    if result is not None and is_first_process():
        from .run_result import run_result  # half a second of imports

        summary = run_result(run, result)
        print(summary)
        if run.recipe.trains and run.recipe.hub.repo:
            from ..hub.manifest import status_lines  # a second of imports

            for name, text in status_lines(run):
                print(f"{name:<11} {text}")
        if options.as_json:
            print(json.dumps(summary.content()))


def open_job(given: Given, job: JobKind) -> tuple[Run, Result | None]:
    """Open the run that the user's options describe.

    A finished run is opened even if the images are not on this machine.

    Args:
        given: The user's options.
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
    """Open the run of a recipe, and print notices and the folder.

    A finished run is returned with its result. If the recipe now requests further measurements,
    such as `eval.test`, the run counts as not finished. A run that is not finished is checked here,
    before the slow imports of training.

    Returns:
        The run, and the run's result or None if there is work to do.

    Raises:
        UserError: The folder holds another run, or the images are not where the recipe says.
    """
    recipe = resolved.recipe
    run = Run(recipe)
    image_notice = None  # text about the images that are used because no option names images
    if resolved.file is not None:
        run.recipe_file = resolved.recipe_file()
        image_notice = notices.image_notice(resolved)
        lines = image_notice, notices.size_notice(resolved), notices.crop_notice(resolved)
        _print(*lines, notices.warmup_notice(resolved))
        run.printed = [text for text in lines if text and text.startswith("warning: ")]
    run.reconcile()
    result = run.result()
    if result is not None:
        remeasurement = identity.describe_remeasurement(run)
        if not remeasurement:
            if is_first_process():  # the other processes exit without printing
                _print(*(f"warning: {text}" for text in identity.check_finished(run, fingerprint)))
            return run, result
        _print(remeasurement)
    identity.check_same_plugin(run)
    try:
        check_place(recipe.data)
    except UserError as error:
        if image_notice is None:
            raise
        raise UserError(
            f"{error} No option names images, so the training images of init={recipe.init} are "
            f"used. For other images, {OTHERS}."
        ) from None
    trackers.check_installed(recipe.log.trackers or ())
    if recipe.trains:
        augmentations.find(recipe.data.augment)  # an unknown name is an error
    _print(f"{'run':<11} {run.folder}")  # before imports that take seconds
    return run, None


def _print(*lines: str | None) -> None:
    """Print lines on rank 0. Lines that are empty or None are left out."""
    for line in filter(None, lines):
        if is_first_process():
            print(line, flush=True)


def _check_pretrain(resolved: Resolved) -> None:
    """Check that pretrain can train the recipe, and that all necessary weights are named.

    Raises:
        UserError: The recipe is an evaluation, or lacks `init=` or the weights of a teacher.
    """
    recipe = resolved.recipe
    if recipe.objective == "probe":
        command = typed_command("evaluate", *resolved.given.words)
        raise UserError(f"objective=probe: pretrain cannot evaluate an encoder. Type {command}")
    # `sources` has the keys that name weights and have a value. If another key of the recipe names
    # weights, its value is missing
    for key in recipe.values().keys() - recipe.sources().keys():
        if key in all_keys() and all_keys()[key].names_weights:
            raise UserError(f"{key}= is missing, choices: {DESCRIBED}")
    _check_init_given(resolved, only_if_tested=True)


def _check_finetune(resolved: Resolved) -> None:
    _check_init_given(resolved)
    declared = resolved.recipe.declared
    if not declared.labels or declared.parts or not resolved.recipe.trains:
        raise resolved.recipe.error(
            "objective", "finetune cannot train this objective. Use objective=supervised."
        )


def _check_evaluate(resolved: Resolved) -> None:
    _check_init_given(resolved)
    if resolved.recipe.objective != "probe":
        raise resolved.recipe.error(
            "objective",
            "evaluate only measures an encoder. Use objective=probe, or recipe=evaluate.",
        )


def _check_init_given(resolved: Resolved, only_if_tested: bool = False) -> None:
    """Check that the user or the recipe file sets the initial weights (`init=`).

    The default is scratch, so a forgotten `init=` would go unnoticed without this check.

    Args:
        resolved: The checked recipe.
        only_if_tested: Whether to require `init=` only if the recipe file sets eval.test=true, as
            recipes for fine-tuning do. Other recipes train from scratch.

    Raises:
        UserError: `init=` is missing.
    """
    is_default = resolved.origins.get("init") == DEFAULT
    # With only_if_tested, eval.test=true in the recipe file decides. Else init= is always required
    is_required = not only_if_tested or resolved.file_values.get("eval.test")
    if is_default and is_required:
        raise UserError(f"init= is missing, {CHOICES}")


@contextmanager
def without_collections() -> Iterator[None]:
    """Switch the garbage collector off while the body imports modules.

    Imported objects stay alive, so the collector would free nothing. Without this function, the
    collector takes a sixth of the time for importing torch and the other libraries.
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
    """Evaluate the frozen encoder of the run."""
    with _hold_process(run), without_collections():
        from .evaluate import evaluate

        return evaluate(run)


def _hold_process(run: Run) -> AbstractContextManager[None]:
    return hold_process(f"name={run.recipe.name}")


# Each lambda looks its function up at the call, so that a test can replace the function
PRETRAIN = JobKind(PretrainOptions, _check_pretrain, lambda run: _train(run))
FINETUNE = JobKind(FinetuneOptions, _check_finetune, lambda run: _train(run))
EVALUATE = JobKind(EvaluateOptions, _check_evaluate, lambda run: _probe(run))
