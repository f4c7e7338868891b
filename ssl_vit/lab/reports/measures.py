"""The measures of a report: each metric of each part for all arms, and why some do not compare. No
torch here.

Legend: S seeds, M labelled test images.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ... import stats
from ...config.parsing import flatten, load_yaml
from ...formatting import format_share
from ...metrics import SHARE, Metric, all_metrics, find_metric, is_of_model, is_split
from ...stats import Interval, SeedSummary
from .comparable import differing_keys, question_keys
from .results import FinishedRun, StudyResults, by_arm, by_seed, fewest_images

if TYPE_CHECKING:
    from pandas import DataFrame

PROBE = "probe_"  # begins a metric of the frozen encoder, measured during pre-training


class Result(NamedTuple):
    """One arm on one measure.

    Attributes:
        runs: whose values these are.
        value: over the seeds.
        resampled: the interval with the test images resampled too, where predictions are kept.
        exaflop: {seed: of its run and all before it}; empty where one was not counted.
        gain: over the baseline, in pairs of one seed; positive is better.
    """

    arm: str
    runs: list[str]
    seeds: dict[int, float]
    value: SeedSummary
    resampled: Interval | None
    exaflop: dict[int, float]
    gain: SeedSummary | None


class Measure(NamedTuple):
    """A metric of one part.

    Attributes:
        name: of the metric, and of the part where several have it.
        percent: whether it is a share.
        higher: whether higher is better.
        question_keys: keys that differ between arms and change the question itself, such as the
            rate of corruption or a benchmark's images: each arm answers another question, and none
            is the best.
        results: of the arms that are compared.
        not_compared: of extra parts, and of arms that are no settings of a study that varies keys.
        images: how many images it is of, in the run of the fewest; None where that is not known.
    """

    name: str
    metric: str
    label: str
    part: str
    percent: bool
    higher: bool
    question_keys: list[str]
    results: list[Result]
    not_compared: list[Result]
    images: int | None = None

    @property
    def best(self) -> Result:
        return max(self.results, key=lambda one: self.sign * one.value.mean)

    @property
    def sign(self) -> int:
        """What makes higher values the better ones."""
        return 1 if self.higher else -1

    def seeds(self, arm: str) -> dict[int, float]:
        """{seed: value} of an arm; empty where it has none."""
        return next(
            (one.seeds for one in (*self.results, *self.not_compared) if one.arm == arm), {}
        )

    def difference(self, arm: str, other: str) -> SeedSummary | None:
        """`arm` minus `other` in pairs of one seed, positive where `arm` is better; None without a
        seed in common."""
        first = self.seeds(arm)
        second = self.seeds(other)
        apart = [self.sign * (first[seed] - second[seed]) for seed in first if seed in second]
        return stats.summarize(apart) if apart else None


def tested(study: StudyResults) -> Iterator[Measure]:
    """What the final part (with the extra ones beside it) and the probes measured on test images.

    Raises:
        UserError: a run lacks a metric that others of its part have.
    """
    for final, extra in study.finals.items():
        yield from _fine_tuned(study, final, extra)
    found = [(part, name) for part in study.probes for name in _metrics(study, part, "test")]
    taken = [*((final, row.name) for final in study.finals for row in _tested_rows()), *found]
    for part, name in found:
        suffix = _suffix(part, sum(name == other for _, other in taken) > 1)
        measure = _measure(name, suffix, find_metric(name).words + suffix, part, _own(study))
        rows = study.measured_by_all(part, name)
        yield from _with_results(study, measure, by_arm(rows, study.plan.arms))


def _fine_tuned(study: StudyResults, final: str, extra: Iterable[str]) -> Iterator[Measure]:
    """What a final part measured by the labels of test images, with the extra parts beside it."""
    suffix = "" if final == study.final else f" ({final})"
    share = study.points.get(final)
    place = "" if share is None else _at_place(study.curve, share)
    for row in _tested_rows():
        name = row.name
        if name != "top1" and not _all_tested(study, [final, *extra], name):
            continue  # as top-5 with five classes or fewer
        rows = by_arm(study.measured_by_all(final, name), study.plan.arms)
        for part in extra:
            own = by_arm(study.measured_by_all(part, name), study.plan.arms)
            rows |= {f"extra: {arm}, {part}": found for arm, found in own.items()}
        label = f"{row.tested} after fine-tuning{place}"
        measure = _measure(name, suffix, label, final, _own(study))
        yield from _with_results(study, measure, rows)


def _tested_rows() -> list[Metric]:
    return [row for row in all_metrics() if row.tested]


def _all_tested(study: StudyResults, parts: Iterable[str], name: str) -> bool:
    """Whether all runs of these parts measured this metric on test images."""
    rows = [study.measured(part) for part in parts]
    having = [one.loc[(one["metric"] == name) & (one["split"] == "test"), "run"] for one in rows]
    return all(set(one["run"]) == set(own) for one, own in zip(rows, having, strict=True))


def _own(study: StudyResults) -> list[str]:
    """The keys by which each arm answers a question of its own, of arms that are not compared."""
    return [] if study.compares else ["data.path"]


def _at_place(of: str, place: float) -> str:
    """What a final part of a curve is of, after `top-1 after fine-tuning`."""
    if of == "labels":
        return f" on {format_share(place)} of the labels"
    if of == "images":
        return f", pre-trained on {format_share(place)} of the images"
    return f", pre-trained for the compute of {place:g} steps"


def held_out(study: StudyResults, incomparable: dict[str, list[str]]) -> Iterator[Measure]:
    """What pre-training measured on held-out images; what does not compare is noted in
    `incomparable` with the reasons."""
    names = {part: _held_out_metrics(study, part) for part in study.trained}
    for part in study.trained:
        for name in names[part]:
            suffix = _suffix(part, sum(name in others for others in names.values()) > 1)
            reasons, keys = obstacles(study, part, name, study.settings)
            if reasons:
                incomparable[name + suffix] = reasons
                continue
            group = name.rpartition("/")[0].replace("_", " ")
            label = " ".join(["held-out", *filter(None, [group]), find_metric(name).words])
            measure = _measure(name, suffix, label + suffix, part, keys)
            rows = study.measured(part, "validation")
            rows = by_arm(rows[rows["metric"] == name], study.settings)
            yield from _with_results(study, measure, rows)


def _measure(name: str, suffix: str, label: str, part: str, keys: list[str]) -> Measure:
    """A metric of a part, without results."""
    row = find_metric(name)
    return Measure(name + suffix, name, label, part, row.unit == SHARE, row.higher, keys, [], [])


def obstacles(
    study: StudyResults, part: str, name: str, arms: Iterable[str]
) -> tuple[list[str], list[str]]:
    """Why a held-out metric of a part that pre-trains does not compare between these arms, and the
    keys of the corruption by which each arm has its own question (comparable.question_keys)."""
    runs = [study.runs(part, arm) for arm in arms]
    recipes = [_recipe(one) for one in runs if one]
    labels = name.startswith(PROBE)  # a probe learns labels, whatever the objective
    keys: list[str] = []
    if labels:
        reasons = [key for key in ("data.name",) if key in differing_keys(recipes)]
    else:
        reasons, keys = question_keys(name, recipes, _free(runs))
    if not all(recipes):
        reasons.append("recipe.yaml (missing)")
    facts = [run.environment for one in runs for run in one.values()]
    # of a share the fingerprint of the whole split, where earlier versions recorded no other
    held_out = {one.held_out for one in facts} - {None}
    if len({str(one.data.get("validation")) for one in facts}) > 1 or len(held_out) > 1:
        reasons.append("the images held out")
    return reasons, keys


def _free(runs: Sequence[Mapping[int, FinishedRun]]) -> list[str]:
    """Keys that do not count, as the first run of these arms recorded them."""
    return next(run for one in runs for run in one.values()).environment.free


def _suffix(part: str, several: bool) -> str:
    """What makes the name of a metric that several parts measured one of its own."""
    return f" ({part})" if several else ""


def _held_out_metrics(study: StudyResults, part: str) -> list[str]:
    """Those that are compared; of a metric that is split by kind, the masked patches'."""
    names = _metrics(study, part, "validation")
    return [
        name for name in sorted(names) if find_metric(name).compared and not is_split(name, names)
    ]


def _metrics(study: StudyResults, part: str, split: str) -> list[str]:
    """What a part's runs measured on a split."""
    return of_models(study.measured(part, split)["metric"].unique())


def of_models(names: Iterable[str]) -> list[str]:
    """The metrics among these names, without baselines; few_shot_5 before few_shot_10."""
    found = filter(is_of_model, names)
    return sorted(found, key=lambda name: (name.rstrip("0123456789"), len(name), name))


def _recipe(runs: Mapping[int, FinishedRun]) -> dict[str, Any]:
    """The recipe of an arm's pre-training as {dotted key: value}; empty where it is not here."""
    path = next(iter(runs.values())).run.folder / "recipe.yaml"
    return flatten(load_yaml(path)) if path.exists() else {}


def _with_results(
    study: StudyResults, measure: Measure, rows: Mapping[str, DataFrame]
) -> Iterator[Measure]:
    """The measure with the results of {arm: its rows}, values that are not finite left out; none
    where no arm that is compared has a value."""
    for arm, one in rows.items():
        known = one[np.isfinite(one["value"])]
        if len(known):
            found = measure.results if arm in study.settings else measure.not_compared
            found.append(_result(study, measure, arm, known))
    if not measure.results:
        return
    counts = [count for count in map(fewest_images, rows.values()) if count]
    measure = measure._replace(images=min(counts, default=None))
    yield measure if measure.question_keys else compared(measure, study.report.baseline)


def compared(measure: Measure, baseline: str | None) -> Measure:
    """The measure with what its arms gain over the baseline."""

    def beside(one: Result) -> Result:
        gain = measure.difference(one.arm, baseline or "") if one.arm != baseline else None
        return one._replace(gain=gain)

    return measure._replace(
        results=[beside(one) for one in measure.results],
        not_compared=[beside(one) for one in measure.not_compared],
    )


def _result(study: StudyResults, measure: Measure, arm: str, rows: DataFrame) -> Result:
    """Of an arm by itself."""
    values = by_seed(rows)
    return Result(
        arm=arm,
        runs=rows["run"].tolist(),
        seeds=values,
        value=stats.summarize(list(values.values())),
        resampled=_resampled(study, rows["run"].tolist()) if measure.metric == "top1" else None,
        exaflop=by_seed(rows, "exaflop") if rows["exaflop"].notna().all() else {},
        gain=None,
    )


def _resampled(study: StudyResults, runs: Sequence[str]) -> Interval | None:
    """The interval of top-1 with seeds and test images resampled, where predictions are kept."""
    correct = [study.correct[name] for name in runs if name in study.correct]
    if len(correct) < len(runs):
        return None
    return stats.resampled_interval(np.stack(correct).astype(np.int64))
