"""MoCo v3 (Chen, Xie and He, 2021), declared. No torch here."""

from dataclasses import dataclass

from ... import costs
from ...config.declaration import Group, ObjectiveDeclaration
from ...config.fields import option
from ...config.rules import Rule
from ...config.schema import Recipe

VIEWS = 2  # of an image


@dataclass
class MocoOptions:
    temperature: float = option(0.2, "What similarities are divided by.", above=0, maximum=1e3)
    momentum: float = option(
        0.99,
        "Momentum of the encoder's running average in the first step; it rises to 1 along a"
        " cosine.",
        minimum=0,
        maximum=1,
    )
    hidden: int = option(
        4096, "Width of the hidden layers of projector and predictor.", above=0, maximum=65536
    )
    width: int = option(256, "Width of the vectors that are compared.", above=0, maximum=65536)
    freeze_patches: bool = option(
        True, "Do not train the patch projection: it stays as drawn, or as init= has it."
    )


class MocoDeclaration(ObjectiveDeclaration):
    name = "moco_v3"
    title = "Momentum contrast (MoCo v3)"
    tag = "moco-v3"
    network = "network:MomentumContrast"
    options = Group("moco", MocoOptions, "MoCo v3: what is compared, and the momentum copy.")
    shared = ("views",)
    views = VIEWS
    rules = (
        Rule(
            "model",
            lambda r: r.model.convolutional,
            "objective={r.objective} needs a Vision Transformer",
            "{r.model.name}",
        ),
        Rule(
            "moco.freeze_patches",
            lambda r: r.group(MocoOptions).freeze_patches and r.model.hybrid,
            "model={r.model.name} has a ResNet before its patch projection; expected false",
        ),
    )

    def parameters(self, recipe: Recipe) -> int:
        return _mlp_parameters(_projector(recipe)) + _mlp_parameters(_predictor(recipe))

    def momentum_parameters(self, recipe: Recipe) -> int:
        """Of encoder and projector."""
        return costs.encoder_parameters(recipe) + _mlp_parameters(_projector(recipe))

    def frozen_parameters(self, recipe: Recipe) -> int:
        """The patch projection's, where it is frozen."""
        model = recipe.model
        frozen = recipe.group(MocoOptions).freeze_patches
        return (costs.patch_inputs(recipe) + 1) * model.width if frozen else 0

    def multiply_adds(self, recipe: Recipe) -> int:
        """Of all views through the encoder, its momentum copy and their heads."""
        encoded = costs.encoder_multiply_adds(recipe) + _multiply_adds(_projector(recipe))
        predicted = _multiply_adds(_predictor(recipe)) + self._similarities(recipe)
        return VIEWS * (2 * encoded + predicted)

    def training_multiply_adds(self, recipe: Recipe) -> int:
        """A backward pass costs two forward passes; only the encoder with projector and predictor
        has one: not the momentum copy, not a frozen patch projection, and of the similarities only
        the half for the queries."""
        trained = costs.encoder_multiply_adds(recipe)
        trained += _multiply_adds(_projector(recipe)) + _multiply_adds(_predictor(recipe))
        if recipe.group(MocoOptions).freeze_patches:
            model = recipe.model
            trained -= costs.patches(recipe) * costs.patch_inputs(recipe) * model.width
        return self.multiply_adds(recipe) + VIEWS * (2 * trained + self._similarities(recipe))

    def _similarities(self, recipe: Recipe) -> int:
        """Of one view's queries with all keys of the global batch."""
        return recipe.optim.batch * recipe.group(MocoOptions).width

    def head_bytes(self, recipe: Recipe, value: int, fused: bool) -> int:
        """Of projector, predictor and similarities: the inputs of the linear layers; of each batch
        norm what is centred, in float32, and where it scales also what is normalised, and what ReLU
        lets through; the logits of all keys and their softmax."""
        layers = (_projector(recipe), _predictor(recipe))
        inputs = sum(value * a for part in layers for a, _ in part)
        hidden = sum(12 * b for part in layers for _, b in part[:-1])
        last = sum(4 * b for part in layers for _, b in part[-1:])
        compared = 8 * recipe.group(MocoOptions).width + 8 * recipe.optim.batch
        return VIEWS * (inputs + hidden + last + compared)

    def sentence(self, recipe: Recipe) -> str:
        temperature = recipe.group(MocoOptions).temperature
        return (
            f"MoCo v3 (Chen, Xie and He, 2021): of two random views of an image, each is found"
            f" among the views of all {recipe.optim.batch:,} images of a batch by the other, at a"
            f" temperature of {temperature:g}; the views that are searched come"
            f" from a running average of the encoder, which is not part of the export."
        )


Layers = list[tuple[int, int]]  # inputs and outputs of linear layers


def _projector(recipe: Recipe) -> Layers:
    moco = recipe.group(MocoOptions)
    return [
        (recipe.model.width, moco.hidden),
        (moco.hidden, moco.hidden),
        (moco.hidden, moco.width),
    ]


def _predictor(recipe: Recipe) -> Layers:
    moco = recipe.group(MocoOptions)
    return [(moco.width, moco.hidden), (moco.hidden, moco.width)]


def _multiply_adds(layers: Layers) -> int:
    return sum(a * b for a, b in layers)


def _mlp_parameters(layers: Layers) -> int:
    """Of such linear layers without biases, and of the batch norms after all but the last."""
    return sum(a * b for a, b in layers) + sum(2 * b for _, b in layers[:-1])


DECLARATION = MocoDeclaration()
