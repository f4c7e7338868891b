"""Compare a frozen encoder with baselines on the same images.

Baselines are the same network with fresh weights, with the weights that a run began with, the
pixels themselves, and always naming the commonest class.

Legend: B images of a batch, M images that metrics are measured on, T trials, C channels.
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

SIDE = 8  # side in pixels of images that are compared without a network


def fresh_network(model: Model, data: Data, seed: int) -> Backbone:
    """Build a network with the initial weights of a seed, as a run from scratch would.

    torch's random state is not changed.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return build_backbone(model, data).eval()


def initial_network(made: Recipe | None, model: Model, data: Data, seed: int) -> Backbone:
    """Build the network with the initial weights of the run that trained the encoder.

    The weights are those of the seed of run `made`, with positions fitted to the image size of
    `data`, as for trained weights. If the run is unknown, or trained on images with other channels,
    the network has fresh weights of `seed`.
    """
    if made is None or made.data.channels != data.channels:
        return fresh_network(model, data, seed)
    network = fresh_network(model, data, made.seed)
    copy_weights(fresh_network(made.model, made.data, made.seed), network)
    return network


def pixel_reader(data: Data) -> Reader:
    """Return a reader whose feature of an image is the image at 8 x 8 pixels, (B, 64 C).

    Every pixel is the mean of a part of the image. Pixels are normalised as for the encoder.
    """
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
    """Return an accuracy as an entry of result.json, with the copies among the images.

    If there are several draws of few-shot images, the entry has an interval over images and draws.
    """
    draws, images = right_TM.shape
    entry = Measured(value=accuracy(right_TM), split=split, n=images).with_copies(copies)
    if draws > 1:
        accuracy_T = right_TM.double().mean(1).tolist()
        low, high = over_draws(accuracy_T, entry.interval(images))
        entry.draws = Draws(count=draws, low=low, high=high)
    return entry


def difference(right_TM: Tensor, other_TM: Tensor, copies: Copies | None) -> Difference:
    """Return the accuracy of an encoder minus the accuracy of a baseline, with an interval.

    Both are measured on the same images and the same draws of few-shot images. The interval covers
    images and draws. A baseline with a single draw, such as the commonest class, is compared with
    every draw.
    """
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
    """Return the metrics of an encoder's probes, each followed by the metrics of the baselines.

    Args:
        right: {ENCODER, FRESH, START, PIXELS or COMMONEST: {measure: (T, M)}}, empty if nothing was
            probed. A baseline without a measure of the encoder is not compared by that measure.
        split: The split of the images.
        copies: How often the same image is among the images.
        prefix: Prefix of the metrics' names.
        paired: Whether to measure differences. False if the images chose the encoder's weights,
            were trained on, or are not independent cases.
    """
    metrics: dict[str, Measured] = {}
    for measure, right_TM in sorted(
        right.get(ENCODER, {}).items(), key=lambda pair: place(pair[0])
    ):
        name = prefix + measure
        metrics[name] = measured(right_TM, split, copies)
        for beside in (FRESH, START, PIXELS, COMMONEST):
            other_TM = right.get(beside, {}).get(measure)
            if other_TM is None:
                continue
            baseline = measured(other_TM, split, copies)
            if paired:
                baseline.difference = difference(right_TM, other_TM, copies)
            metrics[beside + name] = baseline
    return metrics
