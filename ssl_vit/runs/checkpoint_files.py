"""List and remove the folders of checkpoints. No torch."""

import re
from collections.abc import Collection
from pathlib import Path

from . import files

MANIFEST = "manifest.json"
STATE = "state.pt"
STEP = re.compile(r"step-\d{9,}")  # the name of a checkpoint


def list_checkpoints(root: Path) -> list[Path]:
    """Return the checkpoints of a run, oldest first."""
    return sorted(p for p in root.glob("step-*") if STEP.fullmatch(p.name))


def step_of(path: Path) -> int:
    """Return the optimiser step of a checkpoint's folder."""
    return int(path.name.removeprefix("step-"))


def remove(path: Path, own_names: Collection[str] = (MANIFEST, STATE)) -> None:
    """Remove a checkpoint's folder, but keep the user's files.

    The folder is renamed before its files are removed, so that a killed process leaves no
    checkpoint with missing files.

    Args:
        path: Folder of a checkpoint, or of an export of the same step.
        own_names: Names of the files that a run writes into the folder. Other files belong to the
            user and are moved to a folder NAME.kept next to it.
    """
    entries = list(path.iterdir()) if path.is_dir() and not path.is_symlink() else []
    for entry in entries:
        if entry.name not in own_names and not entry.name.startswith("."):
            kept = path.with_name(f"{path.name}.kept")
            kept.mkdir(exist_ok=True)
            entry.rename(kept / entry.name)
    hidden = path.with_name(f".{path.name}.0")  # no process has the number 0
    path.rename(hidden)
    files.remove(hidden)
