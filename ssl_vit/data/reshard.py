"""Writes rows of a source as a parquet shard of smaller images, which training reads instead."""

import io
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import numpy as np
import pyarrow
import pyarrow.parquet
from einops import rearrange
from PIL import Image
from torch.utils.data import Dataset

from ..errors import UserError
from ..runs.files import replacing, sync
from . import transforms
from .base import Source, read_each
from .image_formats import format_of
from .label_lists import UNLABELLED

ROW_GROUP = 100  # images: about 2.5 MB at 256 px, an efficient read from a network disk


class Encoding(NamedTuple):
    """Shorter sides above `size` pixels are reduced to it; the image is encoded as `format` (jpeg,
    webp) with this quality."""

    size: int
    format: str
    quality: int


class PlannedShard(NamedTuple):
    """Rows first .. last-1 of a source, and the file to write them to."""

    source: Source
    first: int
    last: int
    file: Path


class FinishedShard(NamedTuple):
    """A finished shard: how many of the `requested` images it has, its bytes, and the names of
    those that could not be read (empty where it was written by an earlier start)."""

    file: Path
    requested: int
    images: int
    bytes: int
    unreadable: list[str]


def finished_shard(shard: PlannedShard) -> FinishedShard:
    """A shard that an earlier start finished.

    Raises:
        UserError: it is damaged, or has more rows than the shard.
    """
    wanted = shard.last - shard.first
    try:
        count = pyarrow.parquet.read_metadata(shard.file).num_rows
    except pyarrow.ArrowException as error:
        text = " ".join(str(error).split())[:200]
        raise UserError(f"{shard.file} is damaged; remove it: {text}") from None
    if count > wanted:
        raise UserError(f"{shard.file} has {count:,} rows, expected at most {wanted:,}; remove it")
    return FinishedShard(shard.file, wanted, count, shard.file.stat().st_size, [])


def reencode(raw: bytes | np.ndarray, encoding: Encoding) -> bytes:
    """The image with a shorter side of at most `encoding.size`; an encoded one that is small enough
    is returned unchanged, of a format that other programs do not show as PNG.

    Raises:
        ValueError: it cannot be read.
    """
    image = transforms.decode(raw)
    side = min(image.shape[1:])
    kind = encoding.format
    if isinstance(raw, bytes) and side <= encoding.size:
        if format_of(raw).kind == "images":
            return raw
        kind = "png"
    small = transforms.resize_short_side(image, min(side, encoding.size))
    file = io.BytesIO()
    pixels = rearrange(small, "c h w -> h w c").numpy()
    Image.fromarray(pixels).save(file, kind, quality=encoding.quality)
    return file.getvalue()


class ShardMaker(Dataset):
    """Writes a shard when it is indexed, so that a data loader's workers write several in
    parallel."""

    def __init__(self, shards: list[PlannedShard], encoding: Encoding) -> None:
        self.shards = shards
        self.encoding = encoding

    def __len__(self) -> int:
        return len(self.shards)

    def __getitem__(self, number: int) -> FinishedShard:
        """Write one shard, atomically."""
        source, first, last, file = self.shards[number]
        unreadable: list[str] = []
        label = (
            datasets.ClassLabel(names=source.classes) if source.classes else datasets.Value("int64")
        )
        if source.lists:
            label = datasets.List(label)
        schema = datasets.Features({"image": datasets.Image(), "label": label}).arrow_schema
        how = {"compression": "none", "use_dictionary": False}
        with replacing(file) as beside:
            with pyarrow.parquet.ParquetWriter(beside, schema, **how) as writer:
                for start in range(first, last, ROW_GROUP):
                    rows = np.arange(start, min(start + ROW_GROUP, last))
                    cells = list(_small(source, rows, self.encoding, unreadable))
                    writer.write_table(pyarrow.Table.from_pylist(cells, schema))
            sync(beside)
        count = last - first
        size = file.stat().st_size
        return FinishedShard(file, count, count - len(unreadable), size, unreadable)


def _small(
    source: Source, rows: np.ndarray, encoding: Encoding, unreadable: list[str]
) -> Iterator[dict[str, object]]:
    """Cells of these rows; those that cannot be read are named in `unreadable` and left out."""
    raw, labels = source.fetch(rows)
    small = partial(reencode, encoding=encoding)
    for place, image in read_each(source, rows, raw, small, unreadable):
        yield {"image": {"bytes": image, "path": None}, "label": _cell(labels[place])}


def _cell(label: Any) -> int | list[int] | None:
    """A label or a row of labels, as parquet has it."""
    if label.ndim == 0:
        return None if label < 0 else int(label)
    return None if label[0] == UNLABELLED else label[label >= 0].tolist()
