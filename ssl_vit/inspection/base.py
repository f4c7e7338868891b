"""Define the data from which figures of an encoder are computed."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from einops import rearrange

from ..data.batching import Batch
from ..models.encoder import Encoder
from ..objectives.base import Objective

Arrays = Mapping[str, np.ndarray]  # the data of a figure, by name


class UnavailableError(Exception):
    """A figure cannot be computed for an encoder. The message says what the encoder lacks."""


@torch.no_grad()
def predictions(objective: Objective, batch: Batch) -> Arrays:
    """Return pictures of what an objective predicts for images, {title: uint8 (B, H, W, 3)}."""
    return {
        title: rearrange(panel_B3HW, "b c h w -> b h w c").cpu().numpy()
        for title, panel_B3HW in objective.panels(batch).items()
    }


class FigureInput(NamedTuple):
    """Encoder and images from which figures are computed, on the same device.

    Attributes:
        encoder: Encoder in evaluation mode.
        pool: How training pooled tokens into a feature: "token" or "avg".
        batches: Preprocessed images for statistics.
        shown: The first of these images, which figures show.
        objective: Objective that trained the encoder, and that contains the encoder. None if the
            objective has no figure or could not be loaded.
        why_no_objective: Why the objective could not be loaded, although it may have a figure.
            Empty in all other cases.
    """

    encoder: Encoder
    pool: str
    batches: Sequence[Batch]
    shown: Batch
    objective: Objective | None = None
    why_no_objective: str = ""
