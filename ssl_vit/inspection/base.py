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
    """Error that an encoder lacks what a figure shows. The message says what the encoder lacks."""


@torch.no_grad()
def predictions(objective: Objective, batch: Batch) -> Arrays:
    """Return pictures of what an objective predicts for images, {title: uint8 (B, H, W, 3)}."""
    panel_items = objective.panels(batch).items()
    return {
        title: rearrange(panel_BCHW, "b c h w -> b h w c").cpu().numpy()
        for title, panel_BCHW in panel_items
    }


class Subject(NamedTuple):
    """Encoder in evaluation mode and preprocessed images on the same device.

    Attributes:
        encoder: The network.
        pool: How the feature that training used is pooled: "token" or "avg".
        batches: The images for statistics.
        shown: The first of these images, which figures show.
        objective: The objective that trained the encoder, if its declaration has a figure. The
            encoder is part of the objective.
        classes: Names of the images' classes, if any.
        unknown: Why an objective that may have a figure could not be loaded.
    """

    encoder: Encoder
    pool: str
    batches: Sequence[Batch]
    shown: Batch
    objective: Objective | None = None
    classes: Sequence[str] = ()
    unknown: str = ""
