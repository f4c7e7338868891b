"""Declare MoCo v3 (Chen, Xie and He, 2021).

This file does not import torch.
"""

from ...recipe.declaration import Group, ObjectiveDeclaration
from ...recipe.keys import Keys, Share, Width, key
from ...recipe.schema import Recipe


class MocoOptions(Keys):
    """MoCo v3: what is compared, and the momentum copy.

    Attributes:
        temperature: What similarities are divided by.
        momentum: Momentum of the encoder's running average in the first step; it rises to 1 along a
            cosine.
        hidden: Width of the hidden layers of projector and predictor.
        width: Width of the vectors that are compared.
        freeze_patches: Do not train the patch projection: it stays as drawn, or as init= has it.
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
            text = f"objective={self.name} needs a Vision Transformer"
            raise recipe.error("model", text, model.name)
        if recipe.group(MocoOptions).freeze_patches and model.hybrid:
            text = f"model={model.name} has a ResNet before its patch projection; expected false"
            raise recipe.error("moco.freeze_patches", text)


DECLARATION = MocoDeclaration()
