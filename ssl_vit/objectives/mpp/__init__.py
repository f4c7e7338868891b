"""Masked patch prediction (paper, 4.6 and B.1.2), declared. No torch here."""

from ...recipe.declaration import ObjectiveDeclaration
from ...recipe.schema import Recipe
from ...recipe.shared_groups import CorruptionOptions
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

    def sentence(self, recipe: Recipe) -> str:
        c = recipe.group(CorruptionOptions)
        return (
            f"Masked patch prediction (Dosovitskiy et al., 2021, section 4.6 and B.1.2): "
            f"{c.rate:.0%} of an image's patches are corrupted, {c.mask:.0%} of them by a learned"
            f" mask token, {c.random:.0%} by another patch, {c.keep:.0%} left as they are; of each"
            f" the encoder predicts {target_sentence(recipe)}."
        )


DECLARATION = MppDeclaration()
