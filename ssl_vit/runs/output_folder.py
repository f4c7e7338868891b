"""Manage a folder that a tool writes, with a record of content and hashes. No torch.

Only one process writes the folder at a time.
"""

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
    """Folder that a tool writes.

    Attributes:
        path: Path of the folder. Error messages give the name of the folder as name=.
        written_names: Pattern of the names of files that the tool writes.
        record: Name of the JSON file that describes the content. A folder with other files must
            have this file.
        record_type: Type of the record.
        run: Folder of the run that contains this folder, or None. If a run contains the folder, the
            lock of the run is taken. A damaged record is then ignored, because the tool can write
            all files again.
    """

    path: Path
    written_names: re.Pattern[str]
    record: str
    record_type: type[Content]
    run: Path | None = None

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Keep other writers out while the `with` block runs.

        The folder is created if it does not exist. Unfinished files of killed processes are
        removed. If the folder belongs to a run (`run` is set), the lock of the run's folder is
        taken, and the folder may hold any files.

        Raises:
            UserError: Another process writes the folder. Or the folder lies in a run's folder, has
                files but no record, has a damaged record, or cannot be written.
        """
        if self.run is None:
            lock.check_outside(self.path.name, self.path)
            self.check()
        locked = self.run or self.path
        with lock.hold(locked, str(locked.parent)):
            self.path.mkdir(exist_ok=True)
            self.read()  # raises an error if the record is damaged
            sweep(self.path, self.written_names)
            yield

    def check(self) -> None:
        """Check that the tool may write into the folder.

        The tool may write into a new or empty folder, into a folder with the tool's record, and
        into a folder that belongs to a run. The record is a file such as embed.json
        (`self.record`). Hidden files and a file named "lock" do not count.

        Raises:
            UserError: The folder has files but no record, or cannot be read.
        """
        if self.run is not None or not self.path.exists():
            return
        try:
            names = {path.name for path in self.path.iterdir()} - {"lock"}
        except OSError as error:
            raise UserError(
                f"name={self.path.name}: {self.path} cannot be read: {error.strerror}"
            ) from None
        if self.record not in names and any(not name.startswith(".") for name in names):
            raise UserError(
                f"name={self.path.name}: the folder {self.path} already has files, but no"
                f" {self.record}, which this tool writes into its folders. Use another name=."
            )

    def read(self) -> Content | None:
        """Return the record, or None if there is no record.

        If the folder belongs to a run, a damaged record also gives None, because the tool can write
        all files again.

        Raises:
            UserError: The record is damaged, and the folder does not belong to a run.
        """
        path = self.path / self.record
        if not path.exists():
            return None
        try:
            return records.read(path, self.record_type)
        except (OSError, ValueError) as error:
            if self.run is not None:
                return None
            raise UserError(
                f"name={self.path.name}: {path} is damaged ({error}). Use another name=."
            ) from None

    def write(self, content: Content) -> None:
        """Write the record.

        Raises:
            OSError: The record cannot be written.
        """
        write_atomically(self.path / self.record, json.dumps(content.content(), indent=1) + "\n")

    def check_unchanged(self, recorded: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
        """Check that no file was changed, and return the hashes of the files that still exist.

        The hash of a removed file is dropped, because the tool may write the file with other bytes
        next time.

        Args:
            recorded: `{name: hash}` in the record.
            names: Names of the files that the tool writes now. Other files are not checked.

        Returns:
            `{name: hash}` without the removed files.

        Raises:
            UserError: A file was changed since the tool wrote the file.
        """
        hashes = dict(recorded)
        for name in recorded.keys() & set(names):
            path = self.path / name
            if not path.exists():
                del hashes[name]
            elif file_hash(path) != recorded[name]:
                raise UserError(
                    f"{path}: the file has changed since ssl_vit wrote it. Remove the file, then"
                    " repeat the command."
                )
        return hashes
