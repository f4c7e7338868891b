"""Images made smaller once and for good: rows of a source -> a parquet shard that training reads in
their place."""

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

from . import transforms
from .base import Source

ROW_GROUP = 100  # images: about 2.5 MB at 256 px, what a mounted disk likes to read at once


class Encoding(NamedTuple):
    """Shorter sides above `size` are brought to it, and the image is encoded as `format` (jpeg,
    webp) of this quality."""

    size: int
    format: str
    quality: int


class Shard(NamedTuple):
    """Rows `first` to `last` of a source, and the file that they become."""

    source: Source
    first: int
    last: int
    file: Path


class FinishedShard(NamedTuple):
    """A finished shard: how many of the `requested` images are in it, its bytes, and the names of those
    that could not be read, where it was made just now."""

    file: Path
    requested: int
    images: int
    bytes: int
    unreadable: list[str]


def finished_shard(shard: Shard) -> FinishedShard:
    """One that was finished before."""
    count = pyarrow.parquet.read_metadata(shard.file).num_rows
    return FinishedShard(shard.file, shard.last - shard.first, count, shard.file.stat().st_size, [])


def reencode(raw: bytes | np.ndarray, encoding: Encoding) -> bytes:
    """The image no larger than `encoding.size`; an encoded one that already is, as it is.

    Raises:
        ValueError: it cannot be read.
    """
    image = transforms.decode(raw)
    side = min(image.shape[1:])
    if isinstance(raw, bytes) and side <= encoding.size:
        return raw
    small, file = transforms.resize_short_side(image, min(side, encoding.size)), io.BytesIO()
    Image.fromarray(rearrange(small, "c h w -> h w c").numpy()).save(
        file, encoding.format, quality=encoding.quality
    )
    return file.getvalue()


class ShardMaker(Dataset):
    """Shards that are made when a loader indexes them, so that a loader's workers make several at once."""

    def __init__(self, shards: list[Shard], encoding: Encoding) -> None:
        self.shards, self.encoding = shards, encoding

    def __len__(self) -> int:
        return len(self.shards)

    def __getitem__(self, number: int) -> FinishedShard:
        """The file appears whole, under its name, or not at all."""
        source, first, last, file = self.shards[number]
        # a killed run's worker may still be writing its own
        beside = file.with_name(f".{file.name}.{os.getpid()}.part")
        unreadable: list[str] = []
        label = (
            datasets.ClassLabel(names=source.classes) if source.classes else datasets.Value("int64")
        )
        schema = datasets.Features({"image": datasets.Image(), "label": label}).arrow_schema
        with pyarrow.parquet.ParquetWriter(
            beside, schema, compression="none", use_dictionary=False
        ) as writer:
            for start in range(first, last, ROW_GROUP):
                rows = list(
                    _small(
                        source,
                        np.arange(start, min(start + ROW_GROUP, last)),
                        self.encoding,
                        unreadable,
                    )
                )
                writer.write_table(pyarrow.Table.from_pylist(rows, schema))
        with beside.open("rb") as written:
            os.fsync(written.fileno())
        beside.replace(file)
        return FinishedShard(
            file, last - first, last - first - len(unreadable), file.stat().st_size, unreadable
        )


def _small(
    source: Source, rows: np.ndarray, encoding: Encoding, unreadable: list[str]
) -> Iterator[dict[str, object]]:
    """Cells of these rows; those that cannot be read are named in `unreadable` and left out."""
    for row, raw, label in zip(rows.tolist(), *source.fetch(rows), strict=True):
        try:
            yield {
                "image": {"bytes": reencode(raw, encoding), "path": None},
                "label": None if label < 0 else int(label),
            }
        except ValueError as error:
            unreadable.append(f"{source.name(row)}: {error}")
