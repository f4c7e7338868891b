"""What figures of an encoder are computed from."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ..data.batching import Batch
from ..models.encoder import Encoder
from ..objectives.patches import PatchPrediction

Arrays = Mapping[str, np.ndarray]  # the data of a figure, by name


class UnavailableError(Exception):
    """An encoder lacks what a figure shows; the message says what."""


class Subject(NamedTuple):
    """An encoder in evaluation mode, and images with its own preprocessing, on its device.

    Attributes:
        encoder: the network.
        pool: which feature of an image it was trained to give: "token" or "avg".
        batches: the images that statistics are computed over.
        shown: the first of them, which figures show.
        patches: the objective it was trained with, if that predicts patches (MPP, masked
            autoencoder); the encoder is part of it.
        classes: names of the images' classes, if they have any.
    """

    encoder: Encoder
    pool: str
    batches: Sequence[Batch]
    shown: Batch
    patches: PatchPrediction | None = None
    classes: Sequence[str] = ()
