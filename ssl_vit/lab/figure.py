"""The figure of a study's report: each seed a point, the mean of each name a diamond, as one SVG
whose ground is the page's. Uses matplotlib's Figure objects, without pyplot's state."""

import io
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..formatting import figure_label
from .curve import numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

INK = "#7b7b7b"  # of text and lines: legible on light pages and on dark ones
# Okabe and Ito's, which readers with any colour vision can distinguish
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9")
WIDE = 10  # ratio of the ends of an axis from which it is logarithmic
BESIDE = 0.6  # of the space between two names, what lines at one name share


def draw(
    rows: "DataFrame", axis: str, places: Sequence[str], label: str, levels: Mapping[str, float]
) -> str:
    """The figure as SVG, the same text for the same rows.

    Args:
        rows: a row a seed: a column for each axis, and `value` as it is shown.
        axis: whose names are compared.
        places: the other axes; names that are numbers lie along the figure's axis.
        label: of the values.
        levels: {name: value} of lines across.
    """
    import matplotlib
    from matplotlib.figure import Figure

    along = next((one for one in (*places, axis) if numbers([*rows[one].unique()])), axis)
    others = [one for one in (axis, *places) if one != along]
    lines = rows[others].agg(", ".join, axis=1) if others else rows["value"].map(lambda _: "")
    names = list(dict.fromkeys(lines))
    at = numbers([*rows[along].unique()])
    figure = Figure(figsize=(6.4, 3.6), layout="constrained", facecolor="none")
    panel = figure.subplots()
    ticks = list(dict.fromkeys(rows[along]))
    for number, name in enumerate(names):
        own = rows[lines == name]
        if at is None:
            beside = BESIDE * ((number + 0.5) / len(names) - 0.5) if len(names) > 1 else 0
            x = own[along].map(lambda one, beside=beside: ticks.index(one) + beside)
        else:
            x = own[along].map(at)
        colour = _colour(number, len(names))
        mean = own["value"].groupby(x).mean()
        # two places are no curve: a line would look like values that nobody measured
        line = "-" if at is not None and len(mean) > 2 else ""
        panel.plot(x, own["value"], "o", markersize=3, alpha=0.6, color=colour)
        panel.plot(
            mean.index, mean, f"D{line}", markersize=5, color=colour, label=figure_label(name)
        )
    for name, value in levels.items():
        panel.axhline(value, color=INK, linestyle="--", linewidth=1, label=figure_label(name))
    if at is None:
        panel.set_xlim(-0.5, len(ticks) - 0.5)
        turned = 30 if sum(map(len, ticks)) > 40 else 0
        side = "right" if turned else "center"
        panel.set_xticks(range(len(ticks)), map(figure_label, ticks), rotation=turned, ha=side)
    elif max(at.values()) / min(at.values()) >= WIDE:
        panel.set_xscale("log")
        panel.set_xticks([*at.values()], map(figure_label, at))
        panel.minorticks_off()
    _dress(panel, along, label)
    if len(names) > 1 or levels:
        figure.legend(loc="outside lower center", ncols=3, frameon=False, labelcolor=INK)
    text = io.StringIO()
    plain = {"Date": None, "Creator": None, "Format": None, "Type": None}
    with matplotlib.rc_context({"svg.hashsalt": "ssl_vit"}), warnings.catch_warnings():
        # of a script that the font lacks: boxes are shown
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure.savefig(text, format="svg", metadata=plain)
    return text.getvalue()


def _colour(number: int, of: int) -> str:
    """More lines than COLOURS share out a colour map."""
    if of <= len(COLOURS):
        return COLOURS[number]
    import matplotlib

    return str(matplotlib.colors.to_hex(matplotlib.colormaps["viridis"](0.9 * number / (of - 1))))


def _dress(panel: "Axes", x: str, y: str) -> None:
    """Labels, and ink on the ground of the page."""
    panel.set_xlabel(figure_label(x), color=INK)
    panel.set_ylabel(figure_label(y), color=INK)
    panel.set_facecolor("none")
    panel.tick_params(which="both", colors=INK)
    panel.grid(alpha=0.25)
    panel.spines[["top", "right"]].set_visible(False)
    panel.spines[["left", "bottom"]].set_color(INK)
