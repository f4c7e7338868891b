"""Choose the samples of each step, and load them as a Batch.

With a batch of B images, step s takes the positions sB to sB+B-1 of an endless sequence of permuted
epochs, so that any step can be computed directly.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from .. import rng
from ..errors import UserError
from ..formatting import format_image_count, list_names
from ..recipe import augmentations
from ..recipe.schema import Data
from ..recipe.shared_groups import ViewOptions
from . import augment, labels, own_augment, pixel_values, transforms
from .contents import content_hash, signed
from .source import Source

REPLACEMENTS = 20  # successive images that are tried to replace an unreadable image


class Batch(NamedTuple):
    """Samples of one micro-batch.

    Attributes:
        image: uint8 (B, 3, H, W). With data.channels the number of channels differs, and images of
            16 bits are int32. In training with several views, this is the first view.
        label: int64 (B,), -1 for images without a label; lists of labels are int64 (B, L), as
            `labels.pad_lists` returns them.
        index: int64 (B,), the sample's position in the split.
        key: int64 (B,), the sample's key in this epoch. Random numbers are derived from the key.
        loss_denominator: float64 (), the number by which the summed loss of a micro-batch is
            divided: labelled images of the global batch / number of micro-batches. With 6 labelled
            images in one micro-batch and 2 in the other, both sums are divided by 4. Gradients are
            averaged over micro-batches. Dividing by 6 and by 2 would give an image of the second
            micro-batch more weight than an image of the first. None outside of training.
        unreadable: Names of the images that could not be read. In training, the next readable image
            and its label replace an unreadable image. In evaluation, unreadable images are left
            out, so that no image is measured twice.
        partner_label: For images mixed in pairs, the partners' labels, shaped like `label`.
        mix_lambda: float32 (B,), lambda of mixup and CutMix: the weight of the image's own pixels
            and label in a mix with its partner.
        views: Random views of each image (B, V, 3, H, W), of the type of `image`, for objectives
            that compare views, else None.
        local: Smaller views uint8 (B, L, 3, S, S), with `views.local`, else None.
        mask: int32 (B, H, W), the class of each pixel, for images with masks (masks.py).
        content: int64 (B,), the hash of each image's contents (contents.py). For images mixed in
            pairs, (B, 2) with the partner's hash second. The hashes are a numpy array, because
            sending one more tensor from a worker takes 0.5 ms.
    """

    image: Tensor
    label: Tensor
    index: Tensor  # type: ignore[assignment]
    key: Tensor
    loss_denominator: Tensor | None = None
    unreadable: tuple[str, ...] = ()
    partner_label: Tensor | None = None
    mix_lambda: Tensor | None = None
    views: Tensor | None = None
    local: Tensor | None = None
    mask: Tensor | None = None
    content: np.ndarray | None = None

    def map(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        """Apply `change` to each tensor with an entry per sample, and return the new batch."""
        changed: dict[str, Any] = {
            name: change(value)
            for name, value in self._asdict().items()
            if isinstance(value, Tensor) and name != "loss_denominator"
        }
        return self._replace(**changed)


def is_labelled(label: Tensor) -> Tensor:
    """Return which images are labelled, bool (B,). An image with an empty list is labelled.

    Args:
        label: One label for each image, int64 (B,), or lists of labels (B, L).
    """
    if label.ndim == 1:
        return label >= 0
    return label[:, 0] != labels.UNLABELLED


class Samples(NamedTuple):
    """Samples, given by positions in the split and by keys, int64 (B,) each."""

    index: np.ndarray  # type: ignore[assignment]
    key: np.ndarray


def samples_at(first: int, count: int, length: int, seed: int) -> Samples:
    """Return `count` consecutive samples of an endless sequence of shuffled epochs.

    With 5 images, the positions 0 to 4 of the sequence are epoch 0, and 5 to 9 are epoch 1.

    Args:
        first: The position of the first sample in the sequence, from 0.
        count: The number of samples.
        length: The number of images in the split.
        seed: The seed of the random orders.
    """
    epoch, position_in_epoch = np.divmod(first + np.arange(count, dtype=np.int64), length)
    index = rng.permute(position_in_epoch, length, rng.key(seed, epoch))
    return Samples(index, rng.key(seed, epoch, index))


def _partners(wanted: Samples, length: int) -> Samples:
    """Draw a random mixing partner for each sample from all `length` images of the split."""
    key = rng.stream(wanted.key, "partner")
    return Samples(rng.integers(key, 0, length), rng.bits(key, 1))


@dataclass(eq=False, repr=False)
class ImageDataset(Dataset):
    """Dataset that turns Samples into a Batch.

    Subclasses may read other inputs (`fetch`, `decode`) or make other fields (`pixel_fields`).

    Args:
        source: The images.
        data: The preprocessing of the images.
        train: True for random crops, flips and mixing, with unreadable images replaced by the next
            readable image. False for evaluation, with unreadable images left out.
        views: Options of random views, in training and in evaluation. None for no views.
    """

    source: Source
    data: Data
    train: bool
    views: ViewOptions | None = None

    def __post_init__(self) -> None:
        # found here, because a data worker may not have run the plugin
        augments = self.train or self.views is not None
        self.augmentation = augmentations.find(self.data.augment) if augments else None
        self.is_checked = False

    def __getitems__(self, wanted: Samples) -> Batch:
        batch = self._load_unmixed(wanted)
        data = self.data
        if not self.train or max(data.mixup, data.cutmix) == 0:
            return batch
        partners = self._load_unmixed(_partners(wanted, len(self.source)))
        image, weight_B = transforms.mix_pairs(
            batch.image, partners.image, wanted.key, data.mixup, data.cutmix
        )
        # a mix with an unlabelled image has no label
        label = batch.label.clone()
        label[~is_labelled(partners.label)] = labels.UNLABELLED
        assert batch.content is not None and partners.content is not None  # set by `_load_unmixed`
        return batch._replace(
            image=image,
            label=label,
            partner_label=partners.label,
            mix_lambda=weight_B,
            content=np.stack([batch.content, partners.content], axis=1),
            unreadable=batch.unreadable + partners.unreadable,
        )

    def _load_unmixed(self, wanted: Samples) -> Batch:
        """Load the batch of these samples, without mixing.

        In training, the next readable image replaces an unreadable image. In evaluation, unreadable
        images are left out.

        Raises:
            UserError: In training, REPLACEMENTS images in a row cannot be read.
        """
        raw, label_B = self.fetch(wanted.index)
        images: list[Any] = []
        content_hashes: list[int] = []
        positions: list[int] = []  # positions in `wanted` of the samples in the batch
        unreadable: list[str] = []
        for i, (row, raw_image) in enumerate(zip(wanted.index.tolist(), raw, strict=True)):
            try:
                image = self.decode(raw_image)
            except ValueError as error:
                unreadable.append(f"{self.source.name(row)}: {error}")
                if not self.train:
                    continue
                row, raw_image, image, label_B[i] = self._next_readable(row)
            images.append(image)
            positions.append(i)
            content_hashes.append(self.content(row, raw_image))
        samples = Samples(wanted.index[positions], wanted.key[positions])
        return Batch(
            **self.pixel_fields(images, samples),
            label=torch.from_numpy(label_B[positions]),
            index=torch.from_numpy(samples.index),
            key=torch.from_numpy(samples.key),
            unreadable=tuple(unreadable),
            content=signed(content_hashes),  # unsigned 64-bit hashes as int64
        )

    def fetch(self, rows: np.ndarray) -> tuple[Sequence[Any], np.ndarray]:
        """Return the undecoded images and the labels of rows.

        Labels are int64 (B,), or lists of labels (B, L), as from `Source.fetch`.
        """
        return self.source.fetch(rows)

    def decode(self, raw: Any) -> Any:
        """Decode an image from `fetch` to integers (C, H, W).

        Raises:
            ValueError: The image cannot be read.
        """
        return pixel_values.decoder(self.data)(raw)

    def content(self, row: int, raw: Any) -> int:
        """Return the hash of a row's encoded image or array (`content_hash`)."""
        return content_hash(raw)

    def pixel_fields(self, images: list[Any], samples: Samples) -> dict[str, Any]:
        """Crop and resize images, and make random views if `self.views` is set.

        Args:
            images: The decoded images, as from `decode`.
            samples: The samples of these images.

        Returns:
            The fields image, views and local of the Batch: {field: value}.
        """
        data = self.data
        if not images:
            return {"image": pixel_values.no_images(data)}
        key_B = samples.key
        change = self._own_augment(images[0]) if self.train or self.views else None
        fields: dict[str, Any] = {}
        if self.views:
            fields["views"] = augment.random_views(
                images, key_B, data.size, data.crop_area, data.flip, self.views, change
            )
            if self.views.local:
                fields["local"] = augment.local_views(images, key_B, data.flip, self.views, change)
        if not self.train:
            image = transforms.eval_transform(images, data.size, data.eval_mode, data.eval_crop)
        elif self.views:
            image = fields["views"][:, 0]
        else:
            changed = change(images, key_B) if change else images
            image = transforms.train_transform(changed, key_B, data.size, data.crop_area, data.flip)
        return {"image": image, **fields}

    def _own_augment(self, image: Tensor) -> augment.Augment | None:
        """Return the function that applies data.augment, or None if this option is not set.

        Args:
            image: Image (C, H, W) on which the augmentation is checked once.

        Raises:
            UserError: Random numbers of the augmentation cannot be seeded.
        """
        if self.augmentation is None:
            return None
        name = str(self.data.augment)
        if not self.is_checked:
            own_augment.check(self.augmentation, name, image)
            self.is_checked = True
        return partial(own_augment.augment, self.augmentation, name)

    def _next_readable(self, row: int) -> tuple[int, Any, Any, Any]:
        """Find the first readable image from `row` on. After the last row comes row 0.

        Args:
            row: The first row to try.

        Returns:
            The row, the undecoded image, the decoded image, and the label.

        Raises:
            UserError: None of REPLACEMENTS successive images can be read.
        """
        tries = min(REPLACEMENTS, len(self.source))
        last_error = ""
        for offset in range(tries):
            next_row = (row + offset) % len(self.source)
            (raw,), (label,) = self.fetch(np.array([next_row]))
            try:
                return next_row, raw, self.decode(raw), label
            except ValueError as error:
                last_error = f"{self.source.name(next_row)}: {error}"
        raise UserError(
            f"{self.data.location}: cannot read {format_image_count(tries)} in a row. Repair or"
            f" remove unreadable images, such as {last_error}"
        )


def check_unreadable(unreadable: int, seen: int, data: Data, names: Collection[str]) -> None:
    """Check that not too many images are unreadable.

    The limit is the share data.unreadable of the images. Fewer than 1,000 images count as 1,000, so
    that a single unreadable image does not stop a small run: with data.unreadable=0.01, up to 10 of
    100 images may be unreadable. At least one image must be readable.

    Args:
        unreadable: Number of unreadable images. An image counts each time a read fails.
        seen: Number of images that the run tried to read.
        data: The recipe's options, with the limit data.unreadable.
        names: Names of the unreadable images, without repetition.

    Raises:
        UserError: The share is above data.unreadable, or all images are unreadable.
    """
    images = format_image_count(len(names))
    if seen > 0 and unreadable == seen:
        raise UserError(
            f"data.unreadable={data.unreadable}: {unreadable} of {seen} images cannot be read."
            f" Repair or remove {images}: {list_names([*names])}"
        )
    allowed = int(data.unreadable * max(seen, 1000))
    if unreadable > allowed:
        raise UserError(
            f"data.unreadable={data.unreadable}: {unreadable} of {seen} images cannot be read, and"
            f" at most {allowed} may be unreadable. Allow a larger share with data.unreadable=, or"
            f" repair or remove {images}: {list_names([*names])}"
        )
