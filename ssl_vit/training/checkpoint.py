"""Saving and resuming the training state: checkpoints/step-000001000/ is complete or absent, never
half.

Written beside under a name that nobody reads, synced, listed with sizes and SHA-256 in
manifest.json, renamed; only then are older ones pruned. Nothing is unpickled but tensors and plain
containers (weights_only).
"""

import hashlib
import json
import os
import re
import shutil
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ..config.operation import Checkpoint
from ..config.parsing import read_json
from ..errors import UserError

MANIFEST, STATE = "manifest.json", "state.pt"


def _sync(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _facts(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {
            "bytes": path.stat().st_size,
            "sha256": hashlib.file_digest(file, "sha256").hexdigest(),
        }


def save(root: Path, step: int, state: dict[str, Any], keep: int) -> Path:
    """Write `state` (tensors in plain containers) as step `step`'s checkpoint, then prune to the
    newest `keep`.

    Checkpoints of later steps go too: they are damaged, or the run would not be at this step.
    """
    final = root / f"step-{step:09d}"
    beside = root / f".{final.name}.{os.getpid()}"
    root.mkdir(exist_ok=True)  # not what it lies in: a run's folder that was moved stays moved
    for left in root.glob(".step-*"):  # what a kill left half-written or half-removed
        _clear(left)
    _write(beside, step, state)
    if final.exists():
        _remove(final)
    beside.rename(final)
    _sync(root)
    known = list_checkpoints(root)
    at = known.index(final)
    for old in known[: max(0, at + 1 - keep)] + known[at + 1 :]:
        _remove(old)
    return final


def _write(folder: Path, step: int, state: dict[str, Any]) -> None:
    """A checkpoint's files, synced. What a failure leaves half-written goes, so that a full disk
    has room again."""
    folder.mkdir()
    try:
        torch.save(state, folder / "state.pt")
        (folder / MANIFEST).write_text(
            json.dumps({"step": step, "files": {"state.pt": _facts(folder / "state.pt")}}, indent=2)
        )
        for path in (folder / "state.pt", folder / MANIFEST, folder):
            _sync(path)
    except Exception:  # a RuntimeError is torch's word for a disk that is full
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _remove(path: Path) -> None:
    """Out of sight first, so that a kill in between leaves no half of it."""
    hidden = path.with_name(f".{path.name}.old")
    path.rename(hidden)
    _clear(hidden)


def _clear(path: Path) -> None:
    """Remove a folder with all in it; of a link the link alone, as what it leads to is
    another's."""
    if path.is_symlink() or not path.is_dir():
        path.unlink()
    else:
        shutil.rmtree(path)


def list_checkpoints(root: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return sorted(p for p in root.glob("step-*") if re.fullmatch(r"step-\d{9,}", p.name))


def step_of(path: Path) -> int:
    """The optimiser step of a checkpoint's folder."""
    return int(path.name.removeprefix("step-"))


def is_intact(path: Path) -> bool:
    """Whether a checkpoint's files are those that were written."""
    try:
        files = read_json(path / MANIFEST, {"files": {"state.pt": {"bytes": int, "sha256": str}}})[
            "files"
        ]
        # what else it may be could be endless
        regular = stat.S_ISREG((path / STATE).lstat().st_mode)
        return set(files) == {STATE} and regular and _facts(path / STATE) == files[STATE]
    except (OSError, ValueError):
        return False


def load(path: Path) -> dict[str, Any]:
    """A checkpoint's state, on the CPU."""
    return torch.load(path / "state.pt", map_location="cpu", weights_only=True)


class Saver:
    """Saves one checkpoint after the other, in a thread of its own or at once. A save that fails is
    told and leaves those before it; training goes on until too many in a row have failed."""

    def __init__(
        self,
        root: Path,
        settings: Checkpoint,
        note: Callable[[str], None],
        warn: Callable[[str], None],
    ) -> None:
        self.root, self.settings, self.note, self.warn = root, settings, note, warn
        self.failed = 0  # in a row
        self.step = 0  # the last that was tried
        self.kept: int | None = None  # the last that was saved
        self.error: Exception | None = None  # of that
        self.thread: threading.Thread | None = None

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Save a step's state, once the save before it has ended.

        Raises:
            UserError: too many saves in a row have failed.
        """
        self.wait()
        self.step = step
        if not self.settings.background:
            self._save(step, state)
            return self.wait()
        try:
            copied = _copied(state)
        except (MemoryError, RuntimeError) as error:  # the latter is torch's word for no memory
            self.error = error
            return self.wait()
        self.thread = threading.Thread(target=self._save, args=(step, copied))
        return self.thread.start()

    def wait(self) -> None:
        """Let the running save end, and tell if it failed.

        Raises:
            UserError: as `save`.
        """
        self.close()
        error, self.error = self.error, None
        if error is None:
            return
        self.failed += 1
        why = " ".join(str(error).split())[:200] or type(error).__name__
        text = f"step {self.step} could not be saved, the checkpoints before it are kept: {why}"
        self.warn(text)
        if self.failed >= self.settings.failures:
            raise UserError(
                f"checkpoint.failures={self.failed}: that many saves in a row failed; {text}"
            )

    def close(self) -> None:
        if self.thread is not None:
            self.thread.join()
        self.thread = None

    def _save(self, step: int, state: dict[str, Any]) -> None:
        before = time.perf_counter()
        try:
            path = save(self.root, step, state, self.settings.keep)
            size = (path / "state.pt").stat().st_size / 2**20
            self.note(f"saved {path.name}, {size:.1f} MiB, in {time.perf_counter() - before:.2f} s")
            self.failed, self.kept = 0, step
        # no room on the disk or in memory, and whatever else: told by `wait`, also from a thread
        except Exception as error:
            self.error = error


def _copied(value: Any) -> Any:
    """The same containers with tensors of their own on the CPU, which training does not change."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items()}
    return [_copied(inner) for inner in value] if isinstance(value, list) else value
