"""The local launcher: every task its own process, as many at once as asked for, each as soon as
what it needs is finished."""

import ctypes
import fcntl
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..formatting import duration, process_command, process_environment, typed
from ..runs.environment import cores
from . import scheduling
from .plan import Task, command, finished, unreachable
from .progress import ProgressScreen, Running

PATIENCE = 15.0  # seconds that a killed run's process is given to let go of its folder
LOOK = 2.0  # seconds between two looks at the memory when it is full
PR_SET_PDEATHSIG = 1


def gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them; found without asking
    CUDA."""
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [name for name in visible.split(",") if name.strip()]
    return [str(number) for number in range(len(list(Path("/proc/driver/nvidia/gpus").glob("*"))))]


def _dies_with_us() -> Callable[[], None] | None:
    """What a child does first, so that it does not outlive this process, however that ends. Linux
    only."""
    if not sys.platform.startswith("linux"):
        return None
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def first() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before that
            os._exit(1)

    return first


@dataclass
class Child(Running):
    """A task's process and its log."""

    process: subprocess.Popen[bytes] | None = None
    log: Path = Path()
    start: int = 0  # where this process's own lines begin in the log

    def last_line(self) -> str:
        with self.log.open("rb") as file:
            file.seek(self.start)
            lines = file.read().decode(errors="replace").split("\n")
        shown = [line.split("\r")[-1].strip() for line in lines if line.strip()]
        return shown[-1] if shown else "it said nothing"


@dataclass
class Local:
    """Runs a plan's tasks in `folder`; one object for one call of run()."""

    plan: dict[str, Task]
    folder: Path
    parallel: int
    screen: ProgressScreen
    needs: dict[str, int]  # task -> bytes of memory
    running: dict[str, Child] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)  # task -> why; those left out are here too
    retried: set[str] = field(default_factory=set)
    turn: Iterator[int] = field(default_factory=itertools.count)
    stopped_by: int = 0  # the signal that ended the study
    waits: set[str] = field(default_factory=set)  # tasks that were told to wait for memory
    # task -> when memory is looked at again for it
    look: dict[str, float] = field(default_factory=dict)

    def run(self) -> dict[str, str]:
        """Run what is not finished; {task: why} of what failed or was left out.

        Raises:
            KeyboardInterrupt: SIGINT or SIGTERM came; it was passed on and every process has ended.
        """
        self.done = {name for name in self.plan if finished(self.folder, name)}
        self.begun = time.monotonic()
        (self.folder / "logs").mkdir(parents=True, exist_ok=True)
        with self._signals():
            try:
                while self.running or (not self.stopped_by and self._waiting()):
                    self._reap()
                    self._leave_out()
                    self._start()
                    self.screen.show(
                        list(self.running.values()),
                        len(self.done),
                        len(self.plan),
                        len(self.failed),
                    )
                    time.sleep(0.05)
            finally:
                for child in self.running.values():
                    _send(child, signal.SIGKILL)
        if self.stopped_by:
            raise KeyboardInterrupt
        return self.failed

    def _waiting(self) -> list[Task]:
        """Tasks not begun, in the plan's order."""
        return [
            task
            for name, task in self.plan.items()
            if not {name} & (self.done | self.running.keys() | self.failed.keys())
        ]

    def _start(self) -> None:
        """Start what is ready, up to the limit."""
        for task in self._waiting():
            if self.stopped_by or len(self.running) >= self.parallel:
                return
            patient = time.monotonic() - self.begun < PATIENCE
            ready = set(task.needs) <= self.done | self.failed.keys()
            if ready and not (patient and is_locked(self.folder / task.name)) and self._room(task):
                self._launch(task)

    def _room(self, task: Task) -> bool:
        """Whether the task fits into memory beside those that run; one alone is let try."""
        if not self.running:
            return True
        if time.monotonic() < self.look.get(task.name, 0.0):
            return False
        running = [
            (child.process.pid, self.needs[name])
            for name, child in self.running.items()
            if child.process
        ]
        if scheduling.fits(self.needs[task.name], running):
            return True
        self.look[task.name] = time.monotonic() + LOOK
        if task.name not in self.waits:
            self.waits.add(task.name)
            self.screen.say(
                f"waiting   {task.name}: it may need {self.needs[task.name] / 2**30:.1f} GiB, more than is free"
            )
        return False

    def _launch(self, task: Task) -> None:
        try:
            words = command(task, self.plan, self.folder)
        except UserError as error:
            return self._fail(task.name, str(error))
        share = max(1, cores() // self.parallel)
        here = gpus()
        environment = process_environment()
        words += [f"compute.threads={share}"] if "compute.threads" not in task.words else []
        if here:  # dealt out in turn; the cores feed them
            environment["CUDA_VISIBLE_DEVICES"] = here[next(self.turn) % len(here)]
            words += (
                [f"compute.workers={max(1, share - 1)}"]
                if "compute.workers" not in task.words
                else []
            )
        log = self.folder / "logs" / f"{task.name}.txt"
        with log.open("ab") as file:
            file.write(f"$ {typed(*process_command(*words))}\n".encode(errors="surrogateescape"))
            file.flush()
            start = file.tell()
            # a session of its own: what is typed at the terminal reaches only us, and we pass it on
            process = subprocess.Popen(
                process_command(*words),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=environment,
                start_new_session=True,
                preexec_fn=_dies_with_us(),
            )
        self.running[task.name] = child = Child(
            self.folder / task.name, process=process, log=log, start=start
        )
        if self.stopped_by:  # a signal that came meanwhile did not know of this process
            _send(child, self.stopped_by)
        return None

    def _reap(self) -> None:
        """Take in the processes that have ended."""
        for name, child in list(self.running.items()):
            if child.process is None or (status := child.process.poll()) is None:
                continue
            del self.running[name]
            if status == 0 and finished(self.folder, name):
                self.done.add(name)
                self.screen.say(f"finished  {name} in {duration(time.monotonic() - child.begun)}")
            elif not self.stopped_by:
                self._ended_badly(name, child, status)

    def _ended_badly(self, name: str, child: Child, status: int) -> None:
        """Once more after a signal; otherwise the task has failed."""
        killed = f"killed by {signal.Signals(-status).name}" if status < 0 else ""
        if killed and name not in self.retried:
            self.retried.add(name)
            return self.screen.say(f"again     {name}: {killed}")
        why = killed or (
            "it ended without a result"
            if status == 0
            else child.last_line().removeprefix("error: ")
        )
        return self._fail(name, f"{why} ({child.log})")

    def _leave_out(self) -> None:
        """The tasks that need one that failed. They follow it in the plan, so one pass reaches them
        all."""
        for task in self._waiting():
            if missing := unreachable(task, self.plan, self.failed):
                self._fail(task.name, f"needs {missing}", "left out")

    def _fail(self, name: str, why: str, how: str = "failed") -> None:
        self.failed[name] = why
        self.screen.say(f"{how:<9} {name}: {why}")

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Pass SIGINT and SIGTERM on to every process; the second one kills them."""

        def pass_on(number: int, frame: Any) -> None:
            for child in self.running.values():
                _send(child, signal.SIGKILL if self.stopped_by else number)
            self.stopped_by = number

        before = {
            number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _send(child: Child, number: int) -> None:
    if child.process is not None and child.process.poll() is None:
        child.process.send_signal(number)


def is_locked(folder: Path) -> bool:
    """Whether a process on this machine writes a run's folder."""
    try:
        with (folder / "lock").open("r+") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False
