"""All numbers of a report: of each arm on each metric, of arms in pairs, of sweeps and of compute.
Accuracies are shares. No torch here.

Named arms and varied keys are the same here: an arm has a setting, {key: value}, which is empty
where the arm is only a name.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from ... import stats
from ...errors import UserError, suggest
from ...metrics import all_metrics, score
from ...stats import Interval, SeedSummary
from . import scaling_curve, seen_test_images, task_means
from .formats import format_place
from .measures import Measure, held_out, tested
from .results import FinishedRun, StudyResults, fewest_images, total
from .scaling_curve import ScalingCurve
from .seen_test_images import SeenTest
from .task_means import Benchmark

SWEPT_BY = "accuracy"  # the held-out metric of a sweep from which no task chooses


class Pair(NamedTuple):
    """`arm` minus `other` on a measure, seed by seed; positive where `arm` is better. No difference
    without a seed in common; `resampled` is of top-1 after fine-tuning, whose predictions are kept.
    Of several pairs that were asked for, `corrected` is the interval that is wide enough for all of
    them together."""

    arm: str
    other: str
    measure: str
    difference: SeedSummary | None
    resampled: Interval | None
    corrected: Interval | None = None


class Sweep(NamedTuple):
    """What one arm's sweep found of the metric `by`. `best` is an index of `tried`; `edges` are
    keys whose best value ends the grid; `images` how many images the choice was made on, None where
    that is not known."""

    part: str
    arm: str
    by: str
    tried: list[tuple[dict[str, Any], float]]
    best: int
    edges: list[str]
    images: int | None


class Cost(NamedTuple):
    """Of one arm and stage: for pre-training and fine-tuning the mean of a seed, for "sweep", "all"
    and "all arms" the sum of the runs. `corrupted` counts patches of an image;
    `exaflop` is None where one of the runs' was not counted."""

    arm: str
    stage: str
    runs: int
    steps: list[int]
    corrupted: float | None
    images: float
    exaflop: float | None
    device_hours: float


class Numbers(NamedTuple):
    """All that a report says in numbers; `exports.content` gives them as JSON.

    Attributes:
        left_out: {task: why its finished run is not in the report}.
        broken: runs that measured something not finite, which is left out.
        match: what varied settings have in common: steps or exaflop.
        settings: {arm: {key: value}} of the arms that are compared.
        incomparable: {held-out metric: why it does not compare}; these are no measures.
        main: the name of the measure that the study is judged by.
        pairs: on the main measure: those that are asked for, then arms minus the baseline, then
            minus the reference.
        scaling: accuracy against labels, images or compute, of a study over one of them.
        benchmark: means over tasks, of a study of a benchmark's tasks.
        seen: test images that pre-training has seen, by part and arm, where it has seen some or
            that cannot be told.
    """

    study: str
    title: str
    tasks: int
    missing: list[str]
    left_out: dict[str, str]
    broken: list[str]
    match: str | None
    settings: dict[str, dict[str, Any]]
    measures: list[Measure]
    incomparable: dict[str, list[str]]
    main: str
    pairs: list[Pair]
    sweeps: list[Sweep]
    costs: list[Cost]
    scaling: ScalingCurve | None
    benchmark: Benchmark | None
    seen: list[SeenTest]

    def measure(self, name: str) -> Measure:
        return next(one for one in self.measures if one.name == name)

    def pair(self, arm: str, other: str) -> Pair:
        return next(pair for pair in self.pairs if (pair.arm, pair.other) == (arm, other))


def compute(study: StudyResults) -> Numbers:
    """All numbers of a study as far as it is finished.

    Raises:
        UserError: a run lacks a metric that the report needs, or nothing can be compared.
    """
    incomparable: dict[str, list[str]] = {}
    measures = [*tested(study), *held_out(study, incomparable)]
    main = _main(study, measures)
    return Numbers(
        study=study.plan.name,
        title=study.plan.title,
        tasks=len(study.plan.tasks),
        missing=study.missing,
        left_out=study.foreign,
        broken=_broken(study),
        match=study.plan.match or ("steps" if study.vary else None),
        settings=study.settings,
        measures=measures,
        incomparable=incomparable,
        main=main.name,
        pairs=list(_pairs(study, main)),
        sweeps=list(_sweeps(study)),
        costs=list(_costs(study)),
        scaling=scaling_curve.build(study, measures),
        benchmark=task_means.build(study, measures),
        seen=list(seen_test_images.build(study)),
    )


def _broken(study: StudyResults) -> list[str]:
    """Runs that measured something not finite; what a sweep tried is shown as it is."""
    rows = study.table[study.table["setting"] == ""]
    return rows.loc[~np.isfinite(rows["value"]), "run"].unique().tolist()


def _main(study: StudyResults, measures: list[Measure]) -> Measure:
    """The measure that the study is judged by: the one it names, of arms that are compared after
    fine-tuning their top-1, else the first by `Metric.main`."""
    names = [one.name for one in measures]
    wanted = study.report.measure
    if wanted is not None and wanted not in names:
        raise UserError(
            f"{study.folder}: no finished run measured {wanted}, which the report needs; "
            f"{suggest(wanted, names)}"
        )
    if not names:
        raise UserError(
            f"{study.folder}: nothing was measured that compares; "
            "expected report: probes: with the parts that measure"
        )
    if wanted is None and (study.report.candidate or not study.compares):
        fine_tuned = [one for one in measures if one.part == study.final]
        if fine_tuned:
            return fine_tuned[0]
    ranked = sorted((row for row in all_metrics() if row.main), key=lambda row: row.main)
    order = [wanted, *(row.name for row in ranked), names[0]]
    return measures[names.index(next(name for name in order if name in names))]


def _pairs(study: StudyResults, main: Measure) -> Iterator[Pair]:
    """Those asked for, then each arm minus the baseline, then each other arm minus the
    reference."""
    wanted = study.pairs
    for arm, other in wanted:
        pair = _pair(study, main, arm, other)
        if len(wanted) > 1 and pair.difference:
            pair = pair._replace(corrected=stats.simultaneous(pair.difference, len(wanted)))
        yield pair
    baseline = study.report.baseline
    reference = study.report.reference
    arms = [arm for arm in study.plan.arms if main.seeds(arm)]
    if baseline is not None:
        others = [arm for arm in arms if arm != baseline and (arm, baseline) not in wanted]
        yield from (_pair(study, main, arm, baseline) for arm in others)
    if reference is not None:
        others = [arm for arm in arms if arm not in (baseline, reference)]
        others = [arm for arm in others if (arm, reference) not in wanted]
        yield from (_pair(study, main, arm, reference) for arm in others)


def _pair(study: StudyResults, measure: Measure, arm: str, other: str) -> Pair:
    difference = measure.difference(arm, other)
    first = study.runs(measure.part, arm)
    second = study.runs(measure.part, other)
    apart = []
    if measure.part in study.finals and measure.name.startswith("top1"):
        apart = [
            study.correct[first[seed].name].astype(np.int64) - study.correct[second[seed].name]
            for seed in first
            if seed in second
        ]
    resampled = stats.resampled_interval(np.stack(apart)) if apart else None
    return Pair(arm, other, measure.name, difference, resampled)


def _sweeps(study: StudyResults) -> Iterator[Sweep]:
    """The best has the best mean over seeds of the metric by which a task chooses; of equals it is
    the first. Without such a task, sweeps that did not measure SWEPT_BY are left out."""
    swept = study.table[study.table["setting"] != ""]
    for (part, arm), own in swept.groupby(["part", "arm"], sort=False):
        chosen_by = _chosen_by(study, part, arm)
        by = chosen_by or SWEPT_BY
        rows = own[own["metric"] == by]
        lacking = own.loc[~own["run"].isin(rows["run"]), "run"]
        if len(lacking) and chosen_by:
            study.finished[lacking.iloc[0]].metric(by)  # the error that names it
        if len(lacking):
            continue
        tried = [
            (study.finished[one["run"].iloc[0]].values, float(np.mean(one["value"].to_numpy())))
            for _, one in rows.groupby("setting", sort=False)
        ]
        scores = [score(by, mean) for _, mean in tried]
        best = scores.index(max(scores))
        ends = edges([values for values, _ in tried], tried[best][0])
        yield Sweep(part, arm, by, tried, best, ends, fewest_images(rows))


def _chosen_by(study: StudyResults, part: str, arm: str) -> str | None:
    """The metric of the task that chooses from a sweep; None without one."""
    for task in study.plan.tasks:
        if (task.best, task.arm) == (part, arm) and task.by:
            return task.by
    return None


def choices(study: StudyResults, sweeps: Iterable[Sweep], part: str | None) -> dict[str, Sweep]:
    """{arm: the sweep that its runs of a part choose from}. Sweeps with runs that are missing are
    left out: what is best of the others is not what was chosen."""
    tasks = study.plan.tasks
    wanted = {(task.best, task.arm) for task in tasks if task.part == part}
    partial = {(one.part, one.arm) for one in tasks if one.name not in study.finished}
    return {
        sweep.arm: sweep
        for sweep in sweeps
        if (sweep.part, sweep.arm) in wanted and (sweep.part, sweep.arm) not in partial
    }


def edges(tried: list[dict[str, Any]], best: dict[str, Any]) -> list[str]:
    """Keys whose best value is the smallest or the largest of several numbers."""
    found = []
    for key, value in best.items():
        values = [entry[key] for entry in tried if key in entry]
        numeric = all(isinstance(entry, int | float) for entry in values)  # a value may be a list
        if numeric and len(set(values)) > 1 and value in (min(values), max(values)):
            found.append(key)
    return found


def _costs(study: StudyResults) -> Iterator[Cost]:
    for arm in study.plan.arms:
        every = [run for run in study.finished.values() if run.arm == arm]
        for at, before in _pretraining(study, arm).items():
            trained = [run for runs in before.values() for run in runs]
            yield from _cost(arm, f"pre-training{at}", trained, len(before))
        for part in study.points or [study.final]:
            final = list(study.runs(part, arm).values())
            yield from _cost(arm, f"fine-tuning{_at(study, part)}", final, len(final))
        yield from _cost(arm, "sweep", [run for run in every if run.values])
        yield from _cost(arm, "all", every)
    yield from _cost("", "all arms", list(study.finished.values()))


def _pretraining(study: StudyResults, arm: str) -> dict[str, dict[int, list[FinishedRun]]]:
    """{share of the labels in words: {seed: runs}} of an arm; one entry without words where the
    same runs serve every share."""
    found = {part: study.pretraining(arm, part) for part in study.points}
    found = {part: runs for part, runs in found.items() if runs}
    if not study.points:
        return {"": study.pretraining(arm)}
    of_seed: dict[int, set[str]] = {}
    for runs in found.values():
        for seed, before in runs.items():
            of_seed.setdefault(seed, set()).add(" ".join(run.name for run in before))
    if found and all(len(names) == 1 for names in of_seed.values()):
        return {"": max(found.values(), key=len)}
    return {_at(study, part): runs for part, runs in found.items()}


def _at(study: StudyResults, part: str | None) -> str:
    """Which place along the curve a final part is of, in a study with one."""
    if part not in study.points:
        return ""
    if study.curve == "compute":
        return f", {study.points[part]:g} steps"
    return f", {format_place(study.points[part], study.curve)}"


def _cost(arm: str, stage: str, runs: list[FinishedRun], seeds: int = 1) -> Iterator[Cost]:
    """The sum over runs divided by the number of seeds; none without runs."""
    if not runs:
        return
    corrupted = [
        one.value
        for run in runs
        for name, one in run.result.metrics.items()
        if name.endswith("corrupted")
    ]
    spent = total([run.result.exaflop for run in runs])
    yield Cost(
        arm=arm,
        stage=stage,
        runs=len(runs),
        steps=sorted({int(run.result.steps) for run in runs}),
        corrupted=corrupted[0] if corrupted else None,
        images=sum(run.result.images for run in runs) / seeds,
        exaflop=None if spent is None else spent / seeds,
        device_hours=sum(run.result.device_hours for run in runs) / seeds,
    )
