"""Draw figures of what a model has learned."""

from functools import partial
from pathlib import Path

from ..data.batching import Batch
from ..data.pixel_values import shown_note
from ..objectives.base import Objective
from ..objectives.targets.patch_targets import Target
from .base import predictions

SAVED = "predictions"
SHOWN = 8  # number of images in this figure


def save_figures(objective: Objective, batch: Batch, folder: Path) -> None:
    """Write predictions.svg and predictions.png: the first images of a batch with predictions.

    Nothing is written if the objective has no pictures of predictions. If images are not RGB, a
    line above the images names the channels that are shown.

    Args:
        objective: Objective that predicts.
        batch: Batch on the objective's device.
        folder: Folder to write to.
    """
    from . import drawing  # imports matplotlib, which training needs only at its end

    columns = predictions(objective, batch.map(lambda values: values[:SHOWN]))
    if not columns:
        return
    targets = [module for module in objective.modules() if isinstance(module, Target)]
    notes = [shown_note(objective.encoder.channels), *(target.drawn for target in targets)]
    above = "; ".join(filter(None, notes))
    draw = partial(drawing.panels, [drawing.PanelGroup("", columns)], above)
    drawing.write(folder, SAVED, draw)
