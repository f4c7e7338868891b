"""Write files and folders whole or not at all. No torch."""

import errno
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# While process PID writes a file or folder NAME, it is called .NAME.PID
UNFINISHED = re.compile(r"\.(?P<name>.+)\.\d+", re.DOTALL)


def remove(path: Path) -> None:
    """Remove a file, a folder or a link, if it exists. The target of a link is kept."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def replacing(path: Path, own_names: Collection[str] | None = None) -> Iterator[Path]:
    """Replace a file or folder at the end of the `with` block.

    The block writes to the yielded temporary path. Readers of `path` see the old content or the new
    content, never a part. After an error the unfinished file is removed, which frees space on a
    full disk.

    Args:
        path: File or folder to write.
        own_names: Names of all files that the program ever writes into the folder, or None for a
            file or a new folder. Other files of the old folder belong to the user and are moved
            into the new folder.

    Raises:
        OSError: The path cannot be written. The error names `path`.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        remove(unfinished)
        yield unfinished
        if own_names is not None and path.is_dir():
            _exchange(unfinished, path, own_names)
        else:
            unfinished.replace(path)
    except BaseException as error:
        with suppress(OSError):
            remove(unfinished)
        # An error may name no file, or the unfinished file, which the user does not know. Raise
        # such an error again with the name `path`
        if isinstance(error, OSError) and error.errno and error.filename in (None, str(unfinished)):
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


def _exchange(unfinished: Path, path: Path, own_names: Collection[str]) -> None:
    """Replace the folder `path` by a newly written folder, and keep the user's files.

    POSIX cannot rename a folder over a folder with content, so the old folder is renamed first. For
    a moment there is no folder `path`, and processes that read the folder have to try again.

    Args:
        unfinished: Folder with the new content.
        path: Folder to replace.
        own_names: Names of the old files to remove. Files of other names belong to the user and are
            moved into the new folder.
    """
    # No process has the number 0, so this name differs from .NAME.PID of an unfinished folder
    old = path.with_name(f".{path.name}.0")
    remove(old)
    path.rename(old)
    unfinished.rename(path)
    for entry in old.iterdir():
        if entry.name not in own_names:
            entry.rename(path / entry.name)
    remove(old)


def leftovers(folder: Path, names: re.Pattern[str]) -> list[Path]:
    """Return the unfinished files and folders in a folder.

    Such files are still being written, or were left by a killed process. For example, process 12
    writes result.json under the name .result.json.12.

    Args:
        folder: Folder to look in.
        names: Pattern of the names that the files and folders have when they are finished, such as
            result.json.
    """
    unfinished = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            match = UNFINISHED.fullmatch(entry.name)
            if match and names.fullmatch(match["name"]):
                unfinished.append(folder / entry.name)
    return sorted(unfinished)


def sweep(folder: Path, names: re.Pattern[str], delete: Callable[[Path], None] = remove) -> None:
    """Remove the unfinished files that killed processes have left in a folder (`leftovers`).

    While this function runs, no other process may write files with these names. Other processes may
    remove such files.

    Args:
        folder: Folder to look in.
        names: Pattern of the names that the files have when they are finished.
        delete: Function that removes a file or folder, but not the target of a link.
    """
    for path in leftovers(folder, names):
        with suppress(OSError):  # another process may have removed the file in the meantime
            delete(path)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace a file's content, or leave the file unchanged.

    Args:
        path: File to write, which need not exist.
        content: Bytes, or text to encode as UTF-8.

    Raises:
        OSError: The file cannot be written.
    """
    with replacing(path) as unfinished, unfinished.open("xb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())


def append(path: Path, content: bytes) -> None:
    """Append bytes to a file, or leave the file unchanged.

    Args:
        path: File, which need not exist.
        content: Bytes to append.

    Raises:
        OSError: The file cannot be written.
    """
    with path.open("ab", buffering=0) as file:
        size = file.tell()
        try:
            # on a full disk, `write` may write a part of the bytes without an error
            if file.write(content) < len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        except OSError:
            file.truncate(size)
            raise
