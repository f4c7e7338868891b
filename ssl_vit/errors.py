"""Report errors that users can correct: print a single line and exit with a status. No torch."""

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
# Too many open files: error numbers of the system, and texts in errors of torch
OPEN_FILES = (errno.EMFILE, errno.ENFILE)
OPEN_FILES_TEXTS = (os.strerror(errno.EMFILE), os.strerror(errno.ENFILE), "0 items of ancdata")
MEMORY_TEXTS = ("can't allocate memory", "out of memory", os.strerror(errno.ENOMEM))
NOT_FINITE = "is not finite (NaN or infinite). Use weights of another run or checkpoint."
# Error numbers of a disk that is full, over its quota, read-only or broken, at any write
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)


def _flush() -> None:
    """Flush stdout. If this fails, drop the output, which Python would otherwise flush at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class UserError(ValueError):
    """Error that the user can correct.

    The message is a single line. It names the key, the wrong value and the choices.
    """

    status = 2  # exit status

    def _render_traceback_(self) -> list[str]:
        """Return the lines that a notebook shows: only the message, without a traceback."""
        return [f"error: {printable(one_line(self))}"]


class ReportedError(UserError):
    """UserError whose message another process prints. Raised on all other processes."""


class NonFiniteError(UserError):
    """Error for a network that returns NaN or infinite values for some images."""

    @classmethod
    def of(cls, network: str, count: int, images: int) -> "NonFiniteError":
        """Return the error with a message about the network and the number of images.

        Args:
            network: Name of the network, at the start of the message.
            count: Number of images with NaN or infinite values in the output.
            images: Number of all images.
        """
        noun = "image" if images == 1 else "images"
        return cls(
            f"{network}: the output for {count:,} of {images:,} {noun} is not finite (NaN or "
            "infinite). Use weights of another run or checkpoint."
        )


class LostError(UserError):
    """Error after the loss of another process that this process depends on.

    The same command resumes from the last checkpoint.
    """

    status = 69  # sysexits.h: EX_UNAVAILABLE


def suggest(word: str, choices: Iterable[str]) -> str:
    """Return "did you mean NAME?" with the nearest known name, or "choices: NAME, NAME".

    If there are more than MOST_CHOICES names, names in a folder are listed by the folder: paper/...
    stands for paper/mpp_b16 and all other names in paper.

    Args:
        word: Name that the user typed.
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
    """Describe a shortage of memory or open files in one line, with a remedy.

    Return "" for any other error. The errors that caused this error are not examined.

    Args:
        error: Any error.
        sizes: Options that decide how much memory is needed. A message about memory begins with
            this text.
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
    """Return the error message for too many open files."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        f"too many open files: this process may open {limit:,}. "
        "Type `ulimit -n 4096` before the command, or use compute.workers=0."
    )


def _says(error: BaseException, texts: Iterable[str]) -> bool:
    """Return whether the error is an OSError or RuntimeError whose message has any of the texts."""
    return isinstance(error, OSError | RuntimeError) and any(text in str(error) for text in texts)


def is_first_process() -> bool:
    """Return whether this process is rank 0 or the only process, without a process group.

    The other processes do not print what every process knows.
    """
    return os.environ.get("RANK", "0") == "0"


def one_line(error: BaseException) -> str:
    """Return an error as one line: "CLASS: MESSAGE", or only the message of a UserError.

    The text of an error from a data worker is a whole traceback. The message is then the last line
    of the text. For any other error, the message is the first line.
    """
    text = str(error)
    lines = text.strip().splitlines() or [""]
    has_traceback = "Traceback (most recent call last)" in text
    message = lines[-1] if has_traceback else lines[0]
    message = message.removeprefix("ssl_vit.errors.UserError: ")
    return message if isinstance(error, UserError) else f"{type(error).__name__}: {message}"


def reason(error: BaseException) -> str:
    """Return the message of any error as one line of at most 300 characters."""
    return " ".join(str(getattr(error, "strerror", None) or error).split())[:300]


def printable(text: str) -> str:
    """Make text safe for a terminal.

    Control characters are escaped. Lone surrogates, which stand for bytes that are not UTF-8, are
    also escaped. The middle of a long text is left out.
    """
    # ascii() returns an escape such as \x1b in quotes, and [1:-1] removes the quotes
    escaped = "".join(
        character if character.isprintable() else ascii(character)[1:-1] for character in text
    )
    if len(escaped) <= MOST_PRINTED:
        return escaped
    half = MOST_PRINTED // 2
    return f"{escaped[:half]} ... {escaped[-half:]}"


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
    """Print a known error of the `with` block in a single line, and exit with the error's status.

    Known errors are UserError and errors of a disk, of memory or of open files. All other errors
    are raised unchanged. An interrupt exits with status 130.

    Args:
        everywhere: Whether all ranks print errors. By default, only rank 0 prints. Ranks other than
            0 never print a ReportedError, because the rank with the original error prints it.
    """
    try:
        yield
        # Flush here, because on a full disk the flush may be the first call that fails. Without
        # this line, Python would flush at exit, when this function can no longer report the error.
        sys.stdout.flush()
    except BrokenPipeError:
        _flush()
        sys.exit(BROKEN_PIPE)  # print no error, like other programs in front of `| head`
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
