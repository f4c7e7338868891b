"""Upload of a run to the Hugging Face Hub. Torch is imported only for the training state.

Training exports milestones to the outbox, hub/step-.../; everything else is in the run folder.
Uploads run in a process of their own (tools/push.py), so that the network cannot affect training.
Nothing on the Hub is deleted, and only the same run is overwritten: commits pass `parent_commit`,
so a concurrent write fails.
"""

import fcntl
import shutil
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from .. import hub_files
from ..errors import UserError
from ..recipe.identity import computed_values, counts, differences, facts
from ..recipe.parsing import flatten, load_yaml
from ..recipe.schema import all_keys, build, without_private
from ..recipe.tool import parse
from ..recipe.tools import PushOptions
from ..recipe.words import typed
from ..runs.folder import Run
from . import manifest
from .payload import STEP, Upload, identity, open_run, uploads

WAITS = (2.0, 8.0)  # seconds before each retry
PATIENCE = 300.0  # seconds to wait at most where the Hub limits the rate
BLANK = {
    ".gitattributes",
    ".gitignore",
    "README.md",
    "LICENSE",
}  # files that the Hub's form for new repositories makes
T = TypeVar("T")


def push(
    run: Run,
    again: bool = False,
    wait: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> None:
    """Upload what is pending, each branch in one commit.

    Args:
        run: as `open_run` reads it.
        again: upload the finished run too, where only changes make a commit.
        wait: for another process that uploads this run.
        say: called with a line for each branch.

    Raises:
        UserError: not logged in, the Hub rejects it or cannot be reached, or another process
            uploads this run.
    """
    with _locked(run, wait):
        if not _pending(run, again):
            return
        problem: str | None = "a push began and has not ended"
        manifest.write(run, last_error=problem)
        try:
            _push(run, again, say)
            problem = None
        except UserError as error:
            problem = str(error)
            raise UserError(problem) from None
        except Exception as error:
            problem = hub_files.why(error)
            raise UserError(f"hub.repo={run.recipe.hub.repo}: {problem}") from None
        finally:
            manifest.write(run, last_error=problem)


def _pending(run: Run, again: bool) -> list[Upload]:
    """What is to be uploaded now."""
    branches = manifest.owed(run)
    if again:
        branches.append("main")
    return [upload for upload in uploads(run) if upload.branch in branches]


def _push(run: Run, again: bool, say: Callable[[str], None]) -> None:
    """Upload one branch after the other, looking for new milestones each time. A branch that fails
    for a reason of its own does not stop the others."""
    if hub_files.is_offline():
        text = "HF_HUB_OFFLINE is set, so nothing can be uploaded; unset it and push again"
        raise UserError(f"hub.repo={run.recipe.hub.repo}: {text}")
    if hub_files.token() is None:
        raise UserError(f"hub.repo={run.recipe.hub.repo}: nobody is logged in; {hub_files.LOGIN}")
    hub_files.calm()
    with_retries(run, partial(_prepare, run))
    tried: dict[str, Exception | None] = {}
    while upload := _next(run, again, tried):
        try:
            tried[upload.branch] = None
            commit = with_retries(run, partial(_send, run, upload))
            entry = {"stamp": upload.stamp, "commit": commit}
            manifest.record_branches(run, manifest.pushed_branches(run) | {upload.branch: entry})
            say(f"{upload.branch} is at commit {commit[:12]}")
        except Exception as error:
            if hub_files.passing(error):
                raise
            if STEP.fullmatch(upload.branch) and not (run.outbox / upload.branch).exists():
                continue  # training has dropped it meanwhile
            tried[upload.branch] = error
        _sweep(run)
    failed = [error for error in tried.values() if error]
    if failed:
        raise failed[0]


def _next(run: Run, again: bool, tried: Collection[str]) -> Upload | None:
    untried = (upload for upload in _pending(run, again) if upload.branch not in tried)
    return next(untried, None)


def _sweep(run: Run) -> None:
    """Remove uploaded milestones from the outbox."""
    for branch in {upload.branch for upload in uploads(run)} - set(manifest.owed(run)):
        if STEP.fullmatch(branch):
            # training may be writing it again
            shutil.rmtree(run.outbox / branch, ignore_errors=True)


def _prepare(run: Run) -> None:
    """Check that the repository is blank or this run's; create it, with everything pending, if it
    does not exist."""
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        _parent(run, "main")
        return
    except RepositoryNotFoundError:
        _api().create_repo(run.recipe.hub.repo, private=run.recipe.hub.private, exist_ok=True)
    manifest.record_branches(run, {})
    _parent(run, "main")


def _send(run: Run, upload: Upload) -> str:
    """Commit an upload; the commit's id. No commit is made where nothing differs."""
    from huggingface_hub import CommitOperationAdd

    repository = run.recipe.hub.repo
    branch = upload.branch
    parent = _parent(run, branch)
    operations = [
        CommitOperationAdd(name, content) for name, content in sorted(upload.files().items())
    ]
    made = _api().create_commit(
        repository, operations, commit_message=upload.message, revision=branch, parent_commit=parent
    )
    return str(made.oid) if branch != "state" else _squashed(repository, branch)


def _squashed(repository: str | None, branch: str) -> str:
    """Squash a branch to its last commit, to save space; its id. All commits stay if the Hub does
    not allow it."""
    from huggingface_hub.errors import HfHubHTTPError

    with suppress(HfHubHTTPError):
        _api().super_squash_history(repository, branch=branch)
    return str(_api().repo_info(repository, revision=branch).sha)


def _parent(run: Run, branch: str) -> str:
    """The id of a branch's last commit, which is blank or of this run. A new branch begins at the
    repository's first commit.

    Raises:
        UserError: it holds something else, or the repository is public and hub.private=true.
    """
    from huggingface_hub.errors import RevisionNotFoundError

    api = _api()
    repository = run.recipe.hub.repo
    try:
        info = api.repo_info(repository, revision=branch)
    except RevisionNotFoundError:
        first = api.list_repo_commits(repository)[-1].commit_id
        api.create_branch(repository, branch=branch, revision=first, exist_ok=True)
        info = api.repo_info(repository, revision=branch)
    if run.recipe.hub.private and info.private is False:
        text = "it is public; expected hub.private=false to push there all the same"
        raise UserError(f"hub.repo={repository}: {text}")
    _check_whose(run, info)
    return str(info.sha)


def _check_whose(run: Run, info: Any) -> None:
    """Check that a commit is blank or of this run.

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
    there = flatten(_mapping(source / "recipe.yaml"))
    here = computed_values(without_private(run.recipe))
    # earlier versions wrote keys too that the objective does not use
    idle = {key for key in all_keys() if not run.recipe.holds(key)}
    compared = {k: value for k, value in there.items() if counts(k) and k not in idle}
    if differ := [one.key for one in differences(compared, here)]:
        text = f"it holds the run of another recipe ({', '.join(differ[:5])})"
        raise UserError(f"{repo}: {text}; say another hub.repo=")
    was = _mapping(source / "run.json")
    for kind, now in identity(run).items():
        before = was.get(kind, {})
        if not isinstance(before, dict) or differences(facts(kind, before), facts(kind, now)):
            text = f"it holds a run of this recipe with another {kind}"
            raise UserError(f"{repo}: {text}; say another hub.repo=")


def _mapping(path: Path) -> dict[str, Any]:
    """The mapping in a downloaded file; empty if it is none."""
    try:
        return load_yaml(path)
    except UserError:
        return {}


def _api() -> Any:
    from huggingface_hub import HfApi

    return HfApi()


def with_retries(run: Run, do: Callable[[], T]) -> T:
    """Call `do`, and retry where the Hub is busy or cannot be reached, after the time that it
    requests; hub.json has the reason meanwhile."""
    for wait in WAITS:
        try:
            return do()
        except Exception as error:
            if not hub_files.passing(error):
                raise
            manifest.write(run, last_error=hub_files.why(error))
            time.sleep(min(PATIENCE, max(wait, hub_files.retry_after(error))))
    return do()


@contextmanager
def _locked(run: Run, wait: bool) -> Iterator[None]:
    """Allow one upload of a run at a time; the system releases the lock with the process."""
    try:
        run.check_own()
        run.outbox.mkdir(exist_ok=True)
        file = (run.outbox / "lock").open("a")
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


def main(arguments: list[str]) -> None:
    """The push tool.

    Raises:
        UserError: as `parse`, `open_run` and `push`.
    """
    options = parse(PushOptions, arguments)
    run = open_run(options.folder)
    run.recipe = build(run.recipe.values() | typed(options.overrides))
    repository = run.recipe.hub.repo
    if repository is None:
        raise UserError("hub.repo= is missing; expected USER/NAME on the Hugging Face Hub")
    push(
        run,
        again=not options.quiet,
        wait=options.quiet,
        say=lambda text: print(f"pushed      {repository}: {text}", flush=True),
    )
