"""Read images with masks. A mask is the class of each pixel, cropped and resized like the image.

Legend: B images, H W their height and width, S the side in pixels.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from ..errors import UserError
from ..formatting import option_text
from ..recipe.schema import Data
from . import decoding, transforms
from .batch_layout import BatchLayout
from .batching import ImageDataset, Samples
from .loaders import EVALUATION_KEY, batch_bytes, image_loader, shared_samples
from .run_splits import Splits
from .shares import first_permuted_rows
from .source import Source

CHOICE_KEY = 5  # key of the random order in which images with masks are chosen
MOST_CLASSES = 4096  # a mask with a higher class holds something else, such as instance numbers
ONE_CHANNEL = ("L", "P", "1", "I", "I;16", "I;16L", "I;16B")  # Pillow's modes of a mask


def check_masks_exist(splits: Splits, data: Data) -> None:
    """Check that the images of every split have masks.

    Raises:
        UserError: A split has no masks. The message lists the columns that could hold masks.
    """
    sources = {"train": splits.train, "validation": splits.validation, "test": splits.test}
    for split, source in sources.items():
        if source is not None and not source.masks.column:
            raise UserError(
                f"data.mask_column={option_text(data.mask_column)}: the {split} split of"
                f" {data.place} has no column of masks. {source.masks.choices}."
            )


def known_classes(splits: Splits, data: Data) -> int | None:
    """Return the number of pixel classes from the options or the data, or None if unknown."""
    return data.mask_classes or splits.train.masks.classes


def choose_images(source: Source, most: int | None) -> Source:
    """Choose `most` random images of a split. Each call chooses the same images.

    If `most` is None, or the split has at most this many images, all images are returned.
    """
    if most is None or most >= len(source):
        return source
    return source.subset(first_permuted_rows(source, most, CHOICE_KEY))


def decode(raw: bytes | np.ndarray) -> Tensor:
    """Decode a mask to int32 (H, W), turned by the EXIF orientation.

    Args:
        raw: An array of classes (H, W), or an encoded image. The classes are the values of an image
            with one channel, or the palette indices of an image with a palette.

    Raises:
        ValueError: The mask cannot be decoded, or has several channels.
    """
    if isinstance(raw, np.ndarray):
        return torch.from_numpy(raw.astype(np.int32))
    try:
        image = decoding.open_image(raw)
        if image.mode in ONE_CHANNEL:
            return torch.from_numpy(decoding.upright(image).astype(np.int32))
    except Exception as error:  # a file written by others may cause any error in a decoder
        raise ValueError(f"cannot read the mask: {' '.join(str(error).split())[:200]}") from None
    raise ValueError(f"the mask has pixels of type {image.mode}. Use a single channel of classes")


class MaskedImages(ImageDataset):
    """Dataset that turns Samples into a Batch with masks, preprocessed for evaluation.

    A sample is left out if its image or its mask cannot be read.

    Args:
        source: The images and masks.
        data: The preprocessing of the images.
        classes: The number of pixel classes, None if unknown.
    """

    def __init__(self, source: Source, data: Data, classes: int | None) -> None:
        super().__init__(source, data, train=False)
        self.classes = classes

    def fetch(self, rows: np.ndarray) -> tuple[list[tuple[Any, Any]], np.ndarray]:
        raw, label_B = super().fetch(rows)
        return list(zip(raw, self.source.fetch_masks(rows), strict=True)), label_B

    def decode(self, raw: tuple[Any, Any]) -> tuple[Tensor, Tensor]:
        image, mask = raw
        return super().decode(image), decode(mask)

    def content(self, row: int, raw: tuple[Any, Any]) -> int:
        return super().content(row, raw[0])

    def pixel_fields(self, images: list[tuple[Tensor, Tensor]], samples: Samples) -> dict[str, Any]:
        """Crop and resize images and their masks.

        Args:
            images: Pairs of a decoded image and its mask.
            samples: The samples of these images.

        Returns:
            Values of the fields `image` and `mask` of the Batch: {field: tensor}.

        Raises:
            UserError: A mask has another size than its image, or a class out of range.
        """
        for row, (image, mask) in zip(samples.index.tolist(), images, strict=True):
            self._check(row, image, mask)
        size = self.data.size
        masks_BHW = torch.empty(0, size, size, dtype=torch.int32)  # if no image can be read
        if images:
            masks = [mask for _, mask in images]
            masks_BHW = transforms.eval_masks(masks, size, self.data.eval_mode, self.data.eval_crop)
        fields = super().pixel_fields([image for image, _ in images], samples)
        return fields | {"mask": masks_BHW}

    def _check(self, row: int, image: Tensor, mask_HW: Tensor) -> None:
        """Check the size and the classes of a row's mask.

        Args:
            row: The row, for the error.
            image: The decoded image (C, H, W).
            mask_HW: The class of each pixel.

        Raises:
            UserError: The mask has another size than its image, or a class out of range.
        """
        name = self.source.name(row)
        column = self.source.masks.column
        _, height, width = image.shape
        mask_height, mask_width = mask_HW.shape
        if (mask_height, mask_width) != (height, width):
            raise UserError(
                f"data.mask_column={column}: {name}: the mask has {mask_width} x {mask_height}"
                f" pixels and the image {width} x {height}. Use the same size."
            )
        ignore = self.data.mask_ignore
        classes = mask_HW[mask_HW != ignore]
        if not len(classes):
            return
        low, high = int(classes.min()), int(classes.max())
        # classes below `limit` are allowed, also if the number of classes is unknown (None)
        limit = self.classes or MOST_CLASSES
        if low < 0 or high >= limit:
            raise UserError(
                f"data.mask_column={column}: {name}: the mask has the class"
                f" {low if low < 0 else high:,}. Use 0 to {limit - 1:,} (data.mask_classes=), or"
                f" {ignore} for pixels to ignore (data.mask_ignore=)."
            )


def loader(
    source: Source,
    data: Data,
    batch_layout: BatchLayout,
    workers: int,
    classes: int | None,
) -> DataLoader:
    """Return a loader of this process's batches of all images of a split, with masks.

    The images are divided among the processes. Unreadable images and masks are left out, and their
    names are in `Batch.unreadable`.

    Args:
        source: The split.
        data: The recipe's options of the images.
        batch_layout: The device batch, and the number of processes.
        workers: The requested number of worker processes.
        classes: The number of pixel classes, None if unknown.
    """
    samples = shared_samples(np.arange(len(source)), batch_layout, EVALUATION_KEY)
    mask_bytes = 4 * data.size**2 * batch_layout.device_batch  # int32 has 4 bytes
    size = batch_bytes(data, batch_layout) + mask_bytes
    return image_loader(MaskedImages(source, data, classes), samples, workers, size)
