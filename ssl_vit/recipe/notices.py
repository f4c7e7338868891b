"""Write the lines that tell the user what a recipe takes from where. This module does not import
torch.
"""

from contextlib import suppress

from ..errors import UserError
from ..formatting import crop_text
from .images import CROPPING
from .load import ADJUSTED, DEFAULT, FILE, PRESET, Resolved
from .which_images import images_taken


def image_notice(resolved: Resolved) -> str | None:
    """Return `images_taken` for a recipe, or None if the user or the recipe file names the
    images.
    """
    if resolved.names_images:
        return None
    return images_taken(resolved.recipe.init_source, resolved.recipe.data)


def crop_notice(resolved: Resolved) -> str | None:
    """Return a warning about how a frozen encoder's images are cropped, or None if no warning is
    needed.

    The warning is needed if the encoder does not say how its images were cropped, and neither the
    options nor the recipe file say it. Then the default, or the data set's row in datasets.yaml,
    decides.
    """
    # The origin of a key says what has set it: the default, a preset (here, the row of the data
    # set), the recipe file, the initial weights, or the user
    recipe = resolved.recipe
    source = recipe.init_source
    origins = {resolved.origins[key] for key in CROPPING}
    is_known = not origins <= {DEFAULT, PRESET}
    if recipe.objective != "probe" or source.is_scratch or is_known:
        return None
    cut = crop_text(recipe.data.eval_mode, recipe.data.eval_crop)
    return (
        f"warning: init={source.place}: how the images of this encoder were cropped is unknown, so"
        f" the default is used ({cut}). To change this, use data.eval_crop=."
    )


def size_notice(resolved: Resolved) -> str | None:
    """Return a line that says that the initial weights were made for another image size.

    Return None if the sizes agree, or if the user gave the size.
    """
    recipe = resolved.recipe
    source = recipe.init_source
    if source.is_scratch or "data.size" in resolved.given.values:
        return None
    size = None
    # the weights may be gone, or made by another program
    with suppress(UserError, OSError, ValueError):
        size = source.image_size()
    if size in (None, recipe.data.size):
        return None
    return (
        f"size        the weights were trained at {size} px and are adapted to"
        f" {recipe.data.size} px. For {size} px, use data.size={size}."
    )


def warmup_notice(resolved: Resolved) -> str | None:
    """Return a line about the warm-up of a shortened recipe, or None if there is nothing to say.

    The line says that the warm-up was shortened along with the steps, or that it was kept and now
    takes more than a tenth of the steps. A warm-up that the user gave needs no line.
    """
    # the origin says what has set the warm-up; the user's own values have none of the four below
    recipe, origin = resolved.recipe, resolved.origins["optim.warmup"]
    if not recipe.trains or origin not in (ADJUSTED, FILE, PRESET, DEFAULT):
        return None
    steps, warmup = recipe.optim.steps, recipe.optim.warmup
    if origin == ADJUSTED:
        before = resolved.file_values.get("optim.warmup", 0)
        return (
            f"warm-up     {warmup:,} steps, a tenth of this run. In the recipe, which is for a"
            f" longer run, the warm-up takes {before:,} steps."
        )
    file_steps = resolved.file_values.get("optim.steps", 0)
    if 10 * warmup <= steps or steps >= file_steps:
        return None
    return (
        f"warm-up     {warmup:,} of {steps:,} steps, as in the recipe for {file_steps:,} steps."
        f" For a tenth of this run, use optim.warmup={steps // 10}."
    )
