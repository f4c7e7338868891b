"""How a run ends before its last step: a signal on any process becomes one step after which all of them save and leave.

The processes agree through a key-value store on the CPU, so no device waits. Every VOTE steps each says whether it was asked to
stop, and reads what all of them said VOTE steps before: a signal takes at most 2 VOTE steps. Torch comes in late here, after
the signals are taken.
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

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
STOPPED = 75  # exit status (sysexits.h: EX_TEMPFAIL): saved; the same command goes on
NOT_SAVED = 74  # (EX_IOERR): the same, but the last steps could not be saved, which repeats itself where nobody makes room
AT_ONCE = 128  # plus the number of the second signal, as a shell counts: not saved
INTERRUPTED = AT_ONCE + signal.SIGINT
AGAIN = 1.0  # seconds from which on a signal is a second one: launchers pass on what the whole group of processes got already
VOTE = 5  # steps
_uses = itertools.count()  # of the store in this process, all processes alike


def store(purpose: str) -> Any:
    """The process group's key-value store, for one use in one run; the processes ask in the same order."""
    from torch import distributed

    return distributed.PrefixStore(f"{purpose}-{next(_uses)}", distributed.distributed_c10d._get_default_store())


class Asked:
    """Takes the signals while its body runs; `name` is the first one's, or empty. A second one ends the process at once, also
    where the main thread waits for something and runs no handler: a thread reads what the system writes."""

    name = ""

    def __enter__(self) -> "Asked":
        self.before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            reading, self.writing = os.pipe()
            os.set_blocking(self.writing, False)
            self.wakeup = signal.set_wakeup_fd(self.writing, warn_on_full_buffer=False)
            self.before = {number: signal.signal(number, self._take) for number in SIGNALS}
            threading.Thread(target=_leave_at_the_second, args=(reading,), daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
        if self.before:
            signal.set_wakeup_fd(self.wakeup)
            os.close(self.writing)  # the thread reads to its end

    def take(self, name: str) -> None:
        """Stop for this reason, unless there was one before."""
        self.name = self.name or name

    def _take(self, number: int, frame: FrameType | None) -> None:
        self.take(signal.Signals(number).name)


def _leave_at_the_second(reading: int) -> None:
    """Read the numbers of signals; end this process at the second of SIGNALS. A Ctrl-C is a person's: it counts at once."""
    with os.fdopen(reading, "rb", buffering=0) as signals:
        first: float | None = None
        while number := signals.read(1):
            if number[0] not in SIGNALS:
                continue
            if first is None:
                first = time.monotonic()
            elif number[0] == signal.SIGINT or time.monotonic() - first >= AGAIN:
                name = signal.Signals(number[0]).name
                leave(AT_ONCE + number[0], f"stopped     at once, by {name} after another signal; not saved")


def leave(status: int, text: str) -> None:
    """End this process from any thread, whatever its main thread waits for, and the data workers with it: a stopped one would
    stay for ever."""
    for worker in multiprocessing.active_children():
        worker.kill()
    with suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)
    os._exit(status)


class Agreement:
    """Before each step: the signal that all processes stop for now, or "". All make one, and ask it at the same steps."""

    def __init__(self, asked: Asked, rank: int, processes: int) -> None:
        self.asked, self.rank, self.processes = asked, rank, processes
        self.last: int | None = None  # step of the last vote
        self.said = ""  # what stops the run, once something does
        if processes > 1:
            self.store = store("stop")

    def alone(self) -> bool:
        """Whether the only process was asked to stop, and need wait for nobody's step."""
        return self.processes == 1 and bool(self.asked.name)

    def __call__(self, step: int) -> str:
        self.said = self.said or (self.asked.name if self.processes == 1 else self._agreed(step))
        return self.said

    def _agreed(self, step: int) -> str:
        if self.last is not None and step % VOTE:
            return ""
        before, self.last = self.last, step
        said = "" if before is None else self._read(before)
        self._vote(step, before)
        return self._read(step) if before is None else said

    def _vote(self, step: int, before: int | None) -> None:
        """Say whether this process was asked; the last one to speak sums up, and forgets the vote that all have read."""
        if self.asked.name:
            self.store.set(f"{step}/asked", f"{self.asked.name} on process {self.rank}")
        if self.store.add(f"{step}/count", 1) == self.processes:
            said = self.store.get(f"{step}/asked").decode() if self.store.check([f"{step}/asked"]) else ""
            self.store.set(f"{step}/said", f"={said}")
            for key in ("asked", "count", "said") if before is not None else ():
                self.store.delete_key(f"{before}/{key}")

    def _read(self, step: int) -> str:
        """What was said at a vote, once all have spoken."""
        return self.store.get(f"{step}/said").decode()[1:]
