"""A fine-tuned run beside training from scratch, as far as its folder's neighbours tell. No torch.

One run of each is no comparison: scratch had no tries of its own and less compute. What can be said
is printed without a verdict; study/worth compares them.
"""

from pathlib import Path

from ..errors import UserError
from ..formatting import format_exaflop
from ..pages.metric_tables import NOT_KNOWN
from ..recipe import recipe_files, records
from ..recipe.identity import computed_values, differences
from ..recipe.init_source import SCRATCH
from ..recipe.records.run import Environment, Result
from ..recipe.schema import Recipe
from ..runs.identity import runs_before

MEASURE = "top1"


def beside(folder: Path, recipe: Recipe, result: Result) -> str:
    """A run of the same length from scratch, in the same folder of runs, on the same test images;
    or that there is none."""
    found = _same_from_scratch(folder, recipe)
    if found is None or MEASURE not in result.metrics:
        return NOT_KNOWN
    other, theirs = found
    own, value = result.metrics[MEASURE].value, theirs.metrics[MEASURE].value
    work = (format_exaflop(one.total_exaflop, 2) for one in (theirs, result))
    less, more = work
    return (
        f"{MEASURE} {value:.1%} ({other.name}: untuned, less compute: 1 try, {less}), here"
        f" {own:.1%} (1 try, {more} with its pre-training); {NOT_KNOWN}"
    )


def _same_from_scratch(folder: Path, recipe: Recipe) -> tuple[Path, Result] | None:
    """The first finished run beside a folder that differs from its recipe by the initial weights
    and the seed alone, and was tested on the same images."""
    for other in sorted(folder.parent.iterdir()) if folder.parent.is_dir() else ():
        try:
            made = recipe_files.read(other / "recipe.yaml")
            if made.init != SCRATCH:
                continue
            theirs = records.read(other / "result.json", Result)
            tested = [_tested_on(one) for one in (folder, other)]
            there, here = computed_values(made), computed_values(recipe)
        except (OSError, ValueError, UserError):  # no run, or not a finished one
            continue
        keys = {one.key for one in differences(there, here)} - {"init", "seed"}
        if not keys and tested[0] == tested[1] is not None and MEASURE in theirs.metrics:
            return other, theirs
    return None


def _tested_on(folder: Path) -> object:
    return records.read(folder / "environment.json", Environment).data.get("test")


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
