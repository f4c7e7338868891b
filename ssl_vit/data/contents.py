"""Hash the contents of images, so that a copy is recognised in any container. Without torch."""

from collections.abc import Iterable

import numpy as np
import xxhash

from ..recipe.records.run import Copies
from ..stats import effective_number
from .source import Source

READ_AT_ONCE = 256  # images
NO_HASHES = np.empty(0, np.int64)


def content_hash(raw: bytes | np.ndarray) -> int:
    """Return the 64-bit XXH3 hash (Collet, https://xxhash.com) of an image.

    Encoded images are hashed by their bytes, arrays by their type, shape and values.
    """
    if isinstance(raw, bytes):
        return xxhash.xxh3_64_intdigest(raw)
    digest = xxhash.xxh3_64(f"{raw.dtype.str} {raw.shape}".encode())
    digest.update(np.ascontiguousarray(raw).data)
    return digest.intdigest()


def signed(hashes: Iterable[int]) -> np.ndarray:
    """Reinterpret the bits of unsigned hashes as int64 (B,)."""
    return np.array(list(hashes), np.uint64).view(np.int64)


def hashes_of(source: Source, rows: np.ndarray) -> np.ndarray:
    """Return the hash of each row's image, int64 (B,)."""
    hashes = [NO_HASHES]
    for start in range(0, len(rows), READ_AT_ONCE):
        raw, _ = source.fetch(rows[start : start + READ_AT_ONCE])
        hashes.append(signed(map(content_hash, raw)))
    return np.concatenate(hashes)


def count_copies(hashes_M: np.ndarray, label_M: np.ndarray) -> Copies | None:
    """Count the distinct images among M images, and the images with different labels on the copies.

    Args:
        hashes_M: Hashes of the images' contents.
        label_M: Their labels, int64 (M,), or lists of labels (M, L).

    Returns:
        The counts, or None where all images are distinct.
    """
    copies_C = np.unique(hashes_M, return_counts=True)[1]
    if len(copies_C) == len(hashes_M):
        return None
    labelled = np.unique(np.column_stack([hashes_M, label_M]), axis=0)[:, 0]
    relabelled = int((np.unique(labelled, return_counts=True)[1] > 1).sum())
    effective = effective_number(copies_C)
    return Copies(distinct=len(copies_C), effective=effective, relabelled=relabelled)


def distinct(hashes: np.ndarray) -> np.ndarray:
    """Return the distinct hashes, sorted.

    The result equals `np.unique`, which takes 1.5 s for a million numbers of 64 bits (numpy 2.4).
    The stable sort used here merges parts that are sorted already in 20 ms.
    """
    ordered = np.sort(hashes, kind="stable")
    return ordered[np.diff(ordered, prepend=ordered[:1] - 1) != 0]


def is_among(hashes: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return which hashes occur in `known`, as bool of the shape of `hashes`.

    Args:
        hashes: Hashes of any shape.
        known: Sorted hashes from `distinct`.
    """
    place = np.searchsorted(known, hashes)
    return np.append(known, known[:1])[place] == hashes if len(known) else place < 0
