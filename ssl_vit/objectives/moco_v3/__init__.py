"""MoCo v3 (Chen, Xie and He, 2021), declared. No torch here."""

from ...recipe.declaration import Group, ObjectiveDeclaration
from ...recipe.keys import Keys, Share, Width, key
from ...recipe.schema import Recipe

VIEWS = 2  # of an image


class MocoOptions(Keys):
    temperature: float = key(0.2, "What similarities are divided by.", gt=0, le=1e3)
    momentum: Share = key(
        0.99,
        "Momentum of the encoder's running average in the first step; it rises to 1 along a"
        " cosine.",
    )
    hidden: Width = key(4096, "Width of the hidden layers of projector and predictor.")
    width: Width = key(256, "Width of the vectors that are compared.")
    freeze_patches: bool = key(
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

    def check(self, recipe: Recipe) -> None:
        model = recipe.model
        if model.convolutional:
            text = f"objective={self.name} needs a Vision Transformer"
            raise recipe.error("model", text, model.name)
        if recipe.group(MocoOptions).freeze_patches and model.hybrid:
            text = f"model={model.name} has a ResNet before its patch projection; expected false"
            raise recipe.error("moco.freeze_patches", text)

    def sentence(self, recipe: Recipe) -> str:
        temperature = recipe.group(MocoOptions).temperature
        return (
            f"MoCo v3 (Chen, Xie and He, 2021): of two random views of an image, each is found"
            f" among the views of all {recipe.optim.batch:,} images of a batch by the other, at a"
            f" temperature of {temperature:g}; the views that are searched come"
            f" from a running average of the encoder, which is not part of the export."
        )


DECLARATION = MocoDeclaration()
