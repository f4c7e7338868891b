"""Convert shares to numbers of patches, training images or held-out images.

This module imports neither torch nor NumPy, so that --help is fast.
"""


def share_count(share: float, count: int) -> int:
    """Return the number of images in a share of `count` images, at least 1."""
    return count if share == 1 else max(1, round(share * count))


def held_out_count(share: float | None, count: int) -> int:
    """Return the number of held-out images: at least 1 and at most `count` - 1.

    Args:
        share: Share of the training images to hold out. None: 1%, but at most 10,000 images.
        count: Number of training images, at least 2.
    """
    wanted = min(count // 100, 10_000) if share is None else round(share * count)
    return max(1, min(wanted, count - 1))


def selected_count(rate: float, n: int) -> int:
    """Return the number of items in a share `rate` of n items: floor(rate n + 1/2), at least 1.

    rate n is first rounded to 9 decimals, so that 0.58 x 25 is 14.5 and not the float just below.
    """
    return max(1, int(round(rate * n, 9) + 0.5))


def fewer_than(patches: int) -> str:
    """Return the advice to use a masking rate that leaves at least 1 patch of an image visible.

    Below the rate in the advice, `selected_count` is less than `patches`.
    """
    return f"Use less than {1 - 0.5 / patches:g}"
