"""The files of each branch that is uploaded to the Hugging Face Hub. Torch is imported only for the
training state."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ..recipe import export_files
from ..recipe.identity import FACTS
from ..recipe.schema import dump, without_private
from ..runs.checkpoint_files import list_checkpoints, step_of
from ..runs.folder import COMPARED, TRAINED_ON, Run
from . import card

STATE = ("recipe.yaml", "environment.json", "metrics.jsonl", "state.json", "state.safetensors")
BEST = ("best.json", "best.safetensors")  # beside STATE, where checkpoint.best has chosen another
Files = dict[str, bytes | Path]  # by their names in the repository


class Upload(NamedTuple):
    """The content of one commit to a branch; `stamp` identifies the content in hub.json."""

    branch: str
    stamp: str
    message: str
    files: Callable[[], Files]


def uploads(run: Run) -> Iterator[Upload]:
    """Everything that can be uploaded: milestones by step, the finished run, the newest training
    state."""
    name = run.recipe.name
    for folder in list_checkpoints(run.outbox):
        step = step_of(folder)
        message = f"{name} after {step:,} of {run.recipe.optim.steps:,} steps"
        yield Upload(folder.name, "", message, partial(_export, run, folder, step))
    if result := run.result():
        yield Upload("main", result.finished, f"{name}, finished", partial(_finished, run))
    if run.recipe.hub.state and (saved := list_checkpoints(run.checkpoints)):
        message = f"{name}, the training state"
        yield Upload("state", saved[-1].name, message, partial(_state, run))


def identity(run: Run) -> dict[str, Any]:
    """What identifies a run beside its recipe: hashes of its images, initial weights and plugin."""
    known = run.environment().content()
    return {key: known[key] for key in FACTS if known.get(key)}


def _description(run: Run) -> Files:
    """Files that every branch has."""
    return {
        "recipe.yaml": dump(without_private(run.recipe)).encode(),
        "run.json": f"{json.dumps(identity(run), indent=2)}\n".encode(),
    }


def _export(run: Run, folder: Path, step: int | None = None) -> Files:
    """An export and its model card.

    Raises:
        UserError: weights were replaced or are not finite.
    """
    for name in export_files.WRITTEN[1:]:
        export_files.check_weights(folder, name, f"hub.repo={run.recipe.hub.repo}")
    files: Files = {path.name: path for path in folder.iterdir()}
    return files | {"README.md": card.write(run, folder, step).encode()} | _description(run)


def _finished(run: Run) -> Files:
    figures = {f"figures/{path.name}": path for path in run.figures.glob("*.png")}
    return _export(run, run.export) | {"result.json": run.folder / "result.json"} | figures


def _state(run: Run) -> Files:
    from .state_io import pack_newest  # torch

    names = ("environment.json", "metrics.jsonl", TRAINED_ON, COMPARED)
    known = {name: run.folder / name for name in names if (run.folder / name).exists()}
    return known | _description(run) | pack_newest(run.checkpoints)
