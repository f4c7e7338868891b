"""The recipe: typed values that say everything about a run, and what they may be. No torch here; words.py reads them."""

import dataclasses
import difflib
import math
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

OBJECTIVES: dict[str, tuple[str, ...]] = {  # and the groups of keys that each can use
    "mpp": ("corruption", "target"),
    "supervised": ("supervised",),
    "joint": ("corruption", "target", "supervised", "joint"),
}
TARGETS = ["mean_color", "grid_color", "pixels"]
EMBEDDED = "shapes"
# What says where, how fast and how often is looked, but not what is computed. compute.precision is computed.
NOT_COMPUTED = ("name", "out", "resume", "data.path", "compute.", "checkpoint.", "eval.", "log.")


class UserError(ValueError):
    """Something a user can mend. Its text is one line: the key, the value, the choices."""


class ToldError(UserError):
    """The same on the other processes, which need not say it again."""


@dataclass
class Data:
    name: str = EMBEDDED
    path: str | None = None  # a local copy, or any image folder or parquet
    hub: str | None = None  # a data set of the Hugging Face Hub
    size: int = 224  # side of the training picture, pixels
    train: str = "train"  # split
    validation: str | float | None = None  # a split, or the share cut off train; default: a split if there is one, or 1%
    image_column: str | None = None  # default: found
    label_column: str | None = None
    classes: int | None = None  # default: counted
    unreadable: float = 0.01  # share of pictures that may be unreadable, each replaced by the next; above it the run stops
    verified: bool = True  # false: the Hub's name and the numbers of this row could not be checked
    crop_area: float = 0.05  # smallest share of the picture that a training crop covers
    flip: bool = True
    eval_crop: float = 0.875  # side of the evaluation's centre crop over the picture's shorter side
    mean: list[float] = field(default_factory=lambda: [0.5, 0.5, 0.5])
    std: list[float] = field(default_factory=lambda: [0.5, 0.5, 0.5])


@dataclass
class Model:
    name: str = ""
    timm: str = "vit_base_patch16_224"  # the architecture that the values below override
    patch: int = 16
    width: int = 768
    depth: int = 12
    heads: int = 12
    mlp: int = 3072
    stem_width: int = 0  # channels of the ResNet whose feature map's cells are the patches; 0: patches of pixels
    stem_work: int = 0  # its multiply-adds for each pixel

    @property
    def hybrid(self) -> bool:
        return self.stem_width > 0


@dataclass
class Corruption:
    rate: float = 0.5  # share of the patches that are hit
    mask: float = 0.8  # shares of those
    random: float = 0.1
    keep: float = 0.1
    source: str = "image"  # where a random patch comes from: image, or batch (the whole device batch)


@dataclass
class Supervised:
    loss: str = "softmax"  # or sigmoid
    smoothing: float = 0.0  # of the labels, softmax only
    hidden: bool = True  # a hidden tanh layer in the head


@dataclass
class Joint:
    mpp: float = 1.0  # weights of the losses
    supervised: float = 1.0


@dataclass
class Optim:
    steps: int = 1000
    batch: int = 4096  # global
    lr: float = 2e-4  # absolute
    warmup: int = 0  # steps
    schedule: str = "cosine"  # cosine to 0, or linear to 1e-5 (to lr / 2 where that is less)
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
    weight_decay: float = 0.1
    clip: float | None = 1.0  # global gradient norm; null: none
    dropout: float = 0.0  # in the encoder, after every dense layer but qkv and after the positions


@dataclass
class Compute:
    batch: int | None = None  # pictures per device and pass; default: the largest divisor that fits
    precision: str = "auto"  # auto, float32, bfloat16
    compile: bool | None = None  # default: where there is a GPU
    workers: int | None = None  # data processes per process; default: from the cores
    threads: int | None = None  # default: allowed cores / processes on this machine


@dataclass
class Checkpoint:
    every: int = 1000  # steps
    keep: int = 2


@dataclass
class Eval:
    every: int = 1000  # steps
    pictures: int = 2000  # held-out pictures looked at, at most


@dataclass
class Log:
    every: int = 20  # steps
    tensorboard: bool = True


@dataclass
class Recipe:
    name: str = ""  # the run's folder; default: the recipe's name and the words that change what is computed
    out: str = "runs"
    seed: int = 0
    resume: bool = True  # false: refuse a folder that holds a run
    plugin: str | None = None  # a Python file that adds objectives or targets (docs/guide.md)
    objective: str = "mpp"
    data: Data = field(default_factory=Data)
    model: Model = field(default_factory=Model)
    corruption: Corruption = field(default_factory=Corruption)
    target: str = "mean_color"
    supervised: Supervised = field(default_factory=Supervised)
    joint: Joint = field(default_factory=Joint)
    optim: Optim = field(default_factory=Optim)
    compute: Compute = field(default_factory=Compute)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    eval: Eval = field(default_factory=Eval)
    log: Log = field(default_factory=Log)


def nearest(word: str, choices: Iterable[str]) -> str:
    """The tail of a one-line error: the nearest known name, if one is near, and the choices."""
    choices = list(choices)
    near = difflib.get_close_matches(word, choices, n=1)
    listed = ", ".join(choices) if len(choices) <= 30 else "see ssl_vit/recipe.py"
    return (f"did you mean {near[0]}? " if near else "") + f"choices: {listed}"


def flatten(node: Any, prefix: str = "") -> dict[str, Any]:
    """A nested mapping as {dotted key: value}."""
    flat: dict[str, Any] = {}
    for key, value in node.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def computed(recipe: Recipe) -> dict[str, Any]:
    """{dotted key: value} of what is computed: all but NOT_COMPUTED. Two runs with equal ones are the same run."""
    flat = flatten(dataclasses.asdict(recipe))
    return {k: v for k, v in flat.items() if k == "compute.precision" or not k.startswith(NOT_COMPUTED)}


def dump(recipe: Recipe) -> str:
    """The recipe as YAML; that text alone repeats the run (`recipe=runs/NAME/recipe.yaml`)."""
    return OmegaConf.to_yaml(OmegaConf.structured(recipe))


SHARE = "a share above 0 and at most 1 is asked for"
FROM_0_TO_1 = "a share from 0 to 1 is asked for"
FOLDER = "a folder's name of at most 200 characters is asked for"
ABOVE_0 = "a number above 0 is asked for"
POSITIVE = (
    *("data.size", "model.patch", "model.width", "model.depth", "model.heads", "model.mlp"),
    *("optim.steps", "optim.batch", "optim.lr", "optim.clip", "compute.batch", "compute.threads", "data.classes"),
    *("checkpoint.every", "checkpoint.keep", "eval.every", "eval.pictures", "log.every"),
)
CHOICES: dict[str, Collection[str]] = {
    "objective": OBJECTIVES,
    "target": TARGETS,
    "corruption.source": ("image", "batch"),
    "supervised.loss": ("softmax", "sigmoid"),
    "optim.schedule": ("cosine", "linear"),
    "compute.precision": ("auto", "float32", "bfloat16"),
}
# key -> what its value must be like, and how that is said
BOUNDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **{key: (lambda v: v is None or v > 0, ABOVE_0) for key in POSITIVE},
    **{key: (lambda v: 0 < v <= 1, SHARE) for key in ("corruption.rate", "data.crop_area", "data.eval_crop")},
    "data.unreadable": (lambda v: 0 <= v <= 1, FROM_0_TO_1),
    **{f"corruption.{name}": (lambda v: 0 <= v <= 1, FROM_0_TO_1) for name in ("mask", "random", "keep")},
    "data.validation": (lambda v: not isinstance(v, float) or 0 < v < 1, "a split's name or a share between 0 and 1"),
    **{
        key: (lambda v: 0 <= v < 1, "a share from 0 to below 1 is asked for")
        for key in ("optim.dropout", "supervised.smoothing")
    },
    **{f"joint.{name}": (lambda v: v >= 0, "a weight of at least 0 is asked for") for name in ("mpp", "supervised")},
    "data.mean": (lambda v: len(v) == 3, "three numbers are asked for"),
    "data.std": (lambda v: len(v) == 3 and min(v) > 0, "three numbers above 0 are asked for"),
    "optim.betas": (lambda v: len(v) == 2 and min(v) >= 0 and max(v) < 1, "two numbers from 0 to below 1 are asked for"),
    "optim.weight_decay": (lambda v: v >= 0, "a number of at least 0 is asked for"),
    "name": (lambda v: 0 < len(v) <= 200 and not Path(v).is_absolute() and not {"..", "."} & set(v.split("/")), FOLDER),
    "seed": (lambda v: -(2**63) <= v < 2**63, "a whole number of 64 bits is asked for"),
    "compute.workers": (lambda v: v is None or v >= 0, "a number of at least 0 is asked for"),
}


def check(recipe: Recipe) -> None:
    """Bounds of each value, then what values must be to one another.

    Raises:
        UserError: the first key whose value cannot be.
    """
    flat = flatten(dataclasses.asdict(recipe))
    for key, choices in CHOICES.items():
        _bound(flat[key] in choices, key, flat[key], nearest(flat[key], choices))
    for key, value in flat.items():
        finite = all(math.isfinite(v) for v in (value if isinstance(value, list) else [value]) if isinstance(v, float))
        _bound(finite, key, value, "a finite number is asked for")
    for key, (holds, text) in BOUNDS.items():
        _bound(holds(flat[key]), key, flat[key], text)
    _check_objective(recipe)
    _check_shares(recipe.corruption)
    _check_sizes(recipe.data, recipe.model)
    _check_lengths(recipe.optim, recipe.compute)
    _check_place(recipe.data)


def _check_objective(recipe: Recipe) -> None:
    """That model, target and loss suit one another."""
    model, asked = recipe.model, recipe.supervised
    mpp = recipe.objective in ("mpp", "joint")
    text = f"objective={recipe.objective} needs patches of pixels; a ResNet's cells have already seen the hidden ones"
    _bound(not (mpp and model.hybrid), "model", model.name, text)
    text = f"patches of model.patch={model.patch} cannot be cut into 4 x 4 cells"
    _bound(not (mpp and recipe.target == "grid_color" and model.patch % 4), "target", recipe.target, text)
    text = "supervised.loss=sigmoid has no use for it"
    _bound(asked.loss == "softmax" or asked.smoothing == 0, "supervised.smoothing", asked.smoothing, text)
    text = "one weight at least must be above 0"
    _bound(recipe.joint.mpp + recipe.joint.supervised > 0, "joint.mpp + .supervised", 0, text)


def _check_shares(corruption: Corruption) -> None:
    total = corruption.mask + corruption.random + corruption.keep
    _bound(abs(total - 1) < 1e-6, "corruption.mask + .random + .keep", f"{total:g}", "the three shares must sum to 1")


def _check_sizes(data: Data, model: Model) -> None:
    near = max(2, round(data.size / model.patch)) * model.patch
    text = f"no multiple of the patch of {model.name or 'the model'}, model.patch={model.patch}; the nearest is {near}"
    _bound(data.size % model.patch == 0 and data.size >= 2 * model.patch, "data.size", data.size, text)
    _bound(model.width % model.heads == 0, "model.width", model.width, f"no multiple of model.heads={model.heads}")


def _check_lengths(optim: Optim, compute: Compute) -> None:
    text = f"not below optim.steps={optim.steps}; add optim.warmup={optim.steps // 10}"
    _bound(0 <= optim.warmup < optim.steps, "optim.warmup", optim.warmup, text)
    if compute.batch:
        text = f"does not divide optim.batch={optim.batch}"
        _bound(optim.batch % compute.batch == 0, "compute.batch", compute.batch, text)


def _check_place(data: Data) -> None:
    """That the data set's place is said, once, and is there."""
    if data.name == EMBEDDED and (data.path or data.hub):
        raise UserError(f"data={EMBEDDED} is drawn, not read; leave it out beside data.path= or data.hub=")
    if data.path and not _exists(Path(data.path)):
        raise UserError(f"data.path={data.path}: no such file or folder")
    if not data.path and not data.hub and data.name != EMBEDDED:
        raise UserError(f"data={data.name} lies nowhere yet; add data.path= with a local copy (parquet or image folder)")


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # forbidden, or no path at all
        return False


def _bound(holds: bool, key: str, value: Any, text: str) -> None:
    if not holds:
        raise UserError(f"{key}={value}: {text}")


@contextmanager
def plain_errors(everywhere: bool = False) -> Iterator[None]:
    """Answer a UserError in one line and exit with status 2; an interrupt, with 130. The first process speaks, or each one
    for itself where what went wrong may be its own (`everywhere`), unless it was told by another."""
    try:
        yield
    except UserError as error:
        # one raised in a data worker arrives inside a traceback's text, of which it is the last line
        line = str(error).strip().splitlines()[-1].removeprefix("ssl_vit.recipe.UserError: ")
        rank = os.environ.get("RANK", "0")
        if rank == "0" or (everywhere and not isinstance(error, ToldError)):
            print(f"error: {line}" if rank == "0" else f"error on process {rank}: {line}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from the last checkpoint, if there is one", file=sys.stderr)
        sys.exit(130)
