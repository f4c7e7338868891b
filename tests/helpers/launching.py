"""Starts Python processes forked from a server that has imported torch and the package.

Importing them takes 6 seconds of a core, a fork milliseconds. Environment, working directory,
signals, output and exit status of the forked process are its own; what it patches stays in it.
A process whose end nobody can learn any more is killed. Tests of what is imported when, or of the
interpreter's own start, use `subprocess` instead. Where another program starts Python itself, as a
launcher does, it can be given `interpreter()`; conftest.py gives it to the package for the tools
that tools start.
"""

import atexit
import contextlib
import faulthandler
import functools
import gc
import importlib
import itertools
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
NUMBER = struct.Struct("i")  # of a process, then its exit status
FEW_BASELINE_IMAGES = 128  # that a tiny run's baselines are fitted on
FEW_SHOWN = 2  # images of the figure that it draws at its end
LONGEST = 1 << 17  # bytes of a request
# Environment variables
ADDRESS = "SSL_VIT_TESTS_SERVER"  # name of the server's abstract socket
STAND_IN = "SSL_VIT_TESTS_PYTHON"  # what `interpreter()` returned
PORTS = itertools.count()
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)


class Process:
    """A running process, with the interface of `subprocess.Popen`; `stdout` and `stderr` are text.

    Args:
        command: as after `python`: ("-c", script, ...), ("-m", module, ...) or (path, ...).
        environment: all of it.
        stderr: False sends standard error to `stdout`.
        cwd: working directory.
    """

    def __init__(
        self, command: Iterable[str], environment: dict[str, str], stderr: bool, cwd: Path
    ) -> None:
        self.returncode: int | None = None
        out, out_end = os.pipe()
        err, err_end = os.pipe() if stderr else (None, os.dup(out_end))
        self.pid, self.status = _request(command, environment, cwd, (out_end, err_end))
        os.close(out_end)
        os.close(err_end)
        self.stdout = os.fdopen(out)
        self.stderr = os.fdopen(err) if err is not None else None

    def poll(self) -> int | None:
        return self.wait(0, expired=False)

    def wait(self, timeout: float | None = None, expired: bool = True) -> int | None:
        """The exit status, negative after a signal.

        Raises:
            subprocess.TimeoutExpired: the process still runs.
        """
        if self.returncode is None and select.select([self.status], [], [], timeout)[0]:
            (self.returncode,) = NUMBER.unpack(os.read(self.status, NUMBER.size))
            os.close(self.status)
        if self.returncode is None and expired:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """All that is left of both streams, once they are closed and the process has ended.

        Raises:
            subprocess.TimeoutExpired: that took longer.
        """
        end = time.monotonic() + (timeout or 1e6)
        texts = ["", ""]
        readers = []
        for place, stream in enumerate((self.stdout, self.stderr)):
            if stream is None or stream.closed:
                continue

            def read(place: int = place, stream: Any = stream) -> None:
                with stream:
                    texts[place] = stream.read()

            readers.append(threading.Thread(target=read, daemon=True))
            readers[-1].start()
        for reader in readers:
            reader.join(max(0.0, end - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        self.wait(max(0.0, end - time.monotonic()))
        return texts[0], texts[1]

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def launch(*command: str, stderr: bool = False, cwd: Path = ROOT, **environment: str) -> Process:
    """Start `python COMMAND` with this process's environment and `environment` over it."""
    return Process(command, os.environ | environment, stderr, cwd)


def python(*words: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess:
    """A whole process of this interpreter, not forked, and what it printed."""
    return subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


def free_port() -> int:
    """A port below those that the system gives out by itself, which another process may be given
    before ours listens; test processes begin at different ones."""
    while True:
        port = 10_000 + (os.getpid() * 257 + next(PORTS)) % 20_000
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) != 0:
                return port


def launch_ranks(count: int, *command: str, **environment: str) -> list[Process]:
    """Start `count` processes of one command that find one another, as a launcher does."""
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "CUDA_VISIBLE_DEVICES": "",  # on the CPU: no two of them may share a GPU
    }
    return [
        launch(*command, **environment, **shared, RANK=str(rank), LOCAL_RANK=str(rank))
        for rank in range(count)
    ]


def outcome(processes: Iterable[Process], seconds: float = 300) -> tuple[list[int], list[str]]:
    """Exit statuses and outputs.

    Raises:
        AssertionError: not all have ended after `seconds`; with what they printed and the lines of
            code where they were. They are killed.
    """
    processes = list(processes)
    expired = threading.Event()

    def end() -> None:
        expired.set()
        for process in processes:
            process.send_signal(signal.SIGQUIT)
        time.sleep(5)
        for process in processes:
            process.kill()

    timer = threading.Timer(seconds, end)
    timer.start()
    try:
        # all at once: one whose pipe is full would stand still, and the others wait for it
        with ThreadPoolExecutor(len(processes)) as readers:
            outputs = [found[0] for found in readers.map(Process.communicate, processes)]
    finally:
        timer.cancel()
        for process in processes:
            process.kill()
    assert not expired.is_set(), f"still running after {seconds} s: " + "\n".join(outputs)
    return [process.returncode for process in processes], outputs


@functools.cache
def interpreter() -> str:
    """Path of a stand-in for the Python interpreter, for programs that start Python themselves.

    It takes the commands of `Process`, passes signals on to the forked process, which dies with it,
    and ends as that does. It needs the environment variable `ADDRESS`, which the server leaves in
    this process's environment.
    """
    start_server()
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    path = Path(folder.name) / "python"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "{__file__}" run "$@"\n')
    path.chmod(0o755)
    os.environ[STAND_IN] = str(path)
    return str(path)


def _request(
    command: Iterable[str], environment: dict[str, str], cwd: Path | str, streams: tuple[int, int]
) -> tuple[int, int]:
    """Process id, and the file descriptor from which the exit status can be read."""
    request = {"command": [*command], "environment": environment, "cwd": str(cwd)}
    status, status_end = os.pipe()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect("\0" + start_server())
        socket.send_fds(connection, [json.dumps(request).encode()], [*streams, status_end])
    os.close(status_end)
    return NUMBER.unpack(os.read(status, NUMBER.size))[0], status


@functools.cache
def start_server() -> str:
    """The name of the server's socket; the first use starts the server, for this process and those
    that inherit its environment."""
    if ADDRESS in os.environ:
        return os.environ[ADDRESS]
    name = f"ssl_vit-tests-{os.getpid()}"
    alive, held = os.pipe()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind("\0" + name)
        listener.listen(64)
        descriptors = (listener.fileno(), alive)
        server = subprocess.Popen(
            [sys.executable, __file__, "serve", *map(str, descriptors)],
            cwd=ROOT,
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
        )
    os.close(alive)
    os.environ[ADDRESS] = name

    def stop() -> None:
        os.close(held)  # also closed when this process is killed, which ends the server
        server.wait()

    atexit.register(stop)
    return name


def shorten() -> None:
    """Make baselines and the figure at the end of a run small, which take longer than a tiny run,
    and keep what was imported out of every collection of garbage."""
    inspection = importlib.import_module("ssl_vit.inspection")
    train = importlib.import_module("ssl_vit.jobs.train")
    inspection.SHOWN = FEW_SHOWN  # type: ignore[attr-defined]
    train.BASELINE_IMAGES = FEW_BASELINE_IMAGES  # type: ignore[attr-defined]
    gc.collect()
    gc.freeze()


def _serve(listener: socket.socket, alive: int) -> tuple[dict[str, Any], list[int]]:
    """Fork for each request. Returns in the forked process: the request, and where its standard
    output and standard error lead."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # supervisors leave no zombies
    while True:
        if alive in select.select([listener, alive], [], [])[0]:
            os._exit(0)
        connection, _ = listener.accept()
        with connection:
            content, ends, _, _ = socket.recv_fds(connection, LONGEST, 3)
        if len(ends) == 3 and os.fork() == 0:
            listener.close()
            os.close(alive)
            return json.loads(content), _supervised(ends)
        for end in ends:
            os.close(end)


def _supervised(ends: list[int]) -> list[int]:
    """Fork once more: the parent waits and passes the exit status on; where nobody waits for that
    any more, it kills the child."""
    *streams, status = ends
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child == 0:
        os.close(status)
        return streams
    for stream in streams:
        os.close(stream)
    try:
        os.write(status, NUMBER.pack(child))
    except BrokenPipeError:
        os.kill(child, signal.SIGKILL)
        os._exit(0)
    awake, woken = os.pipe2(os.O_NONBLOCK)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    waiting = select.poll()
    waiting.register(awake, select.POLLIN)
    waiting.register(status, 0)  # an error, which comes unasked: nobody reads it
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if status in [number for number, _ in waiting.poll()]:
            os.kill(child, signal.SIGKILL)
            os._exit(0)
        os.read(awake, 16)
    _, code = ended
    with contextlib.suppress(BrokenPipeError):
        os.write(status, NUMBER.pack(os.waitstatus_to_exitcode(code)))
    os._exit(0)


def _run(request: dict[str, Any], streams: list[int]) -> None:
    """What `python COMMAND` does after its own start."""
    for number, stream in enumerate(streams, 1):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    faulthandler.register(signal.SIGQUIT, file=2)  # `outcome` asks where a process stands
    os.environ.clear()
    os.environ.update(request["environment"])
    if "COVERAGE_PROCESS_CONFIG" in os.environ:  # these lines belong to the test that asks
        importlib.import_module("coverage").process_startup(force=True)
    if "huggingface_hub.constants" in sys.modules:  # read from the server's environment
        importlib.reload(sys.modules["huggingface_hub.constants"])
    if STAND_IN in os.environ:
        importlib.import_module("ssl_vit.formatting").PROGRAM[0] = os.environ[STAND_IN]
    os.chdir(request["cwd"])
    first, *rest = request["command"]
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    if first == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        return
    if first == "-c":
        text, *rest = rest
    else:
        text = Path(first).read_text()
        main.__file__ = first
    sys.argv = [first, *rest]
    exec(compile(text, first, "exec"), main.__dict__)


def _stand_in(command: list[str]) -> None:
    """Runs `python COMMAND` by the server with this process's streams, and ends as it does."""
    received, awake = os.pipe()
    os.set_blocking(awake, False)
    signal.set_wakeup_fd(awake)
    for number in FORWARDED:
        signal.signal(number, lambda *_: None)
    while command[0] in ("-u", "-P"):  # unbuffered, and what the server does anyway
        del command[0]
    pid, status = _request(command, dict(os.environ), Path.cwd(), (1, 2))
    while status not in select.select([received, status], [], [])[0]:
        for number in os.read(received, 16):
            os.kill(pid, number)
    (code,) = NUMBER.unpack(os.read(status, NUMBER.size))
    if code < 0:
        with contextlib.suppress(OSError):  # of SIGKILL, which has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    role, *arguments = sys.argv[1:]
    if role == "run":
        _stand_in(arguments)
    sys.path[0] = str(ROOT)
    for module in importlib.import_module("ssl_vit.lab.study.warm").module_names():
        importlib.import_module(module)  # the same as in a study's warm process
    shorten()
    listener, alive = map(int, arguments)
    _run(*_serve(socket.socket(fileno=listener), alive))
