"""Suggest what to do with a finished run: three commands for each tool that trains. No torch."""

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ..errors import UserError
from ..formatting import TEST_SHARE, option_text, typed_command
from ..recipe import declaration, recipe_files
from ..recipe.images import READING, SPLIT_KEYS
from ..recipe.schema import Recipe, defaults
from .identity import read_recorded, runs_before

LABELLED = "LABELLED_IMAGES"  # placeholder for the path of labelled images
PRETRAIN_AND_LABELLED = (
    "THESE_AND_LABELLED_IMAGES"  # placeholder in a study, which also pre-trains on these images
)
SAME_KEYS = ("data.size", "data.channels", "data.range")  # stay the same for other images
# Reasons why features were not compared. The next command then needs other images.
NO_LABELS = "the images have no labels"
NO_CLASSES = "the folders may be no classes"


class NextCommand(NamedTuple):
    """Suggested command, with a description of what the command does."""

    what: str
    command: str


def next_steps(folder: Path, out: Path, recipe: Recipe, labelled: bool = True) -> list[NextCommand]:
    """Return commands to run after a finished run.

    After pre-training, the commands compare the run with tuned training from scratch, measure the
    encoder, and fine-tune the encoder. After fine-tuning, the commands draw figures of the encoder,
    write the features of all images, and compare the run with other runs.

    If the run's images have no labels or are a stream, the commands after pre-training contain a
    placeholder for other images.

    Args:
        folder: The folder of the finished run, as the user would type it.
        out: The folder for the runs that the commands make.
        recipe: The recipe of the run.
        labelled: Whether the run's images have labels.
    """
    init = f"init={folder}"
    plugin = [f"plugin={recipe.plugin}"] if recipe.plugin else []
    if recipe.training_tool == "finetune":
        return [
            NextCommand(
                "draw what the encoder has learned", typed_command("figures", init, *plugin)
            ),
            NextCommand(
                "write the features of all images", typed_command("embed", init, f"out={out}")
            ),
            NextCommand("compare the run with other runs", typed_command("runs", str(out))),
        ]
    finetune = _fine_tune_run(folder, out, recipe, labelled)
    evaluate = evaluation(folder, out, recipe, labelled)
    study = worth_command(recipe, recipe if labelled else None)
    steps = [NextCommand("measure whether pre-training helps", study)] if study else []
    steps.append(NextCommand("measure the frozen encoder on labels", evaluate))
    return [*steps, NextCommand("fine-tune the encoder on labels", finetune)]


def main_step(
    folder: Path, recipe: Recipe, not_compared: str | None, has_scratch: bool
) -> NextCommand | None:
    """Return the next step that the terminal and the page of a finished run suggest, or None.

    After supervised pre-training, and after an evaluation of untrained weights, return None.
    Otherwise, the first case that applies decides:

    - A study can measure whether the pre-training helps: suggest the study.
    - The run is a fine-tuning: suggest training from scratch for comparison, or nothing if a
      comparable run from scratch exists.
    - The features were not compared with untrained weights: measure the features on labelled
      images.
    - Otherwise: fine-tune the encoder.

    Args:
        folder: Folder of the run or evaluation.
        recipe: Recipe of the run or evaluation.
        not_compared: Reason why features were not compared with untrained weights. None if they
            were compared.
        has_scratch: Whether a comparable run from scratch exists.
    """
    # If the objective's plugin is not loaded, use the declaration that runs have recorded
    declared = declaration.find_objective_or_stub(recipe.objective)
    objectives = declared.trained(recipe)  # several objectives if the run trains a sum
    learns_only_labels = all(objective.labels for objective in objectives)
    if recipe.trains and not recipe.fine_tunes and learns_only_labels:
        return None
    if not recipe.trains and recipe.init_source.is_scratch:
        return None
    labelled = has_labels(not_compared)
    pretraining = _find_pretraining(recipe)
    if pretraining:
        command = worth_command(pretraining, recipe if labelled else None)
        if command:
            return NextCommand("measure whether pre-training helps", command)
    if recipe.fine_tunes:
        if has_scratch:
            return None
        return NextCommand("train from scratch for comparison", from_scratch(folder))
    if not_compared:
        command = evaluation(folder, folder.parent, recipe, labelled)
        return NextCommand("measure the features on images with labels", command)
    if recipe.trains:
        command = _fine_tune_run(folder, folder.parent, recipe, labelled)
    else:  # an evaluation makes no weights, so fine-tune the evaluated encoder on the same images
        options = [f"init={recipe.init}", *_image_options(recipe)]
        command = typed_command("finetune", "recipe=finetune", *options)
    return NextCommand("fine-tune the encoder", command)


def has_labels(not_compared: str | None) -> bool:
    """Return whether a run's images have labels.

    Args:
        not_compared: Reason why the run's features were not compared with untrained weights.
    """
    # None means that the features were compared, which needs labels
    return not (not_compared or "").startswith((NO_LABELS, NO_CLASSES))


def worth_command(pretraining: Recipe, labelled: Recipe | None) -> str:
    """Return the command of a study that measures whether a pre-training helps fine-tuning.

    The study compares the pre-training with tuned training from scratch or, if the pre-training
    began with other weights, with these weights. The result is empty if the objective learns labels
    or comes from a plugin, or if the pre-training has an augmentation of the user's own, because
    the study supports neither.

    Without labelled images, the command contains a placeholder for an image folder. The same holds
    for a stream of images, because no test images can be held out from a stream.

    Args:
        pretraining: Recipe with the objective and the model.
        labelled: Recipe with labelled images, or None if no labelled images are known.
    """
    # If the objective's plugin is not loaded, use the declaration that runs have recorded
    declared = declaration.find_objective_or_stub(pretraining.objective)
    learns_labels = any(part.labels for part in declared.trained(pretraining))
    if learns_labels or pretraining.plugin or pretraining.data.augment:
        return ""
    options = [f"objective={pretraining.objective}"]
    if labelled is None or labelled.data.stream:
        options += _options_for_other_images(PRETRAIN_AND_LABELLED, pretraining)
    else:
        options += _image_options(labelled)
    if pretraining.init_source.is_scratch:
        options += _options_of_group(pretraining, "model")
    else:
        options.append(f"init={pretraining.init}")
    options += [source.option for key, source in pretraining.sources().items() if key != "init"]
    return typed_command("study", "recipe=study/worth", *options)


def _fine_tune_run(folder: Path, out: Path, recipe: Recipe, labelled: bool) -> str:
    """Return the command that fine-tunes a run's encoder.

    With init=RUN, the command reads the images of RUN by default.
    """
    tested = _options_for_test_images(folder, recipe, labelled)
    return typed_command("finetune", "recipe=finetune", f"init={folder}", *tested, f"out={out}")


def from_scratch(folder: Path) -> str:
    """Return the command that repeats a fine-tuning run with untrained weights."""
    recipe = folder / "recipe.yaml"
    return typed_command(
        "finetune",
        f"recipe={recipe}",
        f"name={folder.name}-scratch",
        "init=scratch",
        f"out={folder.parent}",
    )


def _options_for_other_images(place: str, recipe: Recipe) -> list[str]:
    """Return options with a placeholder for images, such as `data.path=LABELLED_IMAGES`.

    The options also set the image size and, if they differ from the defaults, the channels and the
    range of pixel values.

    Args:
        place: Placeholder for the path of the images.
        recipe: Recipe with the size, the channels and the range of pixel values.
    """
    standard = defaults()
    keys = [key for key in SAME_KEYS if key == "data.size" or recipe.value(key) != standard[key]]
    return [f"data.path={place}", *(f"{key}={option_text(recipe.value(key))}" for key in keys)]


def _image_options(recipe: Recipe) -> list[str]:
    """Return the options by which another run reads the images of a recipe."""
    # The path is enough if the recipe has both a path and a repository on the Hub
    keys = {*SPLIT_KEYS, *READING, "data.range"}
    keys.discard("data.hub" if recipe.data.path else "data.path")
    return _options_of_group(recipe, "data", keys)


def _options_of_group(recipe: Recipe, group: str, wanted: Collection[str] = ()) -> list[str]:
    """Return the options that give another run the same images or the same model.

    The options name the preset, such as `model=vit_s16`, and the keys whose values differ from the
    preset, such as `model.depth=6`.

    Args:
        recipe: Recipe with the values.
        group: `data` or `model`.
        wanted: Keys of the group to which the result is limited. If empty, all keys of the group.
    """
    name_key = f"{group}.name"
    preset = recipe.value(name_key)
    preset_values = defaults()
    options = []
    if preset and recipe_files.has_preset(group, preset):
        if preset != preset_values[name_key]:
            options.append(f"{group}={preset}")
        preset_values |= recipe_files.preset(group, preset)
    for key, preset_value in preset_values.items():
        is_named = key.startswith(f"{group}.") and key != name_key
        if is_named and (not wanted or key in wanted) and recipe.value(key) != preset_value:
            options.append(f"{key}={option_text(recipe.value(key))}")
    return options


def evaluation(folder: Path, out: Path, recipe: Recipe, labelled: bool) -> str:
    """Return the command that evaluates a run's encoder on labels."""
    tested = _options_for_test_images(folder, recipe, labelled)
    return typed_command("evaluate", "recipe=evaluate", f"init={folder}", *tested, f"out={out}")


def _options_for_test_images(folder: Path, recipe: Recipe, labelled: bool) -> list[str]:
    """Return the options with which the next command finds labelled test images.

    - The run's images have no labels or are a stream, or the run has learned the labels of all
      images: `data.path=LABELLED_IMAGES`, a placeholder for other images.
    - The run's images have no labelled test split: `data.test=`, which holds out a share of the
      images.
    - Otherwise: no options.

    Args:
        folder: Folder of the run.
        recipe: Recipe of the run.
        labelled: Whether the run's images have labels.
    """
    # number of labelled test images, or None if environment.json is missing or damaged
    num_labelled = None
    with suppress(UserError):
        num_labelled = read_recorded(folder, "images").get("labelled_test")
    declared = declaration.find_objective_or_stub(recipe.objective)
    # `trained` returns the objective or, in joint training, its parts with a weight above 0
    has_learned_labels = any(part.labels for part in declared.trained(recipe))
    if not labelled or recipe.data.stream or (has_learned_labels and num_labelled == 0):
        return _options_for_other_images(LABELLED, recipe)
    return [f"data.test={TEST_SHARE}"] if num_labelled == 0 else []


def _find_pretraining(recipe: Recipe) -> Recipe | None:
    """Return the recipe of the latest pre-training of an encoder.

    If the given recipe pre-trains, return the given recipe. Otherwise, search the earlier runs that
    made the initial weights, the latest first. Return None if an earlier run is missing before a
    pre-training is found, or if no earlier run is a pre-training.
    """
    if recipe.trains and not recipe.fine_tunes:
        return recipe
    for _, run_recipe in runs_before(recipe):
        if run_recipe is None:
            return None
        if run_recipe.trains and not run_recipe.fine_tunes:
            return run_recipe
    return None
