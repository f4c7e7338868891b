"""Which samples make up global step s, this process's share of them, and the loader that brings them.

Step s takes positions sB .. sB+B-1 of an endless stream of permuted epochs (permuted whole or, of data in shards, in windows),
so every step is reached at once and none depends on history. The global batch is a row of chunks of the device batch: process
p of P takes chunks p, P+p, 2P+p, ...
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from .. import counted
from ..processes.stopping import SIGNALS
from ..recipe import Data, UserError
from . import pictures
from .order import Windows
from .parts import Sharded, Source
from .stream import WINDOW, Cell, Cursor, Stream, Taken

REPLACEMENTS = 20  # pictures tried for one that cannot be read


class Batch(NamedTuple):
    """`image` uint8 (B, 3, H, W); `label` int64 (B,), -1 for none; `index` int64 (B,), the sample's position in the
    split; `key` int64 (B,), the sample's key of this epoch. `labelled`, where the engine has counted: the labelled pictures of
    the global batch over its number of passes, so that the passes' sums of losses over it average to the global mean.
    `unread` names the pictures that could not be read and were replaced by the next in the split. Where pictures are mixed in
    pairs: `partner` int64 (B,), the other's label, and `share` float32 (B,), how much of the picture is its own."""

    image: Tensor
    label: Tensor
    index: Tensor  # type: ignore[assignment]
    key: Tensor
    labelled: Tensor | None = None
    unread: tuple[str, ...] = ()
    partner: Tensor | None = None
    share: Tensor | None = None

    def map(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        """Every tensor of the samples changed."""
        names = ("image", "label", "index", "key", "partner", "share")
        changed: dict[str, Any] = {name: change(x) for name in names if (x := getattr(self, name)) is not None}
        return self._replace(**changed)


class Samples(NamedTuple):
    index: np.ndarray  # type: ignore[assignment]
    key: np.ndarray


def samples(first: int, count: int, length: int, seed: int, windows: Windows | None = None) -> Samples:
    """The samples at stream positions first .. first+count-1 of a split of `length` pictures."""
    epoch, place = np.divmod(first + np.arange(count, dtype=np.int64), length)
    key = counted.key(seed, epoch)
    index = windows.rows(place, key) if windows else counted.permute(place, length, key)
    return Samples(index, counted.key(seed, epoch, index))


def _windows(source: Source, data: Data, batch: int) -> Windows | None:
    return Windows(cast(Sharded, source).sizes_S, data.window, batch) if data.window else None


def of_step(step: int, source: "Source | Reading", data: Data, batch: int, seed: int) -> np.ndarray:
    """The indices of a step's global batch in the training split."""
    if isinstance(source, Reading):
        return np.arange(step * batch, (step + 1) * batch)
    return samples(step * batch, batch, len(source), seed, _windows(source, data, batch)).index


def _partners(wanted: Samples, length: int) -> Samples:
    """For each sample the one that it is mixed with, from the sample's key alone."""
    key = counted.stream(wanted.key, "partner")
    return Samples(counted.integers(key, 0, length), counted.bits(key, 1))


class Spread(NamedTuple):
    """How the global batch lies on processes: batch = device_batch * processes * accumulation."""

    batch: int
    device_batch: int
    rank: int
    processes: int

    @property
    def accumulation(self) -> int:
        return self.batch // (self.device_batch * self.processes)

    def chunk(self, micro: int) -> int:
        """The place in the global batch of this process's chunk number `micro`."""
        return micro * self.processes + self.rank


def spread(batch: int, wanted: int | None, limit: int, rank: int, processes: int) -> Spread:
    """The largest device batch up to `limit` (or the wanted one) that divides the global batch over the processes.

    Raises:
        UserError: it does not divide.
    """
    if batch % processes:
        raise UserError(f"optim.batch={batch}: not divisible by {processes} processes")
    share = batch // processes
    if wanted and share % wanted:
        raise UserError(f"compute.batch={wanted}: {processes} processes x {wanted} do not divide optim.batch={batch}")
    return Spread(batch, wanted or max(d for d in range(1, min(share, limit) + 1) if share % d == 0), rank, processes)


class Pictures(Dataset):
    """Samples -> Batch; `train` chooses the training or the evaluation pipeline. A picture that cannot be read gives way to the
    next one, or with `strict` keeps its place without a label, so that nothing is measured on it."""

    def __init__(self, source: Source, data: Data, train: bool, strict: bool = False) -> None:
        self.source, self.data, self.train, self.strict = source, data, train, strict

    def __getitems__(self, wanted: Samples) -> Batch:
        batch, data = self._unmixed(wanted), self.data
        if not self.train or max(data.mixup, data.cutmix) == 0:
            return batch
        other = self._unmixed(_partners(wanted, len(self.source)))
        image, share_B = pictures.mix(batch.image, other.image, wanted.key, data.mixup, data.cutmix)
        label_B = torch.where(other.label < 0, -1, batch.label)  # half a label is none
        return batch._replace(
            image=image, label=label_B, partner=other.label, share=share_B, unread=batch.unread + other.unread
        )

    def _unmixed(self, wanted: Samples) -> Batch:
        raw, label = self.source.fetch(wanted.index)
        unread: list[str] = []
        images = []
        for i, index in enumerate(wanted.index.tolist()):
            known = len(unread)
            image, label[i] = self._read(raw[i], int(label[i]), index, unread)
            if self.strict and len(unread) > known:
                label[i] = -1
            images.append(image)
        if self.train:
            image = pictures.training(images, wanted.key, self.data.size, self.data.crop_area, self.data.flip)
        else:
            image = pictures.evaluation(images, self.data.size, self.data.eval_crop)
        label_B, index_B, key_B = (torch.from_numpy(a) for a in (label, wanted.index, wanted.key))
        return Batch(image, label_B, index_B, key_B, unread=tuple(unread))

    def _read(self, raw: bytes | np.ndarray, label: int, index: int, unread: list[str]) -> tuple[Tensor, int]:
        """The picture at `index` and its label, or of the pictures behind it the first that can be read."""
        tries = min(REPLACEMENTS, len(self.source))
        for attempt in range(tries):
            try:
                return pictures.decode(raw), label
            except ValueError as error:
                text = f"{self.source.name(index)}: {error}"
                if attempt == 0:  # those behind it are named when their own turn comes
                    unread.append(text)
                index = (index + 1) % len(self.source)
                (raw,), (label,) = self.source.fetch(np.array([index]))
        raise UserError(f"data={self.data.name}: {tries} pictures in a row cannot be read, the last {text}")


def check_unread(unread: int, seen: int, data: Data, last: str) -> None:
    """That no more pictures than the recipe's share, of 1,000 at least, could not be read.

    Raises:
        UserError: they are more.
    """
    if unread > data.unreadable * max(seen, 1000):
        raise UserError(f"data.unreadable={data.unreadable}: {unread} of {seen} pictures cannot be read, the last {last}")


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


def _as_is(batch: Batch) -> Batch:
    return batch


def _loader(pictures: Dataset, order: object, workers: int) -> DataLoader:
    return DataLoader(
        pictures,
        batch_sampler=order,  # type: ignore[arg-type]
        collate_fn=_as_is,  # type: ignore[arg-type]
        num_workers=workers,
        pin_memory=torch.cuda.is_available(),
        generator=torch.Generator(),  # its own, so that no global random number is drawn
        prefetch_factor=4 if workers else None,
        worker_init_fn=_unstopped,
    )


def _unstopped(number: int) -> None:
    """In a worker: a signal to the whole group of processes is for the process that it works for, which still needs it."""
    signal.set_wakeup_fd(-1)  # that process's own
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    if hasattr(signal, "sigwaitinfo"):  # not on macOS
        threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()


def _end_with_parent(parent: int) -> None:
    """Obey the SIGTERM that the loader sends to a worker that does not end by itself."""
    while signal.sigwaitinfo([signal.SIGTERM]).si_pid != parent:
        pass
    os._exit(0)


def training(
    source: Source | Reading, data: Data, spread: Spread, seed: int, start: int, stop: int, workers: int
) -> DataLoader:
    """This process's passes of steps start .. stop-1, `accumulation` to a step."""
    if isinstance(source, Reading):
        return _loader(_Streamed(source.stream, data), source.passes(seed, start, stop), workers)
    if data.window:  # a pass reads a stretch of the window, or its end and its beginning
        cast(Sharded, source).keep(data.window // spread.processes, 2 * spread.accumulation)
    return _loader(Pictures(source, data, train=True), _Steps(source, data, spread, seed, start, stop), workers)


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
    """This process's share of all pictures of a split, each in exactly one process's share, as evaluation batches; those that
    cannot be read come without a label."""
    index = np.array_split(np.arange(len(source)), spread.processes)[spread.rank]
    parts = [index[start : start + spread.device_batch] for start in range(0, len(index), spread.device_batch)]
    return _loader(Pictures(source, data, train=False, strict=True), [Samples(i, counted.key(4, i)) for i in parts], workers)


def first(source: Source, data: Data, seed: int, count: int, size: int = 256) -> Iterator[Batch]:
    """The first `count` training samples of the stream (at most one epoch of them), as training batches; where shards are read
    in windows, of a stream in windows of so many, which lie in few shards."""
    pictures, count = Pictures(source, data, train=True), min(count, len(source))
    windows = Windows(cast(Sharded, source).sizes_S, count, 1) if data.window and not data.stream else None
    for start in range(0, count, size):
        yield pictures.__getitems__(samples(start, min(size, count - start), len(source), seed, windows))
