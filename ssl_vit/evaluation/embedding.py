"""Features of whole splits in shards of parquet; and the images nearest to queries.

Legend: B images of a batch, M images, N patches, D width, Q queries, S sampled images, P pairs of
them.
"""

import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from .features import ENCODER, check_finite, is_finite

SAMPLED = 2000  # images of whose pairs the similarity is measured
SAMPLE_KEY = 7  # of the permutation by which they are drawn
UNREADABLE = b"unreadable"  # key of a parquet file's metadata: a JSON list of texts


# Of uint8 images (B, 3, H, W): a feature (B, D) an image, and its patch tokens (B, N, D) where they
# are wanted
TokenReader = Callable[[Tensor], tuple[Tensor, Tensor | None]]


class FeatureShard(NamedTuple):
    """Rows first .. last-1 of a split, and the file that holds their features."""

    split: str
    first: int
    last: int
    file: Path


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

    def read(image_B3HW: Tensor) -> tuple[Tensor, Tensor | None]:
        if not isinstance(net, Encoder):
            return net.feature(image_B3HW, pool, layer), None
        h_BTD = net.tokens(image_B3HW, layer)
        h_BND = h_BTD[:, net.prefix :] if patches else None
        return net.pooled(h_BTD, pool, layer), h_BND

    return read


@torch.no_grad()
def embed(
    read: TokenReader, batches: Iterable[Batch], source: Source, device: torch.device
) -> bytes:
    """The content of a shard's file, of its batches (`loaders.evaluation_loader`): columns `index`,
    `file`, `label` (null for none), `embedding` (D,) and, where they are read, `patches` (N, D); in
    its metadata the images that could not be read, which have no row. The caller enters
    autocast.

    Raises:
        NonFiniteError: a feature or a patch of an image is not finite.
    """
    names = source.classes
    vector = datasets.Sequence(datasets.Value("float32"))
    kinds: dict[str, Any] = {
        "index": datasets.Value("int64"),
        "file": datasets.Value("string"),
        "label": datasets.ClassLabel(names=names) if names else datasets.Value("int64"),
        "embedding": vector,
    }
    columns: dict[str, list[Any]] = {name: [] for name in kinds}
    unreadable: list[str] = []
    finite = [torch.ones(0, dtype=torch.bool)]
    for batch in batches:
        unreadable += batch.unreadable
        if not len(batch.image):
            continue
        x_BD, h_BND = read(to_device(batch, device).image)
        finite.append(is_finite(x_BD) if h_BND is None else is_finite(x_BD) & is_finite(h_BND))
        columns["index"] += batch.index.tolist()
        columns["file"] += map(source.file_of, batch.index.tolist())
        columns["label"] += [label if label >= 0 else None for label in batch.label.tolist()]
        columns["embedding"] += [*x_BD.float().cpu().numpy()]
        if h_BND is not None:
            kinds["patches"] = datasets.Sequence(vector)
            patches = columns.setdefault("patches", [])
            patches += [[*h_ND] for h_ND in h_BND.float().cpu().numpy()]
    check_finite(ENCODER, torch.cat(finite))
    schema = datasets.Features(kinds).arrow_schema
    texts = {UNREADABLE: json.dumps(unreadable).encode()}
    schema = schema.with_metadata({**(schema.metadata or {}), **texts})
    file = io.BytesIO()
    table = pyarrow.Table.from_pydict(columns, schema=schema)
    pyarrow.parquet.write_table(table, file, use_dictionary=False)
    return file.getvalue()


def decode(file: Path) -> tuple[np.ndarray, np.ndarray]:
    """The rows (M,) and the features (M, D) of a shard's file."""
    table = pyarrow.parquet.read_table(file, columns=["index", "embedding"])
    embedding = table.column("embedding").combine_chunks()
    width = len(embedding.flatten()) // max(1, len(embedding))
    x_MD = embedding.flatten().to_numpy().reshape(len(embedding), width)
    return table.column("index").to_numpy(), x_MD


def summary(file: Path) -> tuple[int, list[str]]:
    """How many images a shard's file has, and those that could not be read; without its features.

    Raises:
        ValueError, OSError, KeyError: it is damaged.
    """
    found = pyarrow.parquet.read_metadata(file)
    return found.num_rows, json.loads(found.metadata[UNREADABLE])


def search(
    query_QD: np.ndarray, shards: Sequence[FeatureShard], splits: Mapping[str, Source], top: int
) -> tuple[list[list[Neighbor]], PairSimilarity | None]:
    """The `top` images of the shards whose features have the highest cosine similarity with each
    query's, best first; and the similarity of pairs of at most SAMPLED images, drawn by a key of
    their own, None of fewer than two.

    Args:
        query_QD: features of Q queries.
        shards: one after the other, each read once.
        splits: of the shards.
        top: images for a query.
    """
    count = sum(shard.last - shard.first for shard in shards)
    drawn = np.sort(rng.permute(np.arange(min(SAMPLED, count)), count, rng.key(SAMPLE_KEY)))
    query_QD = normalized(query_QD)
    places: list[tuple[str, int]] = []
    near, sample = [], []
    start = 0
    for shard in shards:
        index_M, x_MD = decode(shard.file)
        if len(index_M):
            x_MD = normalized(x_MD)
            sample.append(x_MD[np.isin(start + index_M - shard.first, drawn)])
            near.append(query_QD @ x_MD.T)
            places += [(shard.split, row) for row in index_M.tolist()]
        start += shard.last - shard.first
    if not near:
        return [[] for _ in query_QD], None
    nearest = []
    for near_M in np.concatenate(near, axis=1):
        best = np.argsort(-near_M, kind="stable")[:top].tolist()
        nearest.append([_neighbor(float(near_M[one]), places[one], splits) for one in best])
    return nearest, _pair_similarity(np.concatenate(sample))


def normalized(x_MD: np.ndarray) -> np.ndarray:
    """Features of length 1."""
    return x_MD / np.maximum(np.linalg.norm(x_MD, axis=1, keepdims=True), 1e-12)


def _neighbor(similarity: float, place: tuple[str, int], splits: Mapping[str, Source]) -> Neighbor:
    split, row = place
    source = splits[split]
    (label,) = source.label_of(np.array([row])).tolist()
    return Neighbor(similarity, split, row, source.file_of(row), label)


def _pair_similarity(x_SD: np.ndarray) -> PairSimilarity | None:
    """Of features of length 1."""
    if len(x_SD) < 2:
        return None
    similarity_P = (x_SD @ x_SD.T)[np.triu_indices(len(x_SD), 1)]
    high = float(np.quantile(similarity_P, 0.99))
    return PairSimilarity(float(similarity_P.mean(dtype=np.float64)), high, len(x_SD))
