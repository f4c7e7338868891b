"""Load the splits of a recipe and count the images that metrics are measured on.

This file does not import torch, so that a study can count before it starts.
"""

from contextlib import suppress
from typing import Any

from ..data import run_splits
from ..data.layout import NoTestSplit
from ..data.source import Source, labelled_images
from ..errors import UserError
from ..formatting import count_of_images
from ..recipe.schema import (
    LARGE_SHARE,
    Recipe,
    chosen_on_held_out,
    compared_views,
    measures_masks,
    uses_labels,
)


def load(recipe: Recipe, test: bool) -> run_splits.Splits:
    """Load the splits of a recipe.

    If training uses only labelled images, the training and held-out splits contain only these.

    Args:
        recipe: The recipe.
        test: Load the test split too.

    Raises:
        UserError: See `run_splits.load`. If test images are missing, the message says what to do.
    """
    first = max(run_splits.PREVIEW, recipe.eval.images, recipe.probe.images)
    try:
        splits = run_splits.load(recipe.data, test, first, recipe.seed)
    except NoTestSplit as error:
        raise UserError(with_remedy(recipe, error, untested=True)) from None
    return of_use(recipe, splits)


def of_use(recipe: Recipe, splits: run_splits.Splits) -> run_splits.Splits:
    """Drop unlabelled training and held-out images if training uses only labelled images.

    The loss would draw unlabelled images for nothing. A split without any label is kept, so that a
    later check reports it.
    """
    learns = all(part.labels for part in recipe.declared.trained(recipe))
    if not learns or not recipe.trains or splits.stream is not None:
        return splits
    changed: dict[str, Any] = {}
    notes = list(splits.notes)
    for name in ("train", "validation"):
        source = getattr(splits, name)
        labelled = labelled_images(source)
        if 0 < len(labelled) < len(source):
            changed[name] = labelled
            text = f"uses the {len(labelled):,} labelled images of {len(source):,} images"
            notes.append(f"{name}: {text}")
    return splits._replace(**changed, notes=tuple(notes))


def with_remedy(recipe: Recipe, error: NoTestSplit, untested: bool) -> str:
    """Return an error's text, extended by what the user can do.

    Args:
        recipe: The recipe.
        error: The error.
        untested: Whether the run can do without a test.
    """
    texts = [str(error).rstrip(".")]
    with suppress(UserError):  # the weights may have been deleted
        share = recipe.init_source.images().get("data.test")
        if isinstance(share, float):
            texts.append(f"The run of init={recipe.init} had data.test={share:g}. Use this value")
    if untested and error.labelled and recipe.trains:
        texts.append("To fine-tune without a test, use eval.test=false")
    return ". ".join(texts) + "."


def held_out_images(recipe: Recipe, splits: run_splits.Splits) -> int:
    """Return the number of held-out images on which a run is measured during training."""
    return min(recipe.eval.images, len(splits.validation))


def check_held_out(recipe: Recipe, splits: run_splits.Splits, processes: int) -> None:
    """Check that each process gets a held-out image, or two if the objective compares views.

    Raises:
        UserError: Too few images are held out. The message says which option holds out enough.
    """
    each = 1 if compared_views(recipe) is None else 2  # comparing views needs two images
    needed = processes * each
    if held_out_images(recipe, splits) >= needed:
        return
    expected = f"objective={recipe.objective} needs at least {needed}"
    if processes > 1:
        expected += f" ({each} on each of {processes} processes)"
    held_out = len(splits.validation)
    if held_out >= needed:
        wrong = f"{expected}. Use eval.images={needed}."
        raise recipe.error("eval.images", wrong)
    wrong = f"{count_of_images(held_out)} held out, and {expected}."
    raise recipe.error("data.validation", f"{wrong} {_remedy(recipe, needed)}")


def _remedy(recipe: Recipe, needed: int) -> str:
    """Return what to write to hold out enough images: the first of two shares that suffices."""
    for share in () if recipe.data.stream else (LARGE_SHARE, 0.5):
        with suppress(UserError):  # for instance, groups may be too large
            divided = run_splits.load(recipe.data.model_copy(update={"validation": share}))
            if len(of_use(recipe, divided).validation) >= needed:
                return f"Use data.validation={share:g}."
    return f"Add images, or use a split with at least {needed} images."


def held_out_split(recipe: Recipe) -> str:
    """Return the split of the held-out images. With data.validation=0 they are training images."""
    return "train" if recipe.data.validation == 0 else "validation"


def measured_on(
    recipe: Recipe, splits: run_splits.Splits, held_out: int | None = None
) -> dict[str, int]:
    """Return how many images of each split are used for metrics or to choose something.

    Measures that need labels count only labelled images.

    Args:
        recipe: The recipe.
        splits: The splits.
        held_out: Number of held-out images that a training run has read, if known. Images that
            cannot be read are not measured.
    """
    counts = {}
    if recipe.trains:
        images = held_out_images(recipe, splits) if held_out is None else held_out
        counts[held_out_split(recipe)] = images
    elif chosen_on_held_out(recipe):
        counts[held_out_split(recipe)] = len(measured_images(recipe, splits.validation))
    tested = {} if splits.test is None else {"test": len(measured_images(recipe, splits.test))}
    return counts | tested


def measured_images(recipe: Recipe, source: Source) -> Source:
    """Return the images of a split that are measured: the labelled images if measures need
    labels.
    """
    by_labels = uses_labels(recipe) and not measures_masks(recipe)
    return labelled_images(source) if by_labels else source
