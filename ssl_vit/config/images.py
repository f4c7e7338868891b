"""The keys on the images and their preprocessing. No torch here."""

from dataclasses import dataclass

from .fields import LONGEST_LIST, is_held_out, is_path, is_split, is_tested, option

EMBEDDED = "shapes"
SPLITS = ("train", "validation", "test")
OF_PIXELS = ("channels", "range", "mean", "std")  # keys of what a pixel is
BYTES = (0, 255)  # values of a pixel of 8 bits
SIZES = {"train": 50_000, "validation": 5_000, "test": 5_000}  # of the embedded set


@dataclass
class Data:
    name: str = option(
        EMBEDDED,
        "Name of the data set; data=NAME sets it.",
        place=True,
        splits=SPLITS,
        per_process=True,
    )
    path: str | None = option(
        None,
        "Local copy of the data set, or any image folder, parquet files or tars.",
        check=is_path,
        identity=False,
        private=True,
        place=True,
        splits=SPLITS,
        per_process=True,
    )
    hub: str | None = option(None, "Data set on the Hugging Face Hub.", place=True, splits=SPLITS)
    size: int = option(
        224,
        "Side of the training image in pixels.",
        above=0,
        maximum=2**14,
        reading=True,  # the embedded set is drawn at this size
        preprocessing=True,
    )
    stream: bool = option(
        False,
        "Read the Hub's data set in order without downloading it; a run resumes only on the same"
        " number of processes.",
        reading=True,
    )
    train: str = option(
        "train",
        "Split to train on.",
        check=is_split,
        expected="a split's name",
        splits=("train", "validation"),  # a share of it may be held out
    )
    share: float = option(
        1.0,
        "Share of the training images: a fixed random subset, smaller ones inside larger ones.",
        above=0,
        maximum=1,
        subset=True,
        pace=False,
    )
    share_seed: int | None = option(
        None,
        "Draw of data.share: null: the fixed random one; a number: a draw of its own, with each"
        " class's share of it.",
        minimum=0,
        below=2**31,
        subset=True,
    )
    validation: str | float | None = option(
        None,
        "Held-out images: a split, or the share cut off data.train (0: none); null: the"
        " validation split if there is one besides data.train, else 1%.",
        check=is_held_out,
        expected="a split's name, or a share from 0 to below 1",
        splits=("validation",),
        pace=False,
    )
    validation_from: str = option(
        "share",
        "What a share of data.validation is cut off: share (the images of data.share) or train (all"
        " training images, before data.share is taken: the same for every share).",
        choices=("share", "train"),
        splits=("validation",),
        subset=True,
        pace=False,
    )
    labels: bool = option(
        True,
        "false: no labels are used, such as those that folders are taken for.",
        splits=SPLITS,
    )
    test: str | float = option(
        "test",
        "Test images: a split, or the share cut off data.train before all else, which no run with"
        " that share and the same data.label_column and data.group trains on.",
        check=is_tested,
        expected="a split's name, or a share above 0 and below 1",
        splits=("test",),
    )
    group: str | None = option(
        None,
        "Column (of an image folder also folder: the folder of an image) whose values are groups of"
        " images, as of one patient or place: a held-out or test share has none or all of a group.",
        splits=("validation", "test"),
        pace=False,
    )
    image_column: str | None = option(None, "Column of the images; null: found.", splits=SPLITS)
    label_column: str | None = option(
        None,
        "Column of the labels; null: found, unless it holds lists of them.",
        splits=SPLITS,
    )
    mask_column: str | None = option(
        None,
        "Column of the masks, images with a class per pixel; null: found.",
        reading=True,
    )
    mask_ignore: int = option(
        255,  # Cityscapes, ADE20K and Pascal VOC as mmsegmentation prepares them
        "Value of a mask's pixels that are not counted.",
        minimum=-(2**31),
        below=2**31,
    )
    mask_classes: int | None = option(
        None, "Number of classes of the masks; null: counted.", above=1, maximum=2**16
    )
    classes: int | None = option(None, "Number of classes; null: counted.", above=0, maximum=2**24)
    unreadable: float = option(
        0.01,
        "Share of images that may be unreadable, each replaced by the next one; above it the run"
        " stops.",
        minimum=0,
        maximum=1,
        identity=False,
        in_result=True,
    )
    crop_area: float = option(
        0.05,
        "Smallest share of the image that a training crop covers.",
        above=0,
        maximum=1,
        preprocessing=True,
    )
    flip: bool = option(True, "Flip training images horizontally at random.", preprocessing=True)
    mixup: float = option(
        0.0,
        "Mixup: blend images and labels in pairs, with a share from Beta(mixup, mixup); 0: never.",
        minimum=0,
        maximum=1,
        training=True,
    )
    cutmix: float = option(
        0.0,
        "CutMix: paste a box of another image, with an area share from Beta(cutmix, cutmix); with"
        " data.mixup, each image uses one of them.",
        minimum=0,
        maximum=1,
        training=True,
    )
    eval_mode: str = option(
        "crop",
        "Evaluation: crop (the centre, after resizing the shorter side) or squash (the whole image"
        " to a square).",
        choices=("crop", "squash"),
        preprocessing=True,
        brought="evaluation",
    )
    eval_crop: float = option(
        0.875,
        "Side of the centre crop over the resized shorter side, as timm's crop_pct.",
        minimum=0.1,
        maximum=1,
        requires=("data.eval_mode", "crop"),
        preprocessing=True,
        brought="evaluation",
    )
    channels: int = option(
        3,
        "Channels of an image; 3: RGB of 8 bits, whatever the files hold, unless data.range is"
        " given; others: as the files have them (TIFF, .npy, arrays in parquet), of 8 or 16 bits.",
        above=0,
        maximum=LONGEST_LIST,
        reading=True,
        preprocessing=True,
        brought="always",
    )
    range: list[int] | None = option(
        None,
        "Lowest and highest value of a pixel: values beyond are clipped, those between stand for 0"
        " to 1; null: 0 to 255 of 8 bits, of 16 bits the quantiles 0.1% and 99.9% of training"
        " images, which are recorded.",
        length=2,
        minimum=0,
        below=2**16,
        check=lambda v: v is None or v[0] < v[1],
        expected="the lowest and the highest value, from 0 to 65535",
        preprocessing=True,
        brought="always",
    )
    mean: list[float] = option(
        [0.5, 0.5, 0.5],
        "Mean that pixels are normalised with, of each channel as a share of data.range; where"
        " there are not 3 channels, measured on training images unless given.",
        preprocessing=True,
        brought="always",
    )
    std: list[float] = option(
        [0.5, 0.5, 0.5],
        "Standard deviation that pixels are normalised with; as data.mean.",
        above=0,
        preprocessing=True,
        brought="always",
    )

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
    those of OF_PIXELS that are not given. For RGB they have defaults."""
    if data.channels == 3:
        return []
    missing = ["range"] if data.range is None else []
    return missing + [key for key in ("mean", "std") if len(getattr(data, key)) != data.channels]
