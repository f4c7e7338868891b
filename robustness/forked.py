"""One case of a fuzz in a forked child, so that what crashes or hangs takes nothing with it; and
what came of it."""

import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

ANSWERED = "answered in one line"
ACCEPTED = "accepted"
# and whatever else is no answer in one line, as a crash of the interpreter
TRACEBACK = "tracebacks"
HANG = "hangs"


class Outcome(NamedTuple):
    """`told` is what the case itself handed back, when it was accepted."""

    kind: str
    status: int | None
    err: str
    value: Any


class Accepted(BaseException):
    """Raised in place of the work that accepted words would begin."""

    def __init__(self, value: Any = None) -> None:
        super().__init__("accepted")
        self.value = value


def outcome(do: Callable[[], Any], cwd: Path, seconds: float = 120) -> Outcome:
    """What comes of `do()` in a child whose working directory is `cwd`; a child that takes
    `seconds` hangs."""
    with tempfile.TemporaryFile() as err, tempfile.TemporaryFile() as value:
        sys.stdout.flush()
        child = os.fork()
        if not child:
            _child(do, cwd, err.fileno(), value.fileno())
        status = _ended(child, seconds)
        err.seek(0)
        value.seek(0)
        text, back = err.read().decode(errors="replace"), value.read()
    return _kind(status, text, json.loads(back) if back else None)


def _child(do: Callable[[], Any], cwd: Path, err: int, value: int) -> NoReturn:
    """End as the interpreter would: an exception that reaches the top is a traceback on the error
    stream."""
    status = 1
    try:
        os.setsid()  # what it leaves behind ends with it
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(err, 2)
        # strict, as a user's UTF-8 terminal is
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", errors="strict", closefd=False)
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
        os.chdir(cwd)
        try:
            back = do()
        except Accepted as accepted:
            back = accepted.value
        sys.stdout.flush()
        os.write(value, json.dumps(back, default=str).encode())
        status = 0
    except SystemExit as left:
        status = left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _ended(child: int, seconds: float) -> int | None:
    """The child's status; None where it was killed after so many seconds, or more where others want
    the same cores."""
    start, pause = time.monotonic(), 0.001
    while time.monotonic() - start < seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)):
        number, status = os.waitpid(child, os.WNOHANG)
        if number:
            return os.waitstatus_to_exitcode(status)
        time.sleep(pause)
        pause = min(0.05, pause * 1.5)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _kind(status: int | None, err: str, value: Any) -> Outcome:
    if status is None:
        return Outcome(HANG, status, err, value)
    lines = err.strip().splitlines()
    if status == 0:
        return Outcome(TRACEBACK if "Traceback" in err else ACCEPTED, status, err, value)
    one = len(lines) == 1 and lines[0].startswith("error")
    return Outcome(ANSWERED if one and status > 0 else TRACEBACK, status, err, value)
