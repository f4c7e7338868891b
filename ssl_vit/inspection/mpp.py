"""Figure of masked patch prediction: original images, corrupted input, predicted and true
patches."""

from pathlib import Path

import torch
from einops import rearrange, repeat
from torch import Tensor

from ..data.batching import Batch
from ..objectives import MaskedPatchPrediction, corruption

GREY = 128
TITLES = ("original", "corrupted", "predicted", "true")


def panels(objective: MaskedPatchPrediction, batch: Batch) -> Tensor:
    """The four columns of each image: uint8 (B, 4, 3, H, W).

    Corrupted: masked patches grey, random ones showing their source patch. Predicted: predictions
    for corrupted patches, the input elsewhere. True: the ground truth of every patch.
    """
    target, patch, grid = objective.target, objective.encoder.patch_size, objective.encoder.grid
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


def save_figure(objective: MaskedPatchPrediction, batch: Batch, path: Path) -> None:
    """Write the columns of up to eight images, four to a row of the page, as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    few = batch.map(lambda x: x[:8])
    rows = rearrange(panels(objective, few).cpu(), "b v c h w -> b v h w c").numpy()
    halves = 2 if len(rows) > 1 else 1
    figure = Figure(
        figsize=(1.5 * 4 * halves + 0.3, 1.5 * -(-len(rows) // halves) + 0.4), layout="constrained"
    )
    FigureCanvasAgg(figure)
    axes = figure.subplots(-(-len(rows) // halves), 4 * halves, squeeze=False)
    for axis in axes.flat:
        axis.axis("off")
    for i, four in enumerate(rows):
        for v, image in enumerate(four):
            axis = axes[i // halves, 4 * (i % halves) + v]
            axis.imshow(image, interpolation="nearest")
            if i < halves:
                axis.set_title(TITLES[v], fontsize=9)
    figure.savefig(path, dpi=110)
