"""Run a warm process that imports once what every run imports, then forks a process for each task.

A study starts one warm process and sends it requests to start tasks. A forked task begins in
milliseconds, while a new interpreter would import torch and other libraries for seconds. The warm
process computes nothing and never initialises CUDA, because computing starts a pool of threads. A
fork copies memory but no threads, so a forked task would wait forever for the threads of the pool.

`WarmProcess` starts the process as `python -P -m ssl_vit.lab.study.warm DESCRIPTOR`.
"""

import ctypes
import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from ...extras import is_installed
from ...formatting import PACKAGE, PROGRAM, process_environment
from ...metrics import MEASURES

PR_SET_PDEATHSIG = 1
# Status of a task that ended because the warm process ended, or that could not be forked. An exit
# status of a process is at most 255.
LOST = 256
PATIENCE = 5.0  # seconds that the warm process has to kill a task before it is killed too
# Environment variables that may differ between tasks, because libraries read them only after the
# imports. An import may have used any other variable.
TASK_VARIABLES = ("CUDA_VISIBLE_DEVICES",)
# A service manager may send these signals to every process. Tasks then save a checkpoint, so the
# warm process must stay alive.
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
# OpenBLAS and jemalloc restart their threads after a fork (pthread_atfork)
WITH_OPENBLAS = ("numpy", "scipy.linalg")
FORK_SAFE_THREADS = ("jemalloc_bg_thd",)  # of pyarrow
# Importing these modules fills `sys.modules` with almost all modules of a finished run. None of
# these modules imports `ssl_vit.__main__`, which each task runs.
MODULES = (
    "ssl_vit.jobs.cli",
    "ssl_vit.jobs.train",
    "ssl_vit.jobs.evaluate",
    "ssl_vit.jobs.run_result",
    "ssl_vit.lab.options",
    "ssl_vit.lab.study.options",
    "ssl_vit.recipe.help",
    "ssl_vit.costs.on_meta",
    "datasets.packaged_modules.parquet.parquet",
    "PIL.BmpImagePlugin",
    "PIL.GifImagePlugin",
    "PIL.JpegImagePlugin",
    "PIL.PngImagePlugin",
    "PIL.PpmImagePlugin",
    "torch.utils.flop_counter",
    "torch.utils.serialization",
)
# Imported only if matplotlib is installed
FIGURE_MODULES = (
    "ssl_vit.inspection.drawing",
    "matplotlib.backends.backend_svg",
    "matplotlib.backends.backend_agg",
)


# ---- in the study's process


class WarmProcess:
    """Handle of the warm process, which forks tasks.

    Tasks may be started at any time: they wait until the warm process has imported its modules.

    Attributes:
        environment: Environment variables that the process was started with.
        lost: Why the process no longer forks tasks, or None while it does.
        can_fork: False once the process has found that a fork would not be safe on this machine.
    """

    def __init__(self) -> None:
        self.environment = process_environment()
        self.lost: str | None = None
        self.can_fork = True
        self.ready = False
        self.statuses: dict[int, int] = {}  # {number of a task: exit status}
        self.requests = 0  # number of tasks started so far
        self.output = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `close`)
        self.connection, theirs = Pipe()
        with theirs:
            self.process = subprocess.Popen(
                [*PROGRAM[:-1], f"{PACKAGE.name}.lab.study.warm", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=self.output,
                stderr=self.output,
                env=self.environment,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                preexec_fn=dies_with_us(),
            )

    def suits(self, environment: Mapping[str, str]) -> bool:
        """Return whether this process can fork a task with these environment variables.

        All variables except `TASK_VARIABLES` must be equal to the variables of the warm process,
        because the imports of the warm process may have used the variables.
        """
        names = (self.environment.keys() | environment.keys()) - {*TASK_VARIABLES}
        return all(self.environment.get(name) == environment.get(name) for name in names)

    def start(
        self, options: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> "ForkedTask":
        """Fork a task that runs `ssl-vit OPTIONS` and appends its output to a log.

        Args:
            options: Arguments of the command line after `ssl-vit`.
            environment: Environment variables of the task. They must be equal to the variables of
                the warm process, except CUDA_VISIBLE_DEVICES (see `suits`).
            log: File that the output is appended to.

        Returns:
            The task, which starts once the warm process has imported its modules.
        """
        self.requests += 1
        variables = {key: environment[key] for key in TASK_VARIABLES if key in environment}
        paths = {"log": str(log.resolve()), "cwd": str(Path.cwd())}
        request = {"start": self.requests, "options": [*options], "environment": variables}
        self.send(request | paths)
        return ForkedTask(self, self.requests)

    def send(self, request: Mapping[str, Any]) -> None:
        """Send a request, unless the process is lost."""
        if self.lost is None:
            try:
                self.connection.send_bytes(json.dumps(request).encode())
            except OSError:  # the process has ended, and `receive` finds out why
                self.receive()

    def receive(self) -> None:
        """Read the messages that the warm process has sent, without waiting for further messages.

        - The first message, after the imports: `{"refusal": None}` if forks are safe on this
          machine, or else `{"refusal": "an import initialised CUDA"}` or another reason.
        - Each further message, after the end of a task: `{"ended": 3, "status": 0}`, with the
          number and the exit status of the task.

        If the warm process itself has ended, all its running tasks are lost.
        """
        if self.lost is not None:
            return
        try:
            while self.connection.poll():
                message = json.loads(self.connection.recv_bytes())
                if "ended" in message:
                    self.statuses[message["ended"]] = message["status"]
                elif message["refusal"] is None:  # forks are safe
                    self.ready = True
                else:
                    self.can_fork = False
                    self.close(message["refusal"])
                    return
        except (EOFError, OSError):
            self.close()

    def close(self, why: str | None = None) -> None:
        """Kill the warm process. The system then kills the forked tasks that still run.

        Args:
            why: Reason to record in `lost`. Default: the last line that the process printed.
        """
        if self.lost is not None:
            return
        self.process.kill()
        status = self.process.wait()
        self.connection.close()
        with self.output:
            self.output.seek(0)
            lines = self.output.read().decode(errors="replace").split("\n")
        printed = [line.strip() for line in lines if line.strip()]
        last_line = printed[-1] if printed else f"ended with status {status}"
        self.lost = why or last_line


class ForkedTask:
    """Task that a warm process has forked, with the methods of `TaskProcess`."""

    def __init__(self, warm: WarmProcess, number: int) -> None:
        self.warm, self.number = warm, number
        self.status: int | None = None
        self.killed_at: float | None = None

    def poll(self) -> int | None:
        """Return the exit status, `LOST` if the warm process ended, or None while the task runs."""
        if self.status is None:
            self.warm.receive()
            self.status = self.warm.statuses.pop(self.number, None)
            if self.status is None and self.warm.lost is not None:
                self.status = LOST
        return self.status

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the task.

        If the warm process is not ready, or the task has not ended `PATIENCE` seconds after the
        first call, kill the warm process and so all its tasks.
        """
        self._signal(signal.SIGKILL)
        self.killed_at = self.killed_at or time.monotonic()
        if not self.warm.ready or time.monotonic() > self.killed_at + PATIENCE:
            self.warm.close()

    def _signal(self, number: int) -> None:
        if self.poll() is None:
            self.warm.send({"signal": number, "task": self.number})


def is_possible() -> bool:
    """Return whether a warm process can run on this system: Linux with pidfds (`os.pidfd_open`)."""
    return sys.platform.startswith("linux") and hasattr(os, "pidfd_open")


def dies_with_us(number: int = signal.SIGKILL) -> Callable[[], None] | None:
    """Return a function that makes a child process end when this process ends.

    The function is a `preexec_fn` of `subprocess.Popen`, which calls it in the child. Outside Linux
    the result is None.

    Args:
        number: Signal that the system sends to the child when this process has ended.
    """
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def set_signal() -> None:
        prctl(PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:  # the parent ended before prctl took effect
            os._exit(1)

    return set_signal


# ---- in the warm process


def module_names() -> list[str]:
    """Return the modules that a warm process imports."""
    objectives = importlib.import_module(f"{PACKAGE.name}.objectives")
    objective_modules = pkgutil.walk_packages(objectives.__path__, f"{objectives.__name__}.")
    # the code of a measure is MODULE:FUNCTION
    probe_modules = {
        measure.code.partition(":")[0] for measure in MEASURES.values() if measure.code
    }
    modules = [*MODULES, *(FIGURE_MODULES if is_installed("matplotlib") else ())]
    return [*modules, *sorted(probe_modules), *(module.name for module in objective_modules)]


def import_all() -> str | None:
    """Import the modules that runs import, and check whether a fork is still safe.

    A fork is not safe once an import has started threads or initialised CUDA.

    Returns:
        Why a fork is not safe, or None if it is safe.
    """
    # A fork is safe with the threads of OpenBLAS, because OpenBLAS restarts its threads after a
    # fork. These imports start the threads before the first count, so they are not new threads.
    for name in WITH_OPENBLAS:
        importlib.import_module(name)
    threads_before = count_threads()
    for name in module_names():
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # otherwise garbage collection in a task would copy the memory of all imports
    # threads that the imports have started, as {thread name: number}
    new_threads = count_threads() - threads_before
    for name in new_threads:
        if name not in FORK_SAFE_THREADS:
            return f"an import started the thread {name}"
    if "/libcuda.so" in Path("/proc/self/maps").read_text():
        return "an import initialised CUDA"
    return None


def count_threads() -> Counter[str]:
    """Count the threads of this process by name."""
    files = Path("/proc/self/task").glob("*/comm")
    return Counter(file.read_text().strip() for file in files)


def serve(connection: Connection, begin: Callable[[], None]) -> dict[str, Any]:
    """Fork a task for each request, and report the exit statuses, until the study's process ends.

    A request is `{"start": NUMBER, "options": ..., "environment": ..., "log": ..., "cwd": ...}`, or
    `{"signal": SIGNAL, "task": NUMBER}` to send a signal to a task.

    Args:
        connection: Connection to the study's process.
        begin: Function to call first in each forked task, while the signals in `IGNORED` are
            blocked.

    Returns:
        The request that started the task. Only a forked task returns. The warm process never
            returns, and exits when the study's process has ended.
    """
    running: dict[int, tuple[int, int]] = {}  # {pidfd: (number of a task, process)}

    def send(message: Mapping[str, Any]) -> None:
        with suppress(OSError):  # the next read notices that the study's process has ended
            connection.send_bytes(json.dumps(message).encode())

    while True:
        for ready in wait([connection, *running]):
            if isinstance(ready, int):  # the pidfd of a task that has ended
                number, process = running.pop(ready)
                os.close(ready)
                status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
                send({"ended": number, "status": status})
                continue
            try:
                request = json.loads(connection.recv_bytes())
            except (EOFError, OSError):
                os._exit(0)
            if "signal" in request:
                # The ids of the processes in `running` are still valid, because `os.waitpid` is
                # called only after a process is removed from `running`.
                for number, process in running.values():
                    if number == request["task"]:
                        os.kill(process, request["signal"])
                continue
            # Python 3.12 warns about forks in a process with threads
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                # The new task ignores these signals until `begin` restores the handlers. Blocked
                # until then, a signal that arrives meanwhile is not lost.
                signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED)
                process = os.fork()
            if process == 0:
                begin()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED)
            if process == 0:
                connection.close()
                for descriptor in running:
                    os.close(descriptor)
                return request
            running[os.pidfd_open(process)] = request["start"], process


def prepare_fork(request: Mapping[str, Any]) -> None:
    """Give this forked process the state that a new `python -P -m ssl_vit OPTIONS` starts with.

    Output goes to the log of the task. The task gets its own session, working directory, NumPy seed
    and `sys.argv`. CUDA_VISIBLE_DEVICES is set anew, because CUDA reads it only after the imports.

    Args:
        request: Request with `log`, `cwd`, `environment` and `options`, from `WarmProcess.start`.
    """
    log = os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(log, sys.stdout.fileno())
    os.dup2(log, sys.stderr.fileno())
    os.close(log)
    os.setsid()
    os.chdir(request["cwd"])
    for key in TASK_VARIABLES:
        os.environ.pop(key, None)
    os.environ.update(request["environment"])
    importlib.import_module("numpy").random.seed()  # Python seeds its own generator after a fork
    sys.argv = ["-m", *request["options"]]


def run_tool() -> None:
    """Run what `python -m ssl_vit` runs."""
    runpy.run_module(PACKAGE.name, run_name="__main__", alter_sys=True)


def main(descriptor: int) -> None:
    """Run the warm process: import modules, then fork a task for each request of the study.

    In a forked task, this function runs the tool of the task and returns when the tool ends. In the
    warm process, it does not return.

    Args:
        descriptor: File descriptor of the connection to the study's process.
    """
    # must be set before torch is imported, as in `ssl_vit.__main__`
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in IGNORED}
    # outside Linux, where a child cannot end with its parent, a forked task aborts at once
    end_with_parent = dies_with_us() or os.abort
    os.set_inheritable(descriptor, False)
    connection = Connection(descriptor)
    # raises an error if the kernel has no pidfds, by which `serve` waits for the end of its tasks
    os.close(os.pidfd_open(os.getpid()))
    why_unsafe = import_all()
    connection.send_bytes(json.dumps({"refusal": why_unsafe}).encode())

    def begin_task() -> None:
        end_with_parent()
        for number, handler in handlers.items():
            signal.signal(number, handler)

    request = serve(connection, begin_task)  # returns only in a forked task
    prepare_fork(request)
    run_tool()


if __name__ == "__main__":
    main(int(sys.argv[1]))
