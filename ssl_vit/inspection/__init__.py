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
    """Write predictions.svg and predictions.png, which show images next to what the objective
    predicts.

    A line above says which channels are shown if the images are not RGB.
    """
    from . import drawing  # matplotlib, which training does without until its end

    few = batch.map(lambda x: x[:SHOWN])
    if columns := predictions(objective, few):
        drawn = (module.drawn for module in objective.modules() if isinstance(module, Target))
        note = "; ".join(filter(None, [shown_note(objective.encoder.channels), *drawn]))
        group = drawing.PanelGroup("", columns)
        drawing.write(folder, SAVED, partial(drawing.panels, [group], note))
