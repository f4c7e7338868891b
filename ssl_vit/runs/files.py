"""Write files and folders whole or not at all. No torch."""

import errno
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# Name of the unfinished file or folder next to NAME, with the number of the process that writes it
BESIDE = re.compile(r"\.(?P<name>.+)\.\d+", re.DOTALL)


def remove(path: Path) -> None:
    """Remove an existing file or folder, and a link without the target."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def replacing(path: Path, written: Collection[str] | None = None) -> Iterator[Path]:
    """Yield the path of an unfinished file or folder, which becomes `path` at the end of the body.

    After an error the unfinished file is removed, which frees space on a full disk.

    Args:
        path: The file or folder to write.
        written: Names of all files that are ever written in the folder; needed to replace a folder
            with content. Files with other names are moved to the new folder.

    Raises:
        OSError: The path cannot be written; the error names `path`.
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
        # the error of a failed write names no file
        if isinstance(error, OSError) and error.errno and error.filename in (None, str(beside)):
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


def _exchange(beside: Path, path: Path, written: Collection[str]) -> None:
    """Rename a folder to `path`, in place of the present folder.

    POSIX cannot rename over a folder with content. Between two renames the folder is missing, and a
    reader tries again.
    """
    old = path.with_name(f".{path.name}.0")  # no process has that number
    remove(old)
    path.rename(old)
    beside.rename(path)
    for entry in old.iterdir():
        if entry.name not in written:
            entry.rename(path / entry.name)
    remove(old)


def leftovers(folder: Path, names: re.Pattern[str]) -> list[Path]:
    """Return files and folders that processes are writing, or that killed processes have left.

    Args:
        folder: The folder to look in.
        names: Matches the final names of the files and folders.
    """
    with suppress(OSError), os.scandir(folder) as entries:
        matches = (BESIDE.fullmatch(entry.name) for entry in entries)
        return sorted(
            folder / match[0] for match in matches if match and names.fullmatch(match["name"])
        )
    return []


def sweep(folder: Path, names: re.Pattern[str], delete: Callable[[Path], None] = remove) -> None:
    """Remove `leftovers` of a folder that only this process writes.

    Args:
        folder, names: As in `leftovers`.
        delete: A function that removes a file or folder, but not the target of a link.
    """
    for left in leftovers(folder, names):
        with suppress(OSError):  # another process removes it, too
            delete(left)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace a file's content, or leave the file unchanged.

    Raises:
        OSError: The file cannot be written.
    """
    with replacing(path) as beside, beside.open("xb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())


def append(path: Path, content: bytes) -> None:
    """Append to a file, or leave the file unchanged.

    Raises:
        OSError: The file cannot be written.
    """
    with path.open("ab", buffering=0) as file:
        size = file.tell()
        try:
            if file.write(content) < len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        except OSError:
            file.truncate(size)
            raise
