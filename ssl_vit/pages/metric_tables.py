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


class MetricReading(NamedTuple):
    """Metric of the model as readers see it.

    Attributes:
        name, value, split: Name, value and split of the metric; `row` describes it.
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
    """
    by_name: dict[str, MetricReading] = {}
    for name, entry in metrics.items():
        if not is_model_metric(name):
            continue
        row, finite = find_metric(name), math.isfinite(entry.value)
        images = independent_cases(entry.n, entry.split, measured_on) if finite else 0
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
            of_few=finite and entry.split in (measured_on or {}) and distinct < FEW_IMAGES,
            interval=entry.interval(images) if has_interval else None,
            draws=entry.draws.count if entry.draws else int(is_few_shot(name)),
            comparisons=[],
        )
    for name, entry in metrics.items():
        baseline = find_baseline(name)
        measure = compared_with(
            name, {known for known in by_name if by_name[known].split == entry.split}
        )
        finite = math.isfinite(entry.value)
        if baseline and finite and measure and math.isfinite((reading := by_name[measure]).value):
            called = f"{name.rpartition('/')[0]} {baseline.called}".lstrip()
            place, verb = probe_prefix(name), _verdict_of(reading, entry)
            reading.comparisons.append(
                BaselineComparison(called, place, entry.value, entry.difference, verb)
            )
    return list(by_name.values())


def _images_text(split: str, images: int) -> str:
    count = f"{images:,} " if images else ""
    return f"{count}{SPLIT_NAMES.get(split, split)} image{'s' * (images != 1)}"


def independent_cases(n: int | None, split: str, measured_on: Images) -> int:
    """Return how many independent cases `n` cases of a split count as.

    Patches count as the number of images, because patches of an image are alike. If the number of
    images is not recorded, all cases count.
    """
    return min(n or 0, (measured_on or {}).get(split, n or 0))


def _verdict_of(reading: MetricReading, baseline: Measured) -> str:
    """Return whether a metric beats a baseline, in words.

    A measured paired difference decides: the answer is OPEN if the interval of the difference
    includes zero. Without one, a share is OPEN if its interval includes the baseline, and a metric
    is OPEN if both values look the same on a page. A metric without an interval is FEW if few
    images were measured, and otherwise at best AHEAD.
    """
    row, baseline_value = reading.row, baseline.value
    if (apart := baseline.difference) is not None:
        if apart.low <= 0 <= apart.high:
            return OPEN
        return WON if (apart.low > 0) == row.higher else LOST
    if reading.interval is None and reading.of_few:
        return FEW
    if (
        reading.interval is not None
        and reading.interval.low <= baseline_value <= reading.interval.high
    ):
        return OPEN
    if row.text(reading.value, page=True) == row.text(baseline_value, page=True):
        return OPEN  # for example 4.136 against 4.136
    if (reading.value > baseline_value) != row.higher:
        return LOST
    return AHEAD if reading.interval is None else WON


def results_table(readings: Sequence[MetricReading]) -> Table:
    """Return a table of the model's metrics, without the baselines."""
    rows = []
    for reading in readings:
        ends = (
            f"{reading.interval.low:.2%} to {reading.interval.high:.2%}"
            if reading.interval
            else "-"
        )
        value = reading.row.text(reading.value, page=True)
        rows.append([metric_label(reading.name), value, ends, reading.split, reading.count_text])
    return Table(["measure", "value", "95% interval", "split", "n"], rows)


def baselines_table(readings: Sequence[MetricReading]) -> Table:
    """Return a table that compares baselines with the model's metrics, without rows if nothing was
    compared.
    """
    rows = []
    for reading in readings:
        for baseline in reading.comparisons:
            value, between = reading.value - baseline.value, "-"
            text = f"{100 * value:+.2f} points" if reading.row.in_per_cent else f"{value:+.4g}"
            if (apart := baseline.difference) is not None:
                between = f"{100 * apart.low:+.2f} to {100 * apart.high:+.2f}"
            values = [
                reading.row.text(value, page=True) for value in (reading.value, baseline.value)
            ]
            rows.append([baseline.label, text, between, metric_label(reading.name), *values])
    head = ["baseline", "difference", "95% interval", "measure", "model value", "baseline value"]
    return Table(head, rows)


def comparison_text(reading: MetricReading) -> str:
    """Return the value of a metric with the interval, and the baselines measured on the same
    images.
    """
    text = reading.row.text(reading.value)
    if reading.interval:
        text += f" ({reading.interval.low:.1%} to {reading.interval.high:.1%})"
    parts = [f"{text} of {reading.images_text}"]
    for baseline in reading.comparisons:
        part = f"{baseline.label} {reading.row.text(baseline.value)}"
        if (apart := baseline.difference) is not None:
            low, high = 100 * apart.low, 100 * apart.high
            part += f": {100 * apart.mean:+.1f} points ({low:+.1f} to {high:+.1f})"
        parts.append(part)
    if reading.draws:
        one_draw = "a single draw (the interval does not cover other draws)"
        parts.append(f"mean of {reading.draws} draws" if reading.draws > 1 else one_draw)
    return "; ".join(parts)


def verdict(readings: Sequence[MetricReading]) -> str:
    """Return what the baselines say about a model, or an empty string if nothing was compared.

    The verdict covers the features compared with fresh weights, the model's own task, and a
    classifier.
    """
    parts = (_features_verdict(readings), _task_verdict(readings), classifier_verdict(readings))
    return " ".join(filter(None, parts))


def _features_verdict(readings: Sequence[MetricReading]) -> str:
    """Return whether features of the encoder are better or worse than features of fresh weights,
    and whether always naming the commonest class does as well.

    The verdict uses the paired differences in the first measure (`metrics.measure_rank`): with
    several measures, each at 95%, one is soon beyond zero by chance. The text is empty if nothing
    was compared. There is no verdict if the measured images chose the weights.
    """
    probed = [
        reading for reading in readings if any(baseline.place for baseline in reading.comparisons)
    ]
    # An encoder with fresh weights is compared with the commonest class only.
    compared = [
        reading
        for reading in probed
        if any(baseline.place == FRESH for baseline in reading.comparisons)
    ]
    if not probed:
        return ""
    first = min(compared or probed, key=lambda reading: measure_rank(reading.name))
    said = {
        WON: "are better than untrained features",
        LOST: "are worse than untrained features",
        OPEN: "cannot be distinguished from untrained features",
    }
    claims = []
    for fresh in (baseline for baseline in first.comparisons if baseline.place == FRESH):
        if fresh.difference is None:
            return f"There is no verdict on the features: {NO_VERDICT}."
        claims.append(said[fresh.verb])
    if is_no_better(first):
        # Untrained features below the commonest class are easily beaten, so a win over them is not
        # reported.
        claims = [*(claim for claim in claims if claim != said[WON]), f"are {NO_BETTER}"]
    if not claims:
        return ""
    text = f"By {first.row.words}, the features of this encoder {' and '.join(claims)}."
    beside = [
        baseline for each in readings for baseline in each.comparisons if baseline.place == PIXELS
    ]
    pixels = {baseline.verb for baseline in beside if baseline.difference}
    if LOST in pixels:
        text += " By k-NN, the pixels at 8 x 8 are better than the features."
    elif OPEN in pixels:
        text += " By k-NN, the features cannot be distinguished from the pixels at 8 x 8."
    return text


def is_no_better(reading: MetricReading) -> bool:
    """Return whether a classifier or probe is measured to be no better than always naming the
    commonest class.

    The interval of the difference includes zero or lies below zero.
    """
    return any(
        baseline.label.endswith(COMMONEST_CLASS) and baseline.verb in (OPEN, LOST)
        for baseline in reading.comparisons
    )


def classifier_verdict(readings: Sequence[MetricReading]) -> str:
    """Return a sentence if a classifier is no better on test images than always naming the
    commonest class.

    Otherwise return an empty string.
    """
    top1 = [reading for reading in readings if reading.name == TESTED[0] and is_no_better(reading)]
    return f"{top1[0].row.words} is {NO_BETTER} ({top1[0].images_text})." if top1 else ""


def _task_verdict(readings: Sequence[MetricReading]) -> str:
    """Return which baselines of the model's own task the model beats, and which not.

    The images are named if they are few, or if several splits were measured. There is no verdict if
    a metric of that task is not finite, because the other metrics of such a network mean nothing.
    """
    for reading in readings:
        if not math.isfinite(reading.value) and not reading.name.startswith(PROBED):
            return (
                f"There is no verdict on the training task:"
                f" {metric_label(reading.name)} is not finite."
            )
    comparisons = [
        (measured, baseline)
        for measured in readings
        for baseline in measured.comparisons
        if not baseline.place
    ]
    several = len({measured.split for measured, _ in comparisons}) > 1
    by_verb: dict[str, list[str]] = {verb: [] for verb in (WON, AHEAD, LOST, OPEN, FEW)}
    for reading, predictor in comparisons:
        where = f" on {reading.images_text}" if several or reading.of_few else ""
        values = " against ".join(
            reading.row.text(value, page=True) for value in (reading.value, predictor.value)
        )
        by_verb[predictor.verb].append(f"{predictor.label} ({values}{where})")
    parts = [f"{verb} {_listed(texts)}" for verb, texts in by_verb.items() if texts]
    return f"At the training task, the model {', and '.join(parts)}." if parts else ""


def probe_prefix(name: str) -> str:
    """Return the key of PROBE_BASELINES that a metric belongs to, or an empty string for all other
    metrics.

    A metric of the encoder itself belongs to none.
    """
    last = name.rpartition("/")[2]
    return next((start for start in PROBE_BASELINES if last.startswith(start)), "")


def _listed(texts: Sequence[str]) -> str:
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)
