"""A fine-tuned run beside training from scratch, as far as its folder's neighbours tell. No torch.

One run of each is no comparison: scratch had no tries of its own and less compute. What can be said
is printed without a verdict; study/worth compares them.
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
    """A finished run in the same folder; `differ`: the keys at which the recipes differ."""

    folder: Path
    recipe: Recipe
    result: Result
    images: object  # the fingerprints of its splits
    differ: set[str]


def beside(folder: Path, recipe: Recipe, result: Result) -> str:
    """A run of the same length from scratch, in the same folder of runs and on the same images,
    with the tries and the compute of both; or that there is none, and how to make it where no study
    compares this pre-training."""
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
            why = f"; the same from scratch: {next_steps.from_scratch(folder)}"
        return f"{NOT_KNOWN}{why}"
    # that of the same seed, if there is one
    nearest = min(
        alike, key=lambda neighbour: (neighbour.recipe.seed != recipe.seed, neighbour.folder)
    )
    top1, value = result.metrics[MEASURE].value, nearest.result.metrics[MEASURE].value
    work, all_work = nearest.result.total_exaflop, result.total_exaflop
    less = "its compute is not compared"
    if made_by(recipe) and work is not None and all_work is not None and work < all_work:
        less = "less compute"
    tries = _tries(neighbours, SCRATCH)
    tuning = "no tuning" if tries == 1 else f"{tries} tries"
    start, here = (
        f"{count} {'try' if count == 1 else 'tries'}, {format_exaflop(exaflop, 2)}"
        for count, exaflop in ((tries, work), (_tries(neighbours, recipe.init), all_work))
    )
    return (
        f"{NOT_KNOWN}, as training from scratch had {tuning} and {less}: {MEASURE} {value:.1%}"
        f" ({nearest.folder.name}: {start}), here {top1:.1%} ({here} with its pre-training)"
    )


def _other_pooling(neighbours: Iterable[Neighbour], recipe: Recipe) -> str:
    """What keeps a run from scratch from standing beside it that reads another feature of an image,
    as one has it by default that is not told otherwise; empty where there is none."""
    for run in neighbours:
        if run.recipe.init == SCRATCH and run.differ - {"init", "seed"} == {POOL}:
            pool, here = run.recipe.value(POOL), recipe.value(POOL)
            return f", as {run.folder.name} has {POOL}={pool}; with {POOL}={here} it compares"
    return ""


def _neighbours(folder: Path, recipe: Recipe) -> Iterator[Neighbour]:
    """The finished runs in a folder's own folder; none that cannot be read as a whole."""
    for run_folder in sorted(folder.parent.iterdir()):
        with suppress(OSError, ValueError, UserError):
            made = recipe_files.read(run_folder / "recipe.yaml")
            result = records.read(run_folder / "result.json", Result)
            differ = {
                difference.key for difference in differences(_decides(made), _decides(recipe))
            }
            yield Neighbour(run_folder, made, result, _images(run_folder), differ)


def _decides(recipe: Recipe) -> Values:
    """What decides which weights are tested."""
    best = recipe.checkpoint.best
    chosen = {"checkpoint.best": best, "eval.every": recipe.eval.every if best else None}
    return computed_values(recipe) | chosen


def _images(folder: Path) -> object:
    return records.read(folder / "environment.json", Environment).data


def _tries(neighbours: Iterable[Neighbour], init: str) -> int:
    """How many of them, from these weights, differ by nothing but how they are optimised."""
    return sum(
        neighbour.recipe.init == init
        and all(key in ("init", "seed") or key.startswith(TUNED) for key in neighbour.differ)
        for neighbour in neighbours
    )


def made_by(recipe: Recipe) -> Recipe | None:
    """The recipe of the pre-training that an encoder comes from: this one, or that of a run which
    its initial weights come from; None where it is not here."""
    if recipe.trains and not recipe.fine_tunes:
        return recipe
    for _, before in runs_before(recipe):
        if before is None or (before.trains and not before.fine_tunes):
            return before
    return None
