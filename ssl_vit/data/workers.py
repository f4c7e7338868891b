"""The worker processes of data loaders: how many fit, what happens where one is lost or hangs, and
how they end."""

import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.queues import Queue
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, cast

from torch.utils.data import DataLoader

from ..callbacks import SIGNALS
from ..errors import LostError, one_line
from .batching import Batch

SHARED = Path("/dev/shm")  # where workers put batches until they are used
PREFETCH = 4  # batches that each worker keeps ready
POLL_SECONDS = 1.0  # between calls of should_stop while no batch comes
# torch's message for any way in which a worker ends
LOST = re.compile(r"DataLoader worker \(pid(?:\(s\))? ([0-9, ]+)\) (.*)")


class Workers(NamedTuple):
    """The workers that a loader starts."""

    number: int
    prefetch: int  # batches that each keeps ready
    limit: str  # why they are fewer than requested; "" where they are not


def limit_workers(workers: int, batch_bytes: int) -> Workers:
    """The requested workers, each PREFETCH batches ahead, or as many as fit into shared memory.

    A worker that finds shared memory full dies of SIGBUS, and containers often have 64 MiB of it.
    Half of what is free is divided among the processes of this machine; the other half is left for
    batches in use and for other programs.
    """
    if not workers or not SHARED.is_dir():
        return Workers(workers, PREFETCH, "")
    free = shutil.disk_usage(SHARED).free
    room = free // 2 // int(os.environ.get("LOCAL_WORLD_SIZE", "1")) // max(1, batch_bytes)
    if room >= workers * PREFETCH:
        return Workers(workers, PREFETCH, "")
    count = min(workers, room)
    prefetch = min(PREFETCH, room // count) if count else 0
    fewer = f"{count} of {workers} data workers, each {prefetch} of {PREFETCH} batches ahead"
    return Workers(count, prefetch, f"{SHARED} has {free / 2**20:,.0f} MiB free: {fewer}")


@contextmanager
def report_lost_workers() -> Iterator[None]:
    """Turn torch's error about a lost data worker into one line. It is raised by a signal handler,
    wherever the main thread is.

    Raises:
        LostError: a worker was lost.
    """
    try:
        yield
    except RuntimeError as error:
        found = LOST.search(str(error))
        if found is None:
            raise
        raise _lost(found[1], found[2].split(".")[0].strip()) from None


def _lost(pid: object, reason: str) -> LostError:
    return LostError(
        f"data worker (process {pid}) {reason}; if memory was short, use a smaller"
        " compute.workers=; the same command resumes from the last checkpoint, if there is one"
    )


class Interrupted(Exception):
    """Waiting for a batch was ended by `should_stop`."""


class InterruptibleLoader:
    """Context manager and iterator: the batches of a loader. While no batch comes, `should_stop` is
    called every POLL_SECONDS. On exit the workers are killed, since one that hangs would block this
    process for ever.

    Raises:
        Interrupted: from `next`, where `should_stop` is true.
        LostError: from `next`; a worker died while it handed over a batch.
    """

    def __init__(self, loader: DataLoader, should_stop: Callable[[], bool] = lambda: False) -> None:
        self.loader = loader
        self.should_stop = should_stop
        self.iterator: Any = None

    def __enter__(self) -> "InterruptibleLoader":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        shut_down = getattr(self.iterator, "_shutdown_workers", None)
        if shut_down is not None:
            shut_down()  # asks each to end, waits 5 seconds, sends SIGTERM
        for worker in getattr(self.iterator, "_workers", ()):
            worker.kill()

    def __iter__(self) -> Iterator[Batch]:
        self.loader.timeout = POLL_SECONDS if self.loader.num_workers else 0
        self.iterator = iter(self.loader)
        return self

    def __next__(self) -> Batch:
        while True:
            try:
                return cast(Batch, next(self.iterator))
            except RuntimeError as error:
                if not str(error).startswith("DataLoader timed out"):
                    raise
            except (ConnectionError, EOFError):
                self._check_workers()
                raise
            if self.should_stop():
                raise Interrupted

    def _check_workers(self) -> None:
        """A batch's tensors are fetched over a socket of the worker that made them: one that is
        killed in between resets it, before torch's signal handler knows of the death."""
        for worker in getattr(self.iterator, "_workers", ()):
            worker.join(0.5)
            if not worker.is_alive():
                raise _lost(worker.pid, f"ended with status {worker.exitcode}") from None


def init_worker(number: int) -> None:
    """Runs in a worker: block the signals that stop a run. A terminal sends them to the whole
    process group, and the training process still needs its workers then."""
    Queue._on_queue_feeder_error = staticmethod(_exit_on_queue_error)  # type: ignore[attr-defined]
    signal.set_wakeup_fd(-1)  # inherited from the training process
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    if hasattr(signal, "sigwaitinfo"):  # not on macOS
        threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()


def _exit_on_queue_error(error: Exception, item: object) -> None:
    """Runs in a worker whose batch does not fit into shared memory: exit, since the training
    process would wait for that batch for ever."""
    sys.stderr.write(f"a data worker could not hand over its batch: {one_line(error)}\n")
    sys.stderr.flush()
    os._exit(1)


def _end_with_parent(parent: int) -> None:
    """End at the training process's SIGTERM, which the loader sends to a worker that does not end
    by itself; others are ignored."""
    while signal.sigwaitinfo([signal.SIGTERM]).si_pid != parent:
        pass
    os._exit(0)
