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


def remove(path: Path, written: Collection[str] = (MANIFEST, STATE)) -> None:
    """Remove a checkpoint, or another folder of a step.

    The folder is renamed first, so that a kill leaves no checkpoint with missing files. Files that
    are not named in `written` are kept in NAME.kept.
    """
    others = [] if path.is_symlink() or not path.is_dir() else list(path.iterdir())
    for checkpoint in others:
        if checkpoint.name not in written and not checkpoint.name.startswith("."):
            kept = path.with_name(f"{path.name}.kept")
            kept.mkdir(exist_ok=True)
            checkpoint.rename(kept / checkpoint.name)
    hidden = path.with_name(f".{path.name}.0")  # no process has that number
    path.rename(hidden)
    files.remove(hidden)
