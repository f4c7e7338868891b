"""Compare a fine-tuned run with training from scratch, using runs in the same folder. No torch.

A single run of each kind does not decide whether pre-training helps: training from scratch had no
tries of hyperparameters and less compute. Both accuracies are therefore printed without a verdict.
study/worth measures which is better.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ..errors import UserError
from ..formatting import format_exaflop
from ..pages.metric_tables import NOT_KNOWN
from ..recipe import recipe_files, records
from ..recipe.identity import computed_values, differences
from ..recipe.init_source import SCRATCH
from ..recipe.keys import Values
from ..recipe.load import POOL
from ..recipe.records.run import Environment, Result
from ..recipe.schema import Recipe
from ..runs import next_steps
from ..runs.identity import runs_before

MEASURE = "top1"
TUNED = ("optim.", "data.mixup", "data.cutmix")


class Neighbour(NamedTuple):
    """Finished run in the same folder of runs.

    Attributes:
        folder: The folder of the finished run.
        recipe: The recipe of the finished run.
        result: The result of the finished run.
        images: The fingerprints of the splits.
        differ: The keys at which the recipe differs from the fine-tuned run's recipe.
    """

    folder: Path
    recipe: Recipe
    result: Result
    images: object
    differ: set[str]


def beside(folder: Path, recipe: Recipe, result: Result) -> str:
    """Describe how a run from scratch compares with a fine-tuned run, in words.

    The run from scratch has the same length, images and folder of runs. The text gives the
    accuracies, and for each of the two runs the number of tries and the compute. Without such a
    run, the text says that the comparison is not known. It then names a run that differs only in
    POOL, or the command that trains from scratch if no study can compare this pre-training.

    Args:
        folder: The folder of the fine-tuned run.
        recipe: The recipe of the fine-tuned run.
        result: The result of the fine-tuned run.
    """
    neighbours, images = list(_neighbours(folder, recipe)), _images(folder)
    alike = [
        neighbour
        for neighbour in neighbours
        if neighbour.recipe.init == SCRATCH
        and neighbour.differ <= {"init", "seed"}
        and neighbour.images == images
        and MEASURE in neighbour.result.metrics
    ]
    if not alike or MEASURE not in result.metrics:
        why = _other_pooling(neighbours, recipe)
        made = made_by(recipe)
        if not why and (made is None or made.plugin):
            why = f". To train from scratch, type {next_steps.from_scratch(folder)}"
        return f"{NOT_KNOWN}{why}"
    # prefer the run with the same seed
    nearest = min(
        alike, key=lambda neighbour: (neighbour.recipe.seed != recipe.seed, neighbour.folder)
    )
    top1, value = result.metrics[MEASURE].value, nearest.result.metrics[MEASURE].value
    work, all_work = nearest.result.total_exaflop, result.total_exaflop
    less = ", and the compute of the two runs was not matched"
    if made_by(recipe) and work is not None and all_work is not None and work < all_work:
        less = " and less compute"
    tries = _tries(neighbours, SCRATCH)
    tuning = "no tuning" if tries == 1 else f"{tries} tries"
    start, here = (
        f"{count} {'try' if count == 1 else 'tries'}, {format_exaflop(exaflop, 2)}"
        for count, exaflop in ((tries, work), (_tries(neighbours, recipe.init), all_work))
    )
    return (
        f"{NOT_KNOWN}, because training from scratch had {tuning}{less}: {MEASURE} {value:.1%}"
        f" from scratch ({nearest.folder.name}: {start}), {top1:.1%} fine-tuned ({here} including"
        " pre-training)"
    )


def _other_pooling(neighbours: Iterable[Neighbour], recipe: Recipe) -> str:
    """Describe a run from scratch that would be comparable if POOL had the same value.

    The default of POOL may differ between training from scratch and fine-tuning. The text is empty
    if there is no such run.
    """
    for run in neighbours:
        if run.recipe.init == SCRATCH and run.differ - {"init", "seed"} == {POOL}:
            pool, here = run.recipe.value(POOL), recipe.value(POOL)
            text = f"run {run.folder.name} from scratch has {POOL}={pool}"
            return f", because {text}. Train from scratch with {POOL}={here}"
    return ""


def _neighbours(folder: Path, recipe: Recipe) -> Iterator[Neighbour]:
    """Yield the finished runs in the folder of runs that contains `folder`.

    The run in `folder` is one of the runs. Runs with unreadable files are left out.
    """
    for run_folder in sorted(folder.parent.iterdir()):
        with suppress(OSError, ValueError, UserError):
            made = recipe_files.read(run_folder / "recipe.yaml")
            result = records.read(run_folder / "result.json", Result)
            differ = {
                difference.key for difference in differences(_decides(made), _decides(recipe))
            }
            yield Neighbour(run_folder, made, result, _images(run_folder), differ)


def _decides(recipe: Recipe) -> Values:
    """Return the values that decide which weights are tested."""
    best = recipe.checkpoint.best
    chosen = {"checkpoint.best": best, "eval.every": recipe.eval.every if best else None}
    return computed_values(recipe) | chosen


def _images(folder: Path) -> object:
    return records.read(folder / "environment.json", Environment).data


def _tries(neighbours: Iterable[Neighbour], init: str) -> int:
    """Count the runs from weights `init` that differ only in how the weights are optimised."""
    return sum(
        neighbour.recipe.init == init
        and all(key in ("init", "seed") or key.startswith(TUNED) for key in neighbour.differ)
        for neighbour in neighbours
    )


def made_by(recipe: Recipe) -> Recipe | None:
    """Return the recipe of the pre-training that an encoder comes from.

    This is the recipe itself, or the recipe of the latest pre-training among the runs that made the
    initial weights. Return None if no such run exists, or if a run before is missing.
    """
    if recipe.trains and not recipe.fine_tunes:
        return recipe
    for _, before in runs_before(recipe):
        if before is None or (before.trains and not before.fine_tunes):
            return before
    return None
