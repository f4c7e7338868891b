"""Watchdog over the processes of a run: names the one that died, hangs or failed, and ends the
others. A single process is watched by a thread of its own.

Every INTERVAL seconds each rank writes a heartbeat with its progress counter to the process group's
key-value store on the CPU. Every rank counts up before each collective, in the same order, so the
lowest count identifies the straggler. Rank 0 watches all ranks; the others watch rank 0 and read
its verdict.
"""

import json
import multiprocessing
import os
import shutil
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from math import inf
from types import TracebackType
from typing import Any, NamedTuple, TypeVar, cast

from torch import distributed

from ..errors import LostError, ReportedError, one_line
from .preemption import exit_process, key_value_store

LOST = LostError.status  # exit status: another process was lost; the same command resumes
INTERVAL = 2.0  # seconds between heartbeats
DEAD_AFTER = 60.0  # seconds without one, or the patience where that is less
DEAD_AFTER_ERROR = 3 * INTERVAL  # the same once a connection to another process has broken
# Limits as multiples of the patience, which is for one rank behind the others within a step.
BETWEEN_STEPS_FACTOR = 6  # between steps, where checkpoints are written and evaluators run
STALLED_FACTOR = 3  # within a step, where no rank moves at all
SHARED = "/dev/shm"  # through which data workers hand over batches
FINISHED = "left"
RESUME_HINT = "the same command resumes from the last checkpoint"
END = object()
Item = TypeVar("Item")


class Heartbeat(NamedTuple):
    """What a rank writes to the store."""

    beats: int = 0
    ticks: int = 0  # progress counter
    allowed: float = inf  # seconds that it may stay behind others
    host: str = "?"
    end: str = ""  # FINISHED or the error by which it ended


class PeerStatus(NamedTuple):
    """The last new heartbeat of a rank, and when it arrived (time.monotonic)."""

    heartbeat: Heartbeat
    received_at: float
    moved_at: float  # when its ticks last changed


class Watchdog:
    """Context manager that watches the processes while its body runs.

    The time before the first step is not limited.

    Args:
        rank: of this process.
        processes: of the run.
        patience: seconds that a rank may stay behind the others within a step, and that a single
            process waits for a batch.
    """

    def __init__(self, rank: int, processes: int, patience: float) -> None:
        self.rank = rank
        self.processes = processes
        self.patience = patience
        self.dead_after = min(DEAD_AFTER, patience)
        self.sent = self.ticks = self.step = self.batches_read = 0
        self.waiting_for_data = False
        self.allowed = inf
        self.verdict = ""
        self.end = FINISHED
        now = time.monotonic()
        self.peers = {
            other: PeerStatus(Heartbeat(), now, now)
            for other in (range(processes) if rank == 0 else (0,))
        }
        self.done = threading.Event()
        self.exchange_thread = threading.Thread(target=self._exchange_loop, daemon=True)
        self.watch_thread = threading.Thread(
            target=self._watch if processes > 1 else self._watch_alone, daemon=True
        )

    def __enter__(self) -> "Watchdog":
        if self.processes > 1:
            self.store: Any = key_value_store("watchdog")
            self.exchange_thread.start()
        self.watch_thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        """Report how this rank ended. A RuntimeError may be a connection broken by a lost process:
        wait until the watch has named it."""
        if self.processes == 1:
            self.done.set()
            self.watch_thread.join()
            return
        if isinstance(error, RuntimeError):
            self.dead_after = min(self.dead_after, DEAD_AFTER_ERROR)
            time.sleep(self.dead_after + 3 * INTERVAL)  # the watch ends this process if it is so
        if error is not None and not isinstance(error, SystemExit | ReportedError):
            self.end = one_line(error)
        self.done.set()
        self.watch_thread.join()

    def tick(self) -> None:
        """Count progress of this rank; called before each collective."""
        self.ticks += 1

    def track(self, items: Iterable[Item], step: int) -> Iterator[Item]:
        """Yield the passes of the steps from `step` on. From the request of a pass until
        `note_step` this rank counts as within a step."""
        self.step = step
        self._within()
        for item in self.watch_loader(items):
            self.tick()
            yield item
            self._within()

    def watch_loader(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yield a loader's items; a single process waits `patience` seconds for each at most."""
        left = iter(items)
        while True:
            with self._waiting():
                item = next(left, END)
            if item is END:
                return
            yield cast(Item, item)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        self.batches_read += 1
        self.waiting_for_data = True
        try:
            yield
        finally:
            self.waiting_for_data = False

    def _within(self) -> None:
        self.allowed = self.patience
        self.tick()

    def note_step(self, step: int) -> None:
        """Mark the end of a step; the time until the next one has the longer limit."""
        self.step = step
        self.allowed = BETWEEN_STEPS_FACTOR * self.patience
        self.tick()

    def _exchange_loop(self) -> None:
        """Write and read heartbeats. Blocks while rank 0, which hosts the store, is stopped."""
        with suppress(distributed.DistError):
            self.store = self.store.clone()  # a connection of its own
        while True:
            with suppress(distributed.DistError):
                self._exchange()
            if self.done.wait(INTERVAL):
                break
        self._send(self.end)
        if self.rank == 0 and self.end != FINISHED:
            self._linger()

    def _linger(self) -> None:
        """Keep rank 0, which hosts the store, alive until the others have read how it ended."""
        for _ in range(20):
            if all(peer.heartbeat.end for rank, peer in self.peers.items() if rank):
                return
            time.sleep(INTERVAL / 10)
            for rank in self.peers:
                self._receive(rank, self._get(str(rank)))

    def _exchange(self) -> None:
        self.sent += 1
        self._send()
        for rank in self.peers:
            self._receive(rank, self._get(str(rank)))
        self.verdict = self._get("verdict")

    def _send(self, end: str = "") -> None:
        heartbeat = Heartbeat(self.sent, self.ticks, self.allowed, socket.gethostname(), end)
        self._set(str(self.rank), json.dumps(heartbeat))

    def _set(self, key: str, text: str) -> None:
        with suppress(distributed.DistError):  # the store went with the first process
            self.store.set(key, text)

    def _get(self, key: str) -> str:
        return self.store.get(key).decode() if self.store.check([key]) else ""

    def _receive(self, rank: int, text: str) -> None:
        last = self.peers[rank]
        now = time.monotonic()
        heartbeat = Heartbeat(*json.loads(text)) if text else Heartbeat()
        if heartbeat != last.heartbeat:
            moved = heartbeat.ticks != last.heartbeat.ticks
            self.peers[rank] = PeerStatus(heartbeat, now, now if moved else last.moved_at)

    def _watch(self) -> None:
        """Look for a lost process until this one is done. Where the exchange blocks, the others
        count as silent."""
        while not self.done.is_set():
            verdict = self.verdict or self._diagnose()
            if not self.exchange_thread.is_alive():
                verdict = f"this process can no longer exchange heartbeats; {RESUME_HINT}"
            if verdict:
                self._abort(verdict)
            self.done.wait(INTERVAL)
        self.exchange_thread.join(DEAD_AFTER_ERROR)  # it blocks where the store has gone

    def _watch_alone(self) -> None:
        """Counts intervals without progress, not wall-clock time: a process that was suspended
        and resumed has not been waiting."""
        before = (0, 0, False)
        stood = 0.0
        while not self.done.wait(INTERVAL):
            now = (self.ticks, self.batches_read, self.waiting_for_data)
            stood = 0.0 if now != before else stood + INTERVAL
            before = now
            if verdict := self._diagnose_alone(stood):
                exit_process(LOST, f"error: {verdict}")

    def _diagnose_alone(self, stood: float) -> str:
        """The error message if this single process is stuck, else ""."""
        if self.waiting_for_data and stood > self.patience:
            text = f"no data came for so many seconds, {_loader()}"
            return f"compute.patience={self.patience:g}: {text}; {RESUME_HINT}"
        if self.allowed == self.patience and stood > STALLED_FACTOR * self.patience:
            limit = STALLED_FACTOR * self.patience
            return (
                f"this process has not moved for {limit:g} s, after step {self.step}; {RESUME_HINT}"
            )
        return ""

    def _diagnose(self) -> str:
        """The error message that names a lost rank, else ""."""
        active = {rank: peer for rank, peer in self.peers.items() if peer.heartbeat.end != FINISHED}
        verdict = self._ended(active) or self._silent(active)
        if not verdict and self.rank == 0 and active:
            verdict = self._behind(active)
        return verdict

    def _ended(self, active: dict[int, PeerStatus]) -> str:
        """A rank that ended by an error, one interval after its report: an error that all ranks
        meet is reported by each itself."""
        for rank, peer in active.items():
            if rank == self.rank or self.done.is_set():
                continue
            if peer.heartbeat.end and time.monotonic() - peer.received_at > INTERVAL:
                return f"process {rank} on {peer.heartbeat.host} ended: {peer.heartbeat.end}"
        return ""

    def _silent(self, active: dict[int, PeerStatus]) -> str:
        for rank, peer in active.items():
            if rank != self.rank and time.monotonic() - peer.received_at > self.dead_after:
                where = f"process {rank} on {peer.heartbeat.host}"
                return f"{where} gave no sign of life for {self.dead_after:g} s; {RESUME_HINT}"
        return ""

    def _behind(self, active: dict[int, PeerStatus]) -> str:
        """The live rank with the lowest tick count, or all where the counts are equal, if it has
        not moved for too long."""
        rank, last = min(active.items(), key=lambda item: item[1].heartbeat.ticks)
        stood = time.monotonic() - last.moved_at
        if time.monotonic() - last.received_at > 2 * INTERVAL:
            return ""
        if any(peer.heartbeat.ticks > last.heartbeat.ticks for peer in active.values()):
            allowed = last.heartbeat.allowed
            if stood <= allowed:
                return ""
            where = f"process {rank} on {last.heartbeat.host} has not moved for {allowed:g} s"
            return f"{where}; the others wait for it; {RESUME_HINT}"
        within_step = all(peer.heartbeat.allowed == self.patience for peer in active.values())
        limit = STALLED_FACTOR * self.patience
        if not within_step or stood <= limit:
            return ""
        return f"no process has moved for {limit:g} s, after step {self.step}; {RESUME_HINT}"

    def _abort(self, verdict: str) -> None:
        if self.rank == 0:
            self._set("verdict", verdict)
        print(f"error: {verdict}", file=sys.stderr, flush=True)
        # rank 0 hosts the store: let the others read the verdict first
        time.sleep(2 * INTERVAL if self.rank == 0 else 0)
        os._exit(LOST)


def _loader() -> str:
    """Where batches come from, and the free shared memory, for an error message."""
    workers = len(multiprocessing.active_children())
    if not workers:
        return "read by this process itself"
    try:
        room = shutil.disk_usage(SHARED)
    except OSError:
        return f"from {workers} data workers"
    return (
        f"from {workers} data workers, {SHARED} with {room.free >> 20} of {room.total >> 20} "
        f"MiB free"
    )
