"""The recipe: typed values that define a run. Each key is described here and nowhere else (see
`fields.Option`); docs/options.md lists them all. No torch here; resolve.py reads them."""

# ruff: noqa: RUF009 (option() and group() return dataclass fields)
from dataclasses import asdict, dataclass

from omegaconf import OmegaConf

from .fields import group, is_held_out, is_name, is_path, is_split, option, options
from .init_source import InitSource
from .model import Model
from .operation import Checkpoint, Compute, Eval, Hub, Log
from .probe import Probe
from .shared_groups import Corruption, Joint, Mae, Moco, Supervised, Views

OBJECTIVES: dict[str, tuple[str, ...]] = {  # and the groups of keys that each uses
    "mpp": ("corruption", "target"),
    "mae": ("mae", "target"),
    "moco_v3": ("moco", "views"),
    "supervised": ("supervised",),
    "joint": ("corruption", "target", "supervised", "joint"),
    "probe": ("probe",),  # no training: tools/evaluate.py on a frozen encoder
}
# groups whose objectives need labels; the last for a plugin's
USES_LABELS = {"supervised", "probe", "labels"}
TARGETS = ["mean_color", "grid_color", "pixels", "pixels_l1", "normalized_pixels"]
EMBEDDED = "shapes"
SIZES = {"train": 50_000, "validation": 5_000, "test": 5_000}  # of the embedded set


@dataclass
class Data:
    name: str = option(EMBEDDED, "Name of the data set; data=NAME sets it.")
    path: str | None = option(
        None,
        "Local copy of the data set, or any image folder, parquet file or tar shards.",
        identity=False,
        private=True,
    )
    hub: str | None = option(None, "Data set on the Hugging Face Hub.")
    size: int = option(224, "Side of the training image in pixels.", above=0, maximum=2**14)
    window: int | None = option(
        None,
        "Read shards (parquet, tar) in place, this many rows at a time; null: load all at once.",
        above=0,
        maximum=2**40,
    )
    stream: bool = option(
        False,
        "Read the Hub's data set in order without downloading it; a run resumes only on the same"
        " number of processes.",
    )
    train: str = option("train", "Split to train on.", check=is_split, expected="a split's name")
    share: float = option(
        1.0,
        "Share of the training images: a fixed random subset, smaller ones inside larger ones.",
        above=0,
        maximum=1,
    )
    share_seed: int | None = option(
        None,
        "Draw of data.share and data.labelled: null: the fixed random one; a number: a draw of its"
        " own, with each class's share of it.",
        minimum=0,
        below=2**31,
    )
    validation: str | float | None = option(
        None,
        "Held-out images: a split, or the share cut off data.train (0: none); null: the"
        " validation split if there is one, else 1%.",
        check=is_held_out,
        expected="a split's name, or a share from 0 to below 1",
    )
    validation_from: str = option(
        "share",
        "What a share of data.validation is cut off: share (the images of data.share) or train (all"
        " training images, before data.share is taken: the same for every share).",
        choices=("share", "train"),
    )
    labelled: float = option(
        1.0,
        "objective=joint: share of the training images whose labels are shown, those that"
        " data.share takes; the others count as unlabelled.",
        above=0,
        maximum=1,
        training=True,
    )
    test: str = option(
        "test", "Split that eval.test measures on.", check=is_split, expected="a split's name"
    )
    image_column: str | None = option(None, "Column of the images; null: found.")
    label_column: str | None = option(
        None, "Column of the labels; null: found, unless it holds lists of them."
    )
    mask_column: str | None = option(
        None, "Column of the masks, images with a class per pixel; null: found."
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
        True, "false: the Hub's name and the numbers of this preset could not be checked."
    )
    crop_area: float = option(
        0.05, "Smallest share of the image that a training crop covers.", above=0, maximum=1
    )
    flip: bool = option(True, "Flip training images horizontally at random.")
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
    )
    eval_crop: float = option(
        0.875,
        "Side of the centre crop over the resized shorter side, as timm's crop_pct.",
        minimum=0.1,
        maximum=1,
        requires=("data.eval_mode", "crop"),
    )
    mean: list[float] = option([0.5, 0.5, 0.5], "Mean that pixels are normalised with.", length=3)
    std: list[float] = option(
        [0.5, 0.5, 0.5], "Standard deviation that pixels are normalised with.", length=3, above=0
    )


@dataclass
class Optim:
    name: str = option("adamw", "Optimiser.", choices=("adamw", "sgd"))
    steps: int = option(1000, "Training steps.", above=0, maximum=2**40)
    batch: int = option(4096, "Global batch size.", above=0, maximum=2**22)
    lr: float = option(2e-4, "Peak learning rate, not scaled by the batch.", above=0, maximum=1e4)
    warmup: int = option(0, "Steps of linear warm-up.")
    schedule: str = option(
        "cosine",
        "cosine to 0, linear to 1e-5 (to lr / 2 where that is less), or steps (a tenth after each"
        " of optim.drops).",
        choices=("cosine", "linear", "steps"),
    )
    drops: list[float] = option(
        [0.25, 0.575, 0.75, 0.925],  # BiT-L: after 10, 23, 30 and 37 of 40 epochs
        "Shares of the run after which the learning rate is divided by 10.",
        above=0,
        below=1,
        requires=("optim.schedule", "steps"),
    )
    betas: list[float] = option(
        [0.9, 0.999],
        "AdamW's betas.",
        length=2,
        minimum=0,
        below=1,
        requires=("optim.name", "adamw"),
    )
    momentum: float = option(
        0.9, "SGD's momentum.", minimum=0, below=1, requires=("optim.name", "sgd")
    )
    weight_decay: float = option(0.1, "Weight decay.", minimum=0, maximum=1e4)
    clip: float | None = option(1.0, "Largest global gradient norm; null: no clipping.", above=0)
    dropout: float = option(
        0.0,
        "Dropout in the encoder, after every dense layer but qkv and after the position"
        " embeddings.",
        minimum=0,
        below=1,
    )
    drop_path: float = option(
        0.0,
        "Stochastic depth: share of residual branches dropped in the last block, rising linearly"
        " from 0 in the first.",
        minimum=0,
        below=1,
    )
    layer_decay: float | None = option(
        None,
        "Layer-wise learning-rate decay: factor from each block to the one below it; null: none.",
        above=0,
        maximum=1,
    )
    nonfinite: str = option(
        "stop",
        "Where the loss or a gradient is not finite: stop, skip that update, or roll back to the"
        " last checkpoint.",
        choices=("stop", "skip", "back"),
        identity=False,
        in_result=True,
    )
    average: float | None = option(
        None,
        "Decay of a running (Polyak) average of the weights, which is then evaluated and exported;"
        " null: none.",
        above=0,
        below=1,
    )


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
        check=is_path,
        expected="a folder",
    )
    seed: int = option(
        0,
        "Seed of every random choice.",
        minimum=-(2**63),
        below=2**63,
        expected="a whole number of 64 bits",
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
    )
    init: str = option(
        "scratch",
        "First weights: scratch, a run's folder, an export, timm:NAME, hf-hub:USER/NAME or a Google"
        " .npz file.",
    )
    objective: str = option("mpp", "What the encoder is trained on.", choices=OBJECTIVES)
    data: Data = group(
        Data, "Images and their preprocessing; data=NAME: recipes/tables/datasets.yaml."
    )
    model: Model = group(Model, "The encoder; model=NAME: recipes/tables/models.yaml.")
    corruption: Corruption = group(Corruption, "Masked patch prediction: what is corrupted.")
    target: str = option(
        "mean_color",
        "Masked patch prediction and masked autoencoder: what is predicted (mean colour, colours of"
        " 4 x 4 cells, or all pixels by squared or by absolute error, or normalised by the patch's"
        " own mean and variance).",
        choices=TARGETS,
    )
    mae: Mae = group(Mae, "Masked autoencoder: what is masked, and the decoder.")
    moco: Moco = group(Moco, "MoCo v3: what is compared, and the momentum copy.")
    views: Views = group(Views, "MoCo v3: the two random views of an image.")
    supervised: Supervised = group(Supervised, "Training on labels.")
    joint: Joint = group(Joint, "Weights of the losses of objective=joint.")
    probe: Probe = group(Probe, "Measuring a frozen encoder.")
    optim: Optim = group(Optim, "Optimisation.", training=True)
    compute: Compute = group(Compute, "Devices, precision and processes.", identity=False)
    checkpoint: Checkpoint = group(Checkpoint, "Checkpoints.", identity=False, training=True)
    eval: Eval = group(Eval, "Evaluation while training and after it.", identity=False)
    log: Log = group(Log, "Logging.", identity=False, training=True)
    hub: Hub = group(
        Hub, "Pushing to the Hugging Face Hub.", identity=False, private=True, training=True
    )

    @property
    def init_source(self) -> InitSource:
        return InitSource(self.init)

    @property
    def training_tool(self) -> str:
        """The tool that trains it."""
        fine_tunes = self.objective == "supervised" and not self.init_source.is_scratch
        return "finetune" if fine_tunes else "pretrain"


OPTIONS = options(Recipe)  # every dotted key
# Keys of earlier versions and what they are called now
RENAMED = {"eval.pictures": "eval.images", "probe.pictures": "probe.images"}


def learns_labels(recipe: Recipe) -> bool:
    """Whether the objective needs labels and trains on them; a joint one may give them weight 0."""
    weightless = recipe.objective == "joint" and recipe.joint.supervised == 0
    return bool(USES_LABELS & set(OBJECTIVES[recipe.objective])) and not weightless


def compared_views(recipe: Recipe) -> Views | None:
    """How the views of an image are made that the objective compares; None where it compares
    none."""
    return recipe.views if "views" in OBJECTIVES[recipe.objective] else None


def dump(recipe: Recipe) -> str:
    """The recipe as YAML; that text alone repeats the run (`recipe=runs/NAME/recipe.yaml`)."""
    return OmegaConf.to_yaml(OmegaConf.create(asdict(recipe)))
