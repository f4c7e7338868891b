"""Saving and resuming the training state: checkpoints/step-000001000/ is complete or absent, never half.

Written beside under a name that nobody reads, synced, listed with sizes and SHA-256 in manifest.json, renamed; only then are
older ones pruned. Nothing is unpickled but tensors and plain containers (weights_only).
"""

import hashlib
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import torch

MANIFEST = "manifest.json"


def _sync(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _facts(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def save(root: Path, step: int, state: dict[str, Any], keep: int) -> Path:
    """Write `state` (tensors in plain containers) as step `step`'s checkpoint, then prune to the newest `keep`.

    Checkpoints of later steps go too: they are damaged, or the run would not be at this step.
    """
    final = root / f"step-{step:09d}"
    beside = root / f".{final.name}.{os.getpid()}"
    root.mkdir(parents=True, exist_ok=True)
    for left in root.glob(".step-*"):  # what a kill left half-written or half-removed
        shutil.rmtree(left)
    beside.mkdir()
    torch.save(state, beside / "state.pt")
    (beside / MANIFEST).write_text(json.dumps({"step": step, "files": {"state.pt": _facts(beside / "state.pt")}}, indent=2))
    for path in (beside / "state.pt", beside / MANIFEST, beside):
        _sync(path)
    if final.exists():
        _remove(final)
    beside.rename(final)
    _sync(root)
    known = found(root)
    at = known.index(final)
    for old in known[: max(0, at + 1 - keep)] + known[at + 1 :]:
        _remove(old)
    return final


def _remove(path: Path) -> None:
    """Out of sight first, so that a kill in between leaves no half of it."""
    hidden = path.with_name(f".{path.name}.old")
    path.rename(hidden)
    shutil.rmtree(hidden)


def found(root: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return sorted(p for p in root.glob("step-*") if re.fullmatch(r"step-\d{9,}", p.name) and (p / MANIFEST).exists())


def sound(path: Path) -> bool:
    """Whether a checkpoint's files are those that were written."""
    try:
        files = json.loads((path / MANIFEST).read_text())["files"]
        return "state.pt" in files and all(_facts(path / name) == facts for name, facts in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def load(path: Path) -> dict[str, Any]:
    """A checkpoint's state, on the CPU."""
    return torch.load(path / "state.pt", map_location="cpu", weights_only=True)
