"""Watch the processes of a run: name the process that died, failed or did not arrive at a
collective, and end all other processes.

Every rank counts the collectives that it reaches, which come in the same order on all ranks. A
thread writes the count to the key-value store of the process group every INTERVAL seconds. Rank 0
reads all counts: if counts differ, all ranks wait for the rank with the lowest count. The other
ranks read the verdict of rank 0 (the error that names a lost rank), and watch rank 0, which hosts
the store.

Time is counted in intervals in which nothing has changed. A suspended run counts no intervals, so
this time does not count.
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
# Allowed seconds without a heartbeat, after a collective has failed
SILENT_AFTER_ERROR = 3 * INTERVAL
# Longer limits, as multiples of the patience. The patience itself is the limit in seconds for how
# long a rank may lag behind the other ranks within a step
BETWEEN_STEPS_FACTOR = 6  # for a rank between steps, where checkpoints and evaluations take time
STALLED_FACTOR = 3  # for all ranks within a step, if no rank moves at all
FINISHED = "finished"
RESUME_HINT = "Type the same command to resume from the last checkpoint."
Item = TypeVar("Item")


class Heartbeat(NamedTuple):
    """Message that a rank writes to the store."""

    beats: int = 0  # number of heartbeats that the rank has written
    ticks: int = 0  # number of collectives that the rank has reached
    allowed: float = inf  # seconds that the rank may lag behind the other ranks
    host: str = "?"
    end: str = ""  # FINISHED, or the error that ended the rank


class Peer(NamedTuple):
    """Last heartbeat that was read from a rank, and the time since the last changes."""

    heartbeat: Heartbeat = Heartbeat()
    silent: float = 0.0  # seconds since the heartbeat last changed
    idle: float = 0.0  # seconds since the ticks last changed

    def after_interval(self, heartbeat: Heartbeat) -> "Peer":
        """Return the record of a rank, updated one INTERVAL after the last update.

        A rank is silent while the heartbeat stays the same. A rank is idle while the number of
        reached collectives (ticks) stays the same.

        Args:
            heartbeat: Heartbeat that was just read from the rank.
        """
        is_silent = heartbeat == self.heartbeat
        is_idle = heartbeat.ticks == self.heartbeat.ticks
        return Peer(
            heartbeat,
            silent=self.silent + INTERVAL if is_silent else 0.0,
            idle=self.idle + INTERVAL if is_idle else 0.0,
        )


class Watchdog(Callback):
    """Context manager that watches the processes of a run.

    If a process is lost, the watchdog ends this process with an error that names the lost process.
    A run with a single process ends if no batch arrives in time. The time before the first step is
    not limited.

    Args:
        rank: Rank of this process.
        processes: Number of processes in the run.
        patience: Limit in seconds for three times: for how long a rank may lag behind the other
            ranks within a step, for how long a rank may write no heartbeat, and, in a run with a
            single process, for how long the process may wait for a batch.
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
        # Rank 0 watches all ranks, and all other ranks watch rank 0
        watched_ranks = range(processes) if rank == 0 else range(1)
        self.heartbeats = {watched_rank: Heartbeat() for watched_rank in watched_ranks}
        self.peers = {watched_rank: Peer() for watched_rank in watched_ranks}
        self.done = threading.Event()
        # The exchange has a thread of its own, because it blocks while rank 0 is stopped
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
            # A collective may have failed because another process was lost. Give `_watch` enough
            # time to name the lost process and to end this process
            self.silence_limit = min(self.silence_limit, SILENT_AFTER_ERROR)
            time.sleep(self.silence_limit + 3 * INTERVAL)
        if error is not None and not isinstance(error, SystemExit | ReportedError):
            self.end = one_line(error)
        self.done.set()
        self.watch.join()
        if self.processes > 1:
            self.exchange.join(SILENT_AFTER_ERROR)  # blocks if the store is gone

    def tick(self) -> None:
        """Count a collective that this rank is about to enter."""
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
            # The next step begins. The limit becomes `patience` again, after the longer limit that
            # `on_step` has set
            self._enter(self.step, self.patience)

    def watch_loader(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yield a loader's items, and note when this process waits for an item.

        In a run with a single process, a wait of more than `patience` seconds ends the process.
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
        """Note the end of a step, and allow more time until the next step begins."""
        self._enter(step, BETWEEN_STEPS_FACTOR * self.patience)

    def _enter(self, step: int, allowed: float) -> None:
        """Note the step, and the seconds that this rank may lag behind from now on."""
        self.step = step
        self.allowed = allowed
        self.tick()

    def _exchange_loop(self) -> None:
        """Exchange heartbeats until this rank ends, then write a last heartbeat.

        The last heartbeat has FINISHED or the error that ended this rank. After an error, rank 0
        then waits until all other ranks have ended, too.
        """
        with suppress(distributed.DistError):
            self.store = self.store.clone()  # use a separate connection for this thread
        beats = 0
        while not self.done.wait(INTERVAL if beats else 0):
            beats += 1
            self._exchange(beats, "")
        self._exchange(beats + 1, self.end)
        if self.rank == 0 and self.end != FINISHED:
            # The store ends with this process, so the other ranks must read the last heartbeat
            # before this process ends. Wait until all other ranks have ended, for at most two
            # intervals: 20 times a tenth of an interval
            for _ in range(20):
                ends = [heartbeat.end for rank, heartbeat in self.heartbeats.items() if rank != 0]
                if all(ends):
                    return
                time.sleep(INTERVAL / 10)
                self._exchange(beats + 1, self.end)

    def _exchange(self, beats: int, end: str) -> None:
        """Write this rank's heartbeat to the store, then read the other heartbeats and the verdict.

        Rank 0 reads the heartbeats of all ranks. The other ranks read the heartbeat of rank 0, and
        the verdict of rank 0, which is the error that names a lost rank. If rank 0 and thus the
        store is gone, nothing is read.

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
        """Check for lost processes until this process is done. If one is lost, end this process."""
        while not self.done.wait(INTERVAL):
            for rank, peer in self.peers.items():
                self.peers[rank] = peer.after_interval(self.heartbeats[rank])
            verdict = self.verdict or self._diagnose()
            if not verdict:
                continue
            if self.rank == 0:
                with suppress(distributed.DistError):
                    self.store.set("verdict", verdict)
                # The store ends with this process, so wait until the other ranks read the verdict
                time.sleep(2 * INTERVAL)
            exit_process(LOST, f"error: {verdict}")

    def _diagnose(self) -> str:
        """Return an error message that names a lost rank, or an empty string if no rank is lost.

        A rank is lost if the rank has ended with an error, or if the rank's heartbeat has not
        changed for `silence_limit` seconds. Rank 0 also looks for ranks that do not move
        (`_find_stalled`). A rank that has finished is not lost.
        """
        active = {rank: peer for rank, peer in self.peers.items() if peer.heartbeat.end != FINISHED}
        for rank, (heartbeat, silent, _) in active.items():
            # Wait for one interval after a rank has ended with an error. If all ranks fail, each
            # rank has time to report its own error before the watchdog ends it
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

        A rank moves by reaching a collective, which is counted as a tick. All ranks wait for the
        slowest rank, which has the fewest ticks:
        - If another rank has more ticks, the slowest rank must move within `allowed` seconds. Each
          heartbeat states this limit: the patience within a step, and more between steps
          (`on_step`).
        - If all ranks have equal ticks and are within a step, a rank must move within
          STALLED_FACTOR times the patience. Between steps, this time is not limited.

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
        """End a run with a single process if a batch takes more than `patience` seconds.

        The exit status is LOST, as after the loss of a process. The same command resumes the run.
        """
        waited, batches = 0.0, 0
        while not self.done.wait(INTERVAL):
            # True if the process waits for a batch, and no batch was used up in this interval
            still_waits = self.waits_for_batch and self.batches == batches
            waited = waited + INTERVAL if still_waits else 0.0
            batches = self.batches
            if waited > self.patience:
                exit_process(
                    LOST,
                    f"error: compute.patience={self.patience:g}: no data arrived in this time. "
                    f"Check if shared memory (/dev/shm) is full. {RESUME_HINT}",
                )
