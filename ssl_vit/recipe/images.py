"""The keys on the images and their preprocessing. No torch here."""

from typing import Annotated, Literal

from pydantic import Field

from .keys import Fraction, Keys, Only, Part, Share, key
from .names import PathText, SplitName

EMBEDDED = "shapes"
SPLITS = ("train", "validation", "test")
BYTES = (0, 255)  # values of a pixel of 8 bits
SIZES = {"train": 50_000, "validation": 5_000, "test": 5_000}  # of the embedded set

# What the keys of a recipe's data are about; the others say how images are mixed
PLACE = ("data.name", "data.path", "data.hub")  # where they are
PART = ("data.share", "data.share_seed", "data.validation_from")  # which of them a run trains on
PIXEL_KEYS = ("channels", "range", "mean", "std")  # what a pixel is
CROPPING = ("data.eval_mode", "data.eval_crop")  # how an evaluation cuts a square of an image
PREPROCESSING = (
    *("data.size", "data.crop_area", "data.flip"),
    *CROPPING,
    *(f"data.{key}" for key in PIXEL_KEYS),
)
MIXING = ("data.mixup", "data.cutmix")
# how files are read, on which a fingerprint of images may depend: the embedded set is drawn at
# data.size
READING = ("data.size", "data.stream", "data.mask_column", "data.channels")
# which images and labels the training split has, and those that all splits depend on
TRAIN_SPLIT_KEYS = (*PLACE, "data.train", "data.labels", "data.image_column", "data.label_column")
SPLIT_KEYS = (*TRAIN_SPLIT_KEYS, "data.validation", "data.test", "data.group")

PixelRange = Annotated[
    list[Annotated[int, Field(ge=0, lt=2**16)]],
    Field(min_length=2, max_length=2),
    Only(lambda v: v[0] < v[1], "the lowest and the highest value, from 0 to 65535"),
]
Channels = Annotated[int, Field(gt=0, le=100)]
# Of pixels as shares of data.range. Values beyond these bounds are slips: normalised pixels would
# overflow float32 in the network. The smallest std that 16 bits of 512 images can have is 1e-10.
Mean = Annotated[float, Field(ge=-1000, le=1000)]
Std = Annotated[float, Field(ge=1e-12, le=1e6)]


class Data(Keys):
    """Images and their preprocessing; data=NAME: recipes/tables/datasets.yaml.

    Attributes:
        name: Name of the data set; data=NAME sets it.
        path: Local copy of the data set, or any image folder, parquet files or tars.
        hub: Data set on the Hugging Face Hub.
        size: Side of the training image in pixels.
        stream: Read the shards of the Hub's data set, or of parquet files, one after the other
            without a copy; a run resumes only on the same number of processes.
        train: Split to train on.
        share: Share of the training images: a fixed random subset, smaller ones inside larger ones.
        share_seed: Draw of data.share: null: the fixed random one; a number: a draw of its own,
            with each class's share of it.
        validation: Held-out images: a split, or the share cut off data.train (0: none); null: the
            validation split, if there is one besides data.train and a test split, else 1%.
        validation_from: What a share of data.validation is cut off: share (the images of
            data.share), train (all training images, before data.share is taken: the same for
            every share) or labelled (as train, of those with a label alone).
        labels: false: no labels are used, such as those that folders are taken for.
        test: Test images: a split (without a test split the validation split), or the share cut off
            data.train before all else, of a folder by the names of its files; no run with that
            share and the same data.label_column and data.group trains on it.
        group: Column (of an image folder also folder: the folder of an image) whose values are
            groups of images, as of one patient or place: a held-out or test share has none or all
            of a group.
        image_column: Column of the images; null: found.
        label_column: Column of the labels; null: found, unless it holds lists of them.
        mask_column: Column of the masks, images with a class per pixel; null: found.
        mask_ignore: Value of a mask's pixels that are not counted.
        mask_classes: Number of classes of the masks; null: counted.
        classes: Number of classes; null: counted.
        unreadable: Share of images that may be unreadable, and in training are replaced; above it
            the run stops. Fewer than 1,000 images count as 1,000, so 0.01 allows ten.
        crop_area: Smallest share of the image that a training crop covers.
        flip: Flip training images horizontally at random.
        mixup: Mixup: blend images and labels in pairs, with a share from Beta(mixup, mixup); 0:
            never.
        cutmix: CutMix: paste a box of another image, with an area share from Beta(cutmix, cutmix);
            with data.mixup, each image uses one of them.
        eval_mode: Evaluation: crop (the centre, after resizing the shorter side) or squash (the
            whole image to a square).
        eval_crop: Side of the centre crop over the resized shorter side, as timm's crop_pct.
        channels: Channels of an image; 3: RGB of 8 bits, whatever the files hold, unless data.range
            is given; others: as the files have them (TIFF, .npy, arrays in parquet), of 8 or 16
            bits.
        range: Lowest and highest value of a pixel: values beyond are clipped, those between stand
            for 0 to 1; null: 0 to 255 of 8 bits; images of 16 bits need it, and a run without it
            proposes one.
        mean: Mean that pixels are normalised with, of each channel as a share of data.range; where
            there are not 3 channels, measured on training images unless given.
        std: Standard deviation that pixels are normalised with; as data.mean.
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
        """Where the images are, in words."""
        return self.path or self.hub or f"data={self.name}"

    @property
    def location(self) -> str:
        """Where the images are, as the option that names them."""
        if self.path:
            return f"data.path={self.path}"
        return f"data.hub={self.hub}" if self.hub else f"data={self.name}"

    @property
    def is_rgb(self) -> bool:
        """Whether images are RGB of 8 bits, to which others are brought."""
        return self.channels == 3 and self.range is None

    @property
    def pixel_range(self) -> tuple[int, int]:
        """The lowest and the highest value of a pixel."""
        lowest, highest = self.range or BYTES
        return lowest, highest


def unmeasured(data: Data) -> list[str]:
    """The keys of images of other than 3 channels that are left to be measured on training images:
    mean and std, where they are not given. For RGB they have defaults."""
    if data.channels == 3:
        return []
    return [key for key in ("mean", "std") if len(getattr(data, key)) != data.channels]
