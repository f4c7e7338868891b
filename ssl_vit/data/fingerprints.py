"""Fingerprints: hashes of the images of a split, independent of where they are. No torch here.

A split of at most WHOLE bytes is hashed in full. Of a larger one, the labels, the names and the
sizes of all files or images are hashed, and the contents of an even sample of about WHOLE bytes. An
image outside of the sample that is replaced by another of the same name and size is not noticed.
Images of a tar, and of a table without a column of paths, have no names.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from .layout import inspect
from .run_splits import Splits
from .source import Raw, Source, Store, file_bytes

WHOLE = 2**30  # bytes of encoded images; a few seconds from a local disk
ROWS = 256  # read at a time


def fingerprint_splits(
    splits: Splits, place: str | None = None, masks: bool = False, grouped: bool = False
) -> dict[str, str]:
    """{split: fingerprint}. A share of a split has the fingerprint of the whole split: which share
    it is follows from the recipe; but that of test images, which reports compare, is of the share
    too. For a stream, that of its first images, and as `stream` a hash of the names and sizes of
    its files if it is read from `place` on this machine. With `masks` also {"masks of SPLIT":
    fingerprint} of the splits that have some. With `grouped` (data.group) that of train is of the
    groups too."""
    named = {"train": splits.train, "validation": splits.validation, "test": splits.test}
    there = {name: source for name, source in named.items() if source is not None}
    # splits may be shares of one store, which is hashed once
    stores = {id(source.store): source for source in there.values()}
    known = {key: fingerprint(source.whole()) for key, source in stores.items()}
    found = {name: known[id(source.store)] for name, source in there.items()}
    if splits.test is not None:
        found["test"] = of_part(splits.test, found["test"])
    if grouped:  # on which depends what is cut off for testing and held out
        assert splits.train.groups is not None
        found["train"] = _with(found["train"], splits.train.groups.number_N)
    if masks:
        of_masks = {key: _of_masks(one.whole()) for key, one in stores.items() if one.masks.column}
        found |= {
            f"masks of {name}": of_masks[id(one.store)]
            for name, one in there.items()
            if one.masks.column
        }
    if splits.stream is not None:
        files = _listed(Path(place)) if place else ""
        found["stream"] = _hash(f"{splits.stream.shards} {files}")
    return found


def fingerprint_held_out(splits: Splits, prints: dict[str, str]) -> str:
    """That of the held-out images, which losses and accuracies are of: of a share it is of the
    share too, unlike that in `prints`, which fingerprint_splits gave."""
    return of_part(splits.validation, prints["validation"])


def fingerprint(source: Source) -> str:
    """A hash of the number, classes, labels and contents of a split's images, in the order of its
    rows; of a share also of which rows of the whole split it has."""
    whole = source.whole()
    size_N = whole.store.sizes()
    step = _step(whole.store, size_N)
    digest = hashlib.sha256(f"{len(size_N)} {whole.classes} {step}".encode())
    if step > 1:
        digest.update("\n".join(whole.store.names()).encode(errors="surrogateescape"))
        digest.update(size_N.astype("<i8").tobytes())
        digest.update(whole.label_of(np.arange(len(size_N))).astype("<i8").tobytes())
    for rows in _chosen(len(size_N), step):
        images, labels = whole.fetch(rows)
        digest.update(labels.astype("<i8").tobytes())
        _digest(digest, images)
    return of_part(source, digest.hexdigest()[:16])


def _of_masks(whole: Source) -> str:
    """A hash of the masks of the rows whose images are hashed."""
    size_N = whole.store.sizes()
    digest = hashlib.sha256()
    for rows in _chosen(len(size_N), _step(whole.store, size_N)):
        _digest(digest, whole.fetch_masks(rows))
    return digest.hexdigest()[:16]


def _step(store: Store, size_N: np.ndarray) -> int:
    """Every how many images the contents are hashed of."""
    return store.hashed_every or max(1, -(-int(size_N.sum()) // WHOLE))


def _digest(digest: "hashlib._Hash", cells: list[Raw]) -> None:
    for cell in cells:
        data = cell if isinstance(cell, bytes) else cell.tobytes()
        digest.update(f"{len(data)} ".encode())
        digest.update(data)


def of_part(source: Source, of_whole: str) -> str:
    """Return the fingerprint of a split, given that of the whole split; that of a share also tells
    which rows the share has."""
    return _with(of_whole, source.store_rows()) if source.is_share() else of_whole


def _with(known: str, numbers: np.ndarray) -> str:
    """A fingerprint that is of some numbers too."""
    return _hash(f"{known} {hashlib.sha256(numbers.astype('<i8').tobytes()).hexdigest()}")


def _chosen(count: int, step: int) -> Iterator[np.ndarray]:
    """Every `step`th row, at most ROWS at a time."""
    rows = np.arange(0, count, step)
    yield from (rows[i : i + ROWS] for i in range(0, len(rows), ROWS))


def _listed(place: Path) -> str:
    """The names and sizes of the parquet files at a place, sorted."""
    files = [file for some in inspect(place).files.values() for file in some]
    root = place if place.is_dir() else place.parent
    lines = [f"{file.relative_to(root).as_posix()} {file_bytes(file)}" for file in files]
    return "\n".join(sorted(lines))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]
