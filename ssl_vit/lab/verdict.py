"""Decide what a study's report claims, by a rule that is fixed before the first task.

The comparisons are the study's pairs, else every name against the baseline, else all pairs. They
use the first measure and cover every place of the other axes. A difference is claimed only at the
study's planned end, and only if there are three independent seeds and the interval of the paired
differences, at level 1 - 0.05/m for m comparisons, excludes zero. With predictions the interval is
the wider of Student's t over the seeds and a bootstrap over seeds and images.

Before the planned end, and after a user has dropped planned runs, the report shows the same
intervals without a claim: stopping as soon as the intervals look good would claim a difference that
does not exist in 14.5% of studies. A study that is changed after results were known, for example
lengthened, multiplies m by its number of planned ends, so that k ends together claim a difference
that does not exist in at most 5% (1 + 1/2 + ... + 1/k) of studies. The comparisons with fresh
weights are a separate family with an error of 5% of its own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pandas as pd

from ..errors import UserError, suggest
from ..formatting import NAMED, SPLIT_NAMES, some
from ..metrics import (
    MAIN,
    NUMBER,
    PROBED,
    find_metric,
    has_direction,
    is_of_frozen,
    is_of_model,
    label,
    place,
)
from ..recipe.init_source import SCRATCH
from . import engine
from .compare import (
    FEWEST,
    Comparison,
    Difference,
    Outcomes,
    Rule,
    difference,
    on_different_images,
    pairs,
)
from .results import BESIDE, PREDICTED, Results
from .study.options import RELEASED
from .study.tasks import Task, Tasks

FRESH = "fresh weights"
ERROR = 0.05  # probability that a family claims a difference that does not exist
Asked = dict[Comparison, pd.DataFrame]  # {comparison: pairs over seeds}


class Measure(NamedTuple):
    """Metric that decides, with the format of values.

    Attributes:
        name: Name of the metric.
        split: Split that the metric is measured on.
        label: Name for readers.
        sign: 1 if higher values are better, else -1.
        scale: Factor for the values: 100 for a share.
        unit: Unit of differences, with a leading blank.
        digits: Decimals to show.
    """

    name: str
    split: str
    label: str
    sign: int
    scale: int = 1
    unit: str = ""
    digits: int = 4


class Family(NamedTuple):
    """Comparisons that share an error of 5%.

    Attributes:
        differences: Differences of the measured comparisons.
        size: Number by which the level is divided.
        missing: Comparisons without a seed on both sides.
        final: Whether the study has reached its planned end. Nothing is claimed before.
    """

    differences: tuple[Difference, ...]
    size: int
    missing: tuple[Comparison, ...] = ()
    final: bool = True

    @property
    def claimed(self) -> list[Difference]:
        return [one for one in self.differences if one.claimed and self.final]

    @property
    def asked(self) -> int:
        return len(self.differences) + len(self.missing)


@dataclass(frozen=True)
class Verdict:
    """Claims of a study's report.

    Attributes:
        rule: Rule that decides.
        measure: Metric that decides, or None if nothing has been measured yet.
        rows: Compared rows of the results.
        found: Family of the study's comparisons. Empty if the compared names are tested on
            different images.
        fresh: Family of the trained names minus fresh weights. Empty if no fresh weights are
            measured, if no name is trained, or if the study's own comparisons already include them.
        sentences: Claims about both families, and what the study lacks.
    """

    rule: Rule
    measure: Measure | None
    rows: pd.DataFrame
    found: Family
    fresh: Family
    sentences: tuple[str, ...]


def claims(results: Results) -> Verdict:
    """Decide what a study's results claim by the study's rule.

    Raises:
        UserError: The study compares nothing, no run has the measure, names that the study asks to
            compare were tested on different images, or predictions are damaged.
    """
    if results.plan.rule is None:
        text = "the study has no report: with a test to compare; add report: {test: RUN} to it"
        raise UserError(f"{results.folder}: {text}, and give its command again")
    rule, report = results.plan.rule, results.plan.report
    measure = find_measure(results, rule)
    if measure is None:
        ended = any(
            task.run == rule.test for task in results.plan.tasks if task.name in results.finished
        )
        none = f"No run of {rule.test} has finished yet."
        if ended:
            none = f"No run of {rule.test} that has finished has a finite value."
        texts = (none, *_unfinished(results))
        nothing = Family((), len(rule.asked), rule.asked)
        return Verdict(rule, None, results.rows(rule.test), nothing, nothing, texts)
    rows = results.rows(rule.test, measure.name, measure.split)
    asked = {one: pairs(rows, rule.axis or "run", one) for one in rule.asked}
    fresh = _with_fresh(results, rule, measure)
    every = [*asked.items(), *(fresh or {}).items()]
    reasons = {one: _apart(both, measure, results.plan.by_name) for one, both in every}
    apart = next((one for one, why in reasons.items() if why), None)
    if apart:
        if report.keys() & {"pairs", "baseline"} or apart not in asked:
            text = reasons[apart].replace("are tested", "were tested")
            raise UserError(f"{results.folder}: {apart}: they {text}")
        every, asked = every[len(asked) :], {}
    final = not results.untested and not results.plan.dropped
    tasks = {name for _, both in every for name in (*both["folder_a"], *both["folder_b"])}
    correct = results.correct(tasks) if measure.name == PREDICTED else {}
    ends = results.ends
    found, against = (
        _family(family, ends, final, measure, correct) for family in (asked, fresh or {})
    )
    opening = f"{report['condition']}, by" if report.get("condition") else "By"
    opening += f" {measure.label} on {SPLIT_NAMES.get(measure.split, measure.split)} images,"
    why = f": {apart.a} and {apart.b} {reasons[apart]}" if apart else ""
    sentences = [sentence(opening, found, rule, measure) if asked else f"Nothing is compared{why}."]
    sentences += _measured_otherwise(results, asked)
    if fresh is None:
        sentences.append("What training without pre-training reaches was not measured.")
    elif fresh:
        named = {one.b for one in fresh} == {FRESH}
        if asked:  # else no sentence has named the measure yet
            opening = "By the same measure," if named else "Against fresh weights,"
        sentences.append(sentence(opening, against, rule, measure))
    sentences += [*_unfinished(results), *_history(results)]
    return Verdict(rule, measure, rows, found, against, tuple(sentences))


def _history(results: Results) -> Iterator[str]:
    """Report changes of the plan after results were known, and the effect on the claims."""
    plan = results.plan
    yield from plan.changes
    if plan.dropped:
        text = "The study was stopped before its planned end, so its intervals are exploratory:"
        yield f"{text} {some(plan.dropped)} had not finished when the plan dropped them."
    elif results.ends > 1:
        bound = ERROR * sum(1 / end for end in range(1, results.ends + 1))
        text = f"This is planned end number {results.ends}, so each level is divided by"
        text += f" {results.ends}"
        yield f"{text}; a claim at any of these ends is wrong in at most {bound:.1%} of studies."


def _unfinished(results: Results) -> Iterator[str]:
    """Report unfinished tasks with the time of the last result, because a page is not updated."""
    if results.missing:
        last = max(run.result.finished[:16] for run in results.finished.values())
        text = (
            f"As of {last} UTC, {len(results.missing)} of {len(results.plan.tasks)} tasks have not"
        )
        yield f"{text} finished, and no result of them is in this report: {some(results.missing)}."


def find_measure(results: Results, rule: Rule) -> Measure | None:
    """Return the measure that decides, or None if no run of the test has finished.

    Raises:
        UserError: The finished runs have not measured the metric, or its better direction is
            unknown.
    """
    # all rows, so that an infinite value does not change which measure is the first
    rows = results.table
    rows = rows[(rows["run"] == rule.test) & rows["metric"].map(is_of_model).astype(bool)]
    if results.rows(rule.test).empty:
        return None
    tested = rows[rows["split"] == "test"]
    name = rule.measure or min((rows if tested.empty else tested)["metric"], key=_order)
    splits = {*rows[rows["metric"] == name]["split"]}
    if not splits:
        text = f"{results.folder}: no finished run of {rule.test} has measured {name}"
        raise UserError(f"{text}; {suggest(name, [*rows['metric'].unique()])}")
    if not has_direction(name):
        text = "whether lower is better is not known; expected another in report.measures"
        raise UserError(f"{results.folder}: {name}: {text}, or a Metric of the plugin")
    row = find_metric(name)
    split = next((one for one in ("test", "validation", "train") if one in splits), min(splits))
    in_percent = (100, " points", 2) if row.in_per_cent else ()
    return Measure(name, split, label(name), 1 if row.higher else -1, *in_percent)


def _order(metric: str) -> float:
    """Return the rank of a metric among the measures of frozen encoders.

    All other metrics, including the probes of a training run, come after these measures.
    """
    is_probe = is_of_frozen(metric) and not metric.startswith(PROBED)
    return place(metric) if is_probe else len(MAIN)


def _measured_otherwise(results: Results, asked: Asked) -> Iterator[str]:
    """Report compared frozen encoders that were measured with different pooling or image sizes."""
    tasks, found = results.plan.by_name, dict[str, None]()
    for one, both in asked.items():
        for row in both.itertuples():
            pools = [row.feature_pool_a, row.feature_pool_b]
            folders = (row.folder_a, row.folder_b)
            sizes = [tasks[folder].values.get("data.size") for folder in folders]
            for key, values in (("probe.pool", pools), ("data.size", sizes)):
                # a fine-tuning has no pool, and without data.size the weights' size is used
                if all(pools) and None not in values and values[0] != values[1]:
                    texts = zip((one.a, one.b), values, strict=True)
                    found |= dict.fromkeys(f"{name} by {key}={value}" for name, value in texts)
    if found:
        yield f"These are not measured alike, which is part of their difference: {some([*found])}."


def _apart(both: pd.DataFrame, measure: Measure, tasks: Tasks) -> str:
    """Return why the two sides of some pairs cannot be compared, or an empty text otherwise.

    The sides differ if they were tested on different images. For metrics of a pre-training task on
    held-out images, the sides also differ if a recipe key makes one task easier.
    """
    if on_different_images(both):
        return "are tested on different images"
    part, _, last = measure.name.rpartition("/")
    if measure.split == "test" or last.startswith(PROBED) or find_metric(last).unit == NUMBER:
        return ""
    folders = (map(tasks.get, both[side]) for side in ("folder_a", "folder_b"))
    for a, b in zip(*folders, strict=True):
        if a is None or b is None or a.tool != "pretrain":
            continue
        keys = [key for key in engine.keys_of_task(a.values) if key in a.values and key in b.values]
        if engine.predicts_labels(part or str(a.values["objective"])):
            # predicted labels do not depend on which part of an image the network sees
            keys = ["objective"]
        if differ := [key for key in keys if a.values[key] != b.values[key]]:
            return f"predict other things ({differ[0]})"
    return ""


def _with_fresh(results: Results, rule: Rule, measure: Measure) -> Asked | None:
    """Return the pairs of each trained name with fresh weights, in the measure of the test.

    For an evaluation or a pre-training, each task has measured fresh weights itself. For a
    fine-tuning, some tasks of the study fine-tune fresh weights.

    Returns:
        The pairs of each comparison with fresh weights. None without measurements of fresh weights.
            Empty if no name is trained or the study's own comparisons already include all of the
            pairs.
    """
    tasks, report = results.plan.by_name, results.plan.report
    tested = [task for task in tasks.values() if task.run == rule.test]
    trained = [task for task in tested if not _is_fresh(task, tasks)]
    if report.get("question"):  # the answer of study/worth compares the released encoder
        trained = [task for task in trained if _called(task, rule) != RELEASED]
    tool, runs = tested[0].tool, (rule.test, *report.get("beside", ()))
    fine_tuned = [one for one in tasks.values() if one.run in runs and one.tool == "finetune"]
    fresh = [one for one in fine_tuned if not one.tried and _is_fresh(one, tasks)]
    if tool != "finetune":
        fresh = []
    rows = results.rows(metric=measure.name, split=measure.split)
    every: dict[Comparison, list[pd.DataFrame]] = {}
    for task in trained:
        place = tuple(one for one in task.at.items() if one[0] != rule.axis)
        same = [one for one in fresh if one.seed == task.seed and _is_beside(rule, task, one)]
        others = {_called(one, rule): one.name for one in same}
        if not fresh:
            others = {FRESH: BESIDE.format(task.name)}
        for name, folder in others.items():
            both = pairs(rows, "folder", Comparison(task.name, folder))
            every.setdefault(Comparison(_called(task, rule), name, place), []).append(both)
    found = {one: pd.concat(each) for one, each in every.items()}
    if trained and not fresh and not any(map(len, found.values())):
        # pre-training tasks have baselines of their own
        return {} if tool == "pretrain" else None
    asked = {frozenset((one.a, one.b, *one.at)) for one in rule.asked}
    return {} if all(frozenset((one.a, one.b, *one.at)) in asked for one in found) else found


def _is_fresh(task: Task, tasks: Tasks) -> bool:
    """Return whether a task measures, fine-tunes or could choose to start from fresh weights."""
    among = (task.best or [()])[0]
    tried = [tasks[name].tried["init"] for name in among if "init" in tasks[name].tried]
    start = tried or [task.options.get("init", SCRATCH)]
    return task.tool != "pretrain" and SCRATCH in start


def _called(task: Task, rule: Rule) -> str:
    """Return the name of the arm that a task belongs to."""
    return task.at.get(rule.axis or "", task.run) if task.run == rule.test else task.run


def _is_beside(rule: Rule, own: Task, fresh: Task) -> bool:
    """Return whether a task from fresh weights belongs to the place of a trained task.

    A task of the test run may differ in the compared axis. A task of another run must agree on all
    of its axes.
    """
    apart = {axis for axis, name in fresh.at.items() if own.at.get(axis, name) != name}
    return not apart - ({rule.axis} if fresh.run == rule.test else set())


def _family(
    asked: Asked, ends: int, final: bool, measure: Measure, correct: dict[str, Outcomes]
) -> Family:
    size = max(1, len(asked)) * ends
    every = {
        one: difference(one, both, size, measure.scale, correct) for one, both in asked.items()
    }
    found = tuple(one for one in every.values() if one)
    return Family(found, size, tuple(one for one in every if not every[one]), final)


def sentence(opening: str, found: Family, rule: Rule, measure: Measure) -> str:
    """Return the sentence that states the claims of a family of comparisons.

    Args:
        opening: Words at the start of the sentence.
        found: Family of comparisons.
        rule: Rule of the study.
        measure: Measure of the comparisons.
    """
    shared = f"{found.asked} comparison{'s' if found.asked != 1 else ''}"
    shared += f", {len(found.missing)} of them without results yet" if found.missing else ""
    ends = found.size // max(1, found.asked)
    shared += f" at {ends} planned ends" if ends > 1 else ""
    in_all = f" (Bonferroni over {shared})" if found.size > 1 else ""
    if not found.final:
        so_far = some([_open(one, measure) for one in found.differences]) or "nothing is compared"
        return f"{opening} nothing is claimed before the planned end; so far: {so_far}{in_all}."
    against = {one.b for one in (*(one.asked for one in found.differences), *found.missing)}
    others = f" from {against.pop()}" if len(against) == 1 else ""
    most = max((one.n for one in found.differences), default=0)
    if most < FEWEST:
        seeds = f"{most} independent seed{'s' if most != 1 else ''} on both sides"
        text = f"no difference{others} is claimed: {seeds}, and a claim needs {FEWEST}"
        return f"{opening} {text}{in_all}."
    claimed = found.claimed
    names = [_open(one, measure) for one in found.differences if not one.claimed]
    if not claimed:
        text = f"no {rule.axis or rule.test} is distinguished{others} at 95%{in_all}"
        return f"{opening} {text}: {some(names)}."
    texts = [_claim(one, measure) for one in claimed[:NAMED]]
    texts += [f"{len(claimed) - NAMED} more, in the table"] if claimed[NAMED:] else []
    rest = f" Not distinguished from zero: {some(names)}." if names else ""
    best = _best(claimed, rule, measure)
    ending = f" {best} is the best of all." if best else ""
    return f"{opening} {'; '.join(texts)}; intervals at 95%{in_all}.{ending}{rest}"


def _claim(one: Difference, measure: Measure) -> str:
    """Describe a claimed difference: mae is 2.75 points above scratch (+2.39 to +3.11, 5 seeds)."""
    side = "above" if one.mean > 0 else "below"
    word = "" if measure.sign > 0 else f" ({'better' if one.mean < 0 else 'worse'})"
    size = f"{abs(one.mean):.{measure.digits}f}{measure.unit}"
    interval = f"({_ends(one, measure)}, {one.n} seeds)"
    return f"{one.asked.a} is {size} {side} {one.asked.b}{one.asked.place}{word} {interval}"


def _open(one: Difference, measure: Measure) -> str:
    """Describe the mean and interval of a difference that is not claimed."""
    if not one.interval:
        return str(one.asked)
    mean = f"{one.mean:+.{measure.digits}f}"
    return f"{one.asked} (mean {mean}, interval {_ends(one, measure)}, {one.n} seeds)"


def _ends(one: Difference, measure: Measure) -> str:
    return " to ".join(f"{end:+.{measure.digits}f}" for end in one.interval or ())


def _best(claimed: Sequence[Difference], rule: Rule, measure: Measure) -> str | None:
    """Return the name that is claimed to be the best at every place, or None."""
    swapped = (Comparison(one.asked.b, one.asked.a, one.asked.at) for one in claimed)
    both = zip(claimed, swapped, strict=True)
    wins = {one.asked if measure.sign * one.mean > 0 else other for one, other in both}
    for arm in rule.arms if len(rule.arms) > 2 else ():
        others = [other for other in rule.arms if other != arm]
        if wins >= {Comparison(arm, other, at) for other in others for at in rule.places or [()]}:
            return arm
    return None
