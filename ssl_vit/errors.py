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
        """Return the error for a network whose output is infinite or NaN for some images.

        Args:
            network: Name of the network, with which the message begins.
            count: Number of images with such an output.
            images: Number of all images.
        """
        noun = "image" if images == 1 else "images"
        return cls(
            f"{network}: the output for {count:,} of {images:,} {noun} is not finite (NaN or "
            "infinite). Use weights of another run or checkpoint."
        )


class LostError(UserError):
    """Error that a process on which this process depends was lost.

    The same command resumes from the last checkpoint.
    """

    status = 69  # sysexits.h: EX_UNAVAILABLE


def suggest(word: str, choices: Iterable[str]) -> str:
    """Return "did you mean NAME?" with the nearest known name, or "choices: NAME, NAME".

    Many choices are shortened to folders: paper/... instead of paper/mpp_b16.

    Args:
        word: Name that the user has typed.
        choices: Known names.
    """
    choices = list(choices)
    nearest = difflib.get_close_matches(word, choices, n=1)
    if nearest:
        return f"did you mean {nearest[0]}?"
    if len(choices) > MOST_CHOICES:
        folders = [re.sub("/.*", "/...", name) for name in choices]
        choices = list(dict.fromkeys(folders))
    listed = choices[:MOST_CHOICES]
    if len(choices) > MOST_CHOICES:
        listed.append(f"{len(choices) - MOST_CHOICES} others")
    return f"choices: {', '.join(listed)}"


def describe_shortage(error: BaseException, sizes: str = "") -> str:
    """Return a line that says which resource of the machine is used up and what to do.

    The resources are memory and the number of open files. Return "" for any other error. Only the
    error itself is examined, not the errors that it was raised from.

    Args:
        error: Any error.
        sizes: The options that take memory, with which a message about memory begins.
    """
    if has_too_many_files(error):
        return too_many_files()
    if isinstance(error, MemoryError) or _says(error, MEMORY_TEXTS):
        message = "not enough memory. Use a smaller network, data.size= or compute.batch=."
        return f"{sizes}: {message}" if sizes else message
    return ""


def has_too_many_files(error: BaseException) -> bool:
    """Return whether an error says that this process has too many open files."""
    return getattr(error, "errno", None) in OPEN_FILES or _says(error, OPEN_FILES_TEXTS)


def too_many_files() -> str:
    """Return the line about too many open files."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        f"too many open files: this process may open {limit:,}. "
        "Type `ulimit -n 4096` before the command, or use compute.workers=0."
    )


def _says(error: BaseException, texts: Iterable[str]) -> bool:
    """Return whether an error of the system or of torch has any of the given texts."""
    return isinstance(error, OSError | RuntimeError) and any(text in str(error) for text in texts)


def one_line(error: BaseException) -> str:
    """Return "CLASS: MESSAGE" for an error, in a line, or the message alone for a UserError.

    The text of an error from a data worker is a whole traceback, whose last line is the message.
    """
    text = str(error)
    lines = text.strip().splitlines() or [""]
    has_traceback = "Traceback (most recent call last)" in text
    message = lines[-1] if has_traceback else lines[0]
    message = message.removeprefix("ssl_vit.errors.UserError: ")
    return message if isinstance(error, UserError) else f"{type(error).__name__}: {message}"


def reason(error: BaseException) -> str:
    """Return the message of the system or a library in a line of at most 300 characters."""
    return " ".join(str(getattr(error, "strerror", None) or error).split())[:300]


def printable(text: str) -> str:
    """Return text that a terminal can show safely.

    Control characters and lone surrogates (which stand for bytes that are not UTF-8) are escaped,
    and the middle of a long text is left out.
    """
    # ascii gives a quoted text such as '\\x1b', from which the quotes are removed
    escaped = "".join(
        character if character.isprintable() else ascii(character)[1:-1] for character in text
    )
    half = MOST_PRINTED // 2
    return escaped if len(escaped) <= MOST_PRINTED else f"{escaped[:half]} ... {escaped[-half:]}"


def _line(error: BaseException) -> str:
    """Return the line to print for a known error, or "" for any other error.

    Known errors are UserError and errors of a disk, of memory or of open files.
    """
    if isinstance(error, UserError):
        return one_line(error)
    if isinstance(error, OSError) and error.errno in DISK:
        if error.filename is None:
            return str(error.strerror)
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return describe_shortage(error)


@contextmanager
def report_errors(everywhere: bool = False) -> Iterator[None]:
    """Print a known error of the body in a single line, and exit with the error's status.

    Known errors are UserError and errors of a disk, of memory or of open files. All other errors
    are raised unchanged. An interrupt exits with status 130.

    Args:
        everywhere: Whether each rank prints its errors, except errors that another rank has
            reported (ReportedError). By default, only rank 0 prints.
    """
    try:
        yield
        # If the disk is full, the error may come only with this flush. Without it, Python would
        # flush at its exit, after this function could report the error
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
