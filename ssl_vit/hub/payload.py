"""What of a run goes to the Hugging Face Hub: each branch's files, from the run's folder. No torch
here, but for the state."""

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

from omegaconf import OmegaConf

from ..config.parsing import load_yaml
from ..config.resolve import without_private
from ..config.schema import Recipe, dump
from ..errors import UserError
from ..runs.folder import Run
from . import card

STATE = ("recipe.yaml", "environment.json", "metrics.jsonl", "state.json", "state.safetensors")
STEP = re.compile(r"step-(\d{9,})")
# of environment.json: what the same recipe may have been given otherwise
SAME = ("data", "init", "plugin")


class Upload(NamedTuple):
    """What goes to a branch in one commit; `stamp` tells in the ledger whether this very content
    was pushed."""

    branch: str
    stamp: str
    message: str
    files: Callable[[], dict[str, bytes | Path]]


def open_run(folder: Path) -> Run:
    """The run in a folder, as far as pushing needs it: its images need not be here.

    Raises:
        UserError: there is no run, or one that trained nothing.
    """
    if not (folder / "recipe.yaml").exists():
        raise UserError(f"{folder} is no run: it holds no recipe.yaml")
    try:
        config = OmegaConf.merge(OmegaConf.structured(Recipe), load_yaml(folder / "recipe.yaml"))
        recipe = cast(Recipe, OmegaConf.to_object(config))
    except Exception as error:  # a recipe of another version, or no recipe at all
        raise UserError(
            f"{folder}/recipe.yaml cannot be read: {' '.join(str(error).split())[:200]}"
        ) from None
    if recipe.objective == "probe":
        raise UserError(f"{folder} holds an evaluation, which made no encoder that could be pushed")
    recipe.out, recipe.name = str(folder.resolve().parent), folder.resolve().name
    return Run(recipe)


def step_branch(step: int) -> str:
    return f"step-{step:09d}"


def uploads(run: Run) -> Iterator[Upload]:
    """All that there is to push: milestones by step, the finished run, last the newest training
    state."""
    name = run.recipe.name
    for step, folder in steps(run.outbox):
        message = f"{name} after {step:,} of {run.recipe.optim.steps:,} steps"
        yield Upload(folder.name, "", message, partial(_export, run, folder, step))
    if result := run.result():
        yield Upload("main", result["finished"], f"{name}, finished", partial(_finished, run))
    if run.recipe.hub.state and (saved := steps(run.checkpoints)):
        yield Upload(
            "state", saved[-1][1].name, f"{name}, the training state", partial(_state, run)
        )


def steps(folder: Path) -> list[tuple[int, Path]]:
    """The folders of steps in a folder, by step; whatever else lies there is nobody's."""
    found = ((STEP.fullmatch(path.name), path) for path in folder.glob("step-*"))
    return sorted((int(name[1]), path) for name, path in found if name)


def identity(run: Run) -> dict[str, Any]:
    """What of the run its recipe does not tell: the fingerprints of its data, first weights and
    plugin."""
    known = run.environment()
    return {key: known[key] for key in SAME if known.get(key)}


def _said(run: Run) -> dict[str, bytes | Path]:
    """What every branch says of the run."""
    recipe = dump(without_private(run.recipe))
    return {
        "recipe.yaml": recipe.encode(),
        "run.json": f"{json.dumps(identity(run), indent=2)}\n".encode(),
    }


def _export(run: Run, folder: Path, step: int | None = None) -> dict[str, bytes | Path]:
    """An export and its card."""
    return {path.name: path for path in folder.iterdir()} | {
        "README.md": card.write(run, folder, step).encode(),
        **_said(run),
    }


def _finished(run: Run) -> dict[str, bytes | Path]:
    figures = {f"figures/{path.name}": path for path in run.figures.glob("*.png")}
    curves = {"figures/curves.png": drawn} if (drawn := card.curves(run)) else {}
    return {
        **_export(run, run.export),
        "result.json": run.folder / "result.json",
        **figures,
        **curves,
    }


def _state(run: Run) -> dict[str, bytes | Path]:
    from .state_io import pack_newest  # torch

    structure, tensors = pack_newest(run.checkpoints)
    known = {name: run.folder / name for name in ("environment.json", "metrics.jsonl")}
    return {**known, **_said(run), "state.json": structure, "state.safetensors": tensors}
