"""Corruption: exactly K patches hit, split 80/10/10, sources never themselves; samples alike
however they are spread."""

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from helpers.sources import listed
from ssl_vit import rng
from ssl_vit.data import loaders
from ssl_vit.data.batch_layout import BatchLayout
from ssl_vit.models import encoder
from ssl_vit.objectives import corruption
from ssl_vit.objectives.corruption import KEEP, MASK, RANDOM
from ssl_vit.recipe.schema import Data

SHAPES = pytest.mark.parametrize(
    "shape", [("patches", 1), ("patches", 2), ("blocks", 1)], ids=["single", "squares", "blocks"]
)
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


@settings(max_examples=300)
@given(patches=st.integers(1, 1100), thousandths=st.integers(1, 1000))
def test_the_count_is_exact(patches, thousandths):
    exact = Fraction(thousandths, 1000) * patches + Fraction(1, 2)
    made = corruption.num_corrupted(thousandths / 1000, patches)
    if exact.denominator > 1:  # no float noise at a half: see below
        assert made == max(1, math.floor(exact))
    assert 1 <= made <= patches


@settings(max_examples=100)
@given(patches=st.integers(1, 1100), eighths=st.integers(1, 8))
def test_a_half_rounds_up(patches, eighths):
    """Rates that floats hold exactly, which on many grids fall on a half."""
    assert corruption.num_corrupted(eighths / 8, patches) == max(
        1, math.floor(Fraction(eighths, 8) * patches + Fraction(1, 2))
    )


@pytest.mark.parametrize(
    ("rate", "patches", "count"),
    [
        (0.5, 64, 32),
        (0.15, 196, 29),
        (0.15, 10, 2),
        (0.001, 16, 1),
        (1.0, 16, 16),
        (0.5, 1, 1),
        (0.5, 49, 25),
        (0.7, 5, 4),
    ],
)
def test_counts_worked_out_by_hand(rate, patches, count):
    assert corruption.num_corrupted(rate, patches) == count
    assert corruption.sample(keys(3), patches, rate).corrupted_BK.shape == (3, count)


def test_a_half_rounds_up_for_decimal_rates_too():
    for side in (5, 10, 15, 20, 28):
        for text in (f"{n / 1000:.3f}" for n in range(1, 1001)):
            exact = math.floor(Decimal(text) * side**2 + Decimal("0.5"))
            assert corruption.num_corrupted(float(text), side**2) == max(1, exact), (text, side**2)


@settings(max_examples=40)
@given(
    seed=st.integers(-(2**62), 2**62),
    count=st.integers(1, 4),
    patches=st.integers(2, 30),
    rate=st.sampled_from([0.01, 0.15, 0.5, 0.75, 1.0]),
    shares=st.sampled_from(
        [(0.8, 0.1), (0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (0.3, 0.3), (0.5, 0.5)]
    ),
    source=st.sampled_from(["image", "batch"]),
)
def test_draw_is_the_slow_one(seed, count, patches, rate, shares, source):
    key_B = keys(count, seed)
    drawn = corruption.sample(key_B, patches, rate, *shares, source)
    chosen = corruption.num_corrupted(rate, patches)
    assert all(t.shape == (count, chosen) and t.dtype == torch.int64 for t in drawn)
    assert torch.stack(drawn, -1).tolist() == [
        [list(row) for row in image] for image in slow_draw(key_B, patches, chosen, *shares, source)
    ]


@settings(max_examples=60)
@given(
    seed=st.integers(-(2**62), 2**62),
    grid=st.integers(2, 9),
    rate=st.sampled_from([0.05, 0.15, 0.5, 0.75, 0.95, 1.0]),
    shape=st.sampled_from([("blocks", 1), ("patches", 2), ("patches", 3), ("patches", 5)]),
)
def test_shapes_are_the_slow_ones(seed, grid, rate, shape):
    key_B = keys(2, seed)
    drawn = corruption.sample(key_B, grid**2, rate, 0.8, 0.1, "image", *shape)
    chosen = corruption.num_corrupted(rate, grid**2)
    assert all(t.shape == (2, chosen) for t in drawn)
    assert torch.stack(drawn, -1).tolist() == [
        [list(row) for row in image]
        for image in slow_draw(key_B, grid**2, chosen, 0.8, 0.1, "image", *shape)
    ]


EVEN = [
    (8, 0.05, ("patches", 2)),
    (4, 0.5, ("patches", 2)),
    (8, 0.15, ("blocks", 1)),
    (4, 0.5, ("blocks", 1)),
]


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


@pytest.mark.parametrize("shape", [("blocks", 1), ("patches", 2)])
def test_shapes_put_hit_patches_side_by_side(shape):
    """Of the pairs of neighbours in a row, more are hit together than where patches are hit one by
    one."""

    def pairs(*shape):
        corrupted_BK = corruption.sample(
            keys(500), 64, 0.25, 0.8, 0.1, "image", *shape
        ).corrupted_BK
        grid = torch.zeros(500, 64).scatter(1, corrupted_BK, 1.0).view(500, 8, 8)
        assert (grid.sum((1, 2)) == 16).all()
        return float((grid[:, :, 1:] * grid[:, :, :-1]).sum(2).mean())

    assert pairs(*shape) > 2 * pairs("patches", 1)


@SOURCES
def test_hit_patches_are_distinct_and_sources_are_others(source):
    drawn = corruption.sample(keys(500), 17, 0.5, source=source)
    assert all(len(set(row)) == len(row) for row in drawn.corrupted_BK.tolist())
    assert drawn.corrupted_BK.min() >= 0 and drawn.corrupted_BK.max() < 17
    image = torch.arange(500)[:, None]
    own = image * 17 + drawn.corrupted_BK
    assert (drawn.source_BK != own).all()
    assert drawn.source_BK.min() >= 0 and drawn.source_BK.max() < 500 * 17
    same_image = (drawn.source_BK // 17 == image).double().mean()
    assert same_image == 1 if source == "image" else same_image < 0.02


def test_every_patch_is_hit_as_often():
    chosen = corruption.sample(keys(20_000), 16, 0.25).corrupted_BK
    assert stats.chisquare(np.bincount(chosen.flatten(), minlength=16)).pvalue > 1e-3
    # the first two, and how they lie to each other
    pairs = torch.stack([chosen[:, 0], (chosen[:, 1] - chosen[:, 0]) % 16])
    assert stats.chisquare(np.bincount(pairs[1], minlength=16)[1:]).pvalue > 1e-3


@pytest.mark.parametrize("shares", [(0.8, 0.1, 0.1), (0.5, 0.2, 0.3)])
def test_kinds_have_their_shares_and_are_drawn_one_by_one(shares):
    drawn = corruption.sample(keys(4000), 64, 0.5, *shares[:2])
    counts = np.bincount(drawn.kind_BK.flatten(), minlength=3)
    assert counts.sum() == 128_000
    assert stats.chisquare(counts, 128_000 * np.array(shares)).pvalue > 1e-3
    masked = (drawn.kind_BK == MASK).sum(1).double()
    # binomial, not a fixed count
    assert masked.var() == pytest.approx(32 * shares[0] * (1 - shares[0]), rel=0.1)
    by_patch = [drawn.kind_BK[drawn.corrupted_BK == n] for n in range(64)]
    table = np.stack([np.bincount(kinds, minlength=3) for kinds in by_patch])
    assert stats.chi2_contingency(table).pvalue > 1e-3


def test_sources_are_uniform():
    drawn = corruption.sample(keys(20_000), 8, 1.0)
    step = (drawn.source_BK - torch.arange(20_000)[:, None] * 8 - drawn.corrupted_BK) % 8
    for n in range(8):
        assert (
            stats.chisquare(np.bincount(step[drawn.corrupted_BK == n], minlength=8)[1:]).pvalue
            > 1e-3
        )
    anywhere = corruption.sample(keys(20_000), 8, 1.0, source="batch").source_BK.flatten()
    assert stats.kstest(anywhere.numpy() / 160_000, "uniform").pvalue > 1e-3
    few = torch.cat(
        [
            corruption.sample(keys(3, seed), 2, 1.0, source="batch").source_BK[:1, :1]
            for seed in range(2000)
        ]
    )
    first = torch.cat(
        [
            corruption.sample(keys(3, seed), 2, 1.0, source="batch").corrupted_BK[:1, :1]
            for seed in range(2000)
        ]
    )
    assert (
        stats.chisquare(np.bincount(((few - first) % 6).flatten(), minlength=6)[1:]).pvalue > 1e-3
    )


@settings(max_examples=20)
@given(st.permutations(range(12)), st.integers(1, 12))
def test_a_images_corruption_does_not_depend_on_its_batch(order, count):
    together = corruption.sample(keys(12), 16, 0.5)
    chosen = torch.tensor(order[:count])
    alone = corruption.sample(keys(12)[chosen], 16, 0.5)
    assert torch.equal(alone.corrupted_BK, together.corrupted_BK[chosen])
    assert torch.equal(alone.kind_BK, together.kind_BK[chosen])
    shift = 16 * (torch.arange(count) - chosen)[:, None]
    assert torch.equal(alone.source_BK - shift, together.source_BK[chosen])


def grey():
    """A split of 37 grey images."""
    images = [np.full((8, 8, 3), row, np.uint8) for row in range(37)]
    return listed(images, np.zeros(37, np.int64), ["grey"])


def corrupted_samples(processes, device_batch):
    """[(step, index, key, hit patches, kinds, sources in the image)] of steps 0 .. 4 of 24 images,
    over all processes."""
    found = []
    for rank in range(processes):
        spread = BatchLayout.divide(24, device_batch, 24, rank, processes)
        loader = loaders.training_loader(
            grey(), Data(size=8), spread, seed=3, start=0, stop=5, workers=0
        )
        for number, batch in enumerate(loader):
            drawn = corruption.sample(batch.key, 16, 0.5)
            within = drawn.source_BK - 16 * torch.arange(len(batch.key))[:, None]
            columns = (batch.index, batch.key, drawn.corrupted_BK, drawn.kind_BK, within)
            step = number // spread.accumulation_steps
            found += [(step, *row) for row in zip(*(c.tolist() for c in columns), strict=True)]
    return found


@pytest.mark.parametrize(
    ("processes", "device_batch"), [(1, 8), (1, 3), (2, None), (2, 6), (4, None), (4, 2), (4, 1)]
)
def test_a_steps_corruption_does_not_depend_on_how_it_is_spread(processes, device_batch):
    whole, spread = corrupted_samples(1, None), corrupted_samples(processes, device_batch)
    assert len(whole) == 5 * 24 and sorted(spread) == sorted(whole)
    drawn = {}
    for _, index, _, patch, *_ in whole:  # 120 draws of 37 images: a later epoch's are others
        drawn.setdefault(index, []).append(patch)
    assert all(hits[0] != hits[1] for hits in drawn.values())


@SOURCES
@pytest.mark.parametrize("shares", [(0.8, 0.1), (0.2, 0.6), (0.0, 1.0), (0.0, 0.0)])
def test_apply_is_the_slow_one(shares, source):
    generator = torch.Generator().manual_seed(0)
    x, mask = torch.randn(6, 12, 5, generator=generator), torch.randn(5, generator=generator)
    before = x.clone()
    drawn = corruption.sample(keys(6), 12, 0.75, *shares, source)
    made = corruption.apply(x, drawn, mask)
    assert torch.equal(made, slow_apply(x, drawn, mask))
    assert torch.equal(x, before)
    if shares == (0.0, 0.0):
        assert torch.equal(made, x)


def test_sources_are_clean_embeddings():
    """Two patches that take each other's place swap, and a source that is masked itself gives what
    it was."""
    x = torch.arange(8.0).view(2, 4, 1) + 1
    drawn = corruption.Corruption(
        corrupted_BK=torch.tensor([[0, 1, 2], [3, 2, 0]]),
        kind_BK=torch.tensor([[RANDOM, RANDOM, MASK], [RANDOM, KEEP, RANDOM]]),
        source_BK=torch.tensor([[1, 0, 0], [2, 0, 7]]),
    )
    made = corruption.apply(x, drawn, torch.tensor([-1.0]))
    assert made.squeeze(-1).tolist() == [[2, 1, -1, 4], [8, 6, 7, 3]]


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


def test_a_low_precision_embedding_stays_so():
    x = torch.randn(2, 4, 3, dtype=torch.bfloat16, generator=torch.Generator().manual_seed(0))
    drawn = corruption.sample(keys(2), 4, 0.5, 1.0, 0.0)
    made = corruption.apply(x, drawn, torch.tensor([0.1, 0.2, 0.3]))
    assert made.dtype == torch.bfloat16
    assert torch.equal(made, slow_apply(x, drawn, torch.tensor([0.1, 0.2, 0.3])))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@SOURCES
@SHAPES
def test_a_gpu_hits_the_same_patches(source, shape):
    here = corruption.sample(keys(200), 196, 0.5, 0.8, 0.1, source, *shape)
    there = corruption.sample(keys(200).cuda(), 196, 0.5, 0.8, 0.1, source, *shape)
    assert all(torch.equal(a, b.cpu()) for a, b in zip(here, there, strict=True))


@SHAPES
def test_compiled_code_draws_the_same(shape):
    """Inductor folds the arithmetic of an arange into symbols without an overflow of their own;
    hashes must not meet that."""
    key = torch.from_numpy(rng.key(0, 3, np.arange(6)))
    arguments = (64, 0.5, 0.8, 0.1, "image", *shape)
    compiled = torch.compile(
        lambda k: corruption.sample(k, *arguments), fullgraph=True, dynamic=False
    )
    for made, right in zip(compiled(key), corruption.sample(key, *arguments), strict=True):
        assert torch.equal(made, right)
