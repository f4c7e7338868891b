"""What brings the batches: of steps by number, of a stream, of held-out images, of all of a
split."""

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

from .. import rng
from ..callbacks import SIGNALS
from ..config.schema import Data
from ..errors import LostError, UserError, one_line
from .base import ShardedSource, Source
from .batching import Batch, BatchLayout, ImageDataset, Samples, samples_at
from .sampler import WindowSampler
from .streaming import WINDOW, Cell, Cursor, InMemoryImages, Stream

SHARED = Path("/dev/shm")  # where batches of the workers lie until they are used
PREFETCH = 4  # batches that each worker keeps ready
POLL_SECONDS = 1.0  # seconds between looks at whether to go on waiting for data workers


def _windows(source: Source, data: Data, batch: int) -> WindowSampler | None:
    return (
        WindowSampler(cast(ShardedSource, source).sizes_S, data.window, batch)
        if data.window
        else None
    )


class _Steps:
    """What a DataLoader asks for the samples of each pass, from step `start` on."""

    def __init__(
        self,
        source: Source,
        data: Data,
        batch_layout: BatchLayout,
        seed: int,
        start: int,
        stop: int,
    ) -> None:
        self.length, self.batch_layout, self.seed, self.start, self.stop = (
            len(source),
            batch_layout,
            seed,
            start,
            stop,
        )
        self.windows = _windows(source, data, batch_layout.global_batch)

    def __iter__(self) -> Iterator[Samples]:
        size = self.batch_layout.device_batch
        for step in range(self.start, self.stop):
            for micro in range(self.batch_layout.accumulation_steps):
                first = (
                    step * self.batch_layout.global_batch
                    + self.batch_layout.chunk_index(micro) * size
                )
                yield samples_at(first, size, self.length, self.seed, self.windows)


class _StreamPass(NamedTuple):
    """A pass of a stream: its images, brought along, and their samples."""

    cells: list[Cell]
    samples: Samples


class _Streamed(Dataset):
    """Images that are brought along -> Batch. One that cannot be read gives way to the next of its
    pass."""

    def __init__(self, stream: Stream, data: Data) -> None:
        self.class_info, self.data = stream.class_info, data

    def __getitems__(self, stream_pass: _StreamPass) -> Batch:
        wanted = Samples(np.arange(len(stream_pass.cells)), stream_pass.samples.key)
        batch = ImageDataset(
            InMemoryImages(stream_pass.cells, *self.class_info), self.data, train=True
        ).__getitems__(wanted)
        return batch._replace(index=torch.from_numpy(stream_pass.samples.index))


class StreamReader:
    """What this process reads of a stream, whatever its workers. A window is permuted by key;
    `data.window` images lie in the windows of all processes. An image's index is its number among
    all that are read: the n-th of process p of P has p + nP.

    Raises:
        UserError: fewer shards than processes.
    """

    def __init__(self, stream: Stream, data: Data, batch_layout: BatchLayout) -> None:
        if stream.shards < batch_layout.processes:
            text = f"{stream.shards} shards for {batch_layout.processes} processes, which each need one; tools/shards.py makes more"
            raise UserError(f"data.stream=true: {stream.where}: {text}")
        self.stream, self.batch_layout = stream, batch_layout
        self.window = max(1, (data.window or WINDOW) // batch_layout.processes)
        self.of_step = batch_layout.global_batch // batch_layout.processes

    def cursor_at(self, step: int) -> Cursor:
        """Where the window begins in which that step does, which was reached."""
        return self.stream.cursors[step * self.of_step // self.window]

    def seek(self, step: int, cursor: Cursor) -> None:
        self.stream.cursors[step * self.of_step // self.window] = cursor

    def passes(self, seed: int, start: int, stop: int) -> Iterator[_StreamPass]:
        """Those of steps start .. stop-1, of which the first was reached."""
        images, batch_layout = (
            self._images(seed, start * self.of_step, stop * self.of_step),
            self.batch_layout,
        )
        while some := list(islice(images, batch_layout.device_batch)):
            number, cells = zip(*some, strict=True)
            index = batch_layout.rank + batch_layout.processes * np.array(number, np.int64)
            yield _StreamPass(list(cells), Samples(index, rng.key(seed, 0, index)))

    def _images(self, seed: int, first: int, last: int) -> Iterator[tuple[int, Cell]]:
        """This process's images number first .. last-1, each with its number."""
        size, batch_layout = self.window, self.batch_layout
        numbers = range(first // size, -(-last // size)) if first < last else range(0)
        for number, cells in zip(
            numbers,
            self.stream.windows(numbers, size, batch_layout.rank, batch_layout.processes),
            strict=False,
        ):
            order = rng.permute(np.arange(size), size, rng.key(seed, batch_layout.rank, number))
            for place in range(max(0, first - number * size), min(size, last - number * size)):
                yield number * size + place, cells[order[place]]


def step_indices(
    step: int, source: Source | StreamReader, data: Data, batch: int, seed: int
) -> np.ndarray:
    """The indices of a step's global batch in the training split."""
    if isinstance(source, StreamReader):
        return np.arange(step * batch, (step + 1) * batch)
    return samples_at(step * batch, batch, len(source), seed, _windows(source, data, batch)).index


# torch's words, for any way in which one ends
WORKER = re.compile(r"DataLoader worker \(pid(?:\(s\))? ([0-9, ]+)\) (.*)")


@contextmanager
def report_lost_workers() -> Iterator[None]:
    """Say in a line that a data worker was lost: torch raises wherever the main thread is just
    then.

    Raises:
        LostError: one was.
    """
    try:
        yield
    except RuntimeError as error:
        if found := WORKER.search(str(error)):
            why = found[2].split(".")[0].strip()
            text = f"data worker (process {found[1]}) {why}; if memory was short, say a smaller compute.workers="
            raise LostError(
                f"{text}; the same command goes on from the last checkpoint, if there is one"
            ) from None
        raise


def _as_is(batch: Batch) -> Batch:
    return batch


class Workers(NamedTuple):
    number: int
    prefetch: int  # batches that each keeps ready
    limit: str  # why there are fewer than were requested; "" where there are not


def limit_workers(workers: int, batch_bytes: int) -> Workers:
    """The workers requested, each PREFETCH batches ahead, or as many as the shared memory has room
    for.

    Workers hand over batches there; one that finds it full dies of SIGBUS. Containers often have
    64 MiB. Half of what is free is shared by the processes of this machine; the other half is for
    batches that are being used, and for everybody else.
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


def batch_bytes(data: Data, batch_layout: BatchLayout) -> int:
    """Of a pass's images and what comes with each of them."""
    return batch_layout.device_batch * (3 * data.size**2 + 64)


def _loader(images: Dataset, order: object, workers: int, size: int = 0) -> DataLoader:
    """`size`: bytes of a batch."""
    used = limit_workers(workers, size)
    return DataLoader(
        images,
        batch_sampler=order,  # type: ignore[arg-type]
        collate_fn=_as_is,  # type: ignore[arg-type]
        num_workers=used.number,
        pin_memory=torch.cuda.is_available(),
        generator=torch.Generator(),  # its own, so that no global random number is drawn
        prefetch_factor=used.prefetch if used.number else None,
        worker_init_fn=_init_worker,
    )


class Interrupted(Exception):
    """Data are waited for no longer."""


class InterruptibleLoader:
    """The batches of a loader, whose workers are gone when its body ends: one that hangs would hold
    up this process for ever. While they bring nothing, `should_stop` is called every
    POLL_SECONDS.

    Raises:
        Interrupted: not to.
    """

    def __init__(self, loader: DataLoader, should_stop: Callable[[], bool] = lambda: False) -> None:
        self.loader, self.should_stop = loader, should_stop
        self.left: Any = None

    def __enter__(self) -> "InterruptibleLoader":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        if shut := getattr(self.left, "_shutdown_workers", None):
            shut()  # asks each to end, waits 5 seconds, sends SIGTERM
        for worker in getattr(self.left, "_workers", ()):
            worker.kill()

    def __iter__(self) -> Iterator[Batch]:
        self.loader.timeout = POLL_SECONDS if self.loader.num_workers else 0
        self.left = iter(self.loader)
        return self

    def __next__(self) -> Batch:
        while True:
            try:
                return cast(Batch, next(self.left))
            except RuntimeError as error:
                if not str(error).startswith("DataLoader timed out"):
                    raise
            if self.should_stop():
                raise Interrupted


def _init_worker(number: int) -> None:
    """In a worker: a signal to the whole group of processes is for the process that it works for,
    which still needs it."""
    Queue._on_queue_feeder_error = staticmethod(_exit_on_queue_error)  # type: ignore[attr-defined]
    signal.set_wakeup_fd(-1)  # that process's own
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    if hasattr(signal, "sigwaitinfo"):  # not on macOS
        threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()


def _exit_on_queue_error(error: Exception, item: object) -> None:
    """In a worker whose batch does not get into shared memory: end, as who waits for that batch
    would wait for ever."""
    sys.stderr.write(f"a data worker could not hand over its batch: {one_line(error)}\n")
    sys.stderr.flush()
    os._exit(1)


def _end_with_parent(parent: int) -> None:
    """Obey the SIGTERM that the loader sends to a worker that does not end by itself."""
    while signal.sigwaitinfo([signal.SIGTERM]).si_pid != parent:
        pass
    os._exit(0)


def training_loader(
    source: Source | StreamReader,
    data: Data,
    batch_layout: BatchLayout,
    seed: int,
    start: int,
    stop: int,
    workers: int,
) -> DataLoader:
    """This process's passes of steps start .. stop-1, `accumulation_steps` to a step."""
    size = batch_bytes(data, batch_layout)
    if isinstance(source, StreamReader):
        return _loader(
            _Streamed(source.stream, data), source.passes(seed, start, stop), workers, size
        )
    if data.window:  # a pass reads a stretch of the window, or its end and its beginning
        cast(ShardedSource, source).set_cache_size(
            data.window // batch_layout.processes, 2 * batch_layout.accumulation_steps
        )
    return _loader(
        ImageDataset(source, data, train=True),
        _Steps(source, data, batch_layout, seed, start, stop),
        workers,
        size,
    )


def held_out_batches(
    source: Source, data: Data, batch_layout: BatchLayout, most: int
) -> list[Batch]:
    """This process's share of at most `most` fixed images, with keys that are the same in every
    run.

    Every image is in exactly one process's share; the last batch of a share may be smaller.

    Raises:
        UserError: fewer images than processes.
    """
    count = min(most, len(source))
    if count < batch_layout.processes:
        raise UserError(
            f"eval.images: {count} held-out images for {batch_layout.processes} processes; each needs one"
        )
    index = np.array_split(
        rng.permute(np.arange(count), len(source), rng.key(2)), batch_layout.processes
    )[batch_layout.rank]
    wanted = Samples(index, rng.key(2, index))
    size = batch_layout.device_batch
    parts = [
        Samples(*(a[start : start + size] for a in wanted)) for start in range(0, len(index), size)
    ]
    return list(_loader(ImageDataset(source, data, train=False), parts, 0))


def evaluation_loader(
    source: Source, data: Data, batch_layout: BatchLayout, workers: int
) -> DataLoader:
    """This process's share of all images of a split, as `rows_loader`."""
    return rows_loader(source, np.arange(len(source)), data, batch_layout, workers)


def rows_loader(
    source: Source, rows: np.ndarray, data: Data, batch_layout: BatchLayout, workers: int
) -> DataLoader:
    """This process's share of these rows, each in exactly one process's share, as evaluation
    batches; images that cannot be read come without a label."""
    index = np.array_split(rows, batch_layout.processes)[batch_layout.rank]
    parts = [
        index[start : start + batch_layout.device_batch]
        for start in range(0, len(index), batch_layout.device_batch)
    ]
    wanted = [Samples(i, rng.key(4, i)) for i in parts]
    return _loader(
        ImageDataset(source, data, train=False, strict=True),
        wanted,
        workers,
        batch_bytes(data, batch_layout),
    )


def first_batches(
    source: Source, data: Data, seed: int, count: int, size: int = 256
) -> Iterator[Batch]:
    """The first `count` training samples of the stream (at most one epoch of them), as training
    batches; where shards are read in windows, of a stream in windows of so many, which lie in few
    shards."""
    images, count = ImageDataset(source, data, train=True), min(count, len(source))
    windows = (
        WindowSampler(cast(ShardedSource, source).sizes_S, count, 1)
        if data.window and not data.stream
        else None
    )
    for start in range(0, count, size):
        yield images.__getitems__(
            samples_at(start, min(size, count - start), len(source), seed, windows)
        )
