"""What a recipe's values may be, each by itself and to one another. No torch here."""

import dataclasses
import math
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from .files import LONGEST_NAME, LONGEST_PATH
from .hub import remote
from .recipe import (
    EMBEDDED,
    MEASURES,
    OBJECTIVES,
    PLAIN_NAME,
    TARGETS,
    Compute,
    Corruption,
    Data,
    Model,
    Optim,
    Recipe,
    UserError,
    flatten,
    learns_labels,
    nearest,
)

SHARE = "a share above 0 and at most 1 is asked for"
SPLIT = "a split's name is asked for"
FROM_0_TO_1 = "a share from 0 to 1 is asked for"
FOLDER = "a folder's name of at most 200 characters is asked for"
ABOVE_0 = "a number above 0 is asked for"
POSITIVE = (
    *("data.size", "optim.steps", "optim.batch", "optim.lr", "optim.clip", "compute.batch", "compute.threads", "data.classes"),
    "data.window",
    *("probe.every", "probe.pictures", "probe.trials", "probe.steps", "probe.batch", "probe.neighbors", "probe.layer"),
    *("corruption.side", "checkpoint.every", "checkpoint.failures", "eval.every", "eval.pictures", "log.every", "hub.every"),
)
CHOICES: dict[str, Collection[str]] = {
    "objective": OBJECTIVES,
    "target": TARGETS,
    "data.eval_mode": ("crop", "squash"),
    "corruption.source": ("image", "batch"),
    "corruption.shape": ("patches", "blocks"),
    "supervised.loss": ("softmax", "sigmoid"),
    "supervised.pool": ("token", "avg"),
    "probe.feature": ("encoder", "hidden"),
    "optim.name": ("adamw", "sgd"),
    "optim.nonfinite": ("stop", "skip", "back"),
    "optim.schedule": ("cosine", "linear"),
    "compute.precision": ("auto", "float32", "bfloat16"),
}
# The most that a number may be, far above what anybody trains with: what is above it is a slip, and would fill the memory first
MOST: dict[str, float] = {
    "data.size": 2**14,
    "data.window": 2**40,
    "data.classes": 2**24,
    "model.stem_width": 2**16,
    "model.stem_work": 2**40,
    "model.stem_size": 2**40,
    "probe.batch": 2**22,
    "optim.steps": 2**40,
    "optim.batch": 2**22,
    "optim.lr": 1e4,
    "optim.weight_decay": 1e4,
    "compute.threads": 2**20,
    "compute.workers": 2**12,
    "compute.patience": 1e9,
    "checkpoint.keep": 2**31,
    "hub.wait": 1e9,
    **{f"joint.{name}": 1e9 for name in ("mpp", "supervised")},
    **dict.fromkeys(("probe.every", "checkpoint.every", "eval.every", "log.every", "hub.every", "eval.pictures"), 2**40),
    **dict.fromkeys(("probe.pictures", "probe.trials", "probe.steps", "probe.neighbors", "checkpoint.failures"), 2**31),
}
LISTS = {"probe.shots": 2**31, "probe.rates": 1e9}  # the same of each number in a list
LONGEST_LIST = 100
SIZES = ("patch", "width", "heads", "mlp")  # with a most, so that the numbers of a foreign file do not fill the memory
# key -> what its value must be like, and how that is said
BOUNDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **{key: (lambda v: v is None or v > 0, ABOVE_0) for key in POSITIVE},
    **{key: (lambda v: 0 < v <= 1, SHARE) for key in ("corruption.rate", "data.crop_area", "data.share")},
    "data.eval_crop": (
        lambda v: 0.1 <= v <= 1,
        "a share from 0.1 to 1 is asked for",
    ),
    "data.unreadable": (lambda v: 0 <= v <= 1, FROM_0_TO_1),
    **{f"corruption.{name}": (lambda v: 0 <= v <= 1, FROM_0_TO_1) for name in ("mask", "random", "keep")},
    **{f"data.{name}": (lambda v: 0 <= v <= 1, "a number from 0 to 1 is asked for") for name in ("mixup", "cutmix")},
    "data.validation": (lambda v: _is_held_out(v), "a split's name or a share from 0 to below 1"),
    **{
        key: (lambda v: 0 <= v < 1, "a share from 0 to below 1 is asked for")
        for key in ("optim.dropout", "optim.drop_path", "optim.momentum", "supervised.smoothing")
    },
    **{f"joint.{name}": (lambda v: v >= 0, "a weight of at least 0 is asked for") for name in ("mpp", "supervised")},
    **{f"model.{key}": (lambda v: 0 < v <= 65536, "a number from 1 to 65536 is asked for") for key in SIZES},
    "model.depth": (lambda v: 0 < v <= 1000, "a number from 1 to 1000 is asked for"),
    "model.timm": (lambda v: PLAIN_NAME.fullmatch(v) is not None, "the name of one of timm's architectures is asked for"),
    "hub.repo": (lambda v: v is None or remote.NAME.fullmatch(v) is not None, "USER/NAME on the Hugging Face Hub is asked for"),
    "hub.wait": (lambda v: v >= 0, "seconds of at least 0 are asked for"),
    "data.mean": (lambda v: len(v) == 3, "three numbers are asked for"),
    "data.std": (lambda v: len(v) == 3 and min(v) > 0, "three numbers above 0 are asked for"),
    "optim.betas": (lambda v: len(v) == 2 and min(v) >= 0 and max(v) < 1, "two numbers from 0 to below 1 are asked for"),
    **{f"model.stem_{key}": (lambda v: v >= 0, "a number of at least 0 is asked for") for key in ("width", "work", "size")},
    "optim.weight_decay": (lambda v: v >= 0, "a number of at least 0 is asked for"),
    "probe.measures": (lambda v: v and set(v) <= set(MEASURES), f"some of {', '.join(MEASURES)} are asked for"),
    "probe.pool": (lambda v: v in (None, "token", "avg"), "token or avg is asked for"),
    **{f"probe.{key}": (lambda v: v and min(v) > 0, "a list of numbers above 0 is asked for") for key in ("shots", "rates")},
    "optim.layer_decay": (lambda v: v is None or 0 < v <= 1, SHARE),
    "optim.average": (lambda v: v is None or 0 < v < 1, "a share between 0 and 1 is asked for"),
    "out": (lambda v: is_place(v), "a folder is asked for"),
    **{f"data.{key}": (lambda v: v.strip() != "" and _number(v) is None, SPLIT) for key in ("train", "test")},
    "checkpoint.keep": (lambda v: v >= 2, "two at least are asked for: a damaged one needs another before it"),
    "seed": (lambda v: -(2**63) <= v < 2**63, "a whole number of 64 bits is asked for"),
    "compute.patience": (lambda v: v >= 10, "10 seconds at least are asked for: a healthy process speaks every 2"),
    "compute.workers": (lambda v: v is None or v >= 0, "a number of at least 0 is asked for"),
    "name": (lambda v: len(v) <= 200 and is_name(v), FOLDER),  # last: a default one tells of the other values
}


def is_place(text: str) -> bool:
    """Whether a text can be a path: not blank, and no name in it is too long or begins or ends in a blank."""
    parts = text.split("/")
    fits = all(len(part.encode(errors="surrogatepass")) <= LONGEST_NAME and part == part.strip() for part in parts)
    return fits and bool(text) and len(text.encode(errors="surrogatepass")) < LONGEST_PATH


def is_name(text: str) -> bool:
    """The same of a path that leads nowhere but into the folder that it is said beside."""
    return is_place(text) and {"", ".", ".."}.isdisjoint(text.split("/"))


def _number(text: str) -> float | None:
    """The number that a text is; None of any other text."""
    try:
        return float(text)
    except ValueError:
        return None


def _is_held_out(value: str | float | None) -> bool:
    """Whether a value can be data.validation's."""
    if isinstance(value, str):
        return bool(value.strip()) and _number(value) is None
    return value is None or 0 <= value < 1


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
        most = MOST.get(key, LISTS.get(key, math.inf))
        below = all(v <= most for v in (value if isinstance(value, list) else [value]) if isinstance(v, int | float))
        _bound(below, key, value, f"at most {most:,.0f} is asked for")
        _bound(
            not isinstance(value, list) or len(value) <= LONGEST_LIST,
            key,
            value,
            f"at most {LONGEST_LIST} values are asked for",
        )
    for key, (holds, text) in BOUNDS.items():
        _bound(holds(flat[key]), key, flat[key], text)
    _check_objective(recipe)
    _check_shares(recipe.corruption)
    _check_sizes(recipe.data, recipe.model)
    _check_side(recipe)
    _check_feature(recipe)
    _check_lengths(recipe.optim, recipe.compute)
    text = f"model.depth={recipe.model.depth} blocks are there"
    _bound((recipe.probe.layer or 1) <= recipe.model.depth, "probe.layer", recipe.probe.layer, text)


def _check_objective(recipe: Recipe) -> None:
    """That model, target and loss suit one another."""
    model, asked = recipe.model, recipe.supervised
    mpp = "target" in OBJECTIVES[recipe.objective]
    text = f"objective={recipe.objective} needs patches; model={model.name} has none"
    _bound(not (mpp and model.convolutional), "model", model.name, text)
    for key, value, idle in (
        ("optim.dropout", recipe.optim.dropout, 0),
        ("optim.layer_decay", recipe.optim.layer_decay, None),
        ("supervised.pool", recipe.supervised.pool, "token"),
        ("probe.pool", recipe.probe.pool, None),
        ("probe.layer", recipe.probe.layer, None),
    ):
        _bound(not model.convolutional or value == idle, key, value, f"model={model.name} has no use for it")
    text = f"objective={recipe.objective} needs patches of pixels; a ResNet's cells have already seen the hidden ones"
    _bound(not (mpp and model.hybrid), "model", model.name, text)
    text = f"patches of model.patch={model.patch} cannot be cut into 4 x 4 cells"
    _bound(not (mpp and recipe.target == "grid_color" and model.patch % 4), "target", recipe.target, text)
    text = "supervised.loss=sigmoid has no use for it"
    _bound(asked.loss == "softmax" or asked.smoothing == 0, "supervised.smoothing", asked.smoothing, text)
    mixed = max(recipe.data.mixup, recipe.data.cutmix)
    text = f"objective={recipe.objective} has no use for mixed pictures"
    _bound(mixed == 0 or recipe.objective == "supervised", "data.mixup, .cutmix", mixed, text)
    text = "pictures are mixed with any of the set, not of a window; leave data.mixup= and data.cutmix= out"
    _bound(mixed == 0 or recipe.data.window is None, "data.window", recipe.data.window, text)
    _check_stream(recipe)
    weightless = " with joint.supervised=0" if recipe.objective == "joint" else ""
    text = f"objective={recipe.objective}{weightless} learns no labels that data.test could be told by"
    _bound(learns_labels(recipe) or not recipe.eval.test, "eval.test", "true", text)
    told = recipe.eval.test or (recipe.objective == "probe" and "top1" in recipe.probe.measures)
    text = "without eval.test=true, or probe.measures=[top1], there is no use for it"
    _bound(told or not recipe.eval.real, "eval.real", recipe.eval.real, text)
    text = "one weight at least must be above 0"
    _bound(recipe.joint.mpp + recipe.joint.supervised > 0, "joint.mpp + .supervised", 0, text)


def _check_stream(recipe: Recipe) -> None:
    """That a stream is only trained on, whole."""
    data, asked = recipe.data, "data.stream=true"
    if not data.stream:
        return
    _bound(data.hub is not None or data.path is not None, "data.stream", "true", f"data={data.name} is drawn, not read")
    _bound(recipe.objective != "probe", "objective", recipe.objective, f"{asked} is for training only")
    _bound(not recipe.eval.test, "eval.test", "true", f"{asked} is for training only; say eval.test=false")
    _bound(data.share == 1, "data.share", data.share, f"{asked} has no share that could be told before it is read")
    share = isinstance(data.validation, float) and data.validation > 0
    _bound(not share, "data.validation", data.validation, f"{asked} has no share to hold out; say a split, or 0 for none")
    _bound(max(data.mixup, data.cutmix) == 0, "data.mixup, .cutmix", max(data.mixup, data.cutmix), f"{asked} mixes no pictures")


def _check_shares(corruption: Corruption) -> None:
    total = corruption.mask + corruption.random + corruption.keep
    _bound(abs(total - 1) < 1e-6, "corruption.mask + .random + .keep", f"{total:g}", "the three shares must sum to 1")


def _check_side(recipe: Recipe) -> None:
    side, grid = recipe.corruption.side, recipe.data.size // recipe.model.patch
    text = f"a picture has {grid} x {grid} patches; squares of fewer on a side are asked for"
    _bound(side == 1 or side < grid, "corruption.side", side, text)


def _check_feature(recipe: Recipe) -> None:
    """That the head's hidden layer is read where there is one, as it was trained to be."""
    probe, key = recipe.probe, "probe.feature"
    if probe.feature != "hidden":
        return
    text = f"is read by tools/evaluate.py; objective={recipe.objective} has no use for it"
    _bound(recipe.objective == "probe", key, "hidden", text)
    for name, value in (("pool", probe.pool), ("layer", probe.layer)):
        text = f"reads what its run trained it on; leave probe.{name}={value} out"
        _bound(value is None, key, "hidden", text)


def _check_sizes(data: Data, model: Model) -> None:
    if model.convolutional:
        return
    below = data.size // model.patch * model.patch
    near = [side for side in (below, below + model.patch) if side >= 2 * model.patch]
    nearest_are = " and ".join(map(str, near or [2 * model.patch]))
    text = (
        f"no multiple of the patch of {model.name or 'the model'}, model.patch={model.patch};"
        f" the nearest {'are' if len(near) > 1 else 'is'} {nearest_are}"
    )
    _bound(data.size % model.patch == 0 and data.size >= 2 * model.patch, "data.size", data.size, text)
    for key in ("stem_work", "stem_size"):
        _bound(model.hybrid or not getattr(model, key), f"model.{key}", getattr(model, key), "model.stem_width=0 has no stem")
    _bound(model.width % model.heads == 0, "model.width", model.width, f"no multiple of model.heads={model.heads}")


def _check_lengths(optim: Optim, compute: Compute) -> None:
    text = f"not below optim.steps={optim.steps}; add optim.warmup={optim.steps // 10}"
    _bound(0 <= optim.warmup < optim.steps, "optim.warmup", optim.warmup, text)
    if compute.batch:
        text = f"does not divide optim.batch={optim.batch}"
        _bound(optim.batch % compute.batch == 0, "compute.batch", compute.batch, text)


def check_place(data: Data) -> None:
    """That the data set's place is said, once, and is there.

    Raises:
        UserError: it is not.
    """
    if data.name == EMBEDDED and (data.path or data.hub):
        raise UserError(f"data={EMBEDDED} is drawn, not read; leave it out beside data.path= or data.hub=")
    if data.path and not _exists(Path(data.path)):
        raise UserError(f"data.path={data.path}: no such file or folder")
    if not data.path and not data.hub and data.name != EMBEDDED:
        raise UserError(f"data={data.name} lies nowhere yet; add data.path= with a local copy (parquet, tars or image folder)")


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # forbidden, or no path at all
        return False


def _bound(holds: bool, key: str, value: Any, text: str) -> None:
    if not holds:
        raise UserError(f"{key}={value}: {text}")
