"""Stop a run after a signal: if any rank gets a signal, all ranks save at the same step and exit.

The ranks agree through the key-value store of the process group on the CPU, so no device waits (see
StopConsensus). torch is not imported at import time, because signals are handled before torch is
loaded.
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
STOPPED = 75  # EX_TEMPFAIL: the run is saved; the same command resumes
# EX_IOERR: the run stopped, but its last checkpoint could not be written. The status differs from
# STOPPED, because a scheduler that requeues on STOPPED would repeat the same steps for ever on a
# full disk.
NOT_SAVED = 74
SECOND_SIGNAL = 128  # not saved; the number of the second signal is added, as shells do
# Seconds within which a second signal counts as a repetition: a launcher forwards to its children
# what the terminal or the scheduler has already sent to the whole process group
REPEAT_WINDOW = 1.0
CONSENSUS_EVERY = 5  # steps
# numbers the prefixes; equal on all ranks, because all call in the same order
_uses = itertools.count()


def key_value_store(purpose: str) -> Any:
    """Return the key-value store of the process group with a new prefix.

    The prefix is new because keys of an earlier use may still exist. All ranks must call this
    function in the same order.
    """
    from torch import distributed

    return distributed.PrefixStore(
        f"{purpose}-{next(_uses)}", distributed.distributed_c10d._get_default_store()
    )


class SignalHandler:
    """Context manager that handles SIGNALS. `reason` is the name of the first signal, or "".

    A second signal exits at once, even while the main thread is blocked in C code, where Python
    handlers do not run: a thread reads the wakeup file descriptor. In an interactive shell, which
    would lose its variables, a second Ctrl-C raises KeyboardInterrupt.
    """

    reason = ""

    def __enter__(self) -> "SignalHandler":
        self.before: dict[int, Any] = {}
        self.writing: int | None = None
        self.interactive = hasattr(sys, "ps1")
        if threading.current_thread() is threading.main_thread():
            if not self.interactive:
                self._watch()
            self.before = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        return self

    def _watch(self) -> None:
        reading, self.writing = os.pipe()
        os.set_blocking(self.writing, False)
        self.wakeup = signal.set_wakeup_fd(self.writing, warn_on_full_buffer=False)
        threading.Thread(target=_exit_on_second_signal, args=(reading,), daemon=True).start()

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
        if self.writing is not None:
            signal.set_wakeup_fd(self.wakeup)
            os.close(self.writing)  # the thread reads until the pipe is closed

    def request_stop(self, reason: str) -> None:
        """Stop the run for this reason. Only the first reason counts."""
        self.reason = self.reason or reason

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.interactive and self.reason and number == signal.SIGINT:
            raise KeyboardInterrupt("Repeat the same call to resume from the newest checkpoint.")
        self.request_stop(signal.Signals(number).name)


def _exit_on_second_signal(reading: int) -> None:
    """Exit at the second of SIGNALS.

    A second signal within REPEAT_WINDOW is a launcher's repetition of the first, except a Ctrl-C,
    which counts at once.
    """
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
                    f"stopped     at once, without saving: {name} was the second signal",
                )


def exit_process(status: int, text: str) -> None:
    """Exit from any thread, even while the main thread is blocked, and kill the data workers.

    os._exit skips the clean-up of the workers, and a suspended worker would stay for ever.
    """
    for worker in multiprocessing.active_children():
        worker.kill()
    with suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)
    os._exit(status)


class StopConsensus:
    """Agreement of all ranks on stopping. Called before each step, at the same steps on all ranks,
    and returns the reason to stop before this step, or "".

    At the first call, and then every CONSENSUS_EVERY steps, each rank writes its signal, if any,
    and reads what all ranks wrote one round before. By then all ranks have written, so no rank
    waits for a slower one, and a signal stops the run within 2 CONSENSUS_EVERY steps. The first
    round waits for its own votes, so that a run that was signalled during setup stops before it
    trains.
    """

    def __init__(self, signals: SignalHandler, rank: int, processes: int) -> None:
        self.signals = signals
        self.rank = rank
        self.processes = processes
        self.rounds: list[int] = []  # steps of the rounds whose votes are kept, three at most
        self.reason = ""  # why the run stops, once all ranks agree
        if processes > 1:
            self.store = key_value_store("stop")

    def alone(self) -> bool:
        """Return whether the only process of the run got a signal, and may thus stop at once."""
        return self.processes == 1 and bool(self.signals.reason)

    def is_requested(self) -> bool:
        """Return whether this process got a signal, even if no further process did."""
        return bool(self.signals.reason)

    def __call__(self, step: int) -> str:
        if not self.reason and self.processes == 1:
            self.reason = self.signals.reason
        elif not self.reason and (not self.rounds or step % CONSENSUS_EVERY == 0):
            self.reason = self._agreed_reason(step)
        return self.reason

    def _agreed_reason(self, step: int) -> str:
        signalled = f"{self.signals.reason} on process {self.rank}" if self.signals.reason else ""
        # "=": no store has to hold an empty value
        self.store.set(f"{step}/{self.rank}", f"={signalled}")
        self.rounds.append(step)
        previous = self.rounds[-2:][0]
        votes = self.store.multi_get([f"{previous}/{rank}" for rank in range(self.processes)])
        if len(self.rounds) > 3:
            # All ranks have voted in the previous round, so they have finished reading this older
            # round.
            self.store.delete_key(f"{self.rounds.pop(0)}/{self.rank}")
        return next((vote.decode()[1:] for vote in votes if len(vote) > 1), "")
