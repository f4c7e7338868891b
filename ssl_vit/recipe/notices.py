"""Write notices about values that the user did not give, such as images that come from the initial
weights. This module does not import torch.
"""

from contextlib import suppress

from ..errors import UserError
from ..formatting import crop_text, format_count
from .images import CROPPING
from .load import ADJUSTED, DEFAULT, FILE, PRESET, Resolved
from .which_images import images_taken


def image_notice(resolved: Resolved) -> str | None:
    """Return a notice that says which images are used.

    Return None if the user or the recipe file chose the images, or if the weights are untrained.
    """
    if resolved.names_images:
        return None
    return images_taken(resolved.recipe.init_source, resolved.recipe.data)


def crop_notice(resolved: Resolved) -> str | None:
    """Return a warning if it is unknown how the images of a frozen encoder were cropped.

    The cropping (`data.eval_mode`, `data.eval_crop`) can come from the encoder's export, the user
    or the recipe file. If none of them gives it, the evaluation uses the data set's row in
    datasets.yaml or the default, and this function returns the warning. Otherwise return None.
    """
    recipe = resolved.recipe
    source = recipe.init_source
    # An origin says where a value comes from: DEFAULT, PRESET (here, the row of the data set), the
    # recipe file, the initial weights or the user. If both values are DEFAULT or PRESET, the
    # cropping is unknown.
    origins = {resolved.origins[key] for key in CROPPING}
    is_known = not origins <= {DEFAULT, PRESET}
    if recipe.objective != "probe" or source.is_scratch or is_known:
        return None
    crop = crop_text(recipe.data.eval_mode, recipe.data.eval_crop)
    return (
        f"warning: init={source.place}: how the images of this encoder were cropped is unknown, so"
        f" the default is used ({crop}). To change this, use data.eval_crop=."
    )


def size_notice(resolved: Resolved) -> str | None:
    """Return a notice if the initial weights were trained at another image size than `data.size`.

    Return None if the sizes are equal, if the size for the weights is unknown, if the user gave
    `data.size`, or if the weights are untrained.
    """
    recipe = resolved.recipe
    source = recipe.init_source
    if source.is_scratch or "data.size" in resolved.given.values:
        return None
    size = None
    # After an error, the size is unknown: the files may have been deleted, or may be unreadable
    with suppress(UserError, OSError, ValueError):
        size = source.image_size()
    if size in (None, recipe.data.size):
        return None
    return (
        f"size        the weights were trained at {size} px and are adapted to"
        f" {recipe.data.size} px. For {size} px, use data.size={size}."
    )


def warmup_notice(resolved: Resolved) -> str | None:
    """Return a notice about the warm-up if a run has fewer steps than its recipe, otherwise None.

    - The recipe's warm-up was as long as the run or longer, and `resolve` shortened it: the notice
      says so.
    - The warm-up is as in the recipe, and takes more than a tenth of the run: the notice suggests
      a tenth.
    - The user gave the warm-up: None.
    """
    # The origin says where the value comes from. If the user gave the value, the origin is none of
    # these four.
    recipe, origin = resolved.recipe, resolved.origins["optim.warmup"]
    if not recipe.trains or origin not in (ADJUSTED, FILE, PRESET, DEFAULT):
        return None
    steps, warmup = recipe.optim.steps, recipe.optim.warmup
    if origin == ADJUSTED:
        before = resolved.file_values.get("optim.warmup", 0)
        return (
            f"warm-up     {format_count(warmup, 'steps')}, a tenth of this run. In the recipe,"
            f" which is for a longer run, the warm-up takes {format_count(before, 'steps')}."
        )
    file_steps = resolved.file_values.get("optim.steps", 0)
    if 10 * warmup <= steps or steps >= file_steps:
        return None
    return (
        f"warm-up     {warmup:,} of {format_count(steps, 'steps')}, as in the recipe for"
        f" {file_steps:,} steps. For a tenth of this run, use optim.warmup={steps // 10}."
    )
