"""Print errors of users in a single line, and exit with a status. Imports no torch."""

import difflib
import errno
import os
import re
import resource
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

BROKEN_PIPE = 128 + signal.SIGPIPE  # the status that a shell gives a process that SIGPIPE ended
MOST_CHOICES = 30  # the most choices that an error lists
MOST_PRINTED = 2000  # the most characters of an error text
# Error numbers of too many open files, and texts of torch's errors
OPEN_FILES = (errno.EMFILE, errno.ENFILE)
OPEN_FILES_TEXTS = (os.strerror(errno.EMFILE), os.strerror(errno.ENFILE), "0 items of ancdata")
MEMORY_TEXTS = ("can't allocate memory", "out of memory", os.strerror(errno.ENOMEM))
NOT_FINITE = "is not finite (NaN or infinite). Use weights of another run or checkpoint."
# Error numbers of a disk that is full, over its quota, read-only or broken, at any write
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)


def _flush() -> None:
    """Write or drop the rest of the output, because the end of the process would try again."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class UserError(ValueError):
    """Error that the user can correct. The text is a single line: key, value, choices."""

    status = 2  # exit status

    def _render_traceback_(self) -> list[str]:
        """Return only the error's line in a notebook, as on the command line."""
        return [f"error: {printable(one_line(self))}"]


class ReportedError(UserError):
    """UserError that another process prints, raised on all further processes."""


class NonFiniteError(UserError):
    """Error that a network gave NaN or infinite values for some images."""

    @classmethod
    def of(cls, network: str, count: int, images: int) -> "NonFiniteError":
        """Return the error for `count` of `images` images with infinite or NaN output."""
        of = f"{count:,} of {images:,} image{'s' * (images != 1)}"
        return cls(f"{network}: the output for {of} {NOT_FINITE}")


class LostError(UserError):
    """Error that a process on which this process depends was lost.

    The same command resumes from the last checkpoint.
    """

    status = 69  # sysexits.h: EX_UNAVAILABLE


def suggest(word: str, choices: Iterable[str]) -> str:
    """Return the end of an error: the nearest known name or, if none is near, the choices.

    Many choices are shortened to folders: paper/... instead of paper/mpp_b16.
    """
    choices = list(choices)
    if near := difflib.get_close_matches(word, choices, n=1):
        return f"did you mean {near[0]}?"
    if len(choices) > MOST_CHOICES:
        folded = [re.sub("/.*", "/...", name) for name in choices]
        choices = list(dict.fromkeys(folded))
    listed = choices[:MOST_CHOICES]
    rest = [f"{len(choices) - len(listed)} others"] if len(choices) > len(listed) else []
    return f"choices: {', '.join(listed + rest)}"


def describe_shortage(error: BaseException, sizes: str = "") -> str:
    """Describe the used-up resource of the machine and a remedy, or return "".

    Args:
        error: The error.
        sizes: The options that take memory, named if memory is used up.
    """
    if has_too_many_files(error):
        return too_many_files()
    if isinstance(error, MemoryError) or _says(error, MEMORY_TEXTS):
        start = f"{sizes}: " if sizes else ""
        return f"{start}not enough memory. Use a smaller network, data.size= or compute.batch=."
    return ""


def has_too_many_files(error: BaseException) -> bool:
    """Return whether an error says that this process has too many open files."""
    return getattr(error, "errno", None) in OPEN_FILES or _says(error, OPEN_FILES_TEXTS)


def too_many_files() -> str:
    """Return the line about too many open files."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    remedy = "Type `ulimit -n 4096` before the command, or use compute.workers=0."
    return f"too many open files: this process may open {limit:,}. {remedy}"


def _says(error: BaseException, texts: Iterable[str]) -> bool:
    """Return whether an error of the system or of torch has any of the given texts."""
    return isinstance(error, OSError | RuntimeError) and any(text in str(error) for text in texts)


def one_line(error: BaseException) -> str:
    """Return the first line of an error's text.

    For an error raised in a data worker, which arrives inside a traceback's text, return the last
    line.
    """
    lines = str(error).strip().splitlines() or [""]
    text = lines[-1 if "Traceback (most recent call last)" in str(error) else 0].removeprefix(
        "ssl_vit.errors.UserError: "
    )
    return text if isinstance(error, UserError) else f"{type(error).__name__}: {text}"


def reason(error: BaseException) -> str:
    """Return the message of the system or a library in a line of at most 300 characters."""
    return " ".join(str(getattr(error, "strerror", None) or error).split())[:300]


def printable(text: str) -> str:
    """Return text that a terminal can show safely.

    Control characters and halves of characters are escaped, and the middle of a long text is left
    out.
    """
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    half = MOST_PRINTED // 2
    return shown if len(shown) <= MOST_PRINTED else f"{shown[:half]} ... {shown[-half:]}"


def _line(error: BaseException) -> str:
    """Return what a user has to know of an error, or "" to let the error pass.

    Known errors are UserError and errors of a disk, of memory or of open files.
    """
    if isinstance(error, UserError):
        return one_line(error)
    if isinstance(error, OSError) and error.errno in DISK:
        place = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        return f"{place}{error.strerror}"
    return describe_shortage(error)


@contextmanager
def report_errors(everywhere: bool = False) -> Iterator[None]:
    """Print a known error in a single line, and exit with the error's status or 130.

    An interrupt exits with 130. Known errors are UserError and errors of a disk, of memory or of
    open files. Rank 0 prints. With `everywhere` each rank prints its own errors, but not errors
    that another rank reported (ReportedError).
    """
    try:
        yield
        # an error of a full disk may come only now, and would go unreported at the end
        sys.stdout.flush()
    except BrokenPipeError:
        _flush()
        sys.exit(BROKEN_PIPE)  # silently, as any program before `| head`
    except (UserError, OSError, RuntimeError, MemoryError) as error:
        line = printable(_line(error))
        if not line:
            raise
        rank = os.environ.get("RANK", "0")
        if rank == "0":
            sys.stderr.write(f"error: {line}\n")  # in one write: other ranks write too
        elif everywhere and not isinstance(error, ReportedError):
            sys.stderr.write(f"error on process {rank}: {line}\n")
        _flush()
        sys.exit(getattr(error, "status", UserError.status))
    except KeyboardInterrupt:
        print(
            "interrupted. The same command resumes from the last checkpoint, if any.",
            file=sys.stderr,
        )
        sys.exit(130)
