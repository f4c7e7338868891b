"""Images as arrays in a table: a column of `datasets.Array3D`, as data sets of more channels than
RGB have on the Hub."""

import math
from typing import Any

import datasets
import numpy as np
import pyarrow


def array_shape(feature: Any) -> tuple[int | None, ...] | None:
    """The shape of a column's arrays, None for a side that is not the same for all; None of a
    column that holds something else."""
    return tuple(feature.shape) if isinstance(feature, datasets.Array3D) else None


def array_cell(cell: pyarrow.Array, shape: tuple[int | None, ...]) -> bytes | np.ndarray:
    """The array of one cell, a column of one row; b"", which no decoder reads, of one that is
    missing or not of that shape."""
    stored = cell.storage if isinstance(cell, pyarrow.ExtensionArray) else cell
    if stored.null_count:
        return b""
    flat = stored.flatten().flatten().flatten().to_numpy(zero_copy_only=False)
    inside = math.prod(side or 0 for side in shape[1:])
    if not inside or len(flat) % inside or shape[0] not in (None, len(flat) // inside):
        return b""
    return np.array(flat.reshape(-1, *shape[1:]))
