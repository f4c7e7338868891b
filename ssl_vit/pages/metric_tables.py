"""Metrics and baselines as tables and sentences of a model card. No torch."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..formatting import (
    COMPARED_WITH,
    MEASURED,
    OF_MASKS,
    SHARES,
    escape_markdown,
    inline_code,
    markdown_table,
)
from ..stats import Interval, proportion

KINDS = {
    "masked": "of patches under the mask token",
    "random": "of patches replaced by another",
    "kept": "of corrupted patches that were left as they are",
}
MEANINGS = {
    "loss": "the loss that it was trained with",
    "accuracy": "the share predicted correctly",
    "top1": "the share of images whose class it names first",
    "top5": "the share whose class is among its first five",
    "real": "the share right by ImageNet-ReaL's labels",
    "miou": "mean intersection over union of a linear segmentation probe",
    "pixel_accuracy": "the share of pixels that the segmentation probe classifies correctly",
    "patch_knn": "the share of patches whose class is right by nearest neighbours",
}
MAJORITY = ("majority_miou", "majority_pixel_accuracy", "majority_patch_knn")
# shown in per cent
SHARED = (*SHARES, *OF_MASKS, "commonest", "neighbors", "chance", *MAJORITY)
COUNTED = "corrupted"  # patches of an image; no metric of the model


class Baseline(NamedTuple):
    """A prediction without learning.

    Attributes:
        called: its name.
        guess: what it predicts.
    """

    called: str
    guess: str


BASELINES = {
    "entropy": Baseline(
        "the training colours' entropy", "how often each colour occurs in training"
    ),
    "commonest": Baseline("the commonest colour", "the commonest training colour, always"),
    "neighbors": Baseline("the neighbours' mean", "the mean colour of the nearest intact patches"),
    "variance": Baseline("the training mean", "the mean training colour, always"),
    "neighbors_error": Baseline(
        "the neighbours' mean", "the mean colour of the nearest intact patches"
    ),
    "zero": Baseline("each patch's own mean", "zero for every normalised pixel"),
    "chance_loss": Baseline("the loss of guessing", "the same probability for every answer"),
    "chance": Baseline("guessing", "any answer at random"),
    **dict.fromkeys(
        MAJORITY, Baseline("the commonest class", "the commonest training class, everywhere")
    ),
}


class ResultRow(NamedTuple):
    """A metric of the model as texts."""

    name: str
    meaning: str
    split: str
    value: str
    interval: str
    n: str


HEAD = ("measure", "what it is", "split", "value", "95% interval", "n")


def results(metrics: Mapping[str, Any]) -> str:
    """The table of the model's metrics; empty if there are none."""
    rows = [
        (inline_code(row.name), row.meaning, escape_markdown(row.split), *row[3:])
        for row in result_rows(metrics)
    ]
    return markdown_table(HEAD, rows) if rows else ""


def result_rows(metrics: Mapping[str, Any]) -> list[ResultRow]:
    """The model's metrics, without the baselines."""
    return [
        _row(name, entry)
        for name, entry in metrics.items()
        if _last(name) not in (*BASELINES, COUNTED)
    ]


def _row(name: str, entry: Mapping[str, Any]) -> ResultRow:
    value, n = entry["value"], entry.get("n") or 0
    interval = _interval(value, n) if _last(name) in SHARES else None
    text = f"{interval.low:.2%} to {interval.high:.2%}" if interval else "-"
    return ResultRow(
        name, _meaning(_last(name)), entry["split"], number(name, value), text, f"{n:,}"
    )


def _interval(share: float, n: int) -> Interval | None:
    """The share's interval; None without cases, and for what is no share."""
    return proportion(share, n) if n > 0 and 0 <= share <= 1 else None


def _last(name: str) -> str:
    return name.rpartition("/")[2]


def _meaning(name: str) -> str:
    stem, _, kind = name.partition("_")
    if stem == "probe":
        return "top-1 of a probe on frozen features"
    known = MEANINGS.get(stem if kind in KINDS else name, "-")
    return f"{known}, {KINDS[kind]}" if kind in KINDS else known


def number(name: str, value: float) -> str:
    return f"{value:.2%}" if _last(name) in SHARED else f"{value:.4g}"


def with_count(name: str, entry: Mapping[str, Any], measured_on: Mapping[str, int]) -> str:
    """A metric's value and the number of images that it was measured on; of an older run, which did
    not record that (`measured_on` is empty), the number of cases, be they patches."""
    text = number(name, entry["value"])
    count = measured_on.get(entry["split"]) or entry.get("n")
    return f"{text} (n = {count:,})" if count else text


WON, LOST, OPEN = "beats", "does not beat", "cannot be told from"


class BaselineComparison(NamedTuple):
    """A baseline's name and value, and name, value and count of the metric that it is compared
    with."""

    baseline: str
    there: float
    measure: str
    here: float
    n: int

    @property
    def verb(self) -> str:
        """Whether the model beats it; for a share, OPEN if its interval contains the baseline."""
        if _last(self.measure).startswith("loss"):
            return WON if self.here < self.there else LOST
        low = high = self.here
        if _last(self.measure) in SHARES and (interval := _interval(self.here, self.n)):
            low, high = interval
        if low <= self.there <= high:
            return OPEN
        return WON if self.here > self.there else LOST

    @property
    def called(self) -> str:
        return BASELINES[_last(self.baseline)].called

    @property
    def text(self) -> str:
        values = f"{number(self.measure, self.here)} against {number(self.measure, self.there)}"
        return f"{self.called} ({values})"


def comparisons(metrics: Mapping[str, Any]) -> Iterator[BaselineComparison]:
    """Each measured baseline with the model's own metric; the parts of a joint objective
    separately."""
    for name, entry in metrics.items():
        part, known = name.removesuffix(_last(name)), BASELINES.get(_last(name))
        measures = (
            [
                measure
                for stem in COMPARED_WITH[_last(name)]
                for measure in (part + stem, stem)
                if measure in metrics
            ]
            if known
            else []
        )
        if measures:
            own = metrics[measures[0]]
            yield BaselineComparison(
                name, entry["value"], measures[0], own["value"], own.get("n") or 0
            )


BASELINES_HEAD = ("baseline", "it guesses", "its value", "the model's", "measure")


def baselines(fought: Sequence[BaselineComparison]) -> str:
    rows = [
        (inline_code(first), *values, inline_code(last))
        for first, *values, last in map(baseline_row, fought)
    ]
    return markdown_table(BASELINES_HEAD, rows)


def baseline_row(one: BaselineComparison) -> tuple[str, ...]:
    """A baseline beside the model's metric, as texts."""
    return (
        one.baseline,
        BASELINES[_last(one.baseline)].guess,
        number(one.measure, one.there),
        number(one.measure, one.here),
        one.measure,
    )


def verdict(fought: Sequence[BaselineComparison]) -> str:
    """One sentence: which baselines the model beats, and which it does not."""
    by_verb = {verb: [one.text for one in fought if one.verb == verb] for verb in (WON, LOST, OPEN)}
    return (
        f"The model "
        f"{', and '.join(f'{verb} {_listed(texts)}' for verb, texts in by_verb.items() if texts)}."
    )


def _listed(texts: Sequence[str]) -> str:
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def index(metrics: Mapping[str, Any], task: str, data: Mapping[str, str]) -> list[dict[str, Any]]:
    """`results` of the front matter's model-index, as the Hub reads them: losses and shares by
    split."""
    known = {
        name: entry
        for name, entry in metrics.items()
        if _last(name) in MEASURED or _last(name).startswith("loss_")
    }
    return [
        {
            "task": {"type": task},
            "dataset": {**data, "split": split},
            "metrics": [
                {
                    "type": "loss" if _last(name).startswith("loss") else "accuracy",
                    "name": name,
                    "value": entry["value"],
                }
                for name, entry in known.items()
                if entry["split"] == split
            ],
        }
        for split in dict.fromkeys(entry["split"] for entry in known.values())
    ]
