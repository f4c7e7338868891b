"""List and remove the folders of checkpoints. No torch."""

import re
from collections.abc import Collection
from pathlib import Path

from . import files

MANIFEST = "manifest.json"
STATE = "state.pt"
STEP = re.compile(r"step-\d{9,}")  # name of a checkpoint's folder


def list_checkpoints(root: Path) -> list[Path]:
    """Return the folders of a run's checkpoints, oldest first."""
    return sorted(path for path in root.glob("step-*") if STEP.fullmatch(path.name))


def step_of(path: Path) -> int:
    """Return the optimiser step of a checkpoint's folder: 600 for step-000000600."""
    return int(path.name.removeprefix("step-"))


def remove(path: Path, own_names: Collection[str] = (MANIFEST, STATE)) -> None:
    """Remove a checkpoint's folder, but keep the user's files.

    Args:
        path: Folder of a checkpoint, or of an export of the same step.
        own_names: Names of the files that a run writes into the folder. Other files belong to the
            user and are moved to a folder with the suffix ".kept".
    """
    entries = list(path.iterdir()) if path.is_dir() and not path.is_symlink() else []
    for entry in entries:
        if entry.name not in own_names and not entry.name.startswith("."):
            kept = path.with_name(f"{path.name}.kept")
            kept.mkdir(exist_ok=True)
            entry.rename(kept / entry.name)
    # Rename the folder before its files are removed, so that a killed process leaves no checkpoint
    # with missing files. A folder that process PID is writing is called .NAME.PID. No process has
    # the number 0, so the name .NAME.0 is free.
    hidden = path.with_name(f".{path.name}.0")
    path.rename(hidden)
    files.remove(hidden)
