"""Lock folders and processes: a single writer of a folder, a single job of a process. No torch.

A folder's lock is `filelock`'s flock on the file `lock`. The operating system releases the lock
when the process ends in any way; until then, only the holder can. The file names the holder for
others to read, but only the lock itself keeps a second writer out. A held folder also notices if it
is moved or removed.
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
HOLDER_WAIT = 1.0  # seconds that a second writer waits for the first writer's line in the file
OURS: set[Path] = set()  # folders that this process writes
_PROCESS = threading.RLock()
_JOBS: list[str] = []  # the jobs that hold _PROCESS, the outermost first


class HeldFolder:
    """Folder with an open file descriptor, by which a move is noticed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def is_in_place(self) -> bool:
        """Return whether the folder still has its path, so was neither moved nor removed.

        The answer is True, too, if the file system does not answer.
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

    A run's folder holds both recipe.yaml and environment.json. recipe.yaml alone may be the user's:
    with a recipe.yaml next to runs/, new runs in runs/ must not be refused.

    Args:
        name: Value of name=, for the error message.
        folder: Folder to check.

    Raises:
        UserError: The folder is inside a run's folder.
    """
    for above in folder.resolve().parents:
        # `pages.run_record.is_run` requires fewer files, so lists of runs show more folders
        if all((above / file).is_file() for file in ("recipe.yaml", "environment.json")):
            raise UserError(
                f"name={name}: {folder} is inside {above}, the folder of another run. "
                "Use another name= or out=."
            )


def is_held(folder: Path) -> bool:
    """Return whether a process writes the folder, according to the lock file. Nothing is locked."""
    return writer(folder) is not None


def writer(folder: Path) -> str | None:
    """Describe the process that writes the folder, according to the lock file, or return None.

    The text is like `process 12 on gpu7 since 2026-11-27 06:30:00`. No process writes if the file
    is missing or empty, or names a process of this machine that has ended. A process of another
    machine counts as alive, because this machine cannot tell.
    """
    path = folder / FILE
    if not path.is_file():  # reading a pipe would block
        return None
    try:
        holder = json.loads(path.read_text(errors="replace"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(holder, dict) or not isinstance(holder.get("pid"), int):
        return None
    pid, host = holder["pid"], holder.get("host")
    if host == socket.gethostname():
        # An ended process may have had the number of this process, above all in a container. OURS
        # holds the folders whose locks this process holds
        if pid == os.getpid():
            return "this process" if folder.resolve() in OURS else None
        if not _is_alive(pid):
            return None
    since = f" since {holder['since']}" if "since" in holder else ""
    return f"process {pid} on {host}{since}"


def wait_until_free(folder: Path) -> None:
    """Wait until nobody holds a folder's lock, on this or another machine."""
    path = folder / FILE
    if path.is_file():
        with suppress(OSError), FileLock(path, poll_interval=1.0, fallback_to_soft=False):
            pass


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # the process of another user
        return True
    return pid > 0


@contextmanager
def hold_process(job: str, nested: bool = False) -> Iterator[None]:
    """Keep other jobs from starting in this process while the body runs.

    Jobs cannot share a process, because each job sets the process group, the number of threads and
    the state of random numbers. Another thread is kept out by a reentrant lock. The same thread can
    acquire the lock again, so the list of running jobs decides whether it may start a second job.

    Args:
        job: Name of the job in error messages.
        nested: Whether the job may run inside another job of the same thread.

    Raises:
        UserError: Another job has not ended.
    """
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
    """Keep other writers out of a folder while the body runs, also other threads of this process.

    Args:
        folder: Folder to hold, created if it does not exist.
        out: Value of out=, for error messages.

    Raises:
        UserError: Another writer holds the folder, it cannot be written, or its file system has no
            locks.
    """
    path = folder / FILE
    # no fallback on file systems without locks: a fallback's file outlives a killed process
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
        line = {"host": socket.gethostname(), "pid": os.getpid(), "since": since}
        path.write_text(json.dumps(line))
        try:
            yield held_folder
        finally:
            if held_folder.is_in_place():
                with suppress(OSError):
                    path.write_text("")


def _holder(folder: Path) -> str:
    """Describe the process that holds a folder's lock.

    The process may not have written its line yet, so the function waits up to `HOLDER_WAIT`
    seconds.
    """
    end = time.monotonic() + HOLDER_WAIT
    holder = writer(folder)
    while holder is None and time.monotonic() < end:
        time.sleep(0.01)
        holder = writer(folder)
    return holder or "another process"
