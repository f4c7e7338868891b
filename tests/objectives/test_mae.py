"""Masked autoencoder: its loss against a plain implementation, what is masked, and its picture."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers.built import Objective, built
from helpers.exactness import assert_is_plain, shaken
from helpers.options import SHORT, TINY, altered
from helpers.runs import run
from helpers.view_batches import image_batch
from ssl_vit import rng
from ssl_vit.data.batching import Batch
from ssl_vit.jobs import draw_figures
from ssl_vit.objectives import corruption

GRID = 4
N = GRID**2


def mae(rate: float = 0.75) -> Objective:
    words = f"mae.rate={rate}", "mae.width=24", "mae.depth=2", "mae.heads=2"
    return shaken(built("recipe=mae", *words))


def sines(width: int) -> Tensor:
    """Of the row and column of each patch at `width / 4` wavelengths, then their cosines."""
    band = 1 / 10000 ** (np.arange(width // 4) / (width // 4))
    row, column = np.divmod(np.arange(N), GRID)
    angles = np.concatenate([np.outer(row, band), np.outer(column, band)], 1)
    return torch.from_numpy(np.concatenate([np.sin(angles), np.cos(angles)], 1))


def plain_loss(objective: Objective, given: Batch) -> Tensor:
    """As the authors' models_mae.py puts it, image by image: shuffle, keep the first, restore; the
    decoder's prediction of every patch; the error averaged where the mask is 1. Of a copy in
    float64, with timm's blocks."""
    vit, decoder = objective.encoder.backbone, objective.decoder
    order_BN = corruption.corruption_order(
        rng.stream(given.key, corruption.STREAM)[:, None], N, "patches", 1
    ).argsort(1)
    errors, masks = [], []
    for image, order in zip(given.image.double(), order_BN, strict=True):
        pixels = (image / 255 - 0.5) / 0.5
        patch = vit.patch_embed.proj(pixels[None]).flatten(2)[0].T + vit.pos_embed[0, 1:]
        shuffled = order.flip(0)  # the last of the order are kept
        kept = N - round(objective.rate * N)
        token = vit.cls_token[0] + vit.pos_embed[0, :1]
        latent = vit.norm(vit.blocks(torch.cat([token, patch[shuffled[:kept]]])[None]))[0]
        x = decoder.embed(latent)
        masked = decoder.mask_token.reshape(1, -1).expand(N - kept, -1)
        restored = torch.cat([x[1:], masked])[shuffled.argsort()] + sines(24)
        x = decoder.blocks(torch.cat([x[:1], restored])[None])
        predicted = objective.head(decoder.norm(x))[0, 1:]
        cut = pixels.reshape(3, GRID, 4, GRID, 4).permute(1, 3, 2, 4, 0).reshape(N, 48)
        spread = (cut.var(1, keepdim=True) + 1e-6).sqrt()
        wanted = (cut - cut.mean(1, keepdim=True)) / spread
        errors.append((predicted - wanted).square().mean(1))
        masks.append(shuffled.argsort() >= kept)
    return (torch.stack(errors) * torch.stack(masks)).sum() / torch.stack(masks).sum()


@pytest.mark.parametrize("rate", [0.25, 0.75])
def test_loss_and_gradients_are_those_of_a_plain_implementation(rate: float) -> None:
    objective, given = mae(rate), image_batch(3)
    metrics = assert_is_plain(objective, given, lambda plain: plain_loss(plain, given))
    total, count = metrics["loss"]
    assert count == 3 * rate * N and total / count > 0.5


def test_the_masked_patches_are_those_that_mpp_corrupts() -> None:
    objective, given = mae(), image_batch(3)
    other = built("corruption.rate=0.75")
    drawn = objective.sample_corruption(given)
    assert torch.equal(drawn.corrupted_BK, other.sample_corruption(given).corrupted_BK)
    assert (drawn.kind_BK == corruption.MASK).all()
    visible_BV = corruption.visible_patches(drawn, N)
    for masked, visible in zip(drawn.corrupted_BK.tolist(), visible_BV.tolist(), strict=True):
        assert len(masked) == 12 and len(visible) == 4
        assert sorted({*masked, *visible}) == list(range(N)) and visible == sorted(visible)


def test_its_picture_has_the_error_of_masked_patches_alone(tmp_path: Path) -> None:
    trained = run(altered(TINY, *SHORT, "recipe=mae", f"out={tmp_path}", "name=run"))
    draw_figures.main([f"init={trained.folder}", "figures=reconstruction", "images=2", "shown=2"])
    with np.load(trained.folder / "figures" / "reconstruction.npz") as file:
        error = file["error_0"]
    assert np.isnan(error).mean() == 0.25 and np.nanmin(error) >= 0
