"""Figure of masked patch prediction: original images, corrupted input, predicted and true
patches."""

from pathlib import Path

import torch
from einops import rearrange, repeat
from torch import Tensor
from torch.nn.functional import pad

from ..data.batching import Batch
from ..objectives import MaskedPatchPrediction, corruption

GREY = 128
GAP = 16  # of a panel's width: the white space between panels
TITLES = ("original", "corrupted", "predicted", "true")


def panels(objective: MaskedPatchPrediction, batch: Batch) -> Tensor:
    """The four columns of each image: uint8 (B, 4, 3, H, W).

    Corrupted: masked patches grey, random ones showing their source patch. Predicted: predictions
    for corrupted patches, the input elsewhere. True: the ground truth of every patch.
    """
    target = objective.target
    patch = objective.encoder.patch_size
    grid = objective.encoder.grid
    drawn, predicted_BK = objective.predict(batch)
    pixels_BNX = rearrange(batch.image, "b c (h p) (w q) -> b (h w) (p q c)", p=patch, q=patch)
    saw_BNX = corruption.apply(pixels_BNX, drawn, torch.full_like(pixels_BNX[0, 0], GREY))
    predicted_BKX = _filled(target.render(predicted_BK), patch)
    predicted_BNX = saw_BNX.scatter(
        1, drawn.corrupted_BK[..., None].expand_as(predicted_BKX), predicted_BKX
    )
    true_BNX = _filled(target.render(target.ground_truth(batch.image)), patch)
    four = torch.stack([pixels_BNX, saw_BNX, predicted_BNX, true_BNX], 1)
    return rearrange(four, "b v (h w) (p q c) -> b v c (h p) (w q)", h=grid[0], p=patch, q=patch)


def _filled(small_BNcc3: Tensor, patch: int) -> Tensor:
    """Small images of patches brought to the patch's side: uint8 (B, N, P P 3)."""
    side = patch // small_BNcc3.shape[2]
    return repeat(small_BNcc3, "b n p q c -> b n (p s q t c)", s=side, t=side)


def page(panels_BVCHW: Tensor) -> Tensor:
    """The panels of all images side by side, two images to a row, white between them: uint8
    (H, W, 3)."""
    halves = min(2, len(panels_BVCHW))
    gap = max(1, panels_BVCHW.shape[-1] // GAP)
    spaced = pad(panels_BVCHW, (0, gap, 0, gap), value=255)
    missing = -len(spaced) % halves
    spaced = torch.cat([spaced, torch.full_like(spaced[:missing], 255)])
    whole = rearrange(spaced, "(r n) v c h w -> (r h) (n v w) c", n=halves)
    return whole[:-gap, :-gap]


def save_figure(objective: MaskedPatchPrediction, batch: Batch, path: Path) -> None:
    """Write the columns of up to eight images, two images to a row of the page, as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels_BVCHW = panels(objective, batch.map(lambda x: x[:8])).cpu()
    columns = len(TITLES) * min(2, len(panels_BVCHW))
    image = page(panels_BVCHW).numpy()
    height, width, _ = image.shape
    # one axis: one for each panel takes ten times as long
    figure = Figure(
        figsize=(1.5 * columns + 0.3, 1.5 * columns * height / width + 0.4), layout="constrained"
    )
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    axis.axis("off")
    axis.imshow(image, interpolation="nearest")
    for column in range(columns):
        centre = (column + 0.5) * width / columns
        title = TITLES[column % len(TITLES)]
        axis.annotate(
            title,
            (centre, 0),
            (0, 4),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=9,
        )
    figure.savefig(path, dpi=110)
