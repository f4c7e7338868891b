"""The local launcher: each task is a process, started as soon as the tasks that it needs have
finished."""

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

from ...errors import UserError
from ...formatting import duration, process_command, process_environment, shell_command
from ...runs.environment import cores
from . import scheduling
from .expand import Plan, Task, command, finished, seconds_of, unreachable
from .progress import ProgressScreen, Running, time_left

PATIENCE = 15.0  # seconds for the process of a killed run to release its folder
LOOK = 2.0  # seconds between two checks of the memory when it is full
PR_SET_PDEATHSIG = 1


def gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them; CUDA is not
    initialised."""
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [name for name in visible.split(",") if name.strip()]
    return [str(number) for number in range(len(list(Path("/proc/driver/nvidia/gpus").glob("*"))))]


def _dies_with_us() -> Callable[[], None] | None:
    """preexec_fn that makes a child end with this process, however that ends. Linux only."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

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
        return shown[-1] if shown else "no output"


@dataclass
class Local:
    """Runs a plan's tasks in `folder`; one object for one call of run()."""

    plan: Plan
    folder: Path
    parallel: int
    screen: ProgressScreen
    needs: dict[str, int]  # task -> bytes of memory
    running: dict[str, Child] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)  # task -> why; includes those left out
    retried: set[str] = field(default_factory=set)
    turn: Iterator[int] = field(default_factory=itertools.count)
    stopped_by: int = 0  # the signal that ended the study
    waits: set[str] = field(default_factory=set)  # tasks reported as waiting for memory
    # task -> time of the next memory check
    look: dict[str, float] = field(default_factory=dict)
    took: dict[str, float] = field(default_factory=dict)  # task -> seconds, of those finished

    def run(self) -> dict[str, str]:
        """Run the tasks that have not finished; {task: why} of those that failed or were left out.

        Raises:
            KeyboardInterrupt: SIGINT or SIGTERM came; it was passed on and every process has ended.
        """
        self.done = {name for name in self.plan if finished(self.folder, name)}
        self.took = {name: seconds_of(self.folder, name) for name in self.done}
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
                        self._left,
                    )
                    time.sleep(0.05)
            finally:
                for child in self.running.values():
                    _send(child, signal.SIGKILL)
                    if child.process is not None:
                        child.process.wait()
        if self.stopped_by:
            raise KeyboardInterrupt
        return self.failed

    def _left(self) -> str:
        """How long the rest will take, in words."""
        now = time.monotonic()
        elapsed = {name: now - child.begun for name, child in self.running.items()}
        over = self.done | self.failed.keys()
        return time_left(self.plan, self.took, elapsed, over, self.parallel)

    def _waiting(self) -> list[Task]:
        """Tasks not started, in the plan's order."""
        started = self.done | self.running.keys() | self.failed.keys()
        return [task for name, task in self.plan.items() if name not in started]

    def _start(self) -> None:
        """Start what is ready, up to the limit."""
        for task in self._waiting():
            if self.stopped_by or len(self.running) >= self.parallel:
                return
            if not set(task.needs) <= self.done | self.failed.keys():
                continue
            starting = time.monotonic() - self.begun < PATIENCE
            if starting and is_locked(self.folder / task.name):
                continue
            if self._fits(task):
                self._launch(task)

    def _fits(self, task: Task) -> bool:
        """Whether the task fits into memory beside those that run; a task alone always starts."""
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
            need = self.needs[task.name] / 2**30
            self.screen.say(f"waiting   {task.name}: it may need {need:.1f} GiB, more than is free")
        return False

    def _launch(self, task: Task) -> None:
        try:
            options = command(task, self.plan, self.folder)
        except UserError as error:
            self._fail(task.name, str(error))
            return
        share = max(1, cores() // self.parallel)
        devices = gpus()
        environment = process_environment()
        if "compute.threads" not in task.options:
            options.append(f"compute.threads={share}")
        if devices:  # in turn; the cores load their data
            environment["CUDA_VISIBLE_DEVICES"] = devices[next(self.turn) % len(devices)]
            if "compute.workers" not in task.options:
                options.append(f"compute.workers={max(1, share - 1)}")
        line = process_command(*options)
        log = self.folder / "logs" / f"{task.name}.txt"
        with log.open("ab") as file:
            file.write(f"$ {shell_command(*line)}\n".encode(errors="surrogateescape"))
            file.flush()
            start = file.tell()
            # a session of its own: the terminal signals only this process, which passes it on
            process = subprocess.Popen(
                line,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=environment,
                start_new_session=True,
                preexec_fn=_dies_with_us(),
            )
        child = Child(self.folder / task.name, process=process, log=log, start=start)
        self.running[task.name] = child
        if self.stopped_by:  # a signal arrived meanwhile and missed this process
            _send(child, self.stopped_by)

    def _reap(self) -> None:
        """Handle the processes that have ended."""
        for name, child in list(self.running.items()):
            if child.process is None or (status := child.process.poll()) is None:
                continue
            del self.running[name]
            if status == 0 and finished(self.folder, name):
                self.done.add(name)
                self.took[name] = time.monotonic() - child.begun
                self.screen.say(f"finished  {name} in {duration(time.monotonic() - child.begun)}")
            elif not self.stopped_by:
                self._retry_or_fail(name, child, status)

    def _retry_or_fail(self, name: str, child: Child, status: int) -> None:
        """Start a task again once after it was killed by a signal; otherwise it has failed."""
        if status < 0 and name not in self.retried:
            self.retried.add(name)
            self.screen.say(f"again     {name}: killed by {signal.Signals(-status).name}")
            return
        if status < 0:
            why = f"killed by {signal.Signals(-status).name}"
        elif status == 0:
            why = "it ended without a result"
        else:
            why = child.last_line().removeprefix("error: ")
        self._fail(name, f"{why} ({child.log})")

    def _leave_out(self) -> None:
        """Leave out the tasks that need one that failed. They follow it in the plan, so one pass
        reaches them all."""
        for task in self._waiting():
            if missing := unreachable(task, self.plan, self.failed):
                self._fail(task.name, f"needs {missing}", "left out")

    def _fail(self, name: str, why: str, how: str = "failed") -> None:
        self.failed[name] = why
        self.screen.say(f"{how:<9} {name}: {why}")

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Pass SIGINT and SIGTERM on to every process; a second signal kills them."""

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
