"""Checks a recipe: each value against the schema, and the relations between keys. No torch here."""

import math
from pathlib import Path
from typing import Any

from ..errors import UserError, suggest
from . import declaration
from .model import CLASSIC, STAGE_CHANNELS
from .operation import Compute
from .probe import DENSE
from .schema import EMBEDDED, Data, Model, Optim, Recipe, learns_labels, options
from .shared_groups import CorruptionOptions, ViewOptions
from .split_counts import selected_count

# Options that a convolutional network has not
ENCODER_OPTIONS = ("registers", "layer_scale", "qk_norm", "activation", "positions")
OWN_CLASS = ("rotary", "relative", "relative_bias")  # positions of another class than the plain one
OF_PLUGINS = ("objective", "target")  # keys whose choices a plugin can add to


def check(recipe: Recipe) -> None:
    """Check the bounds of each value, then the relations between values.

    Raises:
        UserError: the first that does not hold.
    """
    # the name last: a default one repeats the other values
    for key, value in sorted(recipe.values().items(), key=lambda item: item[0] == "name"):
        check_value(key, value)
    _check_model(recipe)
    _check_stages(recipe.model)
    _check_encoder_options(recipe.model)
    _check_mixing(recipe)
    if recipe.data.stream:
        _check_stream(recipe)
    _check_held_out(recipe.data)
    _check_best(recipe)
    _check_labels(recipe)
    _check_sizes(recipe.data, recipe.model)
    if "corruption" in recipe.groups:
        _check_corruption(recipe, recipe.group(CorruptionOptions))
    if "views" in recipe.groups:
        _check_views(recipe, recipe.group(ViewOptions))
    recipe.declared.check(recipe)
    _check_feature(recipe)
    _check_dense(recipe)
    _check_lengths(recipe.optim, recipe.compute)
    layer = recipe.probe.layer
    depth = recipe.model.depth
    require((layer or 1) <= depth, "probe.layer", layer, f"expected at most model.depth={depth}")


def check_value(key: str, value: Any) -> None:
    """Raises UserError where a key's value is out of the bounds of its schema."""
    option = options()[key]
    if option.allows(value):
        return
    if isinstance(value, str) and option.choices is not None:
        others = "; plugin=FILE.py adds others" if key in OF_PLUGINS else ""
        raise UserError(f"{key}={value}: {suggest(value, option.choices)}{others}")
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{key}={value}: expected a finite number")
    raise UserError(f"{key}={value}: expected {option.allowed}")


def require(holds: bool, key: str, value: Any, reason: str) -> None:
    """Raises UserError with the key, its value and the reason where something does not hold."""
    if not holds:
        raise UserError(f"{key}={value}: {reason}")


def _check_model(recipe: Recipe) -> None:
    """Check that the objective can train the model, and that a convolutional one is given no option
    of a Vision Transformer."""
    model = recipe.model
    predicts_patches = recipe.declared.predicts_patches
    reason = f"objective={recipe.objective} needs patches; model={model.name} has none"
    require(not (predicts_patches and model.convolutional), "model", model.name, reason)
    unused = (
        ("optim.dropout", recipe.optim.dropout, 0),
        ("optim.layer_decay", recipe.optim.layer_decay, None),
        ("probe.pool", recipe.probe.pool, None),
        ("probe.layer", recipe.probe.layer, None),
        *((f"model.{key}", getattr(model, key), getattr(Model, key)) for key in ENCODER_OPTIONS),
    )
    for key, value, default in unused:
        reason = f"model={model.name} has no use for it"
        require(not model.convolutional or value == default, key, value, reason)
    # A cell of the ResNet's feature map has seen its neighbours, so the masked pixels leak
    reason = f"objective={recipe.objective} needs patches of pixels, not of a ResNet's feature map"
    require(not (predicts_patches and model.hybrid), "model", model.name, reason)
    cells = declaration.target(recipe.target).cells if predicts_patches else 1
    reason = f"patches of model.patch={model.patch} cannot be cut into {cells} x {cells} cells"
    require(not predicts_patches or model.patch % cells == 0, "target", recipe.target, reason)


def _check_stages(model: Model) -> None:
    """Check that a ResNet's stages and its width are those that the other keys of model= state."""
    stages = model.stages
    if stages is None:
        reason = f"model={model.name} has no model.stages, whose width it would be"
        require(model.width_factor == 1, "model.width_factor", model.width_factor, reason)
        return
    shown = "[" + ",".join(map(str, stages)) + "]"
    resnet = model.convolutional or model.hybrid
    reason = f"model={model.name} has no ResNet; expected null"
    require(resnet, "model.stages", shown, reason)
    channels = round(STAGE_CHANNELS[len(stages) - 1] * model.width_factor)
    key = "stem_width" if model.hybrid else "width"
    beside = f"beside model.stages={shown} model.width_factor={model.width_factor:g}"
    found = getattr(model, key)
    require(found == channels, f"model.{key}", found, f"expected {channels} {beside}")
    side = 2 ** (len(stages) + 1)  # stem 4 times smaller, each further stage twice
    reason = f"expected {side} beside model.stages={shown}"
    require(not model.hybrid or model.patch == side, "model.patch", model.patch, reason)
    for name in ("stem_work", "stem_size"):
        value = getattr(model, name)
        require(not value, f"model.{name}", value, "expected 0 beside model.stages=")


def _check_encoder_options(model: Model) -> None:
    """Check that timm has one network with all the options of the encoder."""
    positions = model.positions
    biased = positions == "relative_bias"
    reason = "expected {} beside model.positions=relative_bias: timm has no such network"
    registers = model.registers
    require(not (biased and registers), "model.registers", registers, reason.format(0))
    gated = model.activation == "swiglu"
    require(not (biased and gated), "model.activation", "swiglu", reason.format("gelu"))
    beside = f"expected learned, learned_2d, sincos_2d or none beside model={model.name}"
    fits = positions not in OWN_CLASS or not model.hybrid
    require(fits, "model.positions", positions, beside)
    reason = f"expected {CLASSIC} beside model.positions={positions}"
    require(positions not in OWN_CLASS or model.timm == CLASSIC, "model.timm", model.timm, reason)
    reason = "expected gelu for a hybrid"
    require(model.activation == "gelu" or not model.hybrid, "model.activation", "swiglu", reason)
    divisor = {"learned_2d": 2, "sincos_2d": 4, "rotary": 4 * model.heads}.get(positions, 1)
    reason = f"no multiple of {divisor}, which model.positions={positions} needs"
    require(model.width % divisor == 0, "model.width", model.width, reason)


def _check_mixing(recipe: Recipe) -> None:
    """Check mixup and CutMix."""
    data = recipe.data
    mixed = max(data.mixup, data.cutmix)
    if mixed == 0:
        return
    reason = f"objective={recipe.objective} has no use for mixed images"
    require(recipe.declared.mixes, "data.mixup, .cutmix", mixed, reason)
    # A partner is any image of the set, which may lie outside of the window
    reason = "expected null beside data.mixup= or data.cutmix="
    require(data.window is None, "data.window", data.window, reason)
    reason = "expected 0 beside data.stream=true"
    require(not data.stream, "data.mixup, .cutmix", mixed, reason)


def _check_stream(recipe: Recipe) -> None:
    """Check that a stream is only trained on, and whole."""
    data = recipe.data
    reason = f"data={data.name} is generated, not read"
    require(data.hub is not None or data.path is not None, "data.stream", "true", reason)
    reason = "data.stream=true is for training only"
    require(recipe.declared.trains, "objective", recipe.objective, reason)
    reason = "data.stream=true is for training only; expected eval.test=false"
    require(not recipe.eval.test, "eval.test", "true", reason)
    # Which images a share has depends on their number, known only after reading all
    reason = "expected 1 beside data.stream=true"
    require(data.share == 1, "data.share", data.share, reason)
    require(data.labelled == 1, "data.labelled", data.labelled, reason)
    held_out = isinstance(data.validation, float) and data.validation > 0
    reason = "expected a split, or 0 for none, beside data.stream=true"
    require(not held_out, "data.validation", data.validation, reason)


def _check_held_out(data: Data) -> None:
    beforehand = not (data.window or data.stream) or data.share_seed is None
    reason = (
        "takes shares of classes, and data.window and data.stream do not know labels beforehand"
    )
    require(beforehand, "data.share_seed", data.share_seed, reason)
    outside = data.validation_from == "train"
    shared = data.validation is None or (isinstance(data.validation, float) and data.validation > 0)
    reason = f"expected data.validation=null or a share above 0 beside it, not {data.validation}"
    require(shared or not outside, "data.validation_from", data.validation_from, reason)


def _check_best(recipe: Recipe) -> None:
    """Check that there are held-out images to choose a checkpoint on."""
    reason = "data.validation=0 holds out no images to choose on; expected null, or a share above 0"
    held_out = recipe.data.validation != 0
    best = recipe.checkpoint.best
    require(best is None or held_out, "checkpoint.best", best, reason)


def _check_labels(recipe: Recipe) -> None:
    """Check that what is measured at the end has a classifier."""
    # of a sum of objectives, the part that would learn them
    learning = [part for part in recipe.declared.parts if declaration.objective(part).labels]
    untrained = "".join(f" with {recipe.objective}.{part}=0" for part in learning)
    reason = f"objective={recipe.objective}{untrained} learns no labels"
    require(learns_labels(recipe) or not recipe.eval.test, "eval.test", "true", reason)
    reason = f"{reason}, and has none to hide"
    if recipe.declared.only_labelled:
        reason = f"objective={recipe.objective} has no use for unlabelled images; say data.share="
    shown = recipe.data.labelled
    hides = learns_labels(recipe) and not recipe.declared.only_labelled
    require(shown == 1 or hides, "data.labelled", shown, reason)
    if shown != 1:
        _check_labelled(recipe.data)
    classifies = recipe.objective == "probe" and "top1" in recipe.probe.measures
    reason = "no use without eval.test=true or probe.measures=[top1]"
    tests = recipe.eval.test or classifies
    require(tests or not recipe.eval.real, "eval.real", recipe.eval.real, reason)


def _check_labelled(data: Data) -> None:
    """Check that the images whose labels are shown are those that data.share would take."""
    reason = "expected 1 beside data.labelled="
    require(data.share == 1, "data.share", data.share, reason)
    cut = data.validation is None or (isinstance(data.validation, float) and data.validation > 0)
    reason = "expected train beside data.labelled= and a held-out share of the training images"
    outside = data.validation_from == "train"
    require(outside or not cut, "data.validation_from", data.validation_from, reason)


def fewer_than(patches: int) -> str:
    """The masking rates that leave one of an image's patches (`selected_count` below all)."""
    return f"expected less than {1 - 0.5 / patches:g}"


def _check_corruption(recipe: Recipe, corruption: CorruptionOptions) -> None:
    """Check that the shares of the kinds add up, that squares fit into the image, and that a patch
    is not masked where masked patches are all that is corrupted."""
    total = corruption.mask + corruption.random + corruption.keep
    key = "corruption.mask + .random + .keep"
    require(abs(total - 1) < 1e-6, key, f"{total:g}", "the three shares must sum to 1")
    grid = recipe.data.size // recipe.model.patch
    side = corruption.side
    reason = f"expected less than {grid}: an image has {grid} x {grid} patches"
    require(side == 1 or side < grid, "corruption.side", side, reason)
    if recipe.model.convolutional or corruption.mask < 1:
        return
    patches = grid**2
    reason = (
        f"masks all of an image's {patches} patches; {fewer_than(patches)}, or corruption.mask"
        " below 1"
    )
    corrupted = selected_count(corruption.rate, patches)
    require(corrupted < patches, "corruption.rate", corruption.rate, reason)


def _check_views(recipe: Recipe, views: ViewOptions) -> None:
    """Check that there are images to compare with one another, and the options of their views."""
    reason = f"objective={recipe.objective} compares the images of a batch; expected at least 2"
    require(recipe.optim.batch > 1, "optim.batch", recipe.optim.batch, reason)
    require(recipe.eval.images > 1, "eval.images", recipe.eval.images, reason)
    low, high = views.blur_sigma
    reason = "expected the smaller standard deviation first"
    require(low <= high, "views.blur_sigma", f"[{low:g}, {high:g}]", reason)


def _check_feature(recipe: Recipe) -> None:
    """Check that probe.feature=hidden is used where there is a hidden layer, on the feature that it
    was trained on."""
    probe = recipe.probe
    if probe.feature != "hidden":
        return
    key = "probe.feature"
    reason = f"is read by tools/evaluate.py; objective={recipe.objective} has no use for it"
    require(recipe.objective == "probe", key, "hidden", reason)
    for name, value in (("pool", probe.pool), ("layer", probe.layer)):
        reason = f"reads what its run trained it on; leave probe.{name}={value} out"
        require(value is None, key, "hidden", reason)


def _check_dense(recipe: Recipe) -> None:
    """Check that what is measured of patches has an encoder with patches, at the end."""
    found = [name for name in recipe.probe.measures if name in DENSE]
    if not found:
        return
    key, value = "probe.measures", found[0]
    reason = f"is measured by tools/evaluate.py; objective={recipe.objective} has no use for it"
    require(recipe.objective == "probe", key, value, reason)
    model = recipe.model
    reason = f"needs patches; model={model.name or model.timm} has none"
    require(not model.convolutional, key, value, reason)
    reason = f"reads the encoder's patches; probe.feature={recipe.probe.feature} is of images"
    require(recipe.probe.feature == "encoder", key, value, reason)
    images = len(found) < len(recipe.probe.measures)
    reason = f"probe.measures={','.join(found)} reads patches and has no use for it"
    require(images or recipe.probe.pool is None, "probe.pool", recipe.probe.pool, reason)


def _check_sizes(data: Data, model: Model) -> None:
    """Check that the image divides into patches and the width into heads."""
    if model.convolutional:
        return
    below = data.size // model.patch * model.patch
    near = [side for side in (below, below + model.patch) if side >= 2 * model.patch]
    nearest = near or [2 * model.patch]
    verb = "are" if len(nearest) > 1 else "is"
    reason = (
        f"no multiple of the patch of {model.name or 'the model'}, model.patch={model.patch};"
        f" the nearest {verb} {' and '.join(map(str, nearest))}"
    )
    fits = data.size % model.patch == 0 and data.size >= 2 * model.patch
    require(fits, "data.size", data.size, reason)
    for name in ("stem_work", "stem_size"):
        value = getattr(model, name)
        reason = "expected 0 beside model.stem_width=0, which is no stem"
        require(model.hybrid or not value, f"model.{name}", value, reason)
    reason = f"no multiple of model.heads={model.heads}"
    require(model.width % model.heads == 0, "model.width", model.width, reason)


def _check_lengths(optim: Optim, compute: Compute) -> None:
    """Check the warm-up against the steps, and the device batch against the batch."""
    reason = f"not below optim.steps={optim.steps}; add optim.warmup={optim.steps // 10}"
    require(0 <= optim.warmup < optim.steps, "optim.warmup", optim.warmup, reason)
    if compute.batch:
        reason = f"does not divide optim.batch={optim.batch}"
        require(optim.batch % compute.batch == 0, "compute.batch", compute.batch, reason)


def check_place(data: Data) -> None:
    """Check that the data set has one place, and that it is there.

    Raises:
        UserError: it has none, or nothing is there.
    """
    if data.name == EMBEDDED and (data.path or data.hub):
        raise UserError(
            f"data={EMBEDDED} is generated, not read; leave it out beside data.path= or data.hub="
        )
    if data.path and not _exists(Path(data.path)):
        raise UserError(f"data.path={data.path}: no such file or folder")
    if not data.path and not data.hub and data.name != EMBEDDED:
        raise UserError(
            f"data={data.name} lies nowhere yet; add data.path= with a local copy (parquet, tars or"
            " image folder)"
        )


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # no permission, or a name too long
        return False
