"""Read WebDataset tars: images key.jpg with labels in key.cls or key.json.

All headers are read at the start. Images are read in place.
"""

import json
import os
import posixpath
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import UserError, reason
from ..formatting import count_of, count_of_images
from ..recipe.images import Data
from . import labels, layout
from .labels import Reading, Stored
from .layout import IMAGE_KINDS, OTHERS, Contents
from .source import READERS, Raw, Source, Store

TAR_LABELS = (
    " In a tar, the label of 0001.jpg is 0001.cls or the key label of 0001.json: a whole number, a"
    " text or, with data.label_column=, a list of class numbers."
)
LONGEST_LABEL = 2**20  # bytes of a label's file; a longer file is something else
LABEL_ENDINGS = ("cls", "json")


class Member(NamedTuple):
    """Place of a file's bytes in a tar."""

    offset: int
    size: int


@dataclass
class Members:
    """Contents of a tar.

    Attributes:
        images: {kind: {key: image}}, with the kinds of `layout.Folder`.
        labels: {key: {"cls" or "json": value}}.
        skipped: number of other files of each kind.
        beside: images whose key belongs to another image.
    """

    images: dict[str, dict[str, Member]] = field(default_factory=dict)
    labels: dict[str, dict[str, Any]] = field(default_factory=dict)
    skipped: Counter[str] = field(default_factory=Counter)
    beside: list[str] = field(default_factory=list)

    def label(self, key: str) -> Any:
        """Return the label of an image, or None. A .cls file has precedence over a .json file."""
        known = self.labels.get(key) or self.labels.get(_sample(key)) or {}
        return next((known[kind] for kind in LABEL_ENDINGS if kind in known), None)


def _sample(key: str) -> str:
    """Return WebDataset's key of a file: the name up to the first dot.

    >>> _sample("train.a/0001.seg")
    'train.a/0001'
    """
    folder, slash, name = key.rpartition("/")
    return folder + slash + name.partition(".")[0]


class TarStore(Store):
    """Images in tars, read in place.

    Args:
        files: the tars.
        members: the images of each tar.
    """

    def __init__(self, files: Sequence[Path], members: Sequence[Iterable[Member]]) -> None:
        self.files = list(files)
        rows = [
            (number, member.offset, member.size)
            for number, some in enumerate(members)
            for member in some
        ]
        self.file_N, self.offset_N, self.size_N = np.array(rows, np.int64).reshape(-1, 3).T.copy()

    def __len__(self) -> int:
        return len(self.file_N)

    def fetch(self, rows: np.ndarray) -> list[Raw]:
        images: list[Raw] = [b""] * len(rows)
        for number in np.unique(self.file_N[rows]).tolist():
            places = np.flatnonzero(self.file_N[rows] == number)
            try:
                with self.files[number].open("rb", buffering=0) as file:
                    for place in places.tolist():
                        row = rows[place]
                        size, offset = int(self.size_N[row]), int(self.offset_N[row])
                        images[place] = os.pread(file.fileno(), size, offset)
            except OSError as error:
                raise UserError(
                    f"data.path={self.files[number]}: cannot be read: {reason(error)}"
                ) from None
        return images

    def sizes(self) -> np.ndarray:
        return self.size_N

    def name(self, row: int) -> str:
        file = self.files[self.file_N[row]]
        try:
            with file.open("rb") as opened:
                at = int(self.offset_N[row]) - tarfile.BLOCKSIZE
                header = os.pread(opened.fileno(), tarfile.BLOCKSIZE, at)
            name = tarfile.TarInfo.frombuf(header, "utf-8", "replace").name
        except (OSError, tarfile.TarError):  # the file has changed since
            name = f"row {row}"
        return f"{file.name}, {name}"


def open_tars(contents: Contents, data: Data, guesses: list[str]) -> dict[str, Source]:
    """Open every split of a folder of tars.

    Args:
        contents: the tars; counts of files that are left out are added to `contents.skipped`.
        data: options of the images.
        guesses: a list to which assumptions are added.

    Raises:
        UserError: a tar ends early or holds no images, an option names a column, or a value is no
            label.
    """
    for key in ("image_column", "group"):
        if (column_name := getattr(data, key)) is not None:
            raise UserError(
                f"data.{key}={column_name}: {data.location} holds tars, which have no columns."
                f" Leave out data.{key}=."
            )
    files = [file for some in contents.files.values() for file in some]
    with ThreadPoolExecutor(READERS) as pool:
        made = pool.map(lambda file: _members(file, data.label_column), files)
        read = dict(zip(files, made, strict=True))
    kinds = [
        kind for kind in IMAGE_KINDS if any(kind in members.images for members in read.values())
    ]
    for file, of_file in read.items():
        if not of_file.images.get(kinds[0] if kinds else ""):
            raise UserError(
                f"data.path={file}: this tar has no images such as 0001.jpg or 0001.png. Remove the"
                " tar."
            )
    _count_skipped(read.values(), kinds, contents, guesses)
    images = {
        split: [read[file].images[kinds[0]] for file in some]
        for split, some in contents.files.items()
    }
    stored = {
        split: Stored(
            [
                read[file].label(key)
                for file, members in zip(contents.files[split], some, strict=True)
                for key in members
            ],
            columns=TAR_LABELS,
        )
        for split, some in images.items()
    }
    column = data.label_column or "label"
    if data.label_column and all(
        value is None for split_values in stored.values() for value in split_values.values
    ):
        raise UserError(
            f"data.label_column={column}: no image in {data.location} has this label. Use cls for"
            " the .cls files, or a key of the .json files."
        )
    source = (
        f"{data.label_column} of the tars" if data.label_column else ".cls and .json of the tars"
    )
    reading = Reading(column, data.location, source, asked=data.label_column is not None)
    split_labels = labels.read(stored, reading, guesses, data.labels)
    return {
        split: Source(
            TarStore(contents.files[split], [members.values() for members in some]),
            split_labels[split],
        )
        for split, some in images.items()
    }


def _count_skipped(
    read: Iterable[Members], kinds: Sequence[str], contents: Contents, guesses: list[str]
) -> None:
    """Count and name the files of tars that are left out."""
    skipped: Counter[str] = Counter()
    beside: list[str] = []
    for members in read:
        skipped += members.skipped
        beside += members.beside
        for kind in kinds[1:]:
            skipped[OTHERS[kind]] += len(members.images.get(kind, ()))
    contents.skipped.extend(
        f"{count_of(count, what)} of the tars" for what, count in sorted(skipped.items())
    )
    if beside:
        guesses.append(
            "tars hold several images with the same name up to the first dot. Left out:"
            f" {count_of_images(len(beside))}, such as {beside[0]}"
        )


def _members(file: Path, column: str | None) -> Members:
    """Read the headers and labels of a tar.

    Labels come from .cls files, else from the key `label` of .json files. With `column`, they come
    from this key only ("cls" for the .cls files).

    Raises:
        UserError: the tar is damaged, or does not end as a tar does.
    """
    members = Members()
    count = 0
    try:
        with tarfile.open(file, "r:") as tar, file.open("rb") as raw:
            for member in _forward(tar, file.stat().st_size):
                if not member.isdir():
                    count += _sort_in(member, raw.fileno(), column, members)
            if os.pread(raw.fileno(), tarfile.BLOCKSIZE, tar.offset) != bytes(tarfile.BLOCKSIZE):
                raise ValueError(f"the tar is cut off or damaged at byte {tar.offset}")
    except (MemoryError, RecursionError, LookupError) as error:  # from damaged headers
        raise UserError(
            f"data.path={file}: the tar is damaged, after {count_of_images(count)}:"
            f" {type(error).__name__}"
        ) from None
    except (OSError, ValueError, OverflowError, tarfile.TarError) as error:
        after = f", after {count_of_images(count)}" if isinstance(error, ValueError) else ""
        raise UserError(f"data.path={file}: {reason(error)}{after}") from None
    for of_kind in members.images.values():
        for key in [key for key in of_kind if _sample(key) != key and _sample(key) in of_kind]:
            del of_kind[key]  # such as 0001.seg.png next to 0001.png
            members.beside.append(key)
    return members


def _forward(tar: tarfile.TarFile, length: int) -> Iterator[tarfile.TarInfo]:
    """Yield the members of a tar, each after the member before.

    A damaged size could lead back, and into an endless loop.

    Raises:
        ValueError: a member lies before the last member, or not wholly in the file.
    """
    reached = -1
    while (member := tar.next()) is not None:
        fits = 0 <= member.size <= length - member.offset_data or not member.isreg()
        if member.offset <= reached or not fits:
            raise ValueError(f"the tar is cut off or damaged at byte {member.offset}")
        reached = member.offset
        yield member
        # otherwise tarfile keeps all members, maybe millions
        tar.members.clear()  # type: ignore[attr-defined]


def _sort_in(
    member: tarfile.TarInfo, descriptor: int, column: str | None, members: Members
) -> bool:
    """Add a member of a tar to `members`, and return whether it is an image."""
    key, _, ending = posixpath.normpath(member.name).rpartition(".")
    file = member.name.rpartition("/")[2]
    parts = [part for part in member.name.split("/") if part not in (".", "..")]
    if any(layout.is_hidden(part) for part in parts):
        members.skipped["hidden files"] += 1
    elif not member.isreg():
        members.skipped["links" if member.issym() or member.islnk() else "special files"] += 1
    elif (end := ending.lower()) in LABEL_ENDINGS and member.size <= LONGEST_LABEL:
        if column is None or (column == "cls") == (end == "cls"):
            text = os.pread(descriptor, member.size, member.offset_data)
            label_members = members.labels.setdefault(key, {})
            label_members.setdefault(end, _label(end, text, column or "label"))
    elif (kind := layout.kind_of(file)) not in IMAGE_KINDS:
        members.skipped[layout.other_kind(file)] += 1
    elif key in members.images.setdefault(kind, {}):
        members.beside.append(member.name)
    else:
        members.images[kind][key] = Member(member.offset_data, member.size)
        return True
    return False


def _label(kind: str, text: bytes, column: str) -> Any:
    """Return the label in a .cls or .json file, or None.

    A .cls file holds JSON or the text of a label; a .json file has the label under the key
    `column`.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        plain = " ".join(text.decode(errors="replace").split())
        return plain if plain and kind == "cls" else None
    if kind == "json":
        return value.get(column) if isinstance(value, dict) else None
    return value
