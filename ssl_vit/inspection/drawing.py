"""Draw all figures in one width and style: images as panels, values as colours.

Figures are matplotlib's Figure objects, without the global state of pyplot.

Legend: B images, R rows, C columns of tiles, H W height and width of an image.
"""

import io
import math
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from einops import rearrange
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from PIL import Image

from ..formatting import figure_label
from ..pages.figure_style import STYLE
from ..runs.files import write_atomically

WIDTH = 9.0  # width of every figure in inches
CELL = 96  # smallest side of a panel in pixels, to which small images are enlarged
LARGEST_CELL = 128  # largest side of a panel in pixels, to which large images are reduced
GAP = 6  # pixels between panels
FITTING = 8  # number of panels that fit into a row without becoming small
LINE_LENGTH = 13  # characters of a label that fit into an inch
HEAT = "viridis"


class PanelGroup(NamedTuple):
    """Panels of one encoder: rows of images, drawn below a title.

    Attributes:
        label: Title of the group.
        columns: {title of a column: images}. All columns have the same number of images. An image
            is uint8 (H, W, 3), or (H, W, 4) with opacity.
        note: Line below the label.
    """

    label: str
    columns: Mapping[str, np.ndarray | Sequence[np.ndarray]]
    note: str = ""


def write(folder: Path, name: str, draw: Callable[[], Figure]) -> None:
    """Draw a figure and write it to `folder` as NAME.svg and NAME.png."""
    folder.mkdir(parents=True, exist_ok=True)
    for suffix, content in render(draw).items():
        write_atomically(folder / f"{name}.{suffix}", content)


def render(draw: Callable[[], Figure]) -> dict[str, bytes]:
    """Draw a figure and return it as files: {"svg": bytes, "png": bytes}.

    The bytes are the same each time, because they contain no date and no version.

    Args:
        draw: Function that returns the figure.
    """
    # matplotlib writes these metadata unless they are None
    unwanted_metadata = {"svg": ("Date", "Creator", "Format", "Type"), "png": ("Software",)}
    files = {}
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        # Characters that the font lacks are shown as boxes. Do not warn about each character
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure = draw()
        for suffix, names in unwanted_metadata.items():
            file = io.BytesIO()
            figure.savefig(file, format=suffix, metadata=dict.fromkeys(names))
            files[suffix] = file.getvalue()
    return files


def panels(groups: Sequence[PanelGroup], above: str = "") -> Figure:
    """Draw groups of panels, one group below the other, in a figure WIDTH inches wide.

    All panels of a group are joined into one raster image, which a single axis shows.

    Args:
        groups: Groups to draw, each with the same number of images.
        above: Text above the groups.
    """
    first_column, *_ = groups[0].columns.values()
    # Each image takes a panel in each column of the group, and FITTING panels fit into a row
    images_per_row = min(max(1, FITTING // len(groups[0].columns)), len(first_column))
    # One raster image per group, because an axis per panel would take ten times as long
    pages = [_montage(group, images_per_row) for group in groups]
    page_width = max(page.shape[1] for page in pages)
    page_heights = sum(page.shape[0] for page in pages)
    # Margins take 0.3 inches of the width. The titles of each group take 0.6 inches of the height,
    # and the text above the groups takes 0.2 inches
    height = page_heights * (WIDTH - 0.3) / page_width + 0.6 * len(groups) + 0.2
    figure = Figure(figsize=(WIDTH, height), layout="compressed")
    axes = figure.subplots(nrows=len(groups), squeeze=False).flat
    for axis, group, page in zip(axes, groups, pages, strict=True):
        axis.imshow(page, interpolation="none")
        titles = [figure_label(title) for title in group.columns] * images_per_row
        panel_distance = (page.shape[1] + GAP) / len(titles)  # between left edges of neighbours
        centres = (np.arange(len(titles)) + 0.5) * panel_distance - GAP / 2
        axis.set_xticks(centres, titles)
        axis.set_yticks([])
        axis.xaxis.tick_top()
        axis.tick_params(length=0, pad=1)
        axis.spines[:].set_visible(False)
        axis.set_title(make_title(group.label, group.note, WIDTH))
    figure.suptitle(wrap_label(above, WIDTH))
    return figure


def _montage(group: PanelGroup, images_per_row: int) -> np.ndarray:
    """Join the panels of a group into one image, uint8 (H, W, 4), transparent between panels.

    Args:
        group: Panels to join.
        images_per_row: Number of images in a row. Each image takes a panel for each column of the
            group.
    """
    columns = list(group.columns.values())
    largest_side = max(max(image.shape[:2]) for images in columns for image in images)
    # Enlarge small images by a whole number to at least CELL pixels: a side of 32 becomes
    # 3 * 32 = 96, and a side of 40 becomes 3 * 40 = 120. Limit the side to LARGEST_CELL pixels
    enlarged_side = largest_side * math.ceil(CELL / largest_side)
    cell = min(LARGEST_CELL, enlarged_side)
    rows = math.ceil(len(columns[0]) / images_per_row)
    # B images, including empty images that fill the last row, and C columns of the group
    panel_BCHW4 = np.zeros((rows * images_per_row, len(columns), cell, cell, 4), np.uint8)
    for column, images in enumerate(columns):
        for number, image in enumerate(images):
            panel = panel_BCHW4[number, column]
            panel[..., 3] = 255
            panel[..., : image.shape[2]] = resize(image, cell)
    tile_RCHW4 = rearrange(panel_BCHW4, "(r i) c ... -> r (i c) ...", i=images_per_row)
    return join_tiles(tile_RCHW4, 0, GAP)


def resize(image_HWC: np.ndarray, side: int) -> np.ndarray:
    """Resize an image to a square: repeat pixels to enlarge it, average pixels to reduce it."""
    shrinks = max(image_HWC.shape[:2]) > side
    method = Image.Resampling.BOX if shrinks else Image.Resampling.NEAREST
    return np.asarray(Image.fromarray(image_HWC).resize((side, side), method))


def make_title(label: str, note: str, width: float) -> str:
    """Return the title of an axis: the wrapped label, and the note on a line below.

    Args:
        label: Name of the encoder.
        note: Note, may be empty.
        width: Width of the axis in inches.
    """
    return "\n".join(filter(None, [wrap_label(label, width), figure_label(note)]))


def wrap_label(text: str, width: float) -> str:
    """Wrap a label into lines that fit a width in inches.

    Labels are never shortened, because shortened labels could be equal.
    """
    return "\n".join(map(figure_label, textwrap.wrap(text, round(LINE_LENGTH * width))))


def map_colours(value_HW: np.ndarray, largest: float, colours: str = HEAT) -> np.ndarray:
    """Convert values from 0 to `largest` to colours, uint8 (H, W, 4).

    NaN becomes a transparent grey, which suits light and dark pages.

    Args:
        value_HW: Values.
        largest: Value of the last colour of the map. Larger values get the same colour.
        colours: Name of matplotlib's colour map.
    """
    shades = matplotlib.colormaps[colours].with_extremes(bad=(0.5, 0.5, 0.5, 0.2))
    share_HW = Normalize(0, max(largest, 1e-12))(np.ma.masked_invalid(value_HW))
    return np.asarray(shades(share_HW, bytes=True))


def join_tiles(tile_RCHW: np.ndarray, fill: float, gap: int = 1) -> np.ndarray:
    """Join tiles into an image with R rows and C columns of tiles.

    Args:
        tile_RCHW: Tiles, (R, C, H, W) or (R, C, H, W, channels).
        fill: Value between tiles.
        gap: Pixels between tiles.
    """
    # Pad each tile at the bottom and on the right. The last row and column need no gap
    padding = [(0, 0), (0, 0), (0, gap), (0, gap), *[(0, 0)] * (tile_RCHW.ndim - 4)]
    padded = np.pad(tile_RCHW, padding, constant_values=fill)
    return rearrange(padded, "r c h w ... -> (r h) (c w) ...")[:-gap, :-gap]
