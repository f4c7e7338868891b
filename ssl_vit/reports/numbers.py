"""A study's numbers: of each arm, of arms in pairs, of probes, sweeps and compute. Accuracies are
shares. No torch here."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from .. import stats
from ..stats import Interval, McNemar, SeedSummary
from .finished import Finished, Study

BY = "accuracy"  # what a sweep is judged by, the dev split's, where no task says another


class Row(NamedTuple):
    """One arm in one part, the final or an extra one: top-1 by seed and over seeds, and with the
    images resampled too."""

    arm: str
    part: str
    extra: bool
    seeds: dict[int, float]
    top1: SeedSummary
    resampled: Interval | None
    top5: SeedSummary | None
    exaflop: dict[int, float]
    paper: float | None


class Pair(NamedTuple):
    """`arm` minus `other`, seed by seed; no difference where they have no seed in common."""

    arm: str
    other: str
    difference: SeedSummary | None
    resampled: Interval | None
    mcnemar: dict[int, McNemar]


class Probe(NamedTuple):
    """A figure of the frozen encoder, or the fine-tuned one's top-1: of one arm, and its gain over
    the baseline in pairs."""

    measure: str
    arm: str
    value: SeedSummary
    gain: SeedSummary | None


class Sweep(NamedTuple):
    """What one arm's sweep found of the metric `by`. `best` counts among `tried`; `edges`: keys
    whose best ends the grid."""

    part: str
    arm: str
    by: str
    tried: list[tuple[dict[str, Any], float]]
    best: int
    edges: list[str]


class Spent(NamedTuple):
    """Of one arm and stage: the mean of `runs` seeds, or of a sweep the sum of its runs."""

    arm: str
    stage: str
    runs: int
    images: float
    exaflop: float
    device_hours: float


class Numbers(NamedTuple):
    study: str
    title: str
    tasks: int
    missing: list[str]
    rows: list[Row]
    pairs: list[Pair]
    probes: list[Probe]
    sweeps: list[Sweep]
    spent: list[Spent]

    def pair(self, arm: str, other: str) -> Pair:
        return next(pair for pair in self.pairs if (pair.arm, pair.other) == (arm, other))


def measure(study: Study) -> Numbers:
    """All numbers of a study as far as it is finished.

    Raises:
        UserError: a run lacks a figure that the report asks for.
    """
    about = study.about
    return Numbers(
        about["name"],
        about["title"],
        len(about["tasks"]),
        study.missing,
        list(_rows(study)),
        list(_pairs(study)),
        list(_probes(study)),
        list(_sweeps(study)),
        list(_spent(study)),
    )


def plain(value: Any) -> Any:
    """Numbers as JSON takes them: an interval is a list of two, every other record an object, what
    is not finite null."""
    if isinstance(value, tuple) and hasattr(value, "_asdict") and not isinstance(value, Interval):
        value = value._asdict()
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _rows(study: Study) -> Iterable[Row]:
    for part in (study.report["final"], *study.extra):
        for arm in study.about["arms"]:
            if runs := study.runs(part, arm):
                yield _row(study, part, arm, runs)


def _row(study: Study, part: str, arm: str, runs: Mapping[int, Finished]) -> Row:
    extra = part in study.extra
    seeds = {seed: run.metric("top1") for seed, run in runs.items()}
    has_top5 = all(
        "top5" in run.on("test") for run in runs.values()
    )  # not with five classes or fewer
    paper = None if extra else (study.report.get("paper") or {}).get(arm)
    return Row(
        arm,
        part,
        extra,
        seeds,
        stats.summarize(list(seeds.values())),
        stats.resampled(
            np.stack([study.right[run.name] for run in runs.values()]).astype(np.int64)
        ),
        stats.summarize([run.metric("top5") for run in runs.values()]) if has_top5 else None,
        {
            seed: run.result.get("total_exaflop", run.result["exaflop"])
            for seed, run in runs.items()
        },
        None if paper is None else paper / 100,
    )


def _pairs(study: Study) -> Iterable[Pair]:
    """Each arm's gain over the baseline, then each other arm's distance to the reference."""
    final, baseline, reference = (
        study.report["final"],
        study.report["baseline"],
        study.report.get("reference"),
    )
    arms = [arm for arm in study.about["arms"] if study.runs(final, arm)]
    yield from (_pair(study, arm, baseline) for arm in arms if arm != baseline)
    if reference is not None:
        yield from (
            _pair(study, arm, reference) for arm in arms if arm not in (baseline, reference)
        )


def _pair(study: Study, arm: str, other: str) -> Pair:
    first, second = study.runs(study.report["final"], arm), study.runs(study.report["final"], other)
    both = [seed for seed in first if seed in second]
    if not both:
        return Pair(arm, other, None, None, {})
    right = {seed: (study.right[first[seed].name], study.right[second[seed].name]) for seed in both}
    apart_SM = np.stack([a.astype(np.int64) - b for a, b in right.values()])
    difference = _apart(first, second, "top1")
    tests = {seed: stats.mcnemar(a, b) for seed, (a, b) in right.items()}
    return Pair(arm, other, difference, stats.resampled(apart_SM), tests)


def _apart(
    first: Mapping[int, Finished], second: Mapping[int, Finished], name: str
) -> SeedSummary | None:
    """The differences of a metric in pairs of one seed."""
    both = [seed for seed in first if seed in second]
    return (
        stats.summarize([first[seed].metric(name) - second[seed].metric(name) for seed in both])
        if both
        else None
    )


def _probes(study: Study) -> Iterable[Probe]:
    """The fine-tuned networks' top-1, and beside it what the probes found, of every arm; nothing
    where nothing was probed."""
    final = study.report["final"]
    found = [(part, name) for part in study.probes for name in measures_of(study, part)]
    for part, name in [(final, "top1"), *found] if found else []:
        several = len(study.probes) > 1 and part != final
        label = (
            "fine-tuned"
            if part == final
            else name.replace("_", " ") + (f" ({part})" if several else "")
        )
        base = study.runs(part, study.report["baseline"])
        for arm in study.about["arms"]:
            if runs := study.runs(part, arm):
                value = stats.summarize([run.metric(name) for run in runs.values()])
                gain = None if arm == study.report["baseline"] else _apart(runs, base, name)
                yield Probe(label, arm, value, gain)


def measures_of(study: Study, part: str) -> list[str]:
    """What a part's runs measured on the test split; few_shot_5 before few_shot_10."""
    names = {name for run in study.done.values() if run.part == part for name in run.on("test")}
    return sorted(names, key=lambda name: (name.rstrip("0123456789"), len(name), name))


def _sweeps(study: Study) -> Iterable[Sweep]:
    """What was chosen is the highest mean over seeds of the metric that the choosing tasks name; of
    equals the first."""
    swept = dict.fromkeys((run.part, run.arm) for run in study.done.values() if run.values)
    for part, arm in swept:
        by = next(
            (
                task["by"]
                for task in study.about["tasks"]
                if (task.get("best"), task["arm"]) == (part, arm)
            ),
            BY,
        )
        found: dict[str, list[Finished]] = {}
        for run in study.done.values():
            if (run.part, run.arm) == (part, arm):
                found.setdefault(str(run.values), []).append(run)
        tried = [
            (runs[0].values, float(np.mean([run.metric(by) for run in runs])))
            for runs in found.values()
        ]
        best = max(
            range(len(tried)),
            key=lambda i: tried[i][1] if math.isfinite(tried[i][1]) else -math.inf,
        )
        yield Sweep(
            part, arm, by, tried, best, edges([values for values, _ in tried], tried[best][0])
        )


def edges(tried: list[dict[str, Any]], best: dict[str, Any]) -> list[str]:
    """Keys whose best value is the smallest or the largest of several numbers."""
    found = []
    for key, value in best.items():
        values = {entry[key] for entry in tried if key in entry}
        numeric = all(isinstance(entry, (int, float)) for entry in values)
        if numeric and len(values) > 1 and value in (min(values), max(values)):
            found.append(key)
    return found


def _spent(study: Study) -> Iterable[Spent]:
    for arm in study.about["arms"]:
        runs = list(study.runs(study.report["final"], arm).values())
        swept = [run for run in study.done.values() if run.arm == arm and run.values]
        earlier = [run for final in runs for run in study.before(final).values()]
        for stage, found, over in (
            ("pre-training", earlier, len(runs)),
            ("fine-tuning", runs, len(runs)),
            ("sweep", swept, 1),
        ):
            if found:
                totals = [
                    sum(run.result[key] for run in found) / over
                    for key in ("images", "exaflop", "device_hours")
                ]
                yield Spent(arm, stage, len(found), *totals)
