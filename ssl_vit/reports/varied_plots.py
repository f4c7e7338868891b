"""The figures of a study that varies keys: each measure against what was varied, the interaction of
two keys, the compute."""

from collections.abc import Iterable

from . import curves, swept
from .axes import Axes, axes, format_value
from .finished import Study
from .plots import Plot
from .varied import Measure, Result, Varied


def draw(study: Study, numbers: Varied) -> dict[str, Plot]:
    """{measures, interaction, compute: image}; the last two where two keys are varied, and where
    exaFLOP differ."""
    along = axes(numbers.settings, study.report.get("axis"))
    found = {"measures": _measures(numbers, along)}
    main = numbers.measure(numbers.main)
    if along.lines:
        found["interaction"] = _interaction(numbers, along, main)
    spent = [cost.each for cost in numbers.costs if cost.arm in numbers.settings]
    if max(spent) > 1.01 * min(spent) and len(main.results) > 1:
        found["compute"] = _compute(numbers, main)
    return found


def scale(measure: Measure) -> float:
    """What a value is multiplied by to be told."""
    return 100 if measure.percent else 1


def unit(measure: Measure) -> str:
    return f"{measure.label}, %" if measure.percent else measure.label


def _measures(numbers: Varied, along: Axes) -> Plot:
    panels = [_panel(one, along) for one in numbers.measures]
    caption = "Each measure against what was varied: each seed a dot, the mean a diamond with its 95% t-interval over seeds"
    caption += (
        "; broken lines are arms beside the settings."
        if any(one.beside for one in numbers.measures)
        else "."
    )
    drawn = [
        swept.curves(panels, along.x, along.ticks, along.log, look)
        for look in (curves.LIGHT, curves.DARK)
    ]
    return Plot("figures/measures.svg", caption, *drawn)


def _panel(measure: Measure, along: Axes) -> swept.Panel:
    lines: dict[str, list[swept.Spot]] = {}
    for one in measure.results:
        x, line = along.places[one.arm]
        values = [scale(measure) * value for value in one.seeds.values()]
        lines.setdefault(line, []).append(swept.Spot(x, values, _ends(one, measure)))
    return swept.Panel(
        "",
        unit(measure),
        lines,
        {one.arm: scale(measure) * one.value.mean for one in measure.beside},
    )


def _ends(one: Result, measure: Measure) -> tuple[float, float] | None:
    interval = one.value.interval
    return (scale(measure) * interval.low, scale(measure) * interval.high) if interval else None


def cells(
    numbers: Varied, along: Axes, measure: Measure
) -> tuple[list[str], list[str], list[list[float | None]]]:
    """Columns, rows and means of two keys' every combination."""
    settings = numbers.settings
    columns, rows = (
        list(dict.fromkeys(format_value(one[key]) for one in settings.values()))
        for key in (along.x, along.lines)
    )
    means = {one.arm: scale(measure) * one.value.mean for one in measure.results}
    arms = {
        (format_value(one[along.lines]), format_value(one[along.x])): arm
        for arm, one in settings.items()
    }
    return columns, rows, [[means.get(arms[row, column]) for column in columns] for row in rows]


def _interaction(numbers: Varied, along: Axes, main: Measure) -> Plot:
    columns, rows, means = cells(numbers, along, main)
    format_value = swept.Grid(along.x, along.lines, columns, rows, means, unit(main))
    light, dark = (swept.grid(format_value, look) for look in (curves.LIGHT, curves.DARK))
    return Plot(
        "figures/interaction.svg",
        f"The mean over seeds of {main.label} for each combination.",
        light,
        dark,
    )


def _compute(numbers: Varied, main: Measure) -> Plot:
    spent = {cost.arm: cost.each for cost in numbers.costs}
    points = list(_points(main, spent))
    labels = ("exaFLOP of pre-training", unit(main))
    light, dark = (
        curves.compute(points, [one.arm for one in points], look, labels)
        for look in (curves.LIGHT, curves.DARK)
    )
    caption = (
        f"{main.label.capitalize()} against the compute of pre-training: each seed a dot, "
        "the mean a diamond with its interval."
    )
    return Plot("figures/accuracy_exaflop.svg", caption, light, dark)


def _points(main: Measure, spent: dict[str, float]) -> Iterable[curves.Point]:
    for one in main.results:
        values = [scale(main) * value for value in one.seeds.values()]
        yield curves.Point(one.arm, [spent[one.arm]] * len(values), values, _ends(one, main))
