"""A training state without pickle, for other machines: tensors as safetensors, the rest as JSON."""

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load, save
from torch import Tensor

from ..errors import UserError
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


def pack_newest(root: Path) -> tuple[bytes, bytes]:
    """The newest intact checkpoint of a run, packed.

    Raises:
        UserError: all are damaged.
    """
    for path in reversed(checkpoint.list_checkpoints(root)):
        if checkpoint.is_intact(path):
            return pack(checkpoint.load(path))
    raise UserError(f"{root} holds no intact checkpoint; the next one will be pushed")


def unpack_checkpoint(root: Path, structure: bytes, tensors: bytes, source: str) -> int:
    """Write a packed state as the checkpoint that it was; its step.

    Raises:
        UserError: it is no training state; the text begins with `source`.
    """
    try:
        state = unpack(structure, tensors)
        step = int(state["step"])
    except Exception as error:  # whatever is wrong in somebody's file
        raise UserError(
            f"{source}: state.json or state.safetensors holds no training state: {error!r}"[:300]
        ) from None
    checkpoint.save(root, step, state, keep=1)
    return step
