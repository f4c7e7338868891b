"""Remove the checkpoints of finished runs. Later runs read only the export.

The module does not import torch.
"""

from typing import NamedTuple

from ...errors import UserError
from ...hub import manifest
from ...pages.run_record import read_run
from ...recipe import export_files
from ...runs import lock
from ...runs.checkpoint_files import list_checkpoints, remove
from ...runs.folder import open_run
from .listed import ListedRun, disk_use


class CleanedRun(NamedTuple):
    """Result of cleaning a run's folder.

    Attributes:
        name: Name of the run.
        checkpoints: Number of checkpoints.
        bytes: Bytes that the checkpoints occupied.
        kept: Why the checkpoints were kept, or an empty text if they were removed.
    """

    name: str
    checkpoints: int
    bytes: int
    kept: str = ""


def clean(run: ListedRun) -> CleanedRun | None:
    """Remove the checkpoints of a run, or say why the run must keep them.

    The run is locked while its checkpoints are removed.

    Returns:
        What was removed or kept, or None if the run has no checkpoints.
    """
    folder = run.record.folder
    paths = list_checkpoints(folder / "checkpoints")
    if not paths:
        return None
    cleaned = CleanedRun(run.name, len(paths), sum(map(disk_use, paths)))
    # do not lock a run that may continue, because the lock would refuse to start the run
    if run.record.result is None:
        return cleaned._replace(kept=why_kept(run))
    try:
        with lock.hold(folder, str(folder.parent)):
            # read the run again, now that it is locked
            reason = why_kept(ListedRun(run.name, read_run(folder)))
            if reason:
                return cleaned._replace(kept=reason)
            for name in ("model.safetensors", "heads.safetensors"):
                export_files.check_digest(folder / "export", name, run.name)
            for path in paths:
                remove(path)
    except (UserError, OSError) as error:
        return cleaned._replace(kept=str(error))
    return cleaned


def why_kept(run: ListedRun) -> str:
    """Return why a run must keep its checkpoints, or an empty text if they can be removed.

    Args:
        run: Run that no process is writing.
    """
    if run.damage:
        return f"the run is damaged: {run.damage}"
    if run.record.result is None:
        return "the run has not finished"
    if (run.record.folder / "checkpoints").is_symlink():
        return "the folder checkpoints is a link and may belong to another run"
    if export_files.nonfinite_weight(run.record.folder / "export" / "model.safetensors"):
        return "the export has weights that are not finite"
    try:
        pending = manifest.pending(open_run(run.record.folder))
    except (OSError, ValueError) as error:  # includes UserError, which is a ValueError
        return f"whether all uploads are complete is unknown: {error}"
    if pending:
        return f"uploads to the Hub are not complete: {', '.join(pending)}"
    return ""
