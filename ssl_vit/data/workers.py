"""The worker processes of data loaders: how many fit, what happens where one is lost or hangs, and
how they end."""

import os
import re
import shutil
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from multiprocessing import process
from multiprocessing.queues import Queue
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, cast

from torch.utils.data import DataLoader
from torch.utils.data._utils import signal_handling

from ..callbacks import SIGNALS
from ..errors import LostError, one_line
from .batching import Batch

SHARED = Path("/dev/shm")  # where workers put batches until they are used
PREFETCH = 4  # batches that each worker keeps ready
POLL_SECONDS = 1.0  # between calls of should_stop while no batch comes
# Seconds; a launcher that forwards a signal kills its processes 30 seconds later.
REPLACE_AFTER = 5.0  # without a batch, where a stop is waited for
END_SECONDS = 5.0  # that workers have to end
END = object()
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


class RepeatableOrder:
    """A batch sampler: the given items. Another `iter` begins with those whose batches were not
    taken, so that a loader can go on with new workers."""

    def __init__(self, items: Iterable[Any]) -> None:
        self.items = items
        self.pending: deque[Any] = deque()
        self.lock = threading.Lock()  # an earlier iteration may still be in a thread
        self.latest: object = None

    def __iter__(self) -> Iterator[Any]:
        with self.lock:
            self.items = chain(tuple(self.pending), self.items)
            self.pending.clear()
            self.latest = this = object()
        while True:
            with self.lock:
                item = next(self.items, END) if self.latest is this else END
                if item is END:
                    return
                self.pending.append(item)
            yield item

    def take(self) -> None:
        """The batch of the first pending item has come."""
        self.pending.popleft()


class _Reader:
    """Calls `next` of a loader's iterator in a thread of its own, as it may never return: the
    tensors of a batch are fetched over a socket of the worker that made them, and a worker that is
    stopped does not answer."""

    def __init__(self, iterator: Any) -> None:
        self.iterator = iterator
        self.closed = False
        self.requests: SimpleQueue[bool] = SimpleQueue()  # False: end
        self.answers: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def close(self, seconds: float) -> bool:
        """End the thread; whether it ended within so many seconds."""
        self.closed = True
        self.requests.put(False)
        self.thread.join(seconds)
        return not self.thread.is_alive()

    def _run(self) -> None:
        while self.requests.get():
            try:
                self.answers.put((self._next(), None))
            except BaseException as error:  # the main thread raises it
                self.answers.put((None, error))

    def _next(self) -> Any:
        while True:
            try:
                return next(self.iterator)
            except RuntimeError as error:
                if self.closed or not str(error).startswith("DataLoader timed out"):
                    raise


@dataclass(eq=False, repr=False)
class InterruptibleLoader:
    """Context manager and iterator: the batches of a loader. While workers bring no batch,
    `should_stop` is called every POLL_SECONDS. On exit the workers are killed if they do not end,
    since one that hangs would block this process for ever.

    Args:
        loader: whose batch sampler is a RepeatableOrder where `is_urgent` is given.
        should_stop: whether to raise Interrupted.
        is_urgent: whether workers that have brought nothing for REPLACE_AFTER seconds are to be
            replaced, once: other processes wait for this one before they can stop.

    Raises:
        Interrupted: from `next`, where `should_stop` is true.
        LostError: from `next`; a worker died while it handed over a batch.
    """

    loader: DataLoader
    should_stop: Callable[[], bool] = lambda: False
    is_urgent: Callable[[], bool] = lambda: False
    iterator: Any = field(init=False, default=None)
    reader: _Reader | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.order = self.loader.batch_sampler

    def __enter__(self) -> "InterruptibleLoader":
        return self

    def __exit__(self, *_: object) -> None:
        self._end_workers()

    def __iter__(self) -> Iterator[Batch]:
        if self.iterator is None:
            self.loader.timeout = POLL_SECONDS if self.loader.num_workers else 0
            self._start()
        return self

    def _start(self) -> None:
        self.iterator = iter(self.loader)
        if self.loader.num_workers:
            self.reader = _Reader(self.iterator)

    def __next__(self) -> Batch:
        batch = next(self.iterator) if self.reader is None else self._wait(self.reader)
        if isinstance(self.order, RepeatableOrder):
            self.order.take()
        return cast(Batch, batch)

    def _wait(self, reader: _Reader) -> Any:
        reader.requests.put(True)
        urgent = 0.0
        while True:
            try:
                batch, error = reader.answers.get(timeout=POLL_SECONDS)
            except Empty:
                if self.should_stop():
                    self._end_workers(stuck=True)
                    raise Interrupted from None
                urgent += POLL_SECONDS * self.is_urgent()
                if urgent >= REPLACE_AFTER and isinstance(self.order, RepeatableOrder):
                    return self._replace_workers()
                continue
            if isinstance(error, ConnectionError | EOFError):
                self._check_workers()
            if error is not None:
                raise error
            return batch

    def _replace_workers(self) -> Any:
        """The next batch, from new workers."""
        self.is_urgent = lambda: False
        self._end_workers(stuck=True)
        self._start()
        assert self.reader is not None
        return self._wait(self.reader)

    def _end_workers(self, stuck: bool = False) -> None:
        """End the workers within seconds. torch's own way waits 5 seconds for each of them, and for
        ever for its pinning thread, which may wait for one of them."""
        if self.reader is None:
            return
        _forget(self.iterator)
        idle = self.reader.close(0 if stuck else 2 * POLL_SECONDS)
        self.reader = None
        if stuck or not idle:
            _kill(self.iterator)
        ending = threading.Thread(target=self.iterator._shutdown_workers, daemon=True)
        ending.start()
        ending.join(END_SECONDS)
        _kill(self.iterator)

    def _check_workers(self) -> None:
        """A batch's tensors are fetched over a socket of the worker that made them: one that is
        killed in between resets it, before torch's signal handler knows of the death."""
        for worker in getattr(self.iterator, "_workers", ()):
            worker.join(0.5)
            if not worker.is_alive():
                raise _lost(worker.pid, f"ended with status {worker.exitcode}") from None


def _forget(iterator: Any) -> None:
    """Keep torch's signal handler from raising an error where a worker of the iterator ends: in the
    main thread, amid what ends the others."""
    if iterator._worker_pids_set:
        signal_handling._remove_worker_pids(id(iterator))
        iterator._worker_pids_set = False


def _kill(iterator: Any) -> None:
    """Kill the workers of a loader's iterator."""
    for worker in iterator._workers:
        worker.kill()
    until = time.monotonic() + END_SECONDS
    for worker in iterator._workers:
        worker.join(max(0.0, until - time.monotonic()))
        if worker.is_alive():  # within a system call; the end of this process would wait for it
            process._children.discard(worker)  # type: ignore[attr-defined]


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
