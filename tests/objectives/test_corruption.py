"""Corruption: exactly K patches hit, split 80/10/10, sources never themselves; as a draw in
loops and one number at a time."""

import math
from decimal import Decimal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ssl_vit import rng
from ssl_vit.models import encoder
from ssl_vit.objectives import corruption
from ssl_vit.objectives.corruption import KEEP, MASK, RANDOM
from ssl_vit.recipe.split_counts import selected_count

SHAPES = [("patches", 1), ("patches", 2), ("blocks", 1)]
SOURCES = pytest.mark.parametrize("source", ["image", "batch"])


def keys(count, seed=0):
    return torch.from_numpy(rng.key(seed, 0, np.arange(count)))


def slow_order(key, patches, shape, side):
    """Every patch of an image, those hit first before others, by walking over its squares or
    rectangles."""
    grid, chosen = math.isqrt(patches), []

    def number(slot, n):
        return int(rng.integers(key, slot, n)[0])

    def hashed(n):
        return int(rng.bits(key, 3 * n)[0]) % 2**64 // 2**33

    if shape == "patches":
        squares = [
            [
                y * grid + x
                for y in range(top, min(top + side, grid))
                for x in range(left, min(left + side, grid))
            ]
            for top in range(0, grid, side)
            for left in range(0, grid, side)
        ]
        if side == 1:
            return sorted(range(patches), key=lambda n: (int(rng.bits(key, 3 * n)[0]), n))
        in_order = sorted(
            squares,
            key=lambda square: int(rng.bits(key, 3 * patches + square[0])[0]) % 2**64 // 2**33,
        )
        return [n for square in in_order for n in sorted(square, key=hashed)]
    least, span = max(1, grid // 4), max(1, grid // 2) - max(1, grid // 4) + 1
    for j in range(corruption.BLOCKS):
        slot = 3 * patches + 4 * j
        height, width = least + number(slot, span), least + number(slot + 1, span)
        top, left = (
            number(slot + 2, grid + height - 1) - height + 1,
            number(slot + 3, grid + width - 1) - width + 1,
        )
        block = [
            n
            for n in range(patches)
            if 0 <= n // grid - top < height and 0 <= n % grid - left < width
        ]
        chosen += sorted(set(block) - set(chosen), key=hashed)
    return chosen + sorted(set(range(patches)) - set(chosen), key=hashed)


def slow_draw(key_B, patches, count, mask, random, source, shape="patches", side=1):
    """(patch, kind, source) of each hit patch of each image, in numpy and lists, one number at a
    time."""
    stream = rng.stream(np.asarray(key_B), "corruption")
    images = []
    for b in range(len(stream)):
        key = stream[b : b + 1]
        rows = []
        for n in slow_order(key, patches, shape, side)[:count]:
            number = int(rng.integers(key, 3 * n + 1, 2**24)[0])
            kind = (
                MASK
                if number < round(mask * 2**24)
                else RANDOM
                if number < round((mask + random) * 2**24)
                else KEEP
            )
            images_asked = [b] if source == "image" else range(len(stream))
            others = [
                i * patches + m for i in images_asked for m in range(patches) if (i, m) != (b, n)
            ]
            rows.append((n, kind, others[int(rng.integers(key, 3 * n + 2, len(others))[0])]))
        images.append(rows)
    return images


def slow_apply(x_BND, drawn, mask_D):
    out, clean = x_BND.clone(), [row for image in x_BND for row in image]
    for b in range(len(x_BND)):
        for patch, kind, source in zip(
            drawn.corrupted_BK[b], drawn.kind_BK[b], drawn.source_BK[b], strict=True
        ):
            if kind == MASK:
                out[b, patch] = mask_D
            elif kind == RANDOM:
                out[b, patch] = clean[source]
    return out


def test_the_count_is_exact_and_a_half_rounds_up():
    """Of every rate in thousandths, on grids and other counts."""
    for patches in (1, 2, 7, 10, 16, 17, 25, 49, 64, 100, 196, 225, 400, 784, 1100):
        for text in (f"{n / 1000:.3f}" for n in range(1, 1001)):
            exact = math.floor(Decimal(text) * patches + Decimal("0.5"))
            made = selected_count(float(text), patches)
            assert made == max(1, exact), (text, patches)


@settings(max_examples=60)
@given(
    seed=st.integers(-(2**62), 2**62),
    count=st.integers(1, 3),
    grid=st.integers(2, 8),
    rate=st.sampled_from([0.01, 0.15, 0.5, 0.75, 1.0]),
    shares=st.sampled_from([(0.8, 0.1), (0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (0.3, 0.3)]),
    source=st.sampled_from(["image", "batch"]),
    shape=st.sampled_from([("patches", 1), ("blocks", 1), ("patches", 2), ("patches", 5)]),
)
def test_draw_is_the_slow_one(seed, count, grid, rate, shares, source, shape):
    key_B, patches = keys(count, seed), grid**2
    drawn = corruption.sample(key_B, patches, rate, *shares, source, *shape)
    chosen = selected_count(rate, patches)
    assert all(t.shape == (count, chosen) and t.dtype == torch.int64 for t in drawn)
    slow = slow_draw(key_B, patches, chosen, *shares, source, *shape)
    assert torch.stack(drawn, -1).tolist() == [[list(row) for row in image] for image in slow]


EVEN = [(8, 0.05, ("patches", 2)), (8, 0.15, ("blocks", 1)), (4, 0.5, ("blocks", 1))]


@pytest.mark.parametrize(("grid", "rate", "shape"), EVEN)
def test_no_place_is_hit_more_often_than_another(grid, rate, shape):
    """Squares and rectangles come together, so places are compared over many images, loosely: cut
    rectangles are small."""
    images, tolerance = (20_000, 0.15) if shape[0] == "blocks" else (60_000, 0.06)
    corrupted_BK = corruption.sample(
        keys(images), grid**2, rate, 0.8, 0.1, "image", *shape
    ).corrupted_BK
    often = np.bincount(corrupted_BK.flatten(), minlength=grid**2) / images
    assert np.abs(often / often.mean() - 1).max() < tolerance, often.reshape(grid, grid)


@SOURCES
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shares", [(0.2, 0.6), (0.0, 1.0), (0.0, 0.0)])
def test_apply_is_the_slow_one(shares, dtype, source):
    """Of embeddings in a low precision, which stays, too."""
    generator = torch.Generator().manual_seed(0)
    x, mask = torch.randn(6, 12, 5, generator=generator), torch.randn(5, generator=generator)
    x = x.to(dtype)
    before = x.clone()
    drawn = corruption.sample(keys(6), 12, 0.75, *shares, source)
    made = corruption.apply(x, drawn, mask)
    assert made.dtype == dtype and torch.equal(made, slow_apply(x, drawn, mask))
    assert torch.equal(x, before)
    if shares == (0.0, 0.0):
        assert torch.equal(made, x)


@SOURCES
def test_pixels_of_random_patches_are_their_sources(source):
    """3 x 2 patches of 4 px, written one by one."""
    images, rows, columns, side = 5, 3, 2, 4
    generator = torch.Generator().manual_seed(0)
    shape = (images, 3, rows * side, columns * side)
    image = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    before = image.clone()
    drawn = corruption.sample(keys(images), rows * columns, 0.8, 0.2, 0.6, source)
    expected = image.clone()
    for row in range(images):
        for place in range(drawn.corrupted_BK.shape[1]):
            if drawn.kind_BK[row, place] == RANDOM:
                other, patch = divmod(int(drawn.source_BK[row, place]), rows * columns)
                taken = image[other][square(patch, columns, side)]
                expected[row][square(int(drawn.corrupted_BK[row, place]), columns, side)] = taken
    made = corruption.replace_random(encoder.cut_patches(image, side), drawn)
    image_made = encoder.join_patches(made, (rows, columns))
    assert torch.equal(image_made, expected) and not torch.equal(image_made, before)
    assert torch.equal(image, before)


def square(patch, columns, side):
    """A patch's pixels in an image (C, H, W)."""
    top, left = (side * place for place in divmod(patch, columns))
    return slice(None), slice(top, top + side), slice(left, left + side)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@SOURCES
@pytest.mark.parametrize("shape", SHAPES)
def test_a_gpu_hits_the_same_patches(source, shape):
    here = corruption.sample(keys(200), 196, 0.5, 0.8, 0.1, source, *shape)
    there = corruption.sample(keys(200).cuda(), 196, 0.5, 0.8, 0.1, source, *shape)
    assert all(torch.equal(a, b.cpu()) for a, b in zip(here, there, strict=True))


def test_compiled_code_draws_the_same():
    """Inductor folds the arithmetic of an arange into symbols without an overflow of their own;
    hashes must not meet that. Rectangles draw all that patches do."""
    key = torch.from_numpy(rng.key(0, 3, np.arange(6)))
    arguments = (64, 0.5, 0.8, 0.1, "image", "blocks")
    compiled = torch.compile(
        lambda k: corruption.sample(k, *arguments), fullgraph=True, dynamic=False
    )
    for made, right in zip(compiled(key), corruption.sample(key, *arguments), strict=True):
        assert torch.equal(made, right)
