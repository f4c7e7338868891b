"""Choose the samples of each step, and make the Batch from the samples.

With a batch of B images, step s takes the positions sB to sB+B-1 of an endless sequence of permuted
epochs, so that any step can be computed directly.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from .. import rng
from ..errors import UserError
from ..formatting import some
from ..recipe.schema import Data
from ..recipe.shared_groups import ViewOptions
from . import augment, labels, pixel_values, transforms
from .contents import content_hash, signed
from .source import Source

REPLACEMENTS = 20  # images that are tried in a row, from the unreadable image on


class Batch(NamedTuple):
    """Samples of one micro-batch.

    Attributes:
        image: uint8 (B, 3, H, W). With data.channels the number of channels differs, and images of
            16 bits are int32. In training with several views, this is the first view.
        label: int64 (B,), -1 for images without a label; lists of labels are int64 (B, L), as
            `labels.padded` returns them.
        index: int64 (B,), the sample's position in the split.
        key: int64 (B,), the sample's key in this epoch, from which all its random numbers follow.
        loss_denominator: float64 (), labelled images of the global batch divided by the number of
            micro-batches. A micro-batch divides its summed loss by this number, because gradients
            are averaged over micro-batches: dividing by the labelled images of the micro-batch
            itself would give more weight to the images of a micro-batch with few labels. With 6
            labels in one micro-batch and 2 in the other, both divide by 4. None outside of
            training.
        unreadable: Names of the images that could not be read. In training, each of these images is
            replaced by the pixels and the label of the next readable image. Elsewhere the batch
            leaves them out, so that no image is measured twice.
        partner_label: Labels of the partners where images are mixed in pairs, shaped like `label`.
        mix_lambda: float32 (B,), lambda of mixup and CutMix: the weight of the image's own pixels
            and label in a mix with its partner.
        views: Random views of each image (B, V, 3, H, W), of the type of `image`, for objectives
            that compare views, else None.
        local: Smaller views uint8 (B, L, 3, S, S), with `views.local`, else None.
        mask: int32 (B, H, W), the class of each pixel, for images with masks (masks.py).
        content: int64 (B,), the hash of each image's contents (contents.py). Where images are mixed
            in pairs, (B, 2) with the partner's hash second. An array and not a tensor, because each
            additional tensor takes 0.5 ms on the way from a worker.
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
        """Return the batch with `change` applied to each tensor that has an entry per sample."""
        changed: dict[str, Any] = {
            name: change(value)
            for name, value in self._asdict().items()
            if isinstance(value, Tensor) and name != "loss_denominator"
        }
        return self._replace(**changed)


def is_labelled(label: Tensor) -> Tensor:
    """Return which images have a label or a list of labels, even an empty list: bool (B,)."""
    return label >= 0 if label.ndim == 1 else label[:, 0] != labels.UNLABELLED


class Samples(NamedTuple):
    """Positions in the split and keys of samples, int64 (B,)."""

    index: np.ndarray  # type: ignore[assignment]
    key: np.ndarray


def samples_at(first: int, count: int, length: int, seed: int) -> Samples:
    """Return the samples at `count` consecutive positions of the endless sequence of epochs.

    Args:
        first: The first position.
        count: The number of samples.
        length: The number of images in the split.
        seed: The seed of the order.
    """
    epoch, place = np.divmod(first + np.arange(count, dtype=np.int64), length)
    key = rng.key(seed, epoch)
    index = rng.permute(place, length, key)
    return Samples(index, rng.key(seed, epoch, index))


def _partners(wanted: Samples, length: int) -> Samples:
    """Return the sample that each sample is mixed with: any image of the split, drawn by key."""
    key = rng.stream(wanted.key, "partner")
    return Samples(rng.integers(key, 0, length), rng.bits(key, 1))


@dataclass(eq=False, repr=False)
class ImageDataset(Dataset):
    """Dataset that turns Samples into a Batch.

    A subclass may read something else from each row (`fetch`, `decode`) or make other fields from
    the images (`prepared`).

    Args:
        source: The images.
        data: The preprocessing of the images.
        train: True for random crops and flips, mixing, and the next readable image in place of an
            unreadable image; false for the preprocessing of the evaluation, which leaves unreadable
            images out.
        views: How random views are made, in training and in evaluation; None for no views.
    """

    source: Source
    data: Data
    train: bool
    views: ViewOptions | None = None

    def __getitems__(self, wanted: Samples) -> Batch:
        batch = self._unmixed(wanted)
        data = self.data
        if not self.train or max(data.mixup, data.cutmix) == 0:
            return batch
        partners = self._unmixed(_partners(wanted, len(self.source)))
        image, share_B = transforms.mix_pairs(
            batch.image, partners.image, wanted.key, data.mixup, data.cutmix
        )
        # a mix with an unlabelled image has no label
        label = batch.label.clone()
        label[~is_labelled(partners.label)] = labels.UNLABELLED
        assert batch.content is not None and partners.content is not None  # set by `_unmixed`
        return batch._replace(
            image=image,
            label=label,
            partner_label=partners.label,
            mix_lambda=share_B,
            content=np.stack([batch.content, partners.content], axis=1),
            unreadable=batch.unreadable + partners.unreadable,
        )

    def _unmixed(self, wanted: Samples) -> Batch:
        """Return the batch of these samples before any mixing.

        Raises:
            UserError: As `_next_readable`.
        """
        raw, label_B = self.fetch(wanted.index)
        images: list[Any] = []
        contents: list[int] = []
        places: list[int] = []
        unreadable: list[str] = []
        for place, (row, raw_image) in enumerate(zip(wanted.index.tolist(), raw, strict=True)):
            try:
                used, image = (row, raw_image), self.decode(raw_image)
            except ValueError as error:
                unreadable.append(f"{self.source.name(row)}: {error}")
                if not self.train:
                    continue
                used, image, label_B[place] = self._next_readable(row)
            images.append(image)
            places.append(place)
            contents.append(self.content(*used))
        samples = Samples(wanted.index[places], wanted.key[places])
        return Batch(
            **self.prepared(images, samples),
            label=torch.from_numpy(label_B[places]),
            index=torch.from_numpy(samples.index),
            key=torch.from_numpy(samples.key),
            unreadable=tuple(unreadable),
            content=signed(contents),
        )

    def fetch(self, rows: np.ndarray) -> tuple[Sequence[Any], np.ndarray]:
        """Return what `decode` takes for each row, and the labels, as `Source.fetch` does."""
        return self.source.fetch(rows)

    def decode(self, raw: Any) -> Any:
        """Decode what was fetched for a row to an image (C, H, W).

        Raises:
            ValueError: The image cannot be read.
        """
        return pixel_values.decoder(self.data)(raw)

    def content(self, row: int, raw: Any) -> int:
        """Return the hash (`content_hash`) of the bytes or array that holds a row's image."""
        return content_hash(raw)

    def prepared(self, images: list[Any], samples: Samples) -> dict[str, Any]:
        """Return the fields of the Batch that are made from pixels, by name."""
        data = self.data
        if not images:
            return {"image": pixel_values.no_images(data)}
        crops = (images, samples.key, data.size, data.crop_area, data.flip)
        made: dict[str, Any] = {}
        if self.views:
            made["views"] = augment.random_views(*crops, self.views)
            if self.views.local:
                made["local"] = augment.local_views(images, samples.key, data.flip, self.views)
        if not self.train:
            image = transforms.eval_transform(images, data.size, data.eval_mode, data.eval_crop)
        else:
            image = made["views"][:, 0] if self.views else transforms.train_transform(*crops)
        return {"image": image, **made}

    def _next_readable(self, row: int) -> tuple[tuple[int, Any], Any, Any]:
        """Find the first readable image at or after `row`.

        Returns:
            Its row and what was fetched for this row, the decoded image, and its label.

        Raises:
            UserError: None of REPLACEMENTS images can be read.
        """
        tries = min(REPLACEMENTS, len(self.source))
        text = ""
        for offset in range(tries):
            next_row = (row + offset) % len(self.source)
            (raw,), (label,) = self.fetch(np.array([next_row]))
            try:
                return (next_row, raw), self.decode(raw), label
            except ValueError as error:
                text = f"{self.source.name(next_row)}: {error}"
        raise UserError(
            f"{self.data.location}: {tries} images in a row cannot be read. Repair or remove"
            f" unreadable images. The last is {text}"
        )


def check_unreadable(
    unreadable: int, seen: int, data: Data, names: Collection[str], different: int | None = None
) -> None:
    """Check that not too many images are unreadable, and that some image can be read.

    The limit is the share data.unreadable. Fewer than 1,000 images count as 1,000, so that a single
    unreadable image does not stop a small run.

    Args:
        unreadable, seen: Number of unreadable images, and number of images that were wanted.
        data: Options, of which data.unreadable is the limit.
        names: Names of the different unreadable images.
        different: Number of different unreadable images, where images are read more than once.

    Raises:
        UserError: The share is above data.unreadable, or all images are unreadable.
    """
    none = unreadable == seen > 0
    allowed = data.unreadable * max(seen, 1000)
    if unreadable > allowed or none:
        finding = f"{unreadable} of {seen} images cannot be read"
        if different is not None:
            finding += f" ({different} different images)"
        remedy = "Repair or remove the images"
        if not none:
            finding += f", and at most {int(allowed)} may be unreadable"
            remedy = "Allow a larger share with data.unreadable=, or repair or remove the images"
        raise UserError(f"data.unreadable={data.unreadable}: {finding}. {remedy}: {some([*names])}")
