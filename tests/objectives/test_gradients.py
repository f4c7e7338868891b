"""Histograms of oriented gradients: pixel by pixel, written from the paper and the authors' layer;
by hand; their loss, baselines and picture."""

import math

import numpy as np
import pytest
import torch

from helpers.built import built
from helpers.options import TINY, altered
from helpers.resolving import resolve
from ssl_vit.errors import UserError
from ssl_vit.objectives.targets.patch_targets import Target


def hog(patch: int, channels: int = 3) -> Target:
    words = (
        f"data.channels={channels}",
        f"data.mean={[0.5] * channels}",
        f"data.std={[0.5] * channels}",
    )
    return built("target=hog", f"model.patch={patch}", "data.size=32", *words).target


def slow_histogram(channel_HW: np.ndarray, top: int, left: int) -> np.ndarray:
    """Of a cell of 8 x 8 pixels of an image reflected at its edges."""
    padded = np.pad(channel_HW.astype(int), 1, mode="reflect")
    bins = np.zeros(9)
    for y in range(top, top + 8):
        for x in range(left, left + 8):
            near = padded[y : y + 3, x : x + 3]
            dx = sum(weight * (near[i, 0] - near[i, 2]) for i, weight in enumerate((1, 2, 1)))
            dy = sum(weight * (near[0, i] - near[2, i]) for i, weight in enumerate((1, 2, 1)))
            bins[math.floor(math.atan2(dx, dy) / math.pi * 9) % 9] += math.hypot(dx, dy)
    return bins / (np.linalg.norm(bins) or 1)


def slow_truth(image_CHW: np.ndarray, patch: int) -> np.ndarray:
    """Of each patch the histograms by channel, bin, row and column of cells."""
    channels, height, width = image_CHW.shape
    found = []
    for top in range(0, height, patch):
        for left in range(0, width, patch):
            cells = np.zeros((channels, 9, patch // 8, patch // 8))
            for c, _, i, j in np.ndindex(channels, 1, patch // 8, patch // 8):
                cells[c, :, i, j] = slow_histogram(image_CHW[c], top + 8 * i, left + 8 * j)
            found.append(cells.ravel())
    return np.array(found)


def images(channels: int = 3) -> np.ndarray:
    """Noise of few values, whose gradients often lie in an axis or are 0, and noise."""
    random = np.random.default_rng(0)
    flat = 127 * random.integers(0, 3, (1, channels, 32, 48)).repeat(3, 2)[:, :, :32]
    return np.concatenate([flat, random.integers(0, 256, (2, channels, 32, 48))]).astype(np.uint8)


@pytest.mark.parametrize(("patch", "channels"), [(8, 3), (16, 3), (16, 1), (8, 5)])
def test_truths_are_the_slow_ones(patch: int, channels: int) -> None:
    target, given = hog(patch, channels), images(channels)
    found = target.ground_truth(torch.from_numpy(given))
    assert found.dtype == torch.float32 and found.shape[-1] == target.num_outputs
    wanted = np.stack([slow_truth(one, patch) for one in given])
    np.testing.assert_allclose(found.numpy(), wanted, atol=1e-6)
    sixteen = torch.from_numpy(given).int() * 257
    assert torch.allclose(target.ground_truth(sixteen), found, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_edges_by_hand(dtype: torch.dtype) -> None:
    """Bin 4 of 9 has gradients along rows, bin 0 those along columns, be they up or down: rounding
    of pi put one of the two into bin 8. A cell of one grey has 0."""
    step = np.zeros((16, 32), np.uint8)
    step[:, 4:] = 200
    image = np.stack([step, 200 - step])[:, None]
    across, down = image, image[..., :16].transpose(0, 1, 3, 2)
    target = hog(8, 1)
    with torch.autocast("cpu", dtype, enabled=dtype == torch.bfloat16):
        for edges, wanted in ((across, 4), (down, 0)):
            found = target.ground_truth(torch.from_numpy(edges.copy()))
            assert found[:, 0, wanted].tolist() == [1, 1]
            assert set(found.flatten().tolist()) == {0, 1}
        assert (target.ground_truth(torch.from_numpy(across.copy()))[:, 1:4] == 0).all()


def test_loss_and_baselines_are_the_slow_ones() -> None:
    """Of the mean of training images, batch by batch, and of the visible neighbours' mean."""
    given, target = images(), hog(16)
    truth_BNA = np.stack([slow_truth(one, 16) for one in given])
    target.fit_baselines([torch.from_numpy(given[:2]), torch.from_numpy(given[2:])])
    hidden = torch.tensor([[True, True, False, False, True, False]] * 3)
    found = target.baselines(torch.from_numpy(given), hidden)
    variance = ((truth_BNA - truth_BNA.mean((0, 1))) ** 2).mean(-1)
    np.testing.assert_allclose(found["variance"], variance, atol=1e-6)
    # in a grid of 2 x 3 the first patch's neighbour is the fourth, the second's three others
    for patch, near in ((0, [3]), (1, [2, 3, 5])):
        error = ((truth_BNA[:, patch] - truth_BNA[:, near].mean(1)) ** 2).mean(-1)
        np.testing.assert_allclose(found["neighbors_error"][:, patch], error, atol=1e-6)
    truth_BNA = torch.from_numpy(truth_BNA)
    assert target.metrics(truth_BNA + 0.5, truth_BNA)["loss"].numpy() == pytest.approx(0.25)


def test_the_picture_has_strokes_along_the_edges() -> None:
    target = hog(16)
    truth = torch.zeros(1, 1, 3, 9, 2, 2)
    truth[0, 0, 1, 4, 0, 1] = 1  # of green, an upright edge in the upper right cell
    drawn = target.render(truth.flatten(2))[0, 0]
    assert drawn.shape == (16, 16, 3) and drawn.dtype == torch.uint8
    wanted = torch.zeros(16, 16, 3)
    wanted[:8, 11:13, 1] = 128  # half a pixel beside the line
    torch.testing.assert_close(drawn.float(), wanted, atol=1, rtol=0)


def test_patches_are_whole_cells() -> None:
    with pytest.raises(UserError, match=r"^target=hog: .* multiple of 8 "):
        resolve(altered(TINY, "target=hog", "name=x"))
    assert hog(8).num_outputs == 27
