"""Show metrics and baselines as tables and sentences of pages and model cards. This module does not
import torch.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..formatting import FEW_IMAGES, SPLIT_NAMES, copies_text
from ..metrics import (
    COMMONEST_CLASS,
    FRESH,
    PIXELS,
    PROBE_BASELINES,
    PROBED,
    SHARE,
    TESTED,
    Metric,
    compared_with,
    find_baseline,
    find_metric,
    is_few_shot,
    is_model_metric,
    measure_rank,
    metric_label,
)
from ..recipe.records.run import Copies, Difference, Measured
from ..stats import Interval
from .blocks import Table

Images = Mapping[str, int] | None  # {split: number of images measured}, as in result.json

# Reasons why a difference may have no interval
NO_VERDICT = "the images were used to choose or train the weights, lie in groups, or are too few"
# Sentence about a fine-tuned run: a comparison with the commonest class says nothing about
# pre-training.
NOT_KNOWN = "whether pre-training helped is not known"
WON, LOST, OPEN = "beats", "does not beat", "cannot be distinguished from"
# for example by a loss, which is not recorded per image
AHEAD = "is ahead (without an interval) of"
FEW = "is measured on too few images to be compared with"
NO_BETTER = f"no better than always naming {COMMONEST_CLASS}"
FEATURES = {
    WON: "By {measure}, the features of this encoder are better than untrained features.",
    LOST: "By {measure}, the features of this encoder are worse than untrained features.",
    OPEN: (
        "By {measure}, the features of this encoder cannot be distinguished from untrained"
        " features."
    ),
}


class MetricReading(NamedTuple):
    """Metric of the model as readers see it.

    Attributes:
        name: Name of the metric.
        row: Description of the metric.
        value: Value of the metric.
        split: Split that the metric was measured on.
        images: Number of independent images measured; 0 if unknown.
        copies: How many of these images are copies of each other.
        images_text: The images in words, such as `9 held-out images`.
        of_few: Whether fewer than FEW_IMAGES distinct images are known to be measured.
        interval: Interval of a share over distinct images and, for few-shot, over draws; None for
            other metrics or without images.
        draws: Number of random draws that a few-shot accuracy averages; 0 for other metrics.
        comparisons: Baselines that the metric is compared with, in the order of measuring.
    """

    name: str
    row: Metric
    value: float
    split: str
    images: int
    copies: Copies | None
    images_text: str
    of_few: bool
    interval: Interval | None
    draws: int
    comparisons: list["BaselineComparison"]

    @property
    def count_text(self) -> str:
        """Number of images and, if there are copies, of distinct images."""
        return f"{self.images:,}{copies_text(self.copies)}"


class BaselineComparison(NamedTuple):
    """Comparison of a reading with a baseline.

    Attributes:
        label: Name of the baseline for readers.
        place: Key of PROBE_BASELINES if the baseline replaces the encoder; otherwise empty.
        value: Value of the baseline.
        difference: Paired difference, the reading minus the baseline; None if it was not measured.
        verb: Whether the model beats the baseline, in words.
    """

    label: str
    place: str
    value: float
    difference: Difference | None
    verb: str


def read_metrics(
    metrics: Mapping[str, Measured], measured_on: Images = None
) -> list[MetricReading]:
    """Return the metrics of the model, each with the measured baselines of the same split.

    Parts of a joint objective are separate metrics. A metric that is not finite has no images and
    no comparisons.

    Args:
        metrics: `{name: value}` of metrics and baselines, from result.json.
        measured_on: `{split: number of measured images}`, or None if it is not recorded.
    """
    by_name: dict[str, MetricReading] = {}
    for name, entry in metrics.items():
        if not is_model_metric(name):
            continue
        row, is_finite = find_metric(name), math.isfinite(entry.value)
        images = independent_cases(entry.n, entry.split, measured_on) if is_finite else 0
        has_interval = row.unit == SHARE and images > 0 and 0 <= entry.value <= 1
        distinct = entry.copies.distinct if entry.copies else images
        by_name[name] = MetricReading(
            name=name,
            row=row,
            value=entry.value,
            split=entry.split,
            images=images,
            copies=entry.copies,
            images_text=_images_text(entry.split, images) + copies_text(entry.copies),
            of_few=is_finite and entry.split in (measured_on or {}) and distinct < FEW_IMAGES,
            interval=entry.interval(images) if has_interval else None,
            draws=entry.draws.count if entry.draws else int(is_few_shot(name)),
            comparisons=[],
        )
    for name, entry in metrics.items():
        baseline = find_baseline(name)
        same_split = {metric for metric, reading in by_name.items() if reading.split == entry.split}
        metric = compared_with(name, same_split)
        if baseline is None or not metric or not math.isfinite(entry.value):
            continue
        reading = by_name[metric]
        if math.isfinite(reading.value):
            label = f"{name.rpartition('/')[0]} {baseline.called}".lstrip()
            place, verb = probe_prefix(name), _verdict_of(reading, entry)
            reading.comparisons.append(
                BaselineComparison(label, place, entry.value, entry.difference, verb)
            )
    return list(by_name.values())


def _images_text(split: str, images: int) -> str:
    count = f"{images:,} " if images else ""
    plural = "" if images == 1 else "s"
    return f"{count}{SPLIT_NAMES.get(split, split)} image{plural}"


def independent_cases(n: int | None, split: str, measured_on: Images) -> int:
    """Return the number of independent cases that a metric was measured on.

    The patches of an image are alike, so there are at most as many independent cases as images.

    Args:
        n: Number of measured cases, such as patches or images, or None if unknown.
        split: Split of the cases.
        measured_on: `{split: number of images}`. All cases count if the split is missing.
    """
    cases = n or 0
    return min(cases, (measured_on or {}).get(split, cases))


def _verdict_of(reading: MetricReading, baseline: Measured) -> str:
    """Return whether a metric beats a baseline: WON, LOST, OPEN, AHEAD or FEW.

    If the paired difference was measured, its interval decides, and an interval that includes zero
    gives OPEN. Otherwise the interval of the metric decides. Values that look the same on a page
    give OPEN. A better metric without an interval is only AHEAD, and FEW if few images were
    measured.

    Args:
        reading: Metric of the model.
        baseline: Baseline on the same split.
    """
    row, baseline_value = reading.row, baseline.value
    difference, interval = baseline.difference, reading.interval
    if difference is not None:
        if difference.low <= 0 <= difference.high:
            return OPEN
        is_higher = difference.low > 0
        return WON if is_higher == row.higher else LOST
    if interval is None and reading.of_few:
        return FEW
    if interval is not None and interval.low <= baseline_value <= interval.high:
        return OPEN
    if row.text(reading.value, page=True) == row.text(baseline_value, page=True):
        return OPEN  # for example 4.136 against 4.136
    is_higher = reading.value > baseline_value
    if is_higher != row.higher:
        return LOST
    return AHEAD if interval is None else WON


def results_table(readings: Sequence[MetricReading]) -> Table:
    """Return a table of the model's metrics, without the baselines."""
    rows = []
    for reading in readings:
        value, interval = reading.row.text(reading.value, page=True), "-"
        if reading.interval:
            interval = f"{reading.interval.low:.2%} to {reading.interval.high:.2%}"
        row = [metric_label(reading.name), value, interval, reading.split, reading.count_text]
        rows.append(row)
    return Table(["measure", "value", "95% interval", "split", "n"], rows)


def baselines_table(readings: Sequence[MetricReading]) -> Table:
    """Return a table with a row for each baseline and the metric that the baseline belongs to."""
    rows = []
    for reading in readings:
        for baseline in reading.comparisons:
            difference, interval = reading.value - baseline.value, "-"
            text = f"{difference:+.4g}"
            if reading.row.in_per_cent:
                text = f"{100 * difference:+.2f} points"
            if baseline.difference is not None:
                low, high = 100 * baseline.difference.low, 100 * baseline.difference.high
                interval = f"{low:+.2f} to {high:+.2f}"
            values = [
                reading.row.text(value, page=True) for value in (reading.value, baseline.value)
            ]
            label = metric_label(reading.name)
            rows.append([baseline.label, text, interval, label, *values])
    head = ["baseline", "difference", "95% interval", "measure", "model value", "baseline value"]
    return Table(head, rows)


def comparison_text(reading: MetricReading) -> str:
    """Describe a metric with its interval and its baselines.

    For example, `76.5% (72.1% to 80.4%) of 400 test images; fresh weights 41.0%: +35.5 points
    (+30.2 to +40.8)`.
    """
    interval = ""
    if reading.interval:
        interval = f" ({reading.interval.low:.1%} to {reading.interval.high:.1%})"
    parts = [f"{reading.row.text(reading.value)}{interval} of {reading.images_text}"]
    for baseline in reading.comparisons:
        difference, points = baseline.difference, ""
        if difference is not None:
            low, high = 100 * difference.low, 100 * difference.high
            points = f": {100 * difference.mean:+.1f} points ({low:+.1f} to {high:+.1f})"
        parts.append(f"{baseline.label} {reading.row.text(baseline.value)}{points}")
    if reading.draws > 1:
        parts.append(f"mean of {reading.draws} draws")
    elif reading.draws:
        parts.append("a single draw (the interval does not cover other draws)")
    return "; ".join(parts)


def verdict(readings: Sequence[MetricReading]) -> str:
    """Say in sentences how a model compares with its baselines.

    A sentence each is about the features compared with fresh weights, about the training task, and
    about a classifier. The text is empty if nothing was compared.
    """
    parts = (_features_verdict(readings), _task_verdict(readings), classifier_verdict(readings))
    return " ".join(filter(None, parts))


def _features_verdict(readings: Sequence[MetricReading]) -> str:
    """Say whether the encoder's features are better than features of fresh weights.

    The verdict uses the paired differences in the first measure (`metrics.measure_rank`), because
    with several measures, each at 95%, one measure is soon beyond zero by chance. Further sentences
    compare the features with always naming the commonest class, and with pixels. There is no
    verdict if the measured images chose the weights. The text is empty if nothing was compared.
    """
    places = {
        reading.name: {baseline.place for baseline in reading.comparisons} for reading in readings
    }
    probed = [reading for reading in readings if any(places[reading.name])]
    if not probed:
        return ""
    # An encoder with fresh weights is compared with the commonest class only.
    with_fresh = [reading for reading in probed if FRESH in places[reading.name]]
    first = min(with_fresh or probed, key=lambda reading: measure_rank(reading.name))
    measure, sentences = first.row.words, []
    for baseline in first.comparisons:
        if baseline.place != FRESH:
            continue
        if baseline.difference is None:
            return f"There is no verdict on the features: {NO_VERDICT}."
        # Untrained features below the commonest class are easily beaten, so a win over them is not
        # reported.
        if baseline.verb != WON or not is_no_better(first):
            sentences.append(FEATURES[baseline.verb].format(measure=measure))
    if is_no_better(first):
        sentences.append(f"By {measure}, the features of this encoder are {NO_BETTER}.")
    if not sentences:
        return ""
    verbs = set()
    for reading in readings:
        for baseline in reading.comparisons:
            if baseline.place == PIXELS and baseline.difference:
                verbs.add(baseline.verb)
    if LOST in verbs:
        sentences.append("By k-NN, the pixels at 8 x 8 are better than the features.")
    elif OPEN in verbs:
        sentences.append("By k-NN, the features cannot be distinguished from the pixels at 8 x 8.")
    return " ".join(sentences)


def is_no_better(reading: MetricReading) -> bool:
    """Return whether a classifier or probe is no better than always naming the commonest class.

    The interval of the measured difference then includes zero or lies below zero.
    """
    return any(
        baseline.label.endswith(COMMONEST_CLASS) and baseline.verb in (OPEN, LOST)
        for baseline in reading.comparisons
    )


def classifier_verdict(readings: Sequence[MetricReading]) -> str:
    """Return a sentence if a classifier is no better than always naming the commonest class.

    Only the accuracy on test images counts. Otherwise the text is empty.
    """
    for reading in readings:
        if reading.name == TESTED[0] and is_no_better(reading):
            return f"{reading.row.words} is {NO_BETTER} ({reading.images_text})."
    return ""


def _task_verdict(readings: Sequence[MetricReading]) -> str:
    """Say which baselines of the training task the model beats, and which it does not beat.

    The images are named if they are few, or if several splits were measured. There is no verdict if
    a metric of the task is not finite, because the other metrics of such a network mean nothing.
    """
    for reading in readings:
        if not math.isfinite(reading.value) and not reading.name.startswith(PROBED):
            label = metric_label(reading.name)
            return f"There is no verdict on the training task: {label} is not finite."
    comparisons = []
    for reading in readings:
        comparisons += [(reading, entry) for entry in reading.comparisons if not entry.place]
    has_several_splits = len({reading.split for reading, _ in comparisons}) > 1
    by_verb: dict[str, list[str]] = {verb: [] for verb in (WON, AHEAD, LOST, OPEN, FEW)}
    for reading, baseline in comparisons:
        images = f" on {reading.images_text}" if has_several_splits or reading.of_few else ""
        value = reading.row.text(reading.value, page=True)
        baseline_value = reading.row.text(baseline.value, page=True)
        by_verb[baseline.verb].append(
            f"{baseline.label} ({value} against {baseline_value}{images})"
        )
    claims = [f"{verb} {_listed(baselines)}" for verb, baselines in by_verb.items() if baselines]
    return f"At the training task, the model {', and '.join(claims)}." if claims else ""


def probe_prefix(name: str) -> str:
    """Return the prefix of a metric that was measured on a baseline instead of the encoder.

    The prefix is a key of PROBE_BASELINES. It is empty for a metric of the encoder itself.
    """
    last = name.rpartition("/")[2]
    return next((prefix for prefix in PROBE_BASELINES if last.startswith(prefix)), "")


def _listed(names: Sequence[str]) -> str:
    """Return names as in a sentence: "a, b and c"."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
