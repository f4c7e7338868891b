"""Metrics and baselines as tables and sentences of a model card. No torch."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..config.records.run import Measured
from ..formatting import escape_markdown, inline_code, markdown_table
from ..metrics import (
    LOSS,
    SHARE,
    compared_with,
    find_baseline,
    find_metric,
    is_of_model,
)
from ..stats import Interval, proportion

Images = Mapping[str, int] | None  # {split: how many were measured on}, as result.json has it


class ResultRow(NamedTuple):
    """A metric of the model as texts."""

    name: str
    meaning: str
    split: str
    value: str
    interval: str
    n: str


HEAD = ("measure", "what it is", "split", "value", "95% interval", "n")


def results(metrics: Mapping[str, Measured], measured_on: Images = None) -> str:
    """The table of the model's metrics; empty if there are none."""
    rows = [
        (inline_code(row.name), row.meaning, escape_markdown(row.split), *row[3:])
        for row in result_rows(metrics, measured_on)
    ]
    return markdown_table(HEAD, rows) if rows else ""


def result_rows(metrics: Mapping[str, Measured], measured_on: Images = None) -> list[ResultRow]:
    """The model's metrics, without the baselines."""
    rows = []
    for name, entry in metrics.items():
        if not is_of_model(name):
            continue
        value = entry.value
        n = independent_cases(entry, measured_on) if math.isfinite(value) else 0
        found = interval(name, value, n)
        text = f"{found.low:.2%} to {found.high:.2%}" if found else "-"
        sentence = find_metric(name).sentence or "-"
        shown = f"{value:.2%}" if found else number(name, value)
        rows.append(ResultRow(name, sentence, entry.split, shown, text, f"{n:,}"))
    return rows


def independent_cases(entry: Measured, measured_on: Images) -> int:
    """As how many independent cases a metric counts: of patches so many as there are images, as
    those of one image are alike; all where the number of images is not recorded."""
    n = entry.n or 0
    return min(n, (measured_on or {}).get(entry.split, n))


def interval(name: str, share: float, n: int) -> Interval | None:
    """The interval of a share of independent cases; None without cases, and for other metrics."""
    row = find_metric(name)
    known = row.unit == SHARE and row.independent and n > 0 and 0 <= share <= 1
    return proportion(share, n) if known else None


def _in_percent(name: str) -> bool:
    """Tables have the probes' shares as plain numbers."""
    row = find_metric(name)
    return row.unit == SHARE and row.listed


def number(name: str, value: float) -> str:
    return f"{value:.2%}" if _in_percent(name) else f"{value:.4g}"


def difference(name: str, apart: float) -> str:
    """A difference of two values with its sign; of shares in points."""
    return f"{100 * apart:+.2f} points" if _in_percent(name) else f"{apart:+.4g}"


def with_count(name: str, entry: Measured, measured_on: Mapping[str, int]) -> str:
    """A metric's value and its `case_count`; what is not finite is of none."""
    text = number(name, entry.value)
    count = case_count(entry, measured_on)
    return f"{text} (n = {count:,})" if count and math.isfinite(entry.value) else text


def case_count(entry: Measured, measured_on: Mapping[str, int]) -> int | None:
    """The number of images that a metric was measured on; where that is not recorded
    (`measured_on` is empty), the number of cases, be they patches."""
    return measured_on.get(entry.split) or entry.n


WON, LOST, OPEN = "beats", "does not beat", "cannot be told from"


class BaselineComparison(NamedTuple):
    """A baseline's name and value, and name, value and count of the metric that it is compared
    with, and the split of both; `called` and `guess` as of its row."""

    baseline: str
    called: str
    guess: str
    there: float
    measure: str
    here: float
    n: int
    split: str = ""

    @property
    def verb(self) -> str:
        """Whether the model beats it; for a share, OPEN if its interval contains the baseline."""
        row = find_metric(self.measure)
        ends = interval(self.measure, self.here, self.n) or (self.here, self.here)
        if row.unit == SHARE and ends[0] <= self.there <= ends[1]:
            return OPEN
        won = self.here > self.there if row.higher else self.here < self.there
        return WON if won else LOST

    def text(self, where: str = "") -> str:
        """`where` says on which images, where others beside it are of others."""
        values = f"{number(self.measure, self.here)} against {number(self.measure, self.there)}"
        return f"{self.called} ({values}{where})"


def comparisons(
    metrics: Mapping[str, Measured], measured_on: Images = None
) -> Iterator[BaselineComparison]:
    """Each measured baseline with the model's own metric; the parts of a joint objective
    separately."""
    for name, entry in metrics.items():
        row, measure = find_baseline(name), compared_with(name, metrics)
        if row and measure:
            own = metrics[measure]
            values = entry.value, measure, own.value, independent_cases(own, measured_on), own.split
            yield BaselineComparison(name, row.called, row.guess, *values)


BASELINES_HEAD = ("baseline", "it guesses", "its value", "the model's", "measure")


def baselines(fought: Sequence[BaselineComparison]) -> str:
    """The table of the baselines beside the model's metrics."""
    rows = []
    for one in fought:
        there, here = number(one.measure, one.there), number(one.measure, one.here)
        rows.append((inline_code(one.baseline), one.guess, there, here, inline_code(one.measure)))
    return markdown_table(BASELINES_HEAD, rows)


def finite_comparisons(
    metrics: Mapping[str, Measured], measured_on: Images
) -> list[BaselineComparison]:
    """Those that a verdict is about."""
    return [one for one in comparisons(metrics, measured_on) if math.isfinite(one.here)]


def verdict(fought: Sequence[BaselineComparison], measured_on: Images = None) -> str:
    """One sentence: which baselines the model beats, and which it does not; of several sets of
    images also on which.

    Args:
        fought: the comparisons.
        measured_on: {split: images}, as result.json has it.
    """
    several = len({one.split for one in fought}) > 1
    by_verb: dict[str, list[str]] = {verb: [] for verb in (WON, LOST, OPEN)}
    for one in fought:
        where = f" on {_images(one.split, measured_on or {})}" if several else ""
        by_verb[one.verb].append(one.text(where))
    parts = [f"{verb} {_listed(texts)}" for verb, texts in by_verb.items() if texts]
    return f"The model {', and '.join(parts)}."


def _images(split: str, measured_on: Mapping[str, int]) -> str:
    """As `9 held-out images`."""
    name = {"validation": "held-out", "train": "training"}.get(split, split)
    return f"{measured_on[split]:,} {name} images" if split in measured_on else f"{name} images"


def _listed(texts: Sequence[str]) -> str:
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def index(
    metrics: Mapping[str, Measured], task: str, data: Mapping[str, str]
) -> list[dict[str, Any]]:
    """`results` of the front matter's model-index, as the Hub reads them: losses and shares by
    split."""
    rows = {name: find_metric(name) for name in metrics}
    known = {
        name: entry
        for name, entry in metrics.items()
        if rows[name].listed or rows[name].unit == LOSS
    }
    return [
        {
            "task": {"type": task},
            "dataset": {**data, "split": split},
            "metrics": [
                {
                    "type": {LOSS: "loss", SHARE: "accuracy"}.get(rows[name].unit, rows[name].name),
                    "name": name,
                    "value": entry.value,
                }
                for name, entry in known.items()
                if entry.split == split
            ],
        }
        for split in dict.fromkeys(entry.split for entry in known.values())
    ]
