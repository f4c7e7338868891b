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
from .identity import recorded

LABELLED = "LABELLED_IMAGES"  # to be replaced by the place of labelled images
BOTH = "THESE_AND_LABELLED_IMAGES"  # the same for a study, which also pre-trains on these images
SAME = ("data.size", "data.channels", "data.range")  # kept for images of another place
# Reasons why features were not compared, for which images of another place are needed
NO_LABELS = "the images have no labels"
NO_CLASSES = "the folders may be no classes"


class NextCommand(NamedTuple):
    """Description of what a command does, and the command."""

    what: str
    command: str


def next_steps(folder: Path, out: Path, recipe: Recipe, labelled: bool = True) -> list[NextCommand]:
    """Return commands for a finished run.

    After pre-training: compare with tuned training from scratch, measure the encoder, fine-tune it.
    After fine-tuning: look at the encoder, write its features, compare with other runs.

    Args:
        folder: The folder of the finished run, as the user would type it.
        out: The folder for the runs that the commands make.
        recipe: The recipe of the run.
        labelled: Whether the run's images have labels. If not, and for a stream, which has no test
            images, the commands leave a place for other images.
    """
    init = f"init={folder}"
    plugin = [f"plugin={recipe.plugin}"] if recipe.plugin else []
    if recipe.training_tool == "finetune":
        return [
            NextCommand("draw what the encoder has learned", _typed("figures", init, *plugin)),
            NextCommand("write the features of all images", _typed("embed", init, f"out={out}")),
            NextCommand("compare the run with other runs", _typed("report", str(out))),
        ]
    tested = _tested(folder, recipe, labelled)
    tuned = _typed("finetune", "recipe=finetune", init, *tested, f"out={out}")
    measured = evaluation(folder, out, recipe, labelled)
    helps = worth(recipe, recipe if labelled else None)
    steps = [NextCommand("measure whether pre-training helps", helps)] if helps else []
    steps.append(NextCommand("measure the frozen encoder on labels", measured))
    return [*steps, NextCommand("fine-tune the encoder on labels", tuned)]


def has_labels(not_compared: str | None) -> bool:
    """Return whether a run's images have labels, by the reason why features were not compared."""
    return not (not_compared or "").startswith((NO_LABELS, NO_CLASSES))


def worth(pretraining: Recipe, labelled: Recipe | None) -> str:
    """Return the command of the study that measures whether a pre-training helps fine-tuning.

    The study compares it with tuned training from scratch or, if the pre-training went on from
    other weights, with these weights. Return "" for an objective that learns labels or comes from a
    plugin, which the study does not support.

    Args:
        pretraining: The recipe with the objective and model.
        labelled: The recipe with the images, None for images without labels. Without labels, and
            for a stream, from which no test images can be held out, the command leaves a place for
            images.
    """
    images = _elsewhere(BOTH, pretraining)
    if labelled is not None and not labelled.data.stream:
        images = _images(labelled)
    declared = declaration.known_or_bare(pretraining.objective)
    learns = any(part.labels for part in declared.trained(pretraining))
    if learns or pretraining.plugin:
        return ""
    options = [f"objective={pretraining.objective}", *images]
    if pretraining.init_source.is_scratch:
        options += _words(pretraining, "model")
    else:
        options.append(f"init={pretraining.init}")
    options += [source.option for key, source in pretraining.sources().items() if key != "init"]
    return _typed("study", "recipe=study/worth", *options)


def fine_tuning(init: Path | str, recipe: Recipe) -> str:
    """Return the command that fine-tunes an encoder on a recipe's images."""
    tested = _tested(Path(init), recipe, labelled=True) if recipe.trains else []
    return _typed("finetune", "recipe=finetune", f"init={init}", *_images(recipe), *tested)


def from_scratch(folder: Path) -> str:
    """Return the command that fine-tunes fresh weights with the options of a run."""
    again = f"recipe={folder / 'recipe.yaml'}", f"name={folder.name}-scratch"
    return _typed("finetune", *again, "init=scratch")


def _elsewhere(place: str, recipe: Recipe) -> list[str]:
    """Return the words that name images of another place, of a recipe's size and channels."""
    values = recipe.values()
    kept = [key for key in SAME if key == "data.size" or values[key] != defaults()[key]]
    return [f"data.path={place}", *(f"{key}={option_text(values[key])}" for key in kept)]


def _images(recipe: Recipe) -> list[str]:
    """Return the words for a recipe's images: place, reading, size and channels."""
    wanted = {*SPLIT_KEYS, *READING, "data.range"}
    return _words(recipe, "data", wanted - {"data.hub" if recipe.data.path else "data.path"})


def _words(recipe: Recipe, group: str, wanted: Collection[str] = ()) -> list[str]:
    """Return the words of a group of keys: the preset, and the keys that differ from the preset.

    `wanted` limits the keys; by default all keys of the group are used.
    """
    name, usual, values = recipe.value(f"{group}.name"), defaults(), recipe.values()
    words = []
    if name and recipe_files.has_preset(group, name):
        words = [f"{group}={name}"] if name != usual[f"{group}.name"] else []
        usual |= recipe_files.preset(group, name)
    keys = [key for key in values if key.startswith(f"{group}.") and key != f"{group}.name"]
    differ = [key for key in keys if key in (wanted or keys) and values[key] != usual[key]]
    return words + [f"{key}={option_text(values[key])}" for key in differ]


def evaluation(folder: Path, out: Path, recipe: Recipe, labelled: bool) -> str:
    """Return the command that evaluates a run's encoder on labels."""
    tested = _tested(folder, recipe, labelled)
    return _typed("evaluate", "recipe=evaluate", f"init={folder}", *tested, f"out={out}")


def _tested(folder: Path, recipe: Recipe, labelled: bool) -> list[str]:
    """Return the words that give a following command labelled test images.

    There are no words if the run's data have labelled test images, else a share of its images is
    used. The words leave a place for other images of the same size if the run's images have no
    labels, are a stream, or lack test images and the run has learned their labels.
    """
    tested = None
    with suppress(UserError):  # where the record is gone, nothing is known
        tested = recorded(folder, "images").get("labelled_test")
    declared = declaration.known_or_bare(recipe.objective)
    learned = any(part.labels for part in declared.trained(recipe))
    if not labelled or recipe.data.stream or (learned and tested == 0):
        return _elsewhere(LABELLED, recipe)
    return [f"data.test={TEST_SHARE}"] if tested == 0 else []


def _typed(tool: str, *options: str) -> str:
    return typed_command(tool, *options)
