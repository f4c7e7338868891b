"""Show the metrics and baselines of a run as tables: on the terminal, on pages, in model cards and
in notebooks. This module does not import torch.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ..formatting import FEW_IMAGES, SPLIT_NAMES, copies_text, plain_table
from ..measurements import (
    COMMONEST,
    COMMONEST_CLASS,
    INITIAL,
    PIXEL_SHARE,
    PIXELS,
    SHARE,
    SUBSTITUTES,
    UNRANKED,
    UNTRAINED,
    Metric,
    MetricKey,
    find_baseline,
    find_metric,
    flat_name,
)
from ..metrics import (
    MEASURES,
    compared_with,
    is_frozen_metric,
    is_model_metric,
    is_shown_otherwise,
    metric_label,
)
from ..recipe.records.run import (
    ConfidenceInterval,
    Copies,
    Difference,
    Measurement,
    TrainingCopies,
    independent_cases,
)
from .blocks import Table

Images = Mapping[str, int] | None  # {split: number of images measured}, as in result.json

# Whether the model is better than a baseline
WON, LOST, OPEN = "yes", "no", "not known"
AHEAD = "yes, without an interval"  # for example by a loss, which is not recorded per image
FEW = "too few images"
# Heading of the column of each baseline that replaces the encoder
COLUMNS = {
    UNTRAINED: "untrained",
    INITIAL: "initial weights",
    PIXELS: "pixels at 8 x 8",
    COMMONEST: "commonest class",
}
WITH_DIFFERENCE = (UNTRAINED, INITIAL)  # baselines whose difference is in the next column
DIFFERENCE = "difference (95% CI)"


class MetricReading(NamedTuple):
    """Metric of the model as readers see it.

    Attributes:
        key: The metric.
        row: Description of the metric.
        value: Value of the metric.
        split: Split that the metric was measured on.
        images: Number of independent images measured; 0 if unknown.
        copies: How many of these images are copies of each other.
        images_text: The images in words, such as `9 held-out images`.
        has_few_images: Whether fewer than FEW_IMAGES distinct images are known to be measured.
        interval: 95% interval of a share, such as an accuracy, over distinct images. For a few-shot
            accuracy, the interval is also over draws. None for metrics that are not shares, or if
            no interval was recorded.
        draws: Number of random draws of training images that a few-shot accuracy averages. 0 for
            other metrics.
        comparisons: Baselines that the metric is compared with, in the order of measuring.
    """

    key: MetricKey
    row: Metric
    value: float
    split: str
    images: int
    copies: Copies | None
    images_text: str
    has_few_images: bool
    interval: ConfidenceInterval | None
    draws: int
    comparisons: list["BaselineComparison"]

    @property
    def name(self) -> str:
        return flat_name(self.key)

    @property
    def count_text(self) -> str:
        """Number of images and, if there are copies, of distinct images."""
        return f"{self.images:,}{copies_text(self.copies)}"


class BaselineComparison(NamedTuple):
    """Comparison of a reading with a baseline.

    Attributes:
        label: Name of the baseline for readers.
        substitute: What replaces the encoder in the baseline: a key of SUBSTITUTES, such as
            UNTRAINED. Empty if the baseline replaces no encoder.
        column: Column of the baseline in a table. COMMONEST if the baseline always names the
            commonest class. Otherwise the substitute, or the label if there is no substitute.
        value: Value of the baseline.
        difference: Paired difference, the reading minus the baseline. None if it was not measured.
        better: Whether the model is better than the baseline, in words.
    """

    label: str
    substitute: str
    column: str
    value: float
    difference: Difference | None
    better: str


def read_metrics(
    measurements: Iterable[Measurement], measured_on: Images = None
) -> list[MetricReading]:
    """Return the metrics of the model, each with the measured baselines of the same split.

    Each part of a joint objective has its own metrics. A metric that is not finite has `images` 0
    and no comparisons.

    Args:
        measurements: Measurements of metrics and baselines, from result.json.
        measured_on: `{split: number of measured images}`, or None if it is not recorded.
    """
    entries = {measurement.key: measurement for measurement in measurements}
    readings: dict[MetricKey, MetricReading] = {}
    for key, entry in entries.items():
        if not is_model_metric(key):
            continue
        row, is_finite = find_metric(key), math.isfinite(entry.value)
        images = independent_cases(entry.n, entry.split, measured_on) if is_finite else 0
        distinct = entry.copies.distinct if entry.copies else images
        is_counted = entry.split in (measured_on or {})
        readings[key] = MetricReading(
            key=key,
            row=row,
            value=entry.value,
            split=entry.split,
            images=images,
            copies=entry.copies,
            images_text=_images_text(entry.split, images) + copies_text(entry.copies),
            has_few_images=is_finite and is_counted and distinct < FEW_IMAGES,
            interval=entry.interval if row.unit == SHARE else None,
            # the recorded number of draws, else 1 for a few-shot accuracy and 0 for other metrics
            draws=entry.draws or int(key.shots != ""),
            comparisons=[],
        )
    for key, entry in entries.items():
        baseline = find_baseline(key)
        same_split = {other for other in readings if readings[other].split == entry.split}
        metric = compared_with(key, same_split)
        if baseline is None or not metric or not math.isfinite(entry.value):
            continue
        reading = readings[metric]
        if math.isfinite(reading.value):
            substitute = key.subject if key.subject in SUBSTITUTES else ""
            is_commonest_class = baseline.called.endswith(COMMONEST_CLASS)
            column = COMMONEST if is_commonest_class else substitute or baseline.called
            difference = entries[metric].differences.get(key.subject)
            better = _judge_against_baseline(reading, entry.value, difference)
            reading.comparisons.append(
                BaselineComparison(
                    baseline.called, substitute, column, entry.value, difference, better
                )
            )
    return list(readings.values())


def _images_text(split: str, images: int) -> str:
    count = f"{images:,} " if images else ""
    plural = "" if images == 1 else "s"
    return f"{count}{SPLIT_NAMES.get(split, split)} image{plural}"


def _judge_against_baseline(
    reading: MetricReading, baseline_value: float, difference: Difference | None
) -> str:
    """Return in words whether a metric of the model is better than a baseline.

    If the paired difference was measured, the 95% interval of the difference decides:
    - OPEN if the interval includes zero,
    - WON if the whole interval is on the better side of zero,
    - LOST if the whole interval is on the worse side of zero.

    Otherwise the two values decide. The first of these cases counts:
    - FEW if the metric has no interval and was measured on few images,
    - OPEN if the interval of the metric includes the value of the baseline,
    - OPEN if both values are displayed as the same number,
    - LOST if the metric is worse than the baseline,
    - AHEAD if the metric is better and has no interval,
    - WON if the metric is better and has an interval.

    If it is not known which values of the metric are better, the text is empty.

    Args:
        reading: Metric of the model.
        baseline_value: Value of the baseline on the same split.
        difference: Paired difference, the metric minus the baseline, if it was measured.
    """
    row = reading.row  # `row.higher` says whether larger values are better
    if row.unit == UNRANKED:
        return ""
    interval = reading.interval
    if difference is not None:
        if difference.low <= 0 <= difference.high:
            return OPEN
        is_higher = difference.low > 0
        # won: the metric is higher and higher is better, or it is lower and lower is better
        return WON if is_higher == row.higher else LOST
    if interval is None and reading.has_few_images:
        return FEW
    if interval is not None and interval.low <= baseline_value <= interval.high:
        return OPEN
    if row.text(reading.value, page=True) == row.text(baseline_value, page=True):
        return OPEN  # for example 4.136 against 4.136
    is_higher = reading.value > baseline_value
    # lost: the metric is higher and lower is better, or it is lower and higher is better
    if is_higher != row.higher:
        return LOST
    return AHEAD if interval is None else WON


class TitledTable(NamedTuple):
    """Table about the encoder's features ("features") or about other results ("results")."""

    title: str
    table: Table


def tables(readings: Sequence[MetricReading], page: bool = False) -> list[TitledTable]:
    """Return the metrics of a run as tables, at most two tables for each split.

    A table titled "features" has the metrics of the frozen encoder, such as k-NN. A table titled
    "results" has all other metrics, such as the training loss. Tables of features come first. The
    first heading of a table is the number of measured images, such as `400 test images`. A metric
    with another number of images has this number after its name, such as `k-NN (n = 380)`.

    Args:
        readings: Metrics of the run.
        page: Whether the tables are for a page. A page has more digits than the terminal, and also
            shows the metrics that the terminal shows elsewhere (`is_shown_otherwise`).
    """
    # {(whether the metrics are of the frozen encoder, split): metrics}
    groups: dict[tuple[bool, str], list[MetricReading]] = {}
    keys = {reading.key for reading in readings}
    for reading in readings:
        is_shown = page or reading.comparisons or not is_shown_otherwise(reading.key, keys)
        # A metric belongs to the frozen encoder if it is a share of pixels (segmentation), a probe,
        # or was also measured on a substitute of the encoder, such as untrained weights
        has_substitute = any(baseline.substitute for baseline in reading.comparisons)
        is_probe = reading.row.unit in (PIXEL_SHARE, UNRANKED) or is_frozen_metric(reading.key)
        if is_shown:
            is_of_encoder = is_probe or has_substitute
            groups.setdefault((is_of_encoder, reading.split), []).append(reading)
    features, results = [], []
    for (is_of_encoder, _), group in groups.items():
        if is_of_encoder:
            features.append(TitledTable("features", _features_table(group, page)))
        else:
            results.append(TitledTable("results", _task_table(group, page)))
    return features + results


def tables_without_copies(copies: TrainingCopies, page: bool = False) -> list[Table]:
    """Return the results without test images that are copies of training images, as tables."""
    images = {"test": copies.of - copies.images}
    readings = read_metrics(copies.measurements, images)
    return [
        table._replace(head=[f"without the copies: {table.head[0]}", *table.head[1:]])
        for _, table in tables(readings, page)
    ]


def without_intervals(reading: MetricReading) -> MetricReading:
    """Return a reading without the interval and the judgements that follow from the interval."""
    comparisons = [baseline._replace(better="") for baseline in reading.comparisons]
    return reading._replace(interval=None, comparisons=comparisons)


def _features_table(readings: Sequence[MetricReading], page: bool) -> Table:
    """Return a table with a row for each metric and a column for each network or baseline.

    The first two columns are the metric's name and the value of this encoder. The measured
    baselines follow: first the baselines in COLUMNS, such as "untrained" (the same network with
    untrained weights), and then all other baselines. The column of untrained weights and the column
    of initial weights are each followed by a column of differences.

    Args:
        readings: Metrics of the rows, all of one split.
        page: Whether values have the digits of a page, which are more than on the terminal.
    """
    baselines_per_reading = [
        {baseline.column: baseline for baseline in reading.comparisons} for reading in readings
    ]
    measured = {column for baselines in baselines_per_reading for column in baselines}
    columns = [column for column in COLUMNS if column in measured]
    columns += sorted(measured - COLUMNS.keys())
    largest = max(readings, key=lambda reading: reading.images)
    head = [largest.images_text, "this encoder"]
    for column in columns:
        head.append(COLUMNS.get(column, column))
        if column in WITH_DIFFERENCE:
            head.append(DIFFERENCE)
    rows = []
    for reading, baselines in zip(readings, baselines_per_reading, strict=True):
        row = [measure_text(reading, largest), value_text(reading, page)]
        for column in columns:
            baseline = baselines.get(column)
            row.append(reading.row.text(baseline.value, page) if baseline else "")
            if column in WITH_DIFFERENCE:
                row.append(_difference_text(reading, baseline, page) if baseline else "")
        rows.append(row)
    return Table(head, rows)


def _task_table(readings: Sequence[MetricReading], page: bool) -> Table:
    """Return a table of the metrics of the training task, with a row for each baseline of a metric.

    A metric without baselines has one row. If a metric has several baselines, the first column also
    says which baseline a row is about. The first heading of the table is the number of measured
    images, such as "400 test images".

    Args:
        readings: Metrics of the rows, all of one split.
        page: Whether values have the digits of a page, which are more than on the terminal.
    """
    largest = max(readings, key=lambda reading: reading.images)
    rows = []
    for reading in readings:
        name, value = measure_text(reading, largest), value_text(reading, page)
        for baseline in reading.comparisons:
            against = f", against {baseline.label}" if len(reading.comparisons) > 1 else ""
            to_beat = f"{reading.row.text(baseline.value, page)} ({baseline.label})"
            rows.append([f"{name}{against}", value, to_beat, baseline.better])
        if not reading.comparisons:
            rows.append([name, value, "", ""])
    head = [largest.images_text, "this run", "baseline", "better than the baseline"]
    return Table(head, rows)


def measure_text(reading: MetricReading, largest: MetricReading) -> str:
    """Return the name of a metric for a table, with notes such as "k-NN (n = 380)".

    A few-shot accuracy has a note on the draws, which are random choices of training images. A note
    on n, such as "n = 380", is added if the heading of the table has another number of images or of
    copies. A further note says if there were fewer images than the paper of the measure uses.

    Args:
        reading: Metric to name.
        largest: Metric in the table with the most images, which are named in the heading of the
            table. If this is `reading` itself, there is no note on n.
    """
    notes = []
    if reading.draws == 1:
        notes.append("1 draw, other draws are not in the interval")
    elif reading.draws:
        notes.append(f"{reading.draws} draws")
    if reading.images and (reading.images, reading.copies) != (largest.images, largest.copies):
        notes.append(f"n = {reading.count_text}")
    elif math.isfinite(reading.value) and not reading.images and largest.images:
        notes.append("n unknown")
    measure = MEASURES.get(reading.key.metric)
    if measure and reading.images < measure.images:
        notes.append(f"its paper uses {measure.images:,} images")
    label = metric_label(reading.key)
    return f"{label} ({', '.join(notes)})" if notes else label


def value_text(reading: MetricReading, page: bool = False) -> str:
    """Return the value of a metric with its interval: "10.4% (8.0 to 13.4)"."""
    value, digits = reading.row.text(reading.value, page), 2 if page else 1
    if not reading.interval:
        return value
    low, high = 100 * reading.interval.low, 100 * reading.interval.high
    return f"{value} ({low:.{digits}f} to {high:.{digits}f})"


def _difference_text(reading: MetricReading, baseline: BaselineComparison, page: bool) -> str:
    """Return a metric minus a baseline, such as "+35.5 (+30.2 to +40.8)", in percentage points.

    If the paired difference was measured, the text has this difference with its interval. Otherwise
    the text has the difference of the two values, such as "-0.25 (no interval)". Metrics that are
    not in percent, such as losses, have their own unit and not percentage points.

    Args:
        reading: The metric.
        baseline: The baseline.
        page: Whether the text has the digits of a page, which are more than on the terminal.
    """
    difference = baseline.difference
    digits = 2 if page else 1
    if difference is None:
        value = reading.value - baseline.value
        text = f"{100 * value:+.{digits}f}" if reading.row.in_per_cent else f"{value:+.4g}"
        return f"{text} (no interval)"
    mean, low, high = 100 * difference.mean, 100 * difference.low, 100 * difference.high
    return f"{mean:+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f})"


def differences_table(readings: Sequence[MetricReading]) -> Table:
    """Return the paired differences that `tables` does not show, as a table.

    `tables` shows the differences from untrained and from initial weights (WITH_DIFFERENCE). This
    table has the differences from all other baselines, such as k-NN on pixels.
    """
    rows = []
    for reading in readings:
        for baseline in reading.comparisons:
            if baseline.difference and baseline.substitute not in WITH_DIFFERENCE:
                difference = _difference_text(reading, baseline, page=True)
                # `reading` as the second argument leaves out the note on the number of images
                rows.append([measure_text(reading, reading), baseline.label, difference])
    return Table(["measure", "minus", DIFFERENCE], rows, labels=2)


def text_lines(title: str, table: Table) -> list[str]:
    """Return the lines of a table for the terminal.

    The title is in front of the first line, and blanks are in front of the other lines.
    """
    cells = [[*row] for row in table.rows]
    lines = plain_table(list(table.head), cells)
    return [f"{title:<11} {lines[0]}", *(f"{'':<11} {line}" for line in lines[1:])]


def value_with_fresh(reading: MetricReading) -> str:
    """Describe a metric in one line, with its difference from untrained weights if measured.

    For example: "76.5% (72.1 to 80.4) of 400 test images, untrained 41.0%: +35.5 (+30.2 to +40.8)".
    """
    parts = [f"{value_text(reading)} of {reading.images_text}"]
    for baseline in reading.comparisons:
        if baseline.substitute == UNTRAINED:
            value = reading.row.text(baseline.value)
            difference = _difference_text(reading, baseline, page=False)
            parts.append(f"{COLUMNS[UNTRAINED]} {value}: {difference}")
    return ", ".join(parts)


def is_no_better(reading: MetricReading) -> bool:
    """Return whether a metric is not shown to be better than always naming the commonest class.

    The comparison with the commonest class is then OPEN (not known) or LOST. Without such a
    comparison, the result is False.
    """
    return any(
        baseline.column == COMMONEST and baseline.better in (OPEN, LOST)
        for baseline in reading.comparisons
    )
