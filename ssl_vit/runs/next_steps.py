"""What to do with a finished run: three commands for each tool that trains. No torch."""

import sys
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from ..formatting import option_text, shell_command, tool_command
from ..recipe import declaration, recipe_files
from ..recipe.images import OF_SPLITS, READING
from ..recipe.schema import Recipe, defaults

LABELLED = "LABELLED_IMAGES"  # stands for the place of labelled images


class NextCommand(NamedTuple):
    """What a command does, and the command."""

    what: str
    command: str


def next_steps(folder: Path, out: Path, recipe: Recipe) -> list[NextCommand]:
    """Of a run that has pre-trained: compare it with tuned training from scratch, measure the
    encoder, fine-tune it; of one that has fine-tuned: look at it, write its features, compare it
    with other runs.

    Args:
        folder: of a finished run, as it is to be typed.
        out: the folder that holds the runs which the commands make.
        recipe: of the run.
    """
    init = f"init={folder}"
    plugin = [f"plugin={recipe.plugin}"] if recipe.plugin else []
    if recipe.training_tool == "finetune":
        return [
            NextCommand("look at what it has learned", _typed("figures", init, *plugin)),
            NextCommand("write the features of all images", _typed("embed", init, f"out={out}")),
            NextCommand("compare it with the other runs", _typed("report", str(out))),
        ]
    return [
        NextCommand("whether pre-training helps these images", worth(recipe, recipe)),
        NextCommand("measure the frozen encoder on labels", evaluation(folder, out)),
        NextCommand(
            "fine-tune it on labels", _typed("finetune", "recipe=finetune", init, f"out={out}")
        ),
    ]


def worth(pretraining: Recipe, labelled: Recipe | None) -> str:
    """The study that compares fine-tuning after a pre-training with tuned training from scratch or,
    where it went on from other weights, with these; of an objective that learns labels itself or is
    a plugin's the fine-tuning alone.

    Args:
        pretraining: whose objective and model.
        labelled: whose images; None: they have no labels, and a place is to be filled in.
    """
    images = [f"data.path={LABELLED}"] if labelled is None else _images(labelled)
    declared = declaration.known_or_bare(pretraining.objective)
    learns = any(one.labels for one in declared.trained(pretraining))
    if learns or pretraining.plugin:
        folder = Path(pretraining.out) / pretraining.name
        return _typed("finetune", "recipe=finetune", f"init={folder}", *images)
    options = [f"objective={pretraining.objective}", *images]
    if pretraining.init_source.is_scratch:
        options += _words(pretraining, "model")
    else:
        options.append(f"init={pretraining.init}")
    return _typed("study", "recipe=study/worth", *options)


def fine_tuning(recipe: Recipe) -> str:
    """The fine-tuning of the encoder of `init=` on a recipe's images."""
    return _typed("finetune", "recipe=finetune", f"init={recipe.init}", *_images(recipe))


def _images(recipe: Recipe) -> list[str]:
    """The words that name a recipe's images, how they are read, and their size and channels."""
    wanted = {*OF_SPLITS, *READING, "data.range"}
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


def evaluation(folder: Path, out: Path, images: str = "") -> str:
    """The evaluation of a run's encoder, on its own images or on those of a place."""
    place = [f"data.path={images}"] if images else []
    return _typed("evaluate", "recipe=evaluate", f"init={folder}", *place, f"out={out}")


def _typed(tool: str, *options: str) -> str:
    return shell_command(sys.executable, *tool_command(tool), *options)
