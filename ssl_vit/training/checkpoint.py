"""Write atomic checkpoints with checksums: checkpoints/step-000001000/ is complete or absent.

A checkpoint is written under a temporary name, synced, listed with size and SHA-256 in
manifest.json, and renamed; then older checkpoints are removed. Loading is restricted to tensors and
plain containers (weights_only).
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
from ..runs.checkpoint_files import step_of as step_of  # for modules that load checkpoints
from ..runs.files import sweep

MAX_FAILED_SAVES = 3  # failures in a row after which the run ends


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
    """Write a checkpoint, then remove old checkpoints.

    The newest `keep` checkpoints stay, and so do the best checkpoints that they name
    (`state["best"]["step"]`): if the newest is damaged, the one before must still find its best
    checkpoint. Checkpoints of later steps are removed too: they are damaged, or the run would not
    be at this step.

    Args:
        root: The run's folder of checkpoints.
        step: Optimiser step.
        state: Tensors in plain containers.
        keep: Number of checkpoints to keep.
        every: Interval of checkpoints in steps. A checkpoint between multiples of the interval,
            left by a run that was stopped, never replaces a checkpoint at a multiple, because
            another run may begin there (resume=RUN@STEP).

    Returns:
        Path of the new checkpoint.

    Raises:
        OSError, RuntimeError: The checkpoint cannot be written, for example on a full disk. Earlier
            checkpoints are left unchanged.
    """
    final = folder(root, step)
    temporary = root / f".{final.name}.{os.getpid()}"
    root.mkdir(exist_ok=True)  # Do not create parents: a run folder that was moved must stay moved.
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
    """Return the path of a step's checkpoint."""
    return root / f"step-{step:09d}"


def _best_step(path: Path) -> int | None:
    """Return the best step that a checkpoint's manifest names, or None if there is none or the
    manifest is damaged.
    """
    try:
        return read(path / MANIFEST, Manifest).best
    except (OSError, ValueError):
        return None


def _write(folder: Path, step: int, state: dict[str, Any]) -> None:
    """Write and sync the files of a checkpoint, and remove the files after a failure to free a full
    disk.
    """
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
        if isinstance(error.__context__, OSError):  # on a full disk, torch raises a RuntimeError
            raise error.__context__ from None
        raise


def is_intact(path: Path) -> bool:
    """Return whether the files of a checkpoint have the size and hash recorded in the manifest."""
    try:
        files = read(path / MANIFEST, Manifest).files
        # reading anything but a regular file, such as a device, might never end
        regular = stat.S_ISREG((path / STATE).lstat().st_mode)
        return set(files) == {STATE} and regular and _facts(path / STATE) == files[STATE].content()
    except (OSError, ValueError):
        return False


def load(path: Path) -> dict[str, Any]:
    """Return the state in a checkpoint, on the CPU.

    Raises:
        Exception: What torch and pickle raise for a file that is not a saved state.
    """
    return torch.load(path / STATE, map_location="cpu", weights_only=True)


@dataclass(eq=False, repr=False)
class Saver:
    """Saver of checkpoints, in a background thread or synchronously.

    A failed save is reported and leaves earlier checkpoints unchanged. Training continues until
    MAX_FAILED_SAVES saves in a row have failed.

    Args:
        root: The run's folder of checkpoints.
        settings: The group `checkpoint` of the recipe.
        note: Write a line to the log.
        warn: Report a warning.
    """

    root: Path
    settings: Checkpoint
    note: Callable[[str], None]
    warn: Callable[[str], None]
    failed: int = field(init=False, default=0)  # failed saves in a row
    step: int = field(init=False, default=0)  # of the last attempt
    kept: int | None = field(init=False, default=None)  # step of the last checkpoint that was saved
    error: Exception | None = field(init=False, default=None)  # of the last attempt
    thread: threading.Thread | None = field(init=False, default=None)

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Save the state of a step, after the previous save has ended.

        Raises:
            UserError: Too many saves in a row have failed.
        """
        self.wait()
        self.step = step
        if not self.settings.background:
            self._save(step, state)
            self.wait()
            return
        try:
            copy = _copied(state)
        except (MemoryError, RuntimeError) as error:  # torch raises RuntimeError without memory
            self.error = error
            self.wait()
            return
        self.thread = threading.Thread(target=self._save, args=(step, copy))
        self.thread.start()

    def wait(self) -> None:
        """Wait for the running save, and report a failure.

        Raises:
            UserError: As in `save`.
        """
        self.close()
        if self.error is None:
            return
        why = reason(self.error) or type(self.error).__name__
        self.error = None
        self.failed += 1
        kept = ", ".join(path.name for path in list_checkpoints(self.root)) or "none"
        text = f"step {self.step} could not be saved in {self.root}: {why}. Kept: {kept}"
        self.warn(text)
        if self.failed >= MAX_FAILED_SAVES:
            raise UserError(f"{self.failed} saves in a row failed: {text}")

    def close(self) -> None:
        """Wait for the running save without reporting a failure."""
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
        except Exception as error:  # for example a full disk or no memory; `wait` reports the error
            self.error = error


def _copied(value: Any) -> Any:
    """Return a deep copy with tensors on the CPU, which training does not change."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_copied(inner) for inner in value]
    return value
