"""Parameters, multiply-adds and exaFLOP, counted from a recipe."""

from collections.abc import Callable
from typing import NamedTuple

from .. import rng
from ..config.model import Model
from ..config.schema import Recipe
from . import resnet

DECODER_MLP = 4  # the MLP of a masked autoencoder's decoder over its width
VIEWS = 2  # of an image, for an objective that compares them
# outputs of the head for each patch (paper, B.1.2); a plugin adds those of its target
HEAD_OUTPUTS = {"mean_color": 512, "grid_color": 16 * 512}
COUNTED = ("mpp", "mae", "moco_v3", "supervised", "probe")  # objectives whose work is counted here
# Of a plugin's objective, where the plugin declares it: multiply-adds of one image's forward pass.
# A backward pass counts as two; what has none, as a teacher, adds a third of its own.
WORK: dict[str, Callable[[Recipe], int]] = {}
PIXEL_TARGETS = ("pixels", "pixels_l1", "normalized_pixels")  # 3 P^2 outputs


def patches(recipe: Recipe) -> int:
    """Patches of a training image."""
    return (recipe.data.size // recipe.model.patch) ** 2


def tokens(recipe: Recipe) -> int:
    """Tokens of a training image: its patches, the class token and the registers."""
    return patches(recipe) + 1 + recipe.model.registers


def encoder_parameters(recipe: Recipe) -> int:
    """Parameters of the encoder: patch embedding, class token and registers, positions, blocks and
    final norm, without the objective's heads."""
    model = recipe.model
    d = model.width
    if model.convolutional:
        return _stem_parameters(model)
    inputs = model.stem_width or 3 * model.patch**2
    embed = (inputs + 1) * d
    prefix = (1 + model.registers) * d
    norm = 2 * d
    blocks = _encoder_block_parameters(model) * model.depth
    return _stem_parameters(model) + embed + prefix + _position_parameters(recipe) + blocks + norm


def _encoder_block_parameters(model: Model) -> int:
    d = model.width
    block = _block_parameters(d, model.mlp)
    if model.activation == "swiglu":
        block += (d + 1) * model.mlp
    if model.layer_scale is not None:
        block += 2 * d
    if model.qk_norm:
        block += 4 * (d // model.heads)
    return block


def block_parameters(recipe: Recipe) -> int:
    """Those of `parameters` in Transformer blocks: the encoder's, a masked autoencoder's
    decoder's."""
    if recipe.model.convolutional:
        return 0
    count = recipe.model.depth * _encoder_block_parameters(recipe.model)
    if "mae" in trained_objectives(recipe):
        mae = recipe.mae
        count += mae.depth * _block_parameters(mae.width, DECODER_MLP * mae.width)
    return count


def _stem_parameters(model: Model) -> int:
    """Of a convolutional network, or a hybrid's ResNet."""
    if model.stages is None:
        return model.stem_size
    return resnet.parameters(model.stages, model.width_factor, model.hybrid)


def _stem_multiply_adds(recipe: Recipe) -> int:
    model = recipe.model
    if model.stages is None:
        return model.stem_work * recipe.data.size**2
    return resnet.multiply_adds(model.stages, model.width_factor, recipe.data.size)


def _position_parameters(recipe: Recipe) -> int:
    model = recipe.model
    side = recipe.data.size // model.patch
    counts = {
        "learned": tokens(recipe) * model.width,
        "learned_2d": side * model.width,
        "relative": model.depth * relative_offsets(recipe) * (model.width // model.heads),
        # two for pairs with the class token, one for itself
        "relative_bias": ((2 * side - 1) ** 2 + 3) * model.heads,
    }
    return counts.get(model.positions, 0)


def relative_offsets(recipe: Recipe) -> int:
    """Distances between patches in raster order."""
    return 2 * patches(recipe) - 1


def _block_parameters(width: int, mlp: int) -> int:
    """Of a transformer block: qkv and projection, MLP, two norms."""
    return 4 * width * (width + 1) + 2 * width * mlp + mlp + width + 4 * width


def encoder_multiply_adds(recipe: Recipe, visible: int | None = None) -> int:
    """Multiply-adds of one image's forward pass through the encoder, without norms, biases and the
    objective's head; with `visible`, its blocks see so many of the patches.

    Patch embedding, then per block the four D x D projections, the two T x T products and the MLP.
    Six times this times the number of images gives the paper's Table 6 (B/16, 7 epochs of JFT: 224
    exaFLOP).
    """
    model = recipe.model
    stem = _stem_multiply_adds(recipe)
    if model.convolutional:
        return stem
    n = patches(recipe)
    seen = n if visible is None else visible
    t = tokens(recipe) - n + seen
    inputs = model.stem_width or 3 * model.patch**2
    block = _block_multiply_adds(t, model.width, model.mlp)
    if model.activation == "swiglu":
        block += t * model.width * model.mlp
    if model.positions == "relative":
        block += seen * relative_offsets(recipe) * model.width
    return stem + n * inputs * model.width + model.depth * block


def _block_multiply_adds(t: int, width: int, mlp: int) -> int:
    """Of a transformer block on `t` tokens."""
    return 4 * t * width**2 + 2 * t * t * width + 2 * t * width * mlp


def is_counted(recipe: Recipe) -> bool:
    """Whether the work of the recipe's objective is known: not of a plugin's objective or target
    that the plugin does not declare."""
    names = trained_objectives(recipe)
    predicts = {"mpp", "mae"} & set(names)
    known = recipe.target in HEAD_OUTPUTS or recipe.target in PIXEL_TARGETS
    return all(name in COUNTED or name in WORK for name in names) and (known or not predicts)


def multiply_adds(recipe: Recipe) -> int | None:
    """Multiply-adds of one image's forward pass in this run: the encoder's, in MPP without what its
    last block leaves out and with the head, and of a masked autoencoder those on the visible
    patches and the decoder's with its head; of MoCo v3 those of both views through the encoder and
    its momentum copy. With `joint`, of all parts. A classifier's head is left out: its classes are
    the data's. Of a plugin's objective what it declares; None where it is not counted."""
    if not is_counted(recipe):
        return None
    if recipe.objective in WORK:
        return WORK[recipe.objective](recipe)
    return _multiply_adds(recipe)


def _multiply_adds(recipe: Recipe) -> int:
    if recipe.objective == "moco_v3":
        work = _moco_work(recipe)
        return VIEWS * (2 * (work.encoder + work.projector) + work.predictor + work.similarities)
    return sum(_pass_multiply_adds(recipe, name) for name in trained_objectives(recipe))


def _pass_multiply_adds(recipe: Recipe, objective: str) -> int:
    whole = encoder_multiply_adds(recipe)
    if objective == "mpp":
        corrupted = corrupted_patches(recipe)
        head = corrupted * recipe.model.width * head_outputs(recipe)
        unwanted = tokens(recipe) - corrupted if computes_wanted(recipe) else 0
        return whole - unwanted * _unwanted_multiply_adds(recipe) + head
    if objective != "mae":
        return whole
    mae = recipe.mae
    masked = masked_patches(recipe)
    t = tokens(recipe)
    enter = (t - masked) * recipe.model.width * mae.width
    blocks = mae.depth * _block_multiply_adds(t, mae.width, DECODER_MLP * mae.width)
    head = masked * mae.width * head_outputs(recipe)
    visible = patches(recipe) - masked
    return encoder_multiply_adds(recipe, visible) + enter + blocks + head


class _MocoWork(NamedTuple):
    """Multiply-adds of MoCo v3's parts for one view."""

    encoder: int
    projector: int
    predictor: int
    similarities: int  # with all keys of the global batch


def _moco_work(recipe: Recipe) -> _MocoWork:
    return _MocoWork(
        encoder_multiply_adds(recipe),
        sum(a * b for a, b in projector_layers(recipe)),
        sum(a * b for a, b in predictor_layers(recipe)),
        recipe.optim.batch * recipe.moco.width,
    )


def projector_layers(recipe: Recipe) -> list[tuple[int, int]]:
    """Inputs and outputs of MoCo v3's projector's linear layers."""
    moco = recipe.moco
    return [
        (recipe.model.width, moco.hidden),
        (moco.hidden, moco.hidden),
        (moco.hidden, moco.width),
    ]


def predictor_layers(recipe: Recipe) -> list[tuple[int, int]]:
    moco = recipe.moco
    return [(moco.width, moco.hidden), (moco.hidden, moco.width)]


def _mlp_parameters(layers: list[tuple[int, int]]) -> int:
    """Of such linear layers without biases, and of the batch norms after all but the last."""
    return sum(a * b for a, b in layers) + sum(2 * b for _, b in layers[:-1])


def training_multiply_adds(recipe: Recipe) -> int | None:
    """Multiply-adds of one image's forward and backward passes; None where they are not counted.

    A backward pass costs two forward passes. Of MoCo v3 only the encoder with projector and
    predictor has one: not the momentum copy, not a frozen patch projection, and of the
    similarities only the half for the queries.
    """
    if recipe.objective != "moco_v3":
        forward = multiply_adds(recipe)
        return None if forward is None else 3 * forward
    work = _moco_work(recipe)
    trained = work.encoder + work.projector + work.predictor
    if recipe.moco.freeze_patches:
        model = recipe.model
        trained -= patches(recipe) * 3 * model.patch**2 * model.width
    return _multiply_adds(recipe) + VIEWS * (2 * trained + work.similarities)


def computes_wanted(recipe: Recipe) -> bool:
    """Whether MPP's last block computes the corrupted patches alone (models/attention.py)."""
    return recipe.model.positions not in ("rotary", "relative", "relative_bias")


def _unwanted_multiply_adds(recipe: Recipe) -> int:
    """Of a token that does not attend: its query, what it reads, the projection and the MLP."""
    model = recipe.model
    matrices = 3 if model.activation == "swiglu" else 2
    attention = 2 * model.width**2 + 2 * tokens(recipe) * model.width
    return attention + matrices * model.width * model.mlp


def corrupted_patches(recipe: Recipe) -> int:
    """Patches of an image that masked patch prediction corrupts."""
    return rng.rounded_count(recipe.corruption.rate, patches(recipe))


def masked_patches(recipe: Recipe) -> int:
    """Patches of an image that a masked autoencoder masks."""
    return rng.rounded_count(recipe.mae.rate, patches(recipe))


def encoder_passes(recipe: Recipe) -> int:
    """Forward passes per training image: one, or with `joint` one for each part whose weight is not
    0."""
    if recipe.objective != "joint":
        return 1
    return (recipe.joint.mpp > 0) + (recipe.joint.supervised > 0)


def exaflop(recipe: Recipe, images: int) -> float | None:
    """10^18 floating-point operations of training on `images` images: 2 per multiply-add of
    `training_multiply_adds`; None where they are not counted."""
    work = training_multiply_adds(recipe)
    return None if work is None else 2 * work * images / 1e18


def trained_objectives(recipe: Recipe) -> list[str]:
    """The objectives that are trained: of `joint` those whose weight is not 0."""
    if recipe.objective != "joint":
        return [recipe.objective]
    return [name for name in ("mpp", "supervised") if getattr(recipe.joint, name)]


def parameters(recipe: Recipe) -> int:
    """Parameters of the encoder and of the objective's heads and tokens, without a head of unknown
    size (no data.classes) and without MoCo v3's momentum copy."""
    d = recipe.model.width
    hidden = d * (d + 1) if recipe.supervised.hidden else 0
    mae = recipe.mae
    decoder = (
        (d + 1) * mae.width  # to its width
        + mae.width  # mask token
        + mae.depth * _block_parameters(mae.width, DECODER_MLP * mae.width)
        + 2 * mae.width  # norm
    )
    heads = {
        "mpp": d + (d + 1) * head_outputs(recipe),
        "mae": decoder + (mae.width + 1) * head_outputs(recipe),
        "moco_v3": _mlp_parameters(projector_layers(recipe))
        + _mlp_parameters(predictor_layers(recipe)),
        "supervised": (d + 1) * (recipe.data.classes or 0) + hidden,
    }
    trained = trained_objectives(recipe)
    return encoder_parameters(recipe) + sum(heads.get(name, 0) for name in trained)


def momentum_parameters(recipe: Recipe) -> int:
    """Parameters of MoCo v3's momentum copy of encoder and projector; 0 for others."""
    if recipe.objective != "moco_v3":
        return 0
    return encoder_parameters(recipe) + _mlp_parameters(projector_layers(recipe))


def frozen_parameters(recipe: Recipe) -> int:
    """Those of `parameters` that get no gradient: MoCo v3's frozen patch projection."""
    model = recipe.model
    if recipe.objective != "moco_v3" or not recipe.moco.freeze_patches:
        return 0
    return (3 * model.patch**2 + 1) * model.width


def head_outputs(recipe: Recipe) -> int:
    """Outputs of the head for each patch; 0 for a plugin's target that does not declare
    them."""
    if recipe.target in PIXEL_TARGETS:
        return 3 * recipe.model.patch**2
    return HEAD_OUTPUTS.get(recipe.target, 0)
