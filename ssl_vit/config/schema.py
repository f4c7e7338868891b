"""The recipe: typed values that define a run. Each key is described here and nowhere else (see
`fields.Option`); docs/options.md lists them all. No torch here; resolve.py reads them."""

import dataclasses
import functools
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from omegaconf import OmegaConf

from ..errors import UserError
from . import declaration
from .declaration import Names
from .fields import (
    LONGEST_LIST,
    Option,
    group,
    is_held_out,
    is_name,
    is_path,
    is_split,
    option,
    options_of,
)
from .init_source import InitSource
from .model import Model
from .operation import Checkpoint, Compute, Eval, Hub, Log
from .optimisation import Optim
from .parsing import flatten
from .probe import CHOSEN, DENSE, Probe
from .shared_groups import GROUPS as SHARED_GROUPS
from .shared_groups import ViewOptions

G = TypeVar("G")
EMBEDDED = "shapes"
SPLITS = ("train", "validation", "test")
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
        "Local copy of the data set, or any image folder, parquet file or tar shards.",
        identity=False,
        private=True,
        place=True,
        splits=SPLITS,
        per_process=True,
    )
    hub: str | None = option(
        None, "Data set on the Hugging Face Hub.", place=True, splits=SPLITS, curve=False
    )
    size: int = option(
        224,
        "Side of the training image in pixels.",
        above=0,
        maximum=2**14,
        reading=True,  # the embedded set is drawn at this size
        preprocessing=True,
    )
    window: int | None = option(
        None,
        "Read shards (parquet, tar) in place, this many rows at a time; null: load all at once.",
        above=0,
        maximum=2**40,
        reading=True,
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
        curve=False,
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
        "Draw of data.share and data.labelled: null: the fixed random one; a number: a draw of its"
        " own, with each class's share of it.",
        minimum=0,
        below=2**31,
        subset=True,
    )
    validation: str | float | None = option(
        None,
        "Held-out images: a split, or the share cut off data.train (0: none); null: the"
        " validation split if there is one, else 1%.",
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
    labelled: float = option(
        1.0,
        "Share of the training images whose labels are shown, those that data.share takes; the"
        " others count as unlabelled, of which an objective learns that needs no labels too.",
        above=0,
        maximum=1,
        training=True,
        subset=True,
        pace=False,
    )
    test: str = option(
        "test",
        "Split that eval.test measures on.",
        check=is_split,
        expected="a split's name",
        splits=("test",),
        curve=False,
    )
    image_column: str | None = option(
        None, "Column of the images; null: found.", splits=SPLITS, curve=False
    )
    label_column: str | None = option(
        None,
        "Column of the labels; null: found, unless it holds lists of them.",
        splits=SPLITS,
        curve=False,
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
    verified: bool = option(
        True,
        "false: the Hub's name and the numbers of this preset could not be checked.",
        place=True,
        curve=False,
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


OF_PIXELS = ("channels", "range", "mean", "std")


def unmeasured(data: Data) -> list[str]:
    """The keys of images of other than 3 channels that are left to be measured on training images:
    those of OF_PIXELS that are not given. For RGB they have defaults."""
    if data.channels == 3:
        return []
    missing = ["range"] if data.range is None else []
    return missing + [key for key in ("mean", "std") if len(getattr(data, key)) != data.channels]


@dataclass
class Recipe:
    name: str = option(
        "",
        "The run's folder; default: the recipe's name and the options that change what is "
        "computed.",
        identity=False,
        check=lambda v: len(v) <= 200 and is_name(v),
        expected="a folder's name of at most 200 printable characters",
    )
    out: str = option(
        "runs",
        "Folder that holds the runs.",
        identity=False,
        private=True,
        per_process=True,
        check=is_path,
        expected="a folder",
    )
    seed: int = option(
        0,
        "Seed of every random choice.",
        minimum=-(2**63),
        below=2**63,
        expected="a whole number of 64 bits",
        pace=False,
        curve=False,
    )
    resume: bool = option(
        True,
        "Resume the run in the folder; false: refuse a folder that holds a run.",
        identity=False,
        private=True,
    )
    plugin: str | None = option(
        None,
        "Python file that adds objectives or targets (docs/guide.md).",
        identity=False,
        private=True,
        per_process=True,
    )
    init: str = option(
        "scratch",
        "First weights: scratch, a run's folder, an export, timm:NAME, hf-hub:USER/NAME or a Google"
        " .npz file.",
        brought="always",
        per_process=True,
        pace=False,
    )
    objective: str = option(
        "mpp", "What the encoder is trained on.", choices=Names(declaration.objectives)
    )
    data: Data = group(
        Data, "Images and their preprocessing; data=NAME: recipes/tables/datasets.yaml."
    )
    model: Model = group(
        Model, "The encoder; model=NAME: recipes/tables/models.yaml.", brought="always"
    )
    # {name: dataclass} of the groups that the objective uses
    groups: dict[str, Any] = dataclasses.field(default_factory=dict)
    target: str = option(
        "mean_color",
        "Masked patch prediction and masked autoencoder: what is predicted (mean colour, colours of"
        " 4 x 4 cells, or all pixels by squared or by absolute error, or normalised by the patch's"
        " own mean and variance; of any number of channels the 3-bit mean of each, or pixels).",
        choices=Names(declaration.targets),
    )
    probe: Probe = group(Probe, "Measuring a frozen encoder.")
    optim: Optim = group(Optim, "Optimisation.", training=True)
    compute: Compute = group(Compute, "Devices, precision and processes.", identity=False)
    checkpoint: Checkpoint = group(Checkpoint, "Checkpoints.", identity=False, training=True)
    eval: Eval = group(Eval, "Evaluation while training and after it.", identity=False)
    log: Log = group(Log, "Logging.", identity=False, training=True)
    hub: Hub = group(
        Hub,
        "Pushing to the Hugging Face Hub.",
        identity=False,
        private=True,
        training=True,
        per_process=True,
    )

    def __post_init__(self) -> None:
        for one in _groups_of(self.objective):
            self.groups.setdefault(one.name, one.kind())

    def __getattr__(self, name: str) -> Any:
        """A group of keys that the objective uses, by its name; `group` keeps its type."""
        groups = self.__dict__.get("groups", {})
        if name in groups:
            return groups[name]
        objective = self.__dict__.get("objective")
        raise AttributeError(f"a recipe of objective={objective} has no {name}")

    def group(self, kind: type[G]) -> G:
        """The group of keys of that type.

        Raises:
            KeyError: the objective does not use it.
        """
        return declaration.find_group(self.groups, kind)

    @property
    def declared(self) -> declaration.ObjectiveDeclaration:
        """What its objective declares.

        Raises:
            UserError: its objective is not known here.
        """
        return declaration.objective(self.objective)

    def holds(self, key: str) -> bool:
        """Whether a dotted key is in use: not one of a group that the objective has no use for."""
        top = key.split(".")[0]
        if top == "target":
            return uses_target(self.objective)
        if top == "probe":
            return self.objective == "probe" or self.probe.every is not None
        return top in self.groups or top in FIXED_TOP

    def values(self) -> dict[str, Any]:
        """{dotted key: value} of the keys in use, in the order of `options`."""
        values = asdict(self)
        flat = flatten(values | values.pop("groups"))
        order = {key: place for place, key in enumerate(options())}
        held = sorted(filter(self.holds, flat), key=lambda key: order.get(key, len(order)))
        return {key: flat[key] for key in held}

    @property
    def init_source(self) -> InitSource:
        return InitSource(self.init)

    @property
    def training_tool(self) -> str:
        """The tool that trains it, also where its plugin is not here."""
        found = declaration.objectives().get(self.objective)
        return "finetune" if found and found.fine_tunes(self) else "pretrain"


# Keys and groups that every recipe has
FIXED_TOP = {field.name for field in dataclasses.fields(Recipe)} - {"groups", "target", "probe"}
# Keys of earlier versions and what they are called now
RENAMED = {"eval.pictures": "eval.images", "probe.pictures": "probe.images"}
# Keys that have gone and what was their default, which recipe files may still give
GONE: dict[str, Any] = {}


def _groups_of(objective: str) -> Iterator[declaration.Group]:
    """The groups of keys that an objective uses; none of one that is not known here."""
    found = declaration.objectives().get(objective)
    used = found.groups if found else ()
    yield from (one for one in all_groups() if one.name in used)


def all_groups() -> list[declaration.Group]:
    """The groups of keys that not every recipe has: shared ones, then those of each objective."""
    return [*SHARED_GROUPS, *declaration.groups()]


def uses_target(objective: str) -> bool:
    """Whether an objective predicts patches; of one that is not known here, that it may."""
    found = declaration.objectives().get(objective)
    return found is None or "target" in found.groups


@functools.cache
def options() -> dict[str, Option]:
    """{dotted key: its description} of every key of every objective.

    Raises:
        UserError: a plugin's keys are called as others.
    """
    found: dict[str, Option] = {}
    names = [*FIXED_TOP, "target", "probe", *(one.name for one in all_groups())]
    for name in {name for name in names if names.count(name) > 1}:
        raise UserError(f"{name}.: an objective's group of keys has the name of another one")
    for field in dataclasses.fields(Recipe):
        if field.name == "groups":
            for one in all_groups():
                found |= options_of(one.kind, f"{one.name}.")
        else:
            found |= options_of(Recipe, only=field.name)
    return found


declaration.on_change(options.cache_clear)


def defaults() -> dict[str, Any]:
    """{dotted key: its default}."""
    return {key: option.default for key, option in options().items()}


def learns_labels(recipe: Recipe) -> bool:
    """Whether the objective needs labels and trains on them; a joint one may give them weight 0."""
    return recipe.declared.learns_labels(recipe)


def measures_masks(recipe: Recipe) -> bool:
    """Whether an evaluation reads masks."""
    return recipe.objective == "probe" and not set(DENSE).isdisjoint(recipe.probe.measures)


def chosen_on_held_out(recipe: Recipe) -> list[str]:
    """What a run chooses on its held-out images."""
    if recipe.objective != "probe":
        return ["the checkpoint"] if recipe.checkpoint.best else []
    return [CHOSEN[name] for name in recipe.probe.measures if name in CHOSEN]


def compared_views(recipe: Recipe) -> ViewOptions | None:
    """How the views of an image are made that the objective compares; None where it compares
    none."""
    return recipe.group(ViewOptions) if "views" in recipe.groups else None


def dump(recipe: Recipe) -> str:
    """The recipe as YAML, the keys in use alone; that text repeats the run
    (`recipe=runs/NAME/recipe.yaml`)."""
    nested: dict[str, Any] = {}
    for key, value in recipe.values().items():
        group, dot, name = key.partition(".")
        if dot:
            nested.setdefault(group, {})[name] = value
        else:
            nested[group] = value
    return OmegaConf.to_yaml(OmegaConf.create(nested))
