"""What a model has learned, as images."""

from pathlib import Path

from ..data.batching import Batch
from ..objectives import Joint, MaskedPatchPrediction, Objective
from . import mpp


def save_figures(objective: Objective, batch: Batch, folder: Path) -> None:
    """Write the images that suit the objective. A new objective's image is a file here and a line
    below."""
    for part in objective.parts.values() if isinstance(objective, Joint) else [objective]:
        if isinstance(part, MaskedPatchPrediction):
            mpp.save_figure(part, batch, folder / "predictions.png")
