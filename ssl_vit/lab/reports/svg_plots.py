"""Drawing: values or factors against an axis, and learning curves, as SVG. Uses matplotlib's Figure
objects, without pyplot's state."""

import io
import re
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import (
    FormatStrFormatter,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    ScalarFormatter,
)
from matplotlib.transforms import ScaledTranslation

from ...formatting import figure_label as label
from ...pages.figure_style import INK
from .scaling_curve import Worth

# Okabe and Ito's, which readers with any colour vision can distinguish
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9")
COLUMNS = 2  # of panels
LABEL_LENGTH = 32  # characters of a vertical axis's label to the line, which fit the lowest panel
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
FACTORS_APART, FACTORS_WIDE = 5, 24  # points between two lines at one place, and between the outer
NARROW = 3  # ratio of the ends of a logarithmic axis below which few round numbers lie on it
MARGIN = 1.3  # beyond the outermost end of an interval, on a logarithmic axis
TEXT, SMALL = 10, 9  # points; the second in legends


class Point(NamedTuple):
    """One arm: its seeds' places along x and values, and the ends of the mean's interval if there
    is one."""

    x: Sequence[float]
    values: Sequence[float]
    interval: tuple[float, float] | None


class Panel(NamedTuple):
    """One measure: {line: its points}, and {name: value} of horizontal lines."""

    label: str
    lines: Mapping[str, Sequence[Point]]
    levels: Mapping[str, float]


class XAxis(NamedTuple):
    """The axis that panels share. `categories` lie at 0, 1, 2, ...; `ticks` are those of a
    logarithmic axis, where it should have no others."""

    label: str
    categories: Sequence[str] = ()
    log: bool = False
    ticks: Sequence[float] = ()


class Curve(NamedTuple):
    """One seed's values by step."""

    steps: Sequence[int]
    values: Sequence[float]


class LearningPanel(NamedTuple):
    """{arm: its seeds' curves} of the measure `label`."""

    title: str
    label: str
    arms: Mapping[str, Sequence[Curve]]


class _Powers(ScalarFormatter):
    """With the power of ten of an axis raised, in place of 1e-7."""

    def get_offset(self) -> str:
        offset = super().get_offset()
        found = re.fullmatch(r"1e(.*)", offset.replace("\N{MINUS SIGN}", "-"))
        return f"\N{MULTIPLICATION SIGN}10{found[1].translate(RAISED)}" if found else offset


def points(panels: Sequence[Panel], x: XAxis, order: Sequence[str]) -> Figure:
    """A panel for each measure: each seed a dot, the mean a diamond with its interval; the means of
    a line are joined unless x has categories. `order` gives names their colours."""
    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    figure = _figure(6.4 if columns == 1 else 7.6, 3.6 if rows == 1 else 2.9 * rows)
    cells = figure.subplots(rows, columns, squeeze=False).ravel()
    colours = _colours(order)
    for axis, panel in zip(cells, panels, strict=False):
        for name, line in panel.lines.items():
            _draw_points(axis, name, line, colours[name], "" if x.categories else "-")
        for name, value in panel.levels.items():
            axis.axhline(value, color=colours[name], linestyle="--", linewidth=1, label=label(name))
        _draw_scale(axis, x)
        _dress(axis, x.label, panel.label, "")
    for axis in cells[len(panels) :]:
        axis.set_axis_off()
    _add_legend(figure)
    return figure


def _colours(order: Sequence[str]) -> dict[str, str]:
    """{name: colour}; more names than COLOURS share them out along a colour map."""
    if len(order) <= len(COLOURS):
        return dict(zip(order, COLOURS, strict=False))
    found = matplotlib.colormaps["viridis"](np.linspace(0, 0.9, len(order)))
    return dict(zip(order, map(matplotlib.colors.to_hex, found), strict=True))


def _draw_points(axis: Axes, name: str, line: Sequence[Point], colour: str, style: str) -> None:
    line = sorted(line, key=lambda point: float(np.mean(point.x)))
    axis.plot(
        [float(np.mean(point.x)) for point in line],
        [float(np.mean(point.values)) for point in line],
        linestyle=style,
        marker="D",
        markersize=4,
        color=colour,
        label=label(name) or None,
    )
    # seeds to the left of the mean and its interval, which would hide them
    beside = axis.transData + ScaledTranslation(-5 / 72, 0, axis.figure.dpi_scale_trans)
    for point in line:
        axis.plot(point.x, point.values, "o", markersize=2.5, color=colour, transform=beside)
        # limits do not follow what has a transform of its own
        axis.update_datalim([(0.0, value) for value in point.values], updatex=False)
        if point.interval:
            middle = float(np.mean(point.x))
            axis.plot([middle, middle], point.interval, linewidth=1.5, color=colour)
    axis.autoscale_view()


def _draw_scale(axis: Axes, x: XAxis) -> None:
    if x.categories:
        turned = sum(map(len, x.categories)) > 30
        axis.set_xticks(
            range(len(x.categories)),
            [label(name) for name in x.categories],
            rotation=30 if turned else 0,
            ha="right" if turned else "center",
        )
        axis.set_xlim(-0.5, len(x.categories) - 0.5)
    elif x.log:
        axis.set_xscale("log")
        if x.ticks:
            axis.set_xticks(x.ticks)
            axis.xaxis.set_major_formatter(_Powers())
            axis.xaxis.set_minor_formatter(NullFormatter())
    else:
        axis.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        axis.xaxis.set_major_formatter(_Powers())


def factors(lines: Mapping[str, Sequence[Worth]], x: XAxis, y: str, order: Sequence[str]) -> Figure:
    """Factors on a logarithmic axis, with a line at 1: the value a diamond, the interval a line
    that ends in an arrow where it is open. `order` gives names their colours."""
    figure = _figure(6.4, 3.6)
    axis = figure.subplots()
    colours = _colours(order)
    axis.set_yscale("log")
    axis.axhline(1, color=INK, linewidth=1)
    every = [one for line in lines.values() for one in line]
    ends = [end for one in every for end in (one.factor.value, one.factor.low, one.factor.high)]
    drawn_ends = [1.0, *filter(None, ends)]
    limits = min(drawn_ends) / MARGIN, max(drawn_ends) * MARGIN
    axis.set_ylim(limits)
    step = min(FACTORS_APART, FACTORS_WIDE / len(lines))
    for number, (name, line) in enumerate(lines.items()):
        # beside each other, where intervals would hide one another
        right = step * (number - (len(lines) - 1) / 2) / 72
        shift = axis.transData + ScaledTranslation(right, 0, axis.figure.dpi_scale_trans)
        drawn: dict[str, Any] = {"color": colours[name], "transform": shift}
        # not a number where it is not known: a line across would look like a value
        value_L = [one.factor.value or np.nan for one in line]
        places = [one.share for one in line]
        # two places are no curve: a line between them would look like values that nobody measured
        marks = "D-" if len(line) > 2 else "D"
        axis.plot(places, value_L, marks, markersize=4, label=label(name), **drawn)
        for one in line:
            _draw_factor(axis, one, limits, drawn)
    # the horizontal limits do not follow what has a transform of its own
    axis.update_datalim([(one.share, 1.0) for one in every], updatey=False)
    axis.autoscale_view(scaley=False)
    _draw_scale(axis, x)
    _draw_factor_scale(axis, limits)
    _dress(axis, x.label, y, "")
    _add_legend(figure)
    return figure


def _draw_factor(
    axis: Axes, worth: Worth, limits: tuple[float, float], drawn: Mapping[str, Any]
) -> None:
    """Its interval, to the ends of the axis where it is open; of one seed, which has none, what a
    value beyond the places tried lies beyond."""
    x, found = worth
    beyond = found.value is None and (found.low is not None or found.high is not None)
    if found.seeds == 1 and not beyond:
        return
    low, high = found.low or limits[0], found.high or limits[1]
    axis.plot([x, x], [low, high], linewidth=1.5, **drawn)
    if found.low is None:
        axis.plot([x], [low], "v", clip_on=False, **drawn)
    if found.high is None:
        axis.plot([x], [high], "^", clip_on=False, **drawn)


def _draw_factor_scale(axis: Axes, limits: tuple[float, float]) -> None:
    """Ticks at powers of ten; of less than two decades also between them, of a narrow range at
    round steps."""
    wide = limits[1] / limits[0]
    if wide < NARROW:
        axis.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    else:
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if wide < 100 else (1,)))
    axis.yaxis.set_major_formatter(FormatStrFormatter("%g"))
    axis.yaxis.set_minor_formatter(NullFormatter())


def learning(panels: Sequence[LearningPanel], order: Sequence[str]) -> Figure:
    """Curves by step: each seed a thin line, their mean at the steps that all of them have a thick
    one. `order` gives the arms their colours."""
    figure = _figure(6.4, 2.9 * len(panels))
    rows = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    colours = _colours(order)
    for axis, panel in zip(rows, panels, strict=True):
        for arm, curves in panel.arms.items():
            _draw_curves(axis, arm, curves, colours[arm])
        _dress(axis, "step", panel.label, panel.title)
        axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    _add_legend(figure)
    return figure


def _draw_curves(axis: Axes, arm: str, curves: Sequence[Curve], colour: str) -> None:
    """One arm's seeds and their mean."""
    for curve in curves:
        axis.plot(curve.steps, curve.values, color=colour, linewidth=0.7, alpha=0.6)
    mean = mean_curve(curves)
    axis.plot(
        mean.steps,
        mean.values,
        color=colour,
        linewidth=2,
        label=label(arm),
        marker="o" if len(mean.steps) == 1 else None,
    )


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """The mean over seeds at the steps that all of them have."""
    found = [dict(zip(curve.steps, curve.values, strict=True)) for curve in curves]
    common = sorted(set.intersection(*(set(values) for values in found)))
    return Curve(common, [float(np.mean([values[step] for values in found])) for step in common])


def _figure(width: float, height: float) -> Figure:
    return Figure(figsize=(width, height), layout="constrained", facecolor="none")


def _dress(axis: Axes, x: str, y: str, title: str) -> None:
    """Labels, and ink on the ground of the page."""
    axis.set_xlabel(label(x), color=INK)
    lines = textwrap.wrap(y, LABEL_LENGTH)
    axis.set_ylabel("\n".join(map(label, lines)), color=INK)
    axis.set_title(label(title), color=INK, fontsize=TEXT)
    axis.set_facecolor("none")
    axis.tick_params(which="both", colors=INK)
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color(INK)


def _add_legend(figure: Figure) -> None:
    """One for all axes, below them: inside them it would have to search for where data are few."""
    entries: dict[str, Artist] = {}
    for axis in figure.axes:
        for handle, name in zip(*axis.get_legend_handles_labels(), strict=True):
            entries.setdefault(name, handle)
    if entries:
        figure.legend(
            list(entries.values()),
            list(entries),
            loc="outside lower center",
            ncols=2,
            frameon=False,
            labelcolor=INK,
            fontsize=SMALL,
        )


def svg(figure: Figure) -> str:
    """The figure's text, the same each time: no date, and names that are hashed with a fixed
    salt."""
    text = io.StringIO()
    plain = {"Date": None, "Creator": None, "Format": None, "Type": None}
    with matplotlib.rc_context({"svg.hashsalt": "ssl_vit"}), warnings.catch_warnings():
        # of a script that the font lacks: boxes are shown
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure.savefig(text, format="svg", metadata=plain)
    return text.getvalue()
