"""What is cut from an image and mixed with another follows from its key alone, and is what
torchvision, timm's rule and slow versions make of it."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import beta, binomtest, chisquare, ks_2samp, kstest
from torchvision.transforms import RandomResizedCrop
from torchvision.transforms.v2 import functional as F

from ssl_vit import rng
from ssl_vit.data import transforms

KEYS = rng.key(5, np.arange(4000))


def noise(seed: int, height: int = 24, width: int = 20, channels: int = 3) -> torch.Tensor:
    shape = (height, width, channels)
    pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    return torch.from_numpy(pixels).permute(2, 0, 1)


def boxes(height: int, width: int, area: float, count: int = 4000) -> np.ndarray:
    return transforms.crop_boxes(KEYS[:count], np.full(count, height), np.full(count, width), area)


@settings(max_examples=80)
@given(
    st.lists(st.tuples(st.integers(1, 3000), st.integers(1, 3000)), min_size=1, max_size=12),
    st.floats(0.001, 1),
    st.integers(-(2**63), 2**63 - 1),
)
def test_a_box_lies_inside_its_image_and_depends_on_its_own_key_and_size(
    sizes: list[tuple[int, int]], area: float, key: int
) -> None:
    height, width = np.array(sizes).T
    keys = rng.key(key, np.arange(len(sizes)))
    found = transforms.crop_boxes(keys, height, width, area)
    top, left, h, w = found.T
    assert (h >= 1).all() and (w >= 1).all() and (top >= 0).all() and (left >= 0).all()
    assert (top + h <= height).all() and (left + w <= width).all()
    # up to rounding
    assert ((w - 0.51) / (h + 0.51) <= 4 / 3).all() and ((w + 0.51) / (h - 0.51) >= 3 / 4).all()
    for i in range(len(sizes)):
        one = slice(i, i + 1)
        alone = transforms.crop_boxes(keys[one], height[one], width[one], area)
        assert np.array_equal(alone[0], found[i])


@pytest.mark.parametrize(
    ("height", "width", "area"), [(300, 300, 0.05), (375, 500, 0.35), (200, 640, 0.05)]
)
def test_boxes_are_spread_as_torchvision_spreads_them(height: int, width: int, area: float) -> None:
    ours = boxes(height, width, area)
    image = torch.empty(3, height, width)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        drawn = (
            RandomResizedCrop.get_params(image, [area, 1.0], [3 / 4, 4 / 3]) for _ in range(4000)
        )
        theirs = np.array(list(drawn))
    spread = (
        lambda b: b[:, 2] * b[:, 3],
        lambda b: b[:, 3] / b[:, 2],
        lambda b: b[:, 0],
        lambda b: b[:, 1],
    )
    assert all(ks_2samp(of(ours), of(theirs)).pvalue > 1e-3 for of in spread)


def test_a_box_is_as_likely_in_every_place() -> None:
    """The edges too, on an image so small that they are places of their own."""
    found = boxes(6, 6, 0.3)
    for place, side in ((0, 2), (1, 3)):
        for length in (4, 5):
            counts = np.bincount(found[found[:, side] == length, place], minlength=7 - length)
            assert len(counts) == 7 - length and chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize(
    ("height", "width", "area", "box"),
    [
        (1, 1000, 0.5, [0, 499, 1, 1]),
        (1000, 1, 0.5, [499, 0, 1, 1]),
        (30, 600, 0.9, [0, 280, 30, 40]),  # 4/3 of the height
        (600, 30, 0.9, [280, 0, 40, 30]),
        (1, 1, 0.05, [0, 0, 1, 1]),
    ],
)
def test_an_image_that_no_try_fits_gets_its_largest_centered_box(
    height: int, width: int, area: float, box: list[int]
) -> None:
    assert (boxes(height, width, area) == box).all()


CUTS = {
    "channels last": lambda image: image,
    "channels first": lambda image: image.contiguous(),
    "one of many": lambda image: torch.stack([image.flip(1), image, image])[1],
    "part of a larger one": lambda image: F.pad(image, [3, 5, 2, 4])[:, 5:-4, 3:-2],
    "columns first": lambda image: image.contiguous().transpose(1, 2).contiguous().transpose(1, 2),
}


@pytest.mark.parametrize("layout", CUTS)
@pytest.mark.parametrize("bits", [8, 16])
def test_training_crops_are_those_of_torchvision(layout: str, bits: int) -> None:
    """However the image lies in the memory; of 16 bits those of floats, rounded."""
    for height, width, size in ((32, 32, 32), (75, 100, 24), (9, 40, 16)):
        image = noise(0, height, width)
        image = CUTS[layout](image if bits == 8 else image.int() * 257)
        key_B, sides = KEYS[:60], (np.full(60, height), np.full(60, width))
        got = transforms.train_transform([image] * 60, key_B, size, 0.05, True)
        assert got.dtype == image.dtype and got.shape == (60, 3, size, size)
        flips = transforms.random_flips(key_B, True)
        found = transforms.crop_boxes(key_B, *sides, 0.05).tolist()
        for one, box, flip in zip(got, found, flips, strict=True):
            given = image if bits == 8 else image.float()
            right = F.resized_crop(given, *box, [size, size], antialias=True)
            right = right.flip(-1) if flip else right
            # where a CPU has no instructions for bytes, torchvision computes in floating point
            away = 1 if bits == 8 else 0
            assert (one - right.round().int()).abs().max() <= away


@pytest.mark.parametrize("channels", [2, 4])
def test_a_training_crop_reads_no_other_memory_than_its_image(channels: int) -> None:
    """Each channel is what it is alone; beside an image of another number, an error."""
    image = noise(0, 20, 20, channels)
    made = transforms.train_transform([image], KEYS[:1], 16, 0.3, False)
    alone = [transforms.train_transform([one[None]], KEYS[:1], 16, 0.3, False) for one in image]
    assert torch.equal(made, torch.cat(alone, 1))
    with pytest.raises(RuntimeError, match="size"):
        transforms.train_transform([noise(1, 20, 20), image], KEYS[:2], 16, 0.3, False)


def test_half_of_the_images_are_flipped_whatever_their_box() -> None:
    images = [noise(i, 12, 12) for i in range(1000)]
    plain, got = (
        transforms.train_transform(images, KEYS[:1000], 8, 0.3, flip) for flip in (False, True)
    )
    flipped = (got != plain).flatten(1).any(1)
    assert torch.equal(got, torch.where(flipped[:, None, None, None], plain.flip(-1), plain))
    assert binomtest(int(flipped.sum()), 1000).pvalue > 1e-3
    left = boxes(12, 12, 0.3, 1000)[:, 1]
    assert ks_2samp(left[flipped.numpy()], left[~flipped.numpy()]).pvalue > 1e-3


@pytest.mark.parametrize(("size", "crop"), [(32, 0.9), (224, 0.875), (64, 0.5), (16, 1.0)])
def test_evaluation_takes_the_center_of_an_image_of_the_right_size(size: int, crop: float) -> None:
    """256 for 224: of a square image of side S / crop the middle S, not resized."""
    short = math.floor(size / crop)
    image, edge = noise(3, short, short), (short - size) / 2
    (got,) = transforms.eval_transform([image], size, "crop", crop)
    starts = {math.floor(edge), math.ceil(edge)}
    cuts = [image[:, a : a + size, b : b + size] for a in starts for b in starts]
    assert any(torch.equal(got, cut) for cut in cuts)


def test_evaluation_of_16_bits_is_that_of_floats() -> None:
    image = noise(0, 20, 30, 4).int() * 257
    squashed = transforms.eval_transform([image], 8, "squash", 1.0)
    wanted = F.resize(image.float(), [8, 8], antialias=True).round().int()
    assert torch.equal(squashed[0], wanted)


@pytest.mark.parametrize("turned_round", [False, True])
def test_a_line_of_pixels_is_seen_as_its_middle(turned_round: bool) -> None:
    """Brought to a width whole, it would be 16 x 1,600,000 pixels."""
    image = torch.zeros(3, 1, 100_000, dtype=torch.uint8)
    image[:, :, 49_998:50_002] = 200
    image = image.mT if turned_round else image
    seen = transforms.eval_transform([image], 16, "crop", 1.0)
    assert seen.shape == (1, 3, 16, 16) and seen.float().mean() > 150
    assert transforms._middle(image).numel() == 3 * transforms.STRIP


def pair(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    draw = np.random.default_rng(seed)
    image, other = torch.from_numpy(draw.integers(0, 256, (2, count, 3, 8, 8), dtype=np.uint8))
    return image, other, draw.integers(-(2**62), 2**62, count)


@settings(max_examples=30)
@given(
    mixup=st.sampled_from([0.0, 0.2, 0.8, 1.0]),
    cutmix=st.sampled_from([0.0, 0.5, 1.0]),
    seed=st.integers(0, 99),
)
def test_every_pixel_is_what_its_share_says(mixup: float, cutmix: float, seed: int) -> None:
    assume(mixup or cutmix)
    image, other, key = pair(16, seed)
    mixed, share = transforms.mix_pairs(image, other, key, mixup, cutmix)
    assert mixed.dtype == torch.uint8 and share.dtype == torch.float32
    assert ((share >= 0) & (share <= 1)).all()
    for i in range(16):
        blend = share[i] * image[i] + (1 - share[i]) * other[i]
        blended = (mixed[i] - blend).abs().max() <= 0.5 + 1e-4
        own, its = (mixed[i] == image[i]).all(0), (mixed[i] == other[i]).all(0)
        is_share = abs(float(its.double().mean()) - (1 - float(share[i]))) < 0.02
        pasted = bool((own | its).all()) and is_share
        assert (blended and mixup) or (pasted and cutmix)


def test_what_is_pasted_is_one_box() -> None:
    image, other, key = pair(64)
    mixed, share = transforms.mix_pairs(image, other, key, 0.0, 1.0)
    for i in range(64):
        inside = (mixed[i] != image[i]).any(0).numpy()
        rows, columns = inside.any(1), inside.any(0)
        assert (inside == rows[:, None] & columns[None, :]).all()
        for line in (rows, columns):
            assert np.abs(np.diff(line.astype(int))).sum() <= 2  # in one piece
        assert 1 - inside.mean() == pytest.approx(float(share[i]), abs=1e-6)


@pytest.mark.parametrize("a", [0.2, 0.8, 1.0])
def test_shares_are_beta_distributed(a: float) -> None:
    image, other, key = pair(4000)
    _, share = transforms.mix_pairs(image, other, key, a, 0.0)
    assert kstest(share, beta(a, a).cdf).pvalue > 1e-3


def test_with_both_either_is_as_likely() -> None:
    image, other, key = pair(2000)
    mixed, _ = transforms.mix_pairs(image, other, key, 1.0, 1.0)
    cut = ((mixed == image) | (mixed == other)).all(1).all(1).all(1).double().mean()
    assert 0.46 < cut < 0.54


def test_mixed_images_of_16_bits_keep_them() -> None:
    one, other = (torch.full((2, 4, 3, 3), level, dtype=torch.int32) for level in (1000, 61000))
    mixed, share_B = transforms.mix_pairs(one, other, KEYS[:2], 1.0, 0.0)
    wanted = (share_B * 1000 + (1 - share_B) * 61000).round().int()
    assert mixed.dtype == torch.int32 and torch.equal(mixed[:, 0, 0, 0], wanted)
