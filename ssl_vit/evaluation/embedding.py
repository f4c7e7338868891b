"""Features of whole splits in shards of parquet; and the images nearest to queries.

Legend: B images of a batch, M images of a shard, N patches, D width, Q queries, S sampled images,
P pairs of them.
"""

import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import numpy as np
import pyarrow
import pyarrow.parquet
import torch
from torch import Tensor

from .. import rng
from ..data.batching import Batch
from ..data.source import Source
from ..models.encoder import Backbone, Encoder
from ..training.loop import to_device

SAMPLED = 2000  # images of whose pairs the similarity is measured
SAMPLE_KEY = 7  # of the permutation by which they are drawn
UNREADABLE = b"unreadable"  # key of a parquet file's metadata: a JSON list of texts


class Pooled(NamedTuple):
    """What an encoder gives for a batch: a feature (B, D) an image, and its patch tokens (B, N, D)
    where they are wanted."""

    x_BD: Tensor
    h_BND: Tensor | None


TokenReader = Callable[[Tensor], Pooled]  # of uint8 images (B, 3, H, W)


class FeatureShard(NamedTuple):
    """Rows first .. last-1 of a split, and the file that holds their features."""

    split: str
    first: int
    last: int
    file: Path


class Embedded(NamedTuple):
    """The features of a shard's images.

    Attributes:
        index: int64 (M,), the image's row in its split.
        file: M names of images.
        label: int64 (M,), -1 for none.
        embedding: float32 (M, D).
        patches: float32 (M, N, D), row by row of the grid; None where they were not wanted.
        unreadable: names of the images that could not be read, and why; they have no row.
    """

    index: np.ndarray  # type: ignore[assignment]
    file: list[str]
    label: np.ndarray
    embedding: np.ndarray
    patches: np.ndarray | None
    unreadable: tuple[str, ...]


class Neighbor(NamedTuple):
    """An image near a query: cosine similarity, split, row, name and label (-1 for none), and the
    query's name."""

    similarity: float
    split: str
    index: int  # type: ignore[assignment]
    file: str
    label: int
    query: str = ""


class PairSimilarity(NamedTuple):
    """Cosine similarities of all pairs of `images` images: their mean, and what 1% are above."""

    mean: float
    high: float
    images: int


def token_reader(net: Backbone, pool: str, layer: int | None, patches: bool) -> TokenReader:
    """Features after the final norm or, with `layer` from 1, after that block; patch tokens are of
    the same layer. A convolutional network has its own pooling, and no patches."""

    def read(image_B3HW: Tensor) -> Pooled:
        if not isinstance(net, Encoder):
            return Pooled(net.feature(image_B3HW, pool, layer), None)
        h_BTD = net.tokens(image_B3HW, layer)
        h_BND = h_BTD[:, net.prefix :] if patches else None
        return Pooled(net.pooled(h_BTD, pool), h_BND)

    return read


@torch.no_grad()
def embed(
    read: TokenReader, batches: Iterable[Batch], source: Source, device: torch.device
) -> Embedded:
    """The features of a shard's batches (`loaders.evaluation_loader`). The caller enters
    autocast."""
    index = [np.empty(0, np.int64)]
    label = [np.empty(0, np.int64)]
    embedding: list[np.ndarray] = []
    patches: list[np.ndarray] = []
    unreadable: list[str] = []
    for batch in batches:
        unreadable += batch.unreadable
        if not len(batch.image):
            continue
        x_BD, h_BND = read(to_device(batch, device).image)
        index.append(batch.index.numpy())
        label.append(batch.label.numpy())
        embedding.append(x_BD.float().cpu().numpy())
        if h_BND is not None:
            patches.append(h_BND.float().cpu().numpy())
    index_M = np.concatenate(index)
    return Embedded(
        index_M,
        [source.file_of(row) for row in index_M.tolist()],
        np.concatenate(label),
        np.concatenate(embedding) if embedding else np.empty((0, 0), np.float32),
        np.concatenate(patches) if patches else None,
        tuple(unreadable),
    )


def encode(embedded: Embedded, classes: list[str]) -> bytes:
    """The content of a shard's file: columns `index`, `file`, `label` (null for none), `embedding`
    and, where there are any, `patches`."""
    label = datasets.ClassLabel(names=classes) if classes else datasets.Value("int64")
    vector = datasets.Sequence(datasets.Value("float32"))
    kinds: dict[str, Any] = {
        "index": datasets.Value("int64"),
        "file": datasets.Value("string"),
        "label": label,
        "embedding": vector,
    }
    columns = [
        pyarrow.array(embedded.index),
        pyarrow.array(embedded.file, pyarrow.string()),
        pyarrow.array(embedded.label, mask=embedded.label < 0),
        _lists(embedded.embedding),
    ]
    if embedded.patches is not None:
        kinds["patches"] = datasets.Sequence(vector)
        columns.append(_lists(embedded.patches))
    schema = datasets.Features(kinds).arrow_schema
    texts = json.dumps(embedded.unreadable).encode()
    schema = schema.with_metadata({**(schema.metadata or {}), UNREADABLE: texts})
    table = pyarrow.Table.from_arrays(columns, schema=schema)
    file = io.BytesIO()
    pyarrow.parquet.write_table(table, file, use_dictionary=False)
    return file.getvalue()


def _lists(values: np.ndarray) -> pyarrow.Array:
    """An array (M, ...) of numbers as M lists, nested as deep as it has further axes."""
    column = pyarrow.array(values.reshape(-1))
    for axis in range(values.ndim - 1, 0, -1):
        count = int(np.prod(values.shape[:axis]))
        offsets = np.arange(count + 1, dtype=np.int32) * values.shape[axis]
        column = pyarrow.ListArray.from_arrays(offsets, column)
    return column


def decode(file: Path) -> Embedded:
    """A shard's file without its patches.

    Raises:
        ValueError, OSError, KeyError: it is damaged.
    """
    table = pyarrow.parquet.read_table(file, columns=["index", "file", "label", "embedding"])
    embedding = table.column("embedding").combine_chunks()
    width = len(embedding.flatten()) // max(1, len(embedding))
    texts = (table.schema.metadata or {})[UNREADABLE]
    return Embedded(
        table.column("index").to_numpy(),
        table.column("file").to_pylist(),
        table.column("label").fill_null(-1).to_numpy(),
        embedding.flatten().to_numpy().reshape(-1, width),
        None,
        tuple(json.loads(texts)),
    )


def summary(file: Path) -> tuple[int, tuple[str, ...]]:
    """How many images a shard's file has, and those that could not be read; without its features.

    Raises:
        ValueError, OSError, KeyError: it is damaged.
    """
    found = pyarrow.parquet.read_metadata(file)
    return found.num_rows, tuple(json.loads(found.metadata[UNREADABLE]))


class Searched(NamedTuple):
    """The images nearest to each query, best first, and how similar two images are among which they
    were found; None of fewer than two."""

    nearest: list[list[Neighbor]]
    pairs: PairSimilarity | None


def search(query_QD: np.ndarray, shards: Sequence[FeatureShard], top: int) -> Searched:
    """The `top` images of the shards whose features have the highest cosine similarity with each
    query's; and the similarity of pairs of at most SAMPLED images, drawn by a key of their own.

    Args:
        query_QD: features of Q queries.
        shards: one after the other, each read once.
        top: images for a query.
    """
    count = sum(shard.last - shard.first for shard in shards)
    drawn = np.sort(rng.permute(np.arange(min(SAMPLED, count)), count, rng.key(SAMPLE_KEY)))
    query_QD = normalized(query_QD)
    best: list[list[Neighbor]] = [[] for _ in query_QD]
    sample = []
    start = 0
    for shard in shards:
        found = decode(shard.file)
        if len(found.index):
            x_MD = normalized(found.embedding)
            sample.append(x_MD[np.isin(start + found.index - shard.first, drawn)])
            for number, query_D in enumerate(query_QD):
                known = [*best[number], *_nearest_in(x_MD @ query_D, shard, found, top)]
                best[number] = sorted(known, key=lambda one: -one.similarity)[:top]
        start += shard.last - shard.first
    return Searched(best, _pair_similarity(np.concatenate(sample)) if sample else None)


def normalized(x_MD: np.ndarray) -> np.ndarray:
    """Features of length 1."""
    return x_MD / np.maximum(np.linalg.norm(x_MD, axis=1, keepdims=True), 1e-12)


def _nearest_in(
    similarity_M: np.ndarray, shard: FeatureShard, found: Embedded, top: int
) -> Iterator[Neighbor]:
    for place in np.argsort(-similarity_M, kind="stable")[:top].tolist():
        yield Neighbor(
            float(similarity_M[place]),
            shard.split,
            int(found.index[place]),
            found.file[place],
            int(found.label[place]),
        )


def _pair_similarity(x_SD: np.ndarray) -> PairSimilarity | None:
    """Of features of length 1."""
    if len(x_SD) < 2:
        return None
    similarity_P = (x_SD @ x_SD.T)[np.triu_indices(len(x_SD), 1)]
    high = float(np.quantile(similarity_P, 0.99))
    return PairSimilarity(float(similarity_P.mean(dtype=np.float64)), high, len(x_SD))
