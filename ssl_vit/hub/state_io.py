"""A training state without pickle, for other machines: tensors as safetensors, the rest as JSON."""

import json
from pathlib import Path
from typing import Any, cast

from safetensors.torch import load, save
from torch import Tensor

from ..errors import UserError
from ..recipe import records
from ..recipe.records.checkpoint import UploadedState
from ..training import checkpoint

PLAIN = (bool, int, float, str, type(None))


def pack(state: Any) -> tuple[bytes, bytes]:
    """A state (tensors in plain containers) as JSON and safetensors."""
    tensors: dict[str, Tensor] = {}
    structure = _pack(state, tensors)
    return json.dumps(structure).encode(), save(tensors)


def _pack(value: Any, tensors: dict[str, Tensor]) -> Any:
    """[kind, content], so that integer keys, tuples and tensors can be restored."""
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().cpu().clone().contiguous()
        return ["tensor", name]
    if isinstance(value, dict):
        return [
            "dict",
            [[_pack(key, tensors), _pack(content, tensors)] for key, content in value.items()],
        ]
    if isinstance(value, list | tuple):
        return [type(value).__name__, [_pack(content, tensors) for content in value]]
    assert isinstance(value, PLAIN), type(value)
    return ["plain", value]


def unpack(structure: bytes, tensors: bytes) -> Any:
    """What `pack` was given.

    Raises:
        ValueError, KeyError, TypeError or safetensors' own error: it is something else.
    """
    return _unpack(json.loads(structure), load(tensors))


def _unpack(packed: Any, tensors: dict[str, Tensor]) -> Any:
    kind, content = packed
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {_unpack(key, tensors): _unpack(value, tensors) for key, value in content}
    if kind in ("list", "tuple"):
        values = [_unpack(value, tensors) for value in content]
        return tuple(values) if kind == "tuple" else values
    if kind != "plain" or not isinstance(content, PLAIN):
        raise ValueError(f"{kind} is no part of a training state")
    return content


def pack_newest(root: Path) -> dict[str, bytes]:
    """The newest intact checkpoint of a run and, where checkpoint.best has chosen another one, that
    one: packed, by the names of their files.

    Raises:
        UserError: all are damaged.
    """
    for path in reversed(checkpoint.list_checkpoints(root)):
        if checkpoint.is_intact(path):
            state = checkpoint.load(path)
            return _files("state", state) | _best(root, state)
    raise UserError(f"{root} holds no intact checkpoint; the next one will be pushed")


def _files(name: str, state: Any) -> dict[str, bytes]:
    structure, tensors = pack(state)
    return {f"{name}.json": structure, f"{name}.safetensors": tensors}


def _best(root: Path, state: Any) -> dict[str, bytes]:
    """The checkpoint that a state names as the best one, unless that is itself; nothing if it is
    damaged: a run that is resumed from this state says so."""
    step = (state.get("best") or {}).get("step")
    if step in (None, state["step"]):
        return {}
    path = checkpoint.folder(root, step)
    return _files("best", checkpoint.load(path)) if checkpoint.is_intact(path) else {}


def unpack_checkpoints(root: Path, source: Path, place: str, steps: int) -> int:
    """Write the packed state of a folder, and the best one that it names, as the checkpoints that
    they were; its step.

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
    step = (state.get("best") or {}).get("step")
    if step != state["step"] and (source / "best.json").exists():
        best = _unpacked(source, "best", place, steps)
        if best["step"] == step:  # another one is left from an earlier push
            checkpoint.save(root, step, best, keep=1)
    checkpoint.save(root, state["step"], state, keep=1)
    return int(state["step"])


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
