"""Which samples make up global step s, this process's share of them, and what a batch of them is.

Step s takes positions sB .. sB+B-1 of an endless stream of permuted epochs (permuted whole or, of
data in shards, in windows), so every step is reached at once and none depends on history. The
global batch is a row of chunks of the device batch: process p of P takes chunks p, P+p, 2P+p, ...
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from .. import rng
from ..config.schema import Data
from ..errors import UserError
from . import transforms
from .base import Source
from .sampler import WindowSampler

REPLACEMENTS = 20  # images tried for one that cannot be read


class Batch(NamedTuple):
    """`image` uint8 (B, 3, H, W); `label` int64 (B,), -1 for none; `index` int64 (B,), the sample's
    position in the split; `key` int64 (B,), the sample's key of this epoch. `labels_per_pass`, where the
    engine has counted: the labelled images of the global batch over its number of passes, so that
    the passes' sums of losses over it average to the global mean. `unreadable` names the images that
    could not be read and were replaced by the next in the split. Where images are mixed in pairs:
    `partner_label` int64 (B,), the other's label, and `own_share` float32 (B,), how much of the image is its
    own."""

    image: Tensor
    label: Tensor
    index: Tensor  # type: ignore[assignment]
    key: Tensor
    labels_per_pass: Tensor | None = None
    unreadable: tuple[str, ...] = ()
    partner_label: Tensor | None = None
    own_share: Tensor | None = None

    def map(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        """Every tensor of the samples changed."""
        names = ("image", "label", "index", "key", "partner_label", "own_share")
        changed: dict[str, Any] = {
            name: change(x) for name in names if (x := getattr(self, name)) is not None
        }
        return self._replace(**changed)


class Samples(NamedTuple):
    index: np.ndarray  # type: ignore[assignment]
    key: np.ndarray


def samples_at(
    first: int, count: int, length: int, seed: int, windows: WindowSampler | None = None
) -> Samples:
    """The samples at stream positions first .. first+count-1 of a split of `length` images."""
    epoch, place = np.divmod(first + np.arange(count, dtype=np.int64), length)
    key = rng.key(seed, epoch)
    index = windows.rows(place, key) if windows else rng.permute(place, length, key)
    return Samples(index, rng.key(seed, epoch, index))


def _partners(wanted: Samples, length: int) -> Samples:
    """For each sample the one that it is mixed with, from the sample's key alone."""
    key = rng.stream(wanted.key, "partner")
    return Samples(rng.integers(key, 0, length), rng.bits(key, 1))


class BatchLayout(NamedTuple):
    """How the global batch is split over processes: global_batch = device_batch * processes * accumulation_steps."""

    global_batch: int
    device_batch: int
    rank: int
    processes: int

    @property
    def accumulation_steps(self) -> int:
        return self.global_batch // (self.device_batch * self.processes)

    def chunk_index(self, micro: int) -> int:
        """The place in the global batch of this process's chunk number `micro`."""
        return micro * self.processes + self.rank


def batch_layout(
    batch: int, wanted: int | None, limit: int, rank: int, processes: int
) -> BatchLayout:
    """The largest device batch up to `limit` (or the wanted one) that divides the global batch over
    the processes.

    Raises:
        UserError: it does not divide.
    """
    if batch % processes:
        raise UserError(f"optim.batch={batch}: not divisible by {processes} processes")
    share = batch // processes
    if wanted and share % wanted:
        raise UserError(
            f"compute.batch={wanted}: {processes} processes x {wanted} do not divide optim.batch={batch}"
        )
    return BatchLayout(
        batch,
        wanted or max(d for d in range(1, min(share, limit) + 1) if share % d == 0),
        rank,
        processes,
    )


class ImageDataset(Dataset):
    """Samples -> Batch; `train` chooses the training or the evaluation pipeline. An image that
    cannot be read gives way to the next one, or with `strict` keeps its place without a label, so
    that nothing is measured on it."""

    def __init__(self, source: Source, data: Data, train: bool, strict: bool = False) -> None:
        self.source, self.data, self.train, self.strict = source, data, train, strict

    def __getitems__(self, wanted: Samples) -> Batch:
        batch, data = self._unmixed(wanted), self.data
        if not self.train or max(data.mixup, data.cutmix) == 0:
            return batch
        other = self._unmixed(_partners(wanted, len(self.source)))
        image, share_B = transforms.mix_pairs(
            batch.image, other.image, wanted.key, data.mixup, data.cutmix
        )
        label_B = torch.where(other.label < 0, -1, batch.label)  # half a label is none
        return batch._replace(
            image=image,
            label=label_B,
            partner_label=other.label,
            own_share=share_B,
            unreadable=batch.unreadable + other.unreadable,
        )

    def _unmixed(self, wanted: Samples) -> Batch:
        raw, label = self.source.fetch(wanted.index)
        unreadable: list[str] = []
        images = []
        for i, index in enumerate(wanted.index.tolist()):
            known = len(unreadable)
            image, label[i] = self._read(raw[i], int(label[i]), index, unreadable)
            if self.strict and len(unreadable) > known:
                label[i] = -1
            images.append(image)
        if self.train:
            image = transforms.train_transform(
                images, wanted.key, self.data.size, self.data.crop_area, self.data.flip
            )
        else:
            image = transforms.eval_transform(
                images, self.data.size, self.data.eval_mode, self.data.eval_crop
            )
        label_B, index_B, key_B = (torch.from_numpy(a) for a in (label, wanted.index, wanted.key))
        return Batch(image, label_B, index_B, key_B, unreadable=tuple(unreadable))

    def _read(
        self, raw: bytes | np.ndarray, label: int, index: int, unreadable: list[str]
    ) -> tuple[Tensor, int]:
        """The image at `index` and its label, or of the images behind it the first that can be
        read."""
        tries = min(REPLACEMENTS, len(self.source))
        for attempt in range(tries):
            try:
                return transforms.decode(raw), label
            except ValueError as error:
                text = f"{self.source.name(index)}: {error}"
                if attempt == 0:  # those behind it are named when their own turn comes
                    unreadable.append(text)
                index = (index + 1) % len(self.source)
                (raw,), (label,) = self.source.fetch(np.array([index]))
        raise UserError(
            f"data={self.data.name}: {tries} images in a row cannot be read, the last {text}"
        )


def check_unreadable(unreadable: int, seen: int, data: Data, last: str) -> None:
    """That no more images than the recipe's share, of 1,000 at least, could not be read.

    Raises:
        UserError: they are more.
    """
    if unreadable > data.unreadable * max(seen, 1000):
        raise UserError(
            f"data.unreadable={data.unreadable}: {unreadable} of {seen} images cannot be read, the last {last}"
        )
