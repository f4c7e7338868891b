"""Prediction of a teacher's features (I-JEPA: Assran et al., 2023), declared. No torch here."""

from dataclasses import dataclass

from ... import costs
from ...config.declaration import Group, ObjectiveDeclaration, Question
from ...config.fields import option
from ...config.rules import Rule, fewer_than
from ...config.schema import Recipe
from ...config.split_counts import selected_count
from ...metrics import Metric

HEADS, PREDICTOR_MLP = 4, 4  # of the predictor: heads, and its MLP over its width


@dataclass
class IjepaOptions:
    rate: float = option(
        0.6, "Share of the patches whose features are predicted.", above=0, below=1
    )
    momentum: float = option(
        0.996,
        "Momentum of the teacher, a running average of the encoder, in the first step; it rises to"
        " 1 linearly.",
        minimum=0,
        maximum=1,
    )


def predictor_width(width: int) -> int:
    """Half of the encoder's, in whole heads of a multiple of 4 channels."""
    return max(4 * HEADS, width // 2 // (4 * HEADS) * (4 * HEADS))


def predicted_count(recipe: Recipe) -> int:
    """Patches of an image whose features are predicted."""
    return selected_count(recipe.group(IjepaOptions).rate, costs.patches(recipe))


class IjepaDeclaration(ObjectiveDeclaration):
    name = "ijepa"
    title = "Prediction of a teacher's features (I-JEPA)"
    tag = "i-jepa"
    network = "network:FeaturePrediction"
    figure = (
        "held-out images, the patches that the encoder saw, and how near the predicted features of"
        " the others are to the teacher's: white the same direction, black the opposite one"
    )
    options = Group("ijepa", IjepaOptions, "I-JEPA: what is predicted, and the teacher.")
    class_token_is_trained = False
    rules = (
        Rule(
            "model",
            lambda r: r.model.convolutional or r.model.hybrid,
            "objective=ijepa needs patches of pixels; model={r.model.name} has none",
            "{r.model.name}",
        ),
        Rule(
            "ijepa.rate",
            lambda r: predicted_count(r) >= costs.patches(r),
            lambda r: (
                f"leaves none of an image's {costs.patches(r)} patches visible;"
                f" {fewer_than(costs.patches(r))}"
            ),
        ),
    )
    metrics = (
        Metric(
            "feature_spread",
            sentence="how far an image's patches' features lie apart: near 0 the teacher has"
            " collapsed",
        ),
    )

    def parameters(self, recipe: Recipe) -> int:
        d = recipe.model.width
        w = predictor_width(d)
        ends = (d + 1) * w + w + 2 * w + (w + 1) * d  # to its width, mask token, norm, head
        return ends + self.block_parameters(recipe)

    def block_parameters(self, recipe: Recipe) -> int:
        w = predictor_width(recipe.model.width)
        return self._depth(recipe) * costs.plain_block_parameters(w, PREDICTOR_MLP * w)

    def _depth(self, recipe: Recipe) -> int:
        return max(1, recipe.model.depth // 2)

    def momentum_parameters(self, recipe: Recipe) -> int:
        return costs.encoder_parameters(recipe)

    def multiply_adds(self, recipe: Recipe) -> int:
        """Of the teacher on all patches, the encoder on the visible ones, and the predictor."""
        return costs.encoder_multiply_adds(recipe) + self._trained(recipe)

    def training_multiply_adds(self, recipe: Recipe) -> int:
        """The teacher has no backward pass."""
        return costs.encoder_multiply_adds(recipe) + 3 * self._trained(recipe)

    def _trained(self, recipe: Recipe) -> int:
        d, t, predicted = recipe.model.width, costs.tokens(recipe), predicted_count(recipe)
        w = predictor_width(d)
        blocks = self._depth(recipe) * costs.block_multiply_adds(t, w, PREDICTOR_MLP * w)
        visible = costs.encoder_multiply_adds(recipe, costs.patches(recipe) - predicted)
        return visible + (t - predicted) * d * w + blocks + predicted * w * d

    def visible_tokens(self, recipe: Recipe, tokens: int) -> int:
        return tokens - predicted_count(recipe)

    def head_bytes(self, recipe: Recipe, value: int, fused: bool) -> int:
        d, t, predicted = recipe.model.width, costs.tokens(recipe), predicted_count(recipe)
        w = predictor_width(d)
        block = costs.block_bytes(t, w, PREDICTOR_MLP * w, value, mask=0)
        block += 0 if fused else value * HEADS * t * t
        ends = (t - predicted) * value * d + 8 * t * w + predicted * (value * w + 8 * d)
        return self._depth(recipe) * block + ends

    def question(self, metric: str) -> Question:
        """The teacher is each run's own, so losses of other encoders are other questions."""
        keys = ("model.", "data.name", "data.size", "ijepa.momentum", "optim.")
        return Question(keys, ("ijepa.rate",))

    def sentence(self, recipe: Recipe) -> str:
        own = recipe.group(IjepaOptions)
        return (
            f"Prediction of features (I-JEPA; Assran et al., 2023): the encoder sees"
            f" {1 - own.rate:.0%} of an image's patches, and a predictor, which is not part of the"
            f" export, predicts of each other patch the feature that a running average of the"
            f" encoder gives it."
        )


DECLARATION = IjepaDeclaration()
