"""The folders of checkpoints: their names and how they are removed. No torch."""

import re
from pathlib import Path

MANIFEST = "manifest.json"
STATE = "state.pt"
STEP = re.compile(r"step-\d{9,}")  # the name of a checkpoint


def list_checkpoints(root: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return sorted(p for p in root.glob("step-*") if STEP.fullmatch(p.name))


def step_of(path: Path) -> int:
    """The optimiser step of a checkpoint's folder."""
    return int(path.name.removeprefix("step-"))


def remove(path: Path) -> None:
    """Remove a checkpoint. It is renamed first, so that a kill leaves none with missing files."""
    hidden = path.with_name(f".{path.name}.0")  # no process has that number
    path.rename(hidden)
    delete(hidden)


def delete(path: Path) -> None:
    """Delete a checkpoint's files and its folder, or a link but not its target. What else is in the
    folder stays, in step-N.kept, which is no checkpoint."""
    if path.is_symlink() or not path.is_dir():
        path.unlink()
        return
    others = other_files(path)
    for own in (path / STATE, path / MANIFEST):
        if own not in others:
            own.unlink(missing_ok=True)
    if not others:
        path.rmdir()
        return
    kept = path.with_name(f"{path.name.lstrip('.').partition('.')[0]}.kept")
    while kept.exists():
        kept = kept.with_name(f"{kept.name}.kept")
    path.rename(kept)


def other_files(path: Path) -> list[Path]:
    """What is in a checkpoint's folder beside its own files, such as a user's notes; the path
    itself where it is no folder."""
    if not path.is_dir():
        return [path]
    own = (STATE, MANIFEST)
    return sorted(child for child in path.iterdir() if child.name not in own or child.is_dir())
