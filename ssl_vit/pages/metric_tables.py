"""Metrics and baselines as tables and sentences of pages and model cards. No torch."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ..formatting import FEW_IMAGES, SPLIT_NAMES
from ..metrics import (
    COMMONEST,
    COMMONEST_CLASS,
    FRESH,
    MAIN,
    PIXELS,
    PROBE_BASELINES,
    PROBED,
    SHARE,
    compared_with,
    find_baseline,
    find_metric,
    is_of_model,
    label,
)
from ..recipe.records.run import Difference, Measured
from ..stats import Interval, proportion
from .blocks import Table

Images = Mapping[str, int] | None  # {split: how many were measured on}, as result.json has it


def results(metrics: Mapping[str, Measured], measured_on: Images = None) -> Table:
    """The model's metrics, without the baselines."""
    rows = []
    for name, entry in metrics.items():
        if is_of_model(name):
            found = interval(name, entry, measured_on)
            text = f"{found.low:.2%} to {found.high:.2%}" if found else "-"
            n = independent_cases(entry, measured_on) if math.isfinite(entry.value) else 0
            rows.append([label(name), number(name, entry.value), text, entry.split, f"{n:,}"])
    return Table(["measure", "value", "95% interval", "split", "n"], rows)


def independent_cases(entry: Measured, measured_on: Images) -> int:
    """As how many independent cases a metric counts: of patches so many as there are images, as
    those of one image are alike; all where the number of images is not recorded."""
    n = entry.n or 0
    return min(n, (measured_on or {}).get(entry.split, n))


def interval(name: str, entry: Measured, measured_on: Images) -> Interval | None:
    """The interval of a share of independent cases; None without cases, and for other metrics."""
    row, n = find_metric(name), independent_cases(entry, measured_on)
    known = row.unit == SHARE and n > 0 and 0 <= entry.value <= 1
    return proportion(entry.value, n) if known else None


def number(name: str, value: float) -> str:
    return f"{value:.2%}" if find_metric(name).in_per_cent else f"{value:.4g}"


def with_count(name: str, entry: Measured, measured_on: Mapping[str, int]) -> str:
    """A metric's value and its `independent_cases`; what is not finite is of none."""
    text = number(name, entry.value)
    count = independent_cases(entry, measured_on)
    return f"{text} (n = {count:,})" if count and math.isfinite(entry.value) else text


# Why a difference may have no interval
NO_VERDICT = "these images chose its weights, were trained on, lie in groups, or are too few"
# Of a fine-tuned run, of which always naming one class says nothing
NOT_KNOWN = "whether pre-training helped is not known"
WON, LOST, OPEN = "beats", "does not beat", "cannot be told from"
FEW = "is measured on too few images to be compared with"
NO_BETTER = f"no better than naming {COMMONEST_CLASS}"  # though better than fresh weights


class BaselineComparison(NamedTuple):
    """A baseline's name, for readers too (`called`), and value, and the model's metric that it is
    compared with."""

    baseline: str
    called: str
    there: float
    measure: str
    entry: Measured
    measured_on: Images
    difference: Difference | None = None

    @property
    def verb(self) -> str:
        """Whether the model beats it: by their difference in pairs where it was measured, OPEN if
        its interval includes zero; else for a share OPEN if its interval contains the baseline, and
        what has no interval is FEW if it is of few images."""
        row, here = find_metric(self.measure), self.entry.value
        if (apart := self.difference) is not None:
            if apart.low <= 0 <= apart.high:
                return OPEN
            return WON if (apart.low > 0) == row.higher else LOST
        ends = interval(self.measure, self.entry, self.measured_on)
        if ends is None and self.is_of_few:
            return FEW
        if ends is not None and ends.low <= self.there <= ends.high:
            return OPEN
        if number(self.measure, here) == number(self.measure, self.there):
            return OPEN  # as 4.136 against 4.136
        return WON if (here > self.there) == row.higher else LOST

    @property
    def is_of_few(self) -> bool:
        """Whether it is known to be of fewer than FEW_IMAGES images."""
        known = self.entry.split in (self.measured_on or {})
        return known and independent_cases(self.entry, self.measured_on) < FEW_IMAGES

    @property
    def values(self) -> tuple[str, str]:
        """The model's value and the baseline's."""
        return number(self.measure, self.entry.value), number(self.measure, self.there)


def comparisons(
    metrics: Mapping[str, Measured], measured_on: Images = None
) -> Iterator[BaselineComparison]:
    """Each measured baseline with the model's own metric of the same split, where that is finite;
    the parts of a joint objective separately."""
    for name, entry in metrics.items():
        there = {other for other, one in metrics.items() if one.split == entry.split}
        row, measure = find_baseline(name), compared_with(name, there)
        if row and measure and math.isfinite(metrics[measure].value):
            called = f"{name.rpartition('/')[0]} {row.called}".lstrip()
            own, apart = metrics[measure], entry.difference
            yield BaselineComparison(name, called, entry.value, measure, own, measured_on, apart)


def baselines(compared: Sequence[BaselineComparison]) -> Table:
    """The baselines beside the model's metrics."""
    rows = []
    for one in compared:
        share = find_metric(one.measure).in_per_cent
        value, between = one.entry.value - one.there, "-"
        text = f"{100 * value:+.2f} points" if share else f"{value:+.4g}"
        if (apart := one.difference) is not None:
            between = f"{100 * apart.low:+.2f} to {100 * apart.high:+.2f}"
        rows.append([one.called, text, between, label(one.measure), *one.values])
    head = ["baseline", "difference", "95% interval", "measure", "the model's", "the baseline's"]
    return Table(head, rows)


def verdict(compared: Sequence[BaselineComparison]) -> str:
    """What the baselines say of a model: of its features against those of fresh weights, and of its
    own task; empty where nothing was compared."""
    return " ".join(filter(None, (features_verdict(compared), _task_verdict(compared))))


def features_verdict(compared: Sequence[BaselineComparison]) -> str:
    """Whether features of the encoder are better or worse than those of fresh weights, by the
    paired difference in the first of MAIN that was measured: of several, each at 95%, one is soon
    beyond zero by chance. Empty where none was measured, and none where the images that are
    measured on chose the weights."""
    fresh = [one for one in compared if _is_fresh(one.baseline)]
    if not fresh:
        return ""
    one = min(fresh, key=lambda one: _place(one.measure))
    if one.difference is None:
        return f"No verdict on its features: {NO_VERDICT}."
    named = [each for each in compared if _is_of(each.baseline, COMMONEST)]
    no_better = any(each.measure == one.measure and each.verb != WON for each in named)
    # fresh weights that are below the commonest class are easily beaten
    verb = NO_BETTER if one.verb == WON and no_better else one.verb
    said = {
        WON: "are better than untrained ones",
        LOST: "are worse than untrained ones",
        OPEN: "cannot be told from untrained ones",
        NO_BETTER: f"are {NO_BETTER}",
    }
    text = f"{find_metric(one.measure).words} features of this encoder {said[verb]}."
    pixels = {one.verb for one in compared if _is_of(one.baseline, PIXELS) and one.difference}
    if LOST in pixels:
        text += " By k-NN the pixels at 8 x 8 are better."
    elif OPEN in pixels:
        text += " By k-NN they cannot be told from the pixels at 8 x 8."
    return text


def _place(measure: str) -> int:
    """Of a probe's measure among MAIN."""
    name = measure.removeprefix(PROBED)
    return MAIN.index(name) if name in MAIN else len(MAIN)


def fresh_value(measure: str, metrics: Mapping[str, Measured]) -> float | None:
    """What fresh weights reach in a metric on the same images; None where that was not measured."""
    found = (one for one in comparisons(metrics) if one.measure == measure)
    return next((one.there for one in found if _is_fresh(one.baseline)), None)


def _is_fresh(baseline: str) -> bool:
    return _is_of(baseline, FRESH)


def _is_of(baseline: str, start: str) -> bool:
    """Whether a baseline is measured in the encoder's place, as `start` of PROBE_BASELINES says."""
    return baseline.rpartition("/")[2].startswith(start)


def _task_verdict(compared: Sequence[BaselineComparison]) -> str:
    """Which baselines of its own task the model beats, and which it does not; of few images, and of
    several sets of them, also on which."""
    own = [one for one in compared if not is_of_probe(one.baseline)]
    several = len({one.entry.split for one in own}) > 1
    by_verb: dict[str, list[str]] = {verb: [] for verb in (WON, LOST, OPEN, FEW)}
    for one in own:
        split, measured_on = one.entry.split, one.measured_on or {}
        where = f" on {_images(split, measured_on)}" if several or one.is_of_few else ""
        by_verb[one.verb].append(f"{one.called} ({' against '.join(one.values)}{where})")
    parts = [f"{verb} {_listed(texts)}" for verb, texts in by_verb.items() if texts]
    return f"At its own task the model {', and '.join(parts)}." if parts else ""


def is_of_probe(name: str) -> bool:
    """Whether a metric is a probe's of something else than the encoder."""
    return name.rpartition("/")[2].startswith(tuple(PROBE_BASELINES))


def beside_text(name: str, metrics: Mapping[str, Measured], measured_on: Images = None) -> str:
    """A metric's value with its interval and, on the same images, what it is compared with."""
    entry = metrics[name]
    text = find_metric(name).text(entry.value)
    if found := interval(name, entry, measured_on):
        text += f" ({found.low:.1%} to {found.high:.1%})"
    where = SPLIT_NAMES.get(entry.split, entry.split)
    parts = [f"{text} of {independent_cases(entry, measured_on):,} {where} images"]
    for other in comparisons(metrics, measured_on):
        if other.measure != name:
            continue
        part = f"{other.called} {find_metric(name).text(other.there)}"
        if (apart := other.difference) is not None:
            low, high = 100 * apart.low, 100 * apart.high
            part += f": {100 * apart.mean:+.1f} points ({low:+.1f} to {high:+.1f})"
        parts.append(part)
    return "; ".join(parts)


def _images(split: str, measured_on: Mapping[str, int]) -> str:
    """As `9 held-out images`."""
    name = SPLIT_NAMES.get(split, split)
    return f"{measured_on[split]:,} {name} images" if split in measured_on else f"{name} images"


def _listed(texts: Sequence[str]) -> str:
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)
