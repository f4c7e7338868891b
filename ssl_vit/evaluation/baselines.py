"""Compare a frozen encoder with baselines on the same images.

The baselines are the same network with untrained weights, the same network with the weights that a
run began with, the pixels themselves, and always naming the commonest class.

Legend: B images of a batch, M images that metrics are measured on, T random draws of few-shot's
training images (1 for other probes), C channels.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ..data.pixel_values import normalisation
from ..measurements import SUBSTITUTES, MetricKey
from ..metrics import measure_rank
from ..models.encoder import Backbone, build_backbone
from ..models.weights import copy_weights
from ..recipe.records.run import ConfidenceInterval, Copies, Difference, Measurement, known
from ..recipe.schema import Data, Model, Recipe
from ..stats import Interval, paired_difference, widen_over_draws
from .features import ENCODER, Reader, Right, accuracy

SIDE = 8  # side in pixels of images that are compared without a network


def fresh_network(model: Model, data: Data, seed: int) -> Backbone:
    """Build a network with the random weights that a run with this seed starts from.

    torch's random state is not changed.

    Args:
        model: Shape of the network.
        data: Size and channels of the images.
        seed: Seed of the run.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return build_backbone(model, data).eval()


def initial_network(trained_by: Recipe | None, model: Model, data: Data, seed: int) -> Backbone:
    """Build the network of an encoder with the random weights from before the training.

    The weights are drawn again as in the run that trained the encoder, from the run's seed and for
    the run's network and image size. Then the weights are fitted to `model` and `data` like trained
    weights: for example, position embeddings are resized to the image size.

    Args:
        trained_by: Recipe of the run that trained the encoder. If the recipe is unknown (None), or
            if the run's images have another number of channels than `data`, the weights are drawn
            from `seed` instead.
        model: Shape of the network.
        data: Size and channels of the images.
        seed: Seed that is used without `trained_by`.
    """
    if trained_by is None or trained_by.data.channels != data.channels:
        return fresh_network(model, data, seed)
    network = fresh_network(model, data, trained_by.seed)
    initial = fresh_network(trained_by.model, trained_by.data, trained_by.seed)
    copy_weights(initial, network)
    return network


def pixel_reader(data: Data) -> Reader:
    """Return a reader whose feature (B, 64 C) is the image, shrunk to 8 x 8 pixels.

    Each of the 64 pixels is the mean of a region of the image, normalised as for the encoder.

    Args:
        data: Channels, range and normalisation of the images.
    """
    mean_C11, std_C11 = normalisation(data.mean, data.std, data.pixel_range)

    def read(image_BCHW: Tensor) -> Tensor:
        small_BC88 = F.adaptive_avg_pool2d(image_BCHW.float(), SIDE)
        normalised_BC88 = (small_BC88 - mean_C11.to(small_BC88)) / std_C11.to(small_BC88)
        return normalised_BC88.flatten(1)

    return read


def to_numpy(right: Right) -> dict[str, np.ndarray]:
    """Convert {measure: bool (T, M)} to NumPy arrays, which a `SharedFile` can store."""
    return {measure: right_TM.numpy() for measure, right_TM in right.items()}


def to_torch(arrays: Mapping[str, np.ndarray]) -> Right:
    """Undo `to_numpy`."""
    return {measure: torch.from_numpy(array) for measure, array in arrays.items()}


def measure_accuracy(
    key: MetricKey,
    right_TM: Tensor,
    split: str,
    copies: Copies | None,
    differences: Mapping[str, Difference] | None = None,
) -> Measurement:
    """Return the accuracy of a probe on M images, with an interval.

    A few-shot probe is fitted to T random draws of training images, and the accuracy is the mean
    over the draws. For T > 1, the interval covers not only the differences between images but also
    the differences between draws.

    Args:
        key: Key of the accuracy.
        right_TM: Whether each image is classified correctly in each draw, bool.
        split: Split of the images.
        copies: Counts of repeated images. None: all images are distinct.
        differences: {subject: difference of the accuracy from the subject's accuracy}.
    """
    draws, images = right_TM.shape
    fields = known(**key._asdict(), copies=copies, differences=differences)
    value = accuracy(right_TM)
    measurement = Measurement(split=split, value=value, n=images, **fields).with_interval()
    if draws > 1 and measurement.interval:
        accuracy_T = right_TM.double().mean(1).tolist()
        image_interval = Interval(measurement.interval.low, measurement.interval.high)
        low, high = widen_over_draws(accuracy_T, image_interval)
        measurement.draws = draws
        measurement.interval = ConfidenceInterval(low=low, high=high)
    return measurement


def accuracy_difference(right_TM: Tensor, other_TM: Tensor, copies: Copies | None) -> Difference:
    """Return the accuracy of an encoder minus the accuracy of a baseline, with an interval.

    The 95% interval covers the variation between the M images and between the T random draws of
    few-shot's training images.

    Args:
        right_TM: Whether the encoder classifies each image correctly in each draw, bool.
        other_TM: Whether the baseline classifies each image correctly, for the same images and
            draws. A baseline with a single draw, such as the commonest class, is compared with
            every draw of the encoder.
        copies: Counts of repeated images. None: all images are distinct.
    """
    difference_M = right_TM.double().mean(0) - other_TM.double().mean(0)
    # Copies of an image are not independent, so the interval counts fewer images
    effective_images = copies.effective if copies else None
    mean, image_interval = paired_difference(difference_M.numpy(), effective_images)
    difference_T = (right_TM.double() - other_TM.double()).mean(1)
    # -1 is the lowest possible difference of two accuracies
    low, high = widen_over_draws(difference_T.tolist(), image_interval, least=-1.0)
    return Difference(mean=mean, low=low, high=high)


def metrics_with_baselines(
    right: Mapping[str, Right],
    split: str,
    copies: Copies | None,
    paired: bool = True,
    is_probe: bool = False,
) -> list[Measurement]:
    """Return the accuracies of an encoder's probes, each followed by the baselines' accuracies.

    Args:
        right: {ENCODER or a key of SUBSTITUTES: {measure: bool (T, M)}}, empty if nothing was
            probed. If a baseline lacks a measure of the encoder, the baseline gets no metric for
            this measure. A measure without labels has its value and its number of images (2,).
        split: Split of the images.
        copies: Counts of repeated images. None: all images are distinct.
        paired: Whether to measure the difference between encoder and baseline on the same images.
            Set False in three cases, because the interval of the difference would be wrong: the
            images chose the best checkpoint, the encoder was trained on the images, or the images
            form groups (for example, several images of one patient).
        is_probe: Whether the probes ran during training.
    """
    measurements = []
    encoder_right = right.get(ENCODER, {})
    keys = [MetricKey(measure, is_probe=is_probe) for measure in encoder_right]
    for key in sorted(keys, key=measure_rank):  # in the order of tables
        measure = key.metric
        right_TM = encoder_right[measure]
        baselines = {
            subject: right[subject][measure]
            for subject in SUBSTITUTES
            if measure in right.get(subject, {})
        }
        if right_TM.ndim == 1:  # a measure without labels
            for subject, value_2 in {ENCODER: right_TM, **baselines}.items():
                value, images = value_2.tolist()
                fields = known(**key._replace(subject=subject)._asdict())
                measurements.append(Measurement(split=split, value=value, n=int(images), **fields))
            continue
        differences = {}
        if paired:
            for subject, baseline_TM in baselines.items():
                differences[subject] = accuracy_difference(right_TM, baseline_TM, copies)
        measurements.append(measure_accuracy(key, right_TM, split, copies, differences))
        for subject, baseline_TM in baselines.items():
            baseline_key = key._replace(subject=subject)
            measurements.append(measure_accuracy(baseline_key, baseline_TM, split, copies))
    return measurements
