"""Which patches I-JEPA sees and predicts: sizes by hand, the draw against one in lists and loops, and
what holds of any options."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ssl_vit import rng
from ssl_vit.objectives.ijepa import IjepaOptions
from ssl_vit.objectives.ijepa.masks import BlockMasks
from ssl_vit.objectives.ijepa.sizes import SQUARE, block_sizes, trimmed_count


def keys(count: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(rng.key(seed, 0, np.arange(count)))


@pytest.mark.parametrize(
    ("side", "sizes", "count", "context"),
    [
        # 9 to 12 patches; 3 x 3 is less than 15% of 64
        (8, {(4, 3), (3, 4)}, 12, {8}),
        # 29 to 39: 5 x 5, 6 x 4 and 7 x 4 are less than 29
        (14, {(5, 6), (6, 5), (6, 6), (7, 5), (5, 7), (6, 7), (7, 6), (8, 5)}, 30, {13, 14}),
    ],
)
def test_sizes_by_hand(
    side: int, sizes: set[tuple[int, int]], count: int, context: set[int]
) -> None:
    found = block_sizes(side, [0.15, 0.2], [0.75, 1.5])
    assert {*found} == sizes and trimmed_count(found) == count
    assert {*block_sizes(side, [0.85, 1.0], SQUARE)} == {(one, one) for one in context}


def test_where_rounding_leaves_no_block_its_area_the_largest_are_kept() -> None:
    """5 of 9 patches in a square: 2 x 2; with other aspects 3 x 2."""
    assert {*block_sizes(3, [0.6, 0.6], [1.0, 1.0])} == {(2, 2)}
    assert {*block_sizes(3, [0.6, 0.6], [1.4, 1.6])} == {(3, 2)}
    assert {*block_sizes(1, [0.15, 0.2], [0.75, 1.5])} == {(1, 1)}


def slow_blocks(key: int, side: int, options: IjepaOptions) -> tuple[list[int], list[list[int]]]:
    """Visible patches and targets of one image, in loops."""
    stream = rng.stream(np.array([key]), "target blocks")

    def number(slot: int, n: int) -> int:
        return int(rng.integers(stream, slot, n)[0])

    def block(m: int, sizes: list[tuple[int, int]]) -> list[int]:
        rows, columns = sizes[number(4 * m, len(sizes))]
        top, left = number(4 * m + 1, side - rows + 1), number(4 * m + 2, side - columns + 1)
        places = [(r, c) for r in range(top, top + rows) for c in range(left, left + columns)]
        return [r * side + c for r, c in places]

    sizes = block_sizes(side, options.area, options.aspect)
    count = min(rows * columns for rows, columns in sizes)
    covered, targets = set(), []
    for m in range(options.blocks):
        whole = block(m, sizes)
        covered |= {*whole}
        targets.append(whole[-count:] if number(4 * m + 3, 2) else whole[:count])
    context = {*block(options.blocks, block_sizes(side, options.context, SQUARE))}
    predicted = {n for one in targets for n in one}
    first = 4 * (options.blocks + 1)

    def order(n: int) -> tuple[bool, bool, bool, int]:
        hashed = int(rng.bits(stream, first + n)[0]) % 2**64 // 2**33
        outside = n not in context and n not in covered
        return n in predicted, n in covered, outside, hashed

    visible = sorted(range(side**2), key=order)[: math.floor(options.visible * side**2 + 0.5)]
    return sorted(visible), targets


@pytest.mark.parametrize(
    ("side", "own"), [(4, {}), (4, {"visible": 0.5}), (8, {"area": [0.2, 0.3], "visible": 0.25})]
)
def test_the_draw_is_that_of_loops(side: int, own: dict) -> None:
    options, key = IjepaOptions(**own), keys(40)
    found = BlockMasks(side, options)(key)
    for i, one in enumerate(key.tolist()):
        wanted = slow_blocks(one, side, options)
        assert (found.visible_BV[i].tolist(), found.target_BMK[i].tolist()) == wanted


@settings(max_examples=30)
@given(
    side=st.integers(2, 16),
    blocks=st.integers(1, 5),
    low=st.floats(0.05, 0.3),
    more=st.floats(0, 0.2),
    context=st.floats(0.3, 1),
    visible=st.floats(0.05, 0.5),
    seed=st.integers(0, 10**6),
)
def test_sizes_are_exact_and_no_target_is_visible(
    side: int, blocks: int, low: float, more: float, context: float, visible: float, seed: int
) -> None:
    """Whatever the options are that leave a context; a target lies in a rectangle of its size."""
    options = IjepaOptions(
        blocks=blocks, area=[low, low + more], context=[context, 1.0], visible=visible
    )
    sizes = block_sizes(side, options.area, options.aspect)
    count = trimmed_count(sizes)
    masks = BlockMasks(side, options)
    assume(blocks * count + masks.visible <= side**2)
    found = masks(keys(8, seed))
    assert found.visible_BV.shape == (8, masks.visible)
    assert found.target_BMK.shape == (8, blocks, count)
    tallest, widest = (max(size[axis] for size in sizes) for axis in (0, 1))
    for visible_V, target_MK in zip(found.visible_BV, found.target_BMK, strict=True):
        assert len({*visible_V.tolist()}) == masks.visible
        for target_K in target_MK:
            assert len({*target_K.tolist()}) == count
            assert {*target_K.tolist()}.isdisjoint(visible_V.tolist())
            assert int((target_K // side).max() - (target_K // side).min()) < tallest
            assert int((target_K % side).max() - (target_K % side).min()) < widest
