"""Errors in one line, and a tool whose output nobody takes."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.options import ROOT
from ssl_vit.errors import report_errors, suggest

HELP = [sys.executable, "tools/pretrain.py", "recipe=mpp", "name=modèle", "--help"]
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
    assert ended(HELP, left) == (128 + signal.SIGPIPE, "")


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
def test_an_output_that_is_full_is_one_line(full: int) -> None:
    assert ended(HELP, full) == (2, "error: No space left on device\n")


def test_a_character_that_the_terminal_lacks_is_replaced() -> None:
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        HELP, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert " name=mod?le " in done.stdout


def test_many_choices_are_listed_by_folder_and_never_all_hidden() -> None:
    few = ["mpp", "paper/a", "paper/b"]
    assert suggest("mp", few) == "did you mean mpp?"
    assert suggest("?", few) == "choices: mpp, paper/a, paper/b"
    many = ["mpp", *(f"paper/{number}" for number in range(40))]
    assert suggest("?", many) == "choices: mpp, paper/..."
    keys = [f"key{number}" for number in range(100)]
    assert suggest("?", keys).endswith("key28, key29, 70 others")
