"""Prediction of a teacher's features (I-JEPA: Assran et al., 2023), declared. No torch here."""

from dataclasses import dataclass

from ...config.declaration import Group, ObjectiveDeclaration
from ...config.fields import option
from ...config.rules import Rule
from ...config.schema import Recipe
from ...config.split_counts import selected_count
from ...metrics import Metric
from .sizes import block_sizes, trimmed_count


@dataclass
class IjepaOptions:
    blocks: int = option(
        4, "Target blocks of an image, whose features are predicted.", above=0, maximum=64
    )
    area: list[float] = option(
        [0.15, 0.2],
        "Smallest and largest share of an image's patches in a target block.",
        length=2,
        above=0,
        maximum=1,
    )
    aspect: list[float] = option(
        [0.75, 1.5],
        "Smallest and largest height of a target block over its width.",
        length=2,
        above=0,
        maximum=1e3,
    )
    context: list[float] = option(
        [0.85, 1.0],
        "Smallest and largest share of an image's patches in the context block, a square.",
        length=2,
        above=0,
        maximum=1,
    )
    visible: float = option(
        0.25,
        "Share of an image's patches that the encoder sees, of the context block without the"
        " targets.",
        above=0,
        below=1,
    )
    width: int = option(384, "Predictor: embedding width.", above=0, maximum=65536)
    depth: int = option(6, "Predictor: number of transformer blocks.", above=0, maximum=1000)
    heads: int = option(12, "Predictor: attention heads.", above=0, maximum=65536)
    momentum: float = option(
        0.996,
        "Momentum of the teacher, a running average of the encoder, in the first step; it rises to"
        " 1 linearly.",
        minimum=0,
        maximum=1,
    )


def target_count(recipe: Recipe) -> int:
    """Patches of a target block."""
    own, side = recipe.group(IjepaOptions), recipe.data.size // recipe.model.patch
    return trimmed_count(block_sizes(side, own.area, own.aspect))


def visible_count(recipe: Recipe) -> int:
    """Patches of an image that the encoder sees."""
    return selected_count(recipe.group(IjepaOptions).visible, recipe.patches)


def _left(recipe: Recipe) -> int:
    """Patches of an image that no target block is sure to take."""
    return recipe.patches - recipe.group(IjepaOptions).blocks * target_count(recipe)


def _no_context(recipe: Recipe) -> str:
    blocks, count = recipe.group(IjepaOptions).blocks, target_count(recipe)
    return (
        f"{blocks} target blocks of {count} patches may leave {max(0, _left(recipe))} of an image's"
        f" {recipe.patches} for the context, and ijepa.visible takes"
        f" {visible_count(recipe)}; expected fewer blocks, a smaller ijepa.area or ijepa.visible"
    )


def _backwards(name: str) -> Rule:
    def broken(recipe: Recipe) -> bool:
        low, high = getattr(recipe.group(IjepaOptions), name)
        return low > high

    return Rule(f"ijepa.{name}", broken, "expected the smaller one first")


class IjepaDeclaration(ObjectiveDeclaration):
    name = "ijepa"
    title = "Prediction of a teacher's features (I-JEPA)"
    tag = "i-jepa"
    network = "network:FeaturePrediction"
    figure = (
        "held-out images, the patches that the encoder saw, and how near the predicted features of"
        " the target blocks are to the teacher's: white the same direction, black the opposite one"
    )
    options = Group("ijepa", IjepaOptions, "I-JEPA: what is predicted, predictor and teacher.")
    pool = "avg"
    class_token_is_trained = False
    # One feature for all patches of all images is predicted best
    no_measure = ("loss",)
    rules = (
        Rule(
            "model",
            lambda r: r.model.convolutional or r.model.hybrid,
            "objective=ijepa needs patches of pixels; model={r.model.name} has none",
            "{r.model.name}",
        ),
        *map(_backwards, ("area", "aspect", "context")),
        Rule("ijepa.blocks", lambda r: _left(r) < visible_count(r), _no_context),
        Rule(
            "ijepa.width",
            lambda r: r.group(IjepaOptions).width % r.group(IjepaOptions).heads,
            "no multiple of ijepa.heads={r.groups[ijepa].heads}",
        ),
        Rule(
            "ijepa.width",
            lambda r: r.group(IjepaOptions).width % 4,
            "expected a multiple of 4: sines and cosines of row and column",
        ),
    )
    metrics = (
        # how far an image's patches' features lie apart: near 0 the teacher has collapsed
        Metric("feature_spread", label="feature spread (near 0: collapsed)"),
    )

    def sentence(self, recipe: Recipe) -> str:
        own = recipe.group(IjepaOptions)
        return (
            f"Prediction of features (I-JEPA; Assran et al., 2023): the encoder sees"
            f" {own.visible:.0%} of an image's patches, and a predictor of {own.depth} blocks,"
            f" {own.width} wide, which is not part of the export, predicts of the patches in"
            f" {own.blocks} other blocks the features that a teacher, a running average of the"
            f" encoder, gives them. The export is the teacher."
        )


DECLARATION = IjepaDeclaration()
