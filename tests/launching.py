"""Starts Python processes forked from a server that has imported torch and the package.

Importing them takes 6 seconds of a core, a fork milliseconds. Environment, working directory,
signals, output and exit status of the forked process are its own; what it patches stays in it.
Tests of what is imported when, or of the interpreter's own start, use `subprocess` instead.
"""

import atexit
import functools
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
NUMBER = struct.Struct("i")  # of a process, then its exit status
LONGEST = 1 << 17  # bytes of a request


class Process:
    """A running process, with the interface of `subprocess.Popen`; `stdout` and `stderr` are text.

    Args:
        command: as after `python`: ("-c", script, ...) or (path, ...).
        environment: all of it.
        stderr: False sends standard error to `stdout`.
        cwd: working directory.
    """

    def __init__(
        self, command: Iterable[str], environment: dict[str, str], stderr: bool, cwd: Path
    ) -> None:
        self.returncode: int | None = None
        request = {"command": [*command], "environment": environment, "cwd": str(cwd)}
        out, out_end = os.pipe()
        err, err_end = os.pipe() if stderr else (None, os.dup(out_end))
        self.status, status_end = os.pipe()
        ends = [out_end, err_end, status_end]
        socket.send_fds(_server(), [json.dumps(request).encode()], ends)
        for end in ends:
            os.close(end)
        self.stdout = os.fdopen(out)
        self.stderr = os.fdopen(err) if err is not None else None
        (self.pid,) = NUMBER.unpack(os.read(self.status, NUMBER.size))

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


def launch_ranks(count: int, *command: str, **environment: str) -> list[Process]:
    """Start `count` processes of one command that find one another, as a launcher does."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "CUDA_VISIBLE_DEVICES": "",  # on the CPU: no two of them may share a GPU
    }
    return [
        launch(*command, **environment, **shared, RANK=str(rank), LOCAL_RANK=str(rank))
        for rank in range(count)
    ]


def outcome(processes: Iterable[Process], seconds: float = 300) -> tuple[list[int], list[str]]:
    """Exit statuses and outputs; whatever still runs after `seconds` is killed."""
    processes = list(processes)
    try:
        outputs = [process.communicate(timeout=seconds)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [process.returncode for process in processes], outputs


@functools.cache
def _server() -> socket.socket:
    """The connection to this test process's server, started at the first use."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, __file__, str(theirs.fileno())]
    server = subprocess.Popen(
        command, cwd=ROOT, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
    )
    theirs.close()

    def stop() -> None:
        ours.close()
        server.wait()

    atexit.register(stop)
    return ours


def _serve(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork for each request. Returns in the forked process: the request, and where its standard
    output and standard error lead."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # supervisors leave no zombies
    while True:
        content, ends, _, _ = socket.recv_fds(connection, LONGEST, 3)
        if not content:
            os._exit(0)
        if os.fork() == 0:
            connection.close()
            return json.loads(content), _supervised(ends)
        for end in ends:
            os.close(end)


def _supervised(ends: list[int]) -> list[int]:
    """Fork once more: the parent waits and passes the exit status on."""
    *streams, status = ends
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child == 0:
        os.close(status)
        return streams
    for stream in streams:
        os.close(stream)
    os.write(status, NUMBER.pack(child))
    _, code = os.waitpid(child, 0)
    os.write(status, NUMBER.pack(os.waitstatus_to_exitcode(code)))
    os._exit(0)


def _run(request: dict[str, Any], streams: list[int]) -> None:
    """What `python COMMAND` does after its own start."""
    for number, stream in enumerate(streams, 1):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    first, *rest = request["command"]
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    if first == "-c":
        text, *rest = rest
    else:
        text = Path(first).read_text()
        main.__file__ = first
    sys.argv = [first, *rest]
    exec(compile(text, first, "exec"), main.__dict__)


if __name__ == "__main__":
    sys.path[0] = str(ROOT)
    import ssl_vit.jobs.cli
    import ssl_vit.jobs.evaluate
    import ssl_vit.jobs.train  # noqa: F401

    _run(*_serve(socket.socket(fileno=int(sys.argv[1]))))
