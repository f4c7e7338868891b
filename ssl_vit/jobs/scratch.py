"""A fine-tuned run beside training from scratch, as far as its folder's neighbours tell. No torch.

One run of each is no comparison: scratch had no tries of its own and less compute. What can be said
is printed without a verdict; study/worth compares them.
"""

from collections.abc import Iterator
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


def beside(folder: Path, recipe: Recipe, result: Result) -> str:
    """A run of the same length from scratch, in the same folder of runs and on the same images,
    with the tries and the compute of both; or that there is none."""
    found = _same_from_scratch(folder, recipe)
    if found is None or MEASURE not in result.metrics:
        return NOT_KNOWN
    other, theirs = found
    own, value = result.metrics[MEASURE].value, theirs.metrics[MEASURE].value
    less = "less compute" if _less(theirs, result, recipe) else "its compute is not compared"
    there, here = (
        f"{_tries(folder, recipe, init)}, {format_exaflop(one.total_exaflop, 2)}"
        for init, one in ((SCRATCH, theirs), (recipe.init, result))
    )
    return (
        f"{NOT_KNOWN}, as training from scratch had no tuning and {less}: {MEASURE} {value:.1%}"
        f" ({other.name}: {there}), here {own:.1%} ({here} with its pre-training)"
    )


def _less(theirs: Result, own: Result, recipe: Recipe) -> bool:
    """Whether scratch took less; not known where the pre-training's compute is not."""
    works = theirs.total_exaflop, own.total_exaflop
    known = made_by(recipe) is not None and works[0] is not None and works[1] is not None
    return known and works[0] < works[1]  # type: ignore[operator]


def _neighbours(folder: Path, recipe: Recipe) -> Iterator[tuple[Path, Recipe, set[str]]]:
    """The finished runs in a folder's own folder, and the keys at which their recipes differ."""
    for other in sorted(folder.parent.iterdir()) if folder.parent.is_dir() else ():
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


def _same_from_scratch(folder: Path, recipe: Recipe) -> tuple[Path, Result] | None:
    """The neighbour that differs by the initial weights and the seed alone, of the same seed if
    there is one, and has the same images."""
    found = sorted(
        (made.seed != recipe.seed, other)
        for other, made, differ in _neighbours(folder, recipe)
        if made.init == SCRATCH and differ <= {"init", "seed"} and _images(other) == _images(folder)
    )
    for _, other in found:
        theirs = records.read(other / "result.json", Result)
        if MEASURE in theirs.metrics:
            return other, theirs
    return None


def _images(folder: Path) -> object:
    return records.read(folder / "environment.json", Environment).data


def _tries(folder: Path, recipe: Recipe, init: str) -> str:
    """How many neighbours from these weights differ by nothing but how they are optimised."""
    count = sum(
        made.init == init
        and all(key in ("init", "seed") or key.startswith(TUNED) for key in differ)
        for _, made, differ in _neighbours(folder, recipe)
    )
    return "1 try" if count == 1 else f"{count} tries"


def made_by(recipe: Recipe) -> Recipe | None:
    """The recipe of the pre-training that an encoder comes from: this one, or that of a run which
    its initial weights come from; None where it is not here."""
    if recipe.trains and not recipe.fine_tunes:
        return recipe
    try:
        for _, before in runs_before(recipe.init):
            if not before.fine_tunes and before.trains:
                return before
    except UserError:
        return None
    return None
