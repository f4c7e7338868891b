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
from .pixel_values import bytes_per_image
from .resident import DecodedImages, ResidentDataset
from .source import Source
from .streaming import WINDOW, WINDOW_BYTES, Cursor, Stream, StreamedImage, in_memory
from .workers import PREFETCH, init_worker, limit_workers

# A sample's key is hashed from one of these numbers and the row, so that random numbers differ from
# those in training
MEASURED_KEY = 2  # for held-out images while a run trains
EVALUATION_KEY = 4  # for whole splits


def _choose_samples(
    source: Source, batch_layout: BatchLayout, seed: int, start: int, stop: int
) -> Iterator[Samples]:
    """Yield the samples of each micro-batch of this process.

    The global batch of a step is cut into chunks of the size of a micro-batch. The processes take
    turns: with 2 processes, process 0 reads the chunks 0, 2, ... and process 1 the chunks 1, 3, ...

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

    images: list[StreamedImage]
    samples: Samples


class _StreamDataset(Dataset):
    """Dataset that turns a _StreamBatch into a Batch.

    The next readable image of the micro-batch replaces an unreadable image.
    """

    def __init__(self, stream: Stream, data: Data, views: ViewOptions | None) -> None:
        self.label_template = stream.label_template
        self.data = data
        self.views = views

    def __getitems__(self, stream_batch: _StreamBatch) -> Batch:
        # in memory, images are counted from 0; the returned batch has the indices of the stream
        samples_in_memory = Samples(np.arange(len(stream_batch.images)), stream_batch.samples.key)
        source = in_memory(stream_batch.images, self.label_template)
        dataset = ImageDataset(source, self.data, train=True, views=self.views)
        batch = dataset.__getitems__(samples_in_memory)
        return batch._replace(index=torch.from_numpy(stream_batch.samples.index))


class StreamReader:
    """Reader of this process's images of a stream.

    The process itself, and not a worker, reads a window of images into memory and shuffles the
    window. So the order does not depend on the number of workers. A window has at most WINDOW /
    processes images with at most WINDOW_BYTES / processes encoded bytes. The last window of an
    epoch may be smaller. Image n of process p of P processes has the index p + nP, with n and p
    from 0.

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
        """Return the start of a window from which a run can resume at `step`.

        The window may start before the first image of the step. `micro_batches` skips such images.
        """
        return self._cursor_of(step * self.images_per_step)

    def seek(self, cursor: Cursor) -> None:
        """Prepare to resume from a cursor that `cursor_at` has returned."""
        self.stream.cursors[cursor.image] = cursor

    def _cursor_of(self, image: int) -> Cursor:
        """Return the last recorded start of a window that is at or before an image.

        Args:
            image: The number of the image among this process's images.
        """
        cursors = self.stream.cursors
        last_start = max(first for first in cursors if first <= image)
        return cursors[last_start]

    def micro_batches(self, seed: int, start: int, stop: int) -> Iterator[_StreamBatch]:
        """Yield this process's micro-batches of the steps `start` to `stop` - 1.

        A process counts its own images from 0. In the indices of the run, the processes alternate:
        with 2 processes, the images 0, 1, 2 of process 1 have the indices 1, 3, 5.

        Args:
            seed: The seed by which windows are shuffled.
            start: The first step.
            stop: The step after the last step.
        """
        layout = self.batch_layout
        numbered_images = self._shuffle_images(
            seed, start * self.images_per_step, stop * self.images_per_step
        )
        while True:
            micro_batch = list(islice(numbered_images, layout.device_batch))
            if not micro_batch:
                return
            numbers, images = zip(*micro_batch, strict=True)
            index = layout.rank + layout.processes * np.array(numbers, np.int64)
            key = rng.key(seed, 0, index)  # always epoch 0, because indices never repeat
            yield _StreamBatch(list(images), Samples(index, key))

    def _shuffle_images(
        self, seed: int, first: int, stop: int
    ) -> Iterator[tuple[int, StreamedImage]]:
        """Yield (number, image) of this process's images, shuffled within each window.

        Numbers count the process's images from 0 in the order of training.

        Args:
            seed: The seed by which the images of a window are shuffled.
            first: The number of the first image.
            stop: The number after the last image.
        """
        if first >= stop:
            return
        layout = self.batch_layout
        windows = self.stream.windows(
            self._cursor_of(first),
            stop,
            self.window,
            self.window_bytes,
            layout.rank,
            layout.processes,
        )
        for start, window_images in windows:
            size = len(window_images)
            order = rng.permute(np.arange(size), size, rng.key(seed, layout.rank, start.window))
            # the first window may begin before `first`, and the last window may end after `stop`
            for number in range(max(start.image, first), min(start.image + size, stop)):
                yield number, window_images[order[number - start.image]]


def step_indices(step: int, source: Source | StreamReader, batch: int, seed: int) -> np.ndarray:
    """Return the indices of the images of a step, int64 (batch,).

    An index is a row of the training split. A stream has no rows, so images are counted in the
    order of training, across epochs.

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
    """Return the batch unchanged, because the dataset has already collated the samples."""
    return batch


def batch_bytes(data: Data, batch_layout: BatchLayout, views: ViewOptions | None = None) -> int:
    """Estimate the bytes of a micro-batch.

    Args:
        data: The recipe's options of the images.
        batch_layout: The size of a micro-batch.
        views: The views of each image. None for one image per sample.
    """
    bytes_per_sample = 64  # more than the label, index, key and hash take
    if views is None:
        bytes_per_sample += bytes_per_image(data, data.size)
    else:
        bytes_per_sample += VIEWS * bytes_per_image(data, data.size)
        bytes_per_sample += views.local * bytes_per_image(data, views.local_size)
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

    A micro-batch is a device batch: the images of one forward and backward pass. A step has
    `batch_layout.accumulation_steps` micro-batches.

    Args:
        source: The training images, or the reader of a stream.
        data: The recipe's options of the images.
        batch_layout: The sizes of the global batch and of micro-batches.
        seed: The seed of the order of images and of random crops.
        start: The first step.
        stop: The step after the last step.
        workers: The requested number of worker processes.
        views: The options of the random views of each image, None for no views.
        decoded: The decoded images of `source`. None to decode images in each step. `decoded` and
            `views` cannot be used together.
    """
    size = batch_bytes(data, batch_layout, views)
    if isinstance(source, StreamReader):
        stream_batches = source.micro_batches(seed, start, stop)
        return image_loader(
            _StreamDataset(source.stream, data, views), stream_batches, workers, size
        )
    if decoded is None:
        images = ImageDataset(source, data, train=True, views=views)
    else:
        images = ResidentDataset(source, data, decoded)
    samples = _choose_samples(source, batch_layout, seed, start, stop)
    return image_loader(images, samples, workers, size)


def shared_samples(rows: np.ndarray, batch_layout: BatchLayout, key: int) -> list[Samples]:
    """Divide rows among the processes, and return the batches of this process.

    Each process gets a contiguous part of the rows. A batch has the size of the device batch. The
    last batch may be smaller.

    Args:
        rows: The rows of all processes.
        batch_layout: The device batch, and the number of processes.
        key: MEASURED_KEY or EVALUATION_KEY.
    """
    rows_here = np.array_split(rows, batch_layout.processes)[batch_layout.rank]
    size = batch_layout.device_batch
    batches = []
    for start in range(0, len(rows_here), size):
        row_B = rows_here[start : start + size]
        batches.append(Samples(row_B, rng.key(key, row_B)))
    return batches


def held_out_rows(source: Source, most: int, skip: int = 0) -> np.ndarray:
    """Return at most `most` random rows of held-out images, the same rows in every run.

    Args:
        source: The held-out images.
        most: The largest number of rows.
        skip: How many rows of the random order to skip.
    """
    positions = np.arange(skip, min(skip + most, len(source)))
    return rng.permute(positions, len(source), rng.key(MEASURED_KEY))


def held_out_batches(
    source: Source,
    data: Data,
    batch_layout: BatchLayout,
    most: int,
    views: ViewOptions | None = None,
    most_in_batch: int = 0,
    skip: int = 0,
) -> list[Batch]:
    """Load this process's batches of held-out images, with the same random numbers in every run.

    Together, all processes load the rows of `held_out_rows(source, most, skip)`. Unreadable images
    are left out. Without `views`, the rows are divided among the processes, and a process's last
    batch may be smaller than the device batch.

    With `views`, the images are cut into batches of at most `most_in_batch` images, and the batches
    are divided among the processes. Some processes may have no batch. The batches do not depend on
    the number of processes, because the loss of an image depends on the other images of the batch.

    Args:
        source: The held-out images, at least one for each process. With `views` at least two for
            each process, because an image is compared with other images.
        data: The recipe's options of the images.
        batch_layout: The device batch, and the number of processes.
        most: The largest number of images of all processes together.
        views: The options of the views of each image, None for no views.
        most_in_batch: The largest number of images in a batch with views. Not used without views.
        skip: How many images of the random order to skip.
    """
    rows = held_out_rows(source, most, skip)
    least_per_process = 2 if views else 1
    assert len(rows) >= least_per_process * batch_layout.processes
    if views is None:
        samples = shared_samples(rows, batch_layout, MEASURED_KEY)
    else:
        num_batches = -(-len(rows) // most_in_batch)  # rounded up
        all_batches = np.array_split(rows, num_batches)
        batches_here = all_batches[batch_layout.rank :: batch_layout.processes]
        samples = [Samples(row_B, rng.key(MEASURED_KEY, row_B)) for row_B in batches_here]
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
    if rows is None:
        rows = np.arange(len(source))
    return image_loader(
        ImageDataset(source, data, train=False),
        shared_samples(rows, batch_layout, EVALUATION_KEY),
        workers,
        batch_bytes(data, batch_layout),
    )


def first_batches(
    source: Source, data: Data, seed: int, count: int, size: int = 256
) -> Iterator[Batch]:
    """Yield batches of a run's first training samples, at most one epoch.

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
        samples = samples_at(start, min(size, count - start), len(source), seed)
        yield images.__getitems__(samples)
