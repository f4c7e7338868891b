"""Parquet files of columns that a test names."""

import io
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from helpers.images import png

TRAIN = 24  # rows of a table


def cells(numbers):
    return [{"bytes": png(number), "path": None} for number in numbers]


def parquet(path, columns, features=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    datasets.Dataset.from_dict(columns, features=features).to_parquet(str(path))
    return path


def raw_parquet(path, **columns):
    """A parquet file without the types of `datasets`: other programs write such files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=2)
    return path


def image(number: int, kind: str = "PNG") -> bytes:
    data = io.BytesIO()
    noise = np.random.default_rng(number).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    Image.fromarray(noise).save(data, kind)
    return data.getvalue()


def table(
    path: Path, labels: list | None, images: list[bytes] | None = None, name: str = "label"
) -> Path:
    """A parquet file of images and, where there are labels, a column of them."""
    images = images or [image(n) for n in range(TRAIN)]
    columns: dict[str, list] = {"image": [{"bytes": b, "path": None} for b in images]}
    datasets.Dataset.from_dict(columns | ({name: labels} if labels else {})).to_parquet(path)
    return path


def broken(number: int) -> bytes:
    return image(number, "JPEG")[:-300]
