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
    "image_map": FigureDescription(
        "features of images in two dimensions (t-SNE), coloured by class if known"
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
    """Return the caption of the objective's predictions.

    Args:
        values: {dotted key: value} of a recipe.

    Returns:
        The caption; empty if the objective draws no figure or is not known here.
    """
    declared = declaration.find_objective_or_stub(str(values.get("objective")))
    parts = (declared, *(declaration.objective(name) for name in declared.parts))
    caption = next((part.figure for part in parts if part.figure), "")
    target = declaration.targets().get(str(values.get("target")))
    if caption and declared.predicts_patches and target and target.drawn:
        caption += f", {target.drawn}"
    return caption


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
        objective: Caption of the objective's predictions; empty if it is not known.
        otherwise: Caption of a figure that has none.
        most: Largest size in bytes of all figures inside the page; further figures are only named.
    """
    named = []
    try:
        recorded = records.read(folder / "figures.json", Figures).figures
    except (OSError, ValueError):  # missing or damaged
        recorded = {}
    for path in sorted(folder.glob("*.svg"), key=_place):
        svg = _text(path)
        if svg is None:
            continue
        most -= len(svg)
        if most < 0:
            named.append(f"{folder.name}/{path.name}")
            most += len(svg)
            continue
        shown = DESCRIPTIONS.get(
            path.stem, FigureDescription(objective if path.stem in DECLARED_FIGURES else "")
        )
        caption = shown.caption or otherwise
        if entry := recorded.get(path.stem):
            caption += f", {entry.drawn}" if entry.drawn else ""
            caption += f". Images of {entry.images}" if shown.uses_images else ""
        title = path.stem.replace("_", " ").capitalize()
        caption = f"{title}: {caption}. ({folder.name}/{path.name})"
        yield Figure(f"{folder.name}/{path.name}", caption, svg, title)
    if named:
        yield Text(f"These figures are too large for this page: {', '.join(named)}.")


def _text(path: Path) -> str | None:
    """Return the text of a file, or None for an unreadable file and for anything but a regular file
    (reading a pipe would block).
    """
    try:
        return path.read_text(encoding="utf-8") if path.is_file() else None
    except (OSError, UnicodeDecodeError):
        return None


def _place(path: Path) -> tuple[int, str]:
    return ORDER.index(path.stem) if path.stem in ORDER else len(ORDER), path.name
