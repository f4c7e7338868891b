"""Writing files whole or not at all. No torch."""

import errno
import os
import shutil
from pathlib import Path


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace a file's content, or leave it as it was.

    Raises:
        OSError: it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    with temporary.open("xb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there; of a link only the link."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Wait until a file is on the disk, before it gets its name."""
    with path.open("rb") as file:
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
