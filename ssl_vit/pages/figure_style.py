"""Define the style of all figures as matplotlib settings: ink and a few colours that work on light
and dark pages.

This module imports neither torch nor matplotlib.
"""

from typing import Any

# Colour of text and lines. Its contrast is 4.2 both with white and with the #14171c of dark pages,
# the most that one colour can have with both.
INK = "#7b7b7b"
# Colours of Okabe and Ito, which readers with any colour vision can distinguish
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9")
STYLE: dict[Any, Any] = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "grid.color"), INK),
    **dict.fromkeys(("xtick.color", "ytick.color"), INK),
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), "none"),
    **dict.fromkeys(("font.size", "axes.labelsize", "legend.fontsize", "figure.titlesize"), 8),
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize"), 7),
    "axes.titlesize": 9,
    "grid.alpha": 0.25,
    "figure.constrained_layout.wspace": 0.05,
    "legend.frameon": False,
    "savefig.dpi": 110,
    "svg.hashsalt": "ssl_vit",  # otherwise the names inside an SVG differ each time
}
