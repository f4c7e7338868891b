"""Manage the worker processes of data loaders.

This module limits the number of workers, interrupts the wait for a batch, reports lost workers, and
ends workers.
"""

import errno
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import process, util
from multiprocessing.queues import Queue
from pathlib import Path
from types import FrameType
from typing import Any, cast

from torch.utils.data import DataLoader
from torch.utils.data._utils import signal_handling

from ..callbacks import SIGNALS
from ..errors import LostError, UserError, has_too_many_files, one_line, too_many_files
from .batching import Batch

SHARED = Path("/dev/shm")  # where workers put batches until they are used
PREFETCH = 4  # batches that each worker keeps ready
POLL_SECONDS = 1.0  # between calls of should_stop while no batch comes
END_SECONDS = 2.0  # seconds to wait for workers to end by themselves, and again after a kill
# torch's messages about a worker that ended, such as "DataLoader worker (pid 12) is killed by
# signal: Killed"
LOST = re.compile(r"DataLoader worker \(pid(?:\(s\))? (?P<pid>[0-9, ]+)\) (?P<reason>[^.\n]*)")


def limit_workers(workers: int, batch_bytes: int) -> int:
    """Return the requested number of workers, or the largest number that fits into shared memory.

    Each worker keeps PREFETCH batches in shared memory, which is often only 64 MiB in containers. A
    worker dies of SIGBUS if shared memory is full. The workers of all training processes of this
    machine may fill half of the free shared memory. The other half is left for batches in use and
    for other programs.

    Args:
        workers: The requested number of workers.
        batch_bytes: The size of a batch in bytes.
    """
    if not workers or not SHARED.is_dir():
        return workers
    local_processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    usable_bytes = shutil.disk_usage(SHARED).free // 2 // local_processes
    return min(workers, usable_bytes // (PREFETCH * max(1, batch_bytes)))


@contextmanager
def report_lost_workers() -> Iterator[None]:
    """Turn torch's error about a lost data worker into an error of one line.

    Wrap the whole run: torch raises the error in a signal handler, so any line of the main thread
    may raise the error.

    Raises:
        LostError: A worker was lost.
    """
    try:
        yield
    except RuntimeError as error:
        match = LOST.search(str(error))
        if match is None:
            raise
        raise _worker_error(match["pid"], match["reason"].strip()) from None


def _worker_error(pid: object, reason: str) -> UserError:
    """Return the error for a worker that ended.

    Args:
        pid: The worker's process id.
        reason: How the worker ended, such as "ended with status 1" or a message of torch, which
            often ends with the exit status, too.
    """
    if reason.endswith(f" {errno.EMFILE}"):  # status from `_exit_on_queue_error`
        return UserError(too_many_files())
    return LostError(
        f"data worker (process {pid}) {reason}. If the machine ran out of memory, use a smaller"
        " compute.workers=. To resume from the last checkpoint, repeat the command."
    )


class Interrupted(Exception):
    """Error that `should_stop` ended the wait for a batch."""


class InterruptibleLoader:
    """Context manager and iterator over the batches of a loader.

    On exit, workers that do not end are killed, because a hanging worker would block this process
    for ever.

    While no batch comes, a timer calls `should_stop` every POLL_SECONDS. The timer's signal,
    SIGALRM, interrupts any wait of the main thread. torch's own time-out interrupts the wait for a
    worker's message, but not the wait for tensors, which are fetched from the worker over a socket.
    A worker that was stopped (by SIGSTOP) does not answer on the socket.

    Args:
        loader: The loader of the batches.
        should_stop: A function that tells whether to raise Interrupted. The function is called only
            in the main thread, because signals interrupt no other thread, and only inside `with`.

    Raises:
        Interrupted: From `next`, if `should_stop` returns true.
        LostError: From `next`, if a worker died while it handed over a batch.
    """

    def __init__(self, loader: DataLoader, should_stop: Callable[[], bool] = lambda: False) -> None:
        self.loader = loader
        self.should_stop = should_stop
        self.polls = False
        self.iterator: Any = None

    def __enter__(self) -> "InterruptibleLoader":
        self.polls = (
            self.loader.num_workers > 0 and threading.current_thread() is threading.main_thread()
        )
        if self.polls:
            self.handler = signal.signal(signal.SIGALRM, self._poll)
        return self

    def __exit__(self, *_: object) -> None:
        if self.polls:
            signal.signal(signal.SIGALRM, self.handler)
        if self.loader.num_workers and self.iterator is not None:
            _end_workers(self.iterator)

    def __iter__(self) -> Iterator[Batch]:
        if self.iterator is None:
            self.iterator = iter(self.loader)
        return self

    def __next__(self) -> Batch:
        if self.polls:
            signal.setitimer(signal.ITIMER_REAL, POLL_SECONDS, POLL_SECONDS)
        try:
            return cast(Batch, next(self.iterator))
        except (ConnectionError, EOFError):  # the worker may have died while it handed over a batch
            self._check_workers()
            raise
        except RuntimeError as error:
            # torch's message does not always contain the exit status
            statuses = [worker.exitcode for worker in getattr(self.iterator, "_workers", ())]
            if LOST.search(str(error)) and errno.EMFILE in statuses:
                raise UserError(too_many_files()) from None
            raise
        finally:
            if self.polls:
                signal.setitimer(signal.ITIMER_REAL, 0)

    def _poll(self, number: int, frame: FrameType | None) -> None:
        if self.should_stop():
            raise Interrupted

    def _check_workers(self) -> None:
        """Raise LostError if a worker has died.

        If a worker is killed while it hands over a batch, the connection is reset before torch's
        signal handler reports the death.
        """
        for worker in self.iterator._workers:
            worker.join(0.5)  # the worker may still be ending
            if not worker.is_alive():
                # `from None` hides the connection error, which the caller is handling
                raise _worker_error(worker.pid, f"ended with status {worker.exitcode}") from None


def _end_workers(iterator: Any) -> None:
    """End the workers of a loader's iterator within a few seconds.

    torch's `_shutdown_workers` waits 5 seconds for each worker. It also waits, without limit, for
    the thread that pins memory, and this thread may wait for a worker. So `_shutdown_workers` runs
    in another thread here, and workers that are alive after END_SECONDS are killed.

    Args:
        iterator: The iterator of a DataLoader with workers.
    """
    if iterator._worker_pids_set:
        # otherwise, torch's signal handler raises an error when the first worker has ended
        signal_handling._remove_worker_pids(id(iterator))
        iterator._worker_pids_set = False
    ending = threading.Thread(target=iterator._shutdown_workers, daemon=True)
    ending.start()
    ending.join(END_SECONDS)
    for worker in iterator._workers:
        worker.kill()
    deadline = time.monotonic() + END_SECONDS
    for worker in iterator._workers:
        worker.join(max(0.0, deadline - time.monotonic()))
        # A killed worker stays alive during a system call. At exit, this process would wait for all
        # workers in `_children` of multiprocessing
        if worker.is_alive():
            process._children.discard(worker)  # type: ignore[attr-defined]


def init_worker(number: int) -> None:
    """Prepare a worker process for errors and signals. A DataLoader calls this in each worker.

    The worker ignores signals that stop a run, such as Ctrl+C. A terminal sends these signals to
    all processes, but the training process needs workers to finish a step. Afterwards, the training
    process ends the worker.
    """
    Queue._on_queue_feeder_error = staticmethod(_exit_on_queue_error)  # type: ignore[attr-defined]
    sys.excepthook = _hide_too_many_files
    # unset the wake-up descriptor that a forked worker inherits: a signal in the worker would wake
    # up the training process
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    # Close all files but standard input, output and error before the worker ends. With too many
    # open files, multiprocessing could not remove its temporary folder and would print a traceback.
    # Higher priorities run first, and multiprocessing removes the folder at priority -100
    util.Finalize(None, os.closerange, (3, os.sysconf("SC_OPEN_MAX")), exitpriority=-99)
    if hasattr(signal, "sigwaitinfo"):  # not on macOS
        threading.Thread(target=_exit_when_told, args=(os.getppid(),), daemon=True).start()


def _hide_too_many_files(kind: Any, error: BaseException, trace: Any) -> None:
    """Print an error of a worker, unless the error is that too many files are open.

    The exit status of the worker tells the training process of too many open files.
    """
    if not has_too_many_files(error):
        sys.__excepthook__(kind, error, trace)


def _exit_on_queue_error(error: Exception, item: object) -> None:
    """Exit a worker when a batch does not fit into shared memory.

    Otherwise, the training process would wait for the batch for ever. The exit status EMFILE tells
    that too many files are open.

    Args:
        error: Why the batch could not be handed over.
        item: The batch, not used.
    """
    if has_too_many_files(error):
        os._exit(errno.EMFILE)
    sys.stderr.write(f"a data worker could not hand over a batch: {one_line(error)}\n")
    sys.stderr.flush()
    os._exit(1)


def _exit_when_told(parent: int) -> None:
    """Wait until the training process sends SIGTERM to this worker, then exit.

    The training process sends SIGTERM to a worker that does not end by itself. SIGTERM from other
    processes is ignored. For example, a batch system sends SIGTERM to all processes to stop a run,
    but the training process still needs workers to finish a step.

    Args:
        parent: The process id of the training process.
    """
    while signal.sigwaitinfo([signal.SIGTERM]).si_pid != parent:
        pass
    os._exit(0)
