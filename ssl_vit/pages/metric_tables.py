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
    is_of_model,
    label,
    place,
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


class Reading(NamedTuple):
    """Metric of the model as readers see it.

    Attributes:
        name, value, split: Name, value and split of the metric; `row` describes it.
        images: Number of independent images measured; 0 if unknown.
        copies: How many of these images are copies of each other.
        where: The images in words, such as `9 held-out images`.
        of_few: Whether fewer than FEW_IMAGES distinct images are known to be measured.
        interval: Interval of a share over distinct images and, for few-shot, over draws; None for
            other metrics or without images.
        draws: Number of random draws that a few-shot accuracy averages; 0 for other metrics.
        beside: Baselines that the metric is compared with, in the order of measuring.
    """

    name: str
    row: Metric
    value: float
    split: str
    images: int
    copies: Copies | None
    where: str
    of_few: bool
    interval: Interval | None
    draws: int
    beside: list["Comparison"]

    @property
    def count_text(self) -> str:
        """Number of images and, if there are copies, of distinct images."""
        return f"{self.images:,}{copies_text(self.copies)}"


class Comparison(NamedTuple):
    """Comparison of a reading with a baseline.

    Attributes:
        called: Name of the baseline for readers.
        place: Key of PROBE_BASELINES if the baseline replaces the encoder; otherwise empty.
        value: Value of the baseline.
        difference: Paired difference, the reading minus the baseline; None if it was not measured.
        verb: Whether the model beats the baseline, in words.
    """

    called: str
    place: str
    value: float
    difference: Difference | None
    verb: str


def readings(metrics: Mapping[str, Measured], measured_on: Images = None) -> list[Reading]:
    """Return the metrics of the model, each with the measured baselines of the same split.

    Parts of a joint objective are separate metrics. A metric that is not finite has no images and
    no comparisons.
    """
    found: dict[str, Reading] = {}
    for name, entry in metrics.items():
        if not is_of_model(name):
            continue
        row, finite = find_metric(name), math.isfinite(entry.value)
        images = independent_cases(entry.n, entry.split, measured_on) if finite else 0
        has_interval = row.unit == SHARE and images > 0 and 0 <= entry.value <= 1
        distinct = entry.copies.distinct if entry.copies else images
        found[name] = Reading(
            name=name,
            row=row,
            value=entry.value,
            split=entry.split,
            images=images,
            copies=entry.copies,
            where=_where(entry.split, images) + copies_text(entry.copies),
            of_few=finite and entry.split in (measured_on or {}) and distinct < FEW_IMAGES,
            interval=entry.interval(images) if has_interval else None,
            draws=entry.draws.count if entry.draws else int(is_few_shot(name)),
            beside=[],
        )
    for name, entry in metrics.items():
        baseline = find_baseline(name)
        measure = compared_with(name, {one for one in found if found[one].split == entry.split})
        finite = math.isfinite(entry.value)
        if baseline and finite and measure and math.isfinite((own := found[measure]).value):
            called = f"{name.rpartition('/')[0]} {baseline.called}".lstrip()
            place, verb = probe_place(name), _verb(own, entry)
            own.beside.append(Comparison(called, place, entry.value, entry.difference, verb))
    return list(found.values())


def _where(split: str, images: int) -> str:
    count = f"{images:,} " if images else ""
    return f"{count}{SPLIT_NAMES.get(split, split)} image{'s' * (images != 1)}"


def independent_cases(n: int | None, split: str, measured_on: Images) -> int:
    """Return how many independent cases `n` cases of a split count as.

    Patches count as the number of images, because patches of an image are alike. If the number of
    images is not recorded, all cases count.
    """
    return min(n or 0, (measured_on or {}).get(split, n or 0))


def _verb(own: Reading, baseline: Measured) -> str:
    """Return whether a metric beats a baseline, in words.

    A measured paired difference decides: the answer is OPEN if the interval of the difference
    includes zero. Without one, a share is OPEN if its interval includes the baseline, and a metric
    is OPEN if both values look the same on a page. A metric without an interval is FEW if few
    images were measured, and otherwise at best AHEAD.
    """
    row, there = own.row, baseline.value
    if (apart := baseline.difference) is not None:
        if apart.low <= 0 <= apart.high:
            return OPEN
        return WON if (apart.low > 0) == row.higher else LOST
    if own.interval is None and own.of_few:
        return FEW
    if own.interval is not None and own.interval.low <= there <= own.interval.high:
        return OPEN
    if row.text(own.value, page=True) == row.text(there, page=True):
        return OPEN  # for example 4.136 against 4.136
    if (own.value > there) != row.higher:
        return LOST
    return AHEAD if own.interval is None else WON


def results(found: Sequence[Reading]) -> Table:
    """Return a table of the model's metrics, without the baselines."""
    rows = []
    for one in found:
        ends = f"{one.interval.low:.2%} to {one.interval.high:.2%}" if one.interval else "-"
        value = one.row.text(one.value, page=True)
        rows.append([label(one.name), value, ends, one.split, one.count_text])
    return Table(["measure", "value", "95% interval", "split", "n"], rows)


def baselines(found: Sequence[Reading]) -> Table:
    """Return a table that compares baselines with the model's metrics, without rows if nothing was
    compared.
    """
    rows = []
    for one in found:
        for other in one.beside:
            value, between = one.value - other.value, "-"
            text = f"{100 * value:+.2f} points" if one.row.in_per_cent else f"{value:+.4g}"
            if (apart := other.difference) is not None:
                between = f"{100 * apart.low:+.2f} to {100 * apart.high:+.2f}"
            values = [one.row.text(value, page=True) for value in (one.value, other.value)]
            rows.append([other.called, text, between, label(one.name), *values])
    head = ["baseline", "difference", "95% interval", "measure", "the model's", "the baseline's"]
    return Table(head, rows)


def beside_text(one: Reading) -> str:
    """Return the value of a metric with the interval, and the baselines measured on the same
    images.
    """
    text = one.row.text(one.value)
    if one.interval:
        text += f" ({one.interval.low:.1%} to {one.interval.high:.1%})"
    parts = [f"{text} of {one.where}"]
    for other in one.beside:
        part = f"{other.called} {one.row.text(other.value)}"
        if (apart := other.difference) is not None:
            low, high = 100 * apart.low, 100 * apart.high
            part += f": {100 * apart.mean:+.1f} points ({low:+.1f} to {high:+.1f})"
        parts.append(part)
    if one.draws:
        one_draw = "a single draw (the interval does not cover other draws)"
        parts.append(f"mean of {one.draws} draws" if one.draws > 1 else one_draw)
    return "; ".join(parts)


def verdict(found: Sequence[Reading]) -> str:
    """Return what the baselines say about a model, or an empty string if nothing was compared.

    The verdict covers the features compared with fresh weights, the model's own task, and a
    classifier.
    """
    parts = (_features_verdict(found), _task_verdict(found), classifier_verdict(found))
    return " ".join(filter(None, parts))


def _features_verdict(found: Sequence[Reading]) -> str:
    """Return whether features of the encoder are better or worse than features of fresh weights,
    and whether always naming the commonest class does as well.

    The verdict uses the paired differences in the first measure (`metrics.place`): with several
    measures, each at 95%, one is soon beyond zero by chance. The text is empty if nothing was
    compared. There is no verdict if the measured images chose the weights.
    """
    probed = [one for one in found if any(other.place for other in one.beside)]
    # An encoder with fresh weights is compared with the commonest class only.
    compared = [one for one in probed if any(other.place == FRESH for other in one.beside)]
    if not probed:
        return ""
    one = min(compared or probed, key=lambda reading: place(reading.name))
    said = {
        WON: "are better than untrained features",
        LOST: "are worse than untrained features",
        OPEN: "cannot be distinguished from untrained features",
    }
    claims = []
    for fresh in (other for other in one.beside if other.place == FRESH):
        if fresh.difference is None:
            return f"There is no verdict on the features: {NO_VERDICT}."
        claims.append(said[fresh.verb])
    if is_no_better(one):
        # Untrained features below the commonest class are easily beaten, so a win over them is not
        # reported.
        claims = [*(claim for claim in claims if claim != said[WON]), f"are {NO_BETTER}"]
    if not claims:
        return ""
    text = f"{one.row.words} features of this encoder {' and '.join(claims)}."
    beside = [other for each in found for other in each.beside if other.place == PIXELS]
    pixels = {other.verb for other in beside if other.difference}
    if LOST in pixels:
        text += " By k-NN, the pixels at 8 x 8 are better than the features."
    elif OPEN in pixels:
        text += " By k-NN, the features cannot be distinguished from the pixels at 8 x 8."
    return text


def is_no_better(one: Reading) -> bool:
    """Return whether a classifier or probe is measured to be no better than always naming the
    commonest class.

    The interval of the difference includes zero or lies below zero.
    """
    return any(
        other.called.endswith(COMMONEST_CLASS) and other.verb in (OPEN, LOST)
        for other in one.beside
    )


def classifier_verdict(found: Sequence[Reading]) -> str:
    """Return a sentence if a classifier is no better on test images than always naming the
    commonest class.

    Otherwise return an empty string.
    """
    top1 = [one for one in found if one.name == TESTED[0] and is_no_better(one)]
    return f"{top1[0].row.words} is {NO_BETTER} ({top1[0].where})." if top1 else ""


def _task_verdict(found: Sequence[Reading]) -> str:
    """Return which baselines of the model's own task the model beats, and which not.

    The images are named if they are few, or if several splits were measured. There is no verdict if
    a metric of that task is not finite, because the other metrics of such a network mean nothing.
    """
    for one in found:
        if not math.isfinite(one.value) and not one.name.startswith(PROBED):
            return f"There is no verdict on the training task: {label(one.name)} is not finite."
    own = [(one, other) for one in found for other in one.beside if not other.place]
    several = len({one.split for one, _ in own}) > 1
    by_verb: dict[str, list[str]] = {verb: [] for verb in (WON, AHEAD, LOST, OPEN, FEW)}
    for one, other in own:
        where = f" on {one.where}" if several or one.of_few else ""
        values = " against ".join(
            one.row.text(value, page=True) for value in (one.value, other.value)
        )
        by_verb[other.verb].append(f"{other.called} ({values}{where})")
    parts = [f"{verb} {_listed(texts)}" for verb, texts in by_verb.items() if texts]
    return f"At the training task, the model {', and '.join(parts)}." if parts else ""


def probe_place(name: str) -> str:
    """Return the key of PROBE_BASELINES that a metric belongs to, or an empty string for all other
    metrics.

    A metric of the encoder itself belongs to none.
    """
    last = name.rpartition("/")[2]
    return next((start for start in PROBE_BASELINES if last.startswith(start)), "")


def _listed(texts: Sequence[str]) -> str:
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)
