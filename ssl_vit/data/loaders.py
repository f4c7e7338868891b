"""Make the data loaders of training (by row or from a stream), held-out images and whole splits."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from .. import rng
from ..errors import UserError
from ..recipe.schema import Data
from ..recipe.shared_groups import ViewOptions
from .augment import VIEWS
from .batch_layout import BatchLayout
from .batching import Batch, ImageDataset, Samples, samples_at
from .pixel_values import bytes_in_batch
from .resident import DecodedImages, ResidentDataset
from .source import Source
from .streaming import WINDOW, WINDOW_BYTES, Cursor, Stream, StreamedImage, in_memory
from .workers import PREFETCH, init_worker, limit_workers

# First part of the keys of samples that are not used for training: held-out images while a run
# trains, and whole splits
MEASURED_KEY = 2
EVALUATION_KEY = 4


def _steps(
    source: Source, batch_layout: BatchLayout, seed: int, start: int, stop: int
) -> Iterator[Samples]:
    """Yield the samples of this process's micro-batches in the steps `start` to `stop` - 1."""
    size = batch_layout.device_batch
    for step in range(start, stop):
        for i in range(batch_layout.accumulation_steps):
            first = step * batch_layout.global_batch + batch_layout.chunk_index(i) * size
            yield samples_at(first, size, len(source), seed)


class _StreamBatch(NamedTuple):
    """Encoded images and samples of a micro-batch of a stream."""

    cells: list[StreamedImage]
    samples: Samples


class _Streamed(Dataset):
    """Dataset that turns a _StreamBatch into a Batch.

    An unreadable image is replaced by the next readable image of the micro-batch.
    """

    def __init__(self, stream: Stream, data: Data, views: ViewOptions | None) -> None:
        self.about = stream.about
        self.data = data
        self.views = views

    def __getitems__(self, stream_batch: _StreamBatch) -> Batch:
        places = Samples(np.arange(len(stream_batch.cells)), stream_batch.samples.key)
        images = in_memory(stream_batch.cells, self.about)
        dataset = ImageDataset(images, self.data, train=True, views=self.views)
        batch = dataset.__getitems__(places)
        return batch._replace(index=torch.from_numpy(stream_batch.samples.index))


class StreamReader:
    """Images of a stream that this process reads, independent of the number of workers.

    Each process shuffles images within windows. A window lies within an epoch, and has at most
    WINDOW / processes images with at most WINDOW_BYTES / processes encoded bytes. The n-th image of
    process p of P processes has the index p + nP.

    Raises:
        UserError: There are fewer shards than processes.
    """

    def __init__(self, stream: Stream, batch_layout: BatchLayout) -> None:
        if stream.shards < batch_layout.processes:
            raise UserError(
                f"data.stream=true: {stream.where} has {stream.shards} shards for"
                f" {batch_layout.processes} processes. Use at most {stream.shards} processes."
            )
        self.stream = stream
        self.batch_layout = batch_layout
        self.window = max(1, WINDOW // batch_layout.processes)
        self.window_bytes = WINDOW_BYTES // batch_layout.processes
        self.images_per_step = batch_layout.global_batch // batch_layout.processes

    def cursor_at(self, step: int) -> Cursor:
        """Return the last known start of a window at or before the step's first image."""
        return self._cursor_of(step * self.images_per_step)

    def seek(self, cursor: Cursor) -> None:
        """Continue at the step for which `cursor_at` returned this cursor."""
        self.stream.cursors[cursor.image] = cursor

    def _cursor_of(self, image: int) -> Cursor:
        cursors = self.stream.cursors
        return cursors[max(first for first in cursors if first <= image)]

    def micro_batches(self, seed: int, start: int, stop: int) -> Iterator[_StreamBatch]:
        """Yield the micro-batches of the steps from `start` to before `stop`.

        Reading begins at the cursor of `start`.
        """
        layout = self.batch_layout
        images = self._images(seed, start * self.images_per_step, stop * self.images_per_step)
        while numbered := list(islice(images, layout.device_batch)):
            number, cells = zip(*numbered, strict=True)
            index = layout.rank + layout.processes * np.array(number, np.int64)
            yield _StreamBatch(list(cells), Samples(index, rng.key(seed, 0, index)))

    def _images(self, seed: int, first: int, last: int) -> Iterator[tuple[int, StreamedImage]]:
        """Yield the images `first` to `last` - 1 of this process, each with the image's number."""
        if first >= last:
            return
        layout = self.batch_layout
        windows = self.stream.windows(
            self._cursor_of(first),
            last,
            self.window,
            self.window_bytes,
            layout.rank,
            layout.processes,
        )
        for start, cells in windows:
            size = len(cells)
            order = rng.permute(np.arange(size), size, rng.key(seed, layout.rank, start.window))
            for image in range(max(start.image, first), min(start.image + size, last)):
                yield image, cells[order[image - start.image]]


def step_indices(step: int, source: Source | StreamReader, batch: int, seed: int) -> np.ndarray:
    """Return the indices of a step's global batch in the training split."""
    if isinstance(source, StreamReader):
        return np.arange(step * batch, (step + 1) * batch)
    return samples_at(step * batch, batch, len(source), seed).index


def _as_is(batch: Batch) -> Batch:
    return batch


def batch_bytes(data: Data, batch_layout: BatchLayout, views: ViewOptions | None = None) -> int:
    """Return the bytes of a micro-batch: images or views, labels, indices and keys."""
    needed = bytes_in_batch(data, data.size) * (VIEWS if views else 1)
    if views:
        needed += views.local * bytes_in_batch(data, views.local_size)
    return batch_layout.device_batch * (needed + 64)


def image_loader(images: Dataset, order: Iterable[Any], workers: int, size: int = 0) -> DataLoader:
    """Return a DataLoader whose workers fit into shared memory with batches of `size` bytes.

    With a GPU, batches are put into pinned memory.
    """
    number = limit_workers(workers, size)
    return DataLoader(
        images,
        batch_sampler=order,
        collate_fn=_as_is,  # type: ignore[arg-type]
        num_workers=number,
        pin_memory=torch.cuda.is_available(),
        generator=torch.Generator(),  # leaves torch's global generator untouched
        prefetch_factor=PREFETCH if number else None,
        worker_init_fn=init_worker,
    )


def training_loader(
    source: Source | StreamReader,
    data: Data,
    batch_layout: BatchLayout,
    seed: int,
    start: int,
    stop: int,
    workers: int,
    views: ViewOptions | None = None,
    decoded: DecodedImages | None = None,
) -> DataLoader:
    """Return a loader of this process's micro-batches for the steps from `start` to before `stop`.

    There are `accumulation_steps` micro-batches in a step.

    Args:
        source: The training images, or the reader of a stream.
        data: The preprocessing of the images.
        batch_layout: Sizes of batches.
        seed: The seed of the order and of random numbers.
        start, stop: The first step, and the step after the last.
        workers: The requested number of worker processes.
        views: How random views of each image are made, None for no views.
        decoded: Decoded images of `source`, from which batches are cut; None to decode at each
            step.
    """
    size = batch_bytes(data, batch_layout, views)
    if isinstance(source, StreamReader):
        stream_batches = source.micro_batches(seed, start, stop)
        return image_loader(_Streamed(source.stream, data, views), stream_batches, workers, size)
    images = ImageDataset(source, data, train=True, views=views)
    if decoded is not None:
        images = ResidentDataset(source, data, decoded)
    return image_loader(images, _steps(source, batch_layout, seed, start, stop), workers, size)


def shared_samples(rows: np.ndarray, batch_layout: BatchLayout, key: int) -> list[Samples]:
    """Return this process's share of rows as samples, in batches of the device batch.

    Each row is in the share of exactly one process. The last batch may be smaller. `key` is the
    first part of the samples' keys.
    """
    share = np.array_split(rows, batch_layout.processes)[batch_layout.rank]
    size = batch_layout.device_batch
    parts = (share[start : start + size] for start in range(0, len(share), size))
    return [Samples(part, rng.key(key, part)) for part in parts]


def held_out_rows(source: Source, most: int, first: int = 0) -> np.ndarray:
    """Return at most `most` rows of held-out images, the same in every run.

    The rows are in a fixed random order, from position `first` on.
    """
    places = np.arange(first, min(first + most, len(source)))
    return rng.permute(places, len(source), rng.key(MEASURED_KEY))


def held_out_batches(
    source: Source,
    data: Data,
    batch_layout: BatchLayout,
    most: int,
    views: ViewOptions | None = None,
    group: int = 0,
    first: int = 0,
) -> list[Batch]:
    """Return this process's share of at most `most` fixed images, with the same keys in every run.

    Every readable image is in the share of exactly one process. The last batch of a share may be
    smaller. The images are the rows of `held_out_rows(source, most, first)`.

    With `views`, each image comes with fixed views, in batches that do not depend on the number of
    processes: groups of at most `group` images, whose views are compared with each other. If there
    are more processes than groups, some processes have no batch.

    There must be at least one image for each process, or two with `views`.
    """
    chosen = held_out_rows(source, most, first)
    count = len(chosen)
    assert count >= (2 if views else 1) * batch_layout.processes
    if views is None:
        samples = shared_samples(chosen, batch_layout, MEASURED_KEY)
    else:
        groups = np.array_split(chosen, -(-count // group))
        parts = groups[batch_layout.rank :: batch_layout.processes]
        samples = [Samples(part, rng.key(MEASURED_KEY, part)) for part in parts]
    images = ImageDataset(source, data, train=False, views=views)
    return list(image_loader(images, samples, workers=0))


def evaluation_loader(
    source: Source,
    data: Data,
    batch_layout: BatchLayout,
    workers: int,
    rows: np.ndarray | None = None,
) -> DataLoader:
    """Return a loader of this process's share of rows, by default of all rows, for evaluation.

    Each row is in the share of exactly one process. Unreadable images are left out.
    """
    rows = np.arange(len(source)) if rows is None else rows
    return image_loader(
        ImageDataset(source, data, train=False),
        shared_samples(rows, batch_layout, EVALUATION_KEY),
        workers,
        batch_bytes(data, batch_layout),
    )


def first_batches(
    source: Source, data: Data, seed: int, count: int, size: int = 256
) -> Iterator[Batch]:
    """Yield the first `count` training samples, at most an epoch, as batches of `size`."""
    images = ImageDataset(source, data, train=True)
    count = min(count, len(source))
    for start in range(0, count, size):
        yield images.__getitems__(samples_at(start, min(size, count - start), len(source), seed))
