"""Load the splits of a recipe and count the images that metrics are measured on.

This file does not import torch, so that a study can count before it starts.
"""

from contextlib import suppress
from typing import Any

from ..data import run_splits
from ..data.layout import NoTestSplitError
from ..data.source import Source, labelled_images
from ..errors import UserError
from ..formatting import format_count, format_image_count
from ..recipe.schema import (
    LARGE_SHARE,
    Recipe,
    compared_views,
    describe_held_out_choices,
    measures_masks,
    uses_labels,
)


def load(recipe: Recipe, test: bool) -> run_splits.Splits:
    """Load the splits of a recipe, without unlabelled images if the loss needs labels.

    Args:
        recipe: Recipe of the run or evaluation.
        test: Whether to load the test split, too.

    Raises:
        UserError: There are no images, a split or column does not exist, or a split has no images.
            If test images are missing, the message says what to do.
    """
    # From a stream, this number of images is read in advance to fill the splits
    first_images = max(run_splits.PREVIEW, recipe.eval.images, recipe.probe.images)
    try:
        splits = run_splits.load(recipe.data, test, first_images, recipe.seed)
    except NoTestSplitError as error:
        raise UserError(explain_missing_test(recipe, error, may_skip_test=True)) from None
    return drop_unlabelled(recipe, splits)


def drop_unlabelled(recipe: Recipe, splits: run_splits.Splits) -> run_splits.Splits:
    """Drop unlabelled training and held-out images if every part of the loss needs labels.

    A joint objective is a sum of losses, for example a supervised loss and a loss on masked
    patches. Parts of weight 0 are ignored. A split without any label stays unchanged, so that a
    later check reports the missing labels. A stream of images also stays unchanged.

    Args:
        recipe: Recipe of the run or evaluation.
        splits: Images of the run or evaluation.
    """
    # The parts of a joint objective with a weight above 0; otherwise only the objective itself
    parts_of_loss = recipe.declared.trained(recipe)
    needs_labels = all(part.labels for part in parts_of_loss)
    if not needs_labels or not recipe.trains or splits.stream is not None:
        return splits
    labelled_splits: dict[str, Any] = {}
    notes = list(splits.notes)
    for name in ("train", "validation"):
        source = getattr(splits, name)
        labelled = labelled_images(source)
        if 0 < len(labelled) < len(source):
            labelled_splits[name] = labelled
            notes.append(
                f"{name}: uses only the labelled images ({len(labelled):,} of {len(source):,})"
            )
    return splits._replace(**labelled_splits, notes=tuple(notes))


def explain_missing_test(recipe: Recipe, error: NoTestSplitError, may_skip_test: bool) -> str:
    """Return the text of an error about missing test images, and add remedies.

    Args:
        recipe: Recipe of the run or evaluation.
        error: Error of `run_splits.load`. It says whether the training images are labelled.
        may_skip_test: Whether the run may end without a test (eval.test=false).
    """
    sentences = [str(error)]
    with suppress(UserError):  # for example, if the weights of init= have been deleted
        # data.test of the run that trained the weights: a share (float) or the name of a split
        share = recipe.init_source.images().get("data.test")
        if isinstance(share, float):
            sentences.append(
                f"The run of init={recipe.init} had data.test={share:g}. Use this value."
            )
    if may_skip_test and error.labelled and recipe.trains:
        sentences.append("To fine-tune without a test, use eval.test=false.")
    return " ".join(sentences)


def held_out_images(recipe: Recipe, splits: run_splits.Splits) -> int:
    """Return the number of held-out images that a run is measured on during training."""
    return min(recipe.eval.images, len(splits.validation))


def check_held_out(recipe: Recipe, splits: run_splits.Splits, processes: int) -> None:
    """Check that each process gets a held-out image, or two if the objective compares views.

    During training, at most eval.images held-out images are read. If enough images are held out but
    eval.images is too small, the error names eval.images. Otherwise, the error names
    data.validation.

    Args:
        recipe: Recipe of the run.
        splits: Images of the run.
        processes: Number of processes of the run.

    Raises:
        UserError: Too few images are held out. The message says which option holds out enough.
    """
    per_process = 1 if compared_views(recipe) is None else 2  # comparing views needs two images
    needed = processes * per_process
    if held_out_images(recipe, splits) >= needed:
        return
    held_out = len(splits.validation)
    if held_out >= needed:
        raise recipe.error(
            "eval.images",
            f"objective={recipe.objective} needs at least {needed} held-out images on"
            f" {format_count(processes, 'processes')}. Use eval.images={needed}.",
        )
    raise recipe.error(
        "data.validation",
        f"the run holds out {format_image_count(held_out)}, and objective={recipe.objective} needs"
        f" at least {needed} on {format_count(processes, 'processes')}."
        f" {_suggest_more_held_out(recipe, needed)}",
    )


def _suggest_more_held_out(recipe: Recipe, needed: int) -> str:
    """Return a sentence that says how to hold out at least `needed` images.

    The sentence suggests to hold out the share 0.2 (LARGE_SHARE) of the training images, or 0.5 if
    0.2 is not enough. If 0.5 is not enough, or if the data set is a stream, the sentence asks for
    more images.

    Args:
        recipe: Recipe of the run.
        needed: Number of images to hold out.
    """
    # A stream holds out a number of images, not a share
    shares = [] if recipe.data.stream else [LARGE_SHARE, 0.5]
    for share in shares:
        # A UserError means that this share is impossible. For example, a group of images, which
        # must stay in one split (data.group), may be too large
        with suppress(UserError):
            splits = run_splits.load(recipe.data.model_copy(update={"validation": share}))
            if len(drop_unlabelled(recipe, splits).validation) >= needed:
                return f"Use data.validation={share:g}."
    return f"Add images, or use a split with at least {needed} images."


def held_out_split(recipe: Recipe) -> str:
    """Return the split of the held-out images. This is "train" with data.validation=0."""
    return "train" if recipe.data.validation == 0 else "validation"


def count_measured_images(
    recipe: Recipe, splits: run_splits.Splits, held_out: int | None = None
) -> dict[str, int]:
    """Count the images that a run measures on, for example {"validation": 500, "test": 10000}.

    A training run measures on held-out images and, at the end, on test images. An evaluation
    measures on test images, and also on held-out images if the evaluation chooses a learning rate.
    If the measures need labels, only labelled test images count. The same holds for the held-out
    images of an evaluation, but not for those of a training run.

    Args:
        recipe: Recipe of the run or evaluation.
        splits: Images of the run or evaluation.
        held_out: Number of held-out images that a training run has read, without unreadable
            images. None: nothing has been read yet, so count all held-out images that will be read.

    Returns:
        {split: number of images}.
    """
    counts = {}
    if recipe.trains:
        images = held_out_images(recipe, splits) if held_out is None else held_out
        counts[held_out_split(recipe)] = images
    elif describe_held_out_choices(recipe):  # not empty if the evaluation chooses a learning rate
        counts[held_out_split(recipe)] = len(measured_images(recipe, splits.validation))
    if splits.test is not None:
        counts["test"] = len(measured_images(recipe, splits.test))
    return counts


def measured_images(recipe: Recipe, source: Source) -> Source:
    """Return the images of a split that are measured.

    These are only the labelled images if the recipe uses labels and measures no masks. Otherwise,
    these are all images.
    """
    needs_labels = uses_labels(recipe) and not measures_masks(recipe)
    return labelled_images(source) if needs_labels else source
