"""Write atomic checkpoints with checksums: checkpoints/step-000001000/ is complete or absent.

A checkpoint is a folder. The folder is written under a temporary name, with a manifest.json that
has the size and the SHA-256 of the state, synced, and renamed. Then older checkpoints are removed.
Loading is restricted to tensors and plain containers (weights_only).
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
    """Flush a file or a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _size_and_hash(path: Path) -> dict[str, Any]:
    """Return {"bytes": size of a file, "sha256": SHA-256 of the file}, as in manifest.json."""
    with path.open("rb") as file:
        return {
            "bytes": path.stat().st_size,
            "sha256": hashlib.file_digest(file, "sha256").hexdigest(),
        }


def save(root: Path, step: int, state: dict[str, Any], keep: int, every: int = 1) -> Path:
    """Write a checkpoint, then remove old checkpoints.

    The new checkpoint and `keep` - 1 earlier checkpoints stay: the newest, but checkpoints at
    multiples of `every` before all others. For each checkpoint that stays, the checkpoint of the
    best step up to then (`state["best"]["step"]`) stays, too. If the newest checkpoint is damaged,
    the run can thus resume from the previous checkpoint, and the best checkpoint of that state
    still exists. Checkpoints of later steps than `step` are removed. Such checkpoints are damaged,
    because the run would otherwise have resumed from them.

    Args:
        root: The run's folder of checkpoints.
        step: Optimiser step of the checkpoint.
        state: Tensors in plain containers.
        keep: Number of checkpoints that stay, without the checkpoints of best steps.
        every: Interval of checkpoints in steps. Checkpoints at multiples of the interval are
            removed last, because another run may begin there (resume=RUN@STEP).

    Returns:
        Path of the new checkpoint.

    Raises:
        OSError, RuntimeError: The checkpoint cannot be written, for example on a full disk. Earlier
            checkpoints are left unchanged.
    """
    final = folder(root, step)
    temporary = root / f".{final.name}.{os.getpid()}"
    root.mkdir(exist_ok=True)  # without parents, so that a moved run folder is not created again
    sweep(root, STEP)
    _write(temporary, step, state)
    if final.exists():
        remove(final)
    temporary.rename(final)
    _sync(root)
    checkpoints = list_checkpoints(root)
    earlier = checkpoints[: checkpoints.index(final)]
    # Sort in the order of removal: checkpoints at multiples of the interval come last
    earlier.sort(key=lambda path: (step_of(path) % every == 0, path))
    surplus = max(0, len(earlier) + 1 - keep)  # 1 for the new checkpoint
    staying = {*earlier[surplus:], final}
    best_steps = [_best_step(path) for path in staying]
    staying |= {folder(root, step) for step in best_steps if step is not None}
    for path in checkpoints:
        if path not in staying:
            remove(path)
    return final


def folder(root: Path, step: int) -> Path:
    """Return the path of a step's checkpoint, such as checkpoints/step-000001000."""
    return root / f"step-{step:09d}"


def _best_step(path: Path) -> int | None:
    """Return the step of the best evaluation up to a checkpoint, as stored in the manifest.

    The result is None if the run chooses no best step (checkpoint.best=null), or if the manifest is
    damaged.
    """
    try:
        return read(path / MANIFEST, Manifest).best
    except (OSError, ValueError):
        return None


def _write(folder: Path, step: int, state: dict[str, Any]) -> None:
    """Create the folder of a checkpoint with all files, or leave no folder.

    Args:
        folder: Folder to create.
        step: Optimiser step of the checkpoint.
        state: Tensors in plain containers.

    Raises:
        OSError, RuntimeError: The files cannot be written. The folder is removed, because the disk
            may be full.
    """
    folder.mkdir()
    try:
        with (folder / STATE).open("wb") as file:
            torch.save(state, file)
        manifest = {"step": step, "files": {STATE: _size_and_hash(folder / STATE)}}
        best = state.get("best")
        if best:
            manifest["best"] = best["step"]
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=2))
        for path in (folder / STATE, folder / MANIFEST, folder):
            _sync(path)
    except Exception as error:
        shutil.rmtree(folder, ignore_errors=True)
        # On a full disk, torch catches the OSError and raises a RuntimeError, which says less. The
        # OSError is then the context of the RuntimeError. Raise the OSError again
        disk_error = error.__context__
        if isinstance(disk_error, OSError):
            raise disk_error from None
        raise


def is_intact(path: Path) -> bool:
    """Return whether the files of a checkpoint have the size and hash recorded in the manifest."""
    try:
        files = read(path / MANIFEST, Manifest).files
        # Reading a special file, such as a device, might never end
        is_regular = stat.S_ISREG((path / STATE).lstat().st_mode)
        if set(files) != {STATE} or not is_regular:
            return False
        # `content()` is the recorded result of `_size_and_hash`
        return _size_and_hash(path / STATE) == files[STATE].content()
    except (OSError, ValueError):
        return False


def load(path: Path) -> dict[str, Any]:
    """Return the state in a checkpoint, on the CPU.

    Raises:
        Exception: Any error of torch or pickle for a file that is not a saved state.
    """
    return torch.load(path / STATE, map_location="cpu", weights_only=True)


@dataclass(eq=False, repr=False)
class Saver:
    """Saver of a run's checkpoints, in a background thread or synchronously.

    A failed save is reported, and earlier checkpoints stay unchanged. Training continues until
    MAX_FAILED_SAVES saves in a row have failed.

    Args:
        root: The run's folder of checkpoints.
        settings: Group `checkpoint` of the recipe.
        note: Writes a line to the log.
        warn: Reports a warning.
    """

    root: Path
    settings: Checkpoint
    note: Callable[[str], None]
    warn: Callable[[str], None]
    failed: int = field(init=False, default=0)  # failed saves in a row
    step: int = field(init=False, default=0)  # step of the last attempt to save
    kept: int | None = field(init=False, default=None)  # step of the last successful save
    error: Exception | None = field(init=False, default=None)  # error of the last attempt
    thread: threading.Thread | None = field(init=False, default=None)

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Wait for the previous save, then save the state of a step.

        A background thread saves a copy of the state, so that training may change the state. If a
        save in the background fails, the next `wait` reports the error.

        Args:
            step: Optimiser step of the state.
            state: Tensors in plain containers.

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
            copied_state = _copied(state)
        except (MemoryError, RuntimeError) as error:  # torch raises RuntimeError without memory
            self.error = error
            self.wait()
            return
        self.thread = threading.Thread(target=self._save, args=(step, copied_state))
        self.thread.start()

    def wait(self) -> None:
        """Wait for the running save, and warn if the save has failed.

        Raises:
            UserError: Too many saves in a row have failed.
        """
        self.close()  # waits for the thread
        if self.error is None:
            return
        error_text = reason(self.error) or type(self.error).__name__
        self.error = None
        self.failed += 1
        checkpoints = ", ".join(path.name for path in list_checkpoints(self.root)) or "none"
        warning = (
            f"step {self.step} could not be saved in {self.root}: {error_text}. Kept: {checkpoints}"
        )
        self.warn(warning)
        if self.failed >= MAX_FAILED_SAVES:
            raise UserError(f"{self.failed} saves in a row failed: {warning}")

    def close(self) -> None:
        """Wait for the running save without reporting a failure."""
        if self.thread is not None:
            self.thread.join()
        self.thread = None

    def _save(self, step: int, state: dict[str, Any]) -> None:
        start = time.perf_counter()
        try:
            path = save(self.root, step, state, self.settings.keep, self.settings.every)
            size = (path / STATE).stat().st_size / 2**20
            self.note(f"saved {path.name}, {size:.1f} MiB, in {time.perf_counter() - start:.2f} s")
            self.failed = 0
            self.kept = step
        except Exception as error:  # for example a full disk or no memory; `wait` reports the error
            self.error = error


def _copied(value: Any) -> Any:
    """Return a deep copy of a state, with all tensors on the CPU."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_copied(inner) for inner in value]
    return value
