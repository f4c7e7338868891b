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
    """Return the report's tables that have rows, beginning with the compared names."""
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
    """Return the rows of fresh weights that the compared tasks have measured.

    On the compared axis, fresh weights get the name FRESH. If two trained names have different
    fresh weights, because their networks differ, the name of fresh weights says which network.
    """
    fresh = verdict.against_fresh
    comparisons = [*(difference.comparison for difference in fresh.differences), *fresh.missing]
    compared = [comparison.a for comparison in comparisons if comparison.b == FRESH]
    axis, columns = verdict.rule.axis or "run", [*verdict.rule.other_axes, "seed"]
    rows = results.rows(None, measure.name, measure.split, fresh_of=verdict.rule.test)
    rows = rows[rows[axis].isin(compared)] if verdict.rule.axis else rows
    are_alike = not rows.drop_duplicates([*columns, "value"]).duplicated(columns).any()
    names = FRESH if are_alike else FRESH + " as " + rows[axis]
    return rows.assign(**{axis: names}).drop_duplicates([axis, *columns])


def _compared(results: Results, verdict: Verdict, measure: Measure) -> ReportTable:
    """Build the table of every name at every place, ordered by the mean.

    If all comparisons have the same second name, the table also shows the differences from it.
    """
    differences = {difference.comparison: difference for difference in verdict.primary.differences}
    references = {comparison.b for comparison in differences}
    baseline = references.pop() if len(references) == 1 else results.plan.report.get("baseline")
    rows = pd.concat([verdict.rows, untrained(results, verdict, measure)])
    frame = _summary(results, verdict, measure, rows, baseline, differences.get)
    counts = {*rows["n"].dropna().astype(int)} if measure.split == "test" else set()
    # if the numbers of images differ, a column shows them
    count = f"{counts.pop():,} " if len(counts) == 1 else ""
    caption = f"{measure.label} on {count}{measure.split} images"
    caption += ", in percent" if measure.scale == 100 else ""
    caption += ". n is the number of seeds, and exaFLOP includes pre-training."
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
                f"minus {baseline}": difference and difference.mean,
                **_ends(difference),
                "pairs": difference and difference.n,
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
    low, high = (difference and difference.interval) or (None, None)
    return {"low": low, "high": high}


def _level(family: int) -> str:
    """Return the level of each interval if all intervals of a family hold with 95%."""
    return f"{100 * (1 - 0.05 / family):.4g}%"


def _differences(verdict: Verdict, measure: Measure) -> ReportTable:
    """Build the table of the differences that the sentences use."""
    rows = [
        {
            "difference": f"{difference.comparison.a} minus {difference.comparison.b}",
            **dict(difference.comparison.at),
            "n": difference.n,
            "mean": difference.mean,
            "sd": difference.sd,
            **_ends(difference),
            "level": _level(family.size),
            "over": f"{SEEDS} and images" if difference.over_images else SEEDS,
            "metric": measure.name,
            "split": measure.split,
        }
        for family in (verdict.primary, verdict.against_fresh)
        for difference in family.differences
    ]
    caption = (
        "Each difference is a mean over n seeds. Seeds that continue from the same pre-training"
    )
    caption += " count once. At a level above 95%, all intervals together hold with 95%."
    if any(row["over"] != SEEDS for row in rows):
        caption += (
            " An interval over seeds and images covers both Student's t interval and a"
            " bootstrap interval."
        )
    return ReportTable(pd.DataFrame(rows), caption, "interval", measure.digits)


def _by_other_measures(results: Results, verdict: Verdict) -> Iterator[tuple[str, ReportTable]]:
    """Yield name and table of the differences by each further measure of the report.

    These tables are exploratory, because only the first measure makes claims.
    """
    for name in results.plan.report.get("measures", ())[1:]:
        plan = results.plan.model_copy(update={"rule": replace(verdict.rule, measure=name)})
        with suppress(UserError):  # raised if no finished run has measured it
            by_measure = decide_claims(replace(results, plan=plan))
            measure = by_measure.measure
            if measure is not None:
                split = "" if measure.split == "test" else f" ({measure.split})"
                yield f"differences by {measure.label}{split}", _differences(by_measure, measure)


def _means(
    results: Results, verdict: Verdict, measure: Measure
) -> Iterator[tuple[str, ReportTable]]:
    """Yield name and table of means over the names of an axis and over groups of names.

    A mean uses only seeds that have the same names, the largest set of names that a seed has.
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
                by_seed = [rows_of_seed for _, rows_of_seed in cell.groupby("seed")]
                measured = max(({*rows_of_seed[over]} for rows_of_seed in by_seed), key=len)
                for rows_of_seed in by_seed:
                    if {*rows_of_seed[over]} != measured:
                        continue
                    # means over different names or different images are not compared
                    images = zip(rows_of_seed[over], rows_of_seed["fingerprint"], strict=True)
                    mean = {
                        over: f"{group}, {len(measured)} of {len(names)}",
                        "value": rows_of_seed["value"].mean(),
                        "fingerprint": str([*images]),
                        "origin": " ".join(rows_of_seed["origin"]),
                    }
                    records.append(rows_of_seed.iloc[0].to_dict() | mean)
        rows = pd.DataFrame(records)
        minus = partial(compare, rows, axis, scale=measure.scale)
        frame = _summary(results, verdict, measure, rows, baseline, minus)
        caption = f"For each seed, values are means over the names of {over}."
        caption += " Each row says how many names have finished."
        left_out = ", ".join(name for name in all_names if name not in planned)
        caption += f" Not in the study: {left_out}." if left_out else ""
        frame = frame.drop(columns=["exaFLOP", "images"], errors="ignore")
        yield f"mean over {over}", ReportTable(frame, caption)


def _along(
    results: Results, verdict: Verdict, measure: Measure
) -> Iterator[tuple[str, ReportTable]]:
    """Yield name and table of how many times as much the baseline needs along a numeric axis.

    The study must compare names with a baseline at several numbers of a single other axis, such as
    shares of labels.
    """
    rule, baseline = verdict.rule, results.plan.report.get("baseline")
    if not rule.axis or not baseline or len(rule.other_axes) != 1:
        return
    axis = rule.other_axes[0]
    if not parse_numbers([*verdict.rows[axis].unique()]):
        return
    rows, texts = [], []
    values = verdict.rows.assign(value=measure.sign * verdict.rows["value"])
    for name in rule.arms:
        against = (
            None if name == baseline else compare_along(values, rule.axis, name, baseline, axis)
        )
        if against is None:
            continue
        for place, factor in against.factors.items():
            ends = {"times": factor.value, "low": factor.low, "high": factor.high}
            rows.append({rule.axis: name, axis: place, "n": against.n, **ends})
        for crossing in against.crossings:
            at, low, high = (_number(value, None) for value in crossing)
            span = f"95% CI {_span(low, high)}"
            texts.append(f" {name} and {baseline} cross at {axis} {at} ({span}).")
    caption = f"The column times says by which factor {axis} must be multiplied until {baseline} is"
    caption += (
        f" as good as the name in the row. Between two tried values of {axis}, the measure is"
    )
    caption += (
        f" interpolated in the logarithm of {axis}. An interval that reaches beyond the tried"
    )
    caption += " values is open."
    yield f"along {axis}", ReportTable(pd.DataFrame(rows), caption + "".join(texts))


def _others(results: Results, verdict: Verdict, run: str) -> ReportTable:
    """Build the table of everything that a run has measured except the deciding measure.

    Each metric has the mean and the standard deviation over seeds. Probes are shown with the same
    probes of fresh weights, of the initial weights of training, and of pixels. Pre-training metrics
    are shown with the baselines of the prediction task.
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
    for (*key, whose, split, metric), cell in rows.groupby(columns, sort=False):
        baseline = find_baseline(metric)
        # a baseline has the unit of the metrics that it is compared with
        shown = baseline.compared_with[0] if baseline and baseline.compared_with else metric
        scale, unit = (100, ", %") if find_metric(shown).in_per_cent else (1, "")
        head = baseline.called if baseline else ""
        if whose == UNTRAINED:
            head = FRESH
        if baseline is None or metric.startswith(tuple(PROBE_BASELINES)):
            if metric.startswith(COMMONEST) or not find_metric(shown).compared:
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
    """Find columns in which two names at the same place and seed were measured on different images.

    Args:
        measured: `{column: rows of the results that the column averages}`.
        axis: Axis whose names are compared.
        axes: All axes of the study.

    Returns:
        `{number of images of each name as text: columns}`. Rows whose images are unknown are
            ignored.
    """
    texts: dict[str, list[str]] = {}
    places = [place for place in axes if place != axis]
    for column, rows in measured.items():
        known = rows[rows["fingerprint"] != ""]
        by_place = known.groupby([*places, "seed"])[["fingerprint", "n"]]
        differing = known[(by_place.transform("nunique") > 1).any(axis=1)]
        if len(differing):
            counts = differing.groupby(axis, sort=False)["n"].min()
            text = ", ".join(f"{name} {n:,}" for name, n in counts.items())
            texts.setdefault(text, []).append(column)
    return texts


def _chosen(results: Results) -> ReportTable:
    """Build the table of values that were chosen among tries, with a row for all seeds."""
    tasks = results.plan.by_name
    records: dict[str, dict[str, Any]] = {}
    for task in tasks.values():
        if task.best is None or task.name not in results.finished:
            continue
        values, num_finished, edges = launch.best_values(task, tasks, results.folder)
        num_tries = len({str(tasks[name].tried) for name in task.best[0]})
        row = {"run": task.run, **task.at}
        row["chosen"] = ", ".join(f"{key}={value}" for key, value in values.items())
        measured = launch.tried_values(task, tasks, results.folder)
        row |= {"by": task.best[1], "best": measured[0], "second best": "".join(measured[1:2])}
        row |= {"tries": f"{num_finished} of {num_tries}", "at an end": ", ".join(edges)}
        records.setdefault(f"{task.run} {task.at}", row)
    caption = "The values were chosen on held-out images. If a value is at an end of the tries, a"
    caption += " better value may lie beyond this end."
    return ReportTable(pd.DataFrame([*records.values()]), caption)


def _cost(results: Results) -> ReportTable:
    rows = []
    for run in dict.fromkeys(task.run for task in results.plan.tasks):
        names = [task.name for task in results.plan.tasks if task.run == run]
        done = [results.finished[name].result for name in names if name in results.finished]
        counted = [result.exaflop for result in done if result.exaflop is not None]
        exaflop = sum(counted) if len(counted) == len(done) else None
        row = {"run": run, "tasks": f"{len(done)} of {len(names)}", "exaFLOP": exaflop}
        rows.append(row | {"device-hours": float(sum(result.device_hours for result in done))})
    return ReportTable(
        pd.DataFrame(rows), "Cost of each run, without the runs that gave the initial weights."
    )


def as_text(shown: ReportTable) -> pd.DataFrame:
    """Return a table as text for readers.

    Empty columns are left out. The two ends of an interval become one cell, and so do the mean and
    the standard deviation of a metric.
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
            low, high = (
                [_number(number, shown.digits, is_signed) for number in frame[end]]
                for end in ("low", "high")
            )
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
    return pd.DataFrame({name: texts for name, texts in columns.items() if any(texts)}, dtype="str")


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
