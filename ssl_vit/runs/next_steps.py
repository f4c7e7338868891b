"""What to do with a finished run: three commands for each tool that trains. No torch."""

import sys
from pathlib import Path
from typing import NamedTuple

from ..formatting import option_text, shell_command, tool_command
from ..recipe import recipe_files
from ..recipe.schema import Recipe, defaults

LABELLED = "IMAGES"  # stands for the place of labelled images


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
    """The study that compares fine-tuning after a pre-training with tuned training from scratch.

    Args:
        pretraining: whose objective and model.
        labelled: whose images; None: they have no labels, and a place is to be filled in.
    """
    options = [f"objective={pretraining.objective}", f"data.path={LABELLED}"]
    if labelled is not None:
        keys = ("data.name", "data.path", "data.hub", "data.test", "data.size")
        given = {key: labelled.value(key) for key in keys}
        usual = defaults()
        if recipe_files.has_preset("data", labelled.data.name):
            usual |= recipe_files.preset("data", labelled.data.name)
            usual["data.name"] = defaults()["data.name"]
        else:  # of a place
            del given["data.name"]
        options[1:] = [
            f"{'data' if key == 'data.name' else key}={option_text(value)}"
            for key, value in given.items()
            if value and value != usual[key]
        ]
    if pretraining.model.name:
        options.append(f"model={pretraining.model.name}")
    return _typed("study", "recipe=study/worth", *options)


def fine_tuning(recipe: Recipe) -> str:
    """The fine-tuning of an evaluation's encoder on the same images."""
    return _typed("finetune", "recipe=finetune", f"init={recipe.init}")


def evaluation(folder: Path, out: Path, images: str = "") -> str:
    """The evaluation of a run's encoder, on its own images or on those of a place."""
    place = [f"data.path={images}"] if images else []
    return _typed("evaluate", "recipe=evaluate", f"init={folder}", *place, f"out={out}")


def _typed(tool: str, *options: str) -> str:
    return shell_command(sys.executable, *tool_command(tool), *options)
