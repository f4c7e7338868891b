"""Declare the masked autoencoder (He et al., 2022).

This file does not import torch.
"""

from ...recipe.check import check_decoder
from ...recipe.declaration import Group, ObjectiveDeclaration
from ...recipe.keys import Depth, Keys, Width, key
from ...recipe.schema import Recipe
from ...recipe.split_counts import fewer_than, selected_count
from ..targets import FIGURE


class MaeOptions(Keys):
    """Masked autoencoder: what is masked, and the decoder.

    Attributes:
        rate: Share of the patches that are masked.
        width: Decoder: embedding width.
        depth: Decoder: number of transformer blocks.
        heads: Decoder: attention heads.
    """

    rate: float = key(0.75, gt=0, lt=1)
    width: Width = key(512)
    depth: Depth = key(8)
    heads: Width = key(16)


def masked_count(recipe: Recipe) -> int:
    """Return the number of patches of an image that are masked."""
    return selected_count(recipe.group(MaeOptions).rate, recipe.patches)


class MaeDeclaration(ObjectiveDeclaration):
    name = "mae"
    title = "Masked autoencoding"
    paper = "He et al., 2022, arXiv:2111.06377"
    cite = r"""@inproceedings{he2022masked,
  title     = {Masked Autoencoders Are Scalable Vision Learners},
  author    = {He, Kaiming and Chen, Xinlei and Xie, Saining and Li, Yanghao and Doll{\'a}r, Piotr
               and Girshick, Ross},
  booktitle = {IEEE/CVF Conference on Computer Vision and Pattern Recognition},
  year      = {2022}
}"""
    figure = FIGURE
    options = Group("mae", MaeOptions)
    shared = ("target",)
    pool = "avg"
    any_length = True

    def check(self, recipe: Recipe) -> None:
        patches = recipe.patches
        if masked_count(recipe) >= patches:
            raise recipe.error(
                "mae.rate", f"all {patches} patches of an image are masked. {fewer_than(patches)}."
            )
        check_decoder(recipe, "mae")


DECLARATION = MaeDeclaration()
