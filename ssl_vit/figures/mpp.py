"""Masked patch prediction as a picture: originals, what the encoder saw, the colours it told, the true ones."""

from pathlib import Path

import torch
from einops import rearrange, repeat
from torch import Tensor

from .. import corruption
from ..data.batches import Batch
from ..objectives import MaskedPatchPrediction

GREY = 128
TITLES = ("original", "corrupted", "predicted", "true")


def columns(objective: MaskedPatchPrediction, batch: Batch) -> Tensor:
    """The four columns of each picture: uint8 (B, 4, 3, H, W).

    Corrupted: masked patches grey, random ones with the patch they were given. Predicted: the hit patches as they were told,
    the others as the encoder saw them. True: what would be told of every patch.
    """
    target, patch, grid = objective.target, objective.encoder.patch_size, objective.encoder.grid
    drawn, told_BK = objective.predict(batch)
    pixels_BNX = rearrange(batch.image, "b c (h p) (w q) -> b (h w) (p q c)", p=patch, q=patch)
    saw_BNX = corruption.apply(pixels_BNX, drawn, torch.full_like(pixels_BNX[0, 0], GREY))
    told_BKX = _filled(target.paint(told_BK), patch)
    told_BNX = saw_BNX.scatter(1, drawn.hit_BK[..., None].expand_as(told_BKX), told_BKX)
    true_BNX = _filled(target.paint(target.truth(batch.image)), patch)
    four = torch.stack([pixels_BNX, saw_BNX, told_BNX, true_BNX], 1)
    return rearrange(four, "b v (h w) (p q c) -> b v c (h p) (w q)", h=grid[0], p=patch, q=patch)


def _filled(small_BNcc3: Tensor, patch: int) -> Tensor:
    """Small pictures of patches brought to the patch's side: uint8 (B, N, P P 3)."""
    side = patch // small_BNcc3.shape[2]
    return repeat(small_BNcc3, "b n p q c -> b n (p s q t c)", s=side, t=side)


def draw(objective: MaskedPatchPrediction, batch: Batch, path: Path) -> None:
    """Write the columns of up to eight pictures, four to a row of the page, as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    few = batch.map(lambda x: x[:8])
    rows = rearrange(columns(objective, few).cpu(), "b v c h w -> b v h w c").numpy()
    halves = 2 if len(rows) > 1 else 1
    figure = Figure(figsize=(1.5 * 4 * halves + 0.3, 1.5 * -(-len(rows) // halves) + 0.4), layout="constrained")
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
