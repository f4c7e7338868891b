"""What to do with a finished run: three commands for each tool that trains. No torch."""

import sys
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ..errors import UserError
from ..formatting import TEST_SHARE, option_text, shell_command, tool_command
from ..recipe import declaration, recipe_files
from ..recipe.images import READING, SPLIT_KEYS
from ..recipe.schema import Recipe, defaults
from .identity import recorded

LABELLED = "LABELLED_IMAGES"  # stands for the place of labelled images
BOTH = "THESE_AND_LABELLED_IMAGES"  # and for one of a study, which pre-trains on what is there
SAME = ("data.size", "data.channels", "data.range")  # of images of another place
# Why features were not compared: the reasons for which another place of images is needed
NO_LABELS = "the images have no labels"
NO_CLASSES = "the folders may be no classes"


class NextCommand(NamedTuple):
    """What a command does, and the command."""

    what: str
    command: str


def next_steps(folder: Path, out: Path, recipe: Recipe, labelled: bool = True) -> list[NextCommand]:
    """Of a run that has pre-trained: compare it with tuned training from scratch, measure the
    encoder, fine-tune it; of one that has fine-tuned: look at it, write its features, compare it
    with other runs.

    Args:
        folder: of a finished run, as it is to be typed.
        out: the folder that holds the runs which the commands make.
        recipe: of the run.
        labelled: whether its images have labels; else, and of a stream, which has no test images, a
            place of others is to be filled in.
    """
    init = f"init={folder}"
    plugin = [f"plugin={recipe.plugin}"] if recipe.plugin else []
    if recipe.training_tool == "finetune":
        return [
            NextCommand("look at what it has learned", _typed("figures", init, *plugin)),
            NextCommand("write the features of all images", _typed("embed", init, f"out={out}")),
            NextCommand("compare it with the other runs", _typed("report", str(out))),
        ]
    tested = _tested(folder, recipe, labelled)
    tuned = _typed("finetune", "recipe=finetune", init, *tested, f"out={out}")
    measured = evaluation(folder, out, recipe, labelled)
    helps = worth(recipe, recipe if labelled else None)
    found = [NextCommand("whether pre-training helps these images", helps)] if helps else []
    found.append(NextCommand("measure the frozen encoder on labels", measured))
    return [*found, NextCommand("fine-tune it on labels", tuned)]


def has_labels(not_compared: str | None) -> bool:
    """Whether a run's images have labels, by the reason why its features were not compared."""
    return not (not_compared or "").startswith((NO_LABELS, NO_CLASSES))


def worth(pretraining: Recipe, labelled: Recipe | None) -> str:
    """The study that compares fine-tuning after a pre-training with tuned training from scratch or,
    where it went on from other weights, with these. Empty of an objective that learns labels itself
    or is a plugin's, of which there is no such study.

    Args:
        pretraining: whose objective and model.
        labelled: whose images; None: they have no labels. Of these, and of a stream, of which no
            test images can be held out, a place is to be filled in.
    """
    images = _elsewhere(BOTH, pretraining)
    if labelled is not None and not labelled.data.stream:
        images = _images(labelled)
    declared = declaration.known_or_bare(pretraining.objective)
    learns = any(one.labels for one in declared.trained(pretraining))
    if learns or pretraining.plugin:
        return ""
    options = [f"objective={pretraining.objective}", *images]
    if pretraining.init_source.is_scratch:
        options += _words(pretraining, "model")
    else:
        options.append(f"init={pretraining.init}")
    options += [one.option for key, one in pretraining.sources().items() if key != "init"]
    return _typed("study", "recipe=study/worth", *options)


def fine_tuning(init: Path | str, recipe: Recipe) -> str:
    """The fine-tuning of an encoder on a recipe's images."""
    tested = _tested(Path(init), recipe, labelled=True) if recipe.trains else []
    return _typed("finetune", "recipe=finetune", f"init={init}", *_images(recipe), *tested)


def from_scratch(folder: Path) -> str:
    """The fine-tuning of fresh weights with the options of a run."""
    again = f"recipe={folder / 'recipe.yaml'}", f"name={folder.name}-scratch"
    return _typed("finetune", *again, "init=scratch")


def _elsewhere(place: str, recipe: Recipe) -> list[str]:
    """The words that name images of another place, of a recipe's size and channels."""
    values = recipe.values()
    kept = [key for key in SAME if key == "data.size" or values[key] != defaults()[key]]
    return [f"data.path={place}", *(f"{key}={option_text(values[key])}" for key in kept)]


def _images(recipe: Recipe) -> list[str]:
    """The words that name a recipe's images, how they are read, and their size and channels."""
    wanted = {*SPLIT_KEYS, *READING, "data.range"}
    return _words(recipe, "data", wanted - {"data.hub" if recipe.data.path else "data.path"})


def _words(recipe: Recipe, group: str, wanted: Collection[str] = ()) -> list[str]:
    """The words of a group of keys: its preset, and of those that are wanted (by default all) the
    keys that differ from it."""
    name, usual, values = recipe.value(f"{group}.name"), defaults(), recipe.values()
    words = []
    if name and recipe_files.has_preset(group, name):
        words = [f"{group}={name}"] if name != usual[f"{group}.name"] else []
        usual |= recipe_files.preset(group, name)
    own = [key for key in values if key.startswith(f"{group}.") and key != f"{group}.name"]
    differ = [key for key in own if key in (wanted or own) and values[key] != usual[key]]
    return words + [f"{key}={option_text(values[key])}" for key in differ]


def evaluation(folder: Path, out: Path, recipe: Recipe, labelled: bool) -> str:
    """The evaluation of a run's encoder on labels."""
    tested = _tested(folder, recipe, labelled)
    return _typed("evaluate", "recipe=evaluate", f"init={folder}", *tested, f"out={out}")


def _tested(folder: Path, recipe: Recipe, labelled: bool) -> list[str]:
    """The words by which what follows a run has labelled test images: nothing where its own images
    have them, else a share of these; a place of others is to be filled in, of the same size, where
    they have no labels or are a stream, or the run has learned them."""
    tested = None
    with suppress(UserError):  # where the record is gone, nothing is known
        tested = recorded(folder, "images").get("labelled_test")
    declared = declaration.known_or_bare(recipe.objective)
    learned = any(one.labels for one in declared.trained(recipe))
    if not labelled or recipe.data.stream or (learned and tested == 0):
        return _elsewhere(LABELLED, recipe)
    return [f"data.test={TEST_SHARE}"] if tested == 0 else []


def _typed(tool: str, *options: str) -> str:
    return shell_command(sys.executable, *tool_command(tool), *options)
