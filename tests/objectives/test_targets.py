"""Patch colours: every edge of every bin in exact arithmetic, whatever the precision; the
neighbours' guess; pixels, and SimMIM's loss of them."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from helpers.built import built
from ssl_vit.data.batching import Batch
from ssl_vit.objectives.targets import patch_targets


def exact_class(sums, pixels):
    """64 R + 8 G + B with bins floor(8 v) of the exact mean v in [0, 1], 1 in bin 7 (paper,
    B.1.2)."""
    bins = [min(7, math.floor(8 * Fraction(int(s), 255 * pixels))) for s in sums]
    return 64 * bins[0] + 8 * bins[1] + bins[2]


def cut(image_BCHW, side):
    """The patches row by row, (B, N, C, side, side)."""
    images, channels, height, width = image_BCHW.shape
    shape = images, channels, height // side, side, width // side, side
    rows = image_BCHW.reshape(shape).transpose(0, 2, 4, 1, 3, 5)
    return rows.reshape(images, -1, channels, side, side)


def nearest(n, columns, hidden_N):
    """The nearest (Chebyshev) other visible patches."""
    rings = {}
    for m in range(len(hidden_N)):
        if m != n and not hidden_N[m]:
            distance = max(abs(m // columns - n // columns), abs(m % columns - n % columns))
            rings.setdefault(distance, []).append(m)
    return rings[min(rings)] if rings else []


def bytes_summing_to(total, pixels):
    """A patch of bytes whose sum is `total`, as unlike one another as can be."""
    full, rest = divmod(total, 255)
    return np.array(([255] * full + [rest] + [0] * pixels)[:pixels], np.uint8)


@pytest.mark.parametrize("pixels", [16, 64, 196, 256, 1024])
def test_every_sum_of_a_patch_is_in_its_exact_bin(pixels):
    sums = torch.arange(255 * pixels + 1)[:, None].expand(-1, 3)
    assert patch_targets.color_class(sums, pixels).tolist() == [
        73 * min(7, 8 * s // (255 * pixels)) for s in range(255 * pixels + 1)
    ]


@st.composite
def images(draw):
    """(image uint8 (B, 3, H, W), patch); the bytes are often those at a bin's edge."""
    patch, rows, columns, batch = (draw(st.integers(1, most)) for most in (5, 4, 4, 2))
    shape = (batch, 3, rows * patch, columns * patch)
    values = st.one_of(
        st.integers(0, 255), st.sampled_from([0, 31, 32, 63, 64, 127, 128, 254, 255])
    )
    return draw(hnp.arrays(np.uint8, shape, elements=values)), patch


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_classes_do_not_depend_on_precision(dtype):
    totals = [k * 255 * 16 // 8 - below for k in range(1, 9) for below in (0, 1)]  # about each edge
    edge = np.stack([np.stack([bytes_summing_to(one, 16).reshape(4, 4)] * 3) for one in totals])
    noise = np.random.default_rng(0).integers(0, 256, (40, 3, 8, 8), dtype=np.uint8)
    for image in map(torch.from_numpy, (edge, noise)):
        colors, hidden = (
            patch_targets.mean_color(image, 4),
            torch.ones(len(image), image.shape[-1] ** 2 // 16, dtype=torch.bool),
        )
        hidden[:, -1] = False
        guesses = patch_targets.neighbor_color(image, 4, hidden)
        try:
            torch.set_default_dtype(dtype)
            with torch.autocast("cpu", torch.bfloat16):
                assert torch.equal(patch_targets.mean_color(image, 4), colors)
                assert torch.equal(patch_targets.neighbor_color(image, 4, hidden), guesses)
        finally:
            torch.set_default_dtype(torch.float32)


@settings(max_examples=60)
@given(images(), st.data())
def test_neighbor_color_is_the_slow_one(drawn, data):
    image, patch = drawn
    patches = image.shape[2] * image.shape[3] // patch**2
    share = data.draw(st.sampled_from([0.3, 0.8, 1.0]))
    hidden = (
        np.random.default_rng(data.draw(st.integers(0, 2**32))).random((len(image), patches))
        < share
    )
    made = patch_targets.neighbor_color(torch.from_numpy(image), patch, torch.from_numpy(hidden))
    assert made.dtype == torch.int64 and made.shape == (len(image), patches)
    sums_BN3 = cut(image, patch).astype(int).sum((3, 4))
    for b, n in np.ndindex(hidden.shape):
        near = nearest(n, image.shape[3] // patch, hidden[b])
        if near:
            assert made[b, n] == exact_class(sums_BN3[b, near].sum(0), len(near) * patch**2)
        elif hidden[b].all():
            assert made[b, n] == 0


def test_a_classs_color_is_in_the_middle_of_its_own_bin():
    classes = torch.arange(patch_targets.COLORS)
    color = patch_targets.class_color(classes)
    assert color.dtype == torch.uint8 and color.shape == (512, 3)
    assert torch.equal(patch_targets.color_class(256 * color.long(), 256), classes)
    bins = torch.tensor([[c // 64, c // 8 % 8, c % 8] for c in range(512)])
    assert ((bins + 0.5) * 255 / 8 - color).abs().max() < 1  # a byte
    flat = color[:, :, None, None].expand(-1, -1, 16, 16).contiguous()
    assert torch.equal(patch_targets.mean_color(flat, 16), classes[:, None])


@pytest.mark.parametrize(("patch", "cells"), [(4, 4), (8, 2), (4, 1)])
def test_the_grid_target_is_the_slow_one(patch, cells):
    """Cell by cell: the exact mean of each cell, its 3 bits a channel."""
    image = np.random.default_rng(patch * cells).integers(
        0, 256, (2, 3, 2 * patch, 3 * patch), dtype=np.uint8
    )
    side = patch // cells
    sums = cut(cut(image, patch).reshape(-1, 3, patch, patch), side).astype(int).sum((3, 4))
    wanted = [exact_class(one, side**2) for one in sums.reshape(-1, 3)]
    found = patch_targets.grid_color(torch.from_numpy(image), patch, cells)
    assert found.shape == (2, 6, cells**2) and found.flatten().tolist() == wanted


def test_pixels_their_loss_and_guesses_are_the_slow_ones():
    """The mean of training images, be the last batch smaller, and the neighbours'."""
    mean_3, std_3 = np.array([0.5, 0.4, 0.3]), np.array([0.5, 0.25, 0.2])
    target = patch_targets.Pixels(4, mean_3.tolist(), std_3.tolist())
    image = torch.randint(0, 256, (3, 3, 16, 16), dtype=torch.uint8)
    target.fit_baselines([image[:2], image[2:]])
    hidden = torch.rand(3, 16) < 0.5
    made, truth = target.baselines(image, hidden), target.ground_truth(image)
    loss = target.metrics(torch.zeros_like(truth), truth)["loss"]
    values = (image.numpy() / 255 - mean_3[:, None, None]) / std_3[:, None, None]
    mean, cells = values.mean((0, 2, 3)), cut(values, 4).reshape(3, 16, 3, -1)
    for b, n in np.ndindex(3, 16):
        own = cells[b, n]
        guess = cells[b, nearest(n, 4, hidden[b])].mean((0, 2))
        np.testing.assert_allclose(truth[b, n].numpy(), own.T.ravel(), atol=1e-5)
        assert loss[b, n].item() == pytest.approx((own**2).mean(), rel=1e-4)
        for name, one, within in (("variance", mean, 1e-4), ("neighbors_error", guess, 1e-3)):
            wanted = ((own - one[:, None]) ** 2).mean()
            assert made[name][b, n].item() == pytest.approx(wanted, rel=within)


@pytest.mark.parametrize(
    "target",
    [
        patch_targets.Colors(4, 1),
        patch_targets.Colors(4, 4),
        patch_targets.Pixels(4, [0.5] * 3, [0.5] * 3),
    ],
)
def test_a_painted_truth_has_the_colors_of_its_patch(target):
    image = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)
    painted = target.render(target.ground_truth(image))
    assert painted.dtype == torch.uint8 and painted.shape[:2] == (2, 4) and painted.shape[-1] == 3
    # of each patch
    own = image.float().unfold(2, 4, 4).unfold(3, 4, 4).mean((-2, -1)).flatten(2).permute(0, 2, 1)
    # the middle of a bin is 16 from its edge
    assert (painted.float().mean((2, 3)) - own).abs().max() <= 20


def test_normalized_pixels_are_patch_by_patch():
    """Each patch by numpy: its mean and unbiased variance over all values; zero costs its mean
    square, and nothing where it is grey all over."""
    mean, std = [0.4, 0.5, 0.6], [0.2, 0.3, 0.4]
    target = patch_targets.NormalizedPixels(4, mean, std)
    image = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)
    plain = patch_targets.NormalizedPixels(4, [0.5] * 3, [0.5] * 3)
    image[0, :, 4:, :4] = 100
    found = target.ground_truth(image).numpy()
    zero = target.baselines(image, torch.zeros(2, 4, dtype=torch.bool))["zero"]
    for b, n in np.ndindex(2, 4):
        values = (cut(image.numpy(), 4)[b, n].transpose(1, 2, 0) / 255 - mean) / std
        wanted = (values - values.mean()) / np.sqrt(values.var(ddof=1) + 1e-6)
        np.testing.assert_allclose(found[b, n], wanted.ravel(), atol=1e-4)
        assert zero[b, n].item() == pytest.approx((wanted**2).mean(), abs=1e-4)
    assert plain.baselines(image, torch.zeros(2, 4, dtype=torch.bool))["zero"][0, 2] == 0


def test_neighbors_of_normalized_pixels_share_their_colour():
    """Patches of one pixel, blue, red and red: a pure colour is (2, -1, -1) / sqrt(3) normalised.
    The middle one is hidden; half blue and half red, less red, is (-1, 0, 1) sqrt(3) / 2."""
    target = patch_targets.NormalizedPixels(1, [0.5] * 3, [0.5] * 3)
    image = 255 * torch.tensor([[[[0, 1, 1]], [[0, 0, 0]], [[1, 0, 0]]]], dtype=torch.uint8)
    hidden = torch.tensor([[False, True, False]])
    assert target.baselines(image, hidden)["neighbors_error"][0, 1].item() == pytest.approx(1 / 2)
    alone = target.baselines(image, torch.ones(1, 3, dtype=torch.bool))
    torch.testing.assert_close(alone["neighbors_error"], alone["zero"])


def test_a_normalized_patch_is_painted_without_its_brightness():
    """Mid-grey is the patch's mean: twice the contrast and other brightness look the same."""
    target = patch_targets.NormalizedPixels(4, [0.5] * 3, [0.5] * 3)
    generator = torch.Generator().manual_seed(0)
    dim = torch.randint(40, 70, (1, 3, 4, 4), dtype=torch.uint8, generator=generator)
    painted = [target.render(target.ground_truth(image)) for image in (dim, 3 * dim + 10)]
    assert (painted[0].int() - painted[1].int()).abs().max() <= 1  # the 1e-6, at a rounding edge
    assert painted[0].shape == (1, 1, 4, 4, 3)
    assert painted[0].double().mean().item() == pytest.approx(128, abs=0.5)
    assert painted[0].double().std().item() == pytest.approx(48, abs=0.5)


def test_simmim_loss_is_the_authors_formula():
    """Xie et al. (2022, equation 1), over whole images: the absolute error where the mask is, over
    its pixels and the three channels."""
    torch.manual_seed(0)
    patch, grid, rate = 4, 6, 0.6
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    data = f"data.size={patch * grid}", f"data.mean={mean}", f"data.std={std}"
    objective = built("recipe=simmim", *data, "corruption.rate=0.6", "corruption.side=2")
    torch.nn.init.normal_(objective.head.weight, std=0.1)
    image = torch.randint(256, (3, 3, patch * grid, patch * grid), dtype=torch.uint8)
    batch = Batch(image, torch.zeros(3).long(), torch.arange(3), torch.arange(3))
    step = objective(batch)

    # by pixels: the mask repeated over each patch, the outputs of the head put at their places
    drawn = objective.sample_corruption(batch)
    output_BKA = objective.patch_logits(batch, drawn).detach().numpy()
    normalized = (image.numpy() / 255 - np.reshape(mean, (3, 1, 1))) / np.reshape(std, (3, 1, 1))
    masked = np.zeros((3, 1, patch * grid, patch * grid))
    rebuilt = np.zeros_like(normalized)
    for b in range(3):
        for k, place in enumerate(drawn.corrupted_BK[b].tolist()):
            rows = slice(place // grid * patch, (place // grid + 1) * patch)
            columns = slice(place % grid * patch, (place % grid + 1) * patch)
            masked[b, :, rows, columns] = 1
            rebuilt[b, :, rows, columns] = (
                output_BKA[b, k].reshape(patch, patch, 3).transpose(2, 0, 1)
            )
    error = np.abs(normalized - rebuilt) * masked
    assert masked.mean() == round(rate * grid**2) / grid**2
    assert step.loss.item() == pytest.approx(error.sum() / masked.sum() / 3, rel=1e-5)


def test_the_baselines_of_absolute_error_are_absolute():
    """By hand: one channel alone differs from the mean, by 0.5 in the model's range."""
    target = patch_targets.Pixels(2, [0.5] * 3, [0.5] * 3, error=torch.abs)
    image = torch.full((1, 3, 2, 4), 255, dtype=torch.uint8)
    image[:, 0, :, :2] = 0  # the first patch's red: -1 where the other's is 1
    target.fit_baselines([image])
    assert target.mean_3.tolist() == [0.0, 1.0, 1.0]
    found = target.baselines(image, torch.tensor([[True, False]]))
    assert found["variance"].tolist() == [[pytest.approx(1 / 3), pytest.approx(1 / 3)]]
    assert found["neighbors_error"][0, 0].item() == pytest.approx(2 / 3)
