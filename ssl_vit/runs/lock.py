"""Lock folders and processes: a single writer of a folder, a single job of a process. No torch.

A folder's lock is `filelock`'s flock on the file `lock`. When the process ends in any way, the
operating system releases the lock. The content of the file names the holder for other processes to
read, but only the flock keeps a second writer out. A held folder also notices a move or removal.
"""

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from ..errors import UserError

FILE = "lock"
HOLDER_WAIT = 1.0  # seconds that a second writer waits until the file names the first writer
OURS: set[Path] = set()  # folders that this process writes
_PROCESS = threading.RLock()
_JOBS: list[str] = []  # the jobs that hold _PROCESS, the outermost first


class HeldFolder:
    """Folder with an open file descriptor, which shows whether the folder was moved."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def is_in_place(self) -> bool:
        """Return whether the folder is still at its path: neither moved nor removed.

        If the file system does not answer, the result is also True.
        """
        try:
            return os.path.samestat(self.folder.stat(), os.fstat(self.descriptor))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True

    def close(self) -> None:
        os.close(self.descriptor)


def check_outside(name: str, folder: Path) -> None:
    """Check that a folder is not inside a run's folder.

    A run's folder holds both recipe.yaml and environment.json. A folder with only recipe.yaml is
    not a run: users may keep a recipe.yaml of their own next to runs/.

    Args:
        name: Value of name=, for the error message.
        folder: Folder to check.

    Raises:
        UserError: The folder is inside a run's folder.
    """
    for above in folder.resolve().parents:
        # Require both files. `pages.run_record.is_run` would accept a folder with fewer files
        if all((above / file).is_file() for file in ("recipe.yaml", "environment.json")):
            raise UserError(
                f"name={name}: {folder} is inside {above}, the folder of another run. "
                "Use another name= or out=."
            )


def is_held(folder: Path) -> bool:
    """Return whether a process writes the folder, according to the lock file. Take no lock."""
    return writer(folder) is not None


def writer(folder: Path) -> str | None:
    """Describe the process that writes the folder, according to the lock file, or return None.

    An example is `process 12 on gpu7 since 2026-11-27 06:30:00`. Return None if the file is missing
    or empty, or names a process of this machine that has ended. A process of another machine counts
    as alive, because this machine cannot tell.
    """
    path = folder / FILE
    if not path.is_file():  # for example a named pipe, whose reading would block
        return None
    try:
        holder = json.loads(path.read_text(errors="replace"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(holder, dict) or not isinstance(holder.get("pid"), int):
        return None
    pid, host = holder["pid"], holder.get("host")
    if host == socket.gethostname():
        # The number of this process may also be the number of an ended process that wrote the file,
        # above all in a container. So look whether OURS, the folders that this process has locked,
        # has the folder
        if pid == os.getpid():
            return "this process" if folder.resolve() in OURS else None
        if not _is_alive(pid):
            return None
    since = f" since {holder['since']}" if "since" in holder else ""
    return f"process {pid} on {host}{since}"


def wait_until_free(folder: Path) -> None:
    """Wait until no process of any machine holds a folder's lock."""
    path = folder / FILE
    if path.is_file():
        with suppress(OSError), FileLock(path, poll_interval=1.0, fallback_to_soft=False):
            pass


def _is_alive(pid: int) -> bool:
    """Return whether a process of this machine exists. Signal 0 only checks this, and ends none."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # the process exists, but belongs to another user
        return True
    return pid > 0


@contextmanager
def hold_process(job: str, nested: bool = False) -> Iterator[None]:
    """Keep other jobs from starting in this process while the `with` block runs.

    Jobs cannot share a process, because each job sets the process group, the number of threads and
    the state of random numbers.

    Args:
        job: Name of the job in error messages.
        nested: Whether the job may run inside another job of the same thread.

    Raises:
        UserError: Another job has not ended.
    """
    # Two cases are refused. Another thread runs a job: then the lock cannot be taken. This thread
    # runs a job and the new job may not be nested: the lock can be taken again, so _JOBS decides
    is_acquired = _PROCESS.acquire(blocking=False)
    try:
        if not is_acquired or (_JOBS and not nested):
            running = _JOBS[0] if _JOBS else "another job"
            raise UserError(
                f"{job}: this Python process is still busy with {running}. Wait until that call "
                "has returned, or use another process."
            )
        _JOBS.append(job)
        try:
            yield
        finally:
            _JOBS.pop()
    finally:
        if is_acquired:
            _PROCESS.release()


@contextmanager
def hold(folder: Path, out: str) -> Iterator[HeldFolder]:
    """Keep other processes and threads from writing a folder while the `with` block runs.

    Args:
        folder: Folder to hold, created if it does not exist.
        out: Value of out=, for error messages.

    Raises:
        UserError: Another writer holds the folder, the folder cannot be written, or the file system
            has no locks.
    """
    path = folder / FILE
    # filelock must not fall back to a plain file, which would stay after a process is killed
    lock = FileLock(path, blocking=False, fallback_to_soft=False)
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            held_folder = HeldFolder(folder)
        except OSError as error:
            raise UserError(f"out={out}: {folder} cannot be written: {error.strerror}") from None
        stack.callback(held_folder.close)
        try:
            stack.enter_context(lock)
        except Timeout:
            raise UserError(
                f"name={folder.name}: {folder} is being written by {_holder(folder)}. "
                "Wait, or use another name=."
            ) from None
        except OSError as error:
            raise UserError(
                f"out={out}: {path}: {error.strerror}. "
                "Use a writable folder, on a file system with locks."
            ) from None
        resolved = folder.resolve()
        OURS.add(resolved)
        stack.callback(OURS.discard, resolved)
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        holder = {"host": socket.gethostname(), "pid": os.getpid(), "since": since}
        path.write_text(json.dumps(holder))
        try:
            yield held_folder
        finally:
            if held_folder.is_in_place():
                with suppress(OSError):
                    path.write_text("")


def _holder(folder: Path) -> str:
    """Describe the process that holds a folder's lock.

    Wait up to `HOLDER_WAIT` seconds, because the process may not have written the lock file yet.
    """
    end = time.monotonic() + HOLDER_WAIT
    holder = writer(folder)
    while holder is None and time.monotonic() < end:
        time.sleep(0.01)
        holder = writer(folder)
    return holder or "another process"
