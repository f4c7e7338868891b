"""Masked patch prediction (paper, 4.6 and B.1.2), declared. No torch here."""

from ... import costs
from ...config.declaration import ObjectiveDeclaration
from ...config.schema import Recipe
from ...config.shared_groups import CorruptionOptions
from ...config.split_counts import selected_count
from ..patch_wording import FIGURE, target_sentence


class MppDeclaration(ObjectiveDeclaration):
    name = "mpp"
    title = "Masked patch prediction"
    tag = "masked-patch-prediction"
    network = "network:MaskedPatchPrediction"
    figure = FIGURE
    shared = ("corruption", "target")
    pool = "avg"
    class_token_is_trained = False

    def corrupted(self, recipe: Recipe) -> int:
        """Patches of an image that are corrupted."""
        return selected_count(recipe.group(CorruptionOptions).rate, costs.patches(recipe))

    def parameters(self, recipe: Recipe) -> int:
        """Mask token and head."""
        d = recipe.model.width
        return d + (d + 1) * costs.head_outputs(recipe)

    def multiply_adds(self, recipe: Recipe) -> int | None:
        """Of the encoder without what its last block leaves out, and of the head on the corrupted
        patches."""
        outputs = costs.head_outputs(recipe)
        if not outputs:
            return None
        corrupted = self.corrupted(recipe)
        left_out = 0
        if costs.computes_wanted(recipe):
            unwanted = costs.tokens(recipe) - corrupted
            left_out = unwanted * costs.unwanted_multiply_adds(recipe)
        head = corrupted * recipe.model.width * outputs
        return costs.encoder_multiply_adds(recipe) - left_out + head

    def unwanted_tokens(self, recipe: Recipe, tokens: int) -> int:
        return tokens - self.corrupted(recipe)

    def head_bytes(self, recipe: Recipe, value: int, fused: bool) -> int:
        """Features of the corrupted patches, and their outputs in float32."""
        outputs = costs.head_outputs(recipe)
        return self.corrupted(recipe) * (value * recipe.model.width + 4 * outputs)

    def sentence(self, recipe: Recipe) -> str:
        c = recipe.group(CorruptionOptions)
        return (
            f"Masked patch prediction (Dosovitskiy et al., 2021, section 4.6 and B.1.2): "
            f"{c.rate:.0%} of an image's patches are corrupted, {c.mask:.0%} of them by a learned"
            f" mask token, {c.random:.0%} by another patch, {c.keep:.0%} left as they are; of each"
            f" the encoder predicts {target_sentence(recipe)}."
        )


DECLARATION = MppDeclaration()
