"""Choose the sentence that says what the measurements of a run mean. This module does not import
torch.
"""

import math
from collections.abc import Sequence

from ..metrics import FRESH, PIXELS, PROBED, TESTED, measure_rank, metric_label
from .metric_tables import LOST, OPEN, MetricReading, is_no_better

NO_VERDICT = "There is no verdict, because {reason}."
WORSE = "The features of this encoder are worse than those of untrained weights ({measure})."
FEATURES_AS_COMMONEST = (
    "The features of this encoder are not shown to be better than always naming the commonest"
    " class ({measure})."
)
CLASSIFIER_AS_COMMONEST = (
    "The classifier is not shown to be better than always naming the commonest class ({measure})."
)
UNKNOWN = (
    "It is not known whether the features of this encoder are better than those of untrained"
    " weights, because the interval of the difference includes zero ({measure})."
)
AS_PIXELS = (
    "The features of this encoder are better than those of untrained weights ({measure}), but not"
    " shown to be better than the pixels at 8 x 8 (k-NN)."
)
BETTER = "The features of this encoder are better than those of untrained weights ({measure})."
FINE_TUNED = (
    "Whether pre-training helped is not known, because this run was not compared with tuned"
    " training from scratch over several seeds."
)
# Reasons for NO_VERDICT
NOT_FINITE = "{measure} is not finite"
NO_INTERVAL = (
    "the difference from untrained weights has no interval: the images were used to choose or train"
    " the weights, lie in groups, or are too few"
)
NOT_COMPARED = "the features were not compared with those of untrained weights: {reason}"


def verdict(
    readings: Sequence[MetricReading],
    fine_tunes: bool = False,
    not_compared: str | None = None,
    in_study: bool = False,
) -> str:
    """Return what the measurements of a run mean, or an empty text if nothing was compared.

    Features are judged by the paired difference from untrained weights in the first measure
    (`metrics.measure_rank`). With several measures, each at 95%, one of them would soon be beyond
    zero by chance.

    Args:
        readings: Metrics of the run.
        fine_tunes: Whether the run fine-tunes an encoder.
        not_compared: Why the features were not compared, or None.
        in_study: Whether the run is a task of a study, which compares the run.
    """
    for reading in readings:
        # the other metrics of such a network mean nothing
        if not math.isfinite(reading.value) and not reading.name.startswith(PROBED):
            reason = NOT_FINITE.format(measure=metric_label(reading.name))
            return NO_VERDICT.format(reason=reason)
    first = None if fine_tunes else _first_probe(readings)
    sentence = _features_verdict(first, readings) if first else ""
    if sentence:
        return sentence
    for reading in readings:
        if reading.name == TESTED[0] and is_no_better(reading):
            return CLASSIFIER_AS_COMMONEST.format(measure=reading.row.words)
    if fine_tunes and readings and not in_study:
        return FINE_TUNED
    if not_compared:
        return NO_VERDICT.format(reason=NOT_COMPARED.format(reason=not_compared))
    return ""


def _first_probe(readings: Sequence[MetricReading]) -> MetricReading | None:
    """Return the most important measure that has baselines, or None without any.

    Measures with the baseline of untrained weights come first. An encoder with untrained weights is
    compared with the commonest class only.
    """
    probed = [
        reading for reading in readings if any(baseline.place for baseline in reading.comparisons)
    ]
    with_fresh = [
        reading
        for reading in probed
        if any(baseline.place == FRESH for baseline in reading.comparisons)
    ]
    return min(with_fresh or probed, key=lambda reading: measure_rank(reading.name), default=None)


def _features_verdict(first: MetricReading, readings: Sequence[MetricReading]) -> str:
    """Return what the measure `first` says about the features, or an empty text."""
    fresh = next((entry for entry in first.comparisons if entry.place == FRESH), None)
    measure = first.row.words
    if fresh and fresh.difference is None:
        return NO_VERDICT.format(reason=NO_INTERVAL)
    if fresh and fresh.better == LOST:
        return WORSE.format(measure=measure)
    # Untrained features below the commonest class are easily beaten, so a win over them is not
    # reported
    if is_no_better(first):
        return FEATURES_AS_COMMONEST.format(measure=measure)
    if not fresh:
        return ""
    if fresh.better == OPEN:
        return UNKNOWN.format(measure=measure)
    of_pixels = {
        entry.better
        for reading in readings
        for entry in reading.comparisons
        if entry.place == PIXELS and entry.difference
    }
    return (AS_PIXELS if of_pixels & {LOST, OPEN} else BETTER).format(measure=measure)
