"""Masked autoencoder (He et al., 2022), declared. No torch here."""

from dataclasses import dataclass

from ... import costs
from ...config.declaration import Group, ObjectiveDeclaration
from ...config.fields import option
from ...config.rules import Rule, fewer_than
from ...config.schema import Recipe
from ...config.split_counts import selected_count
from ..patch_wording import FIGURE, target_sentence

DECODER_MLP = 4  # the MLP of the decoder over its width


@dataclass
class MaeOptions:
    rate: float = option(0.75, "Share of the patches that are masked.", above=0, below=1)
    width: int = option(512, "Decoder: embedding width.", above=0, maximum=65536)
    depth: int = option(8, "Decoder: number of transformer blocks.", above=0, maximum=1000)
    heads: int = option(16, "Decoder: attention heads.", above=0, maximum=65536)


def masked_count(recipe: Recipe) -> int:
    """Patches of an image that are masked."""
    return selected_count(recipe.group(MaeOptions).rate, costs.patches(recipe))


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
            lambda r: masked_count(r) >= costs.patches(r),
            lambda r: (
                f"leaves none of an image's {costs.patches(r)} patches visible;"
                f" {fewer_than(costs.patches(r))}"
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

    def parameters(self, recipe: Recipe) -> int:
        """Decoder and head."""
        mae = recipe.group(MaeOptions)
        enter = (recipe.model.width + 1) * mae.width
        mask_token, norm = mae.width, 2 * mae.width
        head = (mae.width + 1) * costs.head_outputs(recipe)
        blocks = mae.depth * costs.plain_block_parameters(mae.width, DECODER_MLP * mae.width)
        return enter + mask_token + blocks + norm + head

    def multiply_adds(self, recipe: Recipe) -> int | None:
        """Of the encoder on the visible patches, the decoder on all, and its head on the masked
        ones."""
        outputs = costs.head_outputs(recipe)
        if not outputs:
            return None
        mae = recipe.group(MaeOptions)
        masked = masked_count(recipe)
        t = costs.tokens(recipe)
        enter = (t - masked) * recipe.model.width * mae.width
        blocks = mae.depth * costs.block_multiply_adds(t, mae.width, DECODER_MLP * mae.width)
        head = masked * mae.width * outputs
        visible = costs.patches(recipe) - masked
        return costs.encoder_multiply_adds(recipe, visible) + enter + blocks + head

    def visible_tokens(self, recipe: Recipe, tokens: int) -> int:
        return tokens - masked_count(recipe)

    def head_bytes(self, recipe: Recipe, value: int, fused: bool) -> int:
        mae = recipe.group(MaeOptions)
        masked = masked_count(recipe)
        t = costs.tokens(recipe)
        block = costs.block_bytes(t, mae.width, DECODER_MLP * mae.width, value, mask=0)
        block += 0 if fused else value * mae.heads * t * t
        enter = (t - masked) * value * recipe.model.width
        outputs = costs.head_outputs(recipe)
        ends = 8 * t * mae.width + masked * (value * mae.width + 4 * outputs)
        return enter + mae.depth * block + ends

    def sentence(self, recipe: Recipe) -> str:
        m = recipe.group(MaeOptions)
        return (
            f"Masked autoencoder (He et al., 2022): {m.rate:.0%} of an image's patches are masked;"
            f" the encoder sees the others alone, and a decoder of {m.depth} blocks, {m.width}"
            f" wide, which is not part of the export, predicts of each masked patch"
            f" {target_sentence(recipe)}."
        )


DECLARATION = MaeDeclaration()
