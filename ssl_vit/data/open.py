"""Open the data that a recipe names, as a Source for each split."""

import pkgutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..errors import UserError
from ..recipe.images import EMBEDDED, Data
from . import layout, synthetic
from .labels import Labels, no_labels
from .layout import Contents
from .source import Masks, Raw, Source, Store
from .streaming import Stream, read_hub_file

if TYPE_CHECKING:
    import datasets

    from .tables import Parquet

# Number of images of an embedded split that are hashed. If the code draws other pixels, the hashes
# change
DRAWN_HASHED = 64


class OpenedData(NamedTuple):
    """Splits of a recipe's data.

    Attributes:
        splits: {name: images} of every split with images. For streams, {name: a function that takes
            a seed and returns the stream}.
        skipped: Descriptions of the files that are not used, such as "3 .txt files".
        guesses: Assumptions about the data, for warnings.
    """

    splits: dict[str, Any]
    skipped: list[str]
    guesses: list[str]


class DrawnStore(Store):
    """Store of a split of the embedded set, which draws images, or masks, when they are fetched."""

    def __init__(self, split: str, size: int, masks: bool = False) -> None:
        self.split = split
        self.size = size
        self.draw = synthetic.masks if masks else synthetic.render

    def __len__(self) -> int:
        return synthetic.SIZES[self.split]

    def fetch(self, rows: np.ndarray) -> list[Raw]:
        return list(self.draw(rows, self.size, self.split))

    def sizes(self) -> np.ndarray:
        return np.full(len(self), 3 * self.size**2)

    def name(self, row: int) -> str:
        return f"{self.split} image {row}"

    @property
    def hashed_every(self) -> int:
        return len(self) // DRAWN_HASHED


def open_splits(data: Data) -> OpenedData:
    """Open all splits of the data that a recipe names.

    The data are the files at data.path, the data set data.hub of the Hugging Face Hub, or else the
    embedded set of textured shapes (synthetic.py).

    Args:
        data: The recipe's options of the images.

    Raises:
        UserError: There are no images, or a column does not exist.
    """
    if data.path:
        return _open_path(layout.inspect(Path(data.path)), data)
    if data.hub:
        from . import tables

        guesses: list[str] = []
        splits = tables.open_tables(tables.load_hub(data), data, parquet_of={}, guesses=guesses)
        return OpenedData(splits, [], guesses)
    if data.channels != 3:
        raise UserError(
            f"data.channels={data.channels}: data={EMBEDDED} has 3 channels. Use data.channels=3,"
            " data.path= or data.hub=."
        )
    return OpenedData({split: _drawn(split, data.size) for split in synthetic.SIZES}, [], [])


def _drawn(split: str, size: int) -> Source:
    """Return a split of the embedded set, with images of `size` x `size` pixels."""
    label_N = synthetic.labels(np.arange(synthetic.SIZES[split]))
    mask_store = DrawnStore(split, size, masks=True)
    return Source(
        DrawnStore(split, size),
        Labels(label_N, list(synthetic.CLASSES), "the kind of shape"),
        Masks("drawn", "", len(synthetic.MASK_CLASSES), mask_store),
    )


def _open_path(contents: Contents, data: Data) -> OpenedData:
    """Open all splits at data.path, in the format that `layout.inspect` found."""
    assert data.path is not None
    guesses = list(contents.guesses)
    # `code` is the name of a function, such as "ssl_vit.data.tars:open_tars"
    open_images = pkgutil.resolve_name(layout.CONTAINERS[contents.kind].code)
    return OpenedData(open_images(contents, data, guesses), contents.skipped, guesses)


def open_streams(data: Data) -> OpenedData:
    """Open each split as a stream, from the Hub or from parquet files, without copying the images.

    Args:
        data: The recipe's options of the images.

    Returns:
        The data, where each split is a function that takes a seed and returns a stream.

    Raises:
        UserError: There are no images, the files at data.path are no parquet files, or a stream
            cannot read the labels.
    """
    from . import tables

    guesses: list[str] = []
    if not data.path:
        opened = tables.load_hub(data, stream=True)
        streams = {name: _stream_table(rows, data, None, guesses) for name, rows in opened.items()}
        return OpenedData(streams, [], guesses)
    contents = layout.inspect(Path(data.path))
    container = layout.CONTAINERS[contents.kind]
    if not container.stream:
        raise UserError(
            f"data.stream=true: {data.location} holds {container.plural}, which cannot be streamed."
            " Use data.stream=false."
        )
    guesses += contents.guesses
    # `container.stream` is the name of a function, such as "ssl_vit.data.open:stream_parquet"
    streams = pkgutil.resolve_name(container.stream)(contents, data, guesses)
    return OpenedData(streams, contents.skipped, guesses)


def stream_parquet(
    contents: Contents, data: Data, guesses: list[str]
) -> dict[str, Callable[[int], Stream]]:
    """Open parquet files as streams.

    Args:
        contents: The files of each split.
        data: The recipe's options of the images.
        guesses: A list to which warnings are added.

    Returns:
        {name of the split: a function that takes the seed of the order of shards, and returns the
        stream}.

    Raises:
        UserError: A stream cannot read the images or labels.
    """
    from . import tables

    streams = {}
    for name, parquet in tables.split_files(contents.files, data, guesses).items():
        rows = tables.load_parquet(parquet.files, data, stream=True)
        streams[name] = _stream_table(rows, data, parquet, guesses)
    return streams


def _stream_table(
    rows: "datasets.IterableDataset", data: Data, parquet: "Parquet | None", guesses: list[str]
) -> Callable[[int], Stream]:
    """Return a function that takes the seed of the shard order, and returns a table's stream.

    A stream cannot use texts as labels, because the classes are unknown until all rows are read. If
    data.label_column names a column of texts, an error is raised. If a column of texts was found
    without this option, the images have no labels, with a warning.

    Args:
        rows: The table.
        data: The recipe's options of the images.
        parquet: The classes of the split's parquet files, None for a data set on the Hub.
        guesses: A list to which warnings are added.

    Raises:
        UserError: A stream cannot read the images or labels.
    """
    from . import columns, tables

    # a stream may not know the types of its columns before it reads the first rows
    rows = rows if rows.features else rows._resolve_features()
    image, label, classes, hint, _ = tables.find_columns(rows.features, data, parquet)
    if columns.array_shape(rows.features[image]):
        raise UserError(
            f"data.stream=true: column {image} holds arrays, which a stream cannot read. Use"
            " data.stream=false."
        )
    if not data.labels:
        label = None
    if label and columns.holds_texts(rows.features[label]):
        if data.label_column:
            raise UserError(
                f"data.label_column={label}: column {label} holds texts as labels. A stream"
                " cannot assign class numbers to texts, because it has not read all of them. Use"
                " data.stream=false."
            )
        guesses.append(
            f"labels are not used, because column {label} holds texts as labels, and a stream"
            " cannot assign class numbers to texts. To use labels, set data.stream=false"
        )
        label = None
    if label and columns.holds_lists(rows.features[label]):
        raise UserError(
            f"data.label_column={label}: column {label} holds lists of labels, which a stream does"
            " not read. Use data.stream=false."
        )
    # a row may name a file instead of holding an image: a file below data.path, or on the Hub
    roots = [root.resolve() for root in tables.file_roots(data)]
    read_file = partial(tables.read_below, roots=roots) if data.path else read_hub_file
    labels = no_labels(0, hint)
    if label:
        labels = Labels(labels.label_N, list(classes), f"column {label}", hint)
    return lambda seed: Stream(rows, image, label, read_file, labels, data.location, seed)
