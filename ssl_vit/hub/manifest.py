"""hub.json in the run folder: what was uploaded, by commit, and the last problem. Damaged entries
count as missing: the Hub itself knows what it has."""

import json
import shlex
import sys
from typing import Any

from ..formatting import option_text, tool_command
from ..recipe import records
from ..recipe.parsing import read_json
from ..recipe.records.checkpoint import PushedBranch
from ..runs.files import write_atomically
from ..runs.folder import Run
from .payload import Upload, open_run, uploads

LISTED = 3  # milestones that are named one by one


def read(run: Run) -> dict[str, Any]:
    """The content of hub.json, with `pushed` as {repository: {branch: {stamp, commit}}} and
    `last_error`, why the last upload failed, or None."""
    try:
        value = read_json(run.ledger)
    except (OSError, ValueError):
        value = {}
    value = value if isinstance(value, dict) else {}
    pushed = value.get("pushed")
    last_error = value.get("last_error")
    pushed_branches = {
        name: _branches(there)
        for name, there in (pushed if isinstance(pushed, dict) else {}).items()
    }
    return value | {
        "pushed": pushed_branches,
        "last_error": last_error if isinstance(last_error, str) else None,
    }


def _branches(there: Any) -> dict[str, dict[str, str]]:
    entries = there.items() if isinstance(there, dict) else ()
    return {branch: entry for branch, entry in entries if records.fits(entry, PushedBranch)}


def write(run: Run, **what: Any) -> None:
    """Update hub.json."""
    write_atomically(run.ledger, json.dumps(read(run) | what, indent=2) + "\n")


def pushed_branches(run: Run) -> dict[str, dict[str, str]]:
    """What was uploaded to the run's repository, by branch."""
    there: dict[str, dict[str, str]] = read(run)["pushed"].get(run.recipe.hub.repo, {})
    return there


def record_branches(run: Run, branches: dict[str, dict[str, str]]) -> None:
    """Record what was uploaded to the run's repository."""
    write(run, pushed=read(run)["pushed"] | {run.recipe.hub.repo: branches})


def due(run: Run) -> list[Upload]:
    """The uploads that are pending."""
    there = pushed_branches(run)
    return [
        upload
        for upload in uploads(run)
        if there.get(upload.branch, {}).get("stamp") != upload.stamp
    ]


def owed(run: Run) -> list[str]:
    """The branches that are pending."""
    return [upload.branch for upload in due(run)]


def status_lines(run: Run) -> list[tuple[str, str]]:
    """(name, text) to print: what was uploaded, what is pending, why, and the command for it."""
    left = owed(run)
    done = sorted(set(pushed_branches(run)) - set(left))
    where = [("hub", f"{run.recipe.hub.repo}: pushed {_listed(done)}")] if done else []
    if not left:
        return where
    why = read(run)["last_error"] or "it has not been tried yet"
    return [*where, ("not pushed", f"{_listed(left)}: {why}"), ("then type", _command(run))]


def _listed(branches: list[str]) -> str:
    """The branches by name; of many milestones the number."""
    steps = [branch for branch in branches if branch.startswith("step-")]
    rest = [branch for branch in branches if branch not in steps]
    if len(steps) <= LISTED:
        return ", ".join(branches)
    return " and ".join([f"{len(steps)} milestones", *([", ".join(rest)] if rest else [])])


def _command(run: Run) -> str:
    """The command that uploads the rest, with the hub.* options that the folder's recipe lacks."""
    saved = open_run(run.folder).recipe.hub.model_dump()
    given = run.recipe.hub.model_dump()
    options = [
        f"hub.{key}={option_text(given[key])}"
        for key in ("repo", "private", "state")
        if given[key] != saved[key]
    ]
    return shlex.join([sys.executable, *tool_command("push"), str(run.folder), *options])
