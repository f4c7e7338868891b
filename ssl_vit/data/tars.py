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
from ..formatting import format_count, format_image_count
from ..recipe.images import Data
from . import labels, layout
from .labels import LabelRules, StoredLabels
from .layout import CONTAINERS, IMAGE_KINDS, Contents
from .source import READERS, Raw, Source, Store

TAR_LABELS = (
    " In a tar, the label of 0001.jpg is the content of 0001.cls or the value of the key label in"
    " 0001.json. It is a whole number, a text or, with data.label_column=, a list of class numbers."
)
LONGEST_LABEL = 2**20  # bytes; a longer .cls or .json file is no label
LABEL_ENDINGS = ("cls", "json")


class Member(NamedTuple):
    """Place of a file's bytes in a tar."""

    offset: int
    size: int


@dataclass
class Members:
    """Images and labels of a tar.

    A key is the path of a file without the ending, such as "train/0001".

    Attributes:
        images: {"images" or "arrays": {key: place of the image}}.
        labels: {key: {"cls" or "json": label}}, such as {"train/0001": {"cls": 3}}.
        skipped: Number of files that are not used, by kind.
        duplicates: Names of unused images, because another image has the same key.
        unreadable: Endings of images that need an extra which is not installed.
    """

    images: dict[str, dict[str, Member]] = field(default_factory=dict)
    labels: dict[str, dict[str, Any]] = field(default_factory=dict)
    skipped: Counter[str] = field(default_factory=Counter)
    duplicates: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=layout.unreadable_endings)

    def label(self, key: str) -> Any:
        """Return the label of an image, or None.

        If a .cls file and a .json file have a label, the label in the .cls file is returned.
        """
        # the label of 0001.seg.png is in 0001.seg.cls (or .json), or else in 0001.cls (or .json)
        label_of = self.labels.get(key) or self.labels.get(_sample_key(key)) or {}
        return next((label_of[ending] for ending in LABEL_ENDINGS if ending in label_of), None)


def _sample_key(path: str) -> str:
    """Return the key that WebDataset gives to a file: the path up to the first dot of the name.

    >>> _sample_key("train.a/0001.seg")
    'train.a/0001'
    """
    folder, slash, name = path.rpartition("/")
    return folder + slash + name.partition(".")[0]


class TarStore(Store):
    """Store of images that are read from tars, without unpacking.

    Args:
        files: The tars.
        members: For each tar, the places of its images.
    """

    def __init__(self, files: Sequence[Path], members: Sequence[Iterable[Member]]) -> None:
        self.files = list(files)
        rows = [
            (number, member.offset, member.size)
            for number, tar_members in enumerate(members)
            for member in tar_members
        ]
        # `reshape` is needed if there are no rows
        self.file_N, self.offset_N, self.size_N = np.array(rows, np.int64).reshape(-1, 3).T.copy()

    def __len__(self) -> int:
        return len(self.file_N)

    def fetch(self, rows: np.ndarray) -> list[Raw]:
        images: list[Raw] = [b""] * len(rows)
        for number in np.unique(self.file_N[rows]).tolist():
            positions = np.flatnonzero(self.file_N[rows] == number)
            try:
                with self.files[number].open("rb", buffering=0) as file:
                    for i in positions.tolist():
                        row = rows[i]
                        size, offset = int(self.size_N[row]), int(self.offset_N[row])
                        images[i] = os.pread(file.fileno(), size, offset)
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
                # the block before the image is the header, which holds the name
                header_offset = int(self.offset_N[row]) - tarfile.BLOCKSIZE
                header = os.pread(opened.fileno(), tarfile.BLOCKSIZE, header_offset)
            name = tarfile.TarInfo.frombuf(header, "utf-8", "replace").name
        except (OSError, tarfile.TarError):  # the file has changed since
            name = f"row {row}"
        return f"{file.name}, {name}"


def open_tars(contents: Contents, data: Data, guesses: list[str]) -> dict[str, Source]:
    """Open every split of a folder of tars.

    Args:
        contents: The tars of each split. Descriptions of unused files are added to
            `contents.skipped`.
        data: The recipe's options of the images.
        guesses: A list to which warnings are added.

    Returns:
        {name of the split: images with labels}.

    Raises:
        UserError: A tar is cut off or holds no images, an option names a column, or a value is no
            label.
    """
    for key in ("image_column", "group"):
        column_name = getattr(data, key)
        if column_name is not None:
            raise UserError(
                f"data.{key}={column_name}: {data.location} holds tars, which have no columns."
                f" Leave out data.{key}=."
            )
    files = [file for split_files in contents.files.values() for file in split_files]
    with ThreadPoolExecutor(READERS) as pool:
        all_members = pool.map(lambda file: _members(file, data.label_column), files)
        members_of = dict(zip(files, all_members, strict=True))
    kinds = [
        kind
        for kind in IMAGE_KINDS
        if any(kind in members.images for members in members_of.values())
    ]
    for file, members in members_of.items():
        if not kinds or not members.images.get(kinds[0]):
            problem = " ".join(layout.describe_missing_extras(members.skipped)) or (
                "this tar has no images such as 0001.jpg or 0001.png. Remove the tar."
            )
            raise UserError(f"data.path={file}: {problem}")
    _report_skipped(members_of.values(), kinds, contents, guesses)
    kind = kinds[0]
    stored = {}
    for split, split_files in contents.files.items():
        split_members = [members_of[file] for file in split_files]
        values = [members.label(key) for members in split_members for key in members.images[kind]]
        stored[split] = StoredLabels(values, columns=TAR_LABELS)
    column = data.label_column or "label"
    no_image_has_label = all(
        value is None for split_values in stored.values() for value in split_values.values
    )
    if data.label_column and no_image_has_label:
        raise UserError(
            f"data.label_column={column}: no image in {data.location} has a label under"
            " this name. The name cls means the .cls files, and any other name means a key of the"
            " .json files. Use a name that the tars contain."
        )
    source = f"{data.label_column or '.cls and .json'} of the tars"
    rules = LabelRules(column, data.location, source, asked=data.label_column is not None)
    labels_of = labels.read(stored, rules, guesses, data.labels)
    splits = {}
    for split, split_files in contents.files.items():
        images = [members_of[file].images[kind].values() for file in split_files]
        splits[split] = Source(TarStore(split_files, images), labels_of[split])
    return splits


def _report_skipped(
    tars: Iterable[Members], kinds: Sequence[str], contents: Contents, guesses: list[str]
) -> None:
    """Add descriptions of unused files to `contents.skipped`, such as "3 .txt files of the tars".

    `guesses` gets a warning about images that are left out because of equal keys, or because an
    extra is not installed.

    Args:
        tars: The members of each tar.
        kinds: The kinds of images in the tars. Only files of the first kind are used.
        contents: The tars of each split.
        guesses: A list to which warnings are added.
    """
    skipped: Counter[str] = Counter()
    duplicates: list[str] = []
    for members in tars:
        skipped += members.skipped
        duplicates += members.duplicates
        for kind in kinds[1:]:
            skipped[CONTAINERS[kind].plural] += len(members.images.get(kind, ()))
    contents.skipped.extend(
        f"{format_count(count, plural)} of the tars" for plural, count in sorted(skipped.items())
    )
    guesses += layout.describe_missing_extras(skipped)
    if duplicates:
        guesses.append(
            "tars hold several images with the same name up to the first dot. Left out:"
            f" {format_image_count(len(duplicates))}, such as {duplicates[0]}"
        )


def _members(file: Path, column: str | None) -> Members:
    """Read the headers and the labels of a tar.

    Args:
        file: The tar.
        column: The value of data.label_column. For None, labels are in .cls files and under the key
            `label` of .json files. For "cls", labels are only in .cls files. For another name,
            labels are only in .json files, under this name.

    Raises:
        UserError: The tar is damaged or cut off.
    """
    members = Members()
    num_images = 0
    try:
        with tarfile.open(file, "r:") as tar, file.open("rb") as raw:
            for member in _read_headers(tar, file.stat().st_size):
                if not member.isdir():
                    num_images += _add_member(member, raw.fileno(), column, members)
            # a complete tar ends with a block of zeros
            if os.pread(raw.fileno(), tarfile.BLOCKSIZE, tar.offset) != bytes(tarfile.BLOCKSIZE):
                raise ValueError(f"the tar is cut off or damaged at byte {tar.offset}")
    except (MemoryError, RecursionError, LookupError) as error:  # from damaged headers
        raise UserError(
            f"data.path={file}: the tar is damaged after {format_image_count(num_images)}"
            f" ({type(error).__name__}). Copy the tar again, or remove the tar."
        ) from None
    except ValueError as error:
        raise UserError(
            f"data.path={file}: reading failed after {format_image_count(num_images)} with the"
            f" error: {reason(error)}. Copy the tar again, or remove the tar."
        ) from None
    except (OSError, OverflowError, tarfile.TarError) as error:
        raise UserError(f"data.path={file}: {reason(error)}") from None
    for images in members.images.values():
        # leave out an image such as 0001.seg.png next to 0001.png: both belong to the sample 0001
        additional = [
            key for key in images if _sample_key(key) != key and _sample_key(key) in images
        ]
        for key in additional:
            del images[key]
            members.duplicates.append(key)
    return members


def _read_headers(tar: tarfile.TarFile, length: int) -> Iterator[tarfile.TarInfo]:
    """Yield the headers of a tar's members in the order of the file.

    A negative size in a damaged header is an error, because tarfile would jump back and read the
    same members for ever.

    Args:
        tar: The opened tar.
        length: The size of the tar in bytes.

    Raises:
        ValueError: A member begins before the previous member, has a negative size, or ends after
            the end of the tar.
    """
    last_offset = -1
    for member in iter(tar.next, None):
        # a regular file has at least 0 bytes, and ends at the end of the tar or before
        is_cut_off = member.isreg() and not 0 <= member.size <= length - member.offset_data
        if member.offset <= last_offset or is_cut_off:
            raise ValueError(f"the tar is cut off or damaged at byte {member.offset}")
        last_offset = member.offset
        yield member
        # otherwise, tarfile keeps all members in memory, maybe millions
        tar.members.clear()  # type: ignore[attr-defined]


def _add_member(
    member: tarfile.TarInfo, descriptor: int, column: str | None, members: Members
) -> bool:
    """Add a file of a tar to `members`, and return whether the file is a used image.

    For an image, the offset and the size in the tar are recorded. For a .cls or .json file, the
    label is read. Other files are counted as skipped.

    Args:
        member: The header of the file.
        descriptor: The opened tar, to read labels.
        column: The value of data.label_column. For None, labels are in .cls files and under the key
            `label` of .json files. For "cls", labels are only in .cls files. For another name,
            labels are only in .json files, under this name.
        members: The images and labels of this tar so far, which are changed.
    """
    key, _, ending = posixpath.normpath(member.name).rpartition(".")
    ending = ending.lower()
    file = member.name.rpartition("/")[2]
    kind = layout.kind_of(file, members.unreadable)
    parts = [part for part in member.name.split("/") if part not in (".", "..")]
    if any(layout.is_hidden(part) for part in parts):
        members.skipped["hidden files"] += 1
    elif not member.isreg():
        members.skipped["links" if member.issym() or member.islnk() else "special files"] += 1
    elif ending in LABEL_ENDINGS and member.size <= LONGEST_LABEL:
        wanted_ending = "cls" if column == "cls" else "json"
        if column is None or ending == wanted_ending:
            content = os.pread(descriptor, member.size, member.offset_data)
            label = _parse_label(ending, content, column or "label")
            label_of = members.labels.setdefault(key, {})
            label_of.setdefault(ending, label)  # of several files with this name, keep the first
    elif kind not in IMAGE_KINDS:
        members.skipped[layout.other_kind(file)] += 1
    elif key in members.images.setdefault(kind, {}):
        members.duplicates.append(member.name)
    else:
        members.images[kind][key] = Member(member.offset_data, member.size)
        return True
    return False


def _parse_label(kind: str, content: bytes, column: str) -> Any:
    """Return the label in a .cls or .json file, or None for no label.

    A .cls file holds the label as JSON, such as 3 or [1, 2], or else as plain text. A .json file
    holds a JSON object with the label under the key `column`.

    For example, a .json file with {"label": 3} has the label 3 if the column is "label". A .cls
    file with the text cat has the label "cat".

    Args:
        kind: The ending of the file, "cls" or "json".
        content: The content of the file.
        column: The key of the label in a JSON object.
    """
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        text = " ".join(content.decode(errors="replace").split())
        return text if text and kind == "cls" else None  # a damaged .json file has no label
    if kind == "json":
        return value.get(column) if isinstance(value, dict) else None
    return value
