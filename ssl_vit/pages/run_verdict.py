"""Choose the sentence that says what the measurements of a run mean. This module does not import
torch.
"""

import math
from collections.abc import Sequence

from ..measurements import COMMONEST, PIXELS, UNRANKED, UNTRAINED
from ..metrics import TESTED, measure_rank, metric_label
from .metric_tables import LOST, OPEN, MetricReading, is_no_better

NO_VERDICT = "It is not known how good this encoder is, because {reason}."
WORSE = "The features of this encoder are worse than features of untrained weights ({measure})."
FEATURES_AS_COMMONEST = (
    "A classifier on the features of this encoder is not shown to be better than always naming the"
    " commonest class ({measure})."
)
CLASSIFIER_AS_COMMONEST = (
    "The classifier is not shown to be better than always naming the commonest class ({measure})."
)
UNKNOWN = (
    "It is not known whether the features of this encoder are better than those of untrained"
    " weights, because the interval of the difference includes zero ({measure})."
)
AS_PIXELS = (
    "The features of this encoder are better than features of untrained weights ({measure}). But"
    " k-NN on the features is not shown to be better than k-NN on the images shrunk to 8 x 8"
    " pixels."
)
BETTER = "The features of this encoder are better than features of untrained weights ({measure})."
FINE_TUNED = (
    "Whether pre-training helped is not known. To find out, compare several seeds of this run with"
    " several seeds of tuned training from scratch."
)
# What the study recipes/study/labelfree.yaml has shown (docs/evaluate.md, Without labels)
WITHOUT_LABELS = (
    "ssl_vit does not know which values of the measures without labels (RankMe, LiDAR, alpha-ReQ,"
    " uniformity, alignment) are better. In a study of 12 short runs of four objectives on CIFAR-10"
    " with one seed, runs with a higher RankMe, a higher LiDAR and an alpha-ReQ closer to 1 were"
    " more accurate. Along a run, no measure was shown to choose checkpoints better than the step"
    " number."
)
# Reasons for NO_VERDICT
NOT_FINITE = "{measure} is not finite"
NO_INTERVAL = (
    "the difference from untrained weights has no 95% interval. Possible reasons: there are too few"
    " images, the images were also used to train or choose the weights, or several images show the"
    " same object (data.group)"
)
NOT_COMPARED = "the features were not compared with features of untrained weights: {reason}"


def verdict(
    readings: Sequence[MetricReading],
    fine_tunes: bool = False,
    not_compared: str | None = None,
    in_study: bool = False,
) -> str:
    """Return a sentence that says what the measurements of a run mean.

    The first of these sentences that applies is returned:
    - It is not known how good the encoder is, because a metric is not finite.
    - The sentence on the features, see `_features_verdict`. Not for a fine-tuned network.
    - The classifier is not shown to be better than always naming the commonest class.
    - Whether pre-training helped a fine-tuned network is not known. Not in a study, because a study
      answers this question.
    - It is not known how good the encoder is, because the features were not compared.
    - An empty text.

    Args:
        readings: Metrics of the run.
        fine_tunes: Whether the run fine-tunes an encoder.
        not_compared: Why the features were not compared, or None.
        in_study: Whether a study made the run.
    """
    for reading in readings:
        # If a metric of the network is not finite, no other metric means anything. A metric of a
        # probe that is not finite says nothing about the network
        if not math.isfinite(reading.value) and not reading.key.is_probe:
            reason = NOT_FINITE.format(measure=metric_label(reading.key))
            return NO_VERDICT.format(reason=reason)
    probe = None if fine_tunes else _first_probe(readings)
    sentence = _features_verdict(probe, readings) if probe else ""
    if sentence:
        return sentence
    top1 = TESTED[0]  # name of the classifier's top-1 accuracy
    for reading in readings:
        if reading.name == top1 and is_no_better(reading):
            return CLASSIFIER_AS_COMMONEST.format(measure=_with_difference(reading))
    if fine_tunes and readings and not in_study:
        return FINE_TUNED
    if not_compared:
        return NO_VERDICT.format(reason=NOT_COMPARED.format(reason=not_compared))
    return ""


def _with_difference(reading: MetricReading) -> str:
    """Return the name of a metric and, if measured, the difference from the commonest class.

    For example: "k-NN: difference -2.2 points, 95% CI -5.9 to +1.5". The interval of this
    difference decides the verdict, and the tables do not show it.
    """
    for baseline in reading.comparisons:
        difference = baseline.difference
        if baseline.column == COMMONEST and difference:
            return (
                f"{reading.row.words}: difference {100 * difference.mean:+.1f} points, 95% CI"
                f" {100 * difference.low:+.1f} to {100 * difference.high:+.1f}"
            )
    return reading.row.words


def _first_probe(readings: Sequence[MetricReading]) -> MetricReading | None:
    """Return the metric by which the encoder's features are judged, or None if there is none.

    The result is the most important metric (`metrics.measure_rank`) that was compared with
    untrained weights. An untrained encoder has no such comparison. The result is then the most
    important metric with any baseline that replaces the encoder, such as k-NN on pixels. Only one
    metric decides, because with several 95% intervals, one of them may exclude zero by chance.
    """
    # `substitute` says what replaces the encoder in a baseline. Empty if nothing replaces it
    probed = [
        reading
        for reading in readings
        if any(baseline.substitute for baseline in reading.comparisons)
        and reading.row.unit != UNRANKED
    ]
    with_untrained = [
        reading
        for reading in probed
        if any(baseline.substitute == UNTRAINED for baseline in reading.comparisons)
    ]
    candidates = with_untrained or probed
    return min(candidates, key=lambda reading: measure_rank(reading.key), default=None)


def _features_verdict(probe: MetricReading, readings: Sequence[MetricReading]) -> str:
    """Return a sentence on the encoder's features, as measured by one probe.

    The first of these sentences that applies is returned:
    - NO_VERDICT: the difference from untrained weights has no interval.
    - WORSE: the features are worse than features of untrained weights.
    - FEATURES_AS_COMMONEST: the features are not shown to be better than the commonest class. This
      comes before BETTER, because untrained features can be worse than the commonest class, and
      features that are better than these may still be useless.
    - An empty text: there is no comparison with untrained weights.
    - UNKNOWN: the interval of the difference from untrained weights includes zero.
    - AS_PIXELS: the features are better than features of untrained weights, but are not shown to be
      better than k-NN on the images shrunk to 8 x 8 pixels.
    - BETTER: the features are better than features of untrained weights.

    Args:
        probe: Metric that decides.
        readings: All metrics of the run, for the comparison with k-NN on pixels.
    """
    # the attribute `better` of a comparison is its outcome: WON, LOST or OPEN, for example
    comparisons = (entry for entry in probe.comparisons if entry.substitute == UNTRAINED)
    untrained = next(comparisons, None)
    measure = probe.row.words
    if untrained and untrained.difference is None:
        return NO_VERDICT.format(reason=NO_INTERVAL)
    if untrained and untrained.better == LOST:
        return WORSE.format(measure=measure)
    if is_no_better(probe):
        return FEATURES_AS_COMMONEST.format(measure=_with_difference(probe))
    if not untrained:
        return ""
    if untrained.better == OPEN:
        return UNKNOWN.format(measure=measure)
    outcomes_against_pixels = {
        entry.better
        for reading in readings
        for entry in reading.comparisons
        if entry.substitute == PIXELS and entry.difference
    }
    sentence = AS_PIXELS if outcomes_against_pixels & {LOST, OPEN} else BETTER
    return sentence.format(measure=measure)
