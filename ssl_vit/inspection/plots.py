"""How each figure is drawn from its data: a dictionary of arrays for fresh weights and one for the
encoder, each with its label.

Legend: L blocks, H heads.
"""

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from PIL import Image

from ..formatting import figure_label
from .base import Arrays
from .drawing import (
    DPI,
    HEAT,
    KEPT_FRAME,
    RANDOM_FRAME,
    PanelGroup,
    framed,
    heat,
    panels,
    rows_of,
    tiled,
    wrapped,
)

Labelled = Sequence[tuple[str, Arrays]]  # an encoder's label and its data
WIDTH = 3.4  # inches for each encoder
LARGEST = 10.0  # inches for each encoder, at most
MOST_TILES = 16  # patches on a side of the grid of tiles
MOST_NUMBERS = 8  # of them that are numbered
ERROR_HEAT = "magma"
LARGEST_ERROR = 0.5  # of a channel's range, at the end of the error's colours
SEEN = (0.35, 0.9)  # of a colour map: what stands out from light and from dark ground
POINTS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9")  # Okabe and Ito's
MOST_CLASSES = 12  # that a legend names
LEGEND_COLUMN = 1.2  # inches


def _row(count: int, width: float, height: float, sharey: bool = False) -> tuple[Figure, Any]:
    """A figure and its axes (1, count), one for each encoder."""
    figure = Figure(figsize=(width * count, height), layout="constrained")
    return figure, figure.subplots(1, count, squeeze=False, sharey=sharey)


def _title(axis: Axes, label: str, width: float, note: str = "") -> None:
    axis.set_title("\n".join(filter(None, [wrapped(label, width), note])), fontsize=9)


def filters(data: Labelled) -> Figure:
    """Principal components in a grid of 7 columns; zero is grey, and each is scaled by its largest
    entry (paper, Figure 7, left)."""
    figure, axes = _row(len(data), WIDTH, 2.5)
    for axis, (label, arrays) in zip(axes[0], data, strict=True):
        component = arrays["components"]
        largest = np.abs(component).max((1, 2, 3), keepdims=True).clip(1e-12)
        image = 0.5 + component / largest / 2
        image = np.concatenate([image, np.ones_like(image[..., :1])], -1)  # opaque
        count, side = image.shape[:2]
        columns = min(7, count)
        missing = np.zeros((-count % columns, *image.shape[1:]))
        grid = np.concatenate([image, missing]).reshape(-1, columns, side, side, 4)
        axis.imshow(tiled(grid, 0.0), interpolation="nearest")
        axis.set_axis_off()
        _title(
            axis, label, WIDTH, f"{count} components, {arrays['variance'].sum():.0%} of variance"
        )
    return figure


def positions(data: Labelled) -> Figure:
    """A tile for each patch: similarity of its position embedding with those of all (paper, Figure
    7, centre); of large grids every second or third patch. Below, the class token's."""
    has_class = any("class" in arrays for _, arrays in data)
    steps = [-(-len(arrays["patches"]) // MOST_TILES) for _, arrays in data]
    chosen = [
        arrays["patches"][::step, ::step] for (_, arrays), step in zip(data, steps, strict=True)
    ]
    pixels = max(tiles.shape[1] * (tiles.shape[3] + 1) for tiles in chosen)
    side = min(LARGEST, max(WIDTH, 2.3 * pixels / DPI))  # a cell has at least two pixels
    figure, axes = _row(len(data), side, 1.25 * side if has_class else side)
    for axis, (label, arrays), tiles, step in zip(axes[0], data, chosen, steps, strict=True):
        page = tiled(tiles, np.nan)
        if "class" in arrays:
            scale = max(1, round(len(tiles) / 4))
            tile = arrays["class"].repeat(scale, 0).repeat(scale, 1)
            below = np.full((len(tile) + len(page) // 4, page.shape[1]), np.nan)
            below[-len(tile) :, : tile.shape[1]] = tile
            middle = len(page) + len(below) - len(tile) / 2
            axis.text(1.2 * tile.shape[1], middle, "class token", va="center", fontsize=8)
            page = np.concatenate([page, below])
        axis.imshow(page, vmin=-1, vmax=1, cmap=HEAT, interpolation="nearest")
        _number(axis, tiles.shape, step)
        _title(axis, label, side, "patches by row and column")
    _scale(figure, axes, HEAT, -1, 1, "cosine similarity")
    return figure


def _number(axis: Axes, shape: tuple[int, ...], step: int) -> None:
    """Number the tiles by their patches, from 1, at most MOST_NUMBERS of them at even distances;
    `shape` is that of the tiles, of which each is the `step`-th patch after the one before."""
    rows, columns, height, width = shape
    for count, size, place in (
        (columns, width + 1, axis.set_xticks),
        (rows, height + 1, axis.set_yticks),
    ):
        chosen = np.arange(0, count, -(-count // MOST_NUMBERS))
        labels = [str(number * step + 1) for number in chosen]
        place((chosen + 0.5) * size - 1, labels, fontsize=7)
    axis.spines[:].set_visible(False)
    axis.xaxis.tick_top()
    axis.tick_params(length=0, pad=1)


def _scale(
    figure: Figure, axes: np.ndarray, colours: str, low: float, high: float, label: str
) -> None:
    mappable = ScalarMappable(Normalize(low, high), colours)
    bar = figure.colorbar(mappable, ax=axes, shrink=0.6, aspect=30)
    bar.set_label(label, fontsize=8)
    bar.ax.tick_params(labelsize=7)


def attention_distance(data: Labelled) -> Figure:
    """Each head a dot, by depth; the line is what equal attention to all patches would give (paper,
    Figures 7, right, and 11)."""
    figure, axes = _row(len(data), WIDTH, 3.2, sharey=True)
    for axis, (label, arrays) in zip(axes[0], data, strict=True):
        distance_LH = arrays["distance"]
        blocks, heads = distance_LH.shape
        colours = matplotlib.colormaps[HEAT](np.linspace(*SEEN, heads))
        for head in range(heads):
            axis.plot(
                np.arange(1, blocks + 1), distance_LH[:, head], ".", color=colours[head], ms=7
            )
        axis.axhline(arrays["uniform"].item(), color="0.4", linestyle="--", linewidth=1)
        axis.set_xlabel("block", fontsize=8)
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.tick_params(labelsize=7)
        axis.grid(alpha=0.25)
        _title(axis, label, WIDTH, f"{heads} heads, {arrays['images'].item():,} images")
    tallest = max(np.nanmax([*arrays["distance"].flat, arrays["uniform"]]) for _, arrays in data)
    axes[0, 0].set_ylim(0, 1.08 * tallest)
    axes[0, 0].set_ylabel("mean attention distance (pixels)", fontsize=8)
    _legend(
        figure, [Line2D([], [], color="0.4", linestyle="--")], ["equal attention to all patches"]
    )
    return figure


def _legend(figure: Figure, handles: Sequence[Line2D], labels: Sequence[str]) -> None:
    """In as many columns as fit the figure's width."""
    columns = int(figure.get_figwidth() / LEGEND_COLUMN)
    figure.legend(
        handles,
        [figure_label(text) for text in labels],
        loc="outside lower center",
        ncols=max(1, min(6, columns)),
        fontsize=8,
        frameon=False,
    )


def attention_rollout(data: Labelled) -> Figure:
    """Images, and the same multiplied by their rollout over its largest value (paper, Figures 6 and
    14)."""
    groups = []
    for label, arrays in data:
        rows = []
        for image, share in zip(arrays["images"], arrays["rollout"], strict=True):
            height, width = image.shape[:2]
            smooth = Image.fromarray((share / share.max().clip(1e-12)).astype(np.float32))
            mask = np.asarray(smooth.resize((width, height), Image.Resampling.BILINEAR))
            rows.append([image, (image * mask[..., None]).round().astype(np.uint8)])
        feature = {"token": "class token", "avg": "mean of the patches"}[arrays["pool"].item()]
        groups.append(PanelGroup(label, ("input", "rollout"), rows, f"in the {feature}"))
    return panels(groups, "input x rollout / its largest value")


def class_attention(data: Labelled) -> Figure:
    """Images, and the class token's attention to their patches by head of the last block, each from
    0 to its largest value."""
    groups = []
    for label, arrays in data:
        heads = arrays["attention"].shape[1]
        rows = [
            [image, *(heat(one, 0, one.max()) for one in maps)]
            for image, maps in zip(arrays["images"], arrays["attention"], strict=True)
        ]
        titles = ["input", *(f"head {number}" for number in range(1, heads + 1))]
        # of an encoder whose feature is the mean of the patches
        note = "" if arrays["pool"] == "token" else "(no loss on the class token's output)"
        groups.append(PanelGroup(label, titles, rows, note))
    return panels(groups, "each map from 0 (dark) to its largest value (bright)")


def feature_map(data: Labelled) -> Figure:
    """Images, and their patches' features as colours."""
    groups = []
    for label, arrays in data:
        pairs = zip(arrays["images"], arrays["colors"], strict=True)
        share = arrays["variance"].sum()
        note = f"{share:.0%} of the variance"
        groups.append(
            PanelGroup(label, ("input", "features"), [list(pair) for pair in pairs], note)
        )
    return panels(groups, "first three principal components as red, green, blue")


def reconstruction(data: Labelled) -> Figure:
    """Images, their corruption, prediction and ground truth, the error and the certainty; of one
    encoder, as fresh weights have no heads."""
    ((label, arrays),) = data
    titles = ["original", "corrupted", "predicted", "true", "error"]
    scales = [(ERROR_HEAT, LARGEST_ERROR, "error (share of the range)")]
    if "certainty" in arrays:
        titles.append("certainty")
        scales.append((HEAT, 1.0, "certainty (probability)"))
    rows = []
    for image, (original, saw, predicted, true) in enumerate(arrays["panels"]):
        marked = framed(saw, arrays["random"][image], arrays["kept"][image])
        row = [original, marked, predicted, true]
        row.append(heat(arrays["error"][image], 0, LARGEST_ERROR, ERROR_HEAT))
        if "certainty" in arrays:
            row.append(heat(arrays["certainty"][image], 0, 1))
        rows.append(row)
    figure = panels([PanelGroup(label, titles, rows)], how_drawn(arrays), bottom=0.95)
    height = figure.get_size_inches()[1]
    for place, (colours, largest, text) in enumerate(scales, 1):
        left = place / (len(scales) + 1) - 0.15
        axis = figure.add_axes((left, 0.7 / height, 0.3, 0.08 / height))
        bar = figure.colorbar(
            ScalarMappable(Normalize(0, largest), colours), cax=axis, orientation="horizontal"
        )
        bar.ax.tick_params(labelsize=7, length=2, pad=1)
        axis.set_title(text, fontsize=8, pad=2)
    _legend_of_kinds(figure, arrays)
    return figure


def how_drawn(arrays: Arrays) -> str:
    """How predicted and true patches are drawn; empty where they are in the patches' own
    colours."""
    text = str(arrays.get("drawn", ""))
    return f"predicted and true: {text}" if text else ""


def _legend_of_kinds(figure: Figure, arrays: Arrays) -> None:
    """A legend of the kinds of corrupted patches that there are."""

    def square(colour: str, **style: Any) -> Line2D:
        return Line2D([], [], marker="s", linestyle="", color=colour, **style)

    kinds = {
        "masked": ("masked", square("0.5")),
        "random": (
            "replaced by a random patch",
            square(_hex(RANDOM_FRAME), fillstyle="none"),
        ),
        "kept": ("kept", square(_hex(KEPT_FRAME), fillstyle="none")),
    }
    there = [kinds[name] for name in kinds if arrays[name].any()]
    names, handles = [name for name, _ in there], [handle for _, handle in there]
    columns = max(1, len(names))
    figure.legend(handles, names, loc="lower center", ncols=columns, fontsize=8, frameon=False)


def predicted(data: Labelled) -> Figure:
    """The columns that an objective makes of images; of one encoder, as fresh weights have none."""
    ((label, arrays),) = data
    return panels([PanelGroup(label, list(arrays), rows_of(arrays))])


def _hex(colour: tuple[int, int, int]) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)


def image_map(data: Labelled) -> Figure:
    """Images as points, by t-SNE and along two principal components, coloured by class where they
    have one."""
    figure = Figure(figsize=(WIDTH * len(data), 6.6), layout="constrained")
    axes = figure.subplots(2, len(data), squeeze=False)
    classes: dict[int, str] = {}
    for _, arrays in data:
        names = arrays["classes"]
        for number in np.unique(arrays["label"]):
            if number >= 0:
                classes[number] = str(names[number]) if number < len(names) else str(number)
    colours = _colours(list(classes))
    for column, (label, arrays) in zip(axes.T, data, strict=True):
        ink = [colours.get(number, "0.5") for number in arrays["label"]]
        share = arrays["variance"].sum()
        notes = {
            "tsne": f"t-SNE of {len(ink):,} images",
            "components": f"two principal components, {share:.0%} of the variance",
        }
        for axis, (name, note) in zip(column, notes.items(), strict=True):
            axis.scatter(*arrays[name].T, s=max(4, 14 - len(ink) // 100), c=ink, linewidths=0)
            axis.set_xticks([])
            axis.set_yticks([])
            _title(axis, label if name == "tsne" else "", WIDTH, note)
    if 0 < len(classes) <= MOST_CLASSES:
        handles = [
            Line2D([], [], marker="o", linestyle="", color=colours[number], markersize=4)
            for number in classes
        ]
        _legend(figure, handles, list(classes.values()))
    return figure


def _colours(numbers: Sequence[int]) -> dict[int, str]:
    """{class: colour}; more classes than POINTS share them out along a colour map."""
    if len(numbers) <= len(POINTS):
        return dict(zip(sorted(numbers), POINTS, strict=False))
    kind = "tab10" if len(numbers) <= 10 else "turbo"
    places = np.arange(len(numbers)) if kind == "tab10" else np.linspace(0.1, 0.95, len(numbers))
    found = matplotlib.colormaps[kind](places)
    return dict(zip(sorted(numbers), map(to_hex, found), strict=True))
