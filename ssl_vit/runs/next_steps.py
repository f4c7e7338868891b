"""What a user can do with a finished run, as commands that run as printed. No torch."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..config import declaration
from ..config.records.run import Environment
from ..config.schema import Recipe
from ..formatting import shell_command, tool_command
from .objective_facts import facts_of

TEST = 0.2  # share of the images that a command tests on, where there are no others


class NextCommand(NamedTuple):
    """What a command does, and the command."""

    what: str
    command: str


def next_steps(
    folder: Path, out: Path, recipe: Recipe, facts: Environment
) -> Iterator[NextCommand]:
    """Evaluate and fine-tune the encoder, where its images have labels that it has not been trained
    on alone, and look at what it has learned; in this order.

    Args:
        folder: of a finished run, as it is to be typed.
        out: the folder that holds the runs which the commands make.
        recipe, facts: what the run is, and its environment.json.
    """
    if recipe.objective == "probe":
        return
    init = f"init={folder}"
    place = [f"out={out}"] if str(out) != "runs" else []
    plugin = [f"plugin={recipe.plugin}"] if recipe.plugin else []
    # earlier versions did not record whether there are labels
    if facts.label_source != "" and not _learned_labels_alone(recipe, facts):
        labels = f"labels ({facts.label_source})" if facts.label_source else "labels"
        test = [f"data.test={TEST}"] if facts.testable is False else []
        held_out = f", {TEST:.0%} of the images held out to test on" if test else ""
        yield NextCommand(
            f"measure the frozen encoder on {labels}{held_out}",
            _typed("evaluate", "recipe=evaluate", init, *test, *place),
        )
        yield NextCommand(
            f"fine-tune it on {labels}{held_out}",
            _typed("finetune", "recipe=finetune", init, *test, *place),
        )
    if not recipe.model.convolutional:
        yield NextCommand("look at what it has learned", _typed("figures", init, *plugin))
    if not recipe.data.stream:
        yield NextCommand("write the features of all images", _typed("embed", init, *place))


def _learned_labels_alone(recipe: Recipe, facts: Environment) -> bool:
    """Whether it was trained on nothing but the labels of its images, from whatever weights."""
    declared = declaration.objectives().get(recipe.objective)  # a plugin's may not be here
    alone = declared is not None and declared.only_labelled
    return alone or facts_of(facts, recipe.values()).fine_tunes


def _typed(tool: str, *options: str) -> str:
    return shell_command(sys.executable, *tool_command(tool), *options)
