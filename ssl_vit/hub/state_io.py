"""A training state without pickle, for other machines: tensors as safetensors, the rest as JSON."""

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

TENSOR = "safetensors"  # the key of what stands for a tensor in the JSON


def pack(state: dict[str, Any]) -> tuple[bytes, bytes]:
    """A state (tensors, numbers and texts in dictionaries by name and lists) as JSON and
    safetensors."""
    tensors: dict[str, Tensor] = {}

    def place(x: Tensor) -> dict[str, str]:
        name = str(len(tensors))
        tensors[name] = x.detach().cpu().clone().contiguous()
        return {TENSOR: name}

    structure = json.dumps(state, default=place)  # called with what JSON does not have
    return structure.encode(), save(tensors)


def unpack(structure: bytes, tensors: bytes) -> Any:
    """What `pack` was given.

    Raises:
        ValueError, KeyError, TypeError or safetensors' own error: it is something else.
    """
    known = load(tensors)

    def find(found: dict[str, Any]) -> Any:
        return known[found[TENSOR]] if found.keys() == {TENSOR} else found

    return json.loads(structure, object_hook=find)


def pack_newest(
    root: Path, publish: Callable[[dict[str, Any]], dict[str, Any]] = dict
) -> dict[str, bytes]:
    """The newest intact checkpoint of a run and, where checkpoint.best has chosen another one, that
    one (unless it is damaged: a run that is resumed from this state says so): packed, by the names
    of their files.

    Args:
        root: the run's folder of checkpoints.
        publish: returns a state as it is uploaded.

    Raises:
        UserError: all are damaged.
    """
    newest = filter(checkpoint.is_intact, reversed(checkpoint.list_checkpoints(root)))
    path = next(newest, None)
    if path is None:
        raise UserError(f"{root} holds no intact checkpoint; the next one will be pushed")
    states = {"state": checkpoint.load(path)}
    step = _best_step(states["state"])
    if step is not None and checkpoint.is_intact(checkpoint.folder(root, step)):
        states["best"] = checkpoint.load(checkpoint.folder(root, step))
    files = {}
    for name, state in states.items():
        files[f"{name}.json"], files[f"{name}.safetensors"] = pack(publish(state))
    return files


def _best_step(state: dict[str, Any]) -> int | None:
    """The step of the checkpoint that a state names as the best one; None for itself or none."""
    step: int | None = (state.get("best") or {}).get("step")
    return None if step == state["step"] else step


def unpack_checkpoints(root: Path, source: Path, place: str, steps: int) -> None:
    """Write the packed state of a folder, and the best one that it names, as the checkpoints that
    they were.

    Args:
        root: the run's folder of checkpoints.
        source: what was downloaded.
        place: with which an error begins.
        steps: of the run's optimiser.

    Raises:
        UserError: the folder holds no training state of such a run.
        OSError, RuntimeError: it cannot be written.
    """
    state = _unpacked(source, "state", place, steps)
    if (step := _best_step(state)) is not None and (source / "best.json").exists():
        best = _unpacked(source, "best", place, steps)
        if best["step"] == step:  # another one is left from an earlier push
            checkpoint.save(root, step, best, keep=1)
    checkpoint.save(root, state["step"], state, keep=1)


def _unpacked(source: Path, name: str, place: str, steps: int) -> dict[str, Any]:
    """The state in NAME.json and NAME.safetensors, of a step from 0 to `steps`.

    Raises:
        UserError: it is none.
    """
    try:
        structure = (source / f"{name}.json").read_bytes()
        state = unpack(structure, (source / f"{name}.safetensors").read_bytes())
        records.check(state, UploadedState)
        if not 0 <= state["step"] <= steps:
            raise ValueError(f"step {state['step']} of optim.steps={steps}")
    except Exception as error:  # whatever is wrong in somebody's file
        raise UserError(
            f"{place}: {name}.json or {name}.safetensors holds no training state: {error!r}"[:300]
        ) from None
    return cast(dict[str, Any], state)
