"""Read and write hub.json in the run folder: the uploaded and the pending branches.

Pending is whatever the folder has that hub.json does not name. A damaged hub.json counts as
missing, because the Hub itself knows what it has.
"""

from pydantic import Field

from ..formatting import option_text, some, typed_command
from ..recipe import records
from ..recipe.records.checkpoint import PushedBranch
from ..runs.files import write_atomically
from ..runs.folder import Run
from .payload import Upload, uploads

ERROR, WAITING = "error: ", "waiting: "  # beginnings of lines of hub/log.txt on a failed upload


class Pushed(records.Record):
    """hub.json."""

    repo: str | None = None  # the repository of the last push
    branches: dict[str, PushedBranch] = Field(default={})  # the uploaded branches of the repository
    pulled: str | None = None  # hf-hub:USER/NAME@COMMIT that the run was downloaded from


def read(run: Run) -> Pushed:
    """Return the content of hub.json, without uploads to a former repository of the run."""
    try:
        pushed = records.read(run.ledger, Pushed)
    except (OSError, ValueError):
        return Pushed()
    return pushed if pushed.repo == run.recipe.hub.repo else Pushed(pulled=pushed.pulled)


def record(run: Run, upload: Upload, commit: str) -> None:
    """Record an upload to the run's repository."""
    branch = {upload.branch: PushedBranch(stamp=upload.stamp, commit=commit)}
    known = read(run)
    made = Pushed(repo=run.recipe.hub.repo, branches=known.branches | branch, pulled=known.pulled)
    write_atomically(run.ledger, made.model_dump_json(indent=2, exclude_none=True) + "\n")


def pending(run: Run) -> list[str]:
    """Return the branches that are not uploaded yet, or nothing without hub.repo."""
    if run.recipe.hub.repo is None:
        return []
    # every milestone in the outbox is pending, even if a milestone of this step was uploaded before
    done = {name: branch.stamp for name, branch in read(run).branches.items() if branch.stamp}
    return [upload.branch for upload in uploads(run) if done.get(upload.branch) != upload.stamp]


def problem(run: Run) -> str:
    """Return why the last upload that training started is not complete."""
    try:
        lines = (run.outbox / "log.txt").read_text(errors="replace").splitlines()
    except OSError:
        return "no upload has been tried yet"
    told = [line for line in lines if line.startswith((ERROR, WAITING))]
    return told[-1].partition(": ")[2] if told else "an upload has begun and not ended"


def status_lines(run: Run) -> list[tuple[str, str]]:
    """Return lines to print, as (name, text).

    The lines tell what was uploaded, what is pending and why, and the command that uploads the
    rest.
    """
    left, hub = pending(run), run.recipe.hub
    done = sorted(read(run).branches.keys() - left)
    lines = [("hub", f"{hub.repo}: pushed {some(done)}")] if done else []
    if left:
        chosen = {"repo": hub.repo, "private": hub.private, "state": hub.state}
        chosen |= {"figures": True} if hub.figures else {}
        options = [f"hub.{key}={option_text(value)}" for key, value in chosen.items()]
        command = typed_command("push", run.folder, *options)
        lines += [("not pushed", f"{some(left)}: {problem(run)}"), ("then type", command)]
    return lines
