"""Figures of what a model has learned."""

from pathlib import Path

from ..data.batching import Batch
from ..objectives.base import Objective
from ..objectives.patches import PatchPrediction
from . import reconstruction


def save_figures(objective: Objective, batch: Batch, folder: Path) -> None:
    """Write the objective's figures: of one that predicts patches its predictions."""
    for part in objective.summands():
        if isinstance(part, PatchPrediction):
            reconstruction.save_figure(part, batch, folder / "predictions.png")
