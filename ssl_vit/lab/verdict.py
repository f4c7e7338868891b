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
        return [difference for difference in self.differences if difference.claimed and self.final]

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
        text = "the study does not say what to compare. Add report: {test: RUN} to the study"
        raise UserError(f"{results.folder}: {text}, and type the command of the study again.")
    rule, report = results.plan.rule, results.plan.report
    measure = find_measure(results, rule)
    if measure is None:
        ended = any(
            task.run == rule.test for task in results.plan.tasks if task.name in results.finished
        )
        none = f"No run of {rule.test} has finished yet."
        if ended:
            none = f"No finished run of {rule.test} has a finite value."
        texts = (none, *_unfinished(results))
        nothing = Family((), len(rule.asked), rule.asked)
        return Verdict(rule, None, results.rows(rule.test), nothing, nothing, texts)
    rows = results.rows(rule.test, measure.name, measure.split)
    asked = {comparison: pairs(rows, rule.axis or "run", comparison) for comparison in rule.asked}
    fresh = _with_fresh(results, rule, measure)
    every = [*asked.items(), *(fresh or {}).items()]
    reasons = {
        comparison: _apart(paired, measure, results.plan.by_name) for comparison, paired in every
    }
    apart = next((comparison for comparison, why in reasons.items() if why), None)
    if apart:
        if report.keys() & {"pairs", "baseline"} or apart not in asked:
            text = f"{apart.a} and {apart.b}{apart.place} {reasons[apart]}"
            raise UserError(f"{results.folder}: {text}. Remove this comparison from the report.")
        every, asked = every[len(asked) :], {}
    final = not results.untested and not results.plan.dropped
    tasks = {name for _, paired in every for name in (*paired["folder_a"], *paired["folder_b"])}
    correct = results.correct(tasks) if measure.name == PREDICTED else {}
    ends = results.ends
    of_study, against = (
        _family(family, ends, final, measure, correct) for family in (asked, fresh or {})
    )
    opening = f"{report['condition']}, by" if report.get("condition") else "By"
    opening += f" {measure.label} on {SPLIT_NAMES.get(measure.split, measure.split)} images,"
    why = f": {apart.a} and {apart.b} {reasons[apart]}" if apart else ""
    sentences = [
        sentence(opening, of_study, rule, measure) if asked else f"Nothing is compared{why}."
    ]
    sentences += _measured_otherwise(results, asked)
    if fresh is None:
        sentences.append("The study measured nothing with fresh weights for comparison.")
    elif fresh:
        named = {comparison.b for comparison in fresh} == {FRESH}
        if asked:  # else no sentence has named the measure yet
            opening = "By the same measure," if named else "Compared with fresh weights,"
        sentences.append(sentence(opening, against, rule, measure))
    sentences += [*_unfinished(results), *_history(results)]
    return Verdict(rule, measure, rows, of_study, against, tuple(sentences))


def _history(results: Results) -> Iterator[str]:
    """Report changes of the plan after results were known, and the effect on the claims."""
    plan = results.plan
    yield from plan.changes
    if plan.dropped:
        text = "The study was stopped before the planned end, so the intervals are exploratory."
        yield f"{text} The plan dropped these unfinished tasks: {some(plan.dropped)}."
    elif results.ends > 1:
        bound = ERROR * sum(1 / end for end in range(1, results.ends + 1))
        text = (
            f"The plan changed after results were known, so this is planned end {results.ends} and"
        )
        text += (
            f" each error level is divided by {results.ends}. With this rule, at most {bound:.1%}"
        )
        yield f"{text} of such studies claim a difference that does not exist."


def _unfinished(results: Results) -> Iterator[str]:
    """Report unfinished tasks with the time of the last result, because a page is not updated."""
    if results.missing:
        last = max(run.result.finished[:16] for run in results.finished.values())
        text = f"At {last} UTC, {len(results.missing)} of {len(results.plan.tasks)} tasks had not"
        yield f"{text} finished: {some(results.missing)}. The report lacks these results."


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
        raise UserError(f"{text} ({suggest(name, [*rows['metric'].unique()])})")
    if not has_direction(name):
        text = f"{name}: whether lower values are better is unknown. Write another metric under"
        raise UserError(f"{results.folder}: {text} `measures`, or declare a Metric in the plugin.")
    row = find_metric(name)
    split = next(
        (candidate for candidate in ("test", "validation", "train") if candidate in splits),
        min(splits),
    )
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
    tasks, sentences = results.plan.by_name, dict[str, None]()
    for comparison, paired in asked.items():
        for row in paired.itertuples():
            pools = [row.feature_pool_a, row.feature_pool_b]
            folders = (row.folder_a, row.folder_b)
            sizes = [tasks[folder].values.get("data.size") for folder in folders]
            for key, values in (("probe.pool", pools), ("data.size", sizes)):
                # a fine-tuning has no pool, and without data.size the weights' size is used
                if all(pools) and None not in values and values[0] != values[1]:
                    texts = zip((comparison.a, comparison.b), values, strict=True)
                    sentences |= {f"{name} with {key}={value}": None for name, value in texts}
    if sentences:
        differing = some([*sentences])
        yield f"Part of a difference may come from how the encoders were measured: {differing}."


def _apart(paired: pd.DataFrame, measure: Measure, tasks: Tasks) -> str:
    """Return why the two sides of some pairs cannot be compared, or an empty text otherwise.

    The sides differ if they were tested on different images. For metrics of a pre-training task on
    held-out images, the sides also differ if a recipe key makes one task easier.
    """
    if on_different_images(paired):
        return "were tested on different images"
    part, _, last = measure.name.rpartition("/")
    if measure.split == "test" or last.startswith(PROBED) or find_metric(last).unit == NUMBER:
        return ""
    folders = (map(tasks.get, paired[side]) for side in ("folder_a", "folder_b"))
    for a, b in zip(*folders, strict=True):
        if a is None or b is None or a.tool != "pretrain":
            continue
        keys = [key for key in engine.keys_of_task(a.values) if key in a.values and key in b.values]
        if engine.predicts_labels(part or str(a.values["objective"])):
            # predicted labels do not depend on which part of an image the network sees
            keys = ["objective"]
        if differ := [key for key in keys if a.values[key] != b.values[key]]:
            return f"have different pre-training tasks, because {differ[0]} differs"
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
    fine_tuned = [task for task in tasks.values() if task.run in runs and task.tool == "finetune"]
    fresh = [
        candidate for candidate in fine_tuned if not candidate.tried and _is_fresh(candidate, tasks)
    ]
    if tool != "finetune":
        fresh = []
    rows = results.rows(metric=measure.name, split=measure.split)
    every: dict[Comparison, list[pd.DataFrame]] = {}
    for task in trained:
        place = tuple(pair for pair in task.at.items() if pair[0] != rule.axis)
        same = [
            fresh_task
            for fresh_task in fresh
            if fresh_task.seed == task.seed and _is_beside(rule, task, fresh_task)
        ]
        others = {_called(fresh_task, rule): fresh_task.name for fresh_task in same}
        if not fresh:
            others = {FRESH: BESIDE.format(task.name)}
        for name, folder in others.items():
            paired = pairs(rows, "folder", Comparison(task.name, folder))
            every.setdefault(Comparison(_called(task, rule), name, place), []).append(paired)
    joined = {comparison: pd.concat(each) for comparison, each in every.items()}
    if trained and not fresh and not any(map(len, joined.values())):
        # pre-training tasks have baselines of their own
        return {} if tool == "pretrain" else None
    asked = {frozenset((comparison.a, comparison.b, *comparison.at)) for comparison in rule.asked}
    return (
        {}
        if all(
            frozenset((comparison.a, comparison.b, *comparison.at)) in asked
            for comparison in joined
        )
        else joined
    )


def _is_fresh(task: Task, tasks: Tasks) -> bool:
    """Return whether a task measures, fine-tunes or could choose to start from fresh weights."""
    among = (task.best or [()])[0]
    tried = [tasks[name].tried["init"] for name in among if "init" in tasks[name].tried]
    start = tried or [task.options.get("init", SCRATCH)]
    return task.tool != "pretrain" and SCRATCH in start


def _called(task: Task, rule: Rule) -> str:
    """Return the name of the arm that a task belongs to."""
    return task.at.get(rule.axis or "", task.run) if task.run == rule.test else task.run


def _is_beside(rule: Rule, trained: Task, fresh: Task) -> bool:
    """Return whether a task from fresh weights belongs to the place of a trained task.

    A task of the test run may differ in the compared axis. A task of another run must agree on all
    of its axes.
    """
    apart = {axis for axis, name in fresh.at.items() if trained.at.get(axis, name) != name}
    return not apart - ({rule.axis} if fresh.run == rule.test else set())


def _family(
    asked: Asked, ends: int, final: bool, measure: Measure, correct: dict[str, Outcomes]
) -> Family:
    size = max(1, len(asked)) * ends
    every = {
        comparison: difference(comparison, paired, size, measure.scale, correct)
        for comparison, paired in asked.items()
    }
    differences = tuple(measured for measured in every.values() if measured)
    return Family(
        differences, size, tuple(comparison for comparison in every if not every[comparison]), final
    )


def sentence(opening: str, family: Family, rule: Rule, measure: Measure) -> str:
    """Return the sentence that states the claims of a family of comparisons.

    Args:
        opening: Words at the start of the sentence.
        family: Family of comparisons.
        rule: Rule of the study.
        measure: Measure of the comparisons.
    """
    shared = f"{family.asked} comparison{'s' if family.asked != 1 else ''}"
    shared += f", {len(family.missing)} without results yet" if family.missing else ""
    ends = family.size // max(1, family.asked)
    shared += f", at {ends} planned ends" if ends > 1 else ""
    in_all = f" (Bonferroni over {shared})" if family.size > 1 else ""
    if not family.final:
        so_far = (
            some([_open(difference, measure) for difference in family.differences])
            or "no comparison has results"
        )
        return f"{opening} nothing is claimed before the planned end. So far: {so_far}{in_all}."
    against = {
        comparison.b
        for comparison in (
            *(difference.asked for difference in family.differences),
            *family.missing,
        )
    }
    others = f" from {against.pop()}" if len(against) == 1 else ""
    most = max((difference.n for difference in family.differences), default=0)
    if most < FEWEST:
        text = f"no difference{others} is claimed, because a claim needs {FEWEST} independent seeds"
        text += f" on both sides and there are {most}"
        return f"{opening} {text}{in_all}."
    claimed = family.claimed
    names = [
        _open(difference, measure) for difference in family.differences if not difference.claimed
    ]
    if not claimed:
        text = f"no {rule.axis or rule.test} can be distinguished{others} at 95%{in_all}"
        return f"{opening} {text}: {some(names)}."
    texts = [_claim(difference, measure) for difference in claimed[:NAMED]]
    texts += [f"{len(claimed) - NAMED} more in the table"] if claimed[NAMED:] else []
    rest = f" Not distinguished from zero: {some(names)}." if names else ""
    best = _best(claimed, rule, measure)
    ending = f" {best} is the best of all." if best else ""
    return f"{opening} {'; '.join(texts)}. Intervals: 95%{in_all}.{ending}{rest}"


def _claim(difference: Difference, measure: Measure) -> str:
    """Describe a claimed difference: mae is 2.75 points above scratch (+2.39 to +3.11, 5 seeds)."""
    side = "above" if difference.mean > 0 else "below"
    word = "" if measure.sign > 0 else f" ({'better' if difference.mean < 0 else 'worse'})"
    size = f"{abs(difference.mean):.{measure.digits}f}{measure.unit}"
    interval = f"({_ends(difference, measure)}, {difference.n} seeds)"
    asked = difference.asked
    return f"{asked.a} is {size} {side} {asked.b}{asked.place}{word} {interval}"


def _open(difference: Difference, measure: Measure) -> str:
    """Describe the mean and interval of a difference that is not claimed."""
    if not difference.interval:
        return str(difference.asked)
    mean = f"{difference.mean:+.{measure.digits}f}"
    ends = _ends(difference, measure)
    return f"{difference.asked} (mean {mean}, interval {ends}, {difference.n} seeds)"


def _ends(difference: Difference, measure: Measure) -> str:
    return " to ".join(f"{end:+.{measure.digits}f}" for end in difference.interval or ())


def _best(claimed: Sequence[Difference], rule: Rule, measure: Measure) -> str | None:
    """Return the name that is claimed to be the best at every place, or None."""
    swapped = (
        Comparison(difference.asked.b, difference.asked.a, difference.asked.at)
        for difference in claimed
    )
    pairs_of_comparisons = zip(claimed, swapped, strict=True)
    wins = {
        difference.asked if measure.sign * difference.mean > 0 else swapped_comparison
        for difference, swapped_comparison in pairs_of_comparisons
    }
    for arm in rule.arms if len(rule.arms) > 2 else ():
        others = [rival for rival in rule.arms if rival != arm]
        if wins >= {Comparison(arm, rival, at) for rival in others for at in rule.places or [()]}:
            return arm
    return None
