"""Figures of what a model has learned."""

from pathlib import Path

from ..data.batching import Batch
from ..objectives import Joint, Objective, PatchPrediction
from . import reconstruction


def save_figures(objective: Objective, batch: Batch, folder: Path) -> None:
    """Write the objective's figures. To add one for another objective: a file here and a line
    below."""
    parts = objective.parts.values() if isinstance(objective, Joint) else [objective]
    for part in parts:
        if isinstance(part, PatchPrediction):
            reconstruction.save_figure(part, batch, folder / "predictions.png")
