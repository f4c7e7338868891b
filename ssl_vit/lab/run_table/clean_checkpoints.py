"""Removes the checkpoints of finished runs, whose export holds what later runs read. No torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import safe_open

from ...config import records
from ...errors import UserError
from ...hub import manifest
from ...hub.payload import open_run
from ...pages.run_record import read_run
from ...runs import lock
from ...runs.checkpoint_files import (
    STEP,
    delete,
    list_checkpoints,
    other_files,
    remove,
)
from ...runs.files import leftovers, sweep
from ...runs.identity import written_hash
from .listed_run import ListedRun, disk_use


class Cleaning(NamedTuple):
    """What would be removed of a run's folder.

    Attributes:
        name: of the run.
        checkpoints: their number.
        bytes: that they occupy.
        kept: why they are not removed; empty where they may be.
    """

    name: str
    folder: Path
    checkpoints: int
    bytes: int
    kept: str

    def content(self) -> dict[str, Any]:
        """What is removed of the run, for --json."""
        return {
            "name": self.name,
            "checkpoints": self.checkpoints,
            "bytes": self.bytes,
            "kept": self.kept or None,
        }


def plan(runs: Sequence[ListedRun]) -> list[Cleaning]:
    """What may be removed of the runs that have checkpoints, and why others keep theirs."""
    found = []
    for run in runs:
        root = run.record.folder / "checkpoints"
        paths = _removable(root)
        if paths:
            size = sum(map(disk_use, paths))
            reason = _locked(run.record.folder) or _reason(run)
            found.append(Cleaning(run.name, run.record.folder, len(paths), size, reason))
    return found


def clean(one: Cleaning) -> Cleaning:
    """Remove a run's checkpoints while its lock is held. What has changed since the plan is looked
    at again; the result has the reason in `kept` where they stay."""
    try:
        with lock.hold(one.folder, str(one.folder.parent), lambda: None):
            # is_held must not be called in here: closing the file would end this process's lock
            if not (one.folder / "result.json").exists():
                return one._replace(kept="it has no result.json any more")
            reason = _reason(ListedRun(one.name, read_run(one.folder)))
            if reason:
                return one._replace(kept=reason)
            root = one.folder / "checkpoints"
            sweep(root, STEP, delete=delete)
            for path in list_checkpoints(root):
                remove(path)
    except (UserError, OSError) as error:
        return one._replace(kept=str(error))
    return one


def _removable(root: Path) -> list[Path]:
    """The checkpoints, and what is left of those that were being written or removed."""
    return [*list_checkpoints(root), *leftovers(root, STEP)]


def _locked(folder: Path) -> str:
    held = lock.is_held(folder) or lock.is_held(folder / "hub")
    return "a process holds its lock" if held else ""


def _reason(run: ListedRun) -> str:
    """Why a run keeps its checkpoints; empty where nothing needs them any more."""
    record, folder = run.record, run.record.folder
    if record.result is None and not record.problems:
        return "it is running" if record.running else "it has not finished"
    if run.damage:
        return f"it is damaged: {run.damage}"
    if record.values.get("objective") == "probe":
        return "it is an evaluation, which makes no checkpoints: they are not its own"
    root = folder / "checkpoints"
    if any(path.is_symlink() for path in (folder, root, *_removable(root))):
        return "it is a link, or has links among its checkpoints"
    for path in _removable(root):
        if others := other_files(path):
            return f"{path.name} holds what is no part of a checkpoint: {others[0].name}"
    assert record.result is not None
    if record.result.recipe not in (None, written_hash(record.values, record.environment.free)):
        return "its result.json is of another recipe than its recipe.yaml"
    if not _is_finite(folder / "export" / "model.safetensors"):
        return "its export has weights that are not finite"
    return _owed(folder)


def _is_finite(path: Path) -> bool:
    """Whether all weights of an export are finite numbers."""
    with safe_open(path, framework="numpy") as file:
        return all(bool(np.isfinite(file.get_tensor(name)).all()) for name in file.keys())  # noqa: SIM118


def _owed(folder: Path) -> str:
    """Why uploads still need the run as it is; empty without any. The repositories are the
    recipe's and those that the push tool was given."""
    try:
        run = open_run(folder)
        if run.ledger.exists():
            records.read(run.ledger, dict[str, Any])  # manifest.read takes damage for absence
        known = manifest.read(run)
        for repo in dict.fromkeys((run.recipe.hub.repo, *known["pushed"])):
            run.recipe.hub.repo = repo
            if repo and (owed := manifest.owed(run)):
                return f"pushes to {repo} are pending: {', '.join(owed)}"
    except (OSError, ValueError) as error:  # a UserError is a ValueError
        return f"whether its uploads are complete is not known: {error}"
    return f"its last push failed: {known['last_error']}" if known["last_error"] else ""
