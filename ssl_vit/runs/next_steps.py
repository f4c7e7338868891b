"""What to do with a finished run: three commands for each tool that trains. No torch."""

import sys
from pathlib import Path
from typing import NamedTuple

from ..formatting import shell_command, tool_command
from ..recipe.schema import Recipe


class NextCommand(NamedTuple):
    """What a command does, and the command."""

    what: str
    command: str


def next_steps(folder: Path, out: Path, recipe: Recipe) -> list[NextCommand]:
    """Of a run that has pre-trained: measure the encoder, fine-tune it, look at it; of one that has
    fine-tuned: look at it, write its features, compare it with other runs.

    Args:
        folder: of a finished run, as it is to be typed.
        out: the folder that holds the runs which the commands make.
        recipe: of the run.
    """
    init = f"init={folder}"
    plugin = [f"plugin={recipe.plugin}"] if recipe.plugin else []
    look = NextCommand("look at what it has learned", _typed("figures", init, *plugin))
    if recipe.training_tool == "finetune":
        nearest = "with query=IMAGE also show those nearest to an image file"
        return [
            look,
            NextCommand(
                f"write the features of all images; {nearest}", _typed("embed", init, f"out={out}")
            ),
            NextCommand("compare it with the other runs", _typed("report", str(out))),
        ]
    share = "without test images add data.test=0.2"
    return [
        NextCommand(
            f"measure the frozen encoder on labels; {share}",
            _typed("evaluate", "recipe=evaluate", init, f"out={out}"),
        ),
        NextCommand(
            f"fine-tune it on labels; {share}",
            _typed("finetune", "recipe=finetune", init, f"out={out}"),
        ),
        look,
    ]


def _typed(tool: str, *options: str) -> str:
    return shell_command(sys.executable, *tool_command(tool), *options)
