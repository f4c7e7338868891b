"""Declare the distillation of a frozen teacher's features.

This file does not import torch.
"""

from typing import Any, Literal

from ...formatting import option_text
from ...measurements import LOSS, Baseline, Metric
from ...recipe.check import check_patches
from ...recipe.declaration import Group, ObjectiveDeclaration
from ...recipe.keys import Keys, key
from ...recipe.names import PathText
from ...recipe.schema import Recipe, build


class DistillOptions(Keys):
    """Distillation: teacher and loss.

    Attributes:
        teacher: Weights of the teacher, written like init=. The teacher may have any size and any
            patch size.
        network: Description of the teacher's network, set by distill.teacher.
        loss: Distance from the teacher's features: cosine (1 - cosine similarity) or smooth_l1 (on
            features normalised over channels).
        patches: Weight of the distance of patch features. The distance of the image feature has
            weight 1. null: 1 if teacher and student have the same grid of patches, else 0.
        size: Side in pixels to which images are resized for the teacher. null: data.size.
    """

    teacher: PathText | None = key(None, names_weights=True)
    network: dict[str, Any] | None = key(None)
    loss: Literal["cosine", "smooth_l1"] = key("cosine")
    patches: float | None = key(None, ge=0, le=1e6)
    size: int | None = key(None, gt=0, le=2**14)


def teacher_of(options: DistillOptions, size: int) -> Recipe:
    """Return a recipe that describes the teacher's network and the size of the teacher's images.

    Args:
        options: The options of the distillation. `options.network` describes the teacher, for
            example {"model.width": 384, "pool": "token"}.
        size: Side of the student's images in pixels, used if distill.size is not set.
    """
    described = options.network or {}
    # Keys without a dot, such as "pool" and "eps", are no options of a recipe
    recipe_values = {key: value for key, value in described.items() if "." in key}
    return build(recipe_values | {"data.size": options.size or size})


class DistillDeclaration(ObjectiveDeclaration):
    name = "distill"
    title = "Distillation of a frozen teacher"
    paper = "Ranzinger et al., 2024, arXiv:2312.06709"
    cite = """@inproceedings{ranzinger2024amradio,
  title     = {{AM-RADIO}: Agglomerative Vision Foundation Model Reduce All Domains
               Into One},
  author    = {Ranzinger, Mike and Heinrich, Greg and Kautz, Jan and Molchanov, Pavlo},
  booktitle = {IEEE/CVF Conference on Computer Vision and Pattern Recognition},
  year      = {2024}
}"""
    options = Group("distill", DistillOptions)
    any_length = True
    metrics = (
        Metric("token_loss", higher=False, unit=LOSS),
        Metric("patch_loss", higher=False, unit=LOSS),
        Baseline("mean_loss", "the mean feature", ("loss",)),
        Baseline("mean_token_loss", "the mean feature", ("token_loss",)),
        Baseline("mean_patch_loss", "the mean patch", ("patch_loss",)),
    )

    def check(self, recipe: Recipe) -> None:
        options = recipe.group(DistillOptions)
        check_patches(recipe)
        if options.network is None:  # in a study, the teacher may not have been trained yet
            return
        teacher = teacher_of(options, recipe.data.size)
        if teacher.model.convolutional:
            raise recipe.error(
                "distill.teacher",
                f"{teacher.model.timm} has no patches. Name a Vision Transformer.",
            )
        for name in ("channels", "pixel_range"):
            student_value = getattr(recipe.data, name)
            teacher_value = getattr(teacher.data, name)
            if student_value != teacher_value:
                key = f"data.{name.removeprefix('pixel_')}"
                teacher_option = f"{key}={option_text(teacher_value)}"
                raise recipe.error(
                    "distill.teacher",
                    f"the teacher was trained with {teacher_option}, and this run has "
                    f"{key}={option_text(student_value)}. Use {teacher_option} or another teacher.",
                )
        side, patch = teacher.data.size, teacher.model.patch
        if side % patch or side < 2 * patch:
            if options.size:
                raise recipe.error(
                    "distill.size",
                    f"the teacher has patches of {patch} px. Use a multiple of {patch}, at least "
                    f"{2 * patch}.",
                )
            raise recipe.error(
                "data.size",
                f"the teacher has patches of {patch} px. Use a multiple of {patch}, at least "
                f"{2 * patch}. Or set distill.size=, which resizes images for the teacher only.",
            )
        if options.patches and not same_grid(recipe, teacher):
            grid = recipe.data.size // recipe.model.patch
            teacher_grid = side // patch
            raise recipe.error(
                "distill.patches",
                f"the student has {grid} x {grid} patches and the teacher {teacher_grid} x "
                f"{teacher_grid}. Use distill.patches=0, or distill.size={grid * patch}.",
            )


def same_grid(student: Recipe, teacher: Recipe) -> bool:
    """Return whether student and teacher cut an image into the same number of patches."""
    student_grid = student.data.size // student.model.patch
    return student_grid == teacher.data.size // teacher.model.patch


DECLARATION = DistillDeclaration()
