"""A folder that a tool writes: one writer at a time, in a folder of its own, with the hashes of
its files. No torch."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ..config.init_source import file_hash
from ..errors import UserError
from . import lock
from .files import remove

# What a process writes beside NAME, and moves there when it is whole (files.write_atomically)
TORN = re.compile(r"\.(?P<name>.+)\.\d+(\.part)?")


@contextmanager
def hold(key: str, folder: Path, record: str | None, own: re.Pattern[str]) -> Iterator[None]:
    """Keep other writers out of a tool's folder while the body runs; remove what killed processes
    left of its files.

    Args:
        key: the option that names the folder, `name` or `out`, for errors.
        folder: created if it does not exist.
        record: the file that says what is in the folder, without which it has to be new; None: the
            folder may have anything in it.
        own: matches the names that the tool writes.

    Raises:
        UserError: another process writes the folder, it lies in a run's, it holds something else,
            or it cannot be written.
    """
    lock.check_own(_option(key, folder), folder, [name for name in (record, "lock") if name])
    check_record(key, folder, record)
    with lock.hold(folder, str(folder.parent if key == "name" else folder), lambda: None, key):
        check_record(key, folder, record)  # another tool may have been faster
        remove_torn(folder, own)
        yield


def _option(key: str, folder: Path) -> str:
    return f"{key}={folder.name if key == 'name' else folder}"


def check_record(key: str, folder: Path, record: str | None) -> None:
    """Check that a folder is new or has the record; hidden files and a lock count for nothing.

    Args:
        key, folder, record: as of `hold`.

    Raises:
        UserError: it holds something else, or cannot be read.
    """
    if record is None or not folder.exists():
        return
    try:
        names = {path.name for path in folder.iterdir()} - {"lock"}
    except OSError as error:
        raise UserError(f"{_option(key, folder)}: {folder}: {error.strerror}") from None
    if record not in names and any(not name.startswith(".") for name in names):
        text = f"{folder} holds something else; give another {key}="
        raise UserError(f"{_option(key, folder)}: {text}")


def remove_torn(folder: Path, own: re.Pattern[str]) -> None:
    """Remove what killed processes left of the files and folders whose names `own` matches. Links
    are not followed."""
    for path in folder.iterdir():
        torn = TORN.fullmatch(path.name)
        if torn and own.fullmatch(torn["name"]):
            remove(path)


def hashes(folder: Path, names: Iterable[str]) -> dict[str, str | None]:
    """{name: hash} of files, for a record of what was written."""
    return {name: file_hash(folder / name) for name in names}


def check_hashes(folder: Path, recorded: Mapping[str, str | None], whole: bool = False) -> None:
    """Check that files are those that were written.

    Args:
        folder: of the files.
        recorded: their names and hashes.
        whole: whether the folder is written as a whole, not file by file.

    Raises:
        UserError: one is missing, was damaged or replaced.
    """
    for name, there in hashes(folder, recorded).items():
        if there is None or there != recorded[name]:
            text = f"is not the file that was written; remove {folder if whole else 'it'}"
            raise UserError(f"{folder / name} {text}, and give the command again")
