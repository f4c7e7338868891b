"""Convert shares to numbers of patches, training images or held-out images.

This module imports neither torch nor NumPy, so that --help is fast.
"""


def share_count(share: float, count: int) -> int:
    """Return the number of images in a share of `count` images.

    The result is at least 1. For example, a share of 0.001 of 50 images is 1 image.
    """
    return count if share == 1 else max(1, round(share * count))


def held_out_count(share: float | None, count: int) -> int:
    """Return the number of held-out images: at least 1 and at most `count` - 1.

    For example, (0.1, 500) gives 50, and (None, 500) gives 5.

    Args:
        share: Share of the training images to hold out. None: 1%, but at most 10,000 images.
        count: Number of training images, at least 2.
    """
    wanted = min(count // 100, 10_000) if share is None else round(share * count)
    return max(1, min(wanted, count - 1))


def selected_count(rate: float, n: int) -> int:
    """Return the number of items in a share `rate` of n items: floor(rate n + 1/2), at least 1.

    As a float, 0.58 x 25 is just below 14.5 and would give 14 instead of 15. Therefore rate n is
    first rounded to 9 decimals.
    """
    return max(1, int(round(rate * n, 9) + 0.5))


def fewer_than(patches: int) -> str:
    """Return the advice to use a masking rate that leaves at least 1 patch of an image visible.

    For 4 patches, the advice is "Use less than 0.875". At 0.875 or more, `selected_count` would
    round up to all 4 patches.
    """
    return f"Use less than {1 - 0.5 / patches:g}"
