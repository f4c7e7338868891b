"""How many of n things a share takes: patches, training images, held-out ones. No torch here, nor
NumPy, which --help does without."""


def share_count(share: float, count: int) -> int:
    """Images of a share of `count`: one at least."""
    return count if share == 1 else max(1, round(share * count))


def held_out_count(share: float | None, count: int) -> int:
    """Of `count` training images those that are held out: a share of them or, with None, 1%, at
    most 10,000; one at least, and not all."""
    wanted = min(count // 100, 10_000) if share is None else round(share * count)
    return max(1, min(wanted, count - 1))


def selected_count(rate: float, n: int) -> int:
    """floor(rate n + 1/2), at least 1: the number of n items that `rate` selects. Rounded to 9
    decimals first, so that 0.58 x 25 is 14.5 and not the float below it."""
    return max(1, int(round(rate * n, 9) + 0.5))


def fewer_than(patches: int) -> str:
    """The masking rates that leave one of an image's patches (`selected_count` below all)."""
    return f"expected less than {1 - 0.5 / patches:g}"
