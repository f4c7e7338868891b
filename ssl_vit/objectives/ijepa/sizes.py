"""Compute the sizes of I-JEPA's blocks in rows and columns of patches.

This file does not import torch.
"""

import math

from ...recipe.split_counts import selected_count

STEPS = 32  # number of areas, and of aspects, that are tried
SQUARE = [1.0, 1.0]  # aspects of a context block
Size = tuple[int, int]  # rows, columns


def block_sizes(side: int, area: list[float], aspect: list[float]) -> list[Size]:
    """Return the possible sizes (rows, columns) of blocks, for STEPS x STEPS areas and aspects.

    A size that follows from several pairs of area and aspect is listed several times. So a random
    entry of the list is distributed like the size for a random area and a random aspect.

    Sizes are rounded to whole patches as in the authors' multiblock.py (`_sample_block_size`). A
    rounded size may have fewer patches than the smallest area. Such sizes are dropped, because all
    blocks are later trimmed to the smallest size in the list. If all sizes are this small, the
    sizes with the most patches are returned.

    Args:
        side: Side of the image, in patches.
        area: Smallest and largest share of the image's patches in a block.
        aspect: Smallest and largest ratio of rows to columns.
    """
    shares = [(i + 0.5) / STEPS for i in range(STEPS)]
    areas = [_between(area, share) for share in shares]
    aspects = [_between(aspect, share) for share in shares]
    sizes = [_size(side, image_share, ratio) for image_share in areas for ratio in aspects]
    patches_of_smallest_area = selected_count(area[0], side**2)
    most_patches = max(map(math.prod, sizes))
    # If even the largest sizes are below the smallest area, keep the largest sizes
    fewest_patches = min(patches_of_smallest_area, most_patches)
    return [size for size in sizes if math.prod(size) >= fewest_patches]


def _size(side: int, area: float, aspect: float) -> Size:
    """Return the rows and columns of a block, rounded and at most the image's side."""
    patches = max(1, int(area * side**2))
    rows, columns = round(math.sqrt(patches * aspect)), round(math.sqrt(patches / aspect))
    return min(max(rows, 1), side), min(max(columns, 1), side)


def _between(bounds: list[float], share: float) -> float:
    """Interpolate between two bounds: share 0 gives the first bound, share 1 the second."""
    return bounds[0] + share * (bounds[1] - bounds[0])


def trimmed_count(sizes: list[Size]) -> int:
    """Return the number of patches of the smallest size, to which each block is trimmed."""
    return min(map(math.prod, sizes))
