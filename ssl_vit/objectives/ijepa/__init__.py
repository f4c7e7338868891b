"""Declare the prediction of a teacher's features (I-JEPA: Assran et al., 2023).

This file does not import torch.
"""

from typing import Annotated

from pydantic import Field

from ...measurements import Metric
from ...recipe.check import check_decoder, check_patches
from ...recipe.declaration import Group, ObjectiveDeclaration
from ...recipe.keys import Depth, Keys, Part, Share, Width, key
from ...recipe.schema import Recipe
from ...recipe.split_counts import selected_count
from .sizes import block_sizes, trimmed_count


class IjepaOptions(Keys):
    """I-JEPA: masks, predictor and teacher.

    Attributes:
        blocks: Number of target blocks in an image. The features of these blocks are predicted.
        area: Smallest and largest share of the image's patches in a target block.
        aspect: Smallest and largest ratio of height to width of a target block.
        context: Smallest and largest share of the image's patches in the square context block.
        visible: Share of the image's patches that the encoder sees. The patches are in the context
            block and in no target block.
        width: Predictor: embedding width.
        depth: Predictor: number of transformer blocks.
        heads: Predictor: attention heads.
        momentum: Momentum of the teacher in the first step, which rises to 1 linearly. The teacher
            is a running average of the encoder.
    """

    blocks: int = key(4, gt=0, le=64)
    area: list[Part] = key([0.15, 0.2], min_length=2, max_length=2)
    aspect: list[Annotated[float, Field(gt=0, le=1e3)]] = key(
        [0.75, 1.5], min_length=2, max_length=2
    )
    context: list[Part] = key([0.85, 1.0], min_length=2, max_length=2)
    visible: float = key(0.25, gt=0, lt=1)
    width: Width = key(384)
    depth: Depth = key(6)
    heads: Width = key(12)
    momentum: Share = key(0.996)


def target_count(recipe: Recipe) -> int:
    """Return the number of patches of each target block that are predicted."""
    options = recipe.group(IjepaOptions)
    side = recipe.data.size // recipe.model.patch
    return trimmed_count(block_sizes(side, options.area, options.aspect))


def visible_count(recipe: Recipe) -> int:
    """Return the number of patches of an image that the encoder sees."""
    return selected_count(recipe.group(IjepaOptions).visible, recipe.patches)


class IjepaDeclaration(ObjectiveDeclaration):
    name = "ijepa"
    title = "Prediction of a teacher's features (I-JEPA)"
    paper = "Assran et al., 2023, arXiv:2301.08243"
    cite = """@inproceedings{assran2023self,
  title     = {Self-Supervised Learning from Images with a Joint-Embedding
               Predictive Architecture},
  author    = {Assran, Mahmoud and Duval, Quentin and Misra, Ishan and Bojanowski, Piotr and
               Vincent, Pascal and Rabbat, Michael and LeCun, Yann and Ballas, Nicolas},
  booktitle = {IEEE/CVF Conference on Computer Vision and Pattern Recognition},
  year      = {2023}
}"""
    figure = (
        "held-out images, the patches that the encoder saw, and the cosine similarity of predicted"
        " and true features in the target blocks, from -1 (black) to 1 (white)"
    )
    options = Group("ijepa", IjepaOptions)
    pool = "avg"  # the class token gets no loss
    # A collapsed encoder, with one feature for all patches of all images, has the lowest loss
    no_measure = ("loss",)
    metrics = (
        # The spread of features over the patches of an image: near 0, the teacher has collapsed
        Metric("feature_spread", "feature spread (near 0: collapsed)"),
    )

    def check(self, recipe: Recipe) -> None:
        check_patches(recipe)
        options = recipe.group(IjepaOptions)
        for name in ("area", "aspect", "context"):
            smallest, largest = getattr(options, name)
            if smallest > largest:
                raise recipe.error(
                    f"ijepa.{name}",
                    "the first value is larger than the second. Write the smaller value first.",
                )
        # Patches that remain for the context even if no two target blocks overlap
        remaining = recipe.patches - options.blocks * target_count(recipe)
        if remaining < visible_count(recipe):
            raise recipe.error(
                "ijepa.blocks",
                f"{options.blocks} target blocks of {target_count(recipe)} patches may leave only "
                f"{max(0, remaining)} of {recipe.patches} patches for the encoder, which needs at "
                f"least {visible_count(recipe)} (ijepa.visible). Use fewer blocks, or a smaller "
                "ijepa.area or ijepa.visible.",
            )
        check_decoder(recipe, "ijepa")


DECLARATION = IjepaDeclaration()
