"""Compute fingerprints: hashes of a split's images, wherever they are stored. Without torch.

A split of at most 1 GiB (MOST_BYTES) is hashed in full. For a larger split, the labels, names and
sizes of all files or images are hashed, and the contents of an evenly spaced sample of about 1 GiB.
The fingerprint then misses a change if an image outside of the sample is replaced by an image of
the same name and size. Images in a tar, and in a table without a column of paths, have no names.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from .layout import inspect
from .run_splits import Splits
from .source import Raw, Source, Store, file_bytes

MOST_BYTES = 2**30  # bytes of encoded images, a few seconds from a local disk
ROWS = 256  # rows that are read at a time


def fingerprint_splits(
    splits: Splits, place: str | None = None, masks: bool = False, grouped: bool = False
) -> dict[str, str]:
    """Return {split: fingerprint of its images}.

    A share of the training or validation split has the fingerprint of the complete split, because
    the recipe defines the share. The fingerprint of test images also depends on the share, because
    reports compare test images.

    Args:
        splits: The splits of a run. For a stream, "train" has the hash of the first images, and an
            entry "stream" has a hash of the number of shards. With `place`, the entry "stream" also
            depends on the names and sizes of the files.
        place: The path of a stream's files on this machine, or None.
        masks: Whether to add {"masks of SPLIT": fingerprint} for splits with masks.
        grouped: Whether the fingerprint of train includes the groups (data.group).
    """
    sources = {"train": splits.train, "validation": splits.validation}
    if splits.test is not None:
        sources["test"] = splits.test
    # several splits may be shares of one store, so each store is hashed once
    source_of_store = {id(source.store): source for source in sources.values()}
    store_fingerprints = {
        store_id: fingerprint(source.all_rows()) for store_id, source in source_of_store.items()
    }
    fingerprints = {name: store_fingerprints[id(source.store)] for name, source in sources.items()}
    if splits.test is not None:
        fingerprints["test"] = fingerprint_of_share(splits.test, fingerprints["test"])
    if grouped:  # groups decide which images are tested on and held out
        assert splits.train.groups is not None
        fingerprints["train"] = _hash_with_numbers(
            fingerprints["train"], splits.train.groups.number_N
        )
    if masks:
        mask_fingerprints = {
            store_id: _hash_masks(source.all_rows())
            for store_id, source in source_of_store.items()
            if source.masks.column
        }
        for name, source in sources.items():
            if source.masks.column:
                fingerprints[f"masks of {name}"] = mask_fingerprints[id(source.store)]
    if splits.stream is not None:
        files = _listed(Path(place)) if place else ""
        fingerprints["stream"] = _hash(f"{splits.stream.shards} {files}")
    return fingerprints


def fingerprint_held_out(splits: Splits, fingerprints: dict[str, str]) -> str:
    """Return the fingerprint of the held-out images, on which losses and accuracies are measured.

    If a share of the training split is held out, the result depends on which images are held out.
    In contrast, fingerprints["validation"] is the fingerprint of the complete training split.

    Args:
        splits: The splits of a run.
        fingerprints: The result of `fingerprint_splits`.
    """
    return fingerprint_of_share(splits.validation, fingerprints["validation"])


def fingerprint(source: Source) -> str:
    """Hash the number, classes, labels and contents of a split's images, in row order.

    In a large split, the contents of every n-th image are hashed (`_choose_step`), and the names,
    sizes and labels of all images.

    Args:
        source: A split or a share of a split. For a share, the complete split is hashed, and then
            the rows of the share.
    """
    full_split = source.all_rows()
    size_N = full_split.store.sizes()
    step = _choose_step(full_split.store, size_N)
    digest = hashlib.sha256(f"{len(size_N)} {full_split.classes} {step}".encode())
    if step > 1:  # names, sizes and labels show most changes of images that are not read below
        digest.update("\n".join(full_split.store.names()).encode(errors="surrogateescape"))
        digest.update(size_N.astype("<i8").tobytes())
        digest.update(full_split.label_of(np.arange(len(size_N))).astype("<i8").tobytes())
    for rows in _hashed_rows(len(size_N), step):
        images, labels = full_split.fetch(rows)
        digest.update(labels.astype("<i8").tobytes())
        _digest(digest, images)
    return fingerprint_of_share(source, digest.hexdigest()[:16])


def _hash_masks(full_split: Source) -> str:
    """Hash the masks of a split, for the same rows whose images `fingerprint` hashes."""
    size_N = full_split.store.sizes()
    digest = hashlib.sha256()
    for rows in _hashed_rows(len(size_N), _choose_step(full_split.store, size_N)):
        _digest(digest, full_split.fetch_masks(rows))
    return digest.hexdigest()[:16]


def _choose_step(store: Store, size_N: np.ndarray) -> int:
    """Choose n to hash the contents of every n-th image.

    n is the smallest number with which about MOST_BYTES (1 GiB) or less are read. For 2.5 GiB, n is
    3. With n = 1, all images are hashed.

    Args:
        store: The store of the images. If `store.hashed_every` is set, n is this number.
        size_N: The size of each encoded image in bytes.
    """
    if store.hashed_every:
        return store.hashed_every
    return max(1, -(-int(size_N.sum()) // MOST_BYTES))  # the quotient is rounded up


def _digest(digest: "hashlib._Hash", cells: list[Raw]) -> None:
    """Add the length and the bytes of each image or mask to a digest."""
    for cell in cells:
        data = cell if isinstance(cell, bytes) else cell.tobytes()
        digest.update(f"{len(data)} ".encode())
        digest.update(data)


def fingerprint_of_share(source: Source, whole_fingerprint: str) -> str:
    """Return the fingerprint of a split or of a share of a split.

    Args:
        source: The images.
        whole_fingerprint: The fingerprint of the complete split.

    Returns:
        For a complete split, `whole_fingerprint`. For a share, a hash of `whole_fingerprint` and of
        the rows of the share.
    """
    if not source.is_share():
        return whole_fingerprint
    return _hash_with_numbers(whole_fingerprint, source.store_rows())


def _hash_with_numbers(fingerprint: str, numbers: np.ndarray) -> str:
    """Hash a fingerprint together with an array of integers."""
    return _hash(f"{fingerprint} {hashlib.sha256(numbers.astype('<i8').tobytes()).hexdigest()}")


def _hashed_rows(count: int, step: int) -> Iterator[np.ndarray]:
    """Yield every `step`th row, at most ROWS rows at a time."""
    rows = np.arange(0, count, step)
    yield from (rows[i : i + ROWS] for i in range(0, len(rows), ROWS))


def _listed(place: Path) -> str:
    """List the names and sizes in bytes of parquet files, sorted, with one file per line.

    A line is, for example, "train/0001.parquet 52428800".

    Args:
        place: A folder of parquet files, or a parquet file.
    """
    root = place if place.is_dir() else place.parent
    lines = []
    for files in inspect(place).files.values():
        lines += [f"{file.relative_to(root).as_posix()} {file_bytes(file)}" for file in files]
    return "\n".join(sorted(lines))


def _hash(text: str) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of a text."""
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]
