"""Who is still there: a process that died or hangs is named by the others, who then leave, in place of waiting for ever.

A thread of each process says every BEAT seconds, in a key-value store on the CPU, that it lives and how far its main thread is.
The first process watches all, the others watch the first and hear its verdict.
"""

import os
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from torch import distributed

from .stopping import store

LOST = 69  # exit status (sysexits.h: EX_UNAVAILABLE): another process was lost; the same command goes on
BEAT = 2.0  # seconds between signs of life
DEAD = 60.0  # seconds without one, or the patience where that is less
HURRY = 3 * BEAT  # the same once a connection to another process has broken
LEFT = "left"
Item = TypeVar("Item")


class Life:
    """The watch over the processes while its body runs; with one process nothing happens.

    `patience`: seconds that a process may stay behind the others.
    """

    def __init__(self, rank: int, processes: int, patience: float) -> None:
        self.rank, self.processes, self.patience, self.dead = rank, processes, patience, min(DEAD, patience)
        self.marks = 0
        self.seen: dict[int, tuple[str, float]] = {}  # what a process last said that was new, and when
        self.moved: dict[int, tuple[int, float]] = {}  # its marks, and when they last changed
        self.done = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Life":
        if self.processes > 1:
            self.store: Any = store("life").clone()
            self.thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Leave; a broken connection is taken as the sign of a lost process, whose name is waited for."""
        if self.processes == 1:
            return
        if kind is not None and issubclass(kind, RuntimeError):
            self.dead = min(self.dead, HURRY)
            time.sleep(self.dead + 3 * BEAT)  # the thread ends this process if it is so
        self.done.set()
        self.thread.join()

    def marked(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items, each a mark of how far this process is."""
        for item in items:
            self.marks += 1
            yield item

    def _watch(self) -> None:
        watched = range(1, self.processes) if self.rank == 0 else (0,)
        beats = 0
        while not self.done.wait(BEAT):
            beats += 1
            try:
                self.store.set(str(self.rank), f"{beats} {self.marks} {socket.gethostname()}")
                said = {rank: self._said(str(rank)) for rank in watched}
                verdict = self._said("verdict") or self._judge(said)
            except distributed.DistError:
                verdict = self._judge({})
            if verdict:
                self._leave(verdict)
        self._say(str(self.rank), LEFT)

    def _said(self, key: str) -> str:
        return self.store.get(key).decode() if self.store.check([key]) else ""

    def _say(self, key: str, text: str) -> None:
        try:
            self.store.set(key, text)
        except distributed.DistError:  # the store went with the first process
            return

    def _judge(self, said: dict[int, str]) -> str:
        """Who is lost, in words, if somebody is. `said` may lack those that could not be asked."""
        now = time.monotonic()
        for rank, text in said.items():
            if text and text != self.seen.get(rank, ("", 0))[0]:
                self.seen[rank] = text, now
                if text != LEFT and int(text.split()[1]) != self.moved.get(rank, (-1, 0))[0]:
                    self.moved[rank] = int(text.split()[1]), now
        here = {rank: text for rank, (text, _) in self.seen.items() if text != LEFT}
        for rank, text in here.items():
            if now - self.seen[rank][1] > self.dead:
                return f"process {rank} on {text.split()[2]} gave no sign of life for {self.dead:g} s"
        return self._behind(here, now)

    def _behind(self, here: dict[int, str], now: float) -> str:
        """The process that lives, has fewer marks than this one or than any that is watched, and does not move."""
        most = max([self.marks, *(self.moved[rank][0] for rank in here)])
        for rank, text in here.items():
            marks, since = self.moved[rank]
            lives = now - self.seen[rank][1] < 2 * BEAT
            if lives and marks < most and now - since > self.patience:
                return f"process {rank} on {text.split()[2]} has not moved for {self.patience:g} s; the others wait for it"
        return ""

    def _leave(self, verdict: str) -> None:
        self._say("verdict", verdict)
        print(f"error: {verdict}; the same command goes on from the last checkpoint", file=sys.stderr, flush=True)
        time.sleep(2 * BEAT if self.rank == 0 else 0)  # the store is the first one's: the others hear it first
        os._exit(LOST)
