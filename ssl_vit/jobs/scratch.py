"""A fine-tuned run beside training from scratch, as far as its folder's neighbours tell. No torch.

One run of each is no comparison: scratch had no tries of its own and less compute. What can be said
is printed without a verdict; study/worth compares them.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from ..errors import UserError
from ..formatting import format_exaflop
from ..pages.metric_tables import NOT_KNOWN
from ..recipe import recipe_files, records
from ..recipe.identity import computed_values, differences
from ..recipe.init_source import SCRATCH
from ..recipe.keys import Values
from ..recipe.records.run import Environment, Result
from ..recipe.schema import Recipe
from ..runs.identity import runs_before

MEASURE = "top1"
TUNED = ("optim.", "data.mixup", "data.cutmix")
# A finished run beside this one: its folder, its recipe, and the keys at which the recipes differ
Neighbour = tuple[Path, Recipe, set[str]]


def beside(folder: Path, recipe: Recipe, result: Result) -> str:
    """A run of the same length from scratch, in the same folder of runs and on the same images,
    with the tries and the compute of both; or that there is none."""
    neighbours = list(_neighbours(folder, recipe))
    alike = sorted(
        (made.seed != recipe.seed, other)  # that of the same seed, if there is one
        for other, made, differ in neighbours
        if made.init == SCRATCH and differ <= {"init", "seed"} and _images(other) == _images(folder)
    )
    tested = [(other, records.read(other / "result.json", Result)) for _, other in alike]
    other, theirs = next((one for one in tested if MEASURE in one[1].metrics), (None, None))
    if other is None or theirs is None or MEASURE not in result.metrics:
        return NOT_KNOWN
    own, value = result.metrics[MEASURE].value, theirs.metrics[MEASURE].value
    less, work, all_work = "its compute is not compared", theirs.total_exaflop, result.total_exaflop
    if made_by(recipe) and work is not None and all_work is not None and work < all_work:
        less = "less compute"
    there, here = (
        f"{_tries(neighbours, init)}, {format_exaflop(exaflop, 2)}"
        for init, exaflop in ((SCRATCH, work), (recipe.init, all_work))
    )
    return (
        f"{NOT_KNOWN}, as training from scratch had no tuning and {less}: {MEASURE} {value:.1%}"
        f" ({other.name}: {there}), here {own:.1%} ({here} with its pre-training)"
    )


def _neighbours(folder: Path, recipe: Recipe) -> Iterator[Neighbour]:
    """The finished runs in a folder's own folder."""
    for other in sorted(folder.parent.iterdir()):
        with suppress(OSError, ValueError, UserError):  # no run, or not one that can be read
            made = recipe_files.read(other / "recipe.yaml")
            differ = {one.key for one in differences(_decides(made), _decides(recipe))}
            if (other / "result.json").exists():
                yield other, made, differ


def _decides(recipe: Recipe) -> Values:
    """What decides which weights are tested."""
    best = recipe.checkpoint.best
    chosen = {"checkpoint.best": best, "eval.every": recipe.eval.every if best else None}
    return computed_values(recipe) | chosen


def _images(folder: Path) -> object:
    return records.read(folder / "environment.json", Environment).data


def _tries(neighbours: Iterable[Neighbour], init: str) -> str:
    """How many of them, from these weights, differ by nothing but how they are optimised."""
    count = sum(
        made.init == init
        and all(key in ("init", "seed") or key.startswith(TUNED) for key in differ)
        for _, made, differ in neighbours
    )
    return "1 try" if count == 1 else f"{count} tries"


def made_by(recipe: Recipe) -> Recipe | None:
    """The recipe of the pre-training that an encoder comes from: this one, or that of a run which
    its initial weights come from; None where it is not here."""
    if recipe.trains and not recipe.fine_tunes:
        return recipe
    with suppress(UserError):
        for _, before in runs_before(recipe.init):
            if before.trains and not before.fine_tunes:
                return before
    return None
