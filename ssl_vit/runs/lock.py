"""The lock of a run folder: one writer at a time, and notice if the folder is moved or removed. No
torch."""

import errno
import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from ..errors import UserError

HEARTBEAT = 30.0  # seconds between updates of the lock file's time
# seconds without one after which a lock of another machine is free; more than a network disk caches
DEAD_AFTER = 100.0
# seconds until the last of several simultaneous writes is visible, on a file system without locks
SETTLES = 1.0
# folders that threads of this process write: a POSIX lock keeps none of them out, and is lost once
# any file of it is closed
OURS: dict[Path, object] = {}


class HeldFolder:
    """A folder with an open file descriptor, by which a move is noticed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def is_in_place(self) -> bool:
        """Whether the folder still has its path; yes if the file system does not answer."""
        try:
            return os.path.samestat(self.folder.stat(), os.fstat(self.number))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True

    def close(self) -> None:
        os.close(self.number)


def open_file(path: Path) -> IO[str]:
    """Open a file to read and write, or create it; not through a link.

    Raises:
        OSError: it cannot be opened, or is a link.
    """
    return os.fdopen(
        os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666), "r+"
    )


def check_own(prefix: str, folder: Path, names: Iterable[str]) -> None:
    """Check that nothing a run writes in its folder is a link or another run.

    Raises:
        UserError: something is, or the folder lies in another run's.
    """
    for path in (folder / name for name in names):
        if path.is_symlink():
            text = (
                "is a link, and a run writes only its own files; remove it, or link the whole "
                "folder"
            )
            raise UserError(f"{prefix}: {path} {text}")
        if _is_started(path):
            text = (
                "holds another run, which this one would overwrite; move it, or take another name="
            )
            raise UserError(f"{prefix}: {path} {text}")
    for above in folder.resolve().parents:
        if _is_started(above):
            text = f"lies inside another run's folder, {above}; take another name= or out="
            raise UserError(f"{prefix}: {folder} {text}")


def _is_started(folder: Path) -> bool:
    """Whether a run was started in a folder. What is listed as a run may be less, so that what is
    left of one is seen (pages.run_record.is_run); a recipe.yaml of one's own beside runs/ must not
    keep a run from starting."""
    return (folder / "recipe.yaml").is_file() and (folder / "environment.json").is_file()


def is_held(folder: Path) -> bool:
    """Whether another process writes the folder, as far as the lock file tells: its holder is alive
    on this machine, or updates it from another one. Nothing is locked; not for the process that
    holds it, whose lock ends when it closes the file."""
    path = folder / "lock"
    if not path.is_file():  # reading a pipe would block
        return False
    try:
        holder = json.loads(path.read_text(errors="replace"))
        age = time.time() - path.stat().st_mtime
    except (OSError, ValueError, RecursionError):
        return False
    if not isinstance(holder, dict):
        return False
    return _alive(holder) or (holder.get("host") != socket.gethostname() and age < DEAD_AFTER)


@contextmanager
def hold(
    folder: Path, out: str, gone: Callable[[], None], key: str = "name"
) -> Iterator[HeldFolder]:
    """Keep other writers out of a folder while the body runs.

    The operating system releases the lock with the process, however it ends, so a killed run can be
    resumed at once. For machines whose locks do not reach this one, the file has host and process,
    and its time is updated as a heartbeat; whether another machine is alive is found by waiting, as
    clocks differ.

    Args:
        folder: created if it does not exist.
        out: the run's out=, for errors.
        gone: called once if the folder is moved or removed.
        key: the option that names the folder, for errors: `name`, or `out` if that is all of it.

    Raises:
        UserError: another process that is alive holds the folder, or it cannot be written.
    """
    path, real, own = folder / "lock", folder.resolve(), object()
    if OURS.setdefault(real, own) is not own:
        raise UserError(_refusal(path, "this process", key))
    with ExitStack() as stack:
        stack.callback(OURS.pop, real)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(open_file(path))
            place = HeldFolder(folder)
        except OSError as error:
            raise UserError(f"out={out}: {folder} cannot be written: {error.strerror}") from None
        stack.callback(place.close)
        _take(path, file, key)
        done = threading.Event()
        threading.Thread(target=_beat, args=(place, gone, done), daemon=True).start()
        try:
            yield place
        finally:
            done.set()
            with suppress(OSError):
                file.truncate(0)


def _take(path: Path, file: IO[str], key: str) -> None:
    """Lock the open file and write this process into it.

    Raises:
        UserError: another process holds it.
    """
    file.seek(0)
    try:
        holder = json.loads(file.read() or "{}")
    except (ValueError, RecursionError):
        holder = {}
    holder = holder if isinstance(holder, dict) else {}
    who = f"process {holder.get('pid')} on {holder.get('host')}"
    try:
        # POSIX locks belong to the process: data workers do not inherit them
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        taken = False
        locks = True
    except OSError as error:
        # any other error: a file system without locks
        locks = error.errno in (errno.EACCES, errno.EAGAIN)
        taken = locks or _alive(holder)
    elsewhere = holder.get("host") not in (None, socket.gethostname())
    if taken or (elsewhere and _beats(path, who)):
        raise UserError(_refusal(path, who, key))
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
            raise UserError(_refusal(path, f"another process ({now[:100]})", key))


def _refusal(path: Path, who: str, key: str) -> str:
    value = path.parent.name if key == "name" else path.parent
    return f"{key}={value}: {path.parent} is being written by {who}; wait, or take another {key}="


def _start(pid: int) -> str | None:
    """The start time of a process in clock ticks; None without /proc."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def _alive(holder: dict[str, Any]) -> bool:
    """Whether a lock's holder is another live process on this machine, with the recorded start
    time."""
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
    """Whether a holder on another machine updates the lock."""
    print(
        f"waiting up to {DEAD_AFTER:.0f} s to see whether {held} still writes {path.parent}",
        flush=True,
    )
    before = path.stat().st_mtime_ns
    until = time.monotonic() + DEAD_AFTER
    while time.monotonic() < until:
        if path.stat().st_mtime_ns != before:
            return True
        time.sleep(min(1.0, DEAD_AFTER / 10))
    return False


def _beat(place: HeldFolder, gone: Callable[[], None], done: threading.Event) -> None:
    """Update the lock's time until `done`, and report once that the folder is gone. Errors, as of a
    network file system, are retried."""
    reported = False
    while not done.wait(HEARTBEAT):
        if place.is_in_place():
            with suppress(OSError):
                os.utime(place.folder / "lock")
        elif not reported:
            reported = True
            gone()
