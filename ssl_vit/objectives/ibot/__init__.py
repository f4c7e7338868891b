"""Declare self-distillation of views and of masked patches (iBOT: Zhou et al., 2022).

This file does not import torch.
"""

from typing import Annotated

from pydantic import Field

from ...measurements import LOSS, Metric
from ...recipe.declaration import Group
from ...recipe.keys import Fraction, Share, key
from ...recipe.schema import Recipe
from ..dino import DinoDeclaration, DinoOptions


class IbotOptions(DinoOptions):
    """iBOT: the options of DINO, masking and the loss of patches.

    Attributes:
        prototypes: Number of prototypes that teacher and student choose from.
        patch_temperature: Temperature of the teacher for patches, in the first step and after the
            warm-up.
        centre_momentum: Momentum of the running mean for balance=centre. 1: nothing is subtracted.
        rate: Smallest and largest share of the patches of a view that are masked, in rectangles.
        whole: Probability that no patch of a view is masked.
        shared: Use the same prototypes for patches and images. false: patches have separate
            prototypes.
        own_head: Give patches a separate head with all layers, as in DINOv2.
        weight: Weight of the loss of patches.
    """

    prototypes: int = key(8192, gt=1, le=2**20)
    patch_temperature: list[Annotated[float, Field(gt=0, le=1e3)]] = key(
        [0.04, 0.07], min_length=2, max_length=2
    )
    centre_momentum: Share = key(0.9, requires=("ibot.balance", "centre"))
    rate: list[Annotated[float, Field(gt=0, lt=1)]] = key([0.1, 0.5], min_length=2, max_length=2)
    whole: Fraction = key(0.5)
    shared: bool = key(True)
    own_head: bool = key(False, requires=("ibot.shared", False))
    weight: float = key(1.0, gt=0, le=1e6)


class IbotDeclaration(DinoDeclaration):
    name = "ibot"
    title = "Self-distillation with masked patches (iBOT)"
    paper = "Zhou et al., 2022, arXiv:2111.07832"
    cite = """@inproceedings{zhou2022ibot,
  title     = {{iBOT}: Image {BERT} Pre-Training with Online Tokenizer},
  author    = {Zhou, Jinghao and Wei, Chen and Wang, Huiyu and Shen, Wei and Xie, Cihang and
               Yuille, Alan and Kong, Tao},
  booktitle = {International Conference on Learning Representations},
  year      = {2022}
}"""
    no_measure = (*DinoDeclaration.no_measure, "view_loss", "patch_loss")
    options = Group("ibot", IbotOptions)
    metrics = (
        Metric("view_loss", higher=False, unit=LOSS),
        Metric("patch_loss", higher=False, unit=LOSS),
    )

    def check(self, recipe: Recipe) -> None:
        super().check(recipe)
        smallest, largest = recipe.group(IbotOptions).rate
        if smallest > largest:
            raise recipe.error(
                "ibot.rate",
                "the first share is larger than the second. Write the smaller share first.",
            )


DECLARATION = IbotDeclaration()
