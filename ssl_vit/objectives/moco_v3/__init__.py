"""MoCo v3 (Chen, Xie and He, 2021), declared. No torch here."""

from dataclasses import dataclass

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

    def sentence(self, recipe: Recipe) -> str:
        temperature = recipe.group(MocoOptions).temperature
        return (
            f"MoCo v3 (Chen, Xie and He, 2021): of two random views of an image, each is found"
            f" among the views of all {recipe.optim.batch:,} images of a batch by the other, at a"
            f" temperature of {temperature:g}; the views that are searched come"
            f" from a running average of the encoder, which is not part of the export."
        )


DECLARATION = MocoDeclaration()
