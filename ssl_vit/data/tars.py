"""WebDataset tars: key.jpg with key.cls or key.json. All headers are read at the start; then each
image is read in place."""

import hashlib
import json
import os
import tarfile
from collections.abc import Iterator, Mapping, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError
from . import label_lists
from .base import FullSource, ReadUnits, relative_paths
from .decoding import IMAGES
from .label_lists import UNLABELLED
from .schemas import READERS

UNUSED = -(2**63)  # in place of a label that is no whole number, where no column is named
LONGEST_LABEL = 2**20  # bytes of a label's file; a longer file is something else


def open_splits(files: Mapping[str, Sequence[Path]], column: str = "") -> dict[str, "Tars"]:
    """The tars of each split.

    Args:
        files: of each split.
        column: where a label is, a key of key.json, or cls; then labels may be lists. Where one is
            a list, all of all splits are.

    Raises:
        UserError: a file that ends early, is no tar, holds no images or, in `column`, a label that
            is neither a number of a class nor a list of them.
    """
    with ThreadPoolExecutor(READERS) as pool:
        members = {
            split: list(pool.map(lambda file: _members(file, column), some))
            for split, some in files.items()
        }
    several = any(one["label"].ndim > 1 for some in members.values() for one in some)
    return {split: Tars(files[split], some, column, several) for split, some in members.items()}


class Tars(FullSource):
    """A split in tars. `unused` images have other labels than whole numbers.

    Args:
        files: the tars.
        members: of each, as `tar_images`.
        column: that labels are from; "" for those of .cls and .json.
        several: whether labels are lists.

    Raises:
        UserError: a label is no number of a class, or as `label_lists.check_numbers`.
    """

    def __init__(
        self, files: Sequence[Path], members: Sequence[np.ndarray], column: str, several: bool
    ) -> None:
        self.files = files
        self.classes = []
        self.columns = (
            "; a tar has them as key.cls or key.json with a whole number or, named by"
            " data.label_column=, lists of class numbers"
        )
        labels = [one["label"] for one in members]
        if several:
            parts = [label_lists.measure_padded(column, label_N) for label_N in labels]
            self.lists = label_lists.together(column, parts)
            labels = [label_lists.repadded(label_N, self.lists.longest) for label_N in labels]
        label_N = np.concatenate(labels)
        self.unused = int((label_N == UNUSED).sum())
        self.label_N = np.where(label_N == UNUSED, UNLABELLED, label_N)
        self.file_N = np.repeat(np.arange(len(files)), [len(one) for one in members])
        self.offset_N = np.concatenate([one["offset"] for one in members])
        self.size_N = np.concatenate([one["size"] for one in members])
        if self.label_N.max() >= 0:
            self.label_source = f"{column} of the tars" if column else ".cls and .json of the tars"

    def __len__(self) -> int:
        return len(self.file_N)

    def fetch(self, rows: np.ndarray) -> tuple[list[bytes | np.ndarray], np.ndarray]:
        images: list[bytes | np.ndarray] = [b""] * len(rows)
        for number in np.unique(self.file_N[rows]).tolist():
            places = np.flatnonzero(self.file_N[rows] == number)
            members = zip(
                places.tolist(),
                self.size_N[rows[places]].tolist(),
                self.offset_N[rows[places]].tolist(),
                strict=True,
            )
            try:
                with self.files[number].open("rb", buffering=0) as file:
                    for place, size, offset in members:
                        images[place] = os.pread(file.fileno(), size, offset)
            except OSError as error:
                text = f"cannot be read: {_text(error)}"
                raise UserError(f"data.path={self.files[number]}: {text}") from None
        return images, self.label_of(rows)

    def label_of(self, rows: np.ndarray) -> np.ndarray:
        return self.label_N[rows]

    def units(self) -> ReadUnits:
        names = relative_paths(map(str, self.files))
        labels = (
            f"{name} {hashlib.sha256(self.label_N[self.file_N == number].tobytes()).hexdigest()}"
            for number, name in enumerate(names)
        )
        return ReadUnits(self.size_N, lambda: labels)

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


def _members(file: Path, column: str) -> np.ndarray:
    """As `tar_images`.

    Raises:
        UserError: it cannot be read.
    """
    try:
        return tar_images(file, column)
    except (OSError, ValueError, OverflowError, tarfile.TarError) as error:
        raise UserError(f"data.path={file}: {_text(error)}") from None


def _text(error: Exception) -> str:
    """An error in one line, without the file's name."""
    return " ".join(str(getattr(error, "strerror", None) or error).split())[:300]


def tar_images(file: Path, column: str = "") -> np.ndarray:
    """Offset, size and label of each image of a tar, from its headers: a record of int64. Labels
    are those of the .cls files, else of the key `label` of the .json files, UNUSED for a list or a
    text. With `column` they are of that key alone (`cls`: of the .cls files), and where one is a
    list, all are, each as a row of `label_lists.padded`.

    Raises:
        ValueError: it does not end as a tar does, is damaged, or has no images; with `column`, a
            label is neither a number of a class nor a list of them.
    """
    found: dict[str, tuple[int, int]] = {}
    labels: dict[str, dict[str, Any]] = {}
    with tarfile.open(file, "r:") as tar, file.open("rb") as raw:
        try:
            for member in _forward(tar, file.stat().st_size, found):
                key, kind = _key(member.name)
                if member.isreg() and kind in IMAGES:
                    if key in found:
                        raise ValueError(f"{member.name}: a second image of {key}")
                    found[key] = member.offset_data, member.size
                elif member.isreg() and kind in ("cls", "json") and member.size <= LONGEST_LABEL:
                    text = os.pread(raw.fileno(), member.size, member.offset_data)
                    labels.setdefault(key, {})[kind] = _label(kind, text, column or "label")
        except (MemoryError, RecursionError, LookupError) as error:  # from damaged headers
            raise ValueError(f"damaged after {len(found)} images: {type(error).__name__}") from None
        if os.pread(raw.fileno(), tarfile.BLOCKSIZE, tar.offset) != bytes(tarfile.BLOCKSIZE):
            raise ValueError(f"cut off or damaged at byte {tar.offset}, after {len(found)} images")
    if not found:
        raise ValueError("no images in it (key.jpg, key.png, ...)")
    kinds = {"": ("cls", "json"), "cls": ("cls",)}.get(column, ("json",))
    known = [_chosen(labels.get(key, {}), kinds) for key in found]
    if column and any(isinstance(label, list) for label in known):
        label_N = label_lists.from_values(known)
    else:
        label_N = np.array([_single(label, column) for label in known], np.int64)
    label = ("label", "<i8", label_N.shape[1:])
    images = np.empty(len(found), np.dtype([("offset", "<i8"), ("size", "<i8"), label]))
    images["offset"], images["size"] = np.array(list(found.values()), np.int64).T
    images["label"] = label_N
    return images


def _chosen(labels: dict[str, Any], kinds: tuple[str, ...]) -> Any:
    """The label of the first of these kinds that there is."""
    return next((labels[kind] for kind in kinds if kind in labels), None)


def _forward(tar: tarfile.TarFile, length: int, found: Sized) -> Iterator[tarfile.TarInfo]:
    """The members, each after the one before it: a damaged size could lead back, and into an
    endless loop.

    Raises:
        ValueError: a member lies before the last one, or not wholly in the file.
    """
    reached = -1
    while (member := tar.next()) is not None:
        fits = 0 <= member.size <= length - member.offset_data or not member.isreg()
        if member.offset <= reached or not fits:
            raise ValueError(
                f"cut off or damaged at byte {member.offset}, after {len(found)} images"
            )
        reached = member.offset
        yield member
        # else tarfile keeps them all, which may be millions
        tar.members.clear()  # type: ignore[attr-defined]


def _key(name: str) -> tuple[str, str]:
    """WebDataset's convention: the path up to the first dot of the file's name is the sample's key,
    the rest the kind."""
    folder, slash, file = name.rpartition("/")
    key, _, kind = file.partition(".")
    return folder + slash + key, kind.lower()


def _single(label: Any, column: str) -> int:
    if label is None:
        return label_lists.UNLABELLED
    if type(label) is int and abs(label) < 2**63:
        return label
    if column or type(label) is int:
        raise ValueError(f"{str(label)[:100]}: {label_lists.EXPECTED}")
    return UNUSED


def _label(kind: str, text: bytes, key: str) -> Any:
    """What is in a .cls file, or in a .json file under the key; None where there is nothing, the
    text where it is no JSON."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return " ".join(text.decode(errors="replace").split()) or None
    if kind == "json":
        return value.get(key) if isinstance(value, dict) else None
    return value
