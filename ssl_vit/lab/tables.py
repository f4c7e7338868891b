"""Build the tables of a study's report as DataFrames and as text, without importing torch."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import pandas as pd

from .. import stats
from ..errors import UserError
from ..formatting import FEW_IMAGES, format_count, list_names, text_line
from ..measurements import (
    COMMONEST,
    SUBSTITUTES,
    UNTRAINED,
    find_baseline,
    find_metric,
    read_flat_name,
)
from ..metrics import is_model_metric, metric_label
from .compare import (
    Comparison,
    Difference,
    compare,
    compare_along,
    group_by_origin,
    parse_numbers,
)
from .results import Results
from .study import launch
from .verdict import FRESH, Measure, Verdict, build_measure, decide_claims

SEEDS = "seeds"  # an interval is over seeds, or over seeds and images
THREE_DIGITS = ("exaFLOP", "device-hours", "times")  # columns that show three significant digits


class ReportTable(NamedTuple):
    """Table of the report.

    Attributes:
        frame: Numbers without rounding.
        caption: Line under the table.
        interval: Heading of the interval whose ends are in the columns `low` and `high`.
        digits: Decimals of the numbers.
        losses: Columns that show four decimals, because two losses are often equal to two decimals.
    """

    frame: pd.DataFrame
    caption: str
    interval: str = "95% interval"
    digits: int = 2
    losses: frozenset[str] = frozenset()


def tables(results: Results, verdict: Verdict) -> dict[str, ReportTable]:
    """Return `{name: table}` of the report, the most important table first. No table is empty."""
    by_name = {}
    if verdict.measure is not None:
        by_name["compared"] = _compared_means(results, verdict, verdict.measure)
        by_name["differences"] = _measured_differences(results, verdict, verdict.measure)
        by_name |= _differences_by_other_measures(results, verdict)
        by_name |= _means_over_axes(results, verdict, verdict.measure)
        by_name |= _factors_along_axis(results, verdict, verdict.measure)
    for run in dict.fromkeys(task.run for task in results.plan.tasks):
        by_name[f"measured by {run}"] = _other_metrics(results, verdict, run)
    by_name |= {"chosen": _chosen_values(results), "cost": _cost_of_runs(results)}
    return {name: shown for name, shown in by_name.items() if len(shown.frame)}


def untrained(results: Results, verdict: Verdict, measure: Measure) -> pd.DataFrame:
    """Return the rows of untrained weights that the compared tasks have measured.

    The tables and the figure show untrained weights next to the trained arms. In the column of the
    arms, such as "arm" with `mae` and `mpp`, the rows therefore have the name `FRESH` ("untrained
    weights"). If two arms have different networks, their untrained weights have different values.
    The names then also have the arm, such as "untrained weights as mae".

    Args:
        results: Results of the study.
        verdict: Claims of the study.
        measure: Measure of the rows.
    """
    family = verdict.against_fresh
    # comparisons with and without a measured difference
    comparisons = [*(difference.comparison for difference in family.differences), *family.missing]
    trained_names = [comparison.a for comparison in comparisons if comparison.b == FRESH]
    axis = verdict.rule.axis or "run"
    place_columns = [*verdict.rule.other_axes, "seed"]
    rows = results.rows(metric=measure.name, split=measure.split, untrained_by=verdict.rule.test)
    if verdict.rule.axis:
        rows = rows[rows[axis].isin(trained_names)]
    # Several values for one seed and the same names on the other axes, such as "1%" of the labels,
    # mean that the arms have different networks
    num_values = rows.groupby(place_columns)["value"].nunique()
    names: Any = FRESH  # one name for all rows, or a name for each row
    if (num_values > 1).any():
        names = FRESH + " as " + rows[axis]
    return rows.assign(**{axis: names}).drop_duplicates([axis, *place_columns])


def _follow_axes(rows: pd.DataFrame, results: Results, axes: Sequence[str]) -> pd.DataFrame:
    """Sort rows by their names on the axes, the first axis first.

    Names that are not on an axis of the study, such as untrained weights, come last.

    Args:
        rows: Rows with a column for each axis.
        results: Results of the study, which have the order of the names.
        axes: Axes to sort by.
    """

    def positions(column: pd.Series) -> pd.Series:
        # A name on the axis has its position on the axis. The column is added after these names, so
        # any other name has a later position: its first position in the column
        return column.map([*results.plan.axes.get(str(column.name), ()), *column].index)

    return rows.sort_values([*axes], key=positions, kind="stable")


def _compared_means(results: Results, verdict: Verdict, measure: Measure) -> ReportTable:
    """Build the table with the mean of each compared arm at every place.

    A place has one name on each axis except the axis of the arms, such as labels=1%. The table also
    shows each arm's difference from the baseline. If all comparisons have the same second arm, such
    as `scratch` in "mae minus scratch" and "mpp minus scratch", this arm is the baseline. Otherwise
    the baseline is `report.baseline` of the study. Without a baseline there are no differences.
    """
    differences = {difference.comparison: difference for difference in verdict.primary.differences}
    baseline = results.plan.report.get("baseline")
    second_arms = {comparison.b for comparison in differences}
    if len(second_arms) == 1:
        (baseline,) = second_arms
    rows = pd.concat([verdict.rows, untrained(results, verdict, measure)])
    frame = _summary(results, verdict, measure, rows, baseline, minus=differences.get)
    images = _format_counts(rows["n"].dropna().astype(int), f"{measure.split} images")
    caption = (
        f"The table shows {measure.label} on {images}. n is the number of seeds, and exaFLOP"
        " includes pre-training."
    )
    if measure.scale == 100:
        caption += " Values are in percent."
    if "paper" in results.plan.report:
        caption += " The column paper shows published values, for comparison."
    return ReportTable(frame, caption, f"{_level(verdict.primary.size)} interval", measure.digits)


def means_with_intervals(results: Results, verdict: Verdict, measure: Measure) -> ReportTable:
    """Build the table for a paper: the mean of each measure of the test run, with an interval.

    Each measure has a column. A cell has the mean and half the width of the interval, such as
    "76.5 ± 0.8". Other tables have the standard deviation after the sign ±. The caption can be
    understood without the rest of the report.

    Args:
        results: Results of the study.
        verdict: Claims of the study.
        measure: Measure that decides, which has the first column.
    """
    axes = [*verdict.rule.other_axes, verdict.rule.axis or "run"]
    tested = results.rows(verdict.rule.test, split=measure.split)
    keys = {name: read_flat_name(name) for name in (measure.name, *tested["metric"])}
    measures = [
        build_measure(name, measure.split)
        for name, key in keys.items()
        if is_model_metric(key) and (name == measure.name or find_metric(key).is_compared)
    ]
    headings: dict[str, str] = {}
    for shown in measures:
        # two metrics may have the same label, so the second heading also has the metric's name
        is_taken = shown.heading in headings.values()
        headings[shown.name] = f"{shown.heading} ({shown.name})" if is_taken else shown.heading
    parts = []
    for shown in measures:
        trained_rows = tested[tested["metric"] == shown.name]
        for part in (trained_rows, untrained(results, verdict, shown)):
            values = shown.scale * part["value"]
            parts.append(part.assign(heading=headings[shown.name], value=values))
    rows = pd.concat(parts)
    records: dict[tuple[str, ...], dict[str, Any]] = {}
    num_seeds = []
    ordered = _follow_axes(rows, results, axes)
    for (*key, heading), cell in ordered.groupby([*axes, "heading"], sort=False):
        # seeds that continue from the same run are not independent, so only their mean counts
        groups = group_by_origin(cell["origin"])
        summary = stats.summarize([cell["value"].iloc[group].mean() for group in groups])
        num_seeds.append(summary.n)
        half_width = summary.interval.high - summary.mean if summary.interval else None
        row = records.setdefault(tuple(key), dict(zip(axes, key, strict=True)))
        row |= {heading: cell["value"].mean(), f"{heading} sd": half_width}
    images = _format_counts(rows["n"].dropna().astype(int), f"{measure.split} images")
    if rows["fingerprint"].nunique() == 1 and rows["fingerprint"].iloc[0]:
        task = results.plan.by_name[tested["folder"].iloc[0]]
        images += f" of {task.values['data.name']}"
    labels = ", ".join(shown.label for shown in measures)
    caption = f"Mean {labels} on {images} over {_format_counts(num_seeds, 'seeds')}"
    if max(num_seeds) > 1:
        caption += ", ± half the width of the 95% confidence interval (Student's t over seeds)"
    if sum(num_seeds) < len(rows):
        caption += ". Seeds that continue from the same pre-training count as one seed"
    # each measure has a column of means and a column of half widths, whose name ends in " sd"
    scales = {
        f"{headings[shown.name]}{end}": shown.scale for shown in measures for end in ("", " sd")
    }
    # measures that are not in percent, such as losses, show four decimals
    losses = frozenset(column for column, scale in scales.items() if scale == 1)
    frame = pd.DataFrame([*records.values()], columns=[*axes, *scales])
    return ReportTable(frame, f"{caption}.", losses=losses)


def _format_counts(counts: Iterable[int], things: str) -> str:
    """Describe counts: "3 seeds", or "2 to 3 seeds" if they differ, or "seeds" without counts."""
    distinct = sorted({*counts})
    if not distinct:
        return things
    largest = format_count(distinct[-1], things)
    return largest if len(distinct) == 1 else f"{distinct[0]:,} to {largest}"


def _summary(
    results: Results,
    verdict: Verdict,
    measure: Measure,
    rows: pd.DataFrame,
    baseline: str | None,
    minus: Callable[[Comparison], Difference | None],
) -> pd.DataFrame:
    """Build a table with the mean of every arm at every place.

    With a baseline, the table also has the differences from the baseline. A column with the number
    of pairs is added if this number differs from the number of seeds in any row. A column with the
    number of test images is added if this number differs between rows.

    Args:
        results: Results of the study.
        verdict: Claims of the study.
        measure: Measure of the table.
        rows: Rows of this measure, one for each arm, place and seed.
        baseline: Arm that is the baseline, or None for no differences.
        minus: Function that measures the difference of a comparison, or returns None.
    """
    axis, places = verdict.rule.axis or "run", verdict.rule.other_axes
    records = []
    ordered = _follow_axes(rows, results, [*places, axis])
    for (*place_names, name), cell in ordered.groupby([*places, axis], sort=False):
        place = tuple(zip(places, place_names, strict=True))
        values = stats.summarize((measure.scale * cell["value"]).tolist())
        row = {**dict(place), axis: name, "n": values.n, "mean": values.mean, "sd": values.sd}
        if baseline is not None:
            difference = minus(Comparison(name, baseline, place))
            row |= {
                f"minus {baseline}": difference.mean if difference else None,
                **_ends(difference),
                "pairs": difference.n if difference else None,
            }
        if rows["n"].nunique() > 1:
            row["images"] = cell["n"].min()
        row |= {"exaFLOP": cell["exaflop"].mean()}
        records.append(row | {"paper": results.plan.report.get("paper", {}).get(name)})
    frame = pd.DataFrame(records)
    if "pairs" in frame:
        frame["pairs"] = frame["pairs"].astype("Int64")
        if not (frame["pairs"] != frame["n"]).any():
            del frame["pairs"]
    return frame


def _ends(difference: Difference | None) -> dict[str, float | None]:
    if difference is None or difference.interval is None:
        return {"low": None, "high": None}
    return difference.interval._asdict()


def _level(family: int) -> str:
    """Return the level of each interval, such as "97.5%" for a family of two comparisons.

    With this level, the probability that all intervals of the family hold is at least 95%.
    """
    return f"{100 * (1 - 0.05 / family):.4g}%"


def _measured_differences(results: Results, verdict: Verdict, measure: Measure) -> ReportTable:
    """Build the table of the measured differences, a row for each comparison.

    The rows follow the axes. Differences from untrained weights come last.

    The column `n` is the number of independent seeds: seeds whose runs continue from the same
    pre-training count as one seed. The column `level` is the level of the interval, such as 97.5%
    for two comparisons. With this level, the probability that all intervals hold is at least 95%.
    """
    axis = verdict.rule.axis or "run"

    def position(difference: Difference) -> list[int]:
        a, b, place = difference.comparison
        names = (*place, (axis, a), (axis, b))
        # A name has its position on the axis. `name` is added last, so a name that is not on the
        # axis, such as untrained weights, has the last position
        return [[*results.plan.axes.get(key, ()), name].index(name) for key, name in names]

    rows = []
    for family in (verdict.primary, verdict.against_fresh):
        for difference in sorted(family.differences, key=position):
            comparison = difference.comparison
            row = {
                "difference": f"{comparison.a} minus {comparison.b}",
                **dict(comparison.at),
                "n": difference.n,
                "mean": difference.mean,
                "sd": difference.sd,
                **_ends(difference),
                "level": _level(family.size),
                "over": f"{SEEDS} and images" if difference.over_images else SEEDS,
                "metric": measure.name,
                "split": measure.split,
            }
            rows.append(row)
    caption = (
        "Each difference is a mean over n seeds. Seeds that continue from the same pre-training"
        " count as one seed. A level above 95% makes up for several comparisons, or for a study"
        " that was changed after results."
    )
    if any(row["over"] != SEEDS for row in rows):
        caption += (
            " Where an interval is marked as over seeds and images, two intervals were computed:"
            " Student's t over seeds, and a bootstrap over seeds and images. The table shows the"
            " smallest interval that contains both."
        )
    return ReportTable(pd.DataFrame(rows), caption, "interval", measure.digits)


def _differences_by_other_measures(
    results: Results, verdict: Verdict
) -> Iterator[tuple[str, ReportTable]]:
    """Yield a table of differences for each further measure of the report, as `(name, table)`.

    These tables are exploratory, because the report makes claims only about the first measure.
    """
    for name in results.plan.report.get("measures", ())[1:]:
        # make the same comparisons again, as if this were the first measure of the study
        plan = results.plan.model_copy(update={"rule": replace(verdict.rule, measure=name)})
        with suppress(UserError):  # raised if no finished run has this measure
            exploratory = decide_claims(replace(results, plan=plan))
            measure = exploratory.measure
            if measure is not None:
                split = "" if measure.split == "test" else f" ({measure.split})"
                table = _measured_differences(results, exploratory, measure)
                yield f"differences by {measure.label}{split}", table


def _means_over_axes(
    results: Results, verdict: Verdict, measure: Measure
) -> Iterator[tuple[str, ReportTable]]:
    """Yield tables of means over the names of an axis, as `(name, table)`.

    For example, the names are data sets. A table has means over all data sets and over groups of
    data sets. All seeds of a mean must have results for the same names. Seeds with other names than
    the seed with the most names are therefore left out.
    """
    axis, baseline = verdict.rule.axis or "run", results.plan.report.get("baseline")
    for over, groups in results.plan.report.get("mean_over", {}).items():
        planned = [task.at[over] for task in results.plan.tasks if task.run == verdict.rule.test]
        grouped = [name for names in groups.values() for name in names]
        all_names = dict.fromkeys([*grouped, *planned])
        other_axes = [other_axis for other_axis in results.plan.axes if other_axis != over]
        records = []
        for group, names in {**groups, "all": all_names}.items():
            member_rows = verdict.rows[verdict.rows[over].isin(list(names))]
            # without other axes, all rows form one group
            for _, place_rows in member_rows.groupby(other_axes or (lambda _: 0), sort=False):
                by_seed = [seed_rows for _, seed_rows in place_rows.groupby("seed")]
                measured_names = max(({*seed_rows[over]} for seed_rows in by_seed), key=len)
                for seed_rows in by_seed:
                    if {*seed_rows[over]} != measured_names:
                        continue
                    # the names and the images of the mean, because means over different names or
                    # images are not compared
                    images = zip(seed_rows[over], seed_rows["fingerprint"], strict=True)
                    mean = {
                        over: f"{group}, {len(measured_names)} of {len(names)}",
                        "value": seed_rows["value"].mean(),
                        "fingerprint": str([*images]),
                        "origin": " ".join(seed_rows["origin"]),
                    }
                    records.append(seed_rows.iloc[0].to_dict() | mean)
        rows = pd.DataFrame(records)
        minus = partial(compare, rows, axis, scale=measure.scale)
        frame = _summary(results, verdict, measure, rows, baseline, minus)
        caption = (
            f"Each value is a mean over names of {over}: over all of them, or over the names of the"
            " group that the row names. Each row says how many have finished, such as 3 of 4."
        )
        left_out = ", ".join(name for name in all_names if name not in planned)
        if left_out:
            caption += f" Not in the study: {left_out}."
        frame = frame.drop(columns=["exaFLOP", "images"], errors="ignore")
        yield f"mean over {over}", ReportTable(frame, caption)


def _factors_along_axis(
    results: Results, verdict: Verdict, measure: Measure
) -> Iterator[tuple[str, ReportTable]]:
    """Yield a table that says how many times as many labels the baseline needs as an arm.

    For example, `scratch` needs 3 times as many labels as `mae` for the same accuracy. The table is
    yielded as `(name, table)` if all of these conditions hold:
    - The study has a baseline.
    - The study has a single axis besides the axis of the arms.
    - The names on this axis are numbers, such as shares of labels or numbers of images.
    """
    rule, baseline = verdict.rule, results.plan.report.get("baseline")
    if not rule.axis or not baseline or len(rule.other_axes) != 1:
        return
    axis = rule.other_axes[0]
    if not parse_numbers([*verdict.rows[axis].unique()]):
        return
    rows = []
    caption = (
        'A 2 in the column "times" has this meaning: to be as good as the'
        f" {rule.axis} of the row, {baseline} needs twice the {axis} of the row. Between two tried"
        f" values of {axis}, the measure is interpolated in the logarithm of {axis}. If an end of"
        " an interval lies beyond the tried values, only the other end is shown."
    )
    # `compare_along` needs values of which higher values are better
    values = verdict.rows.assign(value=measure.sign * verdict.rows["value"])
    for name in rule.arms:
        if name == baseline:
            continue
        comparison = compare_along(values, rule.axis, name, baseline, axis)
        if comparison is None:
            continue
        for place, factor in comparison.factors.items():
            ends = {"times": factor.value, "low": factor.low, "high": factor.high}
            rows.append({rule.axis: name, axis: place, "n": comparison.n, **ends})
        for crossing in comparison.crossings:
            at, low, high = (_number(value, None) for value in crossing)
            caption += f" {name} and {baseline} cross at {axis} {at} (95% CI {_span(low, high)})."
    yield f"along {axis}", ReportTable(pd.DataFrame(rows), caption)


def _other_metrics(results: Results, verdict: Verdict, run: str) -> ReportTable:
    """Build the table of all metrics that a run has measured, except the deciding measure.

    The table has the mean and the standard deviation over seeds of each metric, and of each
    metric's baselines, such as the same probe of untrained weights or of pixels.

    Args:
        results: Results of the study.
        verdict: Claims of the study.
        run: Name of the run.
    """
    rows = results.rows(run)
    deciding = verdict.measure
    if deciding is not None and run == verdict.rule.test:
        rows = rows[(rows["metric"] != deciding.name) | (rows["split"] != deciding.split)]
    rows = pd.concat([rows, results.rows(untrained_by=run)])
    tested_seeds = {task.seed for task in results.plan.tasks if task.run == verdict.rule.test}
    tested_rows = rows[rows["seed"].isin(tested_seeds)]
    # leave out seeds that chose settings, unless there are no other seeds
    rows = rows if tested_rows.empty else tested_rows
    axes = [axis for axis in results.plan.axes if (rows[axis] != "").any()]
    records: dict[tuple[str, ...], dict[str, Any]] = {}
    cells_by_heading: dict[str, list[pd.DataFrame]] = {}
    losses: set[str] = set()
    columns = [*axes, "run", "split", "metric"]
    for (*names, run_name, split, metric), cell in rows.groupby(columns, sort=False):
        metric_key = read_flat_name(metric)
        baseline = find_baseline(metric_key)
        description = find_metric(metric_key)
        # The heading is, for example, "k-NN, %" for a metric of the model, "k-NN of untrained
        # weights, %" for a substitute of the encoder, and only the baseline's name for another
        # baseline
        scale, unit = (100, ", %") if description.in_per_cent else (1, "")
        heading = baseline.called if baseline else ""
        if run_name == UNTRAINED:
            heading = FRESH
        if baseline is None or metric_key.subject in SUBSTITUTES:
            if metric_key.subject == COMMONEST or not description.is_compared:
                continue
            label = metric_label(metric_key)
            heading = f"{label} of {heading}" if heading else label
        values = stats.summarize((scale * cell["value"]).tolist())
        split_text = "" if split == "test" else f" ({split})"
        cells_by_heading.setdefault(heading + split_text, []).append(cell)
        heading += unit + split_text
        new_row = {**dict(zip(axes, names, strict=True)), "n": len(cell)}
        row = records.setdefault(tuple(names), new_row)
        row |= {"n": min(row["n"], len(cell)), heading: values.mean, f"{heading} sd": values.sd}
        if not unit:
            losses |= {heading, f"{heading} sd"}
    caption = "Mean and sd over n seeds."
    if any(task.tool == "pretrain" for task in results.plan.tasks if task.run == run):
        caption += " Losses of different objectives or targets cannot be compared."
    rows_by_heading = {heading: pd.concat(cells) for heading, cells in cells_by_heading.items()}
    few_texts = []
    for heading, rows_of_heading in rows_by_heading.items():
        n = rows_of_heading["n"].min()
        if n < FEW_IMAGES:
            few_texts.append(f"{heading} ({n:.0f} images)")
    if few_texts:
        caption += f" Measured on few images: {', '.join(few_texts)}."
    axis = verdict.rule.axis or "run"
    incomparable = _find_incomparable_columns(rows_by_heading, axis, results.plan.axes)
    for counts, headings in incomparable.items():
        caption += (
            f" Not all rows can be compared by {list_names(headings)}, because some were measured"
            f" on different images ({counts} images)."
        )
    return ReportTable(pd.DataFrame([*records.values()]), caption, losses=frozenset(losses))


def _find_incomparable_columns(
    measured: Mapping[str, pd.DataFrame], axis: str, axes: Iterable[str]
) -> dict[str, list[str]]:
    """Find the columns of a table whose rows were measured on different images.

    For example, the k-NN accuracy of the arm `mae` was measured on 500 images and that of the arm
    `scratch` on 400 images. The result is `{"mae 500, scratch 400": ["k-NN"]}`. Arms are compared
    only for the same seed and the same names on all other axes, such as "1%" of the labels. Other
    rows may have different images. Rows whose images are unknown are ignored.

    Args:
        measured: `{column: rows of the results that the column averages}`.
        axis: Axis of the compared arms, such as "arm".
        axes: All axes of the study.

    Returns:
        `{text: columns}`. The text has the smallest number of images of each arm.
    """
    columns_by_counts: dict[str, list[str]] = {}
    other_axes = [other_axis for other_axis in axes if other_axis != axis]
    for column, rows in measured.items():
        known = rows[rows["fingerprint"] != ""]
        rows_to_compare = known.groupby([*other_axes, "seed"])[["fingerprint", "n"]]
        # For each row: the number of different fingerprints, and of different n, among all rows
        # with the same seed and the same names on the other axes
        num_values = rows_to_compare.transform("nunique")
        differing = known[(num_values > 1).any(axis=1)]
        if len(differing):
            fewest = differing.groupby(axis, sort=False)["n"].min()
            counts = ", ".join(f"{name} {n:,}" for name, n in fewest.items())
            columns_by_counts.setdefault(counts, []).append(column)
    return columns_by_counts


def _chosen_values(results: Results) -> ReportTable:
    """Build the table of hyperparameters that were chosen among tries.

    A try is a run that tests one setting of hyperparameters. There is a row for each run and each
    combination of names on the axes, such as the arm `mae` with "1%" of the labels. The seeds share
    a row, because the choice averages over seeds and gives all seeds the same values.
    """
    tasks = results.plan.by_name
    records: dict[str, dict[str, Any]] = {}
    for task in tasks.values():
        if task.best is None or task.name not in results.finished:
            continue
        tries, measure = task.best
        values, num_finished, keys_at_an_end = launch.best_values(task, tasks, results.folder)
        num_settings = len({str(tasks[name].tried) for name in tries})
        # the measure of each tried setting, the best first
        best, *others = launch.format_tried_measures(task, tasks, results.folder)
        row = {
            "run": task.run,
            **task.at,
            "chosen": ", ".join(f"{key}={value}" for key, value in values.items()),
            "by": measure,
            "best": best,
            "second best": others[0] if others else "",
            "tries": f"{num_finished} of {num_settings}",
            "at an end": ", ".join(keys_at_an_end),
        }
        # the rows of further seeds would be the same
        records.setdefault(f"{task.run} {task.at}", row)
    caption = (
        'The values were chosen on held-out images. The column "at an end" names the keys whose'
        " chosen value is the smallest or largest value that was tried. A better value may lie"
        " beyond it."
    )
    return ReportTable(pd.DataFrame([*records.values()]), caption)


def _cost_of_runs(results: Results) -> ReportTable:
    """Build the table of the cost of each run.

    The compute is empty if a finished task of the run did not count it.
    """
    rows = []
    for run in dict.fromkeys(task.run for task in results.plan.tasks):
        names = [task.name for task in results.plan.tasks if task.run == run]
        finished = [results.finished[name].result for name in names if name in results.finished]
        counted = [result.exaflop for result in finished if result.exaflop is not None]
        exaflop = sum(counted) if len(counted) == len(finished) else None
        row = {
            "run": run,
            "tasks": f"{len(finished)} of {len(names)}",
            "exaFLOP": exaflop,
            "device-hours": float(sum(result.device_hours for result in finished)),
        }
        rows.append(row)
    return ReportTable(
        pd.DataFrame(rows), "Cost of each run, without the runs that gave the initial weights."
    )


def as_text(shown: ReportTable) -> pd.DataFrame:
    """Return a table with every number formatted as text, and without empty columns.

    The two ends of an interval share a cell, such as "1.2 to 3.4". The mean and the standard
    deviation of a metric share a cell too, such as "76.5 ± 0.8".
    """
    columns: dict[str, list[str]] = {}
    for name in map(str, shown.frame.drop(columns="high", errors="ignore")):
        column = _format_column(shown, name)
        mean_name = name.removesuffix(" sd")
        if name == "low":
            high_column = _format_column(shown, "high")
            # `interval` is the heading of the column with both ends
            columns[shown.interval] = [*map(_span, column, high_column)]
        elif mean_name != name and mean_name in columns:  # a column of standard deviations
            pairs = zip(columns[mean_name], column, strict=True)
            columns[mean_name] = [f"{mean} ± {sd}" if sd else mean for mean, sd in pairs]
        else:
            columns[name] = column
    filled = {name: column for name, column in columns.items() if any(column)}
    return pd.DataFrame(filled, dtype="str")


def _format_column(shown: ReportTable, name: str) -> list[str]:
    """Return the cells of a column as text.

    Names and counts are written as they are. Other numbers have three significant digits in the
    columns of THREE_DIGITS, four decimals in the columns of losses, and else `shown.digits`
    decimals. Differences and their intervals have a sign.

    Args:
        shown: Table with the column.
        name: Heading of the column.
    """
    column = shown.frame[name]
    is_end = name in ("low", "high")
    has_decimals = name in THREE_DIGITS or column.dtype.kind == "f" or is_end  # "f": floats
    if not has_decimals:
        return ["" if pd.isna(cell) else text_line(cell) for cell in column.tolist()]
    digits: int | None = 4 if name in shown.losses else shown.digits
    if name in THREE_DIGITS:
        digits = None  # `_number` then writes three significant digits
    is_signed = name.startswith("minus ")
    if is_end:
        is_signed = "times" not in shown.frame  # an interval of a factor has no sign
    elif name == "mean":
        is_signed = "difference" in shown.frame
    return [_number(number, digits, is_signed) for number in column.tolist()]


def cells(frame: pd.DataFrame) -> tuple[Sequence[str], list[list[str]]]:
    """Return the headings and the rows of a table of texts."""
    return [*map(str, frame)], frame.to_numpy().tolist()


def _number(value: float | None, digits: int | None, signed: bool = False) -> str:
    """Format a number with `digits` decimals. With None, it has three significant digits.

    A missing number gives an empty text.
    """
    if pd.isna(value):
        return ""
    sign = "+" if signed else ""
    precision = ".3g" if digits is None else f".{digits}f"
    return f"{value:{sign}{precision}}"


def _span(low: str, high: str) -> str:
    """Return the text of an interval: "1.2 to 3.4", "1.2 or more", "up to 3.4", or an empty text.

    Args:
        low: Lower end as text. Empty if the interval is open below.
        high: Upper end as text. Empty if the interval is open above.
    """
    if low and high:
        return f"{low} to {high}"
    if low:
        return f"{low} or more"
    return f"up to {high}" if high else ""
