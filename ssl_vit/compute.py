"""What a run costs, counted from its recipe: parameters, multiply-adds, exaFLOP. No torch here."""

from .recipe import Recipe


def tokens(recipe: Recipe) -> int:
    """Tokens of a training picture: its patches and the class token."""
    return (recipe.data.size // recipe.model.patch) ** 2 + 1


def parameters(recipe: Recipe) -> int:
    """Parameters of the encoder: patches, class token and positions, blocks, final norm; the objective's heads left out."""
    model, d = recipe.model, recipe.model.width
    if model.convolutional:
        return model.stem_size
    inputs = model.stem_width or 3 * model.patch**2
    block = 4 * d * (d + 1) + 2 * d * model.mlp + model.mlp + d + 4 * d  # qkv and projection, MLP, two norms
    return model.stem_size + (inputs + 1) * d + (tokens(recipe) + 1) * d + model.depth * block + 2 * d


def multiply_adds(recipe: Recipe) -> int:
    """Multiply-adds of one picture's forward pass through the encoder; norms, biases and the objective's head left out.

    Patches, then per block the four D x D projections, the two T x T products and the MLP. Six times this and the number of
    pictures is the paper's Table 6 (B/16, 7 epochs of JFT: 224 exaFLOP).
    """
    model, t = recipe.model, tokens(recipe)
    stem = model.stem_work * recipe.data.size**2
    if model.convolutional:
        return stem
    block = 4 * t * model.width**2 + 2 * t * t * model.width + 2 * t * model.width * model.mlp
    inputs = model.stem_width or 3 * model.patch**2
    return stem + (t - 1) * inputs * model.width + model.depth * block


def passes(recipe: Recipe) -> int:
    """How often a training picture goes through the encoder: `joint` sends it once for each part that has a weight."""
    return (recipe.joint.mpp > 0) + (recipe.joint.supervised > 0) if recipe.objective == "joint" else 1


def exaflop(recipe: Recipe, images: int) -> float:
    """10^18 floating-point operations of training on `images` pictures: forward and backward are three forwards, 2 each."""
    return 3 * 2 * passes(recipe) * multiply_adds(recipe) * images / 1e18
