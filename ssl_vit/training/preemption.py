"""Preemption: after a signal on any rank, all ranks save at the same step and exit.

The ranks agree through the process group's key-value store on the CPU, so no device waits (see
StopConsensus). No torch at import: signals are handled before torch is loaded.
"""

import itertools
import multiprocessing
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from types import FrameType
from typing import Any

from ..callbacks import SIGNALS

# Exit statuses, after sysexits.h.
STOPPED = 75  # EX_TEMPFAIL: saved; the same command resumes
# EX_IOERR: stopped, but the last checkpoint could not be written. Not STOPPED, because a scheduler
# that requeues on it would repeat the same steps for ever on a full disk.
NOT_SAVED = 74
SECOND_SIGNAL = 128  # plus the number of the second signal, as a shell counts: not saved
# seconds within which another signal counts as the same one: a launcher forwards to its children
# what the terminal or the scheduler has already sent to the whole process group
REPEAT_WINDOW = 1.0
CONSENSUS_EVERY = 5  # steps
_uses = itertools.count()  # numbers the prefixes; equal on all ranks, which call in one order


def key_value_store(purpose: str) -> Any:
    """The process group's key-value store with a prefix of its own, as keys of an earlier use may
    still be there. All ranks must call this in the same order."""
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

    def __exit__(self, *_: object) -> None:
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
    """Exit from any thread, even while the main thread is blocked, and kill the data workers:
    os._exit skips their clean-up, and a suspended one would stay for ever."""
    for worker in multiprocessing.active_children():
        worker.kill()
    with suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)
    os._exit(status)


class StopConsensus:
    """Called before each step, at the same steps on all ranks: returns the reason why all stop
    before this step, or "".

    A round is a step at which all ranks vote: the first call, then every CONSENSUS_EVERY steps.

    - Each rank writes its signal, if it got one, and increments the round's count; the rank that
      completes the count writes the result, which all ranks read and so act on alike.
    - The result is read one round later: by then all have voted, so no rank waits for a slower
      one, and a signal stops the run within 2 CONSENSUS_EVERY steps. The first round has none
      before it and waits for its own result, so that a run that was signalled during its setup
      stops before it trains.
    - Every rank reads round n-1 before it votes in round n. So the rank that completes the count of
      round n, and only that one, knows that nobody reads the keys of round n-1 again, and deletes
      them.

    A result is "=" and the reason, so that no store has to hold an empty value.
    """

    def __init__(self, signals: SignalHandler, rank: int, processes: int) -> None:
        self.signals = signals
        self.rank = rank
        self.processes = processes
        self.last_round: int | None = None  # its step
        self.reason = ""  # why the run stops, once all ranks agree
        if processes > 1:
            self.store = key_value_store("stop")

    def alone(self) -> bool:
        """Whether the only process got a signal, and so may stop at once."""
        return self.processes == 1 and bool(self.signals.reason)

    def is_requested(self) -> bool:
        """Whether this process got a signal, be it that the others did not."""
        return bool(self.signals.reason)

    def __call__(self, step: int) -> str:
        if self.reason:
            return self.reason
        if self.processes == 1:
            self.reason = self.signals.reason
        else:
            self.reason = self._agreed_reason(step)
        return self.reason

    def _agreed_reason(self, step: int) -> str:
        previous = self.last_round
        if previous is None:
            self.last_round = step
            self._vote(step)
            return self._result(step)
        if step % CONSENSUS_EVERY:
            return ""
        self.last_round = step
        reason = self._result(previous)
        if self._vote(step):
            for key in ("request", "count", "result"):
                self.store.delete_key(f"{previous}/{key}")
        return reason

    def _vote(self, step: int) -> bool:
        """Write this rank's vote, and the round's result if this vote is the last; whether it
        was."""
        if self.signals.reason:
            self.store.set(f"{step}/request", f"{self.signals.reason} on process {self.rank}")
        if self.store.add(f"{step}/count", 1) != self.processes:
            return False
        reason = ""
        if self.store.check([f"{step}/request"]):
            reason = self.store.get(f"{step}/request").decode()
        self.store.set(f"{step}/result", f"={reason}")
        return True

    def _result(self, step: int) -> str:
        """The result of a round; blocks until all ranks have voted in it."""
        return self.store.get(f"{step}/result").decode()[1:]
