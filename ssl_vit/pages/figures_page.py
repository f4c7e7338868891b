"""The page of a folder of figures, with the figures inside. No torch here."""

import math
from collections.abc import Sequence
from pathlib import Path

from ..runs.files import write_atomically
from . import blocks, figure_blocks
from .blocks import Listing, Section, Text
from .run_record import read_run

PAGE = "figures.html"


def write(folder: Path, encoders: Sequence[str], images: str, run: Path | None = None) -> Path:
    """Write figures.html beside the figures of a folder; its path.

    Args:
        folder: of the figures.
        run: whose own folder of figures it is.
        encoders: a line for each encoder.
        images: which images were looked at.

    Raises:
        OSError: it cannot be written.
    """
    objective = ""
    if run is not None:
        objective = figure_blocks.predictions(read_run(run).values)
    sections = [
        Section("", [Text(images), Listing(list(encoders))]),
        Section("Figures", list(figure_blocks.build(folder, objective, "a figure", math.inf))),
    ]
    write_atomically(folder / PAGE, blocks.html("What the encoder has learned", sections))
    return folder / PAGE
