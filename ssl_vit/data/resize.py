"""Pictures made smaller once and for good: rows of a source -> a parquet shard that training reads in their place."""

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import datasets
import numpy as np
import pyarrow
import pyarrow.parquet
from einops import rearrange
from PIL import Image
from torch.utils.data import Dataset

from . import pictures
from .parts import Source

ROW_GROUP = 100  # pictures: about 2.5 MB at 256 px, what a mounted disk likes to read at once


class Manner(NamedTuple):
    """Shorter sides above `size` are brought to it, and the picture is encoded as `format` (jpeg, webp) of this quality."""

    size: int
    format: str
    quality: int


class Shard(NamedTuple):
    """Rows `first` to `last` of a source, and the file that they become."""

    source: Source
    first: int
    last: int
    file: Path


class Made(NamedTuple):
    """A finished shard: of `asked` pictures those that are in it, its bytes, and the names of those that could not be read,
    where it was made just now."""

    file: Path
    asked: int
    pictures: int
    bytes: int
    unread: list[str]


def found(shard: Shard) -> Made:
    """One that was finished before."""
    count = pyarrow.parquet.read_metadata(shard.file).num_rows
    return Made(shard.file, shard.last - shard.first, count, shard.file.stat().st_size, [])


def shrink(raw: bytes | np.ndarray, manner: Manner) -> bytes:
    """The picture no larger than asked for; an encoded one that already is, as it is.

    Raises:
        ValueError: it cannot be read.
    """
    image = pictures.decode(raw)
    side = min(image.shape[1:])
    if isinstance(raw, bytes) and side <= manner.size:
        return raw
    small, file = pictures.short_side(image, min(side, manner.size)), io.BytesIO()
    Image.fromarray(rearrange(small, "c h w -> h w c").numpy()).save(file, manner.format, quality=manner.quality)
    return file.getvalue()


class Making(Dataset):
    """Shards that are made by being asked for, so that a loader's workers make several at once."""

    def __init__(self, shards: list[Shard], manner: Manner) -> None:
        self.shards, self.manner = shards, manner

    def __len__(self) -> int:
        return len(self.shards)

    def __getitem__(self, number: int) -> Made:
        """The file appears whole, under its name, or not at all."""
        source, first, last, file = self.shards[number]
        beside = file.with_name(f".{file.name}.{os.getpid()}.part")  # a killed run's worker may still be writing its own
        unread: list[str] = []
        label = datasets.ClassLabel(names=source.classes) if source.classes else datasets.Value("int64")
        schema = datasets.Features({"image": datasets.Image(), "label": label}).arrow_schema
        with pyarrow.parquet.ParquetWriter(beside, schema, compression="none", use_dictionary=False) as writer:
            for start in range(first, last, ROW_GROUP):
                rows = list(_small(source, np.arange(start, min(start + ROW_GROUP, last)), self.manner, unread))
                writer.write_table(pyarrow.Table.from_pylist(rows, schema))
        with beside.open("rb") as written:
            os.fsync(written.fileno())
        beside.replace(file)
        return Made(file, last - first, last - first - len(unread), file.stat().st_size, unread)


def _small(source: Source, rows: np.ndarray, manner: Manner, unread: list[str]) -> Iterator[dict[str, object]]:
    """Cells of these rows; those that cannot be read are named in `unread` and left out."""
    for row, raw, label in zip(rows.tolist(), *source.fetch(rows), strict=True):
        try:
            yield {"image": {"bytes": shrink(raw, manner), "path": None}, "label": None if label < 0 else int(label)}
        except ValueError as error:
            unread.append(f"{source.name(row)}: {error}")
