"""What figures of an encoder are computed from."""

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
    """An encoder lacks what a figure shows; the message says what."""


@torch.no_grad()
def predictions(objective: Objective, batch: Batch) -> Arrays:
    """What an objective makes of images: {title: uint8 (B, H, W, 3)}."""
    found = objective.panels(batch).items()
    return {title: rearrange(one, "b c h w -> b h w c").cpu().numpy() for title, one in found}


class Subject(NamedTuple):
    """An encoder in evaluation mode, and images with its own preprocessing, on its device.

    Attributes:
        encoder: the network.
        pool: which feature of an image it was trained to give: "token" or "avg".
        batches: the images that statistics are computed over.
        shown: the first of them, which figures show.
        objective: the one it was trained with, if its declaration has a figure; the encoder is part
            of it.
        classes: names of the images' classes, if they have any.
        unknown: why an objective that may have a figure could not be loaded here.
    """

    encoder: Encoder
    pool: str
    batches: Sequence[Batch]
    shown: Batch
    objective: Objective | None = None
    classes: Sequence[str] = ()
    unknown: str = ""
