"""Show the figures of a folder as blocks of a page, or on a separate page. This module does not
import torch.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..recipe import declaration, records
from ..recipe.records.run import Figures
from ..recipe.tools import FIGURES
from ..runs.files import write_atomically
from . import blocks
from .blocks import Block, Figure, Listing, Section, Text
from .run_record import read_run

PAGE = "figures.html"


class FigureDescription(NamedTuple):
    """Description of what a figure of the figures tool shows.

    Attributes:
        caption: Caption in words.
        uses_images: Whether the figure is computed from images.
        shows_images: Whether the figure contains pixels of images or names of classes. Such a
            figure is uploaded only on request.
    """

    caption: str
    uses_images: bool = True
    shows_images: bool = True


DESCRIPTIONS = {
    "filters": FigureDescription(
        "the main directions (principal components) of the filters that embed a patch",
        uses_images=False,
        shows_images=False,
    ),
    "positions": FigureDescription(
        "cosine similarity of each patch's position embedding with all position embeddings",
        uses_images=False,
        shows_images=False,
    ),
    "attention_distance": FigureDescription(
        "mean distance between a patch and the patches that the patch attends to, for each head",
        shows_images=False,
    ),
    "attention_rollout": FigureDescription(
        "how much each patch contributes to the image's feature (dark patches contribute little)"
    ),
    "class_attention": FigureDescription(
        "the patches that the class token attends to in the last block, by head"
    ),
    "feature_map": FigureDescription(
        "features of patches as colours (a colour means the same feature in all images)"
    ),
    "reconstruction": FigureDescription(
        "images, the corrupted patches, the predictions, the true patches, and the error"
    ),
}
PREDICTIONS = "predictions"  # drawn by training from held-out images of the run
# figures whose caption is in the declaration of the objective
DECLARED_FIGURES = (PREDICTIONS, "predicted")
# Order of figures: predictions of the objective come first
ORDER = tuple(dict.fromkeys((PREDICTIONS, "reconstruction", "predicted", *FIGURES)))


def predictions(values: Mapping[str, Any]) -> str:
    """Return the caption of the figure that shows an objective's predictions.

    Args:
        values: {dotted key: value} of a recipe.

    Returns:
        The caption, or an empty string if the objective draws no figure or is unknown here.
    """
    declared = declaration.find_objective_or_stub(str(values.get("objective")))
    # the parts of a joint objective
    parts = [declaration.objective(name) for name in declared.parts]
    captions = [part.figure for part in (declared, *parts) if part.figure]
    if not captions:
        return ""
    target = declaration.targets().get(str(values.get("target")))
    if declared.predicts_patches and target and target.drawn:
        return f"{captions[0]}, {target.drawn}"
    return captions[0]


def write(folder: Path, about: Sequence[str], run: Path | None = None) -> Path:
    """Write figures.html into a folder of figures and return the path of the page.

    Args:
        folder: Folder of the figures.
        about: A line about the images that were used, and a line for each encoder.
        run: Folder of the run that the figures belong to, if any.

    Raises:
        OSError: The page cannot be written.
    """
    objective = "" if run is None else predictions(read_run(run).values)
    figures = list(build(folder, objective, "a figure", math.inf))
    sections = [Section("", [Listing(list(about))]), Section("Figures", figures)]
    write_atomically(folder / PAGE, blocks.html("What the encoder has learned", sections))
    return folder / PAGE


def build(folder: Path, objective: str, otherwise: str, most: float) -> Iterator[Block]:
    """Yield the SVG files of a folder as blocks, predictions of the objective first.

    Args:
        folder: Folder of the figures.
        objective: Caption of the objective's predictions. Empty if it is unknown.
        otherwise: Caption of a figure that has none.
        most: Largest size in bytes of all figures inside the page. Further figures are only named.
    """
    too_large = []
    try:
        recorded = records.read(folder / "figures.json", Figures).figures
    except (OSError, ValueError):  # missing or damaged
        recorded = {}
    for path in sorted(folder.glob("*.svg"), key=_place):
        name, svg = f"{folder.name}/{path.name}", _read_text(path)
        if svg is None:
            continue
        if len(svg) > most:
            too_large.append(name)
            continue
        most -= len(svg)
        caption = objective if path.stem in DECLARED_FIGURES else ""
        description = DESCRIPTIONS.get(path.stem, FigureDescription(caption))
        caption = description.caption or otherwise
        entry = recorded.get(path.stem)
        if entry and entry.drawn:
            caption = f"{caption}, {entry.drawn}"
        if entry and description.uses_images:
            caption = f"{caption}. Images of {entry.images}"
        title = path.stem.replace("_", " ").capitalize()
        yield Figure(name, f"{title}: {caption}. ({name})", svg, title)
    if too_large:
        yield Text(f"These figures are too large for this page: {', '.join(too_large)}.")


def _read_text(path: Path) -> str | None:
    """Return the text of a file, or None if the file is unreadable or not a regular file."""
    try:
        # reading a pipe would block
        return path.read_text(encoding="utf-8") if path.is_file() else None
    except (OSError, UnicodeDecodeError):
        return None


def _place(path: Path) -> tuple[int, str]:
    return ORDER.index(path.stem) if path.stem in ORDER else len(ORDER), path.name
