"""Compute and draw the figures of an encoder.

To add a figure, write a function that computes and a function that draws, and add a line to
FIGURES.

Legend: B images, L blocks, H heads, N patches, D width.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import torch
from einops import rearrange
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from PIL import Image
from torch import Tensor

from ..data.pixel_values import shown_image
from ..evaluation.features import ENCODER, check_finite, is_finite
from ..objectives.base import Objective
from ..objectives.patches import PatchPrediction
from ..objectives.reconstruction import TITLES, reconstruct
from ..pages.figure_style import INK
from . import attention, embeddings, projections
from .base import Arrays, FigureInput, UnavailableError, predictions
from .drawing import HEAT, WIDTH, PanelGroup, join_tiles, make_title, map_colours, panels

ByEncoder = Sequence[tuple[str, Arrays]]  # (label, data) of untrained weights and of the encoder
DISTANCE_IMAGES = 128  # most images over which attention distances are averaged (paper, D.7)
MOST_TILES = 16  # patches on a side of the grid of tiles
ERROR_HEAT = "magma"
LARGEST_ERROR = 0.5  # error shown by the last colour, as a share of a channel's range
VISIBLE_RANGE = (0.35, 0.9)  # part of a colour map that is visible on light and on dark ground
FILTER_COLUMNS = 7  # columns of the figure of filters, as in the paper
# Note on the figure of an objective that exports its teacher
TEACHER_ALONE = (
    "the predictions are made with the exported teacher's weights, not with the trained student's"
)


class FigureKind(NamedTuple):
    """Kind of figure, such as attention rollout.

    Attributes:
        compute: Computes the data of the figure for one encoder, or raises UnavailableError. An
            entry "drawn" is a note for the caption, if the note depends on the encoder.
        draw: Draws the data of untrained weights next to the data of the encoder.
    """

    compute: Callable[[FigureInput], Arrays]
    draw: Callable[[ByEncoder], Figure]


def suitable_figures(objective: Objective | None) -> list[str]:
    """Return the names of the figures that suit an objective.

    The figure "reconstruction" shows predictions of patches. The figure "predicted" shows all other
    predictions. All figures but the unsuitable one of these two are returned.
    """
    unsuitable = "predicted" if isinstance(objective, PatchPrediction) else "reconstruction"
    return [name for name in FIGURES if name != unsuitable]


def _figure_columns(
    data: ByEncoder, notes: Sequence[str], height: float, **options: Any
) -> tuple[Figure, list[tuple[Any, Arrays]]]:
    """Create a figure with an axis for each encoder, from left to right.

    Args:
        data: Label and data of each encoder.
        notes: Second line of each title.
        height: Height of the figure in inches.
        **options: Arguments of Figure.subplots.

    Returns:
        The figure, and each axis with the data of its encoder.
    """
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.subplots(ncols=len(data), squeeze=False, **options)[0]
    columns = []
    for axis, (label, arrays), note in zip(axes, data, notes, strict=True):
        axis.set_title(make_title(label, note, WIDTH / len(data)))
        columns.append((axis, arrays))
    return figure, columns


def _images(subject: FigureInput) -> np.ndarray:
    """Return the images to show in a figure, uint8 (B, H, W, 3)."""
    image_B3HW = shown_image(subject.shown.image, subject.encoder.pixel_range)
    return rearrange(image_B3HW, "b c h w -> b h w c").cpu().numpy()


def _first_images(subject: FigureInput, images: int) -> Iterator[Tensor]:
    """Yield the first `images` images for statistics, in batches (B, 3, H, W)."""
    remaining = images
    for batch in subject.batches:
        if remaining > 0:
            yield batch.image[:remaining]
        remaining -= len(batch.image)


# ---- the embedding of patches -------------------------------------------------------------------


def _filters(subject: FigureInput) -> Arrays:
    """Compute the principal components of the filters that embed patches."""
    component_KPP3, variance_K = embeddings.filter_components(subject.encoder)
    return {"components": component_KPP3.cpu().numpy(), "variance": variance_K.cpu().numpy()}


def _draw_filters(data: ByEncoder) -> Figure:
    """Draw principal components of filters as tiles of a grid.

    The figure follows Dosovitskiy et al., 2021 (Figure 7, left). Zero is grey, and each
    component is scaled by its largest entry.

    Args:
        data: (label, result of `_filters`) for each encoder.
    """
    notes = [
        f"{len(arrays['components'])} components, {arrays['variance'].sum():.0%} of the variance"
        for _, arrays in data
    ]
    figure, axes = _figure_columns(data, notes, 3.2)
    for axis, arrays in axes:
        component_KPP3 = arrays["components"]
        # at least 1e-12, so that a component of zeros does not divide by 0
        largest_K = np.abs(component_KPP3).max((1, 2, 3), keepdims=True).clip(1e-12)
        image_KPP3 = 0.5 + component_KPP3 / largest_K / 2
        opaque_KPP4 = np.concatenate([image_KPP3, np.ones_like(image_KPP3[..., :1])], -1)
        # Fill the last row of the grid with transparent tiles. For example, 5 tiles need 2 more to
        # fill a row of 7
        num_missing = -len(opaque_KPP4) % FILTER_COLUMNS
        transparent = np.zeros((num_missing, *opaque_KPP4.shape[1:]))
        tiles = np.concatenate([opaque_KPP4, transparent])
        grid = tiles.reshape(-1, FILTER_COLUMNS, *tiles.shape[1:])
        axis.imshow(join_tiles(grid, 0), interpolation="none")
        axis.set_axis_off()
    return figure


def _positions(subject: FigureInput) -> Arrays:
    """Compute the similarities of position embeddings.

    Args:
        subject: Encoder.

    Returns:
        "patches" (rows, columns, rows, columns). Entry [r, c, i, j] compares the patch in row r and
        column c with the patch in row i and column j.
    """
    similarity_NN = embeddings.position_similarity(subject.encoder)
    return {"patches": similarity_NN.cpu().numpy().reshape(2 * subject.encoder.grid)}


def _draw_positions(data: ByEncoder) -> Figure:
    """Draw a tile for each patch, with the similarities of the position embeddings of all patches.

    The tile of a patch shows how similar the embedding of each patch is to the embedding of this
    patch. The figure follows Dosovitskiy et al., 2021 (Figure 7, centre). For large grids, only
    every second or third patch has a tile.

    Args:
        data: (label, result of `_positions`) for each encoder.
    """
    notes = ["a tile for each patch"] * len(data)
    figure, axes = _figure_columns(data, notes, WIDTH / 2)
    for axis, arrays in axes:
        similarity = arrays["patches"]
        step = math.ceil(len(similarity) / MOST_TILES)
        # The first two dimensions choose the patch of a tile. A tile compares this patch with the
        # patches along the last two dimensions
        page = join_tiles(similarity[::step, ::step], np.nan)
        colours = axis.imshow(page, vmin=-1, vmax=1, cmap=HEAT, interpolation="none")
        axis.set_axis_off()
    figure.colorbar(colours, ax=figure.axes, shrink=0.6, aspect=30, label="cosine similarity")
    return figure


# ---- attention ----------------------------------------------------------------------------------


def _attention_distance(subject: FigureInput) -> Arrays:
    """Compute the mean distance in pixels over which each head reads, averaged over images.

    Args:
        subject: Encoder and images.

    Returns:
        "distance": distance in pixels (L, H). "uniform": distance in pixels for equal attention to
        all patches. "images": number of images.
    """
    encoder = subject.encoder
    distance_NN = attention.patch_distances(encoder.grid, encoder.patch_size)
    distance_NN = distance_NN.to(subject.shown.image.device)
    batch_distances = []
    for image_B3HW in _first_images(subject, DISTANCE_IMAGES):
        maps = attention.attention_maps(encoder, image_B3HW)
        block_distances = [attention.attention_distance(map_BHTT, distance_NN) for map_BHTT in maps]
        batch_distances.append(torch.stack(block_distances, 1))
    distance_BLH = torch.cat(batch_distances)
    return {
        "distance": distance_BLH.nanmean(0).cpu().numpy(),
        "uniform": distance_NN.mean().cpu().numpy(),
        "images": np.array(len(distance_BLH)),
    }


def _draw_attention_distance(data: ByEncoder) -> Figure:
    """Draw each head's attention distance as a dot, by block.

    The figure follows Dosovitskiy et al., 2021 (Figure 7, right panel, and Figure 11). A dashed
    line shows the distance for equal attention to all patches. Colours tell the heads apart.

    Args:
        data: (label, result of `_attention_distance`) for each encoder.
    """
    notes = [
        f"{arrays['distance'].shape[1]} heads, {arrays['images'].item():,} images"
        for _, arrays in data
    ]
    figure, axes = _figure_columns(data, notes, 3.4, sharey=True)
    for axis, arrays in axes:
        distance_LH = arrays["distance"]
        blocks, heads = distance_LH.shape
        # one colour for each head, without colours that a light or dark page would hide
        axis.set_prop_cycle(color=matplotlib.colormaps[HEAT](np.linspace(*VISIBLE_RANGE, heads)))
        axis.plot(np.arange(1, blocks + 1), distance_LH, ".", markersize=7)
        axis.axhline(arrays["uniform"].item(), color=INK, linestyle="--", linewidth=1)
        axis.set_xlabel("block")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid()
    largest = max(np.nanmax([*arrays["distance"].flat, arrays["uniform"]]) for _, arrays in data)
    first_axis = figure.axes[0]
    first_axis.set_ylim(0, 1.08 * largest)
    first_axis.set_ylabel("mean attention distance (pixels)")
    line = Line2D([], [], color=INK, linestyle="--", label="equal attention to all patches")
    figure.legend(handles=[line], loc="outside lower center")
    return figure


def _attention_rollout(subject: FigureInput) -> Arrays:
    """Compute the share of each patch in the feature of each shown image.

    Args:
        subject: Encoder and images.

    Returns:
        "images" uint8 (B, H, W, 3), "rollout" (B, rows, columns of patches), and "pool" ("token" or
        "avg").
    """
    encoder = subject.encoder
    rolled_BTT = attention.rollout(attention.attention_maps(encoder, subject.shown.image))
    pool = subject.pool if encoder.has_class_token else "avg"
    share_BN = attention.feature_rollout(rolled_BTT, encoder.prefix, pool)
    return {
        "images": _images(subject),
        "rollout": share_BN.unflatten(1, encoder.grid).cpu().numpy(),
        "pool": np.array(pool),
    }


def _draw_attention_rollout(data: ByEncoder) -> Figure:
    """Draw each image next to a copy that is dark where the attention rollout is small.

    The figure follows Dosovitskiy et al., 2021 (Figures 6 and 14). In each image, the rollout is
    divided by its largest value and interpolated to pixels. The pixels of the copy are multiplied
    by this factor.

    Args:
        data: (label, result of `_attention_rollout`) for each encoder.
    """
    groups = []
    for label, arrays in data:
        dimmed_images = []
        for image_HW3, rollout in zip(arrays["images"], arrays["rollout"], strict=True):
            relative_rollout = (rollout / rollout.max().clip(1e-12)).astype(np.float32)
            height, width, _ = image_HW3.shape
            brightness = Image.fromarray(relative_rollout)
            mask_HW = np.asarray(brightness.resize((width, height), Image.Resampling.BILINEAR))
            dimmed_images.append((image_HW3 * mask_HW[..., None]).round().astype(np.uint8))
        feature = {"token": "class token", "avg": "mean of the patches"}[arrays["pool"].item()]
        columns = {"input": arrays["images"], "rollout": np.stack(dimmed_images)}
        groups.append(PanelGroup(label, columns, f"in the {feature}"))
    return panels(groups, "input x rollout / largest rollout")


def _class_attention(subject: FigureInput) -> Arrays:
    """Compute the class token's attention to patches in the last block, for each head.

    Args:
        subject: Encoder and images.

    Returns:
        "images" uint8 (B, height, width, 3), "attention" (B, heads, rows of patches, columns of
        patches), and "pool" ("token" or "avg").

    Raises:
        UnavailableError: The encoder has no class token.
    """
    encoder = subject.encoder
    if not encoder.has_class_token:
        raise UnavailableError("the encoder has no class token")
    *_, last_BHTT = attention.attention_maps(encoder, subject.shown.image)
    class_BHN = last_BHTT[:, :, 0, encoder.prefix :]
    return {
        "images": _images(subject),
        "attention": class_BHN.unflatten(2, encoder.grid).cpu().numpy(),
        "pool": np.array(subject.pool),
    }


def _draw_class_attention(data: ByEncoder) -> Figure:
    """Draw images and the class token's attention to patches, for each head of the last block.

    Each map is scaled from 0 to its largest value. If the encoder's feature is the mean of the
    patches, no loss trained the class token's output. The class token's attention may then be
    meaningless, and a note below the label says so.

    Args:
        data: (label, result of `_class_attention`) for each encoder.
    """
    groups = []
    for label, arrays in data:
        columns = {"input": arrays["images"]}
        for head, map_BHW in enumerate(arrays["attention"].swapaxes(0, 1), 1):
            colours_HW4 = [map_colours(map_HW, map_HW.max()) for map_HW in map_BHW]
            columns[f"head {head}"] = np.stack(colours_HW4)
        note = "" if arrays["pool"] == "token" else "(no loss trained the class token's output)"
        groups.append(PanelGroup(label, columns, note))
    return panels(groups, "each map is scaled from 0 (dark) to the largest value (bright)")


# ---- features -----------------------------------------------------------------------------------


@torch.no_grad()
def _feature_map(subject: FigureInput) -> Arrays:
    """Compute a colour for each patch of the shown images from the patch's feature.

    The colours are the first three principal components of the features. The components are fitted
    to up to projections.FITTED patches. If possible, these patches come from more images than are
    shown, so that the components do not depend on a few images.

    Args:
        subject: Encoder and images.

    Returns:
        "images": uint8 (B, H, W, 3). "colors": uint8 (B, rows, columns of patches, 3). "variance":
        share of the variance that each of red, green and blue shows, (3,).
    """
    encoder = subject.encoder

    def patches(image_B3HW: Tensor) -> Tensor:
        return encoder(encoder.patch(image_B3HW))[:, encoder.prefix :]

    fitted_images = max(len(subject.shown.image), projections.FITTED // encoder.patches)
    sample_BND = torch.cat([patches(image) for image in _first_images(subject, fitted_images)])
    check_finite(ENCODER, is_finite(sample_BND))  # raises an error if a feature is not finite
    color_BP3, variance_3 = projections.patch_colors(
        sample_BND.flatten(0, 1), patches(subject.shown.image)
    )
    return {
        "images": _images(subject),
        "colors": color_BP3.unflatten(1, encoder.grid).cpu().numpy(),
        "variance": variance_3.cpu().numpy(),
    }


def _draw_feature_map(data: ByEncoder) -> Figure:
    """Draw images, and the features of patches as colours.

    Args:
        data: (label, result of `_feature_map`) for each encoder.
    """
    groups = [
        PanelGroup(
            label,
            {"input": arrays["images"], "features": arrays["colors"]},
            f"{arrays['variance'].sum():.0%} of the variance",
        )
        for label, arrays in data
    ]
    return panels(groups, "first three principal components as red, green, blue")


# ---- what the objective predicts ----------------------------------------------------------------


def _predicted(subject: FigureInput) -> Arrays:
    """Compute pictures of what an objective predicts, such as I-JEPA's features.

    For objectives that predict patches, `_reconstruction` is used instead.

    Args:
        subject: Objective and images.

    Returns:
        {title: images uint8 (B, H, W, 3)}. The further key "drawn" has a note for the figure's
        caption. The note is empty, or TEACHER_ALONE.

    Raises:
        UnavailableError: There is no objective, or the objective predicts patches.
    """
    if subject.objective is None:
        raise UnavailableError(subject.why_no_objective or "the objective has no figure")
    if isinstance(subject.objective, PatchPrediction):
        raise UnavailableError(
            "this objective predicts patches. Use figures=reconstruction for its predictions"
        )
    # An export of the teacher lacks the student's weights, so the student predicts with the
    # teacher's weights. The note says so
    is_teacher = subject.objective.exported is not subject.objective.encoder
    note = TEACHER_ALONE if is_teacher else ""
    return {**predictions(subject.objective, subject.shown), "drawn": np.array(note)}


def _draw_predicted(data: ByEncoder) -> Figure:
    """Draw the pictures of predictions of one encoder.

    Untrained weights have no pictures, so `data` has a single entry.
    """
    ((label, arrays),) = data
    columns = {title: images for title, images in arrays.items() if title != "drawn"}
    return panels([PanelGroup(label, columns)], str(arrays["drawn"]))


def _reconstruction(subject: FigureInput) -> Arrays:
    """Compute reconstructions of the shown images, with error and certainty of each pixel.

    Args:
        subject: Objective and images.

    Returns:
        "panels": original, corrupted, predicted and true image, uint8 (B, 4, H, W, 3). "error":
        error of each pixel (B, H, W). "certainty": probability of the prediction, (B, H, W), only
        for some objectives. "drawn": note for the figure's caption, may be empty.

    Raises:
        UnavailableError: There is no objective, or the objective does not predict patches.
    """
    if subject.objective is None:
        raise UnavailableError(
            subject.why_no_objective or "the encoder has no heads that predict patches"
        )
    if not isinstance(subject.objective, PatchPrediction):
        raise UnavailableError(
            "this objective predicts no patches. Use figures=predicted for its predictions"
        )
    reconstruction = reconstruct(subject.objective, subject.shown)
    arrays = {
        "panels": rearrange(reconstruction.panels_B43HW, "b v c h w -> b v h w c").cpu().numpy(),
        "error": reconstruction.error_BHW.cpu().numpy(),
    }
    notes = []
    if reconstruction.certainty_BHW is not None:
        arrays["certainty"] = reconstruction.certainty_BHW.cpu().numpy()
        notes.append("certainty: probability of the prediction, from 0 (dark) to 1 (bright)")
    # The note says how pictures of this target are drawn. It is empty if this is obvious
    target_note = subject.objective.target.drawn
    if target_note:
        notes.append(f"predicted and true: {target_note}")
    return arrays | {"drawn": np.array("; ".join(notes))}


def _draw_reconstruction(data: ByEncoder) -> Figure:
    """Draw images, corruption, prediction, ground truth, error and certainty.

    Untrained weights cannot be drawn for comparison. They have no heads, which are the layers of
    the objective that predict patches.

    Args:
        data: One entry, (label, result of `_reconstruction`).
    """
    ((label, arrays),) = data
    columns = dict(zip(TITLES, arrays["panels"].swapaxes(0, 1), strict=True))
    columns["error"] = [
        map_colours(error_HW, LARGEST_ERROR, ERROR_HEAT) for error_HW in arrays["error"]
    ]
    if "certainty" in arrays:
        columns["certainty"] = [
            map_colours(certainty_HW, 1.0) for certainty_HW in arrays["certainty"]
        ]
    error_note = (
        f"error: absolute error of a pixel, from 0 (dark) to {LARGEST_ERROR} of the pixel range"
        " (bright)"
    )
    notes = filter(None, [error_note, str(arrays["drawn"])])
    return panels([PanelGroup(label, columns)], "; ".join(notes))


# File name without suffix -> figure
FIGURES = {
    "filters": FigureKind(_filters, _draw_filters),
    "positions": FigureKind(_positions, _draw_positions),
    "attention_distance": FigureKind(_attention_distance, _draw_attention_distance),
    "attention_rollout": FigureKind(_attention_rollout, _draw_attention_rollout),
    "class_attention": FigureKind(_class_attention, _draw_class_attention),
    "feature_map": FigureKind(_feature_map, _draw_feature_map),
    "reconstruction": FigureKind(_reconstruction, _draw_reconstruction),
    "predicted": FigureKind(_predicted, _draw_predicted),
}
