"""Watch the processes of a run: name the process that died, failed or did not arrive at a
collective, and end the rest.

Every rank counts up before each collective, in the same order, and a thread writes the count to the
key-value store of the process group every INTERVAL seconds. Rank 0 reads all counts: all ranks wait
for the rank with the lowest count. The other ranks read the verdict of rank 0, and watch rank 0
because it hosts the store.

Time is counted in intervals in which nothing has changed, so the time in which a run was suspended
does not count.
"""

import json
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from math import inf
from types import TracebackType
from typing import NamedTuple, TypeVar

from torch import distributed

from ..callbacks import Callback
from ..errors import LostError, ReportedError, one_line
from .preemption import exit_process, key_value_store

LOST = LostError.status  # exit status if another process was lost; the same command resumes
INTERVAL = 2.0  # seconds between heartbeats
# allowed seconds without a heartbeat once a collective has failed
SILENT_AFTER_ERROR = 3 * INTERVAL
# Limits as multiples of the patience. The patience itself limits how long a rank may lag behind the
# others within a step.
BETWEEN_STEPS_FACTOR = 6  # between steps, where checkpoints are written and evaluators run
STALLED_FACTOR = 3  # within a step, where no rank moves at all
FINISHED = "finished"
RESUME_HINT = "Type the same command to resume from the last checkpoint."
Item = TypeVar("Item")


class Heartbeat(NamedTuple):
    """Message that a rank writes to the store."""

    beats: int = 0
    ticks: int = 0  # number of collectives that the rank has reached
    allowed: float = inf  # seconds that the rank may lag behind the others
    host: str = "?"
    end: str = ""  # FINISHED, or the error that ended the rank


class Peer(NamedTuple):
    """Last heartbeat that was read from a rank."""

    heartbeat: Heartbeat = Heartbeat()
    silent: float = 0.0  # seconds since the heartbeat last changed
    idle: float = 0.0  # seconds since the ticks last changed

    def after_interval(self, heartbeat: Heartbeat) -> "Peer":
        """Return the updated record of a rank, one INTERVAL after the last update.

        A rank is silent as long as its heartbeat stays the same. It is idle as long as the number
        of collectives that it has reached (ticks) stays the same.

        Args:
            heartbeat: The heartbeat that has now been read from the rank.
        """
        is_silent = heartbeat == self.heartbeat
        is_idle = heartbeat.ticks == self.heartbeat.ticks
        return Peer(
            heartbeat,
            silent=self.silent + INTERVAL if is_silent else 0.0,
            idle=self.idle + INTERVAL if is_idle else 0.0,
        )


class Watchdog(Callback):
    """Context manager that watches the processes of a run while its body runs.

    If a process is lost, the watchdog ends this process with an error that names the lost one. With
    a single process, the watchdog limits how long it waits for batches. The time before the first
    step is not limited.

    Args:
        rank: Rank of this process.
        processes: Number of processes in the run.
        patience: Seconds that a rank may lag behind the others within a step or give no sign of
            life, and that a single process may wait for a batch.
    """

    def __init__(self, rank: int, processes: int, patience: float) -> None:
        self.rank = rank
        self.processes = processes
        self.patience = self.silence_limit = patience
        self.ticks = self.step = self.batches = 0
        self.waits_for_batch = False
        self.allowed = inf
        self.end = FINISHED
        self.verdict = ""
        watched = range(processes) if rank == 0 else range(1)
        self.heartbeats = {rank_watched: Heartbeat() for rank_watched in watched}
        self.peers = {rank_watched: Peer() for rank_watched in watched}
        self.done = threading.Event()
        # a separate thread, because it blocks while rank 0 is stopped
        self.exchange = threading.Thread(target=self._exchange_loop, daemon=True)
        self.watch = threading.Thread(
            target=self._watch if processes > 1 else self._watch_alone, daemon=True
        )

    def __enter__(self) -> "Watchdog":
        if self.processes > 1:
            self.store = key_value_store("watchdog")
            self.exchange.start()
        self.watch.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        """Tell the other ranks how this rank ended, and stop watching.

        Args:
            kind: Class of the error that ended the body, or None.
            error: Error that ended the body, or None.
            where: Traceback of the error, or None.
        """
        if isinstance(error, RuntimeError) and self.processes > 1:
            # A collective may have failed because another process was lost. Give the watch enough
            # time to name that process and to end this one
            self.silence_limit = min(self.silence_limit, SILENT_AFTER_ERROR)
            time.sleep(self.silence_limit + 3 * INTERVAL)
        if error is not None and not isinstance(error, SystemExit | ReportedError):
            self.end = one_line(error)
        self.done.set()
        self.watch.join()
        if self.processes > 1:
            self.exchange.join(SILENT_AFTER_ERROR)  # blocks if the store is gone

    def tick(self) -> None:
        """Count progress of this rank. Called before each collective."""
        self.ticks += 1

    def track(self, items: Iterable[Item], step: int) -> Iterator[Item]:
        """Yield the batches of training, and note when this rank begins and ends a step.

        A step begins when a batch is requested, and ends when the training loop calls `on_step`.
        Within a step, this rank may lag behind the other ranks by at most `patience` seconds.

        Args:
            items: Batches of training.
            step: Step of the first batch.
        """
        self._enter(step, self.patience)
        for item in self.watch_loader(items):
            self.tick()
            yield item
            # The next step begins. `on_step` has set self.step and allowed more than the patience
            self._enter(self.step, self.patience)

    def watch_loader(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yield a loader's items, and note when this process waits for an item.

        A single process that waits more than `patience` seconds for an item is ended.
        """
        self.waits_for_batch = True
        try:
            for item in items:
                self.waits_for_batch = False
                yield item
                self.batches += 1
                self.waits_for_batch = True
        finally:
            self.waits_for_batch = False

    def on_step(self, step: int) -> None:
        """Mark the end of a step. The longer limit holds until the next step begins."""
        self._enter(step, BETWEEN_STEPS_FACTOR * self.patience)

    def _enter(self, step: int, allowed: float) -> None:
        """Note the step and the seconds that this rank may lag behind from now on."""
        self.step = step
        self.allowed = allowed
        self.tick()

    def _exchange_loop(self) -> None:
        """Exchange heartbeats until this rank ends, then write a last one that says how it ended.

        The last heartbeat has FINISHED or the error. A rank 0 that ended with an error then waits
        until the other ranks have ended, too.
        """
        with suppress(distributed.DistError):
            self.store = self.store.clone()  # separate connection for this thread
        beats = 0
        while not self.done.wait(INTERVAL if beats else 0):
            beats += 1
            self._exchange(beats, "")
        self._exchange(beats + 1, self.end)
        if self.rank == 0 and self.end != FINISHED:
            # The store ends with this process, so the other ranks must first read how it ended.
            # Wait up to two intervals, that is 20 tenths of an interval, until all have ended
            for _ in range(20):
                ends = [heartbeat.end for rank, heartbeat in self.heartbeats.items() if rank != 0]
                if all(ends):
                    return
                time.sleep(INTERVAL / 10)
                self._exchange(beats + 1, self.end)

    def _exchange(self, beats: int, end: str) -> None:
        """Write this rank's heartbeat to the store, then read the other heartbeats and the verdict.

        The verdict is the error that names a lost rank, written by rank 0. Rank 0 reads the
        heartbeats of all ranks, and the other ranks read that of rank 0. Nothing is read if the
        store is gone together with rank 0.

        Args:
            beats: Number of heartbeats so far.
            end: How this rank has ended, empty while it runs.
        """
        heartbeat = Heartbeat(beats, self.ticks, self.allowed, socket.gethostname(), end)
        with suppress(distributed.DistError):
            self.store.set(str(self.rank), json.dumps(heartbeat))
            for rank in self.heartbeats:
                if self.store.check([str(rank)]):
                    self.heartbeats[rank] = Heartbeat(*json.loads(self.store.get(str(rank))))
            if self.store.check(["verdict"]):
                self.verdict = self.store.get("verdict").decode()

    def _watch(self) -> None:
        """Look for a lost process until this process is done; if one is lost, end this process."""
        while not self.done.wait(INTERVAL):
            for rank, peer in self.peers.items():
                self.peers[rank] = peer.after_interval(self.heartbeats[rank])
            verdict = self.verdict or self._diagnose()
            if not verdict:
                continue
            if self.rank == 0:
                with suppress(distributed.DistError):
                    self.store.set("verdict", verdict)
                # This rank hosts the store, so the other ranks must read the verdict first
                time.sleep(2 * INTERVAL)
            exit_process(LOST, f"error: {verdict}")

    def _diagnose(self) -> str:
        """Return an error message that names a lost rank, or an empty string if no rank is lost.

        A rank is lost if it has ended with an error, or if its heartbeat has not changed for
        `silence_limit` seconds. Rank 0 also looks for ranks that do not move (`_find_stalled`).
        """
        active = {rank: peer for rank, peer in self.peers.items() if peer.heartbeat.end != FINISHED}
        for rank, (heartbeat, silent, _) in active.items():
            # Wait for one interval before blaming a rank that has ended with an error: if all ranks
            # fail, each rank reports its own error in this time
            if heartbeat.end and rank != self.rank and silent > INTERVAL:
                return f"process {rank} on {heartbeat.host} ended: {heartbeat.end}"
            if silent > self.silence_limit:
                return (
                    f"process {rank} on {heartbeat.host} has been silent for "
                    f"{self.silence_limit:g} s. {RESUME_HINT}"
                )
        return self._find_stalled(active) if self.rank == 0 and active else ""

    def _find_stalled(self, active: dict[int, Peer]) -> str:
        """Return an error message about ranks that are alive but do not move, or an empty string.

        A rank moves when it reaches a collective, which its ticks count. All ranks wait for the
        slowest rank, which has the fewest ticks:
        - If another rank has more ticks, the slowest rank must move within `allowed` seconds. Each
          rank states this limit in its heartbeat: the patience within a step, and more between
          steps (`on_step`).
        - If all ranks have equal ticks and are within a step, they must move within STALLED_FACTOR
          times the patience. Between steps, this time is not limited.

        Args:
            active: Ranks that have not finished, {rank: peer}.
        """
        slowest = min(active, key=lambda rank: active[rank].heartbeat.ticks)
        heartbeat, _, idle = active[slowest]
        is_behind = any(peer.heartbeat.ticks > heartbeat.ticks for peer in active.values())
        if is_behind and idle > heartbeat.allowed:
            return (
                f"process {slowest} on {heartbeat.host} has not moved for {heartbeat.allowed:g} s, "
                f"and all processes wait. {RESUME_HINT}"
            )
        are_within_step = all(peer.heartbeat.allowed == self.patience for peer in active.values())
        limit = STALLED_FACTOR * self.patience
        if not is_behind and are_within_step and idle > limit:
            return f"no process has moved for {limit:g} s, after step {self.step}. {RESUME_HINT}"
        return ""

    def _watch_alone(self) -> None:
        """End a single process that waits more than `patience` seconds for a batch.

        The exit status is LOST, as after the loss of a process. The same command resumes the run.
        """
        waited, batches = 0.0, 0
        while not self.done.wait(INTERVAL):
            still_waits = self.waits_for_batch and self.batches == batches
            waited = waited + INTERVAL if still_waits else 0.0
            batches = self.batches
            if waited > self.patience:
                exit_process(
                    LOST,
                    f"error: compute.patience={self.patience:g}: no data arrived in this time. "
                    f"Check if shared memory (/dev/shm) is full. {RESUME_HINT}",
                )
