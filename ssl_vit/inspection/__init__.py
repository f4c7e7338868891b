"""Draw figures of what a model has learned."""

from functools import partial
from pathlib import Path

from ..data.batching import Batch
from ..data.pixel_values import shown_note
from ..extras import require
from ..objectives.base import Objective
from ..objectives.targets.patch_targets import Target
from .base import predictions

SAVED = "predictions"
SHOWN = 8  # largest number of images in the figure of predictions


def save_figures(objective: Objective, batch: Batch, folder: Path) -> None:
    """Draw the first images of a batch with the objective's predictions.

    Writes predictions.svg and predictions.png with at most SHOWN images, or nothing if the
    objective has no pictures of predictions. A line above the images has up to two notes: which
    channels are shown, if images are not RGB, and how the targets are drawn, if this is not
    obvious.

    Args:
        objective: Objective that predicts.
        batch: Batch on the objective's device.
        folder: Folder to write to.

    Raises:
        UserError: matplotlib is not installed.
    """
    first_images = batch.map(lambda values: values[:SHOWN])
    columns = predictions(objective, first_images)
    if not columns:
        return
    require("matplotlib", "predictions")
    from . import drawing  # imports matplotlib, which training needs only at its end

    targets = [module for module in objective.modules() if isinstance(module, Target)]
    notes = [shown_note(objective.encoder.channels), *(target.drawn for target in targets)]
    above = "; ".join(filter(None, notes))
    draw = partial(drawing.panels, [drawing.PanelGroup("", columns)], above)
    drawing.write(folder, SAVED, draw)
