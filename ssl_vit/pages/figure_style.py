"""Ink and paper of figures, for light pages and dark ones; where the figure for dark pages lies. No
torch here."""

from pathlib import Path
from typing import NamedTuple

TWINS = "dark"  # folder beside figures for light pages, of the same figures for dark ones


class Style(NamedTuple):
    """Colours of text and lines, and of the ground."""

    ink: str
    paper: str


# as --ink and --paper of pages/assets/page.css
LIGHT = Style("#24292f", "#ffffff")
DARK = Style("#c9d1d9", "#14171c")


def twin(figure: Path) -> Path:
    """The same figure for dark pages."""
    return figure.parent / TWINS / figure.name
