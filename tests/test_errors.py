"""What becomes of a tool whose output nobody takes, and of a run behind it."""

import errno
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from helpers.launching import interpreter
from helpers.options import ROOT, TINY
from ssl_vit.errors import report_errors, suggest

PLAN = [sys.executable, "tools/plan.py", "recipe=mpp", "--json"]
FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full here")


def ended(command: list[str], stdout: int, stderr: int = subprocess.PIPE) -> tuple[int, str]:
    """Status and standard error of a tool that writes to `stdout`; `command` begins with the
    interpreter."""
    done = subprocess.run(command, cwd=ROOT, stdout=stdout, stderr=stderr, text=True, timeout=300)
    return done.returncode, done.stderr or ""


@pytest.fixture
def left():
    """A pipe whose reader has gone."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@pytest.fixture
def full():
    with FULL.open("wb") as file:
        yield file.fileno()


def test_a_reader_that_leaves_ends_a_tool_quietly(left: int) -> None:
    assert ended(PLAN, left) == (128 + signal.SIGPIPE, "")


FULL_DISK = OSError(errno.ENOSPC, "No space left on device", "runs/gap/report.md")
BROKEN = OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        (FULL_DISK, "error: runs/gap/report.md: No space left on device\n"),
        (BROKEN, "error: Input/output error\n"),
    ],
)
def test_a_fault_of_the_disk_is_one_line_whoever_writes(fault, line, capsys) -> None:
    with pytest.raises(SystemExit) as left, report_errors():
        raise fault
    assert (left.value.code, capsys.readouterr().err) == (2, line)
    with pytest.raises(FileNotFoundError), report_errors():  # a fault of ours stays one
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", "x")


@needs_full
def test_an_output_that_is_full_is_named_in_one_line(full: int) -> None:
    assert ended(PLAN, full) == (2, "error: standard output: No space left on device\n")


@pytest.mark.parametrize("way", ["left", pytest.param("full", marks=needs_full)])
def test_a_run_outlives_its_output(way: str, tmp_path: Path, request) -> None:
    """Both streams: a log on a disk that is full, a terminal that was closed."""
    output = request.getfixturevalue(way)
    command = [interpreter(), "tools/pretrain.py", *TINY, f"out={tmp_path}", "name=run"]
    assert ended(command, output, output) == (0, "")
    assert json.loads((tmp_path / "run" / "result.json").read_text())["steps"] == 12


def test_a_run_outlives_a_reader_that_pauses(tmp_path: Path) -> None:
    """Some terminals make the output non-blocking: when it is full, nothing is written and nothing
    raised."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, bytes(4096))
    command = [interpreter(), "tools/pretrain.py", *TINY, f"out={tmp_path}", "name=run"]
    assert ended(command, writer, writer) == (0, "")
    os.close(reader)
    os.close(writer)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["steps"] == 12


def test_errors_that_are_closed_from_the_start_are_no_trouble(tmp_path: Path) -> None:
    line = f'exec "{sys.executable}" tools/plan.py recipe=mpp >&- 2>&-'
    assert subprocess.run(["sh", "-c", line], cwd=ROOT, timeout=60).returncode == 0


def test_a_character_that_the_terminal_lacks_is_replaced() -> None:
    command = [sys.executable, "tools/plan.py", "recipe=mpp", "name=modèle"]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == "run         mod?le"


def test_many_choices_are_listed_by_folder_and_never_all_hidden() -> None:
    few = ["mpp", "paper/a", "paper/b"]
    assert suggest("mp", few) == "did you mean mpp? choices: mpp, paper/a, paper/b"
    many = ["mpp", *(f"paper/{number}" for number in range(40))]
    assert suggest("mp", many) == "did you mean mpp? choices: mpp, paper/..."
    keys = [f"key{number}" for number in range(100)]
    assert suggest("?", keys).endswith("key28, key29, 70 others")
