"""Figures of what a model has learned."""

from functools import partial
from pathlib import Path

from ..data.batching import Batch
from ..data.pixel_values import shown_note
from ..objectives.base import Objective
from ..objectives.targets.patch_targets import Target
from .base import predictions

SAVED = "predictions"
SHOWN = 8  # images of it


def save_figures(objective: Objective, batch: Batch, folder: Path) -> None:
    """Write the columns of what the objective predicts of some images, two images to a row; under
    them, of others than RGB, which channels are shown."""
    from . import drawing  # matplotlib, which training does without until its end

    few = batch.map(lambda x: x[:SHOWN])
    if columns := predictions(objective, few):
        rows = drawing.rows_of(columns)
        halves = [rows[start::2] for start in range(min(2, len(rows)))]
        groups = [drawing.PanelGroup("", list(columns), half) for half in halves]
        drawn = (one.drawn for one in objective.modules() if isinstance(one, Target))
        note = "; ".join(filter(None, [shown_note(objective.encoder.channels), *drawn]))
        drawing.write(folder, SAVED, partial(drawing.panels, groups, note), ["png"])
