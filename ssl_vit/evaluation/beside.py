"""What a frozen encoder is compared with, on the same images: its network with fresh weights, the
weights that a run began with, the pixels themselves, and always the commonest class.

Legend: B images of a batch, M images that are measured on, T trials.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ..data.pixel_values import normalisation
from ..metrics import COMMONEST, FRESH, PIXELS, START, place
from ..models.encoder import Backbone, build_backbone
from ..models.weights import copy_weights
from ..recipe.records.run import Copies, Difference, Draws, Measured
from ..recipe.schema import Data, Model, Recipe
from ..stats import over_draws, paired_difference
from .features import ENCODER, Reader, Right, accuracy

SIDE = 8  # pixels of the images whose nearest neighbours need no network


def fresh_network(model: Model, data: Data, seed: int) -> Backbone:
    """The network with the initial weights of that seed, as a run from scratch begins; torch's
    random state stays as it is."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return build_backbone(model, data).eval()


def initial_network(made: Recipe | None, model: Model, data: Data, seed: int) -> Backbone:
    """The network with the initial weights of the run `made`, of its seed, brought to the image
    size of `data` as trained ones are; with fresh weights of `seed` where no run is known, or its
    images have other channels."""
    if made is None or made.data.channels != data.channels:
        return fresh_network(model, data, seed)
    network = fresh_network(model, data, made.seed)
    copy_weights(fresh_network(made.model, made.data, made.seed), network)
    return network


def pixel_reader(data: Data) -> Reader:
    """An image's feature is the image itself at 8 x 8 pixels, each the mean of its part of the
    image, normalised as for the encoder: (B, 64 C)."""
    mean_C11, std_C11 = normalisation(data.mean, data.std, data.pixel_range)

    def read(image_BCHW: Tensor) -> Tensor:
        small_BC88 = F.adaptive_avg_pool2d(image_BCHW.float(), SIDE)
        return ((small_BC88 - mean_C11.to(small_BC88)) / std_C11.to(small_BC88)).flatten(1)

    return read


def of_numpy(right: Right) -> dict[str, np.ndarray]:
    """Return which images each measure is right of, as a `SharedFile` stores it."""
    return {measure: right_TM.numpy() for measure, right_TM in right.items()}


def of_torch(arrays: Mapping[str, np.ndarray]) -> Right:
    """Return what `of_numpy` was given."""
    return {measure: torch.from_numpy(array) for measure, array in arrays.items()}


def measured(right_TM: Tensor, split: str, copies: Copies | None) -> Measured:
    """Return an accuracy as result.json has it, with the copies of its images and, if there are
    several draws of few-shot images, with its interval over images and draws."""
    draws, images = right_TM.shape
    entry = Measured(value=accuracy(right_TM), split=split, n=images).with_copies(copies)
    if draws > 1:
        accuracy_T = right_TM.double().mean(1).tolist()
        low, high = over_draws(accuracy_T, entry.interval(images))
        entry.draws = Draws(count=draws, low=low, high=high)
    return entry


def difference(right_TM: Tensor, other_TM: Tensor, copies: Copies | None) -> Difference:
    """Return the accuracy of an encoder minus that of a baseline, on the same images and the same
    draws of few-shot images, with its interval over both. A baseline with one draw, such as the
    commonest class, is compared with every draw."""
    apart_M = right_TM.double().mean(0) - other_TM.double().mean(0)
    mean, images = paired_difference(apart_M.numpy(), copies.effective if copies else None)
    apart_T = (right_TM.double() - other_TM.double()).mean(1)
    low, high = over_draws(apart_T.tolist(), images, least=-1.0)
    return Difference(mean=mean, low=low, high=high)


def compared(
    right: Mapping[str, Right],
    split: str,
    copies: Copies | None,
    prefix: str = "",
    paired: bool = True,
) -> dict[str, Measured]:
    """The metrics of an encoder's probes and, after each, those of what it is compared with.

    Args:
        right: {ENCODER, FRESH, START, PIXELS or COMMONEST: {measure: (T, M)}}, empty where nothing
            was probed; a measure of the encoder that another one lacks is not compared with it.
        split: which images these are.
        copies: how often the same image is among them.
        prefix: of the metrics' names.
        paired: whether differences are measured: not where these images chose the encoder's
            weights, were trained on, or are no independent cases.
    """
    found: dict[str, Measured] = {}
    for measure, right_TM in sorted(right.get(ENCODER, {}).items(), key=lambda one: place(one[0])):
        name = prefix + measure
        found[name] = measured(right_TM, split, copies)
        for beside in (FRESH, START, PIXELS, COMMONEST):
            other_TM = right.get(beside, {}).get(measure)
            if other_TM is None:
                continue
            baseline = measured(other_TM, split, copies)
            if paired:
                baseline.difference = difference(right_TM, other_TM, copies)
            found[beside + name] = baseline
    return found
