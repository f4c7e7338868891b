"""How many of the training images a share takes, and how many are held out. No torch here."""


def share_count(share: float, count: int) -> int:
    """Images of a share of `count`: one at least."""
    return count if share == 1 else max(1, round(share * count))


def held_out_count(share: float | None, count: int) -> int:
    """Of `count` training images those that are held out: a share of them or, with None, 1%, at
    most 10,000; one at least, and not all."""
    wanted = min(count // 100, 10_000) if share is None else round(share * count)
    return max(1, min(wanted, count - 1))
