"""What the figures are drawn from: panels of images side by side, values as colours, labels; with
matplotlib's Figure objects, without pyplot's state.

Legend: R rows, C columns of panels; H W an image's height and width.
"""

import io
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from ..formatting import figure_label
from ..pages.figure_style import INK
from ..runs.files import write_atomically

CELL = 96  # pixels of a panel's side, at least, where images are enlarged
LARGEST_CELL = 160  # where they are reduced
INCHES = 0.95  # of a panel's side
GAP = 0.06  # of a panel's side: the space between panels
GROUP_GAP = 0.3  # between the panels of two encoders
MARGIN = 0.1  # inches around the panels
LINE_LENGTH = 10  # characters of a label to the inch
CAPTION_LENGTH = 13
DPI = 110
HEAT = "viridis"
# Two of Okabe and Ito's colours, which readers with any colour vision can distinguish
RANDOM_FRAME = (213, 94, 0)
KEPT_FRAME = (86, 180, 233)


class PanelGroup(NamedTuple):
    """Panels of one encoder: rows of images, uint8 (H, W, 3), or (H, W, 4) with opacity, under the
    columns' titles; `note` is a line under the label."""

    label: str
    titles: Sequence[str]
    rows: Sequence[Sequence[np.ndarray]]
    note: str = ""


def write(folder: Path, name: str, draw: Callable[[], Figure], forms: Sequence[str]) -> None:
    """Write a figure as NAME.FORM.

    Args:
        folder: of the figures.
        name: of its files.
        draw: draws it.
        forms: of "png" and "svg".
    """
    folder.mkdir(parents=True, exist_ok=True)
    for form, content in rendered(draw, forms).items():
        write_atomically(folder / f"{name}.{form}", content)


def rendered(draw: Callable[[], Figure], forms: Sequence[str]) -> dict[str, bytes]:
    """{form: the figure}, the same bytes each time: no date, and names that are hashed with a fixed
    salt."""
    found = {}
    with matplotlib.rc_context(_settings()), warnings.catch_warnings():
        # of a script that the font lacks: boxes are shown
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure = draw()
        for form in forms:
            file = io.BytesIO()
            facts = ("Date", "Creator", "Format", "Type") if form == "svg" else ("Software",)
            figure.savefig(file, format=form, dpi=DPI, metadata=dict.fromkeys(facts))
            found[form] = file.getvalue()
    return found


def _settings() -> Any:
    """matplotlib's settings: ink on the ground of the page; ticks take theirs when they are
    drawn."""
    inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    grounds = ("figure.facecolor", "axes.facecolor", "savefig.facecolor")
    colours = dict.fromkeys(inked, INK) | dict.fromkeys(grounds, "none")
    return colours | {"svg.hashsalt": "ssl_vit"}


def panels(groups: Sequence[PanelGroup], caption: str = "", bottom: float = 0.0) -> Figure:
    """Groups of panels side by side, a caption under them, and under that `bottom` inches of room.
    One raster on one axis: an axis for each panel takes ten times as long."""
    cell = _cell(groups)
    gap = max(1, round(GAP * cell))
    between = round(GROUP_GAP * cell)
    blocks = [_block(group, cell, gap) for group in groups]
    starts = np.cumsum([0, *(block.shape[1] + between for block in blocks)])
    page = np.zeros((max(map(len, blocks)), starts[-1] - between, 4), np.uint8)
    for start, block in zip(starts, blocks, strict=False):
        page[: len(block), start : start + block.shape[1]] = block
    inch = INCHES / cell
    widths = [inch * block.shape[1] for block in blocks]
    titles = [wrapped(one.label, width) for one, width in zip(groups, widths, strict=True)]
    offset = 17 + (12 if any(group.note for group in groups) else 0)  # points, of the labels
    lines = max(len(title.splitlines()) for title in titles)
    head = (offset + 12 * lines) / 72 + 0.1
    width = inch * page.shape[1]
    under = wrapped(caption, width, CAPTION_LENGTH) if caption else ""
    foot = bottom + (0.15 + 0.14 * (under.count("\n") + 1) if caption else MARGIN)
    height = inch * len(page)
    size = (width + 2 * MARGIN, head + height + foot)
    figure = Figure(figsize=size)
    axis = figure.add_axes((MARGIN / size[0], foot / size[1], width / size[0], height / size[1]))
    axis.set_axis_off()
    axis.imshow(page, interpolation="nearest", aspect="auto")
    for group, title, start, block in zip(groups, titles, starts, blocks, strict=False):
        for column, text in enumerate(group.titles):
            _above(axis, figure_label(text), start + (cell + gap) * column + cell / 2, 4, 8)
        middle = start + block.shape[1] / 2
        _above(axis, figure_label(group.note), middle, 17, 8)
        _above(axis, title, middle, offset, 9, weight="bold")
    figure.text(0.5, (foot - 0.08) / size[1], under, ha="center", va="top", fontsize=8)
    return figure


def rows_of(columns: Mapping[str, np.ndarray]) -> list[list[np.ndarray]]:
    """The images of each row, of {title: images of its column}."""
    return [list(row) for row in zip(*columns.values(), strict=True)]


def _above(
    axis: Axes, text: str, x: float, points: float, size: float, weight: str = "normal"
) -> None:
    """Text centred at x, so many points above the axis."""
    axis.annotate(
        text,
        (x, 1),
        (0, points),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        ha="center",
        va="bottom",
        fontsize=size,
        fontweight=weight,
    )


def _cell(groups: Sequence[PanelGroup]) -> int:
    """The side in pixels that all panels are brought to."""
    side = max(max(image.shape[:2]) for group in groups for row in group.rows for image in row)
    return min(LARGEST_CELL, side * -(-CELL // side))


def _block(group: PanelGroup, cell: int, gap: int) -> np.ndarray:
    """A group's panels as one image, transparent between them: uint8 (H, W, 4)."""
    rows = len(group.rows)
    columns = len(group.titles)
    block = np.zeros((rows * (cell + gap) - gap, columns * (cell + gap) - gap, 4), np.uint8)
    for row, images in enumerate(group.rows):
        for column, image in enumerate(images):
            top = row * (cell + gap)
            left = column * (cell + gap)
            panel = block[top : top + cell, left : left + cell]
            panel[..., 3] = 255
            panel[..., : image.shape[2]] = resized(image, cell)
    return block


def resized(image_HWC: np.ndarray, side: int) -> np.ndarray:
    """An image as a square of that side: pixels are repeated where it grows, averaged where it
    shrinks."""
    shrinks = max(image_HWC.shape[:2]) > side
    method = Image.Resampling.BOX if shrinks else Image.Resampling.NEAREST
    return np.asarray(Image.fromarray(image_HWC).resize((side, side), method))


def wrapped(text: str, width: float, characters: int = LINE_LENGTH) -> str:
    """A label in lines that fit into a width in inches, whole: a shortened one may be another's."""
    length = max(6, round(characters * width))
    return "\n".join(map(figure_label, textwrap.wrap(text, length)))


def heat(value_HW: np.ndarray, low: float, high: float, colours: str = HEAT) -> np.ndarray:
    """Values as colours, NaN as a light or a dark grey, by what is below: uint8 (H, W, 4)."""
    share_HW = (value_HW - low) / max(high - low, 1e-12)
    color_HW4 = matplotlib.colormaps[colours](np.nan_to_num(share_HW).clip(0, 1))
    color_HW4[np.isnan(value_HW)] = (0.5, 0.5, 0.5, 0.2)
    return (255 * color_HW4).round().astype(np.uint8)


def tiled(tile_RCHW: np.ndarray, fill: float) -> np.ndarray:
    """Tiles (R, C, H, W, ...) as one image with a line of `fill` between them."""
    rows, columns, height, width, *rest = tile_RCHW.shape
    page = np.full((rows * (height + 1) - 1, columns * (width + 1) - 1, *rest), fill)
    for row in range(rows):
        for column in range(columns):
            top = row * (height + 1)
            left = column * (width + 1)
            page[top : top + height, left : left + width] = tile_RCHW[row, column]
    return page


def framed(image_HW3: np.ndarray, random_RC: np.ndarray, kept_RC: np.ndarray) -> np.ndarray:
    """An image, enlarged to the side of a panel, with frames around the patches of two masks."""
    scale = max(1, -(-CELL // image_HW3.shape[0]))
    image = image_HW3.repeat(scale, 0).repeat(scale, 1).copy()
    side = len(image) // len(random_RC)
    line = max(1, side // 10)
    for mask, colour in ((random_RC, RANDOM_FRAME), (kept_RC, KEPT_FRAME)):
        for row, column in np.argwhere(mask):
            patch = image[row * side : (row + 1) * side, column * side : (column + 1) * side]
            inside = patch[line:-line, line:-line].copy()
            patch[:] = colour
            patch[line:-line, line:-line] = inside
    return image
