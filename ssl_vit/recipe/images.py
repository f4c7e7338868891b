"""Keys for the images and their preprocessing. This module does not import torch."""

from typing import Annotated, Literal

from pydantic import Field

from .keys import Allowed, Fraction, Keys, Part, Share, key
from .names import PathText, SplitName

EMBEDDED = "shapes"
SPLITS = ("train", "validation", "test")
BYTES = (0, 255)  # lowest and highest value of an 8-bit pixel
# number of images in each split of the embedded data set
SIZES = {"train": 50_000, "validation": 5_000, "test": 5_000}

# What the keys of the group `data` describe. MIXING has the keys for how training mixes images, and
# TRAINING also the key for the user's own augmentation.
PLACE = ("data.name", "data.path", "data.hub")  # where the images are
# which of the images a run trains on
PART = ("data.share", "data.share_seed", "data.validation_from")
PIXEL_KEYS = ("channels", "range", "mean", "std")  # what the values of a pixel mean
CROPPING = ("data.eval_mode", "data.eval_crop")  # how an evaluation cuts a square out of an image
PREPROCESSING = (
    *("data.size", "data.crop_area", "data.flip"),
    *CROPPING,
    *(f"data.{key}" for key in PIXEL_KEYS),
)
MIXING = ("data.mixup", "data.cutmix")
TRAINING = (*MIXING, "data.augment")
# Keys that change the images that are read from the files, and so may change the fingerprint of the
# images. For example, the embedded data set is drawn at data.size.
READING = ("data.size", "data.stream", "data.mask_column", "data.channels")
# Keys that decide which images and labels the training split has
TRAIN_SPLIT_KEYS = (*PLACE, "data.train", "data.labels", "data.image_column", "data.label_column")
# Keys that decide which images and labels all splits have
SPLIT_KEYS = (*TRAIN_SPLIT_KEYS, "data.validation", "data.test", "data.group")

PixelRange = Annotated[
    list[Annotated[int, Field(ge=-(2**15), lt=2**16)]],
    Field(min_length=2, max_length=2),
    Allowed(lambda v: v[0] < v[1], "[LOWEST,HIGHEST] from -32768 to 65535"),
]
Channels = Annotated[int, Field(gt=0, le=100)]
# Bounds of mean and std, for pixels as shares of data.range. Values beyond these bounds are
# mistakes: normalised pixels would overflow float32 in the network. The smallest std that 512
# images of 16 bits can have is 1e-10.
Mean = Annotated[float, Field(ge=-1000, le=1000)]
Std = Annotated[float, Field(ge=1e-12, le=1e6)]


class Data(Keys):
    """Images and their preprocessing. `data=NAME` takes a row of recipes/tables/datasets.yaml.

    Attributes:
        name: Name of the data set. Set it with data=NAME.
        path: Local copy of the data set: an image folder, parquet files or tars.
        hub: Name of a data set on the Hugging Face Hub, to read instead of local files.
        size: Side of a training image in pixels.
        stream: Read the shards of a Hub data set, or of parquet files, one after the other without
            making a local copy. Use it for data that does not fit on the disk. A streaming run can
            be resumed only with the same number of processes.
        train: Name of the split to train on.
        share: Share of the training images to use, drawn at random but always the same. A smaller
            share is a subset of every larger share.
        share_seed: Seed for drawing data.share. null: the default draw, which ignores labels. With
            a number, each seed draws other images, the same share from each class.
        validation: Held-out images: the name of a split, or the share to cut off data.train (0 for
            none). null: the validation split if the data set has one as well as a test split,
            otherwise 1% of data.train.
        validation_from: Images that a share in data.validation is cut off: share (the images that
            data.share keeps), train (all training images before data.share is applied, so that
            every share has the same held-out images) or labelled (like train, but only images with
            a label).
        labels: Use the labels of the data set. Choose false if they mean nothing, for example when
            folder names are no classes.
        test: Test images: the name of a split, or the share to cut off data.train first. If the
            data set has no test split, its validation split is used. In a folder, the names of the
            files decide which images belong to a share. No run with the same share,
            data.label_column and data.group trains on those images.
        group: Column whose values group images that belong together, such as those of one patient
            or place. In an image folder, `folder` groups by folder. A held-out or test share gets
            all images of a group or none.
        image_column: Column with the images. null: detect it.
        label_column: Column with the labels. null: detect it, unless the column holds lists of
            labels.
        mask_column: Column with the masks (images with one class per pixel). null: detect it.
        mask_ignore: Pixel value that marks pixels of a mask to leave out.
        mask_classes: Number of classes in the masks. null: count them.
        classes: Number of classes. null: count them.
        unreadable: Largest share of images that may be unreadable. Training replaces unreadable
            images, and the run stops above this share. Data sets with fewer than 1,000 images count
            as 1,000, so 0.01 allows ten.
        crop_area: Smallest share of the image's area that a random training crop may cover.
        flip: Flip training images horizontally at random.
        augment: Augmentation of your own, which changes each training image before the random crop
            and flip: a name that a plugin registers, or that `augment=` of a Python function sets.
            null: none.
        mixup: Mixup: blend images and labels in pairs, with a weight drawn from Beta(mixup, mixup).
            0: off.
        cutmix: CutMix: paste a box from another image, with an area share drawn from Beta(cutmix,
            cutmix). 0: off. Together with data.mixup, each image gets one of the two.
        eval_mode: How evaluations make an image square: crop (resize the shorter side, then take
            the centre) or squash (resize the whole image to a square).
        eval_crop: Side of the centre crop divided by the resized shorter side, like timm's
            crop_pct.
        channels: Number of channels of an image. With 3, images are converted to 8-bit RGB, unless
            data.range is given. With any other number, images are read as they are (TIFF, DICOM,
            .npy or arrays in parquet, 8 or 16 bits).
        range: Lowest and highest pixel value, mapped to 0 and 1; values outside are clipped. null:
            0 to 255, for 8-bit images. 16-bit images need a range, and a run without one suggests
            values.
        mean: Mean for normalising pixels, one number per channel, as a share of data.range. If the
            images do not have 3 channels and you give no mean, it is measured on training images.
        std: Standard deviation for normalising pixels, given or measured like data.mean.
    """

    name: str = key("shapes")
    path: PathText | None = key(None, effect="run")
    hub: str | None = key(None)
    size: int = key(224, gt=0, le=2**14)
    stream: bool = key(False)
    train: SplitName = key("train")
    share: Part = key(1.0)
    share_seed: int | None = key(None, ge=0, lt=2**31)
    validation: SplitName | Fraction | None = key(None)
    validation_from: Literal["share", "train", "labelled"] = key("share")
    labels: bool = key(True)
    test: SplitName | Annotated[float, Field(gt=0, lt=1)] = key("test")
    group: str | None = key(None)
    image_column: str | None = key(None)
    label_column: str | None = key(None)
    mask_column: str | None = key(None)
    mask_ignore: int = key(255, ge=-(2**31), lt=2**31)
    mask_classes: int | None = key(None, gt=1, le=2**16)
    classes: int | None = key(None, gt=0, le=2**24)
    unreadable: Share = key(0.01, effect="result")
    crop_area: Part = key(0.05)
    flip: bool = key(True)
    augment: str | None = key(None)
    mixup: Share = key(0.0)
    cutmix: Share = key(0.0)
    eval_mode: Literal["crop", "squash"] = key("crop", from_init=True)
    eval_crop: float = key(0.875, ge=0.1, le=1, from_init=True, requires=("data.eval_mode", "crop"))
    channels: Channels = key(3, from_init=True)
    range: PixelRange | None = key(None, min_length=2, max_length=2, from_init=True)
    mean: list[Mean] = key([0.5, 0.5, 0.5], from_init=True)
    std: list[Std] = key([0.5, 0.5, 0.5], from_init=True)

    @property
    def place(self) -> str:
        """Location of the images in words: the path, the name on the Hub, or `data=NAME`."""
        return self.path or self.hub or f"data={self.name}"

    @property
    def location(self) -> str:
        """Location of the images as an option, such as `data.path=photos`."""
        if self.path:
            return f"data.path={self.path}"
        return f"data.hub={self.hub}" if self.hub else f"data={self.name}"

    @property
    def is_rgb(self) -> bool:
        """Return whether images are 8-bit RGB or are converted to 8-bit RGB."""
        return self.channels == 3 and self.range is None

    @property
    def pixel_range(self) -> tuple[int, int]:
        """Lowest and highest value of a pixel."""
        lowest, highest = self.range or BYTES
        return lowest, highest


def unmeasured(data: Data) -> list[str]:
    """Return which of "mean" and "std" must be measured on training images.

    For 3 channels, both have defaults. For another number of channels, a list with another length
    is the default for 3 channels and must be replaced.
    """
    if data.channels == 3:
        return []
    return [key for key in ("mean", "std") if len(getattr(data, key)) != data.channels]
