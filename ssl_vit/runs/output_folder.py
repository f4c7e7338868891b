"""A folder that a tool writes: one writer at a time, in a folder of its own, with a record of what
is in it and the hashes of its files. No torch."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from ..errors import UserError
from ..recipe import records
from ..recipe.init_source import file_hash
from . import lock
from .files import sweep, write_atomically

Content = TypeVar("Content", bound=records.Record)


@dataclass(frozen=True)
class OutputFolder(Generic[Content]):
    """A folder that a tool writes.

    Attributes:
        key: the option that names it, `name` or `out`, for errors.
        path: of the folder.
        own: matches the names that the tool writes.
        record: the JSON file that says what is in the folder, without which it has to be new.
        content: what that file holds.
    """

    key: str
    path: Path
    own: re.Pattern[str]
    record: str
    content: type[Content]

    @property
    def option(self) -> str:
        return f"{self.key}={self.path.name if self.key == 'name' else self.path}"

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Keep other writers out while the body runs; remove what killed processes left of the
        tool's files. The folder is created if it does not exist.

        Raises:
            UserError: another process writes it, it lies in a run's, it holds something else, its
                record is damaged, or it cannot be written.
        """
        lock.check_outside(self.option, self.path)
        self.check()
        out = str(self.path.parent if self.key == "name" else self.path)
        with lock.hold(self.path, out, self.key):
            self.read()
            sweep(self.path, self.own)
            yield

    def check(self) -> None:
        """Check that the folder is new or has the record; hidden files and a lock count for
        nothing.

        Raises:
            UserError: it holds something else, or cannot be read.
        """
        if not self.path.exists():
            return
        try:
            names = {path.name for path in self.path.iterdir()} - {"lock"}
        except OSError as error:
            raise UserError(f"{self.option}: {self.path}: {error.strerror}") from None
        if self.record not in names and any(not name.startswith(".") for name in names):
            text = f"{self.path} holds something else; give another {self.key}="
            raise UserError(f"{self.option}: {text}")

    def read(self) -> Content | None:
        """The record; None where there is none.

        Raises:
            UserError: it is damaged.
        """
        if not (self.path / self.record).exists():
            return None
        path = self.path / self.record
        try:
            return records.read(path, self.content)
        except (OSError, ValueError) as error:
            text = f"give another {self.key}="
            raise UserError(f"{path} is damaged ({error}); {text}") from None

    def write(self, content: Content) -> None:
        """Write the record.

        Raises:
            OSError: it cannot be written.
        """
        write_atomically(self.path / self.record, json.dumps(content.content(), indent=1) + "\n")

    def intact(self, recorded: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
        """The recorded hashes without those of files that were removed, which may be made of other
        bytes the next time.

        Args:
            recorded: {name: hash} of the record.
            names: of the files that the tool writes now; what is recorded of others stays.

        Raises:
            UserError: one is there and is not the file that was written.
        """
        written = set(names) & recorded.keys()
        there = {name: recorded[name] for name in written if (self.path / name).exists()}
        check_hashes(self.path, there)
        gone = written - there.keys()
        return {name: value for name, value in recorded.items() if name not in gone}


def hashes(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """{name: hash} of files, for a record of what was written; "" of one that cannot be read."""
    return {name: file_hash(folder / name) or "" for name in names}


def check_hashes(folder: Path, recorded: Mapping[str, str]) -> None:
    """Check that files are those that were written.

    Args:
        folder: of the files.
        recorded: their names and hashes.

    Raises:
        UserError: one is missing, was damaged or replaced.
    """
    for name, there in hashes(folder, recorded).items():
        if not there or there != recorded[name]:
            text = "is not the file that was written; remove it, and give the command again"
            raise UserError(f"{folder / name} {text}")
