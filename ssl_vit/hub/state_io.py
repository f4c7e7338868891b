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

TENSOR = "safetensors"  # in the JSON, {TENSOR: name} stands for a tensor


def pack(state: dict[str, Any]) -> tuple[bytes, bytes]:
    """Convert a training state to the contents of a JSON file and a safetensors file.

    For example, {"step": 3, "mean": tensor} becomes {"step": 3, "mean": {"safetensors": "0"}} in
    the JSON file, and the safetensors file holds the tensor under the name "0".

    Args:
        state: Tensors, numbers and texts, in nested lists and dictionaries. Keys are texts.
    """
    tensors: dict[str, Tensor] = {}

    def store(tensor: Tensor) -> dict[str, str]:
        name = str(len(tensors))
        tensors[name] = tensor.detach().cpu().clone().contiguous()
        return {TENSOR: name}

    # json calls `store` for values that have no JSON form, here the tensors
    structure = json.dumps(state, default=store)
    return structure.encode(), save(tensors)


def unpack(structure: bytes, tensors: bytes) -> Any:
    """Convert the two files that `pack` made back to a training state.

    Args:
        structure: Content of the JSON file.
        tensors: Content of the safetensors file.

    Raises:
        ValueError: The JSON file is damaged.
        KeyError: A tensor is missing.
        TypeError: The structure is no packed state.
        SafetensorError: The safetensors file is damaged.
    """
    by_name = load(tensors)

    # json calls `restore` for each dictionary, and uses the result in place of the dictionary
    def restore(entry: dict[str, Any]) -> Any:
        return by_name[entry[TENSOR]] if entry.keys() == {TENSOR} else entry

    return json.loads(structure, object_hook=restore)


def pack_newest(
    root: Path, publish: Callable[[dict[str, Any]], dict[str, Any]] = dict
) -> dict[str, bytes]:
    """Pack the newest intact checkpoint of a run and, if different, the best checkpoint.

    A damaged best checkpoint (checkpoint.best) is left out. A run that is resumed from the uploaded
    state then reports that the best checkpoint is missing.

    Args:
        root: The run's folder of checkpoints.
        publish: Function that removes private values from a state. Default: keep all values.

    Returns:
        {name of the file: content}.

    Raises:
        UserError: All checkpoints are damaged.
    """
    newest_first = reversed(checkpoint.list_checkpoints(root))
    path = next(filter(checkpoint.is_intact, newest_first), None)
    if path is None:
        raise UserError(
            f"{root}: all checkpoints are damaged, so no training state was uploaded. Push again"
            " after the run has saved its next checkpoint."
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
    """Return the step of the best checkpoint, as recorded in a training state.

    None if no best checkpoint is recorded, or if the state itself is the best checkpoint.
    """
    best = state.get("best") or {}
    step: int | None = best.get("step")
    return None if step == state["step"] else step  # `step` is None if none is recorded


def unpack_checkpoints(root: Path, source: Path, place: str, steps: int) -> None:
    """Write the downloaded training state, and the best state if there is one, as checkpoints.

    Args:
        root: The run's folder of checkpoints.
        source: Folder of the downloaded files.
        place: Repository as the user has typed it, for error messages.
        steps: Number of optimiser steps of the run.

    Raises:
        UserError: The files hold no training state, or a state of a step after `steps`.
        OSError: A checkpoint cannot be written.
        RuntimeError: A checkpoint cannot be written, because the disk is full.
    """
    state = _read_state(source, "state", place, steps)
    best_step = _best_step(state)
    if best_step is not None and (source / "best.json").exists():
        best = _read_state(source, "best", place, steps)
        # if the steps differ, the best state is from an earlier push and is not used
        if best["step"] == best_step:
            checkpoint.save(root, best_step, best, keep=1)
    checkpoint.save(root, state["step"], state, keep=1)


def _read_state(source: Path, name: str, place: str, steps: int) -> dict[str, Any]:
    """Read and check the state in NAME.json and NAME.safetensors.

    Args:
        source: Folder of the downloaded files.
        name: Name of the files, without ending.
        place: Repository as the user has typed it, for error messages.
        steps: Number of optimiser steps of the run.

    Raises:
        UserError: The files hold no training state of a step from 0 to `steps`.
    """
    try:
        structure = (source / f"{name}.json").read_bytes()
        state = unpack(structure, (source / f"{name}.safetensors").read_bytes())
        records.check(state, UploadedState)
        if not 0 <= state["step"] <= steps:
            raise ValueError(
                f"step {state['step']} of the checkpoint is not between 0 and optim.steps={steps}"
            )
    except Exception as error:  # a file written by others may cause any error
        raise UserError(
            f"{place}: no training state in {name}.json and {name}.safetensors: {error!r}"[:300]
        ) from None
    return cast(dict[str, Any], state)
