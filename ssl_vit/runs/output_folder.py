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
        path: of the folder, whose name is name= in errors.
        own: matches the names that the tool writes.
        record: the JSON file that says what is in the folder, without which it has to be new.
        content: what that file holds.
        run: whose own folder it is: it is the run's lock that is taken, and a damaged record counts
            as none, since all can be made again.
    """

    path: Path
    own: re.Pattern[str]
    record: str
    content: type[Content]
    run: Path | None = None

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Keep other writers out while the body runs; remove what killed processes left of the
        tool's files. The folder is created if it does not exist.

        Raises:
            UserError: another process writes it, it lies in a run's, it holds something else, its
                record is damaged, or it cannot be written.
        """
        if self.run is None:
            lock.check_outside(self.path.name, self.path)
            self.check()
        locked = self.run or self.path
        with lock.hold(locked, str(locked.parent)):
            self.path.mkdir(exist_ok=True)
            self.read()
            sweep(self.path, self.own)
            yield

    def check(self) -> None:
        """Check that the folder is new or has the record, or is a run's own; hidden files and a
        lock count for nothing.

        Raises:
            UserError: it holds something else, or cannot be read.
        """
        if self.run is not None or not self.path.exists():
            return
        option = f"name={self.path.name}"
        try:
            names = {path.name for path in self.path.iterdir()} - {"lock"}
        except OSError as error:
            raise UserError(f"{option}: {self.path}: {error.strerror}") from None
        if self.record not in names and any(not name.startswith(".") for name in names):
            raise UserError(f"{option}: {self.path} holds something else; give another name=")

    def read(self) -> Content | None:
        """The record; None where there is none.

        Raises:
            UserError: it is damaged.
        """
        path = self.path / self.record
        if not path.exists():
            return None
        try:
            return records.read(path, self.content)
        except (OSError, ValueError) as error:
            if self.run is not None:
                return None
            raise UserError(f"{path} is damaged ({error}); give another name=") from None

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
        kept = dict(recorded)
        for name in recorded.keys() & set(names):
            path = self.path / name
            if not path.exists():
                del kept[name]
            elif file_hash(path) != recorded[name]:
                text = "is not the file that was written; remove it, and give the command again"
                raise UserError(f"{path} {text}")
        return kept
