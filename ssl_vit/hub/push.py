"""Pushing a run to the Hugging Face Hub. No torch here, but for the state.

Training lays milestones into the outbox, hub/step-.../; all else is taken from the run's folder. A
push is a process of its own (tools/push.py), so that nothing that a network does reaches training.
No file on the Hub is deleted, and none is written over but by the same run: each commit names as
its parent the one that was looked at.
"""

import fcntl
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from .. import hub_files
from ..config.identity import computed_values
from ..config.parsing import flatten, load_yaml, parse_path
from ..config.resolve import without_private
from ..config.validate import check_value
from ..config.values import parse
from ..errors import UserError, suggest
from ..runs import lock
from ..runs.folder import Run
from . import manifest
from .payload import STEP, Upload, identity, open_run, uploads

WAITS = (2.0, 8.0)  # seconds before a push is tried again
PATIENCE = 300.0  # seconds that are waited for at most, where the Hub asks for it
BLANK = {".gitattributes", ".gitignore", "README.md", "LICENSE"}  # what the Hub's own form makes
T = TypeVar("T")


def push(
    run: Run,
    again: bool = False,
    wait: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> None:
    """Push what is owed, each branch in a commit; with `again` the finished run too, where only
    what changed makes a commit. `wait`: for another push of this run to end.

    Raises:
        UserError: nobody is logged in, the Hub refuses or cannot be reached, or somebody else is
        pushing this run.
    """
    with _alone(run, wait):
        if not _wanted(run, again):
            return
        trouble: str | None = "a push began and has not ended"
        manifest.write(run, trouble=trouble)
        try:
            _push(run, again, say)
            trouble = None
        except Exception as error:
            trouble = str(error) if isinstance(error, UserError) else hub_files.why(error)
            raise UserError(
                trouble
                if isinstance(error, UserError)
                else f"hub.repo={run.recipe.hub.repo}: {trouble}"
            ) from None
        finally:
            manifest.write(run, trouble=trouble)


def _wanted(run: Run, again: bool) -> list[Upload]:
    """What is to be pushed now."""
    owed = manifest.owed(run)
    return [
        parcel
        for parcel in uploads(run)
        if parcel.branch in owed or (again and parcel.branch == "main")
    ]


def _push(run: Run, again: bool, say: Callable[[str], None]) -> None:
    """Push one parcel after the other, looking each time what is there: milestones come while
    others are pushed. One that cannot be pushed, for a reason of its own, keeps no other back."""
    if hub_files.token() is None:
        raise UserError(f"hub.repo={run.recipe.hub.repo}: nobody is logged in; {hub_files.LOGIN}")
    hub_files.calm()
    with_retries(run, partial(_prepare, run))
    tried: dict[str, Exception | None] = {}
    while parcel := next(
        (parcel for parcel in _wanted(run, again) if parcel.branch not in tried), None
    ):
        try:
            tried[parcel.branch] = None
            commit = with_retries(run, partial(_send, run, parcel))
            manifest.record_branches(
                run,
                manifest.pushed_branches(run)
                | {parcel.branch: {"stamp": parcel.stamp, "commit": commit}},
            )
            say(f"{parcel.branch} is at commit {commit[:12]}")
        except Exception as error:
            if hub_files.passing(error):
                raise
            if STEP.fullmatch(parcel.branch) and not (run.outbox / parcel.branch).exists():
                continue  # training dropped it meanwhile
            tried[parcel.branch] = error
        _sweep(run)
    if failed := [error for error in tried.values() if error]:
        raise failed[0]


def _sweep(run: Run) -> None:
    """Remove the milestones that were pushed from the outbox."""
    for branch in {parcel.branch for parcel in uploads(run)} - set(manifest.owed(run)):
        if STEP.fullmatch(branch):
            # training may be laying it there anew
            shutil.rmtree(run.outbox / branch, ignore_errors=True)


def _prepare(run: Run) -> None:
    """See that the repository is there, and this run's or nobody's; one that is gone is made anew,
    and what it had is owed."""
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        _parent(run, "main")
        return
    except RepositoryNotFoundError:
        _api().create_repo(run.recipe.hub.repo, private=run.recipe.hub.private, exist_ok=True)
    manifest.record_branches(run, {})
    _parent(run, "main")


def _send(run: Run, parcel: Upload) -> str:
    """One commit, or none where the branch has just this; its id."""
    from huggingface_hub import CommitOperationAdd

    repository, branch, api = run.recipe.hub.repo, parcel.branch, _api()
    parent = _parent(run, branch)
    operations = [
        CommitOperationAdd(name, content) for name, content in sorted(parcel.files().items())
    ]
    made = api.create_commit(
        repository, operations, commit_message=parcel.message, revision=branch, parent_commit=parent
    )
    return str(made.oid) if branch != "state" else _squashed(repository, branch)


def _squashed(repository: str | None, branch: str) -> str:
    """Leave of a branch its last commit alone, as each holds whole weights; where the Hub refuses,
    all stay. The commit."""
    from huggingface_hub.errors import HfHubHTTPError

    with suppress(HfHubHTTPError):
        _api().super_squash_history(repository, branch=branch)
    return str(_api().repo_info(repository, revision=branch).sha)


def _parent(run: Run, branch: str) -> str:
    """The branch's commit, which holds nothing, or this very run. A branch that is not there begins
    at the repository's first.

    Raises:
        UserError: it holds something else, or what is to be private would be public.
    """
    from huggingface_hub.errors import RevisionNotFoundError

    repository, api = run.recipe.hub.repo, _api()
    try:
        info = api.repo_info(repository, revision=branch)
    except RevisionNotFoundError:
        first = api.list_repo_commits(repository)[-1].commit_id
        api.create_branch(repository, branch=branch, revision=first, exist_ok=True)
        info = api.repo_info(repository, revision=branch)
    if run.recipe.hub.private and info.private is False:
        raise UserError(
            f"hub.repo={repository}: it is public; say hub.private=false to push there all the same"
        )
    _check_whose(run, info)
    return str(info.sha)


def _check_whose(run: Run, info: Any) -> None:
    """That a commit holds nothing, or this very run.

    Raises:
        UserError: it holds something else, or the run of another recipe or of other data.
    """
    repo = f"hub.repo={run.recipe.hub.repo}"
    names = {file.rfilename for file in info.siblings}
    if "recipe.yaml" not in names:
        if other := sorted(names - BLANK):
            raise UserError(
                f"{repo}: it holds what is no run ({', '.join(other[:3])}); say another hub.repo="
            )
        return
    source = hub_files.fetch(f"{run.recipe.hub.repo}@{info.sha}", repo, ["recipe.yaml", "run.json"])
    there, here = (
        flatten(_theirs(source / "recipe.yaml")),
        computed_values(without_private(run.recipe)),
    )
    if differ := [key for key in here if there.get(key) != here[key]]:
        raise UserError(
            f"{repo}: it holds the run of another recipe ({', '.join(differ[:5])}); say another hub.repo="
        )
    was, now = _theirs(source / "run.json"), identity(run)
    if differ := [key for key in now if key in was and was[key] != now[key]]:
        raise UserError(
            f"{repo}: it holds a run of this recipe with another {differ[0]}; say another hub.repo="
        )


def _theirs(path: Path) -> dict[str, Any]:
    """A mapping of somebody's file; empty where it is none."""
    try:
        return load_yaml(path)
    except UserError:
        return {}


def _api() -> Any:
    from huggingface_hub import HfApi

    return HfApi()


def with_retries(run: Run, do: Callable[[], T]) -> T:
    """Do it, again where the Hub is busy or out of reach, after as long as it asks for; the ledger
    tells meanwhile why."""
    for wait in WAITS:
        try:
            return do()
        except Exception as error:
            if not hub_files.passing(error):
                raise
            manifest.write(run, trouble=hub_files.why(error))
            time.sleep(min(PATIENCE, max(wait, hub_files.retry_after(error))))
    return do()


@contextmanager
def _alone(run: Run, wait: bool) -> Iterator[None]:
    """One push of a run at a time; the system frees the lock with the process."""
    try:
        run.check_own()
        run.outbox.mkdir(exist_ok=True)
        file = lock.open_file(run.outbox / "lock")
    except OSError as error:
        raise UserError(f"{run.outbox} cannot be written: {error.strerror}") from None
    with file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError:
            raise UserError(
                f"{run.folder} is being pushed by another process; wait for it"
            ) from None
        yield


def main(words: list[str]) -> None:
    """Do what the words of tools/push.py say.

    Raises:
        UserError: as `asked`, `opened` and `push`.
    """
    quiet, words = "--quiet" in words, [word for word in words if word != "--quiet"]
    folder, overrides = parse_options(words)
    run = open_run(folder)
    for key, value in overrides.items():
        setattr(run.recipe.hub, key.removeprefix("hub."), value)
    repository = run.recipe.hub.repo
    check_value("hub.repo", repository or "")
    push(
        run,
        again=not quiet,
        wait=quiet,
        say=lambda text: print(f"pushed      {repository}: {text}", flush=True),
    )


def parse_options(words: list[str]) -> tuple[Path, dict[str, Any]]:
    """A run's folder, and what of hub.repo=, hub.private= and hub.state= is said anew.

    Raises:
        UserError: a word is not understood.
    """
    folders, given = (
        [word for word in words if "=" not in word],
        parse(word for word in words if "=" in word),
    )
    if len(folders) != 1:
        text = "say one run's folder: tools/push.py runs/mpp hub.repo=USER/NAME"
        raise UserError(f"{' '.join(words) or 'nothing'} is said; {text}")
    choices: dict[str, Callable[[str], Any]] = {
        "hub.repo": str,
        "hub.private": _truth,
        "hub.state": _truth,
    }
    for key in given:
        if key not in choices:
            raise UserError(f"unknown key {key}; {suggest(key, choices)}")
    return parse_path(folders[0], "folder"), {
        key: choices[key](text) for key, text in given.items()
    }


def _truth(text: str) -> bool:
    if text not in ("true", "false"):
        raise UserError(f"hub.private= or hub.state={text}: true or false is asked for")
    return text == "true"
