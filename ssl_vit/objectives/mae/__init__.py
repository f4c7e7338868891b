"""Masked autoencoder (He et al., 2022), declared. No torch here."""

from dataclasses import dataclass

from ...config.declaration import Group, ObjectiveDeclaration
from ...config.fields import option
from ...config.rules import Rule, fewer_than
from ...config.schema import Recipe
from ...config.split_counts import selected_count
from ..patch_wording import FIGURE, target_sentence


@dataclass
class MaeOptions:
    rate: float = option(0.75, "Share of the patches that are masked.", above=0, below=1)
    width: int = option(512, "Decoder: embedding width.", above=0, maximum=65536)
    depth: int = option(8, "Decoder: number of transformer blocks.", above=0, maximum=1000)
    heads: int = option(16, "Decoder: attention heads.", above=0, maximum=65536)


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
    rules = (
        Rule(
            "mae.rate",
            lambda r: masked_count(r) >= r.patches,
            lambda r: (
                f"leaves none of an image's {r.patches} patches visible; {fewer_than(r.patches)}"
            ),
        ),
        Rule(
            "mae.width",
            lambda r: r.group(MaeOptions).width % r.group(MaeOptions).heads,
            "no multiple of mae.heads={r.groups[mae].heads}",
        ),
        Rule(
            "mae.width",
            lambda r: r.group(MaeOptions).width % 4,
            "expected a multiple of 4: sines and cosines of row and column",
        ),
    )

    def sentence(self, recipe: Recipe) -> str:
        m = recipe.group(MaeOptions)
        return (
            f"Masked autoencoder (He et al., 2022): {m.rate:.0%} of an image's patches are masked;"
            f" the encoder sees the others alone, and a decoder of {m.depth} blocks, {m.width}"
            f" wide, which is not part of the export, predicts of each masked patch"
            f" {target_sentence(recipe)}."
        )


DECLARATION = MaeDeclaration()
