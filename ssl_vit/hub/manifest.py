"""Read and write hub.json in the run folder: the uploaded and the pending branches.

A branch is pending if hub.json does not have the current content of the branch. A damaged hub.json
counts as missing. All branches are then uploaded again, which changes nothing on the Hub.
"""

from pydantic import Field

from ..formatting import list_names, option_text, typed_command
from ..recipe import records
from ..recipe.records.checkpoint import PushedBranch
from ..runs.files import write_atomically
from ..runs.folder import Run
from .payload import Upload, uploads

ERROR, WAITING = "error: ", "waiting: "  # beginnings of lines of hub/log.txt after a failed try


class HubRecord(records.Record):
    """Content of hub.json."""

    repo: str | None = None  # the repository of the last push
    branches: dict[str, PushedBranch] = Field(default={})  # the uploaded branches of the repository
    pulled: str | None = None  # hf-hub:USER/NAME@COMMIT that the run was downloaded from


def read(run: Run) -> HubRecord:
    """Return the content of hub.json, the record of a run's uploads.

    A missing or damaged file counts as empty. If hub.repo has changed since the last upload, the
    uploads no longer count, and only `pulled` is returned.
    """
    try:
        content = records.read(run.ledger, HubRecord)
    except (OSError, ValueError):
        return HubRecord()
    if content.repo == run.recipe.hub.repo:
        return content
    return HubRecord(pulled=content.pulled)


def record(run: Run, upload: Upload, commit: str) -> None:
    """Record in hub.json that a branch was uploaded.

    The entries of other branches are kept.

    Args:
        run: The run.
        upload: The upload to the branch.
        commit: Id of the commit on the Hub.
    """
    new_branch = {upload.branch: PushedBranch(stamp=upload.stamp, commit=commit)}
    old = read(run)
    branches = old.branches | new_branch
    new = HubRecord(repo=run.recipe.hub.repo, branches=branches, pulled=old.pulled)
    write_atomically(run.ledger, new.model_dump_json(indent=2, exclude_none=True) + "\n")


def pending(run: Run) -> list[str]:
    """Return the names of the branches that are still to be uploaded. Empty without hub.repo."""
    if run.recipe.hub.repo is None:
        return []
    # A branch is pending if the content has another stamp than at the last upload. Milestones have
    # no stamp and are always pending, because an upload removes the folder of the milestone
    stamps = {name: branch.stamp for name, branch in read(run).branches.items() if branch.stamp}
    return [upload.branch for upload in uploads(run) if stamps.get(upload.branch) != upload.stamp]


def problem(run: Run) -> str:
    """Return why the last upload during training is not complete, from hub/log.txt.

    The reason is the text of the last line that begins with "error: " or "waiting: ".
    """
    try:
        lines = (run.outbox / "log.txt").read_text(errors="replace").splitlines()
    except OSError:
        return "no upload has been tried yet"
    reasons = [line for line in lines if line.startswith((ERROR, WAITING))]
    if not reasons:
        return "an upload has begun and not ended"
    return reasons[-1].partition(": ")[2]


def status_lines(run: Run) -> list[tuple[str, str]]:
    """Describe what was uploaded and what is pending, in lines (name, text).

    For example, a line is ("hub", "USER/NAME: pushed main"). If branches are pending, further lines
    give the reason and the command for the upload.

    Args:
        run: The run.
    """
    hub = run.recipe.hub
    pending_branches = pending(run)
    uploaded = sorted(read(run).branches.keys() - pending_branches)
    lines = []
    if uploaded:
        lines.append(("hub", f"{hub.repo}: pushed {list_names(uploaded)}"))
    if pending_branches:
        values = {"repo": hub.repo, "private": hub.private, "state": hub.state}
        if hub.figures:
            values["figures"] = True
        options = [f"hub.{key}={option_text(value)}" for key, value in values.items()]
        command = typed_command("push", run.folder, *options)
        lines.append(("not pushed", f"{list_names(pending_branches)}: {problem(run)}"))
        lines.append(("then type", command))
    return lines
