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


def describe_predictions(values: Mapping[str, Any]) -> str:
    """Return the caption of the figure that shows an objective's predictions.

    Args:
        values: {dotted key: value} of a recipe.

    Returns:
        The caption. It is empty if the objective draws no figure, or if the objective comes from a
        plugin whose caption was not recorded.
    """
    declared = declaration.find_objective_or_stub(str(values.get("objective")))
    # The attribute `figure` is the caption. A joint objective has parts and no caption of its own:
    # it shows the figure of the first part that has one
    parts = [declaration.objective(name) for name in declared.parts]
    captions = [part.figure for part in (declared, *parts) if part.figure]
    if not captions:
        return ""
    caption = captions[0]
    target = declaration.targets().get(str(values.get("target")))
    if declared.predicts_patches and target and target.drawn:
        # `drawn` is the end of the caption: how the values of the target are drawn
        return f"{caption}, {target.drawn}"
    return caption


def write(folder: Path, about: Sequence[str], run: Path | None = None) -> Path:
    """Write figures.html into a folder of figures and return the path of the page.

    Args:
        folder: Folder of the figures.
        about: Lines at the top of the page: about the images, and about each encoder.
        run: Folder of the run that the figures belong to, if any.

    Raises:
        OSError: The page cannot be written.
    """
    caption = "" if run is None else describe_predictions(read_run(run).values)
    figures = list(build(folder, caption, default_caption="a figure", bytes_left=math.inf))
    sections = [Section("", [Listing(list(about))]), Section("Figures", figures)]
    write_atomically(folder / PAGE, blocks.html("What the encoder has learned", sections))
    return folder / PAGE


def build(
    folder: Path, predictions_caption: str, default_caption: str, bytes_left: float
) -> Iterator[Block]:
    """Yield the figures of a folder as blocks of a page, the objective's predictions first.

    The SVG files become part of the page. A figure that would make all figures together larger than
    `bytes_left` is skipped. A last block names the skipped figures.

    Args:
        folder: Folder with the SVG files.
        predictions_caption: Caption of the figure of predictions. Empty if it is unknown.
        default_caption: Caption of a figure without a caption.
        bytes_left: Largest size in bytes of all figures together.
    """
    too_large = []
    try:
        recorded = records.read(folder / "figures.json", Figures).figures
    except (OSError, ValueError):  # missing or damaged
        recorded = {}
    for path in sorted(folder.glob("*.svg"), key=_page_position):
        name = f"{folder.name}/{path.name}"
        svg = _read_text(path)
        if svg is None:
            continue
        if len(svg) > bytes_left:
            too_large.append(name)
            continue
        bytes_left -= len(svg)
        # The caption is the one in DESCRIPTIONS. Figures of predictions have no caption there, but
        # the objective declares one. All other figures have the default caption
        declared_caption = predictions_caption if path.stem in DECLARED_FIGURES else ""
        description = DESCRIPTIONS.get(path.stem, FigureDescription(declared_caption))
        caption = description.caption or default_caption
        entry = recorded.get(path.stem)  # what figures.json says about this figure
        if entry and entry.drawn:  # how the figure was drawn, if this depends on the encoder
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


def _page_position(path: Path) -> tuple[int, str]:
    """Return a figure's sort key: figures in ORDER come first, and all others follow by name."""
    return ORDER.index(path.stem) if path.stem in ORDER else len(ORDER), path.name
