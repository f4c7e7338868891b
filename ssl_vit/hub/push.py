"""Upload a run to the Hugging Face Hub. Torch is imported only for the training state.

Every push uploads all that the folder has: milestones that wait in hub/, the finished run, the
training state. The Hub makes no commit if nothing differs, so the next push uploads what an earlier
push has not uploaded, without any record. Nothing on the Hub is deleted, and only the same run is
overwritten. If two pushes run at once, one commits first (`parent_commit`), and the other looks
again.

A branch is one `create_commit`, so it appears whole or not at all. `upload_folder` is not used:
with Xet (huggingface_hub 2.4, _upload_pipeline.py) it commits in batches by number, size and time,
and checks only the first batch against `parent_commit`.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from .. import hub_files
from ..errors import UserError
from ..formatting import format_bytes
from ..recipe import export_files
from ..recipe.identity import computed_values, counted, differences, facts
from ..recipe.parsing import flatten, load_yaml
from ..recipe.schema import build
from ..recipe.tool import parse
from ..recipe.tools import PushOptions
from ..recipe.words import typed
from ..runs.checkpoint_files import remove
from ..runs.files import write_atomically
from ..runs.folder import Run, open_run
from . import manifest
from .payload import Upload, about_data, identity, uploads
from .public import public_recipe

WAITS = (2.0, 8.0)  # seconds before each retry
# files that the Hub creates in a new repository
BLANK = {".gitattributes", ".gitignore", "README.md", "LICENSE"}
WHOSE = ("recipe.yaml", "run.json")  # files that identify the run of a commit
Say = Callable[[str], None]
T = TypeVar("T")


def push(run: Run, say: Say = lambda line: None) -> None:
    """Upload a run, each branch in a single commit.

    Args:
        run: a run from `open_run`, with `hub.repo`.
        say: a function that is called with a line for each branch and for each wait.

    Raises:
        UserError: nobody is logged in, or the Hub rejects the upload or cannot be reached.
    """
    place = f"hub.repo={run.recipe.hub.repo}"
    if hub_files.is_offline():
        text = "HF_HUB_OFFLINE is set. Type `unset HF_HUB_OFFLINE`, then push again."
        raise UserError(f"{place}: {text}")
    if hub_files.token() is None:
        raise UserError(f"{place}: nobody is logged in. {hub_files.LOGIN}.")
    hub_files.calm()
    try:
        _push(run, say)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{place}: {hub_files.why(error)}") from None


def preview(run: Run, say: Say) -> None:
    """List the files that `push` would upload, and write the model card to the run's folder.

    The Hub is not used.
    """
    for line in about_data(run):
        say(line)
    for upload in uploads(run):
        files = upload.files()
        for name, content in sorted(files.items()):
            size = len(content) if isinstance(content, bytes) else content.stat().st_size
            say(f"would push  {upload.branch}: {name}, {format_bytes(size)}")
        if isinstance(card := files.get("README.md"), bytes):
            run.outbox.mkdir(exist_ok=True)
            write_atomically(run.outbox / "README.md", card.decode())
            say(f"model card  {run.outbox / 'README.md'}")


def _push(run: Run, say: Say) -> None:
    """Upload all branches in turn.

    If a branch fails and the Hub is reachable, the remaining branches are still uploaded.
    """
    hub = run.recipe.hub
    create = partial(_api().create_repo, hub.repo, private=hub.private, exist_ok=True)
    _with_retries(create, say)
    _with_retries(partial(_parent, run, "main"), say)  # before any branch is made
    for line in about_data(run):
        say(line)
    failed: list[Exception] = []
    for upload in uploads(run):
        milestone = None if upload.stamp else run.outbox / upload.branch
        try:
            commit = _with_retries(partial(_send, run, upload), say)
        except Exception as error:
            if hub_files.passing(error):
                raise
            if (
                milestone is None or milestone.exists()
            ):  # otherwise another push has uploaded the milestone
                failed.append(error)
            continue
        manifest.record(run, upload, commit)
        if milestone:
            with suppress(OSError):  # another push removes it, too
                remove(milestone, export_files.WRITTEN)
        say(f"pushed      {hub.repo}: {upload.branch} is at commit {commit[:12]}")
    if failed:
        raise failed[0]


def _send(run: Run, upload: Upload) -> str:
    """Commit an upload, and return the commit's id. No commit is made if nothing differs."""
    from huggingface_hub import CommitOperationAdd

    repository, branch = run.recipe.hub.repo, upload.branch
    parent = _parent(run, branch)
    files = [CommitOperationAdd(name, content) for name, content in sorted(upload.files().items())]
    made = _api().create_commit(
        repository, files, commit_message=upload.message, revision=branch, parent_commit=parent
    )
    if branch != "state" or made.oid == parent:
        return str(made.oid)
    with suppress(Exception):  # saves space; on failure the old commits stay until the next state
        _api().super_squash_history(repository, branch=branch)
    return str(_api().repo_info(repository, revision=branch).sha)


def _parent(run: Run, branch: str) -> str:
    """Return the id of a branch's last commit, and check that the branch is blank or of this run.

    A new branch begins at the repository's first commit.

    Raises:
        UserError: the branch holds something else, or the repository is public and
            hub.private=true.
    """
    from huggingface_hub.errors import RevisionNotFoundError

    api, repository = _api(), run.recipe.hub.repo
    try:
        info = api.repo_info(repository, revision=branch)
    except RevisionNotFoundError:
        first = api.list_repo_commits(repository)[-1].commit_id
        api.create_branch(repository, branch=branch, revision=first, exist_ok=True)
        info = api.repo_info(repository, revision=branch)
    if run.recipe.hub.private and info.private is False:
        text = "this repository is public. To push anyway, use hub.private=false."
        raise UserError(f"hub.repo={repository}: {text}")
    _check_whose(run, info)
    return str(info.sha)


def _check_whose(run: Run, info: Any) -> None:
    """Check that a commit is blank or of this run.

    Raises:
        UserError: the commit holds something else, or the run of another recipe or of other data.
    """
    repo, another = f"hub.repo={run.recipe.hub.repo}", "Use another hub.repo=."
    names = {file.rfilename for file in info.siblings}
    if not names.issuperset(WHOSE):
        if strangers := sorted(names - BLANK):
            listed = ", ".join(strangers[:3])
            text = f"this repository has files that belong to no run ({listed})"
            raise UserError(f"{repo}: {text}. {another}")
        return
    source = hub_files.fetch(f"{run.recipe.hub.repo}@{info.sha}", repo, WHOSE)
    try:
        pushed, was = (load_yaml(source / name) for name in WHOSE)
    except UserError:
        text = f"{' or '.join(WHOSE)} of this repository cannot be read"
        raise UserError(f"{repo}: {text}. {another}") from None
    compared = counted(flatten(pushed))
    here = computed_values(public_recipe(run.recipe))
    if differ := [difference.key for difference in differences(compared, here)]:
        text = f"this repository holds a run of another recipe ({', '.join(differ[:5])})"
        raise UserError(f"{repo}: {text}. {another}")
    for kind, now in identity(run).items():
        before = was.get(kind)
        if differences(facts(kind, before if isinstance(before, dict) else {}), facts(kind, now)):
            text = f"this repository holds a run of this recipe, but the hashes of {kind} differ"
            raise UserError(f"{repo}: {text}. {another}")


def _api() -> Any:
    from huggingface_hub import HfApi

    return HfApi()


def _with_retries(do: Callable[[], T], say: Say) -> T:
    """Call `do`, and retry if the Hub is busy, cannot be reached or got another commit first."""
    for wait in WAITS:
        try:
            return do()
        except Exception as error:
            if not hub_files.passing(error):
                raise
            say(f"{manifest.WAITING}{hub_files.why(error)}")
            time.sleep(wait)
    return do()


def main(arguments: list[str]) -> None:
    """Run the push tool.

    Raises:
        UserError: as `parse`, `open_run` and `push`.
    """
    options = parse(PushOptions, arguments)
    run = open_run(options.folder)
    if not run.recipe.trains:
        text = "this run is an evaluation and has no encoder. Name a training run."
        raise UserError(f"{options.folder}: {text}")
    run.recipe = build(run.recipe.values() | typed(options.overrides))
    if run.recipe.hub.repo is None:
        raise UserError("hub.repo= is missing. Use hub.repo=USER/NAME, a repository on the Hub.")
    say = partial(print, flush=True)
    (preview if options.dry else push)(run, say)
