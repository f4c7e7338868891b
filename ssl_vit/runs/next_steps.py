"""What a user can do with a finished run, as commands that run as printed. No torch."""

import itertools
import mimetypes
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ..config import declaration
from ..config.images import Data
from ..config.probe import Probe
from ..config.records.run import Environment
from ..config.schema import Recipe, learns_labels
from ..formatting import count_of_images, option_text, shell_command, tool_command

TEST = 0.2  # share of the images that a command tests on, where there are no others
TIMES = 2  # the steps of a longer run
FOLDERS, TRIED = 100, 10  # in which an example of the images is looked for, and files that are read


class NextCommand(NamedTuple):
    """What a command does, and the command."""

    what: str
    command: str


def next_steps(
    folder: Path, out: Path, recipe: Recipe, facts: Environment, beaten: bool = True
) -> Iterator[NextCommand]:
    """Evaluate and fine-tune the encoder, where its images have labels that are not all it was
    trained on, look at what it has learned and train longer; in this order. Labels that may be none
    come after the looking, and training longer first where the run has not beaten its baselines.

    Args:
        folder: of a finished run, as it is to be typed.
        out: the folder that holds the runs which the commands make.
        recipe, facts: what the run is, and its environment.json.
        beaten: whether it beats all that it is compared with.
    """
    if recipe.objective == "probe":
        return
    place = [f"out={out}"] if str(out) != "runs" else []
    on_labels = list(_on_labels(folder, place, recipe, facts))
    looking = list(_looking(folder, place, recipe))
    used = looking + on_labels if facts.label_doubt else on_labels + looking
    longer = _longer(folder, place, recipe, facts)
    yield from (*used, longer) if beaten else (longer, *used)


def _on_labels(
    folder: Path, place: list[str], recipe: Recipe, facts: Environment
) -> Iterator[NextCommand]:
    # earlier versions did not record whether there are labels
    if facts.label_source == "" or _learned_labels_alone(recipe, facts):
        return
    if facts.label_counts and not facts.label_counts.images:
        return
    labels = f"labels ({facts.label_source})" if facts.label_source else "labels"
    if facts.label_doubt:
        labels += f", if these are classes ({facts.label_doubt})"
    options = [f"init={folder}", *place]
    if facts.testable is False:
        options.insert(1, f"data.test={TEST}")
        how = "with their labels" if learns_labels(recipe) else "without labels"
        labels += (
            f", {TEST:.0%} of the images held out to test on; this run has trained on them {how}"
            f" (with data.test={TEST} it does not)"
        )
    probes, why = _fitting_probes(recipe, facts)
    yield NextCommand(
        f"measure the frozen encoder on {labels}{why}",
        _typed("evaluate", "recipe=evaluate", *options, *probes),
    )
    yield NextCommand(f"fine-tune it on {labels}", _typed("finetune", "recipe=finetune", *options))


def _fitting_probes(recipe: Recipe, facts: Environment) -> tuple[list[str], str]:
    """Options of an evaluation on so few labels that its defaults do not fit, and why."""
    counts, probe = facts.label_counts, Probe()
    if counts is None:
        return [], ""
    options, why = [], ""
    # so many of a class can be read, or the run would have stopped
    fits = int(counts.smallest * (1 - recipe.data.unreadable))
    shots = [number for number in probe.shots if number <= fits]
    if not shots:
        measures = [name for name in probe.measures if name != "few_shot"]
        options.append(f"probe.measures={option_text(measures)}")
        why = "; without few-shot"
    elif shots != probe.shots:
        options.append(f"probe.shots={option_text(shots)}")
        why = f"; few-shot with up to {count_of_images(max(shots))} a class"
    if why:
        why += f", as the smallest has {counts.smallest} to learn from"
    if counts.images < probe.neighbors:
        options.append(f"probe.neighbors={max(1, counts.images // 2)}")
    return options, why


def _looking(folder: Path, place: list[str], recipe: Recipe) -> Iterator[NextCommand]:
    init = f"init={folder}"
    plugin = [f"plugin={recipe.plugin}"] if recipe.plugin else []
    if not recipe.model.convolutional:
        yield NextCommand("look at what it has learned", _typed("figures", init, *plugin))
    if recipe.data.stream:
        return
    features = "write the features of all images"
    image = _example(recipe.data)
    if image is None:
        what = f"{features}; with query=IMAGE also show those nearest to an image file"
        yield NextCommand(what, _typed("embed", init, *place))
    else:
        what = f"{features} and show those nearest to one (query= takes any image file)"
        yield NextCommand(what, _typed("embed", init, f"query={image}", *place))


def _example(data: Data) -> Path | None:
    """One of the image files at data.path; None where the images are no files that Pillow opens,
    or not here."""
    if not data.path:
        return None
    folders = itertools.islice(os.walk(data.path), FOLDERS)
    files = (Path(folder, name) for folder, _, names in folders for name in sorted(names))
    shown = (file for file in files if not file.name.startswith("."))
    images = (file for file in shown if (mimetypes.guess_type(file)[0] or "").startswith("image/"))
    return next(filter(_opens, itertools.islice(images, TRIED)), None)


def _opens(file: Path) -> bool:
    from PIL import Image  # only where there are files

    with suppress(Exception), Image.open(file) as image:
        image.load()
        return True
    return False


def _longer(folder: Path, place: list[str], recipe: Recipe, facts: Environment) -> NextCommand:
    """A finished run has its steps; more of them are another run, whose schedule is as long."""
    steps = TIMES * recipe.optim.steps
    plugin = [f"plugin={recipe.plugin}"] if recipe.plugin else []
    options = [f"recipe={folder / 'recipe.yaml'}", *plugin, f"name={folder.name}-longer", *place]
    return NextCommand(
        f"train longer, as another run of {steps:,} steps from the same first weights (to go on"
        f" from this run's, add init={folder})",
        _typed(recipe.training_tool, *options, f"optim.steps={steps}"),
    )


def _learned_labels_alone(recipe: Recipe, facts: Environment) -> bool:
    """Whether it was trained on nothing but the labels of its images, from whatever weights."""
    declared = declaration.objectives().get(recipe.objective)  # a plugin's may not be here
    alone = declared is not None and declared.only_labelled
    return alone or recipe.training_tool == "finetune"


def _typed(tool: str, *options: str) -> str:
    return shell_command(sys.executable, *tool_command(tool), *options)
