"""How robustness/mutations.py alters a file: bits, ends, bytes, values of JSON and YAML, and states of
checkpoints beside manifests that agree with them."""

import copy
import hashlib
import json
import math
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import yaml

STRANGE: list[Any] = [
    None,
    True,
    -1,
    0,
    1.5,
    1e400,
    -1e400,
    math.nan,
    10**400,
    10**30,
    "",
    " ",
    "x",
    "../x",
    "/dev/zero",
]
STRANGE += [
    "\ud800",
    "\x1b[31m",
    "é" * 300,
    "<script>|`",
    [],
    {},
    [[]],
    [1, [2]],
    {"a": {}},
    {"": None},
    ["x"] * 3,
    "${oc.env:HOME}",
]


def alter(path: Path, draw: random.Random) -> str:
    """Alter a file; how."""
    data = path.read_bytes() if path.exists() else b"{}"
    ways = [_flipped, _torn, _noise, _emptied]
    if path.suffix in (".json", ".jsonl") or path.name == "lock":
        ways += [_json] * 8 + [_deep]
    if path.suffix == ".yaml":
        ways += [_yaml] * 8 + [_deep_yaml]
    if path.name == "state.pt":
        ways += [_state] * 8
    way = draw.choice(ways)
    path.write_bytes(way(data, draw, path))
    return way.__name__[1:]


def _flipped(data: bytes, draw: random.Random, path: Path) -> bytes:
    changed = bytearray(data or b"x")
    for _ in range(draw.choice([1, 1, 8])):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _torn(data: bytes, draw: random.Random, path: Path) -> bytes:
    return data[: draw.randrange(len(data) + 1)]


def _emptied(data: bytes, draw: random.Random, path: Path) -> bytes:
    return b""


def _noise(data: bytes, draw: random.Random, path: Path) -> bytes:
    at = draw.randrange(len(data) + 1)
    return data[:at] + draw.choice([b"\xff\xfe", b"\xe9", b"\0", draw.randbytes(40)]) + data[at:]


def _deep(data: bytes, draw: random.Random, path: Path) -> bytes:
    many = draw.choice([100, 2000, 200_000])
    return draw.choice([b"[" * many + b"]" * many, b'{"a":' * many + b"1" + b"}" * many])


def _deep_yaml(data: bytes, draw: random.Random, path: Path) -> bytes:
    many = draw.choice([100, 2000, 200_000])
    return data + draw.choice(
        [b"a: " + b"[" * many, b"a:\n" + b"- " * many + b"x", b"a: " + b"{a: " * many]
    )


def _json(data: bytes, draw: random.Random, path: Path) -> bytes:
    lines = data.decode().splitlines() if path.suffix == ".jsonl" else [data.decode()]
    at = draw.randrange(len(lines)) if lines else 0
    try:
        lines[at] = json.dumps(_strange(json.loads(lines[at]), draw))
    except (ValueError, IndexError):  # empty, as a lock
        lines = [json.dumps(draw.choice(STRANGE))]
    return "\n".join(lines).encode() + b"\n"


def _yaml(data: bytes, draw: random.Random, path: Path) -> bytes:
    value = _strange(yaml.safe_load(data), draw)
    return yaml.safe_dump(value, sort_keys=False).encode(errors="surrogatepass")


def _strange(value: Any, draw: random.Random) -> Any:
    """A tree with one node altered."""
    value = copy.deepcopy(value)
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        inside: Iterable[tuple[Any, Any]] = ()
        if isinstance(node, dict):
            inside = node.items()
        elif isinstance(node, list):
            inside = enumerate(node)
        for key, inner in inside:
            places.append((node, key))
            walk(inner)

    walk(value)
    if not places or draw.random() < 0.05:
        return draw.choice(STRANGE)
    node, key = draw.choice(places)
    if draw.random() < 0.3:
        del node[key]
    elif isinstance(node, dict) and draw.random() < 0.15:
        node[draw.choice(["", "x", "../x", "é" * 300, "a.b"])] = node.pop(key)
    else:
        node[key] = copy.deepcopy(draw.choice(STRANGE))
    return value


def _state(data: bytes, draw: random.Random, path: Path) -> bytes:
    """A state that is another, beside a manifest that agrees with it."""
    state = torch.load(path, weights_only=True)
    changed = _strange(state, draw)
    torch.save(changed, path)
    whole = path.read_bytes()
    facts = {"bytes": len(whole), "sha256": hashlib.sha256(whole).hexdigest()}
    (path.parent / "manifest.json").write_text(
        json.dumps({"step": 2, "files": {"state.pt": facts}})
    )
    return whole
