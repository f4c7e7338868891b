"""Removes the checkpoints of finished runs, whose export holds what later runs read. No torch."""

from typing import NamedTuple

from ...errors import UserError
from ...hub import manifest
from ...pages.run_record import read_run
from ...recipe import export_files
from ...runs import lock
from ...runs.checkpoint_files import list_checkpoints, remove
from ...runs.folder import open_run
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
    folder = run.record.folder
    paths = list_checkpoints(folder / "checkpoints")
    if not paths:
        return None
    found = Cleaned(run.name, len(paths), sum(map(disk_use, paths)))
    # a run that may go on is not locked: starting it would be refused meanwhile
    if run.record.result is None:
        return found._replace(kept=why_kept(run))
    try:
        with lock.hold(folder, str(folder.parent)):
            # as it is now
            if reason := why_kept(ListedRun(run.name, read_run(folder))):
                return found._replace(kept=reason)
            for name in ("model.safetensors", "heads.safetensors"):
                export_files.check_digest(folder / "export", name, run.name)
            for path in paths:
                remove(path)
    except (UserError, OSError) as error:
        return found._replace(kept=str(error))
    return found


def why_kept(run: ListedRun) -> str:
    """Why a run that nobody writes keeps its checkpoints; empty where nothing needs them."""
    if run.damage:
        return f"it is damaged: {run.damage}"
    if run.record.result is None:
        return "it has not finished"
    if (run.record.folder / "checkpoints").is_symlink():
        return "checkpoints is a link, to what may be another run's"
    if export_files.nonfinite_weight(run.record.folder / "export" / "model.safetensors"):
        return "its export has weights that are not finite"
    try:
        pending = manifest.pending(open_run(run.record.folder))
    except (OSError, ValueError) as error:  # a UserError is a ValueError
        return f"whether its uploads are complete is not known: {error}"
    return f"pushes are pending: {', '.join(pending)}" if pending else ""
