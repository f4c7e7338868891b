"""Masked autoencoder (He et al., 2022), declared. No torch here."""

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
    """Patches of an image that are masked."""
    return selected_count(recipe.group(MaeOptions).rate, recipe.patches)


class MaeDeclaration(ObjectiveDeclaration):
    name = "mae"
    title = "Masked autoencoding"
    paper = "He et al., 2022, arXiv:2111.06377"
    figure = FIGURE
    options = Group("mae", MaeOptions)
    shared = ("target",)
    pool = "avg"
    any_length = True

    def check(self, recipe: Recipe) -> None:
        patches = recipe.patches
        if masked_count(recipe) >= patches:
            text = f"leaves none of an image's {patches} patches visible; {fewer_than(patches)}"
            raise recipe.error("mae.rate", text)
        check_decoder(recipe, "mae")


DECLARATION = MaeDeclaration()
