"""Upload a run to the Hugging Face Hub. Torch is imported only for the training state.

Every push uploads all that the folder has: milestones that wait in hub/, the finished run, the
training state. The Hub makes no commit if nothing differs, so a push needs no record of what an
earlier push has uploaded. No files on the Hub are deleted, and only files of the same run are
overwritten. If two pushes run at once, the Hub accepts the first commit. The Hub rejects the other
commit, because its `parent_commit` is no longer the last commit, and that push tries again.

Each branch is uploaded with one `create_commit`, so the files appear all together or not at all.
`upload_folder` is not used: with Xet (huggingface_hub 2.4, _upload_pipeline.py) `upload_folder`
commits in batches by number, size and time, and checks only the first batch against
`parent_commit`.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from .. import hub_files
from ..errors import UserError
from ..formatting import format_bytes, list_names
from ..recipe import export_files
from ..recipe.given import Arguments
from ..recipe.parsing import flatten, load_yaml
from ..recipe.schema import build, computed_values, experiment_values
from ..recipe.tool import parse
from ..recipe.tools import PushOptions
from ..runs.checkpoint_files import remove
from ..runs.files import write_atomically
from ..runs.folder import Run, open_run
from ..runs.identity import differences, facts
from . import manifest
from .payload import Upload, about_data, identity, uploads
from .public import public_recipe

WAITS = (2.0, 8.0)  # seconds before each retry
# files that the Hub creates in a new repository
BLANK = {".gitattributes", ".gitignore", "README.md", "LICENSE"}
IDENTIFYING_FILES = ("recipe.yaml", "run.json")  # files by which a commit's run is recognised
Say = Callable[[str], None]
T = TypeVar("T")


def push(run: Run, say: Say = lambda line: None) -> None:
    """Upload all files of a run to the Hub, with a single commit for each branch.

    Args:
        run: Run from `open_run`, with `hub.repo`.
        say: Prints a line. Called for each branch and each wait.

    Raises:
        UserError: Nobody is logged in, or the Hub rejects the upload or cannot be reached.
    """
    repository = run.recipe.hub.repo
    if hub_files.is_offline():
        raise UserError(
            f"hub.repo={repository}: HF_HUB_OFFLINE is set. Type `unset HF_HUB_OFFLINE`, then push"
            " again."
        )
    if hub_files.token() is None:
        raise UserError(f"hub.repo={repository}: nobody is logged in. {hub_files.LOGIN}.")
    hub_files.configure_client()
    try:
        _push(run, say)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"hub.repo={repository}: {hub_files.describe_error(error)}") from None


def preview(run: Run, say: Say) -> None:
    """List the files that `push` would upload, and write the model card to the run's folder.

    The Hub is not contacted.

    Args:
        run: Run from `open_run`, with `hub.repo`.
        say: Prints a line.
    """
    for line in about_data(run):
        say(line)
    for upload in uploads(run):
        files = upload.files()
        for name, content in sorted(files.items()):
            size = len(content) if isinstance(content, bytes) else content.stat().st_size
            say(f"would push  {upload.branch}: {name}, {format_bytes(size)}")
        card = files.get("README.md")
        if isinstance(card, bytes):
            run.outbox.mkdir(exist_ok=True)
            write_atomically(run.outbox / "README.md", card.decode())
            say(f"model card  {run.outbox / 'README.md'}")


def _push(run: Run, say: Say) -> None:
    """Create the repository if it does not exist, and upload all branches one after the other.

    If the Hub rejects a branch, the remaining branches are still uploaded. After the last branch,
    the first error is raised. If the Hub is busy or cannot be reached, also after retries, the
    error is raised at once.

    Args:
        run: The run to upload.
        say: Prints a line.
    """
    hub = run.recipe.hub
    create = partial(_api().create_repo, hub.repo, private=hub.private, exist_ok=True)
    _with_retries(create, say)
    # Check that the repository belongs to this run before creating any branch
    _with_retries(partial(_find_parent_commit, run, "main"), say)
    for line in about_data(run):
        say(line)
    errors: list[Exception] = []
    for upload in uploads(run):
        try:
            commit = _with_retries(partial(_commit, run, upload), say)
        except Exception as error:
            if hub_files.is_temporary(error):
                raise
            if not _was_pushed_elsewhere(run, upload):
                errors.append(error)
            continue
        manifest.record(run, upload, commit)
        if upload.is_milestone:
            with suppress(OSError):  # another push may have removed the folder
                remove(_milestone_folder(run, upload), export_files.WRITTEN)
        say(f"pushed      {hub.repo}: {upload.branch} is at commit {commit[:12]}")
    if errors:
        raise errors[0]


def _milestone_folder(run: Run, upload: Upload) -> Path:
    """Return the folder in which a milestone waits. The push that uploads it removes the folder."""
    return run.outbox / upload.branch


def _was_pushed_elsewhere(run: Run, upload: Upload) -> bool:
    """Return whether another push has uploaded the same milestone in the meantime."""
    return upload.is_milestone and not _milestone_folder(run, upload).exists()


def _commit(run: Run, upload: Upload) -> str:
    """Commit the files of an upload, and return the id of the last commit of the branch.

    If no file differs, the Hub makes no commit. After a commit to the branch `state`, all commits
    of the branch are merged into one, so that old training states take no space.

    Args:
        run: The run to upload.
        upload: The files, and the name of the branch.
    """
    from huggingface_hub import CommitOperationAdd

    repository, branch = run.recipe.hub.repo, upload.branch
    parent = _find_parent_commit(run, branch)
    contents = sorted(upload.files().items())
    additions = [CommitOperationAdd(name, content) for name, content in contents]
    commit = _api().create_commit(
        repository, additions, commit_message=upload.message, revision=branch, parent_commit=parent
    )
    is_unchanged = commit.oid == parent
    if branch != "state" or is_unchanged:
        return str(commit.oid)
    with suppress(Exception):  # if this fails, the next push of a training state tries again
        _api().super_squash_history(repository, branch=branch)
    return str(_api().repo_info(repository, revision=branch).sha)


def _find_parent_commit(run: Run, branch: str) -> str:
    """Check that a branch belongs to this run, and return the id of the branch's last commit.

    A branch belongs to the run if the branch has no files yet, or files of the same run. A branch
    that does not exist is created at the first commit of the repository.

    Args:
        run: The run to upload.
        branch: Name of the branch.

    Raises:
        UserError: The branch holds files of another run or other files, or the repository is public
            although hub.private=true.
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
        raise UserError(
            f"hub.repo={repository}: this repository is public. To push anyway, use"
            " hub.private=false."
        )
    _check_owner(run, info)
    return str(info.sha)


def _check_owner(run: Run, info: Any) -> None:
    """Check that a commit of the repository is blank, or holds files of this run.

    Args:
        run: The run to upload.
        info: Result of the client's `repo_info` for the commit.

    Raises:
        UserError: The commit holds files that belong to no run, or a run with another recipe or
            other data.
    """
    repository = run.recipe.hub.repo
    names = {file.rfilename for file in info.siblings}
    if not names.issuperset(IDENTIFYING_FILES):
        # The commit has no run. Only files that the Hub creates in a new repository are allowed
        unknown = sorted(names - BLANK)
        if unknown:
            raise UserError(
                f"hub.repo={repository}: this repository has files that belong to no run"
                f" ({list_names(unknown)}). Use another hub.repo=."
            )
        return
    folder = hub_files.fetch(
        f"{repository}@{info.sha}", f"hub.repo={repository}", IDENTIFYING_FILES
    )
    try:
        pushed_recipe, pushed_identity = (load_yaml(folder / name) for name in IDENTIFYING_FILES)
    except UserError:
        raise UserError(
            f"hub.repo={repository}: {' or '.join(IDENTIFYING_FILES)} of this repository cannot be"
            " read. Use another hub.repo=."
        ) from None
    pushed_values = experiment_values(flatten(pushed_recipe))
    values = computed_values(public_recipe(run.recipe))
    keys = [difference.key for difference in differences(pushed_values, values)]
    if keys:
        raise UserError(
            f"hub.repo={repository}: this repository holds a run of another recipe"
            f" ({list_names(keys)}). Use another hub.repo=."
        )
    for kind, hashes in identity(run).items():
        pushed_hashes = pushed_identity.get(kind)
        if not isinstance(pushed_hashes, dict):
            pushed_hashes = {}
        if differences(facts(kind, pushed_hashes), facts(kind, hashes)):
            raise UserError(
                f"hub.repo={repository}: this repository holds a run of this recipe with other"
                f" files: the hashes of {kind} differ. Use another hub.repo=."
            )


def _api() -> Any:
    from huggingface_hub import HfApi

    return HfApi()


def _with_retries(do: Callable[[], T], say: Say) -> T:
    """Call a function, and retry after temporary errors of the Hub.

    An error is temporary if the Hub is busy or cannot be reached, or if another push has committed
    to the same branch in the meantime. The error of the last try is raised. Other errors are raised
    at once.

    Args:
        do: Function without arguments. The result is returned.
        say: Prints a line. Called before each wait.
    """
    for wait in WAITS:
        try:
            return do()
        except Exception as error:
            if not hub_files.is_temporary(error):
                raise
            say(f"{manifest.WAITING}{hub_files.describe_error(error)}")
            time.sleep(wait)
    return do()


def main(arguments: list[str]) -> None:
    """Run the push tool: upload a run, or with `dry` only list what would be uploaded.

    Raises:
        UserError: An option is wrong, hub.repo is missing, the folder holds no training run, or the
            upload fails.
    """
    options = parse(PushOptions, Arguments(arguments))
    run = open_run(options.folder)
    if not run.recipe.trains:
        raise UserError(
            f"{options.folder}: this run is an evaluation and has no encoder. Name a training run."
        )
    typed_values = options.given.values  # for example hub.repo=
    run.recipe = build(run.recipe.values() | typed_values)
    if run.recipe.hub.repo is None:
        raise UserError("hub.repo= is missing. Use hub.repo=USER/NAME, a repository on the Hub.")
    say = partial(print, flush=True)
    if options.dry:
        preview(run, say)
    else:
        push(run, say)
