"""Learning curves, and accuracy against compute, as SVG text. matplotlib's Figure objects, without
pyplot's state."""

import io
import warnings
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..formatting import text_line

# Okabe and Ito's, told apart by everyone
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9")
# the axes of accuracy against compute
SPENT = ("exaFLOP, pre-training and fine-tuning", "test top-1, %")


class Style(NamedTuple):
    ink: str
    paper: str


LIGHT, DARK = Style("#24292f", "#ffffff"), Style("#c9d1d9", "#14171c")


class Curve(NamedTuple):
    """One seed's values by step."""

    steps: Sequence[int]
    values: Sequence[float]


class Panel(NamedTuple):
    """One pair of axes: {arm: its seeds' curves}, all of the measure `label`."""

    title: str
    label: str
    arms: Mapping[str, Sequence[Curve]]


class Point(NamedTuple):
    """One arm: exaFLOP and accuracy in percent of each seed, the mean of them, and the interval's
    ends if there is one."""

    arm: str
    exaflop: Sequence[float]
    accuracy: Sequence[float]
    interval: tuple[float, float] | None


def learning(panels: Sequence[Panel], order: Sequence[str], look: Style) -> str:
    """Curves by step: each seed a thin line, their mean at the steps that all of them have a thick
    one. `order` gives the arms their colours."""
    figure, rows = _figure(look, 6.4, 2.9 * len(panels)), len(panels)
    for axis, panel in zip(figure.subplots(rows, 1, squeeze=False)[:, 0], panels, strict=True):
        for arm, curves in panel.arms.items():
            _draw(axis, arm, curves, COLOURS[order.index(arm) % len(COLOURS)])
        _dress(axis, look, "step", panel.label, panel.title)
        axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    return _svg(figure, look)


def _draw(axis: Axes, arm: str, curves: Sequence[Curve], colour: str) -> None:
    """One arm's seeds and their mean."""
    common = sorted(set.intersection(*(set(curve.steps) for curve in curves)))
    for curve in curves:
        axis.plot(curve.steps, curve.values, color=colour, linewidth=0.7, alpha=0.6)
    found = [dict(zip(curve.steps, curve.values, strict=True)) for curve in curves]
    mean = [float(np.mean([values[step] for values in found])) for step in common]
    axis.plot(
        common,
        mean,
        color=colour,
        linewidth=2,
        label=label(arm),
        marker="o" if len(common) == 1 else None,
    )


def compute(
    points: Sequence[Point], order: Sequence[str], look: Style, labels: tuple[str, str] = SPENT
) -> str:
    """Accuracy against all the compute that went into it: each seed a dot, the mean a diamond with
    its interval."""
    figure = _figure(look, 6.4, 3.6)
    axis = figure.subplots()
    for point in points:
        colour = COLOURS[order.index(point.arm) % len(COLOURS)]
        x, y = float(np.mean(point.exaflop)), float(np.mean(point.accuracy))
        axis.plot(point.exaflop, point.accuracy, ".", color=colour, alpha=0.6)
        axis.plot([x], [y], "D", color=colour, label=label(point.arm))
        if point.interval:
            axis.plot([x, x], point.interval, color=colour, linewidth=1.5)
    spent = [x for point in points for x in point.exaflop if x > 0]
    if (
        spent
        and max(spent) > 10 * min(spent)
        and all(x > 0 for point in points for x in point.exaflop)
    ):
        axis.set_xscale("log")
    else:
        axis.xaxis.set_major_locator(MaxNLocator(6))
    _dress(axis, look, *labels, "")
    return _svg(figure, look)


def label(text: str) -> str:
    """Somebody's text as a label that shows it: no formula between dollars, nothing hidden for its
    first underscore."""
    escaped = text_line(text).replace("$", r"\$")
    return f" {escaped}" if escaped.startswith("_") else escaped


def _figure(look: Style, width: float, height: float) -> Figure:
    return Figure(figsize=(width, height), layout="constrained", facecolor=look.paper)


def _dress(axis: Axes, look: Style, x: str, y: str, title: str) -> None:
    """Labels, legend and colours that suit the page."""
    axis.set_xlabel(label(x), color=look.ink)
    axis.set_ylabel(label(y), color=look.ink)
    axis.set_title(label(title), color=look.ink, fontsize=10)
    axis.set_facecolor(look.paper)
    axis.tick_params(which="both", colors=look.ink)
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color(look.ink)
    if axis.get_legend_handles_labels()[0]:
        axis.legend(frameon=False, labelcolor=look.ink, fontsize=9)


def _svg(figure: Figure, look: Style) -> str:
    """The figure's text, the same each time: no date, and names that are hashed with a fixed
    salt."""
    text = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "ssl_vit"}), warnings.catch_warnings():
        # of a script that the font lacks: boxes are shown
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure.savefig(
            text,
            format="svg",
            metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
        )
    return text.getvalue()
