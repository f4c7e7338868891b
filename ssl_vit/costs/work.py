"""Parameters, multiply-adds and exaFLOP, counted from a recipe."""

from ..config import declaration
from ..config.model import Model
from ..config.schema import Recipe
from . import resnet


def patches(recipe: Recipe, size: int | None = None) -> int:
    """Patches of a training image, or of one of `size` pixels a side."""
    return ((size or recipe.data.size) // recipe.model.patch) ** 2


def tokens(recipe: Recipe, size: int | None = None) -> int:
    """Tokens of such an image: its patches, the class token and the registers."""
    return patches(recipe, size) + 1 + recipe.model.registers


def patch_inputs(recipe: Recipe) -> int:
    """Numbers that a patch is embedded from: its pixels, or a cell of a ResNet's feature map."""
    return recipe.model.stem_width or recipe.data.channels * recipe.model.patch**2


def encoder_parameters(recipe: Recipe) -> int:
    """Parameters of the encoder: patch embedding, class token and registers, positions, blocks and
    final norm, without the objective's heads."""
    model = recipe.model
    d = model.width
    if model.convolutional:
        return _stem_parameters(model)
    inputs = patch_inputs(recipe)
    embed = (inputs + 1) * d
    prefix = (1 + model.registers) * d
    norm = 2 * d
    blocks = _encoder_block_parameters(model) * model.depth
    return _stem_parameters(model) + embed + prefix + _position_parameters(recipe) + blocks + norm


def _encoder_block_parameters(model: Model) -> int:
    d = model.width
    block = plain_block_parameters(d, model.mlp)
    if model.activation == "swiglu":
        block += (d + 1) * model.mlp
    if model.layer_scale is not None:
        block += 2 * d
    if model.qk_norm:
        block += 4 * (d // model.heads)
    return block


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
    }
    return counts.get(model.positions, 0)


def plain_block_parameters(width: int, mlp: int) -> int:
    """Of a transformer block: qkv and projection, MLP, two norms."""
    return 4 * width * (width + 1) + 2 * width * mlp + mlp + width + 4 * width


def encoder_multiply_adds(
    recipe: Recipe, visible: int | None = None, size: int | None = None
) -> int:
    """Multiply-adds of one image's forward pass through the encoder, without norms, biases and the
    objective's head; with `visible`, its blocks see so many of the patches; with `size`, of an
    image of so many pixels a side.

    Patch embedding, then per block the four D x D projections, the two T x T products and the MLP.
    Six times this times the number of images gives the paper's Table 6 (B/16, 7 epochs of JFT: 224
    exaFLOP).
    """
    model = recipe.model
    stem = _stem_multiply_adds(recipe)
    if model.convolutional:
        return stem
    n = patches(recipe, size)
    seen = n if visible is None else visible
    t = tokens(recipe, size) - n + seen
    inputs = patch_inputs(recipe)
    block = block_multiply_adds(t, model.width, model.mlp)
    if model.activation == "swiglu":
        block += t * model.width * model.mlp
    return stem + n * inputs * model.width + model.depth * block


def block_multiply_adds(t: int, width: int, mlp: int) -> int:
    """Of a transformer block on `t` tokens."""
    return 4 * t * width**2 + 2 * t * t * width + 2 * t * width * mlp


def multiply_adds(recipe: Recipe) -> int | None:
    """Multiply-adds of one image's forward pass in this run, as its objective declares them: the
    encoder's and those of its heads. A classifier's head is left out: its classes are the data's.
    None where they are not counted."""
    return recipe.declared.multiply_adds(recipe)


def unwanted_multiply_adds(recipe: Recipe) -> int:
    """Of a token that does not attend in the last block: its query, what it reads, the projection
    and the MLP."""
    model = recipe.model
    matrices = 3 if model.activation == "swiglu" else 2
    attention = 2 * model.width**2 + 2 * tokens(recipe) * model.width
    return attention + matrices * model.width * model.mlp


def computes_wanted(recipe: Recipe) -> bool:
    """Whether the last block can compute some patches alone (models/attention.py)."""
    return recipe.model.positions != "rotary"


def encoder_passes(recipe: Recipe) -> int:
    """Forward passes of the encoder per training image: one for each objective that is trained."""
    return len(recipe.declared.trained(recipe))


def exaflop(recipe: Recipe, images: int) -> float | None:
    """10^18 floating-point operations of training on `images` images: 2 per multiply-add of a
    forward and a backward pass; None where they are not counted."""
    work = recipe.declared.training_multiply_adds(recipe)
    return None if work is None else 2 * work * images / 1e18


def trained_objectives(recipe: Recipe) -> list[str]:
    """The objectives that are trained: of `joint` those whose weight is not 0."""
    return [one.name for one in recipe.declared.trained(recipe)]


def parameters(recipe: Recipe) -> int:
    """Parameters of the encoder and of the objective's heads and tokens, without a head of unknown
    size (no data.classes) and without a momentum copy."""
    trained = recipe.declared.trained(recipe)
    return encoder_parameters(recipe) + sum(one.parameters(recipe) for one in trained)


def momentum_parameters(recipe: Recipe) -> int:
    """Parameters of a momentum copy; 0 for objectives without one."""
    return recipe.declared.momentum_parameters(recipe)


def frozen_parameters(recipe: Recipe) -> int:
    """Those of `parameters` that get no gradient."""
    return recipe.declared.frozen_parameters(recipe)


def head_outputs(recipe: Recipe) -> int:
    """Outputs of the head for each patch; 0 for a plugin's target that does not declare them."""
    found = declaration.target(recipe.target)
    return found.outputs_of(recipe.model.patch, recipe.data.channels)
