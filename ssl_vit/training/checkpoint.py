"""Atomic checkpoints with checksums: checkpoints/step-000001000/ is complete or absent.

A checkpoint is written under a temporary name, synced, listed with size and SHA-256 in
manifest.json, and renamed; then older ones are removed. Loading is restricted to tensors and plain
containers (weights_only).
"""

import hashlib
import json
import os
import shutil
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..errors import UserError, reason
from ..recipe.operation import Checkpoint
from ..recipe.records import read
from ..recipe.records.checkpoint import Manifest
from ..runs.checkpoint_files import MANIFEST, STATE, STEP, list_checkpoints, remove
from ..runs.checkpoint_files import step_of as step_of  # for those that load checkpoints
from ..runs.files import sweep

MAX_FAILED_SAVES = 3  # in a row, after which the run ends


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


def save(root: Path, step: int, state: dict[str, Any], keep: int, every: int = 1) -> Path:
    """Write a checkpoint, then remove all but the newest `keep` and the best ones that these name
    (`state["best"]["step"]`): after damage the one before the newest finds its best one, too.

    Checkpoints of later steps are removed too: they are damaged, or the run would not be at this
    step.

    Args:
        root: the run's folder of checkpoints.
        step: optimiser step.
        state: tensors in plain containers.
        keep: checkpoints to keep.
        every: one between its multiples, of a run that was stopped, takes no place of one at them,
            at which other runs may begin (resume=RUN@STEP).

    Raises:
        OSError, RuntimeError: it cannot be written, such as on a full disk; earlier checkpoints are
            left as they are.
    """
    final = folder(root, step)
    temporary = root / f".{final.name}.{os.getpid()}"
    root.mkdir(exist_ok=True)  # without its parents: a run folder that was moved stays moved
    sweep(root, STEP)
    _write(temporary, step, state)
    if final.exists():
        remove(final)
    temporary.rename(final)
    _sync(root)
    known = list_checkpoints(root)
    index = known.index(final)
    before = sorted(known[:index], key=lambda path: (step_of(path) % every == 0, path))
    newest = [*before[max(0, index + 1 - keep) :], final]
    kept = {*newest, *(folder(root, best) for best in map(_best_step, newest) if best is not None)}
    for old in known:
        if old not in kept:
            remove(old)
    return final


def folder(root: Path, step: int) -> Path:
    """The folder of a step's checkpoint."""
    return root / f"step-{step:09d}"


def _best_step(path: Path) -> int | None:
    """The best step that a checkpoint's manifest names; None for none, or if it is damaged."""
    try:
        return read(path / MANIFEST, Manifest).best
    except (OSError, ValueError):
        return None


def _write(folder: Path, step: int, state: dict[str, Any]) -> None:
    """Write and sync a checkpoint's files; after a failure remove them, to free a full disk."""
    folder.mkdir()
    try:
        with (folder / STATE).open("wb") as file:
            torch.save(state, file)
        manifest = {"step": step, "files": {STATE: _facts(folder / STATE)}}
        if best := state.get("best"):
            manifest["best"] = best["step"]
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=2))
        for path in (folder / STATE, folder / MANIFEST, folder):
            _sync(path)
    except Exception as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error.__context__, OSError):  # a full disk: torch raises a RuntimeError of it
            raise error.__context__ from None
        raise


def is_intact(path: Path) -> bool:
    """Whether a checkpoint's files have the size and hash of its manifest."""
    try:
        files = read(path / MANIFEST, Manifest).files
        # reading anything else, such as a device, might not end
        regular = stat.S_ISREG((path / STATE).lstat().st_mode)
        return set(files) == {STATE} and regular and _facts(path / STATE) == files[STATE].content()
    except (OSError, ValueError):
        return False


def load(path: Path) -> dict[str, Any]:
    """A checkpoint's state, on the CPU.

    Raises:
        Exception: what torch and pickle raise for a file that is no such state.
    """
    return torch.load(path / STATE, map_location="cpu", weights_only=True)


@dataclass(eq=False, repr=False)
class Saver:
    """Saves checkpoints, in a background thread or synchronously.

    A failed save is reported and leaves the earlier checkpoints; training goes on until
    MAX_FAILED_SAVES saves in a row have failed.

    Args:
        root: the run's folder of checkpoints.
        settings: the recipe's `checkpoint`.
        note: writes a line to the log.
        warn: reports a warning.
    """

    root: Path
    settings: Checkpoint
    note: Callable[[str], None]
    warn: Callable[[str], None]
    failed: int = field(init=False, default=0)  # saves in a row
    step: int = field(init=False, default=0)  # of the last attempt
    kept: int | None = field(init=False, default=None)  # step of the last checkpoint that was saved
    error: Exception | None = field(init=False, default=None)  # of the last attempt
    thread: threading.Thread | None = field(init=False, default=None)

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Save a step's state, after the save before it has ended.

        Raises:
            UserError: too many saves in a row have failed.
        """
        self.wait()
        self.step = step
        if not self.settings.background:
            self._save(step, state)
            self.wait()
            return
        try:
            copy = _copied(state)
        except (MemoryError, RuntimeError) as error:  # torch raises the latter without memory
            self.error = error
            self.wait()
            return
        self.thread = threading.Thread(target=self._save, args=(step, copy))
        self.thread.start()

    def wait(self) -> None:
        """Wait for the running save, and report it if it failed.

        Raises:
            UserError: as `save`.
        """
        self.close()
        if self.error is None:
            return
        why = reason(self.error) or type(self.error).__name__
        self.error = None
        self.failed += 1
        kept = ", ".join(path.name for path in list_checkpoints(self.root)) or "none"
        text = f"step {self.step} could not be saved in {self.root}: {why}; kept: {kept}"
        self.warn(text)
        if self.failed >= MAX_FAILED_SAVES:
            raise UserError(f"{self.failed} saves in a row failed; {text}")

    def close(self) -> None:
        """Wait for the running save."""
        if self.thread is not None:
            self.thread.join()
        self.thread = None

    def _save(self, step: int, state: dict[str, Any]) -> None:
        before = time.perf_counter()
        try:
            path = save(self.root, step, state, self.settings.keep, self.settings.every)
            size = (path / STATE).stat().st_size / 2**20
            self.note(f"saved {path.name}, {size:.1f} MiB, in {time.perf_counter() - before:.2f} s")
            self.failed = 0
            self.kept = step
        except Exception as error:  # a full disk, no memory, anything: `wait` reports it
            self.error = error


def _copied(value: Any) -> Any:
    """A deep copy with tensors on the CPU, which training does not change."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_copied(inner) for inner in value]
    return value
