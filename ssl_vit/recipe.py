"""The recipe: typed values that say everything about a run, and what they may be. No torch here; words.py reads them."""

import dataclasses
import difflib
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from omegaconf import OmegaConf

from . import streams

OBJECTIVES: dict[str, tuple[str, ...]] = {  # and the groups of keys that each can use
    "mpp": ("corruption", "target"),
    "supervised": ("supervised",),
    "joint": ("corruption", "target", "supervised", "joint"),
    "probe": ("probe",),  # no training: tools/evaluate.py on a frozen encoder
}
LEARNS_LABELS = {"supervised", "probe", "labels"}  # groups whose objectives ask for labels; the last for a plugin's
MEASURES = ["few_shot", "linear", "knn", "top1"]  # the last with the head that a run learned
TARGETS = ["mean_color", "grid_color", "pixels"]
EMBEDDED = "shapes"
PLAIN_NAME = re.compile(r"[\w.-]+", re.ASCII)  # of a model: neither a path nor a place that timm would fetch from
# What says where, how fast and how often is looked, but not what is computed. compute.precision is computed.
NOT_COMPUTED = (
    "name",
    "out",
    "resume",
    "data.path",
    "data.unreadable",
    "plugin",
    "optim.nonfinite",
    "probe.every",
    "probe.pictures",
    "compute.",
    "checkpoint.",
    "eval.",
    "log.",
    "hub.",
)

# What is not computed but changes what a result says: it may change while a run goes on, and no more once it has finished.
IN_RESULT = (
    "data.unreadable",
    "optim.nonfinite",
    "probe.every",
    "probe.pictures",
    "eval.pictures",
    "eval.test",
    "eval.real",
)


class UserError(ValueError):
    """Something a user can mend. Its text is one line: the key, the value, the choices."""

    status = 2  # exit status


class ToldError(UserError):
    """The same on the other processes, which need not say it again."""


class LostError(UserError):
    """A process that this one depends on was lost; the same command goes on from the last checkpoint."""

    status = 69  # sysexits.h: EX_UNAVAILABLE


@dataclass
class Data:
    name: str = EMBEDDED
    path: str | None = None  # a local copy, or any image folder or parquet
    hub: str | None = None  # a data set of the Hugging Face Hub
    size: int = 224  # side of the training picture, pixels
    window: int | None = None  # shards (parquet, tars) are read in place, so many rows at a time; null: all at once
    stream: bool = False  # read from its beginning on, not downloaded; goes on only on as many processes
    train: str = "train"  # split
    share: float = 1.0  # of the training pictures: a fixed random subset, smaller ones inside larger ones
    validation: str | float | None = None  # a split, or the share cut off train (0: none); default: a split if any, or 1%
    test: str = "test"  # the split that eval.test measures on
    image_column: str | None = None  # default: found
    label_column: str | None = None
    classes: int | None = None  # default: counted
    unreadable: float = 0.01  # share of pictures that may be unreadable, each replaced by the next; above it the run stops
    verified: bool = True  # false: the Hub's name and the numbers of this row could not be checked
    crop_area: float = 0.05  # smallest share of the picture that a training crop covers
    flip: bool = True
    mixup: float = 0.0  # pictures and labels blended in pairs, own share from Beta(mixup, mixup); 0: never
    cutmix: float = 0.0  # or a box of the other pasted in, own share from Beta(cutmix, cutmix); with mixup, one or the other
    eval_mode: str = "crop"  # evaluation: crop (the centre, after resizing the shorter side) or squash (the whole to a square)
    eval_crop: float = 0.875  # crop: side of that centre over the resized shorter side, as timm's crop_pct
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
    stem_size: int = 0  # its parameters
    convolutional: bool = (
        False  # a timm classifier without patches, whole: fine-tuned and evaluated only; the stem is all of it
    )

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
    shape: str = "patches"  # which are hit together: patches (squares of `side`), or blocks (rectangles, as BEiT)
    side: int = 1  # patches on the side of such a square; 1: single patches


@dataclass
class Supervised:
    loss: str = "softmax"  # or sigmoid
    smoothing: float = 0.0  # of the labels, softmax only
    hidden: bool = True  # a hidden tanh layer in the head; without it, one linear layer that starts at zero
    pool: str = "token"  # the picture's feature: token (the class token) or avg (the mean of the patches)


@dataclass
class Joint:
    mpp: float = 1.0  # weights of the losses
    supervised: float = 1.0


@dataclass
class Probe:
    every: int | None = None  # while pre-training: steps between looks at the encoder so far; null: none
    pictures: int = 2000  # while pre-training: labelled training pictures that the probes learn from
    measures: list[str] = field(default_factory=lambda: MEASURES[:3])
    feature: str = "encoder"  # or hidden: a supervised run's tanh layer, which reads the encoder's
    pool: str | None = None  # token or avg; default: what the encoder's export gives
    layer: int | None = None  # features of this block, from 1; default: after the last one and the final norm
    shots: list[int] = field(default_factory=lambda: [1, 5, 10, 25])  # labelled pictures a class, few-shot
    trials: int = 3  # few-shot: choices of those pictures, averaged over
    rates: list[float] = field(default_factory=lambda: [0.01, 0.03, 0.1, 0.3, 1.0, 3.0])  # learning rates, linear
    steps: int = 2000  # linear
    batch: int = 1024  # linear
    neighbors: int = 20  # knn


@dataclass
class Optim:
    name: str = "adamw"  # or sgd
    steps: int = 1000
    batch: int = 4096  # global
    lr: float = 2e-4  # absolute
    warmup: int = 0  # steps
    schedule: str = "cosine"  # cosine to 0, or linear to 1e-5 (to lr / 2 where that is less)
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])  # adamw
    momentum: float = 0.9  # sgd
    weight_decay: float = 0.1
    clip: float | None = 1.0  # global gradient norm; null: none
    dropout: float = 0.0  # in the encoder, after every dense layer but qkv and after the positions
    drop_path: float = 0.0  # share of residual branches left out in the last block, rising linearly from 0 in the first
    layer_decay: float | None = None  # each block learns at this times the rate of the one above it; null: all alike
    nonfinite: str = "stop"  # where loss or gradient is not finite: stop, skip (that update), or back (to the last checkpoint)
    average: float | None = None  # decay of a running mean of the weights (Polyak), which is what is looked at and exported


@dataclass
class Compute:
    batch: int | None = None  # pictures per device and pass; default: the largest divisor that fits
    precision: str = "auto"  # auto, float32, bfloat16
    compile: bool | None = None  # default: where there is a GPU
    workers: int | None = None  # data processes per process; default: from the cores
    threads: int | None = None  # default: allowed cores / processes on this machine
    patience: float = 600.0  # seconds that one process may stay behind the others before it is named and all leave


@dataclass
class Checkpoint:
    every: int = 1000  # steps
    keep: int = 2
    background: bool = True  # written while training goes on
    failures: int = 3  # saves in a row that may fail before the run stops


@dataclass
class Eval:
    every: int = 1000  # steps
    pictures: int = 2000  # held-out pictures looked at, at most
    test: bool = False  # at the end, on every picture of data.test: top-1 and top-5
    real: str | None = None  # ImageNet-ReaL's labels (real.json), for ImageNet's validation split as data.test


@dataclass
class Log:
    every: int = 20  # steps
    tensorboard: bool = True


@dataclass
class Hub:
    repo: str | None = None  # USER/NAME of the Hugging Face Hub: the export goes there at the end, in the background
    private: bool = True  # if it is made by this
    every: int | None = None  # steps between pushes of the encoder so far, each to a branch of its own; default: none
    state: bool = False  # the resumable training state too, to the branch `state`
    wait: float = 300.0  # seconds that a finished run waits, at most, for what is still being pushed


@dataclass
class Recipe:
    name: str = ""  # the run's folder; default: the recipe's name and the words that change what is computed
    out: str = "runs"
    seed: int = 0
    resume: bool = True  # false: refuse a folder that holds a run
    plugin: str | None = None  # a Python file that adds objectives or targets (docs/guide.md)
    init: str = "scratch"  # or a run's folder, an export, timm:NAME, hf-hub:USER/NAME, a Google .npz file
    objective: str = "mpp"
    data: Data = field(default_factory=Data)
    model: Model = field(default_factory=Model)
    corruption: Corruption = field(default_factory=Corruption)
    target: str = "mean_color"
    supervised: Supervised = field(default_factory=Supervised)
    joint: Joint = field(default_factory=Joint)
    probe: Probe = field(default_factory=Probe)
    optim: Optim = field(default_factory=Optim)
    compute: Compute = field(default_factory=Compute)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    eval: Eval = field(default_factory=Eval)
    log: Log = field(default_factory=Log)
    hub: Hub = field(default_factory=Hub)


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


def means_more(value: Any) -> bool:
    """Whether OmegaConf or YAML would read more into a value, or one inside it, than it says."""
    return "${" in str(value) or (isinstance(value, str) and (value.strip() == "???" or len(value.splitlines()) > 1))


def computed(recipe: Recipe) -> dict[str, Any]:
    """{dotted key: value} of what is computed: all but NOT_COMPUTED. Two runs with equal ones are the same run."""
    flat = flatten(dataclasses.asdict(recipe))
    return {k: v for k, v in flat.items() if counts(k)}


def counts(key: str) -> bool:
    """Whether a dotted key changes what is computed."""
    return key == "compute.precision" or not key.startswith(NOT_COMPUTED)


def learns_labels(recipe: Recipe) -> bool:
    """Whether the objective needs labels and trains on them; a joint one may give them weight 0."""
    idle = recipe.objective == "joint" and recipe.joint.supervised == 0
    return bool(LEARNS_LABELS & set(OBJECTIVES[recipe.objective])) and not idle


def dump(recipe: Recipe) -> str:
    """The recipe as YAML; that text alone repeats the run (`recipe=runs/NAME/recipe.yaml`)."""
    return OmegaConf.to_yaml(OmegaConf.structured(recipe))


def in_a_line(error: BaseException) -> str:
    """The first line of an error's text; of one raised in a data worker, which arrives inside a traceback's text, the last."""
    lines = str(error).strip().splitlines() or [""]
    text = lines[-1 if "Traceback (most recent call last)" in str(error) else 0].removeprefix("ssl_vit.recipe.UserError: ")
    return text if isinstance(error, UserError) else f"{type(error).__name__}: {text}"


def printable(text: str, longest: int = 2000) -> str:
    """Text of others as a terminal may have it: no control characters, no halves of characters, and not endless."""
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return shown if len(shown) <= longest else f"{shown[: longest // 2]} ... {shown[-longest // 2 :]}"


@contextmanager
def plain_errors(everywhere: bool = False) -> Iterator[None]:
    """Answer a UserError in one line and exit with status 2; an interrupt, with 130. The first process speaks, or each one
    for itself where what went wrong may be its own (`everywhere`), unless it was told by another."""
    try:
        yield
        sys.stdout.flush()  # what is only then found to be unwritable is told, not left to the end of the process
    except UserError as error:
        line, rank = printable(in_a_line(error)), os.environ.get("RANK", "0")
        if rank == "0" or (everywhere and not isinstance(error, ToldError)):
            sys.stderr.write(
                f"error: {line}\n" if rank == "0" else f"error on process {rank}: {line}\n"
            )  # whole: others write too
        with suppress(streams.OutputError):
            sys.stdout.flush()
        sys.exit(error.status)
    except streams.OutputError as error:
        if error.pipe:
            sys.exit(streams.BROKEN_PIPE)  # without a word, as everything does that stands before `| head`
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from the last checkpoint, if there is one", file=sys.stderr)
        sys.exit(130)
