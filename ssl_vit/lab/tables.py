"""The tables of a study's report as DataFrames, and as text for readers. No torch here."""

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import stats
from ..formatting import text_line
from ..metrics import SHARE, find_baseline, find_metric, label
from .compare import Comparison, Difference, compare
from .curve import along, numbers
from .results import Results, pandas
from .study import launch, record
from .verdict import FRESH, UNTRAINED, Measure, Verdict

if TYPE_CHECKING:
    from pandas import DataFrame

SHORT = ("exaFLOP", "device-hours", "times")  # columns with three digits


class Shown(NamedTuple):
    """A table of the report: the numbers as they are, the line under it, what its columns `low` and
    `high` are the ends of, and how many decimals a measure has."""

    frame: "DataFrame"
    caption: str
    interval: str = "95% interval"
    digits: int = 2


def tables(results: Results, verdict: Verdict) -> dict[str, Shown]:
    """The report's tables that have rows, the first of what is compared."""
    found = {}
    if verdict.measure is not None:
        found["compared"] = _compared(results, verdict, verdict.measure)
        found["differences"] = _differences(verdict, verdict.measure)
        found |= _means(results, verdict, verdict.measure)
        found |= _curve(results, verdict, verdict.measure)
    for run in dict.fromkeys(task.run for task in results.plan.tasks):
        found[f"measured by {run}"] = _others(results, verdict, run)
    found |= {"chosen": _chosen(results), "cost": _cost(results)}
    return {name: shown for name, shown in found.items() if len(shown.frame)}


def untrained(results: Results, verdict: Verdict, measure: Measure) -> "DataFrame":
    """The rows of the fresh weights that the study has added, under a name of their own."""
    axis = verdict.rule.axis or "run"
    rows = results.rows(UNTRAINED, measure.name, measure.split)
    several = rows[axis].nunique() > 1  # evaluated as different names are
    return rows.assign(**{axis: FRESH + (" as " + rows[axis] if several else "")})


def _compared(results: Results, verdict: Verdict, measure: Measure) -> Shown:
    rows = pandas().concat([verdict.rows, untrained(results, verdict, measure)])
    every = () if "pairs" in results.plan.report else verdict.found.differences
    frame = _summary(results, verdict, measure, rows, {one.asked: one for one in every})
    level = _level(verdict.found.family if every else 1)
    caption = f"{measure.label} on {measure.split} images"
    caption += ", in percent" if measure.scale == 100 else ""
    caption += "; n seeds; exaFLOP with all that the weights came through."
    return Shown(frame, caption, f"{level} interval", measure.digits)


def _summary(
    results: Results,
    verdict: Verdict,
    measure: Measure,
    rows: "DataFrame",
    against: Mapping[Comparison, Difference],
) -> "DataFrame":
    """The mean of every name at every place, in order of the mean; minus the baseline where the
    study has one, as `against` has it, else with an interval of its own."""
    axis, places = verdict.rule.axis or "run", verdict.rule.axes_of_places
    baseline, paper = results.plan.report.get("baseline"), results.plan.report.get("paper", {})
    found = []
    for key, own in rows.groupby([*places, axis], sort=False):
        place, name = dict(zip(places, key[:-1], strict=True)), key[-1]
        values = stats.summarize((measure.scale * own["value"]).tolist())
        row = {**place, axis: name, "n": values.n, "mean": values.mean, "sd": values.sd}
        if baseline is not None:
            asked = Comparison(name, baseline, tuple(place.items()))
            one = against.get(asked) or compare(rows, axis, asked, scale=measure.scale)
            one = None if name == baseline else one
            row |= {f"minus {baseline}": one and one.mean, **_ends(one)}
        row |= {"exaFLOP": own["exaflop"].mean()} | ({"paper": paper.get(name)} if paper else {})
        found.append(row)
    order = {axis: [*dict.fromkeys(rows[axis])] for axis in places}
    found.sort(key=lambda row: -measure.sign * row["mean"])
    found.sort(key=lambda row: [order[axis].index(row[axis]) for axis in places])
    return pandas().DataFrame(found)


def _ends(one: Difference | None) -> dict[str, float | None]:
    low, high = (one and one.wider) or (None, None)
    return {"low": low, "high": high}


def _level(family: int) -> str:
    return f"{100 * (1 - 0.05 / family):.4g}%"


def _differences(verdict: Verdict, measure: Measure) -> Shown:
    """Every difference: those that the sentences are about, then all other pairs."""
    rule = verdict.rule
    families = filter(None, (verdict.found, verdict.fresh))
    every = {(one, found.family): None for found in families for one in found.differences}
    known = {frozenset((one.a, one.b, *one.at)) for one in rule.asked}
    for place in (rule.places or [()]) if verdict.found.asked else ():
        for a, b in itertools.combinations(rule.arms, 2):
            asked = Comparison(a, b, place)
            if frozenset((a, b, *place)) not in known:
                one = compare(verdict.rows, rule.axis or "run", asked, scale=measure.scale)
                every |= {(one, 1): None} if one else {}
    rows = [
        {"difference": f"{one.asked.a} minus {one.asked.b}", **dict(one.asked.at)}
        | {"n": one.n, "mean": one.mean, "sd": one.sd, **_ends(one), "level": _level(family)}
        | {"over": "seeds and images" if one.resampled else "seeds"}
        for one, family in every
    ]
    caption = "Pairs of the same seed; n counts seeds that go on from one pre-training once. At a"
    caption += " level above 95% a whole family of comparisons holds with 95%."
    return Shown(pandas().DataFrame(rows), caption, "interval", measure.digits)


def _means(results: Results, verdict: Verdict, measure: Measure) -> dict[str, Shown]:
    """The means over an axis's names, or groups of them, of each seed that has the most of them."""
    found = {}
    for axis, groups in results.plan.report.get("mean_over", {}).items():
        tested = [task for task in results.plan.tasks if task.run == verdict.rule.test]
        every = list(dict.fromkeys(task.at[axis] for task in tested))
        others = [one for one in results.plan.axes if one != axis]
        rows = []
        for group, names in {**groups, "all": every}.items():
            own = verdict.rows[verdict.rows[axis].isin(names)]
            if own.empty:  # of a group none of whose names has finished
                continue
            for _, cell in own.groupby(others, sort=False) if others else [((), own)]:
                sets = cell.groupby("seed")[axis].agg(frozenset)
                most = max(sets, key=len)
                for _, one in cell.groupby("seed"):
                    if {*one[axis]} == most:
                        mean = one.iloc[0].to_dict() | {"value": one["value"].mean()}
                        rows.append(mean | {axis: f"{group}, {len(most)} of {len(names)}"})
        frame = _summary(results, verdict, measure, pandas().DataFrame(rows), {})
        caption = f"Means over {axis} of each seed, and how many of its names have finished."
        found[f"mean over {axis}"] = Shown(frame.drop(columns="exaFLOP"), caption)
    return found


def _curve(results: Results, verdict: Verdict, measure: Measure) -> dict[str, Shown]:
    """Along an axis whose names are numbers: how many times it the baseline needs."""
    rule, baseline = verdict.rule, results.plan.report.get("baseline")
    axes = [one for one in rule.axes_of_places if numbers([*verdict.rows[one].unique()])]
    if rule.axis is None or not baseline or axes != rule.axes_of_places or len(axes) != 1:
        return {}
    axis = axes[0]
    values = verdict.rows.assign(value=measure.sign * verdict.rows["value"])
    rows, texts = [], []
    for name in rule.arms:
        found = None if name == baseline else along(values, rule.axis, name, baseline, axis)
        if found is None:
            continue
        for place, factor in found.factors.items():
            ends = {"times": factor.value, "low": factor.low, "high": factor.high}
            rows.append({rule.axis: name, axis: place, "n": found.n, **ends})
        for one in found.crossings:
            at, low, high = (_number(end, None) for end in one)
            texts.append(f" {name} and {baseline} cross at {axis} {at} (95%: {_span(low, high)}).")
    caption = f"By how many times its {axis} {baseline} is as good as a name: linear in the"
    caption += f" logarithm of {axis}; beyond what was tried an interval is open."
    return {f"along {axis}": Shown(pandas().DataFrame(rows), caption + "".join(texts))}


def _others(results: Results, verdict: Verdict, run: str) -> Shown:
    """All else that a run has measured: the mean of each metric, and its sd over seeds; of
    pre-training with the baselines of what it predicts."""
    rows, main = results.rows(run), verdict.measure
    if main is not None and run in (verdict.rule.test, UNTRAINED):
        rows = rows[(rows["metric"] != main.name) | (rows["split"] != main.split)]
    baselines = {name: find_baseline(name) for name in rows["metric"].unique()}
    shown = [one for one, guess in baselines.items() if guess or find_metric(one).compared]
    rows = rows[rows["metric"].isin(shown)]
    axes = [axis for axis in results.plan.axes if (rows[axis] != "").any()]
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for (*key, split, metric), own in rows.groupby([*axes, "split", "metric"], sort=False):
        row = found.setdefault(tuple(key), {**dict(zip(axes, key, strict=True)), "n": len(own)})
        baseline = baselines[metric]
        # a baseline is in the unit of the metrics that it is for
        of = baseline.compared_with[0] if baseline and baseline.compared_with else metric
        scale, unit = (100, ", %") if find_metric(of).unit == SHARE else (1, "")
        values = stats.summarize((scale * own["value"]).tolist())
        head = (baseline.called if baseline else label(metric)) + unit
        head += "" if split == "test" else f" ({split})"
        row |= {head: values.mean, f"{head} sd": values.sd}
    caption = "Mean and sd over n seeds"
    if any(task.tool == "pretrain" for task in results.plan.tasks if task.run == run):
        caption += (
            "; what is predicted differs between objectives and targets, and so does its loss"
        )
    return Shown(pandas().DataFrame([*found.values()]), f"{caption}.")


def _chosen(results: Results) -> Shown:
    """What was chosen among tries, each once for all seeds."""
    tasks = record.tasks_from(results.plan)
    found: dict[str, dict[str, Any]] = {}
    for task in tasks.values():
        if task.best is None or task.name not in results.finished:
            continue
        values, tried, edges = launch.best_values(task, tasks, results.folder)
        of = len({str(tasks[name].tried) for name in task.best[0]})
        row = {"run": task.run, **task.at}
        row["chosen"] = ", ".join(f"{key}={value}" for key, value in values.items())
        row |= {"by": task.best[1], "tries": f"{tried} of {of}", "at an end": ", ".join(edges)}
        found.setdefault(f"{task.run} {task.at}", row)
    caption = (
        "Chosen by held-out images; where it is at an end of what was tried, more may be better."
    )
    return Shown(pandas().DataFrame([*found.values()]), caption)


def _cost(results: Results) -> Shown:
    rows = []
    for run in dict.fromkeys(task.run for task in results.plan.tasks):
        names = [one.name for one in results.plan.tasks if one.run == run]
        done = [results.finished[name].result for name in names if name in results.finished]
        counted = [one.exaflop for one in done if one.exaflop is not None]
        exaflop = sum(counted) if len(counted) == len(done) else None
        row = {"run": run, "tasks": f"{len(done)} of {len(names)}", "exaFLOP": exaflop}
        rows.append(row | {"device-hours": float(sum(one.device_hours for one in done))})
    return Shown(pandas().DataFrame(rows), "What each run took by itself.")


def as_text(shown: Shown) -> "DataFrame":
    """A table for readers: columns that say nothing are left out; the ends of an interval are one
    cell, and so are a metric's mean and sd."""
    frame, digits = shown.frame, shown.digits
    found = {}
    for name in map(str, frame):
        column = frame[name].tolist()
        if name == "low":
            signed = "times" not in frame
            ends = [[_number(one, digits, signed) for one in frame[key]] for key in ("low", "high")]
            found[shown.interval] = [*map(_span, *ends)]
        elif name in SHORT or frame[name].dtype.kind == "f":
            signed = name.startswith("minus ") or (name == "mean" and "difference" in frame)
            column = [_number(one, None if name in SHORT else digits, signed) for one in column]
            mean = name.removesuffix(" sd")
            if mean != name and mean in found:
                both = zip(found[mean], column, strict=True)
                found[mean] = [f"{one} ± {sd}" if sd else one for one, sd in both]
            elif name != "high":
                found[name] = column
        elif name != "high":
            found[name] = ["" if one is None or one != one else text_line(one) for one in column]
    kept = {name: texts for name, texts in found.items() if any(texts)}
    return pandas().DataFrame(kept, dtype="str")


def cells(frame: "DataFrame") -> tuple[Sequence[str], list[list[str]]]:
    """The head and the rows of a table as text."""
    return [*map(str, frame)], frame.to_numpy().tolist()


def _number(value: float | None, digits: int | None, signed: bool = False) -> str:
    if value is None or value != value:
        return ""
    if digits is None:
        return f"{value:.3g}"
    return f"{value:+.{digits}f}" if signed else f"{value:.{digits}f}"


def _span(low: str, high: str) -> str:
    """The text of an interval, which may be open."""
    if low and high:
        return f"{low} to {high}"
    return f"{low} or more" if low else f"up to {high}" if high else ""
