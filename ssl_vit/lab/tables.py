"""Build the tables of a study's report as DataFrames and as text, without importing torch."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import pandas as pd

from .. import stats
from ..errors import UserError
from ..formatting import FEW_IMAGES, list_names, text_line
from ..metrics import COMMONEST, PROBE_BASELINES, find_baseline, find_metric, metric_label
from .compare import Comparison, Difference, compare, compare_along, parse_numbers
from .results import Results
from .study import launch
from .study.read import UNTRAINED
from .verdict import FRESH, Measure, Verdict, decide_claims

SEEDS = "seeds"  # an interval is over seeds, or over seeds and images
SHORT = ("exaFLOP", "device-hours", "times")  # columns that show three significant digits


class ReportTable(NamedTuple):
    """Table of the report.

    Attributes:
        frame: Numbers without rounding.
        caption: Line under the table.
        interval: Heading of the interval whose ends are in the columns `low` and `high`.
        digits: Decimals of a measure.
        losses: Columns that show four decimals, because two decimals could not tell two losses
            apart.
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
        by_name["compared"] = _compared(results, verdict, verdict.measure)
        by_name["differences"] = _differences(verdict, verdict.measure)
        by_name |= _by_other_measures(results, verdict)
        by_name |= _means(results, verdict, verdict.measure)
        by_name |= _along(results, verdict, verdict.measure)
    for run in dict.fromkeys(task.run for task in results.plan.tasks):
        by_name[f"measured by {run}"] = _others(results, verdict, run)
    by_name |= {"chosen": _chosen(results), "cost": _cost(results)}
    return {name: shown for name, shown in by_name.items() if len(shown.frame)}


def untrained(results: Results, verdict: Verdict, measure: Measure) -> pd.DataFrame:
    """Return the rows of untrained weights that the compared tasks have measured.

    The rows have the name `FRESH` on the compared axis, such as "untrained weights". If the
    untrained weights of two trained names have different values, because the networks differ, the
    rows have a name for each network, such as "untrained weights as vit_p8".

    Args:
        results: Results of the study.
        verdict: Claims of the study.
        measure: Measure of the rows.
    """
    fresh = verdict.against_fresh
    comparisons = [*(difference.comparison for difference in fresh.differences), *fresh.missing]
    trained_names = [comparison.a for comparison in comparisons if comparison.b == FRESH]
    axis, columns = verdict.rule.axis or "run", [*verdict.rule.other_axes, "seed"]
    rows = results.rows(None, measure.name, measure.split, fresh_of=verdict.rule.test)
    if verdict.rule.axis:
        rows = rows[rows[axis].isin(trained_names)]
    has_different_values = rows.drop_duplicates([*columns, "value"]).duplicated(columns).any()
    names = FRESH + " as " + rows[axis] if has_different_values else FRESH
    return rows.assign(**{axis: names}).drop_duplicates([axis, *columns])


def _compared(results: Results, verdict: Verdict, measure: Measure) -> ReportTable:
    """Build the table of the compared names at every place, ordered by the mean.

    If all comparisons have the same second name, such as a baseline, the table also shows each
    difference from this name.
    """
    differences = {difference.comparison: difference for difference in verdict.primary.differences}
    references = {comparison.b for comparison in differences}
    baseline = references.pop() if len(references) == 1 else results.plan.report.get("baseline")
    rows = pd.concat([verdict.rows, untrained(results, verdict, measure)])
    frame = _summary(results, verdict, measure, rows, baseline, differences.get)
    counts = {*rows["n"].dropna().astype(int)} if measure.split == "test" else set()
    # if the numbers of images differ, a column shows them
    count = f"{counts.pop():,} " if len(counts) == 1 else ""
    unit = ", in percent" if measure.scale == 100 else ""
    caption = (
        f"{measure.label} on {count}{measure.split} images{unit}. n is the number of seeds, and"
        " exaFLOP includes pre-training."
    )
    return ReportTable(frame, caption, f"{_level(verdict.primary.size)} interval", measure.digits)


def _summary(
    results: Results,
    verdict: Verdict,
    measure: Measure,
    rows: pd.DataFrame,
    baseline: str | None,
    minus: Callable[[Comparison], Difference | None],
) -> pd.DataFrame:
    """Build a table with the mean of every name at every place, ordered by the mean.

    If there is a baseline, the table shows the difference from the baseline, and the number of
    pairs if some name has fewer pairs than seeds. If the numbers of test images differ, the table
    shows them.

    Args:
        results: Results of the study.
        verdict: Claims of the study.
        measure: Measure of the table.
        rows: Rows of this measure, one for each name, place and seed.
        baseline: Name on the compared axis, or None for no differences.
        minus: Function that measures the difference of a comparison, or returns None.
    """
    axis, places = verdict.rule.axis or "run", verdict.rule.other_axes
    records = []
    for key, cell in rows.groupby([*places, axis], sort=False):
        place, name = tuple(zip(places, key[:-1], strict=True)), key[-1]
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
    order = {column: [*rows[column].unique()] for column in places}

    def rank(row: Mapping[str, Any]) -> tuple[float, ...]:
        place = (order[column].index(row[column]) for column in places)
        return (*place, -measure.sign * row["mean"])

    frame = pd.DataFrame(sorted(records, key=rank))
    if baseline is not None:
        frame["pairs"] = frame["pairs"].astype("Int64")
        if not (frame["pairs"] != frame["n"]).any():
            del frame["pairs"]
    return frame


def _ends(difference: Difference | None) -> dict[str, float | None]:
    if difference is None or difference.interval is None:
        return {"low": None, "high": None}
    return difference.interval._asdict()


def _level(family: int) -> str:
    """Return the level of each interval if all intervals of a family hold with 95%."""
    return f"{100 * (1 - 0.05 / family):.4g}%"


def _differences(verdict: Verdict, measure: Measure) -> ReportTable:
    """Build the table of the measured differences, a row for each comparison."""
    rows = []
    for family in (verdict.primary, verdict.against_fresh):
        for difference in family.differences:
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
        " count once. At a level above 95%, all intervals together hold with 95%."
    )
    if any(row["over"] != SEEDS for row in rows):
        caption += (
            " An interval over seeds and images covers both Student's t interval and a"
            " bootstrap interval."
        )
    return ReportTable(pd.DataFrame(rows), caption, "interval", measure.digits)


def _by_other_measures(results: Results, verdict: Verdict) -> Iterator[tuple[str, ReportTable]]:
    """Yield the differences by each further measure of the report as `(name, table)`.

    These tables are exploratory, because only the first measure makes claims.
    """
    for name in results.plan.report.get("measures", ())[1:]:
        plan = results.plan.model_copy(update={"rule": replace(verdict.rule, measure=name)})
        with suppress(UserError):  # raised if no finished run has this measure
            exploratory = decide_claims(replace(results, plan=plan))
            measure = exploratory.measure
            if measure is not None:
                split = "" if measure.split == "test" else f" ({measure.split})"
                yield f"differences by {measure.label}{split}", _differences(exploratory, measure)


def _means(
    results: Results, verdict: Verdict, measure: Measure
) -> Iterator[tuple[str, ReportTable]]:
    """Yield tables of means over the names of an axis, or over groups of names, as `(name, table)`.

    All seeds of a mean must have the same names, so seeds with fewer names than another seed are
    left out.
    """
    axis, baseline = verdict.rule.axis or "run", results.plan.report.get("baseline")
    for over, groups in results.plan.report.get("mean_over", {}).items():
        planned = [task.at[over] for task in results.plan.tasks if task.run == verdict.rule.test]
        grouped = [name for names in groups.values() for name in names]
        all_names = dict.fromkeys([*grouped, *planned])
        other_axes = [axis for axis in results.plan.axes if axis != over]
        records = []
        for group, names in {**groups, "all": all_names}.items():
            member_rows = verdict.rows[verdict.rows[over].isin(list(names))]
            for _, cell in member_rows.groupby(other_axes or (lambda _: 0), sort=False):
                by_seed = [seed_rows for _, seed_rows in cell.groupby("seed")]
                measured_names = max(({*seed_rows[over]} for seed_rows in by_seed), key=len)
                for seed_rows in by_seed:
                    if {*seed_rows[over]} != measured_names:
                        continue
                    # means over different names or different images are not compared
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
            f"For each seed, values are means over the names of {over}. Each row says how many"
            " names have finished."
        )
        left_out = ", ".join(name for name in all_names if name not in planned)
        if left_out:
            caption += f" Not in the study: {left_out}."
        frame = frame.drop(columns=["exaFLOP", "images"], errors="ignore")
        yield f"mean over {over}", ReportTable(frame, caption)


def _along(
    results: Results, verdict: Verdict, measure: Measure
) -> Iterator[tuple[str, ReportTable]]:
    """Yield a table of how much more the baseline needs to match each name, as `(name, table)`.

    For example, the table says how many times as many labels the baseline needs. There is a table
    only if the study compares names with a baseline at several numbers of a single other axis, such
    as shares of labels.
    """
    rule, baseline = verdict.rule, results.plan.report.get("baseline")
    if not rule.axis or not baseline or len(rule.other_axes) != 1:
        return
    axis = rule.other_axes[0]
    if not parse_numbers([*verdict.rows[axis].unique()]):
        return
    rows = []
    caption = (
        f"The column times says by which factor {axis} must be multiplied until {baseline} is as"
        f" good as the name in the row. Between two tried values of {axis}, the measure is"
        f" interpolated in the logarithm of {axis}. An interval that reaches beyond the tried"
        " values is open."
    )
    # `compare_along` needs values of which higher values are better
    values = verdict.rows.assign(value=measure.sign * verdict.rows["value"])
    for name in rule.arms:
        if name == baseline:
            continue
        against = compare_along(values, rule.axis, name, baseline, axis)
        if against is None:
            continue
        for place, factor in against.factors.items():
            ends = {"times": factor.value, "low": factor.low, "high": factor.high}
            rows.append({rule.axis: name, axis: place, "n": against.n, **ends})
        for crossing in against.crossings:
            at, low, high = (_number(value, None) for value in crossing)
            caption += f" {name} and {baseline} cross at {axis} {at} (95% CI {_span(low, high)})."
    yield f"along {axis}", ReportTable(pd.DataFrame(rows), caption)


def _others(results: Results, verdict: Verdict, run: str) -> ReportTable:
    """Build the table of all metrics that a run has measured, except the deciding measure.

    The table has the mean and the standard deviation over seeds of each metric and of each baseline
    of a metric, such as the same probe of untrained weights or of pixels.

    Args:
        results: Results of the study.
        verdict: Claims of the study.
        run: Name of the run.
    """
    rows, main = results.rows(run), verdict.measure
    if main is not None and run == verdict.rule.test:
        rows = rows[(rows["metric"] != main.name) | (rows["split"] != main.split)]
    rows = pd.concat([rows, results.rows(fresh_of=run)]).sort_index()
    tested_seeds = {task.seed for task in results.plan.tasks if task.run == verdict.rule.test}
    tested_rows = rows[rows["seed"].isin(tested_seeds)]
    # leave out seeds that chose settings, unless there are no other seeds
    rows = rows if tested_rows.empty else tested_rows
    axes = [axis for axis in results.plan.axes if (rows[axis] != "").any()]
    records: dict[tuple[str, ...], dict[str, Any]] = {}
    measured: dict[str, list[pd.DataFrame]] = {}
    losses: set[str] = set()
    columns = [*axes, "run", "split", "metric"]
    for (*key, run_name, split, metric), cell in rows.groupby(columns, sort=False):
        baseline = find_baseline(metric)
        # a baseline has the unit of the metrics that it is compared with
        shown = baseline.compared_with[0] if baseline and baseline.compared_with else metric
        scale, unit = (100, ", %") if find_metric(shown).in_per_cent else (1, "")
        head = baseline.called if baseline else ""
        if run_name == UNTRAINED:
            head = FRESH
        if baseline is None or metric.startswith(tuple(PROBE_BASELINES)):
            if metric.startswith(COMMONEST) or not find_metric(shown).is_compared:
                continue
            head = f"{metric_label(shown)} of {head}" if head else metric_label(shown)
        values = stats.summarize((scale * cell["value"]).tolist())
        split_text = "" if split == "test" else f" ({split})"
        measured.setdefault(head + split_text, []).append(cell)
        head += unit + split_text
        row = records.setdefault(tuple(key), {**dict(zip(axes, key, strict=True)), "n": len(cell)})
        row |= {"n": min(row["n"], len(cell)), head: values.mean, f"{head} sd": values.sd}
        if not unit:
            losses |= {head, f"{head} sd"}
    caption = "Mean and sd over n seeds."
    if any(task.tool == "pretrain" for task in results.plan.tasks if task.run == run):
        caption += " Losses of different objectives or targets cannot be compared."
    rows_by_head = {head: pd.concat(cells) for head, cells in measured.items()}
    fewest = {head: rows_of_head["n"].min() for head, rows_of_head in rows_by_head.items()}
    few = [f"{head} ({n:.0f} images)" for head, n in fewest.items() if n < FEW_IMAGES]
    if few:
        caption += f" Measured on few images: {', '.join(few)}."
    axis = verdict.rule.axis or "run"
    for counts, heads in _on_other_images(rows_by_head, axis, results.plan.axes).items():
        caption += (
            f" Rows of {list_names(heads)} were measured on different images ({counts} images)."
        )
    return ReportTable(pd.DataFrame([*records.values()]), caption, losses=frozenset(losses))


def _on_other_images(
    measured: Mapping[str, pd.DataFrame], axis: str, axes: Iterable[str]
) -> dict[str, list[str]]:
    """Find the columns of a table that compare names measured on different images.

    Only rows at the same place and seed are compared. Rows whose images are unknown are ignored.

    Args:
        measured: `{column: rows of the results that the column averages}`.
        axis: Axis whose names are compared.
        axes: All axes of the study.

    Returns:
        `{number of images of each name: columns}`, with keys such as "mae 500, scratch 400".
    """
    columns_by_counts: dict[str, list[str]] = {}
    other_axes = [other_axis for other_axis in axes if other_axis != axis]
    for column, rows in measured.items():
        known = rows[rows["fingerprint"] != ""]
        at_place = known.groupby([*other_axes, "seed"])[["fingerprint", "n"]]
        differing = known[(at_place.transform("nunique") > 1).any(axis=1)]
        if len(differing):
            fewest = differing.groupby(axis, sort=False)["n"].min()
            counts = ", ".join(f"{name} {n:,}" for name, n in fewest.items())
            columns_by_counts.setdefault(counts, []).append(column)
    return columns_by_counts


def _chosen(results: Results) -> ReportTable:
    """Build the table of values that were chosen among tries, a row for each run and place."""
    tasks = results.plan.by_name
    records: dict[str, dict[str, Any]] = {}  # all seeds have the same values and share a row
    for task in tasks.values():
        if task.best is None or task.name not in results.finished:
            continue
        tries, measure = task.best
        values, num_finished, edges = launch.best_values(task, tasks, results.folder)
        measured = launch.tried_values(task, tasks, results.folder)
        row = {
            "run": task.run,
            **task.at,
            "chosen": ", ".join(f"{key}={value}" for key, value in values.items()),
            "by": measure,
            "best": measured[0],
            "second best": "".join(measured[1:2]),
            "tries": f"{num_finished} of {len({str(tasks[name].tried) for name in tries})}",
            "at an end": ", ".join(edges),
        }
        records.setdefault(f"{task.run} {task.at}", row)
    caption = (
        "The values were chosen on held-out images. If a value is at an end of the tries, a better"
        " value may lie beyond this end."
    )
    return ReportTable(pd.DataFrame([*records.values()]), caption)


def _cost(results: Results) -> ReportTable:
    rows = []
    for run in dict.fromkeys(task.run for task in results.plan.tasks):
        names = [task.name for task in results.plan.tasks if task.run == run]
        done = [results.finished[name].result for name in names if name in results.finished]
        counted = [result.exaflop for result in done if result.exaflop is not None]
        exaflop = sum(counted) if len(counted) == len(done) else None
        row = {
            "run": run,
            "tasks": f"{len(done)} of {len(names)}",
            "exaFLOP": exaflop,
            "device-hours": float(sum(result.device_hours for result in done)),
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
    frame, columns = shown.frame, {}
    has_differences = "difference" in frame
    for name in map(str, frame.drop(columns="high", errors="ignore")):
        digits: int | None = 4 if name in shown.losses else shown.digits
        if name in SHORT:
            digits = None
        column = frame[name].tolist()
        mean = name.removesuffix(" sd")
        if name == "low":
            is_signed = "times" not in frame  # factors have no sign
            low = [_number(number, shown.digits, is_signed) for number in frame["low"]]
            high = [_number(number, shown.digits, is_signed) for number in frame["high"]]
            columns[shown.interval] = [*map(_span, low, high)]
        elif mean != name and mean in columns:
            sds = [_number(number, digits) for number in column]
            pairs = zip(columns[mean], sds, strict=True)
            columns[mean] = [f"{number} ± {sd}" if sd else number for number, sd in pairs]
        elif name in SHORT or frame[name].dtype.kind == "f":
            is_signed = name.startswith("minus ") or (name == "mean" and has_differences)
            columns[name] = [_number(number, digits, is_signed) for number in column]
        else:
            columns[name] = ["" if pd.isna(cell) else text_line(cell) for cell in column]
    filled = {name: column for name, column in columns.items() if any(column)}
    return pd.DataFrame(filled, dtype="str")


def cells(frame: pd.DataFrame) -> tuple[Sequence[str], list[list[str]]]:
    """Return the heading and the rows of a table of texts."""
    return [*map(str, frame)], frame.to_numpy().tolist()


def _number(value: float | None, digits: int | None, signed: bool = False) -> str:
    """Format a number with `digits` decimals, or with three significant digits for None."""
    if pd.isna(value):
        return ""
    sign = "+" if signed else ""
    precision = ".3g" if digits is None else f".{digits}f"
    return f"{value:{sign}{precision}}"


def _span(low: str, high: str) -> str:
    """Return the text of an interval. An open end is an empty text."""
    if low and high:
        return f"{low} to {high}"
    if low:
        return f"{low} or more"
    return f"up to {high}" if high else ""
