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
    """Build an untrained network, with the weights that a run of this seed begins with.

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
    """Build the network of an encoder with the random weights that its training started from.

    The weights are drawn again from the seed of the run that trained the encoder, for the network
    and image size of that run. Then they are fitted to `model` and `data` like trained weights: for
    example, position embeddings are resized to the image size.

    Args:
        trained_by: Recipe of the run that trained the encoder. If the recipe is unknown (None), or
            if the run's images have another number of channels than `data`, the weights are drawn
            from `seed` instead.
        model: Shape of the network.
        data: Size and channels of the images.
        seed: Seed that is used if `trained_by` is not.
    """
    if trained_by is None or trained_by.data.channels != data.channels:
        return fresh_network(model, data, seed)
    network = fresh_network(model, data, trained_by.seed)
    initial = fresh_network(trained_by.model, trained_by.data, trained_by.seed)
    copy_weights(initial, network)
    return network


def pixel_reader(data: Data) -> Reader:
    """Return a reader that uses an image at 8 x 8 pixels as the image's feature, (B, 64 C).

    Each of the 64 pixels is the mean of a region of the image, normalised as for the encoder.

    Args:
        data: Channels, range and normalisation of the images.
    """
    mean_C11, std_C11 = normalisation(data.mean, data.std, data.pixel_range)

    def read(image_BCHW: Tensor) -> Tensor:
        small_BC88 = F.adaptive_avg_pool2d(image_BCHW.float(), SIDE)
        return ((small_BC88 - mean_C11.to(small_BC88)) / std_C11.to(small_BC88)).flatten(1)

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
    """Return the accuracy of a probe on M images.

    A few-shot probe is fitted to T random draws of training images, and its accuracy is the mean
    over these draws. For T > 1, the interval is wider, because it covers how much the accuracy
    differs between draws as well as between images.

    Args:
        key: The accuracy.
        right_TM: Whether each image is classified correctly in each draw, bool.
        split: Split of the images.
        copies: How often the same image is among the images. None: all images are distinct.
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

    The 95% interval covers how much the difference varies between the M images, and between the T
    random draws of few-shot's training images.

    Args:
        right_TM: Whether the encoder classifies each image correctly in each draw, bool.
        other_TM: Same for the baseline, for the same images and draws. A baseline with a single
            draw, such as the commonest class, is compared with every draw of the encoder.
        copies: How often the same image is among the images. None: all images are distinct.
    """
    difference_M = right_TM.double().mean(0) - other_TM.double().mean(0)
    # Copies of an image are not independent, so they count as fewer images in the interval
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
    """Measure an encoder's probes. Each accuracy is followed by the accuracies of the baselines.

    Args:
        right: {ENCODER or a key of SUBSTITUTES: {measure: bool (T, M)}}, empty if nothing was
            probed. A baseline that lacks a measure has no metric for that measure.
        split: Split of the images.
        copies: How often the same image is among the images. None: all images are distinct.
        paired: Whether to measure the difference between encoder and baseline on the same images.
            Set False if its interval would be wrong: because the best checkpoint was chosen by
            these images, because the encoder was trained on them, or because they form groups (for
            example, several images of one patient).
        is_probe: Whether the probes ran during training.
    """
    measurements = []
    of_encoder = right.get(ENCODER, {})
    keys = [MetricKey(measure, is_probe=is_probe) for measure in of_encoder]
    for key in sorted(keys, key=measure_rank):  # in the order of tables
        measure = key.metric
        subjects = [subject for subject in SUBSTITUTES if measure in right.get(subject, {})]
        differences = {
            subject: accuracy_difference(of_encoder[measure], right[subject][measure], copies)
            for subject in subjects
            if paired
        }
        right_TM = of_encoder[measure]
        measurements.append(measure_accuracy(key, right_TM, split, copies, differences))
        for subject in subjects:
            baseline = key._replace(subject=subject)
            measurements.append(measure_accuracy(baseline, right[subject][measure], split, copies))
    return measurements
