"""Compute the sizes of I-JEPA's blocks in rows and columns of patches.

This file does not import torch.
"""

import math

from ...recipe.split_counts import selected_count

STEPS = 32  # number of areas, and of aspects, that are tried
SQUARE = [1.0, 1.0]  # aspects of a context block
Size = tuple[int, int]  # rows, columns


def block_sizes(side: int, area: list[float], aspect: list[float]) -> list[Size]:
    """Return the possible sizes of a block, each as often as evenly drawn areas and aspects produce
    it.

    Sizes are rounded as in the authors' multiblock.py (`_sample_block_size`). Sizes that rounding
    leaves with fewer patches than the smallest area are left out, because all blocks are trimmed to
    the smallest size. If all sizes are that small, only the largest sizes are kept.

    Args:
        side: side of the image, in patches.
        area: smallest and largest share of the image's patches.
        aspect: smallest and largest ratio of rows to columns.
    """
    shares = [(i + 0.5) / STEPS for i in range(STEPS)]
    sizes = [_size(side, _between(area, i), _between(aspect, j)) for i in shares for j in shares]
    smallest = min(selected_count(area[0], side**2), max(map(math.prod, sizes)))
    return [size for size in sizes if math.prod(size) >= smallest]


def _size(side: int, area: float, aspect: float) -> Size:
    patches = max(1, int(area * side**2))
    rows, columns = round(math.sqrt(patches * aspect)), round(math.sqrt(patches / aspect))
    return min(max(rows, 1), side), min(max(columns, 1), side)


def _between(bounds: list[float], share: float) -> float:
    return bounds[0] + share * (bounds[1] - bounds[0])


def trimmed_count(sizes: list[Size]) -> int:
    """Return the number of patches that each block is trimmed to: the patches of the smallest
    size.
    """
    return min(map(math.prod, sizes))
