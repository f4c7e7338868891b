"""Ink and paper of figures, for light pages, dark ones and print; where the figure for dark pages
lies. No torch here."""

import math
from pathlib import Path
from typing import NamedTuple

TEXT = 10  # points, which the sizes of figures are for
TWINS = "dark"  # folder beside figures for light pages, of the same figures for dark ones


class Style(NamedTuple):
    """Colours of text and lines, and of the ground; the size of text in points, which figures
    shrink with, and how wide they may be at most, in inches."""

    ink: str
    paper: str
    text: float = TEXT
    widest: float = math.inf


# as --ink and --paper of pages/assets/page.css
LIGHT = Style("#24292f", "#ffffff")
DARK = Style("#c9d1d9", "#14171c")
# A page's text is 5.5 inches wide or more in what is common; below 7 points text is hard to read
PRINTED = Style("#000000", "#ffffff", text=8, widest=5.5)


def twin(figure: Path) -> Path:
    """The same figure for dark pages."""
    return figure.parent / TWINS / figure.name
