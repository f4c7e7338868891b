"""Preemption: a signal on any rank becomes one step after which all ranks save and exit.

The ranks agree through the process group's key-value store on the CPU, so no device waits. Every
CONSENSUS_EVERY steps each rank writes whether it got a signal and reads the result of the round
before: a signal takes at most 2 CONSENSUS_EVERY steps. No torch at import: signals are handled
before torch is loaded.
"""

import itertools
import multiprocessing
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

from ..callbacks import SIGNALS

STOPPED = 75  # exit status (sysexits.h: EX_TEMPFAIL): saved; the same command goes on
# (EX_IOERR): the same, but the last steps could not be saved, which repeats itself where nobody
# makes room
NOT_SAVED = 74
SECOND_SIGNAL = 128  # plus the number of the second signal, as a shell counts: not saved
INTERRUPTED = SECOND_SIGNAL + signal.SIGINT
# seconds from which on a signal is a second one: launchers pass on what the whole group of
# processes got already
REPEAT_WINDOW = 1.0
CONSENSUS_EVERY = 5  # steps
_uses = itertools.count()  # of the store in this process, all processes alike


def key_value_store(purpose: str) -> Any:
    """The process group's key-value store with a prefix for one use. Ranks must call this in the
    same order."""
    from torch import distributed

    return distributed.PrefixStore(
        f"{purpose}-{next(_uses)}", distributed.distributed_c10d._get_default_store()
    )


class SignalHandler:
    """Context manager that handles SIGNALS; `reason` is the name of the first one, or "".

    A second signal exits at once, also while the main thread is blocked in C code, where Python
    handlers do not run: a thread reads the wakeup file descriptor.
    """

    reason = ""

    def __enter__(self) -> "SignalHandler":
        self.before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            reading, self.writing = os.pipe()
            os.set_blocking(self.writing, False)
            self.wakeup = signal.set_wakeup_fd(self.writing, warn_on_full_buffer=False)
            self.before = {number: signal.signal(number, self._take) for number in SIGNALS}
            threading.Thread(target=_exit_on_second_signal, args=(reading,), daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
        if self.before:
            signal.set_wakeup_fd(self.wakeup)
            os.close(self.writing)  # the thread reads to its end

    def request_stop(self, reason: str) -> None:
        """Stop the run for this reason; the first reason counts."""
        self.reason = self.reason or reason

    def _take(self, number: int, frame: FrameType | None) -> None:
        self.request_stop(signal.Signals(number).name)


def _exit_on_second_signal(reading: int) -> None:
    """Exit at the second of SIGNALS. A second one within REPEAT_WINDOW is a launcher's repetition
    of the first, but a Ctrl-C counts at once."""
    with os.fdopen(reading, "rb", buffering=0) as signals:
        first: float | None = None
        while number := signals.read(1):
            if number[0] not in SIGNALS:
                continue
            if first is None:
                first = time.monotonic()
            elif number[0] == signal.SIGINT or time.monotonic() - first >= REPEAT_WINDOW:
                name = signal.Signals(number[0]).name
                exit_process(
                    SECOND_SIGNAL + number[0],
                    f"stopped     at once, by {name} after another signal; not saved",
                )


def exit_process(status: int, text: str) -> None:
    """Exit from any thread, whatever the main thread waits for, and kill the data workers: a
    suspended one would stay for ever."""
    for worker in multiprocessing.active_children():
        worker.kill()
    with suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)
    os._exit(status)


class StopConsensus:
    """Called before each step, at the same steps on all ranks: the reason for which all stop now,
    or ""."""

    def __init__(self, signals: SignalHandler, rank: int, processes: int) -> None:
        self.signals, self.rank, self.processes = signals, rank, processes
        self.last: int | None = None  # step of the last vote
        self.reason = ""  # what stops the run, once something does
        if processes > 1:
            self.store = key_value_store("stop")

    def alone(self) -> bool:
        """Whether the only process got a signal, and so may stop at once."""
        return self.processes == 1 and bool(self.signals.reason)

    def __call__(self, step: int) -> str:
        self.reason = self.reason or (
            self.signals.reason if self.processes == 1 else self._agreed(step)
        )
        return self.reason

    def _agreed(self, step: int) -> str:
        if self.last is not None and step % CONSENSUS_EVERY:
            return ""
        before = self.last
        self.last = step
        if before is None:
            self._vote(step, None)
            return self._read(step)
        reason = self._read(before)
        self._vote(step, before)
        return reason

    def _vote(self, step: int, before: int | None) -> None:
        """Write this rank's request; the last rank of the round writes the result and deletes the
        round before, which all have read."""
        if self.signals.reason:
            self.store.set(f"{step}/request", f"{self.signals.reason} on process {self.rank}")
        if self.store.add(f"{step}/count", 1) == self.processes:
            reason = (
                self.store.get(f"{step}/request").decode()
                if self.store.check([f"{step}/request"])
                else ""
            )
            self.store.set(f"{step}/result", f"={reason}")
            for key in ("request", "count", "result") if before is not None else ():
                self.store.delete_key(f"{before}/{key}")

    def _read(self, step: int) -> str:
        """The result of a round; blocks until all ranks have voted."""
        return self.store.get(f"{step}/result").decode()[1:]
