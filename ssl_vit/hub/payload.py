"""The files of each branch that is uploaded to the Hugging Face Hub. Torch is imported only for the
training state."""

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import UserError
from ..recipe.identity import FACTS
from ..recipe.parsing import flatten, load_yaml
from ..recipe.schema import build, dump, without_private
from ..runs.folder import TRAINED_ON, Run
from . import card, card_figure

STATE = ("recipe.yaml", "environment.json", "metrics.jsonl", "state.json", "state.safetensors")
BEST = ("best.json", "best.safetensors")  # beside STATE, where checkpoint.best has chosen another
STEP = re.compile(r"step-(\d{9,})")


class Upload(NamedTuple):
    """The content of one commit to a branch; `stamp` identifies the content in hub.json."""

    branch: str
    stamp: str
    message: str
    files: Callable[[], dict[str, bytes | Path]]


def open_run(folder: Path) -> Run:
    """The run in a folder, as uploads need it: its images need not be here.

    Raises:
        UserError: there is no run, or an evaluation.
    """
    if not (folder / "recipe.yaml").exists():
        raise UserError(f"{folder} is no run: it holds no recipe.yaml")
    try:
        recipe = build(flatten(load_yaml(folder / "recipe.yaml")))
    except Exception as error:  # a recipe of another version, or no recipe at all
        raise UserError(
            f"{folder}/recipe.yaml cannot be read: {' '.join(str(error).split())[:200]}"
        ) from None
    if recipe.objective == "probe":
        raise UserError(f"{folder} holds an evaluation, which made no encoder that could be pushed")
    recipe.out = str(folder.resolve().parent)
    recipe.name = folder.resolve().name
    return Run(recipe)


def step_branch(step: int) -> str:
    """The branch of the milestone of a step."""
    return f"step-{step:09d}"


def uploads(run: Run) -> Iterator[Upload]:
    """Everything that can be uploaded: milestones by step, the finished run, the newest training
    state."""
    name = run.recipe.name
    for step, folder in steps(run.outbox):
        message = f"{name} after {step:,} of {run.recipe.optim.steps:,} steps"
        yield Upload(folder.name, "", message, partial(_export, run, folder, step))
    if result := run.result():
        yield Upload("main", result.finished, f"{name}, finished", partial(_finished, run))
    if run.recipe.hub.state and (saved := steps(run.checkpoints)):
        yield Upload(
            "state", saved[-1][1].name, f"{name}, the training state", partial(_state, run)
        )


def steps(folder: Path) -> list[tuple[int, Path]]:
    """The folders step-... in a folder, by step; others are ignored."""
    found = ((STEP.fullmatch(path.name), path) for path in folder.glob("step-*"))
    return sorted((int(name[1]), path) for name, path in found if name)


def identity(run: Run) -> dict[str, Any]:
    """What identifies a run beside its recipe: hashes of its images, initial weights and plugin."""
    known = run.environment().content()
    return {key: known[key] for key in FACTS if known.get(key)}


def _description(run: Run) -> dict[str, bytes | Path]:
    """Files that every branch has."""
    recipe = dump(without_private(run.recipe))
    return {
        "recipe.yaml": recipe.encode(),
        "run.json": f"{json.dumps(identity(run), indent=2)}\n".encode(),
    }


def _export(run: Run, folder: Path, step: int | None = None) -> dict[str, bytes | Path]:
    """An export and its model card."""
    return {path.name: path for path in folder.iterdir()} | {
        "README.md": card.write(run, folder, step).encode(),
        **_description(run),
    }


def _finished(run: Run) -> dict[str, bytes | Path]:
    figures = {f"figures/{path.name}": path for path in run.figures.glob("*.png")}
    files = {**_export(run, run.export), "result.json": run.folder / "result.json", **figures}
    drawn = card_figure.draw(run)
    if drawn:
        files["figures/curves.png"] = drawn
    return files


def _state(run: Run) -> dict[str, bytes | Path]:
    from .state_io import pack_newest  # torch

    names = ["environment.json", "metrics.jsonl"]
    if (run.folder / TRAINED_ON).exists():
        names.append(TRAINED_ON)
    known = {name: run.folder / name for name in names}
    return {**known, **_description(run), **pack_newest(run.checkpoints)}
