"""Who is still there: a process that died, hangs or failed is named by the others, who then leave, and do not wait for ever.
One process alone is watched by a thread of its own.

Each process says every BEAT seconds, in a key-value store on the CPU, that it lives, and how many marks its main thread made.
All make the same marks in the same order, and each makes one before whatever they do together: so the one that the others wait
for has the fewest. The first process watches all; the others watch the first and hear its verdict.
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

from ..recipe import LostError, ToldError, in_a_line
from .stopping import leave, store

LOST = LostError.status  # exit status: another process was lost; the same command goes on
BEAT = 2.0  # seconds between signs of life
DEAD = 60.0  # seconds without one, or the patience where that is less
HURRY = 3 * BEAT  # the same once a connection to another process has broken
BETWEEN = 6  # times the patience for what is done between steps: saves, looks at held-out pictures
STILL = 3  # times the patience for all standing still within a step
SHARED = "/dev/shm"  # where data workers lay their batches
LEFT = "left"
GOES_ON = "the same command goes on from the last checkpoint"
END = object()
Item = TypeVar("Item")


class Sign(NamedTuple):
    """What a process says of itself."""

    beat: int = 0
    marks: int = 0
    allowed: float = inf  # seconds that it may stand where it is while others are further
    host: str = "?"
    end: str = ""  # LEFT, once it has; or the error that it ended by


class Heard(NamedTuple):
    """The last sign of a process that was new, when it came, and when its marks last changed."""

    sign: Sign
    at: float
    moved: float


class Life:
    """The watch over the processes while its body runs.

    `patience`: seconds that a process may stay behind the others within a step, and that one process alone waits for data. What
    comes before the first step is not judged.
    """

    def __init__(self, rank: int, processes: int, patience: float) -> None:
        self.rank, self.processes, self.patience, self.dead = rank, processes, patience, min(DEAD, patience)
        self.beats = self.marks = self.step = self.read = 0
        self.waits = False  # for data
        self.allowed = inf
        self.verdict, self.end = "", LEFT
        now = time.monotonic()
        self.heard = {other: Heard(Sign(), now, now) for other in (range(processes) if rank == 0 else (0,))}
        self.done = threading.Event()
        self.talk = threading.Thread(target=self._talk, daemon=True)
        self.watch = threading.Thread(target=self._watch if processes > 1 else self._watch_alone, daemon=True)

    def __enter__(self) -> "Life":
        if self.processes > 1:
            self.store: Any = store("life")
            self.talk.start()
        self.watch.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        """Leave, and say by which error. A broken connection is the sign of a lost process, whose name is waited for."""
        if self.processes == 1:
            self.done.set()
            self.watch.join()
            return
        if isinstance(error, RuntimeError):
            self.dead = min(self.dead, HURRY)
            time.sleep(self.dead + 3 * BEAT)  # the watch ends this process if it is so
        if error is not None and not isinstance(error, SystemExit | ToldError):
            self.end = in_a_line(error)
        self.done.set()
        self.watch.join()

    def mark(self) -> None:
        """This process has come so far."""
        self.marks += 1

    def marked(self, items: Iterable[Item], step: int) -> Iterator[Item]:
        """The passes of the steps from `step` on. From where one is asked for until `stepped` this process is within a step."""
        self.step = step
        self._within()
        for item in self.reading(items):
            self.mark()
            yield item
            self._within()

    def reading(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items of a loader, each of which one process alone waits for no longer than its patience."""
        left = iter(items)
        while True:
            with self._waiting():
                item = next(left, END)
            if item is END:
                return
            yield cast(Item, item)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        self.read += 1
        self.waits = True
        try:
            yield
        finally:
            self.waits = False

    def _within(self) -> None:
        self.allowed = self.patience
        self.mark()

    def stepped(self, step: int) -> None:
        """A step is done; what comes before the next one may take longer."""
        self.step, self.allowed = step, BETWEEN * self.patience
        self.mark()

    def _talk(self) -> None:
        """Say and hear; where the first process stands still, whose the store is, this may wait as long."""
        with suppress(distributed.DistError):
            self.store = self.store.clone()  # a connection of its own
        while True:
            with suppress(distributed.DistError):
                self._exchange()
            if self.done.wait(BEAT):
                break
        self._say(self.end)
        if self.rank == 0 and self.end != LEFT:
            self._linger()

    def _linger(self) -> None:
        """The store goes with this process: the others hear first how it ended, unless they end as well."""
        for _ in range(20):
            if all(heard.sign.end for rank, heard in self.heard.items() if rank):
                return
            time.sleep(BEAT / 10)
            for rank in self.heard:
                self._hear(rank, self._said(str(rank)))

    def _exchange(self) -> None:
        self.beats += 1
        self._say()
        for rank in self.heard:
            self._hear(rank, self._said(str(rank)))
        self.verdict = self._said("verdict")

    def _say(self, end: str = "") -> None:
        self._set(str(self.rank), json.dumps(Sign(self.beats, self.marks, self.allowed, socket.gethostname(), end)))

    def _set(self, key: str, text: str) -> None:
        with suppress(distributed.DistError):  # the store went with the first process
            self.store.set(key, text)

    def _said(self, key: str) -> str:
        return self.store.get(key).decode() if self.store.check([key]) else ""

    def _hear(self, rank: int, text: str) -> None:
        before, now, sign = self.heard[rank], time.monotonic(), Sign(*json.loads(text)) if text else Sign()
        if sign != before.sign:
            self.heard[rank] = Heard(sign, now, before.moved if sign.marks == before.sign.marks else now)

    def _watch(self) -> None:
        while self.talk.is_alive():
            if verdict := self.verdict or self._judged():
                self._leave(verdict)
            self.talk.join(BEAT)

    def _watch_alone(self) -> None:
        """Count the beats in which nothing moved, not the time: one that was stopped, and goes on, has not been waiting."""
        before, stood = (0, 0, False), 0.0
        while not self.done.wait(BEAT):
            now = (self.marks, self.read, self.waits)
            stood = 0.0 if now != before else stood + BEAT
            before = now
            if verdict := self._judged_alone(stood):
                leave(LOST, f"error: {verdict}")

    def _judged_alone(self, stood: float) -> str:
        """What this process waits for in vain, if it does."""
        if self.waits and stood > self.patience:
            return f"compute.patience={self.patience:g}: no data came for so many seconds, {_loader()}; {GOES_ON}"
        if self.allowed == self.patience and stood > STILL * self.patience:
            return f"this process has not moved for {STILL * self.patience:g} s, after step {self.step}; {GOES_ON}"
        return ""

    def _judged(self) -> str:
        """Who is lost, in words, if somebody is."""
        here = {rank: heard for rank, heard in self.heard.items() if heard.sign.end != LEFT}
        return self._ended(here) or self._silent(here) or (self._behind(here) if self.rank == 0 and here else "")

    def _ended(self, here: dict[int, Heard]) -> str:
        """Who ended by an error, a beat after it said so: what all of them meet each tells itself."""
        for rank, (sign, at, _) in here.items():
            if rank != self.rank and sign.end and time.monotonic() - at > BEAT and not self.done.is_set():
                return f"process {rank} on {sign.host} ended: {sign.end}"
        return ""

    def _silent(self, here: dict[int, Heard]) -> str:
        for rank, heard in here.items():
            if rank != self.rank and time.monotonic() - heard.at > self.dead:
                return f"process {rank} on {heard.sign.host} gave no sign of life for {self.dead:g} s; {GOES_ON}"
        return ""

    def _behind(self, here: dict[int, Heard]) -> str:
        """The process with the fewest marks, or all where none has more, if it lives and has not moved for too long."""
        rank, last = min(here.items(), key=lambda item: item[1].sign.marks)
        stood = time.monotonic() - last.moved
        if time.monotonic() - last.at > 2 * BEAT:
            return ""
        if any(heard.sign.marks > last.sign.marks for heard in here.values()):
            where = f"process {rank} on {last.sign.host} has not moved for {last.sign.allowed:g} s"
            return f"{where}; the others wait for it; {GOES_ON}" if stood > last.sign.allowed else ""
        within = all(heard.sign.allowed == self.patience for heard in here.values())
        where = f"no process has moved for {STILL * self.patience:g} s, after step {self.step}; {GOES_ON}"
        return where if within and stood > STILL * self.patience else ""

    def _leave(self, verdict: str) -> None:
        if self.rank == 0:
            self._set("verdict", verdict)
        print(f"error: {verdict}", file=sys.stderr, flush=True)
        time.sleep(2 * BEAT if self.rank == 0 else 0)  # the store is the first one's: the others hear it first
        os._exit(LOST)


def _loader() -> str:
    """What brings the data, and how much room it has."""
    workers = len(multiprocessing.active_children())
    if not workers:
        return "read by this process itself"
    try:
        room = shutil.disk_usage(SHARED)
    except OSError:
        return f"from {workers} data workers"
    return f"from {workers} data workers, {SHARED} with {room.free >> 20} of {room.total >> 20} MiB free"
