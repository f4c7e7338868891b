"""The local launcher: each task is a process, started as soon as those that it needs have
finished."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ... import formatting
from ...errors import LostError, UserError
from .. import engine
from . import memory
from .launch import Job, Outcome, command, finished, seconds_of
from .progress import ProgressScreen, RunProgress, tail, time_left
from .tasks import Task, unreachable

PATIENCE = 15.0  # seconds for the process of a killed study to release its folder
SAVES = 120.0  # seconds for a task to save before it is killed, when this launcher breaks
LOOK = 1.0  # seconds between two looks at the memory while it is full
PR_SET_PDEATHSIG = 1


class Local:
    """Runs tasks on this machine (a `Launcher`).

    Args:
        process_command: the command of a tool with options as a process.
        free_memory: how many bytes new processes may take.
    """

    def __init__(
        self,
        process_command: Callable[..., list[str]] = formatting.process_command,
        free_memory: Callable[[], int] = memory.free,
    ) -> None:
        self.process_command = process_command
        self.free_memory = free_memory

    def check(self, job: Job) -> None:
        """
        Raises:
            UserError: options are given that are of SLURM.
        """
        if job.slurm:
            raise UserError(f"slurm={job.slurm}: has no effect without launcher=slurm")

    def preview(self, job: Job) -> list[str]:
        """A line for each task that has not finished."""
        self.check(job)
        left = [task for name, task in job.tasks.items() if not finished(job.folder, name)]
        return [_tasks_line(job), *(f"would run   {task.name}: {_options(task)}" for task in left)]

    def start(self, job: Job) -> Outcome:
        """Run the tasks that have not finished. In the main thread SIGINT and SIGTERM are passed on
        to them; in another they save and end with the exception that ends this call.

        Raises:
            KeyboardInterrupt: SIGINT or SIGTERM came; every task has ended.
        """
        (job.folder / "logs").mkdir(parents=True, exist_ok=True)
        with ProgressScreen() as screen:
            screen.say(_tasks_line(job))
            failed = _Processes(self, job, screen).run()
        return Outcome([name for name in job.tasks if finished(job.folder, name)], failed)


def gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them; CUDA is not
    initialised."""
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [name for name in visible.split(",") if name.strip()]
    return [str(number) for number in range(len(list(Path("/proc/driver/nvidia/gpus").glob("*"))))]


def _parallel(job: Job) -> int:
    return job.parallel or len(gpus()) or max(1, min(engine.cores(), len(job.tasks)))


def _tasks_line(job: Job) -> str:
    before = sum(finished(job.folder, name) for name in job.tasks)
    text = f"{len(job.tasks)}, of which {before} are finished; up to {_parallel(job)} at once"
    return f"tasks       {text}"


def _options(task: Task) -> str:
    """What a task runs, with {TASK} where that names the folder of another."""
    options = [f"{key}={text}" for key, text in task.options.items()]
    best = f", best {task.best[1]} of {len(task.best[0])}" if task.best else ""
    return " ".join([task.tool, *options, f"seed={task.seed}"]) + best


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
class _Child:
    """A task's process; its own lines begin in the log at byte `start`."""

    progress: RunProgress
    process: subprocess.Popen[bytes]
    gpu: str | None
    log: Path
    start: int


class _Processes:
    """The processes of one call of `Local.start`."""

    def __init__(self, launcher: Local, job: Job, screen: ProgressScreen) -> None:
        self.launcher, self.job, self.screen = launcher, job, screen
        self.tasks, self.folder = job.tasks, job.folder
        self.parallel, self.gpus = _parallel(job), gpus()
        on_gpu = bool(self.gpus)
        self.needs = {name: engine.memory_need(one, on_gpu) for name, one in job.recipes.items()}
        self.begun = time.monotonic()
        self.running: dict[str, _Child] = {}
        done = [name for name in self.tasks if finished(self.folder, name)]
        self.took = {name: seconds_of(self.folder, name) for name in done}  # of finished tasks
        self.failed: dict[str, str] = {}  # {task: why}, with those that are left out
        self.retried: set[str] = set()
        self.stopped_by = 0  # the signal that ended the study
        self.room, self.look = 0, 0.0  # bytes that are free, and until when that holds
        self.reported: set[str] = set()  # tasks of which a line says that they wait for memory

    def run(self) -> dict[str, str]:
        """Run the tasks that have not finished; {task: why} of those that failed or were left out.

        Raises:
            KeyboardInterrupt: a signal came; it was passed on and every process has ended.
        """
        with self._signals():
            try:
                while self.running or (not self.stopped_by and self._waiting()):
                    self._reap()
                    self._leave_out()
                    self._start()
                    self.screen.show(self._shown)
                    time.sleep(0.05)
            finally:
                self._end()
        if self.stopped_by:
            raise KeyboardInterrupt
        return self.failed

    def _shown(self) -> list[str]:
        total = f"{len(self.took)} of {len(self.tasks)} finished"
        if self.failed:
            total += f", {len(self.failed)} failed or left out"
        elapsed = {name: child.progress.elapsed() for name, child in self.running.items()}
        if left := time_left(self.tasks, self.took, elapsed, self._over(), self.parallel):
            total += f"; {left}"
        cells = [child.progress.cells() for child in self.running.values()]
        return [*(formatting.plain_table(cells[0], cells[1:]) if cells else ()), total]

    def _over(self) -> set[str]:
        """Tasks that have finished, failed, or will not run."""
        return self.took.keys() | self.failed.keys()

    def _waiting(self) -> list[Task]:
        """Tasks not started, each after those that it needs."""
        started = self._over() | self.running.keys()
        return [task for name, task in self.tasks.items() if name not in started]

    def _start(self) -> None:
        """Start what is ready, up to the limit."""
        for task in self._waiting():
            if self.stopped_by or len(self.running) >= self.parallel:
                return
            if not {*task.needs} <= self._over():
                continue
            early = time.monotonic() - self.begun < PATIENCE
            if early and engine.is_written(self.folder / task.name):
                continue
            if self._fits(task):
                self._launch(task)

    def _fits(self, task: Task) -> bool:
        """Whether the task fits into memory once those that run have taken all that they need; a
        task alone always starts."""
        if not self.running:
            return True
        if time.monotonic() >= self.look:
            to_come = (
                max(0, self.needs[name] - memory.used(child.process.pid))
                for name, child in self.running.items()
            )
            self.room = self.launcher.free_memory() - sum(to_come)
            self.look = time.monotonic() + LOOK
        if self.needs[task.name] <= self.room:
            return True
        if task.name not in self.reported:
            self.reported.add(task.name)
            need = f"{self.needs[task.name] / 2**30:.1f} GiB"
            self.screen.say(f"waiting   {task.name}: it may need {need}, more than is free")
        return False

    def _launch(self, task: Task) -> None:
        try:
            options = command(task, self.tasks, self.folder)
        except UserError as error:
            self._fail(task.name, str(error))
            return
        share = max(1, engine.cores() // self.parallel)
        environment = formatting.process_environment()
        if "compute.threads" not in task.options:
            options.append(f"compute.threads={share}")
        gpu = None
        if self.gpus:  # the cores load their data
            taken = [child.gpu for child in self.running.values()]
            gpu = min(self.gpus, key=taken.count)
            environment["CUDA_VISIBLE_DEVICES"] = gpu
            if "compute.workers" not in task.options:
                options.append(f"compute.workers={max(1, share - 1)}")
        line = self.launcher.process_command(*options)
        log = self.folder / "logs" / f"{task.name}.txt"
        with log.open("ab") as file:
            file.write(f"$ {formatting.shell_command(*line)}\n".encode(errors="surrogateescape"))
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
        # those that it chose may be others than its recipe's
        given = dict(word.split("=", 1) for word in options[1:]).get("optim.steps", "")
        steps = int(given) if given.isdecimal() else self.job.recipes[task.name].optim.steps
        progress = RunProgress(self.folder / task.name, steps)
        self.running[task.name] = _Child(progress, process, gpu, log, start)
        self.look = 0.0
        if self.stopped_by:  # a signal arrived meanwhile and missed this process
            process.send_signal(self.stopped_by)

    def _reap(self) -> None:
        """Handle the processes that have ended."""
        for name, child in list(self.running.items()):
            if (status := child.process.poll()) is None:
                continue
            del self.running[name]
            self.look = 0.0
            if status == 0 and finished(self.folder, name):
                self.took[name] = child.progress.elapsed()
                self.screen.say(f"finished  {name} in {formatting.duration(self.took[name])}")
            elif not self.stopped_by:
                self._retry_or_fail(name, child, status)

    def _retry_or_fail(self, name: str, child: _Child, status: int) -> None:
        """Start a task again once after a signal killed it or a process that it depends on;
        otherwise it has failed."""
        if status < 0:
            why = f"killed by signal {-status} ({signal.strsignal(-status)})"
        elif status == 0:
            why = "it ended without a result"
        else:
            *_, last = "no output", *tail(child.log, child.start)
            why = last.removeprefix("error: ")
        if (status < 0 or status == LostError.status) and name not in self.retried:
            self.retried.add(name)
            self.screen.say(f"again     {name}: {why}")
        else:
            self._fail(name, f"{why} ({child.log})")

    def _leave_out(self) -> None:
        """Leave out the tasks that need one that failed. They stand after it, so one pass reaches
        them all."""
        for task in self._waiting():
            if missing := unreachable(task, self.tasks, [*self.failed]):
                self._fail(task.name, f"needs {missing}", "left out")

    def _fail(self, name: str, why: str, how: str = "failed") -> None:
        self.failed[name] = why
        self.screen.say(f"{how:<9} {name}: {why}")

    def _end(self) -> None:
        """End what still runs after an exception: it saves, or is killed."""
        children = [child.process for child in self.running.values()]
        until = time.monotonic() + SAVES
        try:
            for child in children:
                child.terminate()
            while time.monotonic() < until and any(child.poll() is None for child in children):
                time.sleep(0.05)
        finally:
            for child in children:
                child.kill()
                child.wait()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Pass SIGINT and SIGTERM on to every process; a second signal kills them. Only the main
        thread can have handlers."""

        def pass_on(number: int, frame: Any) -> None:
            for child in self.running.values():
                child.process.send_signal(signal.SIGKILL if self.stopped_by else number)
            self.stopped_by = number

        main = threading.current_thread() is threading.main_thread()
        numbers = (signal.SIGINT, signal.SIGTERM) if main else ()
        before = {number: signal.signal(number, pass_on) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
