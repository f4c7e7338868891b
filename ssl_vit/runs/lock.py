"""The lock of a run's folder: one writer, in a folder of its own that stays where it is. No
torch."""

import errno
import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from ..errors import UserError

HEARTBEAT = 30.0  # seconds between signs of life in the lock
# seconds without one, on another machine; more than a network's disk may keep to itself
DEAD_AFTER = 100.0
# seconds after which the last of several that wrote at once is seen, where the file system knows no
# locks
SETTLES = 1.0


class HeldFolder:
    """A folder that is held open, so that it is known where it went if somebody moves it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def is_in_place(self) -> bool:
        """Whether the folder still has its name; a file system that does not answer has moved
        nothing."""
        try:
            return os.path.samestat(self.folder.stat(), os.fstat(self.number))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True

    def current_path(self) -> Path | None:
        """Where the folder is, as far as the system tells; None where it was removed, or the system
        does not say."""
        with suppress(OSError):
            found = Path(f"/proc/self/fd/{self.number}").readlink()
            if os.path.samestat(found.stat(), os.fstat(self.number)):
                return found
        return None

    def close(self) -> None:
        os.close(self.number)


def open_file(path: Path) -> IO[str]:
    """A file to read and write, made if it is not there; never through a link, whose target is
    somebody else's.

    Raises:
        OSError: it cannot be opened, or is a link.
    """
    return os.fdopen(
        os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666), "r+"
    )


def check_own(prefix: str, folder: Path, names: Iterable[str]) -> None:
    """That what a run writes in its folder is its own: no link, and no other run.

    Raises:
        UserError: it is not.
    """
    for path in (folder / name for name in names):
        if path.is_symlink():
            raise UserError(
                f"{prefix}: {path} is a link, and a run writes what is its own alone; remove it, or link the whole folder"
            )
        if is_run(path):
            raise UserError(
                f"{prefix}: {path} holds another run, which this one would overwrite; move it, or take another name="
            )
    for above in folder.resolve().parents:
        if is_run(above):
            raise UserError(
                f"{prefix}: {folder} lies inside another run's folder, {above}; take another name= or out="
            )


def is_run(folder: Path) -> bool:
    return (folder / "recipe.yaml").is_file() and (folder / "environment.json").is_file()


@contextmanager
def hold(folder: Path, out: str, gone: Callable[[], None]) -> Iterator[HeldFolder]:
    """Keep a second writer out of a folder while the body runs; `gone` is called once if the folder
    is moved or removed.

    Raises:
        UserError: another process that is alive holds the folder, or it cannot be written.
    """
    path = folder / "lock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open_file(path)
        place = HeldFolder(folder)
    except OSError as error:
        raise UserError(f"out={out}: {folder} cannot be written: {error.strerror}") from None
    with file:
        try:
            _take(path, file)
            done = threading.Event()
            threading.Thread(target=_beat, args=(place, gone, done), daemon=True).start()
            try:
                yield place
            finally:
                done.set()
                with suppress(OSError):
                    file.truncate(0)
        finally:
            place.close()


def _take(path: Path, file: IO[str]) -> None:
    """Lock the open file and write who holds it.

    Raises:
        UserError: somebody else does.
    """
    file.seek(0)
    try:
        holder = json.loads(file.read() or "{}")
    except ValueError:
        holder = {}
    holder = holder if isinstance(holder, dict) else {}
    who = f"process {holder.get('pid')} on {holder.get('host')}"
    try:
        # the process's own: not inherited by data workers
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        taken, locks = False, True
    except OSError as error:
        # others: a file system that knows no locks
        locks = error.errno in (errno.EACCES, errno.EAGAIN)
        taken = locks or _alive(holder)
    elsewhere = holder.get("host") not in (None, socket.gethostname())
    if taken or (elsewhere and _beats(path, who)):
        raise UserError(_refusal(path, who))
    mine = json.dumps(
        {"host": socket.gethostname(), "pid": os.getpid(), "start": _start(os.getpid())}
    )
    file.truncate(0)
    file.seek(0)
    file.write(mine)
    file.flush()
    if not locks:
        time.sleep(SETTLES)
        if (now := path.read_text(errors="replace")) != mine:
            raise UserError(_refusal(path, f"another process ({now[:100]})"))


def _refusal(path: Path, who: str) -> str:
    return f"name={path.parent.name}: {path.parent} is being written by {who}; wait, or take another name="


def _start(pid: int) -> str | None:
    """When a process began, in the system's own count; None where it does not tell."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def _alive(holder: dict[str, Any]) -> bool:
    """Whether a lock's holder is another process on this machine that lives, and began when the
    holder did."""
    pid = holder.get("pid")
    if (
        holder.get("host") != socket.gethostname()
        or not isinstance(pid, int)
        or pid in (0, os.getpid())
    ):
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return holder.get("start") in (None, _start(pid))


def _beats(path: Path, held: str) -> bool:
    """Whether somebody elsewhere gives signs of life."""
    print(
        f"waiting up to {DEAD_AFTER:.0f} s to see whether {held} still writes {path.parent}",
        flush=True,
    )
    before, until = path.stat().st_mtime_ns, time.monotonic() + DEAD_AFTER
    while time.monotonic() < until:
        if path.stat().st_mtime_ns != before:
            return True
        time.sleep(min(1.0, DEAD_AFTER / 10))
    return False


def _beat(place: HeldFolder, gone: Callable[[], None], done: threading.Event) -> None:
    """Give signs of life; a file system that fails once, as one on the network may, is tried
    again."""
    reported = False
    while not done.wait(HEARTBEAT):
        if place.is_in_place():
            with suppress(OSError):
                os.utime(place.folder / "lock")
        elif not reported:
            reported = True
            gone()
