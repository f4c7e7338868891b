"""The figures of a report: which numbers are drawn. No torch here.

A figure is a function of (study, numbers) that yields none or one; a section shows it.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from matplotlib.figure import Figure as MatplotlibFigure

from ...metrics import HELD_OUT, SHARE, find_metric
from ...pages.blocks import Chart, Figure, Line
from ...pages.curve_points import POINTS, thinned
from . import svg_plots, texts
from .axes import CURVE_OF, Axes, arm_label, axes
from .formats import shown_interval, unit
from .measures import Measure, Result, obstacles
from .results import FinishedRun, StudyResults
from .scaling_curve import ScalingCurve
from .statistics import Numbers

# Of each panel of learning curves the first that all its runs have
CURVES = ("validation/accuracy", "validation/loss", "loss")
DIFFERENT = 1.01  # ratio of two arms' compute from which it is a figure's axis


def figure(
    name: str, study: StudyResults, numbers: Numbers, drawn: MatplotlibFigure, **values: Any
) -> Figure:
    """A figure of this name; its caption is that of templates/captions.j2, which knows the values
    too."""
    caption = texts.sentences("captions", study, numbers, {"figure": name, **values})
    return Figure(f"figures/{name}.svg", caption, svg_plots.svg(drawn))


def study_axes(study: StudyResults, numbers: Numbers) -> Axes:
    return axes(numbers.settings, study.report.axis)


def shown(study: StudyResults, numbers: Numbers) -> list[Measure]:
    """The measures but for those of further shares of the labels, which have their own section."""
    further = study.points.keys() - {study.final}
    return [one for one in numbers.measures if one.part not in further]


def measures(study: StudyResults, numbers: Numbers) -> Iterator[Figure]:
    """Each measure against what differs between the arms."""
    along = study_axes(study, numbers)
    found = shown(study, numbers)
    apart = [one for one in found if one.question_keys and _by_name(study)]
    panels = []
    for one in found:
        groups = [[result] for result in one.results] if one in apart else [one.results]
        panels += [_measure_panel(one._replace(results=group), along) for group in groups]
    ticks = sorted({place for place, _ in along.places.values()}) if along.log else ()
    x = svg_plots.XAxis(along.x, along.ticks, along.log, ticks)
    order = [line for _, line in along.places.values()]
    order += [name for panel in panels for name in panel.levels]
    yield figure(
        "measures",
        study,
        numbers,
        svg_plots.points(panels, x, list(dict.fromkeys(order))),
        extra=any(one.not_compared for one in found),
        apart=[one.label for one in apart],
    )


def _by_name(study: StudyResults) -> bool:
    """Whether arms that are compared are only names: what makes their questions differ lies along
    no axis."""
    return study.compares and not study.vary


def _measure_panel(measure: Measure, along: Axes) -> svg_plots.Panel:
    scale = _scale(measure)
    lines: dict[str, list[svg_plots.Point]] = {}
    for one in measure.results:
        place, line = along.places[one.arm]
        lines.setdefault(line, []).append(_point(measure, one, [place] * one.value.n))
    levels = {one.arm: scale * one.value.mean for one in measure.not_compared}
    return svg_plots.Panel(unit(measure), lines, levels)


def _scale(measure: Measure) -> float:
    return 100 if measure.percent else 1


def _point(measure: Measure, one: Result, x: list[float]) -> svg_plots.Point:
    """An arm's values on a measure at these places."""
    scale = _scale(measure)
    interval = shown_interval(one.value, measure)
    ends = (scale * interval.low, scale * interval.high) if interval else None
    return svg_plots.Point(x, [scale * value for value in one.seeds.values()], ends)


def scaling(study: StudyResults, numbers: Numbers) -> Iterator[Figure]:
    """Accuracy along the study's curve, a line an arm."""
    if numbers.scaling is None:
        return
    axis, scale = _along_curve(numbers.scaling)
    lines: dict[str, list[svg_plots.Point]] = {name: [] for name in _curve_order(numbers)}
    for point in numbers.scaling.points:
        for one in (*point.measure.results, *point.measure.not_compared):
            place = [scale * point.share] * one.value.n
            lines[_without_part(one.arm, numbers)].append(_point(point.measure, one, place))
    panel = svg_plots.Panel("test top-1 after fine-tuning, %", lines, {})
    yield figure(
        "scaling",
        study,
        numbers,
        svg_plots.points([panel], axis, list(lines)),
    )


def worth(study: StudyResults, numbers: Numbers) -> Iterator[Figure]:
    """How many times the labels (images, exaFLOP) the baseline needs to reach each arm, along the
    study's curve; none where nothing is known of any."""
    if numbers.scaling is None:
        return
    axis, scale = _along_curve(numbers.scaling)
    lines = {
        _without_part(found.arm, numbers): [
            one._replace(share=scale * one.share) for one in found.worth
        ]
        for found in numbers.scaling.comparisons
    }
    every = [one.factor for line in lines.values() for one in line]
    if all(one.value is one.low is one.high is None for one in every):
        return
    baseline = _without_part(numbers.scaling.baseline, numbers)
    y = f"times the {CURVE_OF[numbers.scaling.of]} of {baseline}"
    order = _curve_order(numbers)  # an arm has one colour in both figures
    yield figure(
        "worth",
        study,
        numbers,
        svg_plots.factors(lines, axis, y, order),
        intervals=any(one.seeds > 1 for one in every),
    )


def _curve_order(numbers: Numbers) -> list[str]:
    """The lines of a study's curve, which take their colours in this order."""
    points = numbers.scaling.points if numbers.scaling else []
    every = (
        one.arm for point in points for one in (*point.measure.results, *point.measure.not_compared)
    )
    return list(dict.fromkeys(_without_part(arm, numbers) for arm in every))


def _along_curve(curve: ScalingCurve) -> tuple[svg_plots.XAxis, float]:
    """The axis of a study's curve, and what its shares are multiplied by on it."""
    scale = 1 if curve.of == "compute" else 100
    names = {
        "labels": "labels, % of the training images",
        "images": "images of pre-training, %",
        "compute": "exaFLOP of pre-training",
    }
    ticks = [scale * point.share for point in curve.points]
    return svg_plots.XAxis(names[curve.of], log=True, ticks=ticks), scale


def _without_part(arm: str, numbers: Numbers) -> str:
    """An arm's label; an extra one's without the part of its share: `extra: scratch, direct`."""
    if arm.startswith("extra: "):
        return arm.rpartition("_")[0]
    return arm_label(arm, numbers.settings)


def compute(study: StudyResults, numbers: Numbers) -> Iterator[Figure]:
    """The main measure against the compute that went into it; none of probes of encoders that took
    the same, nor of tasks."""
    if not study.compares:
        return
    main = numbers.measure(numbers.main)
    lines = {
        arm_label(one.arm, numbers.settings): [_point(main, one, list(one.exaflop.values()))]
        for one in (*main.results, *main.not_compared)
        if one.exaflop
    }
    spent = [x for (point,) in lines.values() for x in point.x]
    if not spent:
        return
    if main.part != study.final and max(spent) <= DIFFERENT * min(spent):
        return
    log = min(spent) > 0 and max(spent) > 10 * min(spent)
    axis = svg_plots.XAxis("exaFLOP of all training", log=log)
    order = [arm_label(arm, numbers.settings) for arm in study.plan.arms]
    order = list(dict.fromkeys([*order, *lines]))
    panel = svg_plots.Panel(unit(main), lines, {})
    yield figure(
        "accuracy_exaflop",
        study,
        numbers,
        svg_plots.points([panel], axis, order),
        main=main,
    )


def learning_curves(study: StudyResults, numbers: Numbers) -> Iterator[Figure]:
    """The metrics of the final part by step, then those of pre-training: a panel for each part, or
    for each arm where what they learn does not compare."""
    panels = [panel for panel in _learning_panels(study, numbers) if panel]
    if not panels:
        return
    order = [arm_label(arm, numbers.settings) for arm in study.plan.arms]
    found = figure(
        "learning_curves",
        study,
        numbers,
        svg_plots.learning(panels, order),
    )
    yield found._replace(charts=tuple(_chart(panel, order) for panel in panels))


def _chart(panel: svg_plots.LearningPanel, order: Sequence[str]) -> Chart:
    """A panel for the page's script: the same curves, the means in front."""
    seeds = []
    means = []
    for arm, curves in panel.arms.items():
        group = order.index(arm)
        mean = svg_plots.mean_curve(curves)
        kind = "points" if len(mean.steps) <= POINTS else "line"
        means.append(Line(arm, *thinned(mean.steps, mean.values), kind, group))
        seeds += [
            Line(f"{arm}, {i + 1}", *thinned(one.steps, one.values), "seed", group)
            for i, one in enumerate(curves)
        ]
    return Chart(f"{panel.title}: {panel.label}", [*means, *seeds])


def _learning_panels(
    study: StudyResults, numbers: Numbers
) -> Iterator[svg_plots.LearningPanel | None]:
    arms = {arm_label(arm, numbers.settings): arm for arm in study.plan.arms}
    final = {label: list(study.runs(study.final, arm).values()) for label, arm in arms.items()}
    yield _learning_panel("fine-tuning", final)
    parts: dict[str, dict[str, list[FinishedRun]]] = {}
    for label, arm in arms.items():
        runs = [run for found in study.pretraining(arm).values() for run in found]
        for run in {run.name: run for run in runs}.values():
            parts.setdefault(run.part, {}).setdefault(label, []).append(run)
    for part, by_arm in parts.items():
        reasons, keys = obstacles(study, part, "loss", study.plan.arms)
        if reasons or (keys and _by_name(study)):
            for label, runs in by_arm.items():
                yield _learning_panel(f"{part}: {label}", {label: runs})
        else:
            yield _learning_panel(part, by_arm)


def _learning_panel(
    title: str, arms: dict[str, list[FinishedRun]]
) -> svg_plots.LearningPanel | None:
    """One panel, of the first of CURVES that all its runs have; None where there is none."""
    arms = {arm: runs for arm, runs in arms.items() if runs}
    rows = {run.name: run.run.rows() for runs in arms.values() for run in runs}
    for metric in CURVES:
        known = {run: [row for row in found if metric in row] for run, found in rows.items()}
        if not known or not all(known.values()):
            continue
        scale = 100 if find_metric(metric).unit == SHARE else 1
        curves = {
            run: svg_plots.Curve(
                [row["step"] for row in found],
                [scale * row[metric] for row in found],
            )
            for run, found in known.items()
        }
        lines = {arm: [curves[run.name] for run in runs] for arm, runs in arms.items()}
        return svg_plots.LearningPanel(title, _curve_label(metric, arms), lines)
    return None


def _curve_label(metric: str, arms: dict[str, list[FinishedRun]]) -> str:
    """The axis; runs that held nothing out were measured on training images in its place."""
    measured = [run.result.metrics.values() for runs in arms.values() for run in runs]
    held_out = any(one.split == "validation" for found in measured for one in found)
    images = "held-out" if held_out else "training images'"
    row = find_metric(metric)
    text = f"{images if metric.startswith(HELD_OUT) else 'training'} {row.words}"
    return f"{text}, %" if row.unit == SHARE else text
