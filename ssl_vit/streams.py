"""Standard output and standard error that neither end a long run nor fail on a character. No torch here.

A reader that leaves (`| head`), a full disk behind `> log` and a closed stream are the output's own trouble: without this they
surface as an OSError somewhere in the middle of the work, where they are taken for trouble with the run's folder.
"""

import errno
import io
import os
import signal
import sys
from pathlib import Path
from typing import Any, TextIO

BROKEN_PIPE = 128 + signal.SIGPIPE  # the status that a shell gives a process that SIGPIPE ended


class OutputError(Exception):
    """Standard output takes nothing more. No OSError, so that nobody takes it for one about a file."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"standard output cannot be written: {error.strerror}")
        self.pipe = error.errno == errno.EPIPE


class _Descriptor(io.RawIOBase):
    """An open file descriptor. Once an error was raised it drops what comes: the end of the process flushes once more."""

    def __init__(self, descriptor: int, lasting: bool) -> None:
        super().__init__()
        self.descriptor = descriptor
        self.lasting = lasting
        self.broken = False

    def fileno(self) -> int:
        return self.descriptor

    def isatty(self) -> bool:
        return os.isatty(self.descriptor)

    def writable(self) -> bool:
        return True

    def write(self, content: bytes) -> int:  # type: ignore[override]
        if self.broken:
            return len(content)
        try:
            return os.write(self.descriptor, content)
        except OSError as error:
            if self.lasting:
                return len(content)  # and the next is tried again: a disk that is full may have room then
            self.broken = True
            raise OutputError(error) from None


def prepare(lasting: bool = False) -> None:
    """Make both streams safe to write to, whatever they lead to; a tool calls this first.

    A character that the terminal's encoding lacks is replaced, never an error.

    Args:
        lasting: what cannot be written is dropped and the work goes on, as training must. Otherwise the first write to standard
            output that fails raises OutputError, which `recipe.plain_errors` answers.
    """
    sys.stdout = _safe(sys.stdout, lasting)
    sys.stderr = _safe(sys.stderr, lasting=True)


def _safe(stream: TextIO | None, lasting: bool) -> TextIO:
    """The same stream, safe; where the process was started with it closed, one that takes everything."""
    if stream is None:
        return Path(os.devnull).open("w")
    descriptor = _Descriptor(stream.fileno(), lasting)
    by_lines = bool(stream.line_buffering) or descriptor.isatty()
    raw: Any = descriptor  # a RawIOBase that can write, which the stubs know no type for
    return io.TextIOWrapper(io.BufferedWriter(raw), stream.encoding, "replace", line_buffering=by_lines)
