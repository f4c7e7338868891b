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
    """Yield the samples of each micro-batch of this process.

    Args:
        source: The training images.
        batch_layout: The sizes of the global batch and of micro-batches.
        seed: The seed of the order of images.
        start: The first step.
        stop: The step after the last step.
    """
    size = batch_layout.device_batch
    for step in range(start, stop):
        for micro_batch in range(batch_layout.accumulation_steps):
            chunk = batch_layout.chunk_index(micro_batch)
            first = step * batch_layout.global_batch + chunk * size
            yield samples_at(first, size, len(source), seed)


class _StreamBatch(NamedTuple):
    """Encoded images and samples of a micro-batch of a stream."""

    cells: list[StreamedImage]
    samples: Samples


class _StreamDataset(Dataset):
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
    """Reader of this process's images of a stream.

    The order does not depend on the number of workers: the process reads a window of images into
    memory and shuffles the images of the window. A window ends with its epoch, and has at most
    WINDOW / processes images with at most WINDOW_BYTES / processes encoded bytes. The n-th image of
    process p of P processes has the index p + nP.

    Raises:
        UserError: There are fewer shards than processes.
    """

    def __init__(self, stream: Stream, batch_layout: BatchLayout) -> None:
        if stream.shards < batch_layout.processes:
            raise UserError(
                f"data.stream=true: {stream.where} has fewer shards ({stream.shards}) than the run"
                f" has processes ({batch_layout.processes}). Use at most {stream.shards}."
            )
        self.stream = stream
        self.batch_layout = batch_layout
        self.window = max(1, WINDOW // batch_layout.processes)
        self.window_bytes = WINDOW_BYTES // batch_layout.processes
        self.images_per_step = batch_layout.global_batch // batch_layout.processes

    def cursor_at(self, step: int) -> Cursor:
        """Return the start of the window from which a run can resume at `step`."""
        return self._cursor_of(step * self.images_per_step)

    def seek(self, cursor: Cursor) -> None:
        """Continue at the step for which `cursor_at` returned this cursor."""
        self.stream.cursors[cursor.image] = cursor

    def _cursor_of(self, image: int) -> Cursor:
        """Return the last recorded start of a window at or before an image of this process.

        Args:
            image: The number of the image among this process's images.
        """
        cursors = self.stream.cursors
        return cursors[max(first for first in cursors if first <= image)]

    def micro_batches(self, seed: int, start: int, stop: int) -> Iterator[_StreamBatch]:
        """Yield this process's micro-batches of the steps `start` to `stop` - 1.

        Args:
            seed: The seed by which windows are shuffled.
            start: The first step.
            stop: The step after the last step.
        """
        layout = self.batch_layout
        images = self._images(seed, start * self.images_per_step, stop * self.images_per_step)
        while True:
            numbered_images = list(islice(images, layout.device_batch))
            if not numbered_images:
                return
            numbers, cells = zip(*numbered_images, strict=True)
            index = layout.rank + layout.processes * np.array(numbers, np.int64)
            yield _StreamBatch(list(cells), Samples(index, rng.key(seed, 0, index)))

    def _images(self, seed: int, first: int, last: int) -> Iterator[tuple[int, StreamedImage]]:
        """Yield this process's images in shuffled order, each with its number.

        Args:
            seed: The seed by which the images of a window are shuffled.
            first: The number of the first image.
            last: The number after the last image.
        """
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
    """Return the indices in the training split of the images of a step, int64 (batch,).

    Args:
        step: The number of the step, from 0.
        source: The training images, or the reader of a stream.
        batch: Images in a global batch.
        seed: The seed of the order of images.
    """
    if isinstance(source, StreamReader):
        return np.arange(step * batch, (step + 1) * batch)
    return samples_at(step * batch, batch, len(source), seed).index


def _as_is(batch: Batch) -> Batch:
    """Return the batch, because a dataset collates its samples already."""
    return batch


def batch_bytes(data: Data, batch_layout: BatchLayout, views: ViewOptions | None = None) -> int:
    """Return about how many bytes a micro-batch takes.

    Args:
        data: The recipe's options of the images.
        batch_layout: The size of a micro-batch.
        views: The views of each image, None for no views.
    """
    bytes_per_sample = 64  # more than the label, index, key and hash take
    if views is None:
        bytes_per_sample += bytes_in_batch(data, data.size)
    else:
        bytes_per_sample += VIEWS * bytes_in_batch(data, data.size)
        bytes_per_sample += views.local * bytes_in_batch(data, views.local_size)
    return batch_layout.device_batch * bytes_per_sample


def image_loader(images: Dataset, order: Iterable[Any], workers: int, size: int = 0) -> DataLoader:
    """Return a DataLoader that yields a Batch for each entry of `order`.

    The loader has at most as many workers as fit into shared memory. If there is a GPU, batches are
    put into pinned memory.

    Args:
        images: A dataset whose `__getitems__` returns a Batch.
        order: For each batch, the argument of `__getitems__`.
        workers: The requested number of worker processes, 0 to load in this process.
        size: The size of a batch in bytes.
    """
    workers = limit_workers(workers, size)
    return DataLoader(
        images,
        batch_sampler=order,
        collate_fn=_as_is,  # type: ignore[arg-type]
        num_workers=workers,
        pin_memory=torch.cuda.is_available(),
        generator=torch.Generator(),  # leaves torch's global generator untouched
        prefetch_factor=PREFETCH if workers else None,
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
    """Return a loader of this process's micro-batches in the steps `start` to `stop` - 1.

    A step has `accumulation_steps` micro-batches.

    Args:
        source: The training images, or the reader of a stream.
        data: The recipe's options of the images.
        batch_layout: The sizes of the global batch and of micro-batches.
        seed: The seed of the order of images and of random crops.
        start: The first step.
        stop: The step after the last step.
        workers: The requested number of worker processes.
        views: How random views of each image are made, None for no views.
        decoded: The decoded images of `source`; None to decode images in each step.
    """
    size = batch_bytes(data, batch_layout, views)
    if isinstance(source, StreamReader):
        stream_batches = source.micro_batches(seed, start, stop)
        return image_loader(
            _StreamDataset(source.stream, data, views), stream_batches, workers, size
        )
    images = ImageDataset(source, data, train=True, views=views)
    if decoded is not None:
        images = ResidentDataset(source, data, decoded)
    return image_loader(images, _steps(source, batch_layout, seed, start, stop), workers, size)


def shared_samples(rows: np.ndarray, batch_layout: BatchLayout, key: int) -> list[Samples]:
    """Divide rows among the processes, and return the batches of this process.

    A batch has the size of the device batch. The last batch may be smaller.

    Args:
        rows: The rows of all processes.
        batch_layout: The device batch, and the number of processes.
        key: The first part of the samples' keys, such as EVALUATION_KEY.
    """
    rows_here = np.array_split(rows, batch_layout.processes)[batch_layout.rank]
    size = batch_layout.device_batch
    batches = []
    for start in range(0, len(rows_here), size):
        row_B = rows_here[start : start + size]
        batches.append(Samples(row_B, rng.key(key, row_B)))
    return batches


def held_out_rows(source: Source, most: int, first: int = 0) -> np.ndarray:
    """Return at most `most` random rows of held-out images, the same rows in every run.

    Args:
        source: The held-out images.
        most: The limit of rows.
        first: How many rows of the random order to skip.
    """
    positions = np.arange(first, min(first + most, len(source)))
    return rng.permute(positions, len(source), rng.key(MEASURED_KEY))


def held_out_batches(
    source: Source,
    data: Data,
    batch_layout: BatchLayout,
    most: int,
    views: ViewOptions | None = None,
    group: int = 0,
    first: int = 0,
) -> list[Batch]:
    """Load this process's batches of held-out images, the same images and keys in every run.

    The images of all processes are the rows of `held_out_rows(source, most, first)`. The last batch
    of a process may be smaller, and unreadable images are left out.

    With `views`, each image comes with fixed views. An objective compares the views within a batch,
    so batches must not depend on the number of processes: each batch is a group of at most `group`
    images. If there are more processes than groups, some processes have no batch.

    Args:
        source: The held-out images: at least one for each process, or two with `views`.
        data: The recipe's options of the images.
        batch_layout: The device batch, and the number of processes.
        most: The limit of images of all processes.
        views: How views of each image are made, None for no views.
        group: With `views`, the most images in a batch.
        first: How many images of the random order to skip.
    """
    rows = held_out_rows(source, most, first)
    assert len(rows) >= (2 if views else 1) * batch_layout.processes
    if views is None:
        samples = shared_samples(rows, batch_layout, MEASURED_KEY)
    else:
        num_groups = -(-len(rows) // group)  # rounded up
        groups = np.array_split(rows, num_groups)
        groups_here = groups[batch_layout.rank :: batch_layout.processes]
        samples = [
            Samples(group_rows, rng.key(MEASURED_KEY, group_rows)) for group_rows in groups_here
        ]
    images = ImageDataset(source, data, train=False, views=views)
    return list(image_loader(images, samples, workers=0))


def evaluation_loader(
    source: Source,
    data: Data,
    batch_layout: BatchLayout,
    workers: int,
    rows: np.ndarray | None = None,
) -> DataLoader:
    """Return a loader of this process's batches of a split, for evaluation.

    The rows are divided among the processes. Unreadable images are left out.

    Args:
        source: The split.
        data: The recipe's options of the images.
        batch_layout: The device batch, and the number of processes.
        workers: The requested number of worker processes.
        rows: The rows of all processes, by default all rows.
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
    """Yield the first training samples of a run, at most one epoch.

    Args:
        source: The training images.
        data: The recipe's options of the images.
        seed: The seed of the order of images and of random crops.
        count: The number of samples.
        size: Images in a batch. The last batch may be smaller.
    """
    images = ImageDataset(source, data, train=True)
    count = min(count, len(source))
    for start in range(0, count, size):
        yield images.__getitems__(samples_at(start, min(size, count - start), len(source), seed))
