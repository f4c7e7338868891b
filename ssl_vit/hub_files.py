"""Fetch files of the Hugging Face Hub, with fixed commits and verified checksums. No torch.

The module also describes errors of the Hub in one line. huggingface_hub provides the user's token
(HF_TOKEN, `hf auth login`). The token is never printed.
"""

import hashlib
import re
import sys
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any

from .errors import UserError

SCHEME = "hf-hub:"
COMMIT = re.compile(r"[0-9a-f]{40}")
NAME = re.compile(r"(?!.*(--|\.\.|\.git$))\b[\w.-]{1,96}\b/\b[\w.-]{1,96}\b", re.ASCII)
LONGEST = 96  # characters of a repository's name
LOGIN = "Type `hf auth login`, or set HF_TOKEN"
NOT_CACHED = "HF_HUB_OFFLINE is set, and the files are not in the cache. Unset HF_HUB_OFFLINE"
SILENCE = 60.0  # seconds without a byte after which a request is abandoned
# HTTP statuses after which a retry may succeed; 409 and 412 say that another commit came first
BUSY = (408, 409, 412, 429)


def split_place(place: str) -> tuple[str, str | None]:
    """Split hf-hub:USER/NAME@REVISION into USER/NAME and REVISION.

    Without a revision, hf-hub:USER/NAME gives USER/NAME and None.
    """
    repository, _, revision = place.removeprefix(SCHEME).partition("@")
    return repository, revision or None


def is_pinned(place: str) -> bool:
    """Return whether the revision in hf-hub:USER/NAME@REVISION is a commit.

    A commit never changes, unlike a branch or a missing revision.
    """
    _, revision = split_place(place)
    return COMMIT.fullmatch(revision or "") is not None


def pin(place: str, source: str) -> str:
    """Replace the revision in hf-hub:USER/NAME@REVISION by its current commit.

    Args:
        place: hf-hub:USER/NAME or hf-hub:USER/NAME@REVISION.
        source: Start of error messages, such as "init=hf-hub:USER/NAME".

    Raises:
        UserError: The repository or the revision does not exist or has no config.json, or the Hub
            cannot be reached.
    """
    if is_pinned(place):
        return place
    repository, _ = split_place(place)
    # the folder of the downloaded files is named after the commit
    commit = fetch(place, source, ["config.json"]).name
    return f"{SCHEME}{repository}@{commit}"


def fetch(place: str, source: str, names: Collection[str]) -> Path:
    """Download files of a repository into the cache, and verify the checksums.

    Args:
        place: USER/NAME@REVISION.
        source: Start of error messages, such as "init=hf-hub:USER/NAME".
        names: Files to download. At least one must exist in the repository.

    Returns:
        The folder with the files. The name of the folder is the commit.

    Raises:
        UserError: The repository, the revision or all of the files do not exist, the Hub cannot be
            reached, or a file is damaged.
    """
    # imported here because the import takes a quarter of a second
    from huggingface_hub import get_cached_repo_tree, snapshot_download

    repository, revision = split_place(place)
    if not NAME.fullmatch(repository):
        raise UserError(f"{source}: {repository!r} is not a repository of the Hub. Use USER/NAME.")
    configure_client()
    try:
        folder = Path(snapshot_download(repository, revision=revision, allow_patterns=list(names)))
        tree = {file.path: file for file in get_cached_repo_tree(repository, revision=folder.name)}
    except Exception as error:  # several libraries may raise
        raise UserError(f"{source}: {describe_error(error)}") from None
    found = tree.keys() & set(names)
    for name in sorted(found):
        _check(folder / name, tree[name], source)
    if not found:
        raise UserError(
            f"{source}: the repository has no {' and no '.join(names)}. Name a repository with"
            " these files."
        )
    return folder


def _check(path: Path, listed: Any, source: str) -> None:
    """Check the hash of a downloaded file against the Hub's listing.

    For a large file (LFS), the listing has the SHA-256. For a small file, the listing has git's
    blob hash, which is the SHA-1 of a header with the size, followed by the content.

    Args:
        path: The downloaded file.
        listed: The entry of the file in the listing.
        source: Start of the error message, such as "init=hf-hub:USER/NAME".

    Raises:
        UserError: The file is damaged.
    """
    if listed.lfs:
        with path.open("rb") as file:
            is_sound = hashlib.file_digest(file, "sha256").hexdigest() == listed.lfs.sha256
    else:
        content = path.read_bytes()
        blob = b"blob %d\0" % len(content) + content
        is_sound = hashlib.sha1(blob).hexdigest() == listed.blob_id
    if not is_sound:
        raise UserError(
            f"{source}: {path.name} is damaged. Remove {path.resolve()}, then repeat the command."
        )


def repository_for_run(repository: str, name: str) -> str:
    """Return the repository for a run of a study: USER/STUDY-RUN.

    Characters that the Hub does not allow become dashes: the run "mae 1" of USER/gap becomes
    USER/gap-mae-1. If a name is too long, its end is replaced by a hash of the name.

    Args:
        repository: Repository of the study, USER/STUDY. An invalid name is returned unchanged.
        name: Name of the run.
    """
    if not NAME.fullmatch(repository):
        return repository
    user, _, study_name = repository.partition("/")
    full_name = re.sub(r"[^\w.-]", "-", f"{study_name}-{name}", flags=re.ASCII)
    full_name = re.sub(r"[-.]{2,}", "-", full_name).strip("-.")
    if len(full_name) > LONGEST:
        digest = hashlib.sha256(full_name.encode()).hexdigest()[:8]
        # leave 9 characters for the dash and the digest
        full_name = f"{full_name[: LONGEST - 9].rstrip('-.')}-{digest}"
    return f"{user}/{full_name}"


def configure_client() -> None:
    """Configure huggingface_hub: limit timeouts, and show progress bars only in a terminal."""
    from huggingface_hub.utils import disable_progress_bars

    _limit_timeouts()
    if not sys.stderr.isatty():
        disable_progress_bars()


@cache
def _limit_timeouts() -> None:
    """Make huggingface_hub give up a request after SILENCE seconds without a byte from the server.

    A hook in every httpx client lowers the timeouts of each request, even of calls with
    timeout=None.
    """
    from huggingface_hub import set_client_factory

    def client() -> Any:
        http_client = _default_client()
        http_client.event_hooks["request"].append(_lower_timeouts)
        return http_client

    set_client_factory(client)


def _default_client() -> Any:
    """Return huggingface_hub's default client.

    The imported function is private. It has the same name in the versions 1.33 to 2.4.
    """
    from huggingface_hub.utils._http import default_client_factory

    return default_client_factory()


def _lower_timeouts(request: Any) -> None:
    """Limit the timeouts of an httpx request to SILENCE seconds."""
    timeouts = request.extensions.get("timeout", {})
    kinds = ("connect", "read", "write", "pool")
    request.extensions["timeout"] = {
        kind: min(timeouts.get(kind) or SILENCE, SILENCE) for kind in kinds
    }


def is_offline() -> bool:
    """Return whether HF_HUB_OFFLINE forbids every request."""
    from huggingface_hub import constants

    return constants.is_offline_mode()


def token() -> str | None:
    """Return the token of the user who is logged in, or None."""
    from huggingface_hub import get_token

    return get_token()


def clean(text: str) -> str:
    """Return text as one line, without tokens and without users and passwords in URLs."""
    secret = (token() or "").strip()
    if secret:
        text = text.replace(secret, "***")
    line = re.sub(r"//[^/\s]*@", "//", " ".join(text.split()))  # remove USER:PASSWORD@ from URLs
    return re.sub(r"hf_[A-Za-z0-9]{8,}", "***", line)[:300]


def describe_error(error: BaseException) -> str:
    """Describe an error of the Hub in one line, with a remedy if there is one.

    Args:
        error: An error of huggingface_hub or of a library that it uses.
    """
    from huggingface_hub import constants, errors

    error = _root_error(error)
    status = _status(error)
    if isinstance(error, errors.GatedRepoError):
        return f"the owner's terms are not accepted. See {constants.ENDPOINT}/{error.repo_id}"
    if isinstance(error, errors.RevisionNotFoundError):
        return "the repository has no such revision (branch, tag or commit). Name another revision"
    if status == 401 and "Invalid credentials" in str(error):
        return f"the Hub does not know this token. {LOGIN}"
    if isinstance(error, errors.RepositoryNotFoundError) or status == 401:
        return f"the repository does not exist, or is private and closed to this token. {LOGIN}"
    if status == 403:
        reason = clean(getattr(error, "server_message", None) or "no reason given")
        return (
            f"this token may not write to the repository ({reason}). Make a token with write access"
            " at https://huggingface.co/settings/tokens"
        )
    if _busy(status):
        return f"the Hub is busy (HTTP {status}). Try again later"
    if isinstance(error, errors.OfflineModeIsEnabled) or is_offline():
        return NOT_CACHED
    # httpx raises these errors if the token has characters that HTTP headers do not allow
    if isinstance(error, UnicodeError) or type(error).__name__ == "LocalProtocolError":
        return f"the token is invalid. {LOGIN}"
    if status is None and _unreachable(error):
        return clean(f"the Hub cannot be reached at {constants.ENDPOINT}. Try again later")
    return clean(str(error) or repr(error))


def _status(error: BaseException) -> int | None:
    """Return the HTTP status of an error, or None if there was no response."""
    return getattr(getattr(error, "response", None), "status_code", None)


def _busy(status: int | None) -> bool:
    """Return whether an HTTP status says that a retry may succeed."""
    return status is not None and (status in BUSY or status >= 500)


def _root_error(error: BaseException) -> BaseException:
    """Return the original error behind a UserError or a RuntimeError.

    huggingface_hub raises RuntimeError "Error while uploading ..." from the original error.
    """
    # This package raises a UserError in place of the original error, with `from None`, so only the
    # context is left. A RuntimeError has the original error as its cause
    inner = error.__context__ if isinstance(error, UserError) else error.__cause__
    if isinstance(error, RuntimeError | UserError) and inner is not None:
        return _root_error(inner)
    return error


def is_temporary(error: BaseException) -> bool:
    """Return whether a retry may succeed, because the Hub is busy or cannot be reached."""
    if is_offline():
        return False
    error = _root_error(error)
    status = _status(error)
    return _unreachable(error) if status is None else _busy(status)


def _unreachable(error: BaseException) -> bool:
    """Return whether an error, or any error that caused it, is a network error."""
    class_names = {parent.__name__ for parent in type(error).__mro__}
    if "LocalProtocolError" in class_names:  # the request itself was invalid
        return False
    if class_names & {"TransportError", "LocalEntryNotFoundError", "ConnectionError"}:
        return True
    cause = error.__cause__ or error.__context__
    return cause is not None and _unreachable(cause)
