"""What brings the batches: of steps by number, of a stream, of held-out pictures, of all of a split."""

import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from multiprocessing.queues import Queue
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from .. import counted
from ..processes.stopping import SIGNALS
from ..recipe import Data, LostError, UserError, in_a_line
from .batches import Batch, Pictures, Samples, Spread, samples
from .order import Windows
from .parts import Sharded, Source
from .stream import WINDOW, Cell, Cursor, Stream, Taken

SHARED = Path("/dev/shm")  # where batches of the workers lie until they are used
AHEAD = 4  # batches that each worker keeps ready
LOOK = 1.0  # seconds between looks at whether to go on waiting for data workers


def _windows(source: Source, data: Data, batch: int) -> Windows | None:
    return Windows(cast(Sharded, source).sizes_S, data.window, batch) if data.window else None


class _Steps:
    """What a DataLoader asks for the samples of each pass, from step `start` on."""

    def __init__(self, source: Source, data: Data, spread: Spread, seed: int, start: int, stop: int) -> None:
        self.length, self.spread, self.seed, self.start, self.stop = len(source), spread, seed, start, stop
        self.windows = _windows(source, data, spread.batch)

    def __iter__(self) -> Iterator[Samples]:
        size = self.spread.device_batch
        for step in range(self.start, self.stop):
            for micro in range(self.spread.accumulation):
                first = step * self.spread.batch + self.spread.chunk(micro) * size
                yield samples(first, size, self.length, self.seed, self.windows)


class _Asked(NamedTuple):
    """A pass of a stream: its pictures, brought along, and their samples."""

    cells: list[Cell]
    samples: Samples


class _Streamed(Dataset):
    """Pictures that are brought along -> Batch. One that cannot be read gives way to the next of its pass."""

    def __init__(self, stream: Stream, data: Data) -> None:
        self.told, self.data = stream.told, data

    def __getitems__(self, asked: _Asked) -> Batch:
        wanted = Samples(np.arange(len(asked.cells)), asked.samples.key)
        batch = Pictures(Taken(asked.cells, *self.told), self.data, train=True).__getitems__(wanted)
        return batch._replace(index=torch.from_numpy(asked.samples.index))


class Reading:
    """What this process reads of a stream, whatever its workers. A window is permuted by key; `data.window` pictures lie in the
    windows of all processes. A picture's index is its number among all that are read: the n-th of process p of P has p + nP.

    Raises:
        UserError: fewer shards than processes.
    """

    def __init__(self, stream: Stream, data: Data, spread: Spread) -> None:
        if stream.shards < spread.processes:
            text = f"{stream.shards} shards for {spread.processes} processes, which each need one; tools/shards.py makes more"
            raise UserError(f"data.stream=true: {stream.where}: {text}")
        self.stream, self.spread = stream, spread
        self.window = max(1, (data.window or WINDOW) // spread.processes)
        self.of_step = spread.batch // spread.processes

    def at(self, step: int) -> Cursor:
        """Where the window begins in which that step does, which was reached."""
        return self.stream.cursors[step * self.of_step // self.window]

    def go_to(self, step: int, cursor: Cursor) -> None:
        self.stream.cursors[step * self.of_step // self.window] = cursor

    def passes(self, seed: int, start: int, stop: int) -> Iterator[_Asked]:
        """Those of steps start .. stop-1, of which the first was reached."""
        pictures, spread = self._pictures(seed, start * self.of_step, stop * self.of_step), self.spread
        while some := list(islice(pictures, spread.device_batch)):
            number, cells = zip(*some, strict=True)
            index = spread.rank + spread.processes * np.array(number, np.int64)
            yield _Asked(list(cells), Samples(index, counted.key(seed, 0, index)))

    def _pictures(self, seed: int, first: int, last: int) -> Iterator[tuple[int, Cell]]:
        """This process's pictures number first .. last-1, each with its number."""
        size, spread = self.window, self.spread
        numbers = range(first // size, -(-last // size)) if first < last else range(0)
        for number, cells in zip(numbers, self.stream.windows(numbers, size, spread.rank, spread.processes), strict=False):
            order = counted.permute(np.arange(size), size, counted.key(seed, spread.rank, number))
            for place in range(max(0, first - number * size), min(size, last - number * size)):
                yield number * size + place, cells[order[place]]


def of_step(step: int, source: Source | Reading, data: Data, batch: int, seed: int) -> np.ndarray:
    """The indices of a step's global batch in the training split."""
    if isinstance(source, Reading):
        return np.arange(step * batch, (step + 1) * batch)
    return samples(step * batch, batch, len(source), seed, _windows(source, data, batch)).index


WORKER = re.compile(r"DataLoader worker \(pid(?:\(s\))? ([0-9, ]+)\) (.*)")  # torch's words, for any way in which one ends


@contextmanager
def workers_named() -> Iterator[None]:
    """Say in a line that a data worker was lost: torch raises wherever the main thread is just then.

    Raises:
        LostError: one was.
    """
    try:
        yield
    except RuntimeError as error:
        if found := WORKER.search(str(error)):
            why = found[2].split(".")[0].strip()
            text = f"data worker (process {found[1]}) {why}; if memory was short, say a smaller compute.workers="
            raise LostError(f"{text}; the same command goes on from the last checkpoint, if there is one") from None
        raise


def _as_is(batch: Batch) -> Batch:
    return batch


class Workers(NamedTuple):
    number: int
    ahead: int  # batches that each keeps ready
    limit: str  # why there are fewer than were requested; "" where there are not


def bounded(workers: int, batch_bytes: int) -> Workers:
    """The workers requested, each AHEAD batches ahead, or as many as the shared memory has room for.

    Workers hand over batches there; one that finds it full dies of SIGBUS. Containers often have
    64 MiB. Half of what is free is shared by the processes of this machine; the other half is for
    batches that are being used, and for everybody else.
    """
    if not workers or not SHARED.is_dir():
        return Workers(workers, AHEAD, "")
    free = shutil.disk_usage(SHARED).free
    room = free // 2 // int(os.environ.get("LOCAL_WORLD_SIZE", "1")) // max(1, batch_bytes)
    if room >= workers * AHEAD:
        return Workers(workers, AHEAD, "")
    count = min(workers, room)
    ahead = min(AHEAD, room // count) if count else 0
    fewer = f"{count} of {workers} data workers, each {ahead} of {AHEAD} batches ahead"
    return Workers(count, ahead, f"{SHARED} has {free / 2**20:,.0f} MiB free: {fewer}")


def batch_bytes(data: Data, spread: Spread) -> int:
    """Of a pass's pictures and what comes with each of them."""
    return spread.device_batch * (3 * data.size**2 + 64)


def _loader(pictures: Dataset, order: object, workers: int, size: int = 0) -> DataLoader:
    """`size`: bytes of a batch."""
    used = bounded(workers, size)
    return DataLoader(
        pictures,
        batch_sampler=order,  # type: ignore[arg-type]
        collate_fn=_as_is,  # type: ignore[arg-type]
        num_workers=used.number,
        pin_memory=torch.cuda.is_available(),
        generator=torch.Generator(),  # its own, so that no global random number is drawn
        prefetch_factor=used.ahead if used.number else None,
        worker_init_fn=_unstopped,
    )


class Interrupted(Exception):
    """Data are waited for no longer."""


class Patient:
    """The batches of a loader, whose workers are gone when its body ends: one that hangs would hold up this process for ever.
    While they bring nothing, `leave` is asked every LOOK seconds whether to go on waiting.

    Raises:
        Interrupted: not to.
    """

    def __init__(self, loader: DataLoader, leave: Callable[[], bool] = lambda: False) -> None:
        self.loader, self.leave = loader, leave
        self.left: Any = None

    def __enter__(self) -> "Patient":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        if shut := getattr(self.left, "_shutdown_workers", None):
            shut()  # asks each to end, waits 5 seconds, sends SIGTERM
        for worker in getattr(self.left, "_workers", ()):
            worker.kill()

    def __iter__(self) -> Iterator[Batch]:
        self.loader.timeout = LOOK if self.loader.num_workers else 0
        self.left = iter(self.loader)
        return self

    def __next__(self) -> Batch:
        while True:
            try:
                return cast(Batch, next(self.left))
            except RuntimeError as error:
                if not str(error).startswith("DataLoader timed out"):
                    raise
            if self.leave():
                raise Interrupted


def _unstopped(number: int) -> None:
    """In a worker: a signal to the whole group of processes is for the process that it works for, which still needs it."""
    Queue._on_queue_feeder_error = staticmethod(_end_unheard)  # type: ignore[attr-defined]
    signal.set_wakeup_fd(-1)  # that process's own
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    if hasattr(signal, "sigwaitinfo"):  # not on macOS
        threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()


def _end_unheard(error: Exception, item: object) -> None:
    """In a worker whose batch does not get into shared memory: end, as who waits for that batch would wait for ever."""
    sys.stderr.write(f"a data worker could not hand over its batch: {in_a_line(error)}\n")
    sys.stderr.flush()
    os._exit(1)


def _end_with_parent(parent: int) -> None:
    """Obey the SIGTERM that the loader sends to a worker that does not end by itself."""
    while signal.sigwaitinfo([signal.SIGTERM]).si_pid != parent:
        pass
    os._exit(0)


def training(
    source: Source | Reading, data: Data, spread: Spread, seed: int, start: int, stop: int, workers: int
) -> DataLoader:
    """This process's passes of steps start .. stop-1, `accumulation` to a step."""
    size = batch_bytes(data, spread)
    if isinstance(source, Reading):
        return _loader(_Streamed(source.stream, data), source.passes(seed, start, stop), workers, size)
    if data.window:  # a pass reads a stretch of the window, or its end and its beginning
        cast(Sharded, source).keep(data.window // spread.processes, 2 * spread.accumulation)
    return _loader(Pictures(source, data, train=True), _Steps(source, data, spread, seed, start, stop), workers, size)


def held_out(source: Source, data: Data, spread: Spread, most: int) -> list[Batch]:
    """This process's share of at most `most` fixed pictures, with keys that are the same in every run.

    Every picture is in exactly one process's share; the last batch of a share may be smaller.

    Raises:
        UserError: fewer pictures than processes.
    """
    count = min(most, len(source))
    if count < spread.processes:
        raise UserError(f"eval.pictures: {count} held-out pictures for {spread.processes} processes; each needs one")
    index = np.array_split(counted.permute(np.arange(count), len(source), counted.key(2)), spread.processes)[spread.rank]
    wanted = Samples(index, counted.key(2, index))
    size = spread.device_batch
    parts = [Samples(*(a[start : start + size] for a in wanted)) for start in range(0, len(index), size)]
    return list(_loader(Pictures(source, data, train=False), parts, 0))


def every(source: Source, data: Data, spread: Spread, workers: int) -> DataLoader:
    """This process's share of all pictures of a split, as `chosen`."""
    return chosen(source, np.arange(len(source)), data, spread, workers)


def chosen(source: Source, rows: np.ndarray, data: Data, spread: Spread, workers: int) -> DataLoader:
    """This process's share of these rows, each in exactly one process's share, as evaluation
    batches; images that cannot be read come without a label."""
    index = np.array_split(rows, spread.processes)[spread.rank]
    parts = [index[start : start + spread.device_batch] for start in range(0, len(index), spread.device_batch)]
    wanted = [Samples(i, counted.key(4, i)) for i in parts]
    return _loader(Pictures(source, data, train=False, strict=True), wanted, workers, batch_bytes(data, spread))


def first(source: Source, data: Data, seed: int, count: int, size: int = 256) -> Iterator[Batch]:
    """The first `count` training samples of the stream (at most one epoch of them), as training batches; where shards are read
    in windows, of a stream in windows of so many, which lie in few shards."""
    pictures, count = Pictures(source, data, train=True), min(count, len(source))
    windows = Windows(cast(Sharded, source).sizes_S, count, 1) if data.window and not data.stream else None
    for start in range(0, count, size):
        yield pictures.__getitems__(samples(start, min(size, count - start), len(source), seed, windows))
