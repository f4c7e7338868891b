"""Compare a fine-tuned run with training from scratch, using runs in the same folder. No torch.

A single run of each kind does not decide whether pre-training helps. For example, training from
scratch may have had fewer tries of hyperparameters and less compute. Both accuracies are therefore
shown without a verdict. The number of tries and the compute of each run are shown with them.
study/worth measures which is better.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ..errors import UserError
from ..formatting import format_exaflop
from ..measurements import MetricKey
from ..recipe import recipe_files, records
from ..recipe.init_source import SCRATCH
from ..recipe.keys import Values
from ..recipe.load import POOL
from ..recipe.records.run import Environment, Measurement, Result
from ..recipe.schema import Recipe, computed_values
from ..runs.identity import differences
from .blocks import Table
from .metric_tables import read_metrics, value_text

MEASURE = MetricKey("top1")
TUNED = ("optim.", "data.mixup", "data.cutmix")


class NearbyRun(NamedTuple):
    """Finished run in the same folder of runs.

    Attributes:
        folder: The folder of the finished run.
        recipe: The recipe of the finished run.
        result: The result of the finished run.
        images: The fingerprints of the splits.
        differing_keys: The keys in which the recipe differs from the fine-tuned run's recipe.
    """

    folder: Path
    recipe: Recipe
    result: Result
    images: object
    differing_keys: set[str]


def scratch_table(folder: Path, recipe: Recipe, result: Result) -> Table | None:
    """Compare a fine-tuned run with a run from scratch in the same folder of runs, in a table.

    The run from scratch must have the same images, and the same recipe except for the initial
    weights and the seed. For each of the two runs, the table has the accuracy on test images, the
    number of tries of hyperparameters, and the compute.

    Args:
        folder: Folder of the fine-tuned run.
        recipe: Recipe of the fine-tuned run.
        result: Result of the fine-tuned run.

    Returns:
        The table, or None without such a run from scratch.
    """
    try:
        fingerprints = _images(folder)
    except (OSError, ValueError):  # environment.json is missing or damaged
        return None
    nearby_runs = _nearby_runs(folder, recipe)
    runs_on_same_images = [run for run in nearby_runs if run.images == fingerprints]
    from_scratch = [
        run
        for run in runs_on_same_images
        if run.recipe.init == SCRATCH
        and run.differing_keys <= {"init", "seed"}
        and _accuracy(run.result)
    ]
    if not from_scratch or not _accuracy(result):
        return None
    # prefer a run with the same seed: False sorts before True
    scratch_run = min(from_scratch, key=lambda run: (run.recipe.seed != recipe.seed, run.folder))
    rows = []
    for name, init, compared_result in (
        ("this run", recipe.init, result),
        (f"from scratch, {scratch_run.folder.name}", SCRATCH, scratch_run.result),
    ):
        reading = read_metrics(_accuracy(compared_result), compared_result.measured_on)[0]
        tries = _count_tries(runs_on_same_images, init)
        work = format_exaflop(compared_result.total_exaflop, 2)
        rows.append([name, value_text(reading), str(tries), work])
    # both runs have the same test images, so the last reading names them for both rows
    head = [reading.images_text, reading.row.words, "tries", "compute with pre-training"]
    return Table(head, rows)


def describe_other_pooling(folder: Path, recipe: Recipe) -> str:
    """Describe a run from scratch that would be comparable if it had the same supervised.pool.

    The key supervised.pool says how the tokens are pooled into one feature. Its default may differ
    between training from scratch and fine-tuning. The text names the run from scratch, and the
    value of supervised.pool with which to train from scratch for a comparison. The text is empty if
    there is no such run.

    Args:
        folder: Folder of a fine-tuned run.
        recipe: Recipe of the fine-tuned run.
    """
    for run in _nearby_runs(folder, recipe):
        other_keys = run.differing_keys - {"init", "seed"}
        if run.recipe.init == SCRATCH and other_keys == {POOL}:
            return (
                f"run {run.folder.name} from scratch has {POOL}={run.recipe.value(POOL)}. To"
                f" compare, train from scratch with {POOL}={recipe.value(POOL)}"
            )
    return ""


def _nearby_runs(folder: Path, recipe: Recipe) -> Iterator[NearbyRun]:
    """Yield the finished runs that are in the same folder of runs as a run.

    Runs with unreadable files are left out. The run itself is yielded, too, if it has finished.

    Args:
        folder: Folder of the run, such as runs/mae to get the runs in `runs`.
        recipe: Recipe of the run. `NearbyRun.differing_keys` are the differences from this recipe.
    """
    values = _values_that_decide_weights(recipe)
    for run_folder in sorted(folder.parent.iterdir()):
        with suppress(OSError, ValueError, UserError):
            run_recipe = recipe_files.read(run_folder / "recipe.yaml")
            result = records.read(run_folder / "result.json", Result)
            differing = differences(_values_that_decide_weights(run_recipe), values)
            keys = {difference.key for difference in differing}
            yield NearbyRun(run_folder, run_recipe, result, _images(run_folder), keys)


def _values_that_decide_weights(recipe: Recipe) -> Values:
    """Return the options that decide which weights a run has when it is tested, as {key: value}."""
    best = recipe.checkpoint.best
    # With checkpoint.best, the best checkpoint is tested, and eval.every decides which steps can be
    # the best. Without checkpoint.best, eval.every has no influence
    selection = {"checkpoint.best": best, "eval.every": recipe.eval.every if best else None}
    return computed_values(recipe) | selection


def _accuracy(result: Result) -> list[Measurement]:
    """Return the measured accuracy on test images as a list. Empty if it was not measured."""
    return [measurement for measurement in result.measurements if measurement.key == MEASURE]


def _images(folder: Path) -> object:
    return records.read(folder / "environment.json", Environment).data


def _count_tries(neighbours: Iterable[NearbyRun], init: str) -> int:
    """Count the runs that tried hyperparameters from the same initial weights.

    Such a run differs from the fine-tuned run only in the initial weights, the seed, and
    hyperparameters. Hyperparameters are the keys that begin with a text in TUNED, such as `optim.`.

    Args:
        neighbours: Finished runs in the same folder of runs, with the same images.
        init: Value of init= that the counted runs have.
    """
    tries = 0
    for neighbour in neighbours:
        other_keys = neighbour.differing_keys - {"init", "seed"}
        if neighbour.recipe.init == init and all(key.startswith(TUNED) for key in other_keys):
            tries += 1
    return tries
