"""Declare the distillation of a frozen teacher's features.

This file does not import torch.
"""

from typing import Any, Literal

from ...formatting import option_text
from ...metrics import LOSS, Baseline, Metric
from ...recipe.check import check_patches
from ...recipe.declaration import Group, ObjectiveDeclaration
from ...recipe.keys import Keys, key
from ...recipe.names import PathText
from ...recipe.schema import Recipe, build


class DistillOptions(Keys):
    """Distillation: the teacher, and the loss.

    Attributes:
        teacher: The teacher, as init= names weights; of any size and patch.
        network: What the teacher is; distill.teacher sets it.
        loss: Distance from the teacher's features: cosine (1 - cosine similarity) or smooth_l1 (of
            features normalised over their channels).
        patches: Weight of the patches' distance, beside 1 of the image's; null: 1 where the
            teacher's grid of patches is the student's, else 0.
        size: Side in pixels at which the teacher sees an image, resized; null: data.size.
    """

    teacher: PathText | None = key(None, names_weights=True)
    network: dict[str, Any] | None = key(None)
    loss: Literal["cosine", "smooth_l1"] = key("cosine")
    patches: float | None = key(None, ge=0, le=1e6)
    size: int | None = key(None, gt=0, le=2**14)


def teacher_of(options: DistillOptions, size: int) -> Recipe:
    """Return the teacher's recipe for a student at `size` px.

    The recipe holds `model`, and `data` with the size at which the teacher sees images.
    """
    network = {name: one for name, one in (options.network or {}).items() if "." in name}
    return build(network | {"data.size": options.size or size})


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
        own = recipe.group(DistillOptions)
        check_patches(recipe)
        if own.network is None:  # in a study, the teacher may not have been trained yet
            return
        teacher = teacher_of(own, recipe.data.size)
        if teacher.model.convolutional:
            text = f"expected a Vision Transformer; {teacher.model.timm} has no patches"
            raise recipe.error("distill.teacher", text)
        for name in ("channels", "pixel_range"):
            here, there = (getattr(one.data, name) for one in (recipe, teacher))
            if here != there:
                shown = name.replace("pixel_", "")
                text = f"was trained on images of data.{shown}={option_text(there)}; here"
                raise recipe.error("distill.teacher", f"{text} {option_text(here)}")
        side, patch = teacher.data.size, teacher.model.patch
        if side % patch or side < 2 * patch:
            text = f"no multiple of the teacher's patch, {patch}, from {2 * patch}"
            more = "" if own.size else "; distill.size= is for the teacher alone"
            raise recipe.error("distill.size" if own.size else "data.size", text + more)
        if own.patches and not same_grid(recipe, teacher):
            grids = [one.data.size // one.model.patch for one in (recipe, teacher)]
            text = "the student has {0} x {0} patches and the teacher {1} x {1}; expected 0"
            raise recipe.error("distill.patches", text.format(*grids))


def same_grid(student: Recipe, teacher: Recipe) -> bool:
    """Return whether student and teacher cut an image into the same number of patches."""
    grids = {one.data.size // one.model.patch for one in (student, teacher)}
    return len(grids) == 1


DECLARATION = DistillDeclaration()
