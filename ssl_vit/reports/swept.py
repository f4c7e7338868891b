"""Measures against what was varied, as curves or a grid of colours, in SVG text."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter, ScalarFormatter

from .curves import COLOURS, LIGHT, Style, _dress, _figure, _svg, label

COLUMNS = 2
DARK = 0.6  # share of the colours above which text on them is dark


class Spot(NamedTuple):
    """One setting: its place along x, its seeds' values, and the ends of the mean's interval if
    there is one."""

    x: float
    values: Sequence[float]
    interval: tuple[float, float] | None


class Panel(NamedTuple):
    """One measure: {curve: its settings}, and {arm beside them: its mean}."""

    title: str
    label: str
    curves: Mapping[str, Sequence[Spot]]
    beside: Mapping[str, float]


class Grid(NamedTuple):
    """Means by row and column; None where no run is finished."""

    x: str
    y: str
    columns: Sequence[str]
    rows: Sequence[str]
    means: Sequence[Sequence[float | None]]
    label: str


def curves(panels: Sequence[Panel], x: str, ticks: Sequence[str], log: bool, look: Style) -> str:
    """A panel for each measure: each seed a dot, the mean with its interval on a line; categories
    have no line."""
    rows = -(-len(panels) // COLUMNS)
    figure = _figure(look, 7.6, 2.9 * rows)
    cells = figure.subplots(rows, COLUMNS, squeeze=False).ravel()
    for axis, panel in zip(cells, panels, strict=False):
        for i, (name, spots) in enumerate(panel.curves.items()):
            _draw(
                axis,
                name,
                sorted(spots, key=lambda spot: spot.x),
                COLOURS[i % len(COLOURS)],
                "" if ticks else "-",
            )
        for i, (name, mean) in enumerate(panel.beside.items()):
            axis.axhline(
                mean,
                color=COLOURS[(len(panel.curves) + i) % len(COLOURS)],
                linestyle="--",
                linewidth=1,
                label=label(name),
            )
        _scale(
            axis, sorted({spot.x for spots in panel.curves.values() for spot in spots}), ticks, log
        )
        _dress(axis, look, x, panel.label, panel.title)
    for axis in cells[len(panels) :]:
        axis.set_axis_off()
    return _svg(figure, look)


def _draw(axis: Axes, name: str, spots: Sequence[Spot], colour: str, line: str) -> None:
    means = [float(np.mean(spot.values)) for spot in spots]
    axis.plot(
        [spot.x for spot in spots],
        means,
        linestyle=line,
        marker="D",
        markersize=4,
        color=colour,
        label=label(name) or None,
    )
    for spot in spots:
        axis.plot(
            [spot.x] * len(spot.values), spot.values, ".", markersize=4, alpha=0.5, color=colour
        )
        if spot.interval:
            axis.plot([spot.x, spot.x], spot.interval, linewidth=1.5, color=colour)


def _scale(axis: Axes, places: Sequence[float], ticks: Sequence[str], log: bool) -> None:
    """Ticks at the values themselves, or the categories' names."""
    if ticks:
        turned = sum(map(len, ticks)) > 30
        axis.set_xticks(
            range(len(ticks)),
            [label(tick) for tick in ticks],
            rotation=30 if turned else 0,
            ha="right" if turned else "center",
        )
        axis.set_xlim(-0.5, len(ticks) - 0.5)
    elif log:
        axis.set_xscale("log")
        axis.set_xticks(places)
        axis.xaxis.set_major_formatter(ScalarFormatter())
        axis.xaxis.set_minor_formatter(NullFormatter())


def grid(means: Grid, look: Style) -> str:
    """Means as colours, each with its number."""
    figure = _figure(look, 1.8 + 0.9 * len(means.columns), 1.2 + 0.5 * len(means.rows))
    axis = figure.subplots()
    mean_RC = np.array([[np.nan if mean is None else mean for mean in row] for row in means.means])
    low, high = float(np.nanmin(mean_RC)), float(np.nanmax(mean_RC))
    axis.pcolormesh(
        np.ma.masked_invalid(mean_RC),
        cmap="cividis",
        vmin=low,
        vmax=high if high > low else low + 1,
    )
    for (row, column), mean in np.ndenumerate(mean_RC):
        if np.isfinite(mean):
            dark = (mean - low) / ((high - low) or 1) > DARK
            ink = LIGHT.ink if dark else LIGHT.paper
            axis.text(
                column + 0.5,
                row + 0.5,
                f"{mean:.2f}",
                ha="center",
                va="center",
                color=ink,
                fontsize=9,
            )
    axis.set_xticks(
        [i + 0.5 for i in range(len(means.columns))], [label(name) for name in means.columns]
    )
    axis.set_yticks([i + 0.5 for i in range(len(means.rows))], [label(name) for name in means.rows])
    _dress(axis, look, means.x, means.y, means.label)
    axis.grid(False)
    return _svg(figure, look)
