"""Declare MoCo v3 (Chen, Xie and He, 2021).

This file does not import torch.
"""

from ...recipe.declaration import Group, ObjectiveDeclaration
from ...recipe.keys import Keys, Share, Width, key
from ...recipe.schema import Recipe


class MocoOptions(Keys):
    """MoCo v3: contrastive loss and momentum encoder.

    Attributes:
        temperature: Temperature of the loss, which divides the similarities.
        momentum: Momentum of the momentum encoder in the first step, which rises to 1 along a
            cosine.
        hidden: Width of the hidden layers of projector and predictor.
        width: Width of the vectors that the loss compares.
        freeze_patches: Do not train the patch projection, so that the initial weights remain.
    """

    temperature: float = key(0.2, gt=0, le=1e3)
    momentum: Share = key(0.99)
    hidden: Width = key(4096)
    width: Width = key(256)
    freeze_patches: bool = key(True)


class MocoDeclaration(ObjectiveDeclaration):
    name = "moco_v3"
    title = "Momentum contrast (MoCo v3)"
    paper = "Chen, Xie and He, 2021, arXiv:2104.02057"
    cite = """@inproceedings{chen2021empirical,
  title     = {An Empirical Study of Training Self-Supervised Vision Transformers},
  author    = {Chen, Xinlei and Xie, Saining and He, Kaiming},
  booktitle = {IEEE/CVF International Conference on Computer Vision},
  year      = {2021}
}"""
    options = Group("moco", MocoOptions)
    shared = ("views",)

    def check(self, recipe: Recipe) -> None:
        model = recipe.model
        if model.convolutional:
            raise recipe.error(
                "model",
                f"objective={self.name} needs a Vision Transformer, such as model=vit_s16.",
                model.name,
            )
        if recipe.group(MocoOptions).freeze_patches and model.hybrid:
            raise recipe.error(
                "moco.freeze_patches",
                f"model={model.name} begins with a ResNet. Use moco.freeze_patches=false.",
            )


DECLARATION = MocoDeclaration()
