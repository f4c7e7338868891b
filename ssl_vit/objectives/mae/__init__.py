"""Masked autoencoder (He et al., 2022), declared. No torch here."""

from ...recipe.declaration import Group, ObjectiveDeclaration
from ...recipe.keys import Depth, Keys, Width, key
from ...recipe.schema import Recipe
from ...recipe.split_counts import fewer_than, selected_count
from ..patch_wording import FIGURE, target_sentence


class MaeOptions(Keys):
    rate: float = key(0.75, "Share of the patches that are masked.", gt=0, lt=1)
    width: Width = key(512, "Decoder: embedding width.")
    depth: Depth = key(8, "Decoder: number of transformer blocks.")
    heads: Width = key(16, "Decoder: attention heads.")


def masked_count(recipe: Recipe) -> int:
    """Patches of an image that are masked."""
    return selected_count(recipe.group(MaeOptions).rate, recipe.patches)


class MaeDeclaration(ObjectiveDeclaration):
    name = "mae"
    title = "Masked autoencoding"
    tag = "masked-autoencoder"
    network = "network:MaskedAutoencoder"
    figure = FIGURE
    options = Group("mae", MaeOptions, "Masked autoencoder: what is masked, and the decoder.")
    shared = ("target",)
    pool = "avg"

    def check(self, recipe: Recipe) -> None:
        own, patches = recipe.group(MaeOptions), recipe.patches
        if masked_count(recipe) >= patches:
            text = f"leaves none of an image's {patches} patches visible; {fewer_than(patches)}"
            raise recipe.error("mae.rate", text)
        if own.width % own.heads:
            raise recipe.error("mae.width", f"no multiple of mae.heads={own.heads}")
        if own.width % 4:
            text = "expected a multiple of 4: sines and cosines of row and column"
            raise recipe.error("mae.width", text)

    def sentence(self, recipe: Recipe) -> str:
        m = recipe.group(MaeOptions)
        return (
            f"Masked autoencoder (He et al., 2022): {m.rate:.0%} of an image's patches are masked;"
            f" the encoder sees the others alone, and a decoder of {m.depth} blocks, {m.width}"
            f" wide, which is not part of the export, predicts of each masked patch"
            f" {target_sentence(recipe)}."
        )


DECLARATION = MaeDeclaration()
