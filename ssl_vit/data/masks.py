"""Images with masks: the class of each pixel, read beside the image and given its geometry.

Legend: B images, H W their height and width, S the side in pixels.
"""

from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..config.schema import Data
from ..errors import UserError
from . import transforms
from .base import ShardedSource, ShardedSubset, Source, Subset, fetch_masks, masks_in, read_each
from .batching import BatchLayout
from .loaders import image_loader
from .sources import Splits

CHOICE_KEY = 5  # of the permutation by which images with masks are chosen
MOST_CLASSES = 4096  # a mask with a higher class holds something else, such as numbers of instances
ONE_CHANNEL = ("L", "P", "1", "I", "I;16", "I;16L", "I;16B")  # Pillow's modes of a mask


class MaskedBatch(NamedTuple):
    """Images with masks.

    Attributes:
        image: uint8 (B, 3, S, S).
        mask: int32 (B, S, S), the class of each pixel.
        index: int64 (B,), the image's position in its split.
        unreadable: names of the images left out because they or their masks cannot be read.
    """

    image: Tensor
    mask: Tensor
    index: Tensor  # type: ignore[assignment]
    unreadable: tuple[str, ...]


def check(splits: Splits, data: Data) -> None:
    """Check that all splits have masks.

    Raises:
        UserError: one has none; it names the columns that there are.
    """
    named = {"train": splits.train, "validation": splits.validation, "test": splits.test}
    for split, source in named.items():
        if source is not None and not masks_in(source).column:
            place = data.path or data.hub or f"data={data.name}"
            text = f"{place} has no masks in its {split} split"
            raise UserError(f"data.mask_column=null: {text}; {masks_in(source).choices}")


def known_classes(splits: Splits, data: Data) -> int | None:
    """The number of classes that the data or the options give; None where it is to be counted."""
    return data.mask_classes or masks_in(splits.train).classes


def chosen(source: Source, most: int | None, data: Data) -> Source:
    """At most so many images of a split: a fixed random choice; with a window about so many, as
    many of each shard."""
    if most is None or most >= len(source):
        return source
    if data.window:
        return ShardedSubset(cast(ShardedSource, source), 0, most, CHOICE_KEY)
    return Subset(source, 0, most, CHOICE_KEY)


def decode(raw: bytes | np.ndarray) -> Tensor:
    """A mask as int32 (H, W): a palette's indices or the values of one channel, as they are.

    Raises:
        ValueError: it cannot be decoded, or has several channels.
    """
    if isinstance(raw, np.ndarray):
        return torch.from_numpy(raw.astype(np.int32))
    try:
        image = transforms.open_image(raw)
        width, height = image.size
        if width * height > transforms.MOST_PIXELS:
            raise ValueError(f"{width} x {height} pixels")
        if image.mode in ONE_CHANNEL:
            return torch.from_numpy(np.array(image).astype(np.int32))
    except Exception as error:  # whatever a file written by others causes in a decoder
        raise ValueError(f"not a whole mask: {' '.join(str(error).split())[:200]}") from None
    raise ValueError(f"its mask has pixels of {image.mode}; expected one channel of classes")


def _decode_pair(pair: tuple[Any, Any]) -> tuple[Tensor, Tensor]:
    image, mask = pair
    return transforms.decode(image), decode(mask)


class _Masked(Dataset):
    """Rows -> MaskedBatch, with the evaluation's preprocessing.

    Args:
        classes: of the masks, as far as they are known.
    """

    def __init__(self, source: Source, data: Data, classes: int | None) -> None:
        self.source = source
        self.data = data
        self.classes = classes

    def __getitems__(self, rows: np.ndarray) -> MaskedBatch:
        """
        Raises:
            UserError: a mask is of another size than its image, or has a class out of range.
        """
        images: list[Tensor] = []
        masks: list[Tensor] = []
        kept: list[int] = []
        unreadable: list[str] = []
        raw, _ = self.source.fetch(rows)
        pairs = zip(raw, fetch_masks(self.source, rows), strict=True)
        for place, (image, classes) in read_each(
            self.source, rows, pairs, _decode_pair, unreadable
        ):
            row = int(rows[place])
            self._check(row, image, classes)
            images.append(image)
            masks.append(classes)
            kept.append(row)
        size, mode, crop = self.data.size, self.data.eval_mode, self.data.eval_crop
        image_BCHW = torch.empty(0, 3, size, size, dtype=torch.uint8)
        mask_BHW = torch.empty(0, size, size, dtype=torch.int32)
        if images:
            image_BCHW = transforms.eval_transform(images, size, mode, crop)
            mask_BHW = transforms.eval_masks(masks, size, mode, crop)
        index_B = torch.tensor(kept, dtype=torch.int64)
        return MaskedBatch(image_BCHW, mask_BHW, index_B, tuple(unreadable))

    def _check(self, row: int, image: Tensor, mask_HW: Tensor) -> None:
        name = self.source.name(row)
        prefix = f"data.mask_column={masks_in(self.source).column}"
        if image.shape[1:] != mask_HW.shape:
            sizes = [f"{side.shape[-1]} x {side.shape[-2]}" for side in (mask_HW, image)]
            text = f"its mask has {sizes[0]} pixels, the image {sizes[1]}; expected the same"
            raise UserError(f"{prefix}: {name}: {text}")
        ignore = self.data.mask_ignore
        shown = mask_HW[mask_HW != ignore]
        if not len(shown):
            return
        low, high = int(shown.min()), int(shown.max())
        most = self.classes or MOST_CLASSES
        if low < 0 or high >= most:
            beyond = low if low < 0 else high
            text = f"its mask has the class {beyond:,}; expected 0 to {most - 1:,}"
            choices = f"or data.mask_ignore={ignore}; data.mask_classes= sets their number"
            raise UserError(f"{prefix}: {name}: {text}, {choices}")


def loader(
    source: Source,
    data: Data,
    batch_layout: BatchLayout,
    workers: int,
    classes: int | None,
) -> DataLoader:
    """This process's share of all images of a split and their masks, each in exactly one process's
    share; what cannot be read is left out and named."""
    index = np.array_split(np.arange(len(source)), batch_layout.processes)[batch_layout.rank]
    size = batch_layout.device_batch
    parts = [index[start : start + size] for start in range(0, len(index), size)]
    at_once = size * 7 * data.size**2
    return image_loader(_Masked(source, data, classes), parts, workers, at_once)
