"""Checks a recipe: each value against its schema, and the relations between keys. No torch here."""

import dataclasses
import math
from pathlib import Path
from typing import Any

from ..errors import UserError, suggest
from .operation import Compute
from .parsing import flatten
from .schema import (
    EMBEDDED,
    OBJECTIVES,
    OPTIONS,
    Corruption,
    Data,
    Model,
    Optim,
    Recipe,
    learns_labels,
)

BOUNDS = dict(OPTIONS)  # the keys whose values are checked


def check(recipe: Recipe) -> None:
    """Bounds of each value, then what values must be to one another.

    Raises:
        UserError: the first key whose value cannot be.
    """
    flat = flatten(dataclasses.asdict(recipe))
    # the name last: a default one repeats the other values
    for key in sorted(BOUNDS, key=lambda key: key == "name"):
        check_value(key, flat[key])
    _check_objective(recipe)
    _check_shares(recipe.corruption)
    _check_sizes(recipe.data, recipe.model)
    _check_side(recipe)
    _check_feature(recipe)
    _check_lengths(recipe.optim, recipe.compute)
    text = f"model.depth={recipe.model.depth} blocks are there"
    _bound((recipe.probe.layer or 1) <= recipe.model.depth, "probe.layer", recipe.probe.layer, text)


def check_value(key: str, value: Any) -> None:
    """Raises UserError where a key's value is out of the bounds of its schema."""
    option = OPTIONS[key]
    if option.allows(value):
        return
    if isinstance(value, str) and option.choices is not None:
        raise UserError(f"{key}={value}: {suggest(value, option.choices)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{key}={value}: expected a finite number")
    raise UserError(f"{key}={value}: expected {option.allowed}")


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
        _bound(
            not model.convolutional or value == idle,
            key,
            value,
            f"model={model.name} has no use for it",
        )
    text = f"objective={recipe.objective} needs patches of pixels; a ResNet's cells have already seen the hidden ones"
    _bound(not (mpp and model.hybrid), "model", model.name, text)
    text = f"patches of model.patch={model.patch} cannot be cut into 4 x 4 cells"
    _bound(
        not (mpp and recipe.target == "grid_color" and model.patch % 4),
        "target",
        recipe.target,
        text,
    )
    text = "supervised.loss=sigmoid has no use for it"
    _bound(
        asked.loss == "softmax" or asked.smoothing == 0,
        "supervised.smoothing",
        asked.smoothing,
        text,
    )
    mixed = max(recipe.data.mixup, recipe.data.cutmix)
    text = f"objective={recipe.objective} has no use for mixed images"
    _bound(mixed == 0 or recipe.objective == "supervised", "data.mixup, .cutmix", mixed, text)
    text = "images are mixed with any of the set, not of a window; leave data.mixup= and data.cutmix= out"
    _bound(mixed == 0 or recipe.data.window is None, "data.window", recipe.data.window, text)
    _check_stream(recipe)
    weightless = " with joint.supervised=0" if recipe.objective == "joint" else ""
    text = (
        f"objective={recipe.objective}{weightless} learns no labels that data.test could be told by"
    )
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
    _bound(
        data.hub is not None or data.path is not None,
        "data.stream",
        "true",
        f"data={data.name} is drawn, not read",
    )
    _bound(
        recipe.objective != "probe", "objective", recipe.objective, f"{asked} is for training only"
    )
    _bound(
        not recipe.eval.test,
        "eval.test",
        "true",
        f"{asked} is for training only; say eval.test=false",
    )
    _bound(
        data.share == 1,
        "data.share",
        data.share,
        f"{asked} has no share that could be told before it is read",
    )
    share = isinstance(data.validation, float) and data.validation > 0
    _bound(
        not share,
        "data.validation",
        data.validation,
        f"{asked} has no share to hold out; say a split, or 0 for none",
    )
    _bound(
        max(data.mixup, data.cutmix) == 0,
        "data.mixup, .cutmix",
        max(data.mixup, data.cutmix),
        f"{asked} mixes no images",
    )


def _check_shares(corruption: Corruption) -> None:
    total = corruption.mask + corruption.random + corruption.keep
    _bound(
        abs(total - 1) < 1e-6,
        "corruption.mask + .random + .keep",
        f"{total:g}",
        "the three shares must sum to 1",
    )


def _check_side(recipe: Recipe) -> None:
    side, grid = recipe.corruption.side, recipe.data.size // recipe.model.patch
    text = f"an image has {grid} x {grid} patches; squares of fewer on a side are asked for"
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
    _bound(
        data.size % model.patch == 0 and data.size >= 2 * model.patch, "data.size", data.size, text
    )
    for key in ("stem_work", "stem_size"):
        _bound(
            model.hybrid or not getattr(model, key),
            f"model.{key}",
            getattr(model, key),
            "model.stem_width=0 has no stem",
        )
    _bound(
        model.width % model.heads == 0,
        "model.width",
        model.width,
        f"no multiple of model.heads={model.heads}",
    )


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
        raise UserError(
            f"data={EMBEDDED} is drawn, not read; leave it out beside data.path= or data.hub="
        )
    if data.path and not _exists(Path(data.path)):
        raise UserError(f"data.path={data.path}: no such file or folder")
    if not data.path and not data.hub and data.name != EMBEDDED:
        raise UserError(
            f"data={data.name} lies nowhere yet; add data.path= with a local copy (parquet, tars or image folder)"
        )


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # forbidden, or no path at all
        return False


def _bound(holds: bool, key: str, value: Any, text: str) -> None:
    if not holds:
        raise UserError(f"{key}={value}: {text}")
