"""Convert a training state to files without pickle: tensors to safetensors, the rest to JSON."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from safetensors.torch import load, save
from torch import Tensor

from ..errors import UserError
from ..recipe import records
from ..recipe.records.checkpoint import UploadedState
from ..training import checkpoint

TENSOR = "safetensors"  # key of the object that replaces a tensor in the JSON


def pack(state: dict[str, Any]) -> tuple[bytes, bytes]:
    """Convert a state to JSON and safetensors.

    A state has tensors, numbers and texts in lists and in dictionaries by name.
    """
    tensors: dict[str, Tensor] = {}

    def place(x: Tensor) -> dict[str, str]:
        name = str(len(tensors))
        tensors[name] = x.detach().cpu().clone().contiguous()
        return {TENSOR: name}

    structure = json.dumps(
        state, default=place
    )  # `place` is called for values that JSON cannot represent: tensors
    return structure.encode(), save(tensors)


def unpack(structure: bytes, tensors: bytes) -> Any:
    """Return the state from the results of `pack`.

    Raises:
        ValueError, KeyError, TypeError or safetensors' own error: the bytes are no packed state.
    """
    known = load(tensors)

    def find(entry: dict[str, Any]) -> Any:
        return known[entry[TENSOR]] if entry.keys() == {TENSOR} else entry

    return json.loads(structure, object_hook=find)


def pack_newest(
    root: Path, publish: Callable[[dict[str, Any]], dict[str, Any]] = dict
) -> dict[str, bytes]:
    """Pack the newest intact checkpoint of a run, and the best checkpoint if that is another.

    checkpoint.best chooses the best checkpoint. If it is damaged, it is left out, and a run that is
    resumed from this state reports it.

    Args:
        root: the run's folder of checkpoints.
        publish: a function that returns a state as it is uploaded.

    Returns:
        the packed states, by the names of the files.

    Raises:
        UserError: all checkpoints are damaged.
    """
    newest = filter(checkpoint.is_intact, reversed(checkpoint.list_checkpoints(root)))
    path = next(newest, None)
    if path is None:
        raise UserError(
            f"{root}: all checkpoints are damaged. The next push uploads the next checkpoint."
        )
    states = {"state": checkpoint.load(path)}
    step = _best_step(states["state"])
    if step is not None and checkpoint.is_intact(checkpoint.folder(root, step)):
        states["best"] = checkpoint.load(checkpoint.folder(root, step))
    files = {}
    for name, state in states.items():
        files[f"{name}.json"], files[f"{name}.safetensors"] = pack(publish(state))
    return files


def _best_step(state: dict[str, Any]) -> int | None:
    """Return the step of the best checkpoint that a state names, or None.

    Return None as well if the state itself is the best.
    """
    step: int | None = (state.get("best") or {}).get("step")
    return None if step == state["step"] else step


def unpack_checkpoints(root: Path, source: Path, place: str, steps: int) -> None:
    """Write the packed state of a folder, and the best state named there, as checkpoints.

    Args:
        root: the run's folder of checkpoints.
        source: the downloaded folder.
        place: the beginning of error messages.
        steps: number of steps of the run's optimiser.

    Raises:
        UserError: the folder holds no training state of such a run.
        OSError, RuntimeError: a checkpoint cannot be written.
    """
    state = _unpacked(source, "state", place, steps)
    if (step := _best_step(state)) is not None and (source / "best.json").exists():
        best = _unpacked(source, "best", place, steps)
        if best["step"] == step:  # the files may be from an earlier push
            checkpoint.save(root, step, best, keep=1)
    checkpoint.save(root, state["step"], state, keep=1)


def _unpacked(source: Path, name: str, place: str, steps: int) -> dict[str, Any]:
    """Return the state in NAME.json and NAME.safetensors.

    Raises:
        UserError: the files hold no training state of a step from 0 to `steps`.
    """
    try:
        structure = (source / f"{name}.json").read_bytes()
        state = unpack(structure, (source / f"{name}.safetensors").read_bytes())
        records.check(state, UploadedState)
        if not 0 <= state["step"] <= steps:
            raise ValueError(f"step {state['step']} of optim.steps={steps}")
    except Exception as error:  # a file written by others may cause any error
        raise UserError(
            f"{place}: no training state in {name}.json and {name}.safetensors: {error!r}"[:300]
        ) from None
    return cast(dict[str, Any], state)
