"""Decide what a study's report claims, by a rule that is fixed before the first task.

A study compares the pairs of arms that it names. Without such pairs, it compares every arm with the
baseline. Without a baseline, it compares all pairs. The comparisons use the first measure, and are
made for every combination of names on the other axes.

A difference is claimed only if all of these conditions hold:
- The study has reached its planned end.
- There are at least three independent seeds.
- The interval of the paired differences excludes zero. Its level is 1 - 0.05/m for m comparisons.

With stored predictions, the interval contains two intervals: Student's t over the seeds, and a
bootstrap over seeds and images.

Before the planned end, and after a user has dropped planned runs, the report shows the same
intervals without a claim. If a user stopped a study as soon as the intervals look good, 14.5% of
studies would claim a difference that does not exist. If a study is changed after results were
known, for example lengthened, m is multiplied by the number of planned ends. At k ends together, at
most 5% (1 + 1/2 + ... + 1/k) of such studies then claim a difference that does not exist. The
comparisons with untrained weights are a separate family, which has a separate error of 5%.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from ..errors import UserError, suggest
from ..formatting import NAMED, SPLIT_NAMES, list_names
from ..measurements import NUMBER, find_metric, read_flat_name
from ..metrics import (
    MAIN,
    has_direction,
    is_frozen_metric,
    is_model_metric,
    measure_rank,
    metric_label,
)
from ..recipe.declaration import predicts_labels
from ..recipe.init_source import SCRATCH
from ..runs.identity import keys_of_prediction
from .compare import (
    FEWEST,
    Comparison,
    Difference,
    PredictionOutcomes,
    Rule,
    measure_difference,
    on_different_images,
    pair_rows,
)
from .results import FRESH_FOLDER, PREDICTED, Results
from .study.options import RELEASED
from .study.tasks import Task, Tasks

FRESH = "untrained weights"
ERROR = 0.05  # probability that a family claims a difference that does not exist
PairsByComparison = dict[Comparison, pd.DataFrame]  # {comparison: pairs over seeds}


class Measure(NamedTuple):
    """Metric that decides the claims, and the format of its values.

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

    @property
    def heading(self) -> str:
        """Label with the unit of values, for columns of tables and for figures."""
        return f"{self.label}, %" if self.scale == 100 else self.label


class Family(NamedTuple):
    """Comparisons that share an error of 5%.

    Attributes:
        differences: Differences of the measured comparisons.
        size: Number by which the error is divided: comparisons times planned ends.
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
    def num_comparisons(self) -> int:
        return len(self.differences) + len(self.missing)


@dataclass(frozen=True)
class Verdict:
    """Claims of a study's report.

    Attributes:
        rule: Rule that decides.
        measure: Metric that decides, or None if nothing has been measured yet.
        rows: Compared rows of the results.
        primary: Family of the study's comparisons. Empty if the compared names are tested on
            different images.
        against_fresh: Family of the trained names minus untrained weights. Empty if no untrained
            weights are measured, if no name is trained, or if the study's own comparisons already
            include them.
        sentences: Claims about both families, then sentences about results that are missing and
            about changes of the plan.
    """

    rule: Rule
    measure: Measure | None
    rows: pd.DataFrame
    primary: Family
    against_fresh: Family
    sentences: tuple[str, ...]


def decide_claims(results: Results) -> Verdict:
    """Decide what a study's results claim by the study's rule.

    Raises:
        UserError: The study has no rule, no finished run has the measure, arms that the study asks
            to compare cannot be compared (for example, they were tested on different images), or
            predictions are damaged.
    """
    if results.plan.rule is None:
        raise UserError(
            f"{results.folder}: the study does not say what to compare. Add report: {{test: RUN}}"
            " to the study, and type the command of the study again."
        )
    rule, report = results.plan.rule, results.plan.report
    measure = find_measure(results, rule)
    if measure is None:
        ended = any(
            task.run == rule.test for task in results.plan.tasks if task.name in results.finished
        )
        # if runs have finished, none of them has a metric with a finite value
        reason = f"No run of {rule.test} has finished yet."
        if ended:
            reason = f"No finished run of {rule.test} has a metric with a finite value."
        nothing = Family((), len(rule.asked), rule.asked)
        unfinished = _unfinished(results)
        return Verdict(rule, None, results.rows(rule.test), nothing, nothing, (reason, *unfinished))
    rows = results.rows(rule.test, measure.name, measure.split)
    asked_pairs = {
        comparison: pair_rows(rows, rule.axis or "run", comparison) for comparison in rule.asked
    }
    fresh_pairs = _pair_with_fresh(results, rule, measure)
    all_pairs = [*asked_pairs.items(), *(fresh_pairs or {}).items()]
    reasons = {
        comparison: _why_not_comparable(comparison, paired, measure, results.plan.by_name)
        for comparison, paired in all_pairs
    }
    unequal = next((comparison for comparison, reason in reasons.items() if reason), None)
    if unequal:
        if unequal not in asked_pairs:
            raise UserError(f"{results.folder}: {reasons[unequal]} Change report.beside.")
        if report.keys() & {"pairs", "baseline"}:
            raise UserError(
                f"{results.folder}: {reasons[unequal]} Change report.pairs or report.baseline."
            )
        # The study named neither pairs nor a baseline, so it did not request this comparison. Keep
        # only the comparisons with untrained weights, which come after the asked comparisons
        all_pairs, asked_pairs = all_pairs[len(asked_pairs) :], {}
    final = not results.untested and not results.plan.dropped
    tasks = {name for _, paired in all_pairs for name in (*paired["folder_a"], *paired["folder_b"])}
    outcomes = results.load_outcomes(tasks) if measure.name == PREDICTED else {}
    ends = results.ends
    primary = _measure_family(asked_pairs, ends, final, measure, outcomes)
    against_fresh = _measure_family(fresh_pairs or {}, ends, final, measure, outcomes)
    measured_on = f"{measure.label} on {SPLIT_NAMES.get(measure.split, measure.split)} images"
    opening = f"By {measured_on},"
    if report.get("condition"):
        opening = f"{report['condition']}, by {measured_on},"
    if asked_pairs:
        first_sentence = claims_sentence(opening, primary, rule, measure)
    elif unequal:
        first_sentence = f"Nothing is compared: {reasons[unequal]}"
    else:
        first_sentence = "Nothing is compared."
    sentences = [first_sentence, *_warn_about_measuring(results, asked_pairs)]
    if fresh_pairs is None:
        sentences.append("The study measured nothing with untrained weights for comparison.")
    elif fresh_pairs:
        names_fresh = {comparison.b for comparison in fresh_pairs} == {FRESH}
        if asked_pairs:  # the first sentence has named the measure already
            opening = "By the same measure," if names_fresh else "Compared with untrained weights,"
        sentences.append(claims_sentence(opening, against_fresh, rule, measure))
    sentences += [*_unfinished(results), *_history(results)]
    return Verdict(rule, measure, rows, primary, against_fresh, tuple(sentences))


def _history(results: Results) -> Iterator[str]:
    """Yield sentences about changes of the plan after results were known, and about their effect.

    At a planned end, all tasks of a plan have finished and the report makes its claims. Each change
    of the plan after results were known adds a planned end, at which the study could claim a
    difference again. The comparisons at the k-th planned end share an error of 5% / k. The
    probability that the study claims a difference that does not exist is at most the sum of these
    errors, such as 7.5% for two planned ends.
    """
    plan = results.plan
    yield from plan.changes
    if plan.dropped:
        yield (
            "The study was stopped before the planned end, so the intervals are exploratory. The"
            f" plan dropped these unfinished tasks: {list_names(plan.dropped)}."
        )
    elif results.ends > 1:
        error_of_all_ends = ERROR * sum(1 / k for k in range(1, results.ends + 1))
        yield (
            f"The plan changed after results were known, so this is planned end {results.ends} and"
            f" each error level is divided by {results.ends}. With this rule, at most"
            f" {error_of_all_ends:.1%} of such studies claim a difference that does not exist."
        )


def _unfinished(results: Results) -> Iterator[str]:
    """Yield a sentence about unfinished tasks, if there are any.

    The sentence has the time of the newest result, because the page may be old.
    """
    if results.missing:
        last = max(run.result.finished[:16] for run in results.finished.values())
        yield (
            f"At {last} UTC, {len(results.missing)} of {len(results.plan.tasks)} tasks had not"
            f" finished: {list_names(results.missing)}. The report lacks these results."
        )


def find_measure(results: Results, rule: Rule) -> Measure | None:
    """Return the measure that decides the study's claims.

    If the rule has no measure, the measure is the first metric of `MAIN` that a compared run has
    measured. Metrics of test images come first. The result is None if no compared run has a metric
    with a finite value yet.

    Raises:
        UserError: The finished runs have not measured the rule's measure, or it is unknown whether
            its lower or its higher values are better.
    """
    if results.rows(rule.test).empty:
        return None
    # `results.rows` leaves out infinite values. They count here, so that a diverged run does not
    # change which metric is chosen
    rows = results.table
    is_of_model = rows["metric"].map(lambda name: is_model_metric(read_flat_name(name)))
    rows = rows[(rows["run"] == rule.test) & is_of_model.astype(bool)]
    name = rule.measure
    if name is None:
        tested = rows[rows["split"] == "test"]
        candidates = rows if tested.empty else tested
        name = min(candidates["metric"], key=_measure_order)
    splits = {*rows[rows["metric"] == name]["split"]}
    if not splits:
        raise UserError(
            f"{results.folder}: no finished run of {rule.test} has measured {name}"
            f" ({suggest(name, [*rows['metric'].unique()])})"
        )
    key = read_flat_name(name)
    if not has_direction(key):
        raise UserError(
            f"{results.folder}: ssl_vit does not know whether lower values of {name} are better."
            " Name another metric with report.measures=, or declare a Metric in the plugin."
        )
    preferred = (split for split in ("test", "validation", "train") if split in splits)
    return build_measure(name, next(preferred, min(splits)))


def build_measure(name: str, split: str) -> Measure:
    """Describe a metric on a split: the label, the better direction and the format of values."""
    key = read_flat_name(name)
    metric = find_metric(key)
    measure = Measure(name, split, metric_label(key), sign=1 if metric.higher else -1)
    if metric.in_per_cent:
        return measure._replace(scale=100, unit=" points", digits=2)
    return measure


def _measure_order(metric: str) -> float:
    """Return the rank of a metric. `find_measure` takes the metric with the lowest rank.

    The metrics of a frozen encoder's evaluation, such as `knn`, have the ranks of `measure_rank`.
    All other metrics share the last rank. These include the metrics that a probe measures during
    training, such as `probe_knn`.
    """
    key = read_flat_name(metric)
    has_rank = is_frozen_metric(key) and not key.is_probe
    return measure_rank(key) if has_rank else len(MAIN)


def _warn_about_measuring(
    results: Results, pairs_by_comparison: PairsByComparison
) -> Iterator[str]:
    """Yield a sentence if two compared frozen encoders were measured in different ways.

    The sentence names the arms that differ in the pooling of features or in the image size.

    Args:
        results: Results of the study.
        pairs_by_comparison: For each comparison, a row for each seed with the runs of both arms.
    """
    tasks = results.plan.by_name
    differing: dict[str, None] = {}  # texts, each once and in order
    for comparison, paired in pairs_by_comparison.items():
        for row in paired.itertuples():
            pools = [row.feature_pool_a, row.feature_pool_b]
            if not all(pools):  # a fine-tuned run records no pooling
                continue
            # the image size, or None if a run uses the size that the weights were trained with
            sizes = [tasks[name].values.get("data.size") for name in (row.folder_a, row.folder_b)]
            for key, (value_a, value_b) in {"probe.pool": pools, "data.size": sizes}.items():
                if None not in (value_a, value_b) and value_a != value_b:
                    differing[f"{comparison.a} with {key}={value_a}"] = None
                    differing[f"{comparison.b} with {key}={value_b}"] = None
    if differing:
        yield (
            "Part of a difference may come from how the encoders were measured:"
            f" {list_names([*differing])}."
        )


def _why_not_comparable(
    comparison: Comparison, paired: pd.DataFrame, measure: Measure, tasks: Tasks
) -> str:
    """Return a sentence that says why two arms cannot be compared, or an empty text if they can.

    Two arms, such as `mae` and `mpp`, cannot be compared if they were tested on different images.
    The loss and the accuracy of the pre-training task can only be compared if both arms have the
    same task. With a lower `corruption.rate`, for example, the task may be easier.

    Args:
        comparison: Comparison of the two arms.
        paired: A row for each seed with the runs of both arms, from `compare.pair_rows`.
        measure: Measure of the comparison.
        tasks: Tasks of the study.
    """
    names = f"{comparison.a} and {comparison.b}{comparison.place}"
    if on_different_images(paired):
        return f"{names} were tested on different images."
    metric = read_flat_name(measure.name)
    # a plain number, such as the learning rate, describes the training and not how good a model is
    is_about_training = find_metric(metric).unit == NUMBER
    # a probe measures the encoder's features, whatever the task is
    if measure.split == "test" or metric.is_probe or is_about_training:
        return ""
    for folder_a, folder_b in zip(paired["folder_a"], paired["folder_b"], strict=True):
        a, b = tasks.get(folder_a), tasks.get(folder_b)
        if a is None or b is None or a.tool != "pretrain":
            continue
        keys = [key for key in keys_of_prediction(a.values) if key in a.values and key in b.values]
        if predicts_labels(metric.part or str(a.values["objective"])):
            # Predicting labels is the same task for all sizes of images, patches and masks
            keys = ["objective"]
        for key in keys:
            if a.values[key] != b.values[key]:
                return f"{names} have different pre-training tasks, because {key} differs."
    return ""


def _pair_with_fresh(results: Results, rule: Rule, measure: Measure) -> PairsByComparison | None:
    """Pair each trained encoder with untrained weights of the same seed and the same place.

    A place has one name on each axis except the axis of the arms, such as labels=1%.

    A fine-tuning is paired with a task that fine-tunes untrained weights. An evaluation or a
    pre-training is paired with the untrained weights that the same task has measured.

    Returns:
        The pairs of runs of each comparison with untrained weights. None if untrained weights were
            not measured, although the study evaluates or fine-tunes trained weights. Empty if no
            arm is trained, if a pre-training measured no untrained weights, or if the study's own
            comparisons already include all these comparisons.
    """
    tasks, report = results.plan.by_name, results.plan.report
    tested_tasks = [task for task in tasks.values() if task.run == rule.test]
    trained_tasks = [task for task in tested_tasks if not _is_fresh(task, tasks)]
    if report.get("question"):  # study/worth compares the released encoder in its answer
        trained_tasks = [task for task in trained_tasks if _arm_name(task, rule) != RELEASED]
    tool = tested_tasks[0].tool
    shown_runs = (rule.test, *report.get("beside", ()))
    fresh_tasks = []
    if tool == "finetune":
        fresh_tasks = [
            task
            for task in tasks.values()
            if task.run in shown_runs
            and task.tool == "finetune"
            and not task.tried
            and _is_fresh(task, tasks)
        ]
    rows = results.rows(metric=measure.name, split=measure.split)
    paired_by_comparison: dict[Comparison, list[pd.DataFrame]] = {}
    for task in trained_tasks:
        place = tuple((axis, name) for axis, name in task.at.items() if axis != rule.axis)
        fresh_folders = {
            _arm_name(fresh_task, rule): fresh_task.name
            for fresh_task in fresh_tasks
            if fresh_task.seed == task.seed and _is_same_place(rule, task, fresh_task)
        }
        if not fresh_tasks:  # untrained weights that the task has measured itself
            fresh_folders = {FRESH: FRESH_FOLDER.format(task.name)}
        for name, folder in fresh_folders.items():
            paired = pair_rows(rows, "folder", Comparison(task.name, folder))
            comparison = Comparison(_arm_name(task, rule), name, place)
            paired_by_comparison.setdefault(comparison, []).append(paired)
    joined = {comparison: pd.concat(frames) for comparison, frames in paired_by_comparison.items()}
    if trained_tasks and not fresh_tasks and not any(map(len, joined.values())):
        # A pre-training has other baselines, so the report does not miss untrained weights ({}).
        # For other tools, the report says that they are missing (None)
        return {} if tool == "pretrain" else None

    def without_order(comparison: Comparison) -> frozenset[Any]:
        return frozenset((comparison.a, comparison.b, *comparison.at))

    compared = set(map(without_order, rule.asked))
    is_repetition = all(without_order(comparison) in compared for comparison in joined)
    return {} if is_repetition else joined


def _is_fresh(task: Task, tasks: Tasks) -> bool:
    """Return whether a task evaluates or fine-tunes untrained weights.

    A task may take the best initial weights of several tries (runs that each test one setting). For
    such a task, the result is true if untrained weights were among the tries.
    """
    if task.tool == "pretrain":
        return False
    tried_weights = []
    if task.best:
        tries, _ = task.best  # names of the tries, and the measure that decides
        tried_options = [tasks[name].tried for name in tries]
        tried_weights = [options["init"] for options in tried_options if "init" in options]
    if tried_weights:
        return SCRATCH in tried_weights
    return task.options.get("init", SCRATCH) == SCRATCH


def _arm_name(task: Task, rule: Rule) -> str:
    """Return the arm of a task, such as `mae`: the task's name on the compared axis.

    If the task is not of the compared run, or has no name on the compared axis, the result is the
    name of its run.
    """
    if task.run != rule.test or rule.axis is None:
        return task.run
    return task.at.get(rule.axis, task.run)


def _is_same_place(rule: Rule, trained: Task, fresh: Task) -> bool:
    """Return whether a task from untrained weights has the same axis names as a trained task.

    For example, both tasks have the name "1%" on the axis "share". An axis that only one of the
    tasks has is ignored. If the untrained task is of the compared run (`rule.test`), the axis of
    the arms, such as `mae` and `scratch`, is ignored too, because different arms are compared.
    """
    differing_axes = {
        axis for axis in fresh.at.keys() & trained.at.keys() if fresh.at[axis] != trained.at[axis]
    }
    if fresh.run == rule.test and rule.axis:
        differing_axes.discard(rule.axis)
    return not differing_axes


def _measure_family(
    pairs_by_comparison: PairsByComparison,
    ends: int,
    final: bool,
    measure: Measure,
    outcomes_by_task: dict[str, PredictionOutcomes],
) -> Family:
    """Measure the differences of comparisons that share an error of 5%.

    The error is divided by the number of comparisons and by the number of planned ends. For
    example, each of 3 comparisons at the second planned end has an error of 5% / 6. At a planned
    end, all tasks of a plan have finished and the report makes its claims. Each change of the plan
    after results were known adds a planned end.

    Args:
        pairs_by_comparison: For each comparison, a row for each seed with the runs of both arms.
        ends: Number of planned ends so far, at least 1.
        final: Whether all tasks of the present plan have finished.
        measure: Measure of the comparisons.
        outcomes_by_task: `{task: outcomes}` of the tasks with stored predictions. Outcomes say for
            each image whether it was predicted correctly.
    """
    divisor = max(1, len(pairs_by_comparison)) * ends
    by_comparison = {
        comparison: measure_difference(comparison, paired, divisor, measure.scale, outcomes_by_task)
        for comparison, paired in pairs_by_comparison.items()
    }
    differences = tuple(filter(None, by_comparison.values()))
    missing = tuple(
        comparison for comparison, difference in by_comparison.items() if not difference
    )
    return Family(differences, divisor, missing, final)


def claims_sentence(opening: str, family: Family, rule: Rule, measure: Measure) -> str:
    """Return the sentence that states the claims of a family of comparisons.

    Args:
        opening: Beginning of the sentence, such as "By top-1 on test images,".
        family: Family of comparisons.
        rule: Rule of the study.
        measure: Measure of the comparisons.
    """
    comparisons = f"{family.num_comparisons} comparisons"
    if family.num_comparisons == 1:
        comparisons = "1 comparison"
    missing = f", {len(family.missing)} without results yet" if family.missing else ""
    # `size` is the number of comparisons times the number of planned ends
    ends = family.size // max(1, family.num_comparisons)
    at_ends = f", at {ends} planned ends" if ends > 1 else ""
    correction = f" (Bonferroni over {comparisons}{missing}{at_ends})" if family.size > 1 else ""
    if not family.final:
        measured = [_describe_unclaimed(difference, measure) for difference in family.differences]
        so_far = list_names(measured) if measured else "no comparison has results"
        return f"{opening} nothing is claimed before the planned end. So far: {so_far}{correction}."
    compared = [*(difference.comparison for difference in family.differences), *family.missing]
    references = {comparison.b for comparison in compared}
    reference = f" from {references.pop()}" if len(references) == 1 else ""
    most_seeds = max((difference.n for difference in family.differences), default=0)
    if most_seeds < FEWEST:
        return (
            f"{opening} no difference{reference} is claimed, because a claim needs {FEWEST}"
            f" independent seeds on both sides and there are {most_seeds}{correction}."
        )
    claimed = family.claimed
    unclaimed = [
        _describe_unclaimed(difference, measure)
        for difference in family.differences
        if not difference.claimed
    ]
    if not claimed:
        return (
            f"{opening} no {rule.axis or rule.test} can be distinguished{reference} at"
            f" 95%{correction}: {list_names(unclaimed)}."
        )
    claims = [_describe_claim(difference, measure) for difference in claimed[:NAMED]]
    if len(claimed) > NAMED:
        claims.append(f"{len(claimed) - NAMED} more in the table")
    best = _best(claimed, rule, measure)
    best_of_all = f" {best} is the best of all." if best else ""
    rest = f" Not distinguished from zero: {list_names(unclaimed)}." if unclaimed else ""
    return f"{opening} {'; '.join(claims)}. Intervals: 95%{correction}.{best_of_all}{rest}"


def _describe_claim(difference: Difference, measure: Measure) -> str:
    """Describe a claimed difference.

    For example: "mae is 2.75 points above scratch at 1% (+2.39 to +3.11, 5 seeds)". If lower values
    are better, the text also says "(better)" or "(worse)", because most readers expect that higher
    values are better.
    """
    side = "above" if difference.mean > 0 else "below"
    verdict = ""
    if measure.sign < 0:
        verdict = " (better)" if difference.mean < 0 else " (worse)"
    a, b, _ = difference.comparison
    place = difference.comparison.place  # such as " at 1%", with a leading blank, or empty
    return (
        f"{a} is {abs(difference.mean):.{measure.digits}f}{measure.unit} {side} {b}{place}{verdict}"
        f" ({_ends(difference, measure)}, {difference.n} seeds)"
    )


def _describe_unclaimed(difference: Difference, measure: Measure) -> str:
    """Describe a difference that is not claimed.

    For example: "mae minus scratch at 1% (mean +0.75, interval -0.39 to +1.89, 5 seeds)". Without
    an interval, only the comparison is named.
    """
    if not difference.interval:
        return str(difference.comparison)
    return (
        f"{difference.comparison} (mean {difference.mean:+.{measure.digits}f}, interval"
        f" {_ends(difference, measure)}, {difference.n} seeds)"
    )


def _ends(difference: Difference, measure: Measure) -> str:
    return " to ".join(f"{end:+.{measure.digits}f}" for end in difference.interval or ())


def _best(claimed: Sequence[Difference], rule: Rule, measure: Measure) -> str | None:
    """Return the arm that is better than all other arms at every place, or None without one.

    A study of two arms gives None, because the sentence about their difference already says which
    arm is better.

    Args:
        claimed: Claimed differences.
        rule: Rule of the study, with the arms and the places, such as 1% and 10% of the labels.
        measure: Measure of the differences, which says whether higher values are better.
    """
    if len(rule.arms) <= 2:
        return None
    wins = set()  # comparisons whose first name is better
    for difference in claimed:
        a, b, place = difference.comparison
        is_a_better = measure.sign * difference.mean > 0
        wins.add(Comparison(a, b, place) if is_a_better else Comparison(b, a, place))
    places = rule.places or [()]
    for arm in rule.arms:
        rivals = [rival for rival in rule.arms if rival != arm]
        if all(Comparison(arm, rival, place) in wins for rival in rivals for place in places):
            return arm
    return None
