"""The page of a folder of figures, with the figures inside. No torch here."""

import math
from collections.abc import Sequence
from pathlib import Path

from ..runs.files import write_atomically
from . import blocks, figure_blocks
from .blocks import Listing, Section
from .run_record import read_run

PAGE = "figures.html"


def write(folder: Path, about: Sequence[str], run: Path | None = None) -> Path:
    """Write figures.html beside the figures of a folder; its path.

    Args:
        folder: of the figures.
        about: a line for the images that were looked at, and one for each encoder.
        run: whose own folder of figures it is.

    Raises:
        OSError: it cannot be written.
    """
    objective = "" if run is None else figure_blocks.predictions(read_run(run).values)
    figures = list(figure_blocks.build(folder, objective, "a figure", math.inf))
    sections = [Section("", [Listing(list(about))]), Section("Figures", figures)]
    write_atomically(folder / PAGE, blocks.html("What the encoder has learned", sections))
    return folder / PAGE
