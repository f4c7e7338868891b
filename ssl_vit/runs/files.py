"""Writing files and folders whole or not at all. No torch."""

import errno
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# What a process writes beside NAME, with its number, and moves there when it is whole
BESIDE = re.compile(r"\.(?P<name>.+)\.\d+", re.DOTALL)


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there; of a link only the link."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def replacing(path: Path, written: Collection[str] | None = None) -> Iterator[Path]:
    """The path of an unfinished file or folder, which becomes `path` at the end of the body; after
    an error it is removed, which gives a full disk its room back. A folder that holds something is
    replaced where `written` says the names of all files that are ever written there; those of other
    names go over to the new one.

    Raises:
        OSError: it cannot be written; it names `path`.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        remove(beside)
        yield beside
        if written is not None and path.is_dir():
            _exchange(beside, path, written)
        else:
            beside.replace(path)
    except BaseException as error:
        with suppress(OSError):
            remove(beside)
        # a write that fails names no file
        if isinstance(error, OSError) and error.errno and error.filename in (None, str(beside)):
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


def _exchange(beside: Path, path: Path, written: Collection[str]) -> None:
    """Rename a folder to `path`, in place of the folder there. POSIX renames over no folder that
    holds something: between two renames there is none, and a reader tries again."""
    old = path.with_name(f".{path.name}.0")  # no process has that number
    remove(old)
    path.rename(old)
    beside.rename(path)
    for one in old.iterdir():
        if one.name not in written:
            one.rename(path / one.name)
    remove(old)


def leftovers(folder: Path, own: re.Pattern[str]) -> list[Path]:
    """What processes are writing, or killed ones have left, of a folder's files and folders whose
    names `own` matches."""
    with suppress(OSError), os.scandir(folder) as there:
        found = (BESIDE.fullmatch(one.name) for one in there)
        return sorted(folder / one[0] for one in found if one and own.fullmatch(one["name"]))
    return []


def sweep(folder: Path, own: re.Pattern[str], delete: Callable[[Path], None] = remove) -> None:
    """Remove `leftovers`, where no other process writes the folder.

    Args:
        folder, own: as of `leftovers`.
        delete: removes one; of a link only the link.
    """
    for left in leftovers(folder, own):
        with suppress(OSError):  # another process removes it, too
            delete(left)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace a file's content, or leave it as it was.

    Raises:
        OSError: it cannot be written.
    """
    with replacing(path) as beside, beside.open("xb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())


def append(path: Path, content: bytes) -> None:
    """Append to a file, or leave it as it was.

    Raises:
        OSError: it cannot be written.
    """
    with path.open("ab", buffering=0) as file:
        size = file.tell()
        try:
            if file.write(content) < len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        except OSError:
            file.truncate(size)
            raise
