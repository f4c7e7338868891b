"""How all figures are drawn: of one width and in one style, images as panels, values as colours;
with matplotlib's Figure objects, without pyplot's state.

Legend: B images, R rows, C columns of tiles; H W an image's height and width.
"""

import io
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

WIDTH = 9.0  # inches of every figure
CELL = 96  # pixels of a panel's side, at least, where images are enlarged
LARGEST_CELL = 128  # where they are reduced
GAP = 6  # pixels between panels
FITTING = 8  # columns of panels that a figure has room for without small ones
LINE_LENGTH = 13  # characters of a label to the inch
HEAT = "viridis"


class PanelGroup(NamedTuple):
    """Panels of one encoder: {title of a column: images of it}, uint8 (H, W, 3), or (H, W, 4) with
    opacity; `note` is a line under the label."""

    label: str
    columns: Mapping[str, np.ndarray | Sequence[np.ndarray]]
    note: str = ""


def write(folder: Path, name: str, draw: Callable[[], Figure]) -> None:
    """Write a figure as NAME.svg and NAME.png."""
    folder.mkdir(parents=True, exist_ok=True)
    for form, content in rendered(draw).items():
        write_atomically(folder / f"{name}.{form}", content)


def rendered(draw: Callable[[], Figure]) -> dict[str, bytes]:
    """{form: the figure} as "svg" and "png", the same bytes each time: no date or version in
    them."""
    facts = {"svg": ("Date", "Creator", "Format", "Type"), "png": ("Software",)}
    found = {}
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        # of a script that the font lacks: boxes are shown
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure = draw()
        for form, names in facts.items():
            file = io.BytesIO()
            figure.savefig(file, format=form, metadata=dict.fromkeys(names))
            found[form] = file.getvalue()
    return found


def panels(groups: Sequence[PanelGroup], above: str = "") -> Figure:
    """Groups of panels of as many images each, one below the other, under a line of text. One
    raster on one axis each: an axis for each panel takes ten times as long."""
    first, *_ = groups[0].columns.values()
    # images with their columns in one row
    sets = min(max(1, FITTING // len(groups[0].columns)), len(first))
    pages = [_montage(group, sets) for group in groups]
    wide = max(page.shape[1] for page in pages)
    high = sum(page.shape[0] for page in pages)
    height = high * (WIDTH - 0.3) / wide + 0.6 * len(groups) + 0.2
    figure = Figure(figsize=(WIDTH, height), layout="compressed")
    axes = figure.subplots(nrows=len(groups), squeeze=False).flat
    for axis, group, page in zip(axes, groups, pages, strict=True):
        axis.imshow(page, interpolation="none")
        titles = [figure_label(title) for title in group.columns] * sets
        side = (page.shape[1] + GAP) / len(titles)
        axis.set_xticks((np.arange(len(titles)) + 0.5) * side - GAP / 2, titles)
        axis.set_yticks([])
        axis.xaxis.tick_top()
        axis.tick_params(length=0, pad=1)
        axis.spines[:].set_visible(False)
        axis.set_title(title_of(group.label, group.note, WIDTH))
    figure.suptitle(wrapped(above, WIDTH))
    return figure


def _montage(group: PanelGroup, sets: int) -> np.ndarray:
    """A group's panels as one image, transparent between them: uint8 (H, W, 4)."""
    columns = list(group.columns.values())
    side = max(max(image.shape[:2]) for images in columns for image in images)
    cell = min(LARGEST_CELL, side * -(-CELL // side))
    rows = -(-len(columns[0]) // sets)
    panel_BCHW4 = np.zeros((rows * sets, len(columns), cell, cell, 4), np.uint8)
    for column, images in enumerate(columns):
        for number, image in enumerate(images):
            panel = panel_BCHW4[number, column]
            panel[..., 3] = 255
            panel[..., : image.shape[2]] = resized(image, cell)
    return tiled(rearrange(panel_BCHW4, "(r s) c ... -> r (s c) ...", s=sets), 0, GAP)


def resized(image_HWC: np.ndarray, side: int) -> np.ndarray:
    """An image as a square of that side: pixels are repeated where it grows, averaged where it
    shrinks."""
    shrinks = max(image_HWC.shape[:2]) > side
    method = Image.Resampling.BOX if shrinks else Image.Resampling.NEAREST
    return np.asarray(Image.fromarray(image_HWC).resize((side, side), method))


def title_of(label: str, note: str, width: float) -> str:
    """The title of an encoder's part of a figure that is so many inches wide."""
    return "\n".join(filter(None, [wrapped(label, width), figure_label(note)]))


def wrapped(text: str, width: float) -> str:
    """A label in lines that fit into a width in inches, whole: a shortened one may be another's."""
    return "\n".join(map(figure_label, textwrap.wrap(text, round(LINE_LENGTH * width))))


def heat(value_HW: np.ndarray, largest: float, colours: str = HEAT) -> np.ndarray:
    """Values from 0 to the largest as colours, NaN as a light or a dark grey, by what is below:
    uint8 (H, W, 4)."""
    shades = matplotlib.colormaps[colours].with_extremes(bad=(0.5, 0.5, 0.5, 0.2))
    share_HW = Normalize(0, max(largest, 1e-12))(np.ma.masked_invalid(value_HW))
    return np.asarray(shades(share_HW, bytes=True))


def tiled(tile_RCHW: np.ndarray, fill: float, gap: int = 1) -> np.ndarray:
    """Tiles (R, C, H, W, ...) as one image with `gap` pixels of `fill` between them."""
    edges = [(0, 0), (0, 0), (0, gap), (0, gap), *[(0, 0)] * (tile_RCHW.ndim - 4)]
    padded = np.pad(tile_RCHW, edges, constant_values=fill)
    return rearrange(padded, "r c h w ... -> (r h) (c w) ...")[:-gap, :-gap]
