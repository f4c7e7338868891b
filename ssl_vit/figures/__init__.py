"""What a model has learned, as pictures."""

from pathlib import Path

from ..data.batches import Batch
from ..objectives import Joint, MaskedPatchPrediction, Objective
from . import mpp


def draw(objective: Objective, batch: Batch, folder: Path) -> None:
    """Write the pictures that suit the objective. A new objective's picture is a file here and a line below."""
    for part in objective.parts.values() if isinstance(objective, Joint) else [objective]:
        if isinstance(part, MaskedPatchPrediction):
            mpp.draw(part, batch, folder / "predictions.png")
