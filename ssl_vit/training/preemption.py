"""Stop a run after a signal: if any rank gets a signal, all ranks save at the same step and exit.

The ranks agree on the step through the key-value store of the process group, which is on the CPU,
so no device waits (see StopConsensus). This module imports torch only when needed, because signals
are handled before torch is loaded.
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
# Not saved. The number of the second signal is added, as in a shell: 130 for SIGINT, which is 2
SECOND_SIGNAL = 128
# A second signal within this number of seconds counts as a repetition of the first signal: a
# launcher forwards signals to its children, and the terminal or the scheduler has already sent the
# same signal to the whole process group
REPEAT_WINDOW = 1.0
CONSENSUS_EVERY = 5  # steps
# Counter of the prefixes in `key_value_store`. All ranks call the function in the same order, so
# the counter is equal on all ranks
_uses = itertools.count()


def key_value_store(purpose: str) -> Any:
    """Return the key-value store of the process group, with a prefix that no earlier call used.

    The prefix separates the keys from those of earlier uses, which may still exist. All ranks must
    call this function in the same order, so that all ranks get the same prefix.
    """
    from torch import distributed

    return distributed.PrefixStore(
        f"{purpose}-{next(_uses)}", distributed.distributed_c10d._get_default_store()
    )


class SignalHandler:
    """Context manager that handles SIGNALS: the first stops the run, the second exits at once.

    A second signal exits even while the main thread is blocked in C code. Python's signal handlers
    do not run there, so a thread reads signals from the wakeup file descriptor. In an interactive
    shell, where an exit would lose the variables, a second Ctrl-C raises KeyboardInterrupt instead.

    Attributes:
        reason: Name of the first signal, or the reason passed to `request_stop`. Empty: no stop.
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
        """Start a thread that receives the number of each signal through a pipe."""
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
        """Request a stop of the run. If called again, the first reason stays."""
        self.reason = self.reason or reason

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.interactive and self.reason and number == signal.SIGINT:
            raise KeyboardInterrupt("Repeat the same call to resume from the newest checkpoint.")
        self.request_stop(signal.Signals(number).name)


def _exit_on_second_signal(reading: int) -> None:
    """Read signal numbers from a pipe, and exit the process when the second signal arrives.

    Only the numbers in SIGNALS count. The function returns when the pipe is closed.

    A launcher may forward a signal that the process has already got from the terminal or from the
    scheduler. Therefore, a second signal within REPEAT_WINDOW is ignored, except Ctrl-C. The exit
    status is SECOND_SIGNAL plus the number of the signal, as in a shell.

    Args:
        reading: File descriptor of the pipe, one byte for each signal.
    """
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        first_time: float | None = None
        while byte := pipe.read(1):
            number = byte[0]
            if number not in SIGNALS:
                continue
            if first_time is None:
                first_time = time.monotonic()
                continue
            is_repetition = time.monotonic() - first_time < REPEAT_WINDOW
            if number == signal.SIGINT or not is_repetition:
                name = signal.Signals(number).name
                exit_process(
                    SECOND_SIGNAL + number,
                    f"stopped     at once, without saving: {name} was the second signal",
                )


def exit_process(status: int, text: str) -> None:
    """Print a text to stderr, kill the data workers and exit, from any thread.

    os._exit works even while the main thread is blocked, but skips the clean-up of the data
    workers. Therefore, this function kills the workers.

    Args:
        status: Exit status.
        text: Text to print.
    """
    for worker in multiprocessing.active_children():
        worker.kill()
    with suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)
    os._exit(status)


class StopConsensus:
    """Agreement of all ranks on the step at which a run stops after a signal.

    Call the object before each step, at the same steps on all ranks. The call returns the reason to
    stop before this step, or "".

    The first call and every CONSENSUS_EVERY-th step are a round of votes. In a round, each rank
    writes a vote (the signal, if any) and reads the votes of the previous round. By then, all ranks
    have written the votes of the previous round, so no rank waits for a slower rank. A signal stops
    the run within 2 CONSENSUS_EVERY steps. The first round has no previous round. Therefore, each
    rank reads the votes of the first round itself. A run that got a signal during setup thus stops
    before training.

    Args:
        signals: Handler of this process's signals.
        rank: Rank of this process.
        processes: Number of processes in the run.
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
        """Return whether the run has a single process and got a signal, and may thus stop now."""
        return self.processes == 1 and bool(self.signals.reason)

    def is_requested(self) -> bool:
        """Return whether this process got a signal. Other ranks may not know of the signal."""
        return bool(self.signals.reason)

    def __call__(self, step: int) -> str:
        if self.reason:
            return self.reason
        is_round = not self.rounds or step % CONSENSUS_EVERY == 0
        if self.processes == 1:
            self.reason = self.signals.reason
        elif is_round:
            self.reason = self._agreed_reason(step)
        return self.reason

    def _agreed_reason(self, step: int) -> str:
        """Write this rank's vote, and return the result of the previous round of votes.

        A vote is the reason to stop, such as "SIGTERM on process 3", or an empty text. Each call
        writes a vote and reads the votes of the previous round, which all ranks have written by
        now. The result is the vote of the lowest rank with a reason to stop, or an empty text. The
        first call has no previous round and waits for the votes of all ranks in the first round.

        Args:
            step: Step of the round, at which all ranks call this method.
        """
        vote = f"{self.signals.reason} on process {self.rank}" if self.signals.reason else ""
        # Some stores cannot hold an empty value, so each value starts with "="
        self.store.set(f"{step}/{self.rank}", f"={vote}")
        self.rounds.append(step)
        is_first = len(self.rounds) == 1
        round_to_read = step if is_first else self.rounds[-2]
        votes = self.store.multi_get([f"{round_to_read}/{rank}" for rank in range(self.processes)])
        if len(self.rounds) > 3:
            # The rounds are now: oldest, second, third (just read), current. All ranks have voted
            # in the third round, so all ranks have finished the second round. In the second round,
            # they read the votes of the oldest round. No rank needs the oldest votes any more
            oldest = self.rounds.pop(0)
            self.store.delete_key(f"{oldest}/{self.rank}")
        reasons = [vote.decode().removeprefix("=") for vote in votes]
        return next((reason for reason in reasons if reason), "")
