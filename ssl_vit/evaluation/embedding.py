"""Write features of whole splits as parquet shards, and find the images most similar to queries.

Legend: B images of a batch, M images, N patches, D width, Q queries, S sampled images, P pairs of
sampled images.
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

SAMPLED = 2000  # number of images whose pairwise similarities are measured
SAMPLE_KEY = 7  # key of the permutation that draws the sampled images
# Key in a parquet file's metadata. The value is a JSON list with a text for each unreadable image
UNREADABLE = b"unreadable"


# uint8 images (B, 3, H, W) -> features (B, D), and patch tokens (B, N, D) or None without patches
TokenReader = Callable[[Tensor], tuple[Tensor, Tensor | None]]


class FeatureShard(NamedTuple):
    """File with the features of a part of a split: the rows from `first` to `last` - 1."""

    split: str
    first: int
    last: int
    file: Path


class Neighbor(NamedTuple):
    """Image that is similar to a query.

    Attributes:
        similarity: Cosine similarity with the query.
        split: Split of the image.
        index: Row of the image in the split.
        file: File or name of the image.
        label: Label of the image, -1 for none.
        query: Name of the query.
    """

    similarity: float
    split: str
    index: int  # type: ignore[assignment]
    file: str
    label: int
    query: str = ""


class PairSimilarity(NamedTuple):
    """Summary of the cosine similarities of all pairs of images.

    Attributes:
        mean: Mean of the similarities.
        high: 99th percentile of the similarities.
        images: Number of images.
    """

    mean: float
    high: float
    images: int


def token_reader(net: Backbone, pool: str, layer: int | None, patches: bool) -> TokenReader:
    """Return a function that reads an encoder's features and, with `patches`, the patch tokens.

    A convolutional network pools in its own way and has no patch tokens.

    Args:
        net: Encoder.
        pool: How tokens are pooled into a feature, token or avg.
        layer: Block after which tokens are read, from 1. None: after the final norm.
        patches: Whether to return patch tokens, too.
    """

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
    """Extract the features of a shard's images, and return the bytes of a parquet file.

    The columns are `index`, `file`, `label` (null for none), `embedding` (D,) and, if patches are
    read, `patches` (N, D). Unreadable images have no row and are listed in the metadata. Call this
    function under autocast.

    Args:
        read: Reader of features.
        batches: Batches of the shard (`loaders.evaluation_loader`).
        source: Split of the shard.
        device: Device of the network.

    Raises:
        NonFiniteError: A feature or a patch of an image is not finite.
    """
    class_names = source.classes
    vector_type = datasets.Sequence(datasets.Value("float32"))
    column_types: dict[str, Any] = {
        "index": datasets.Value("int64"),
        "file": datasets.Value("string"),
        "label": datasets.ClassLabel(names=class_names) if class_names else datasets.Value("int64"),
        "embedding": vector_type,
    }
    columns: dict[str, list[Any]] = {name: [] for name in column_types}
    unreadable: list[str] = []
    finite = [torch.ones(0, dtype=torch.bool)]  # `cat` needs a tensor, even without images
    for batch in batches:
        unreadable += batch.unreadable
        if not len(batch.image):
            continue
        x_BD, h_BND = read(to_device(batch, device).image)
        finite_B = is_finite(x_BD)
        if h_BND is not None:
            finite_B &= is_finite(h_BND)
        finite.append(finite_B)
        columns["index"] += batch.index.tolist()
        columns["file"] += map(source.file_of, batch.index.tolist())
        columns["label"] += [label if label >= 0 else None for label in batch.label.tolist()]
        columns["embedding"] += [*x_BD.float().cpu().numpy()]
        if h_BND is not None:
            column_types["patches"] = datasets.Sequence(vector_type)
            patches = columns.setdefault("patches", [])
            patches += [[*h_ND] for h_ND in h_BND.float().cpu().numpy()]
    check_finite(ENCODER, torch.cat(finite))
    schema = datasets.Features(column_types).arrow_schema
    metadata = {**(schema.metadata or {}), UNREADABLE: json.dumps(unreadable).encode()}
    schema = schema.with_metadata(metadata)
    file = io.BytesIO()
    table = pyarrow.Table.from_pydict(columns, schema=schema)
    pyarrow.parquet.write_table(table, file, use_dictionary=False)
    return file.getvalue()


def decode(file: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read the images' rows in the split (M,) and the features (M, D) from a shard's file."""
    table = pyarrow.parquet.read_table(file, columns=["index", "embedding"])
    embedding = table.column("embedding").combine_chunks()
    values = embedding.flatten().to_numpy()
    # `values` has the features of all images in one row. A shard may have no readable image
    width = len(values) // max(1, len(embedding))
    return table.column("index").to_numpy(), values.reshape(len(embedding), width)


def summary(file: Path) -> tuple[int, list[str]]:
    """Return the number of images in a shard's file, and the list of unreadable images.

    The features are not read.

    Args:
        file: A parquet file with the content that `embed` returns.

    Raises:
        ValueError: The file is damaged.
        OSError: The file cannot be read.
        KeyError: The file was not written by `embed`.
    """
    file_metadata = pyarrow.parquet.read_metadata(file)
    return file_metadata.num_rows, json.loads(file_metadata.metadata[UNREADABLE])


def search(
    query_QD: np.ndarray, shards: Sequence[FeatureShard], splits: Mapping[str, Source], top: int
) -> tuple[list[list[Neighbor]], PairSimilarity | None]:
    """Find the images that are most similar to each query.

    Args:
        query_QD: Features of Q queries.
        shards: Shards to search. Memory holds the features of one shard at a time.
        splits: {name: split} of the shards.
        top: Number of images to find for each query.

    Returns:
        Two values. The first has, for each query, a list of the images with the highest cosine
        similarity, best first. The second summarises the similarities of all pairs among at most
        SAMPLED random images. It shows how similar two images usually are, and is None if fewer
        than two of the random images are readable.
    """
    sampled_S = _sample_images(sum(shard.last - shard.first for shard in shards))
    query_QD = normalize(query_QD)
    image_rows: list[tuple[str, int]] = []  # split and row of each readable image
    similarities, sample = [], []  # for each shard: (Q, M), and features of the sampled images
    shard_start = 0  # number of images in earlier shards
    for shard in shards:
        row_M, x_MD = decode(shard.file)  # rows in the split
        if len(row_M):
            x_MD = normalize(x_MD)
            # Number all images of all shards from 0, including unreadable images
            index_in_all_shards_M = shard_start + row_M - shard.first
            is_sampled_M = np.isin(index_in_all_shards_M, sampled_S)
            sample.append(x_MD[is_sampled_M])
            similarities.append(query_QD @ x_MD.T)
            image_rows += [(shard.split, row) for row in row_M.tolist()]
        shard_start += shard.last - shard.first
    if not similarities:
        return [[] for _ in query_QD], None
    neighbors = []
    for similarity_M in np.concatenate(similarities, axis=1):
        best = np.argsort(-similarity_M, kind="stable")[:top].tolist()
        neighbors.append([_neighbor(float(similarity_M[i]), image_rows[i], splits) for i in best])
    return neighbors, _pair_similarity(np.concatenate(sample))


def _sample_images(images: int) -> np.ndarray:
    """Draw at most SAMPLED random indices from 0 to `images` - 1, in ascending order.

    The random key is fixed, so each call draws the same indices.
    """
    sampled_S = rng.permute(np.arange(min(SAMPLED, images)), images, rng.key(SAMPLE_KEY))
    return np.sort(sampled_S)


def normalize(x_MD: np.ndarray) -> np.ndarray:
    """Scale features to length 1. Features of length 0 stay 0."""
    return x_MD / np.maximum(np.linalg.norm(x_MD, axis=1, keepdims=True), 1e-12)


def _neighbor(
    similarity: float, image_row: tuple[str, int], splits: Mapping[str, Source]
) -> Neighbor:
    split, row = image_row
    source = splits[split]
    (label,) = source.label_of(np.array([row])).tolist()
    return Neighbor(similarity, split, row, source.file_of(row), label)


def _pair_similarity(x_SD: np.ndarray) -> PairSimilarity | None:
    """Return the similarities of all pairs of normalised features, None for fewer than two."""
    if len(x_SD) < 2:
        return None
    similarity_P = (x_SD @ x_SD.T)[np.triu_indices(len(x_SD), 1)]
    high = float(np.quantile(similarity_P, 0.99))
    return PairSimilarity(float(similarity_P.mean(dtype=np.float64)), high, len(x_SD))
