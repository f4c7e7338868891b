"""Removes the checkpoints of finished runs, whose export holds what later runs read. No torch."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors import safe_open

from ...errors import UserError
from ...hub import manifest
from ...hub.payload import open_run
from ...pages.run_record import read_run
from ...runs import lock
from ...runs.checkpoint_files import STEP, list_checkpoints, remove
from ...runs.files import leftovers, sweep
from ...runs.identity import written_hash
from ..study.record import FILE
from .listed import ListedRun, disk_use


class Cleaned(NamedTuple):
    """What was removed of a run's folder.

    Attributes:
        name: of the run.
        checkpoints: their number.
        bytes: that they occupied.
        kept: why they were not removed; empty where they were.
    """

    name: str
    checkpoints: int
    bytes: int
    kept: str = ""


def clean(run: ListedRun) -> Cleaned | None:
    """Remove a run's checkpoints, if nothing needs them any more; None of a run without some."""
    folder, root = run.record.folder, run.record.folder / "checkpoints"
    paths = _removable(root)
    if not paths:
        return None
    found = Cleaned(run.name, len(paths), sum(map(disk_use, paths)))
    try:
        if lock.is_held(folder):
            return found._replace(kept="a process holds its lock")
        if (folder.parent / FILE).exists() and lock.is_held(folder.parent):
            return found._replace(kept=f"its study {folder.parent.name} is going on")
        # a run that may go on is not locked: starting it would be refused meanwhile
        if run.record.result is None:
            return found._replace(kept=why_kept(run))
        with lock.hold(folder, str(folder.parent)):
            # as it is now
            if reason := why_kept(ListedRun(run.name, read_run(folder))):
                return found._replace(kept=reason)
            sweep(root, STEP)
            for path in list_checkpoints(root):
                remove(path)
    except (UserError, OSError) as error:
        return found._replace(kept=str(error))
    return found


def _removable(root: Path) -> list[Path]:
    """The checkpoints, and what is left of those that were being written or removed."""
    return [*list_checkpoints(root), *leftovers(root, STEP)]


def why_kept(run: ListedRun) -> str:
    """Why a run that nobody writes keeps its checkpoints; empty where nothing needs them."""
    record, folder, root = run.record, run.record.folder, run.record.folder / "checkpoints"
    if run.damage:
        return f"it is damaged: {run.damage}"
    if record.result is None:
        return "it has not finished"
    if record.values.get("objective") == "probe":
        return "it is an evaluation, which makes no checkpoints: they are not its own"
    if any(path.is_symlink() for path in (folder, root, *_removable(root))):
        return "it is a link, or has links among its checkpoints"
    if record.result.recipe not in (None, written_hash(record.values, record.environment.free)):
        return "its result.json is of another recipe than its recipe.yaml"
    with safe_open(folder / "export" / "model.safetensors", framework="numpy") as file:
        if not all(np.isfinite(file.get_tensor(name)).all() for name in file.keys()):  # noqa: SIM118
            return "its export has weights that are not finite"
    return _pending_pushes(folder)


def _pending_pushes(folder: Path) -> str:
    """Why uploads still need the run as it is; empty without any."""
    try:
        pending = manifest.pending(open_run(folder))
    except (OSError, ValueError) as error:  # a UserError is a ValueError
        return f"whether its uploads are complete is not known: {error}"
    return f"pushes are pending: {', '.join(pending)}" if pending else ""
