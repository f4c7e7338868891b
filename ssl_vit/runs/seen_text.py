"""What the runs that initial weights come from have seen of the images that a run is measured on,
in words. No torch here."""

from collections.abc import Iterable, Sequence

from ..recipe.records.run import SeenImages

NAMES = {"test": "test", "validation": "held-out"}


def learned_labels(seen: Iterable[SeenImages], split: str = "test") -> int:
    """Of how many images of a split the labels were learned; of several runs the most."""
    return max((one.labels.get(split, 0) for one in seen), default=0)


def sentence(one: SeenImages) -> str:
    """What one of these runs has seen, without a full stop."""
    if one.unknown:
        return f"which images {one.run} was trained on is not known{one.unknown}"
    if not any(one.images.values()):
        return f"{one.run} was trained on none of the {_named(one.of)} images"
    how = "without labels"
    if one.labels == one.images:
        how = "with their labels"
    elif any(one.labels.values()):
        how = f"with the labels of {_counted(one.labels)}"
    return f"{one.run} was trained on {_counted(one.images)} images, {how}"


def cautions(seen: Iterable[SeenImages]) -> list[str]:
    """What to say beside results on test images whose labels were learned before."""
    caution = "what is measured on the test images is no measure of images that it has not seen"
    return [f"{sentence(one)}: {caution}" for one in seen if learned_labels([one])]


def _named(splits: Iterable[str]) -> str:
    return " and ".join(NAMES[split] for split in splits)


def _counted(images: dict[str, int]) -> str:
    """As `6 test and 1 held-out`; a split of none is left out."""
    return " and ".join(f"{count:,} {NAMES[split]}" for split, count in images.items() if count)


def lines(seen: Sequence[SeenImages]) -> list[str]:
    """A sentence for each, a warning where labels of test images were learned."""
    return [("warning: " if learned_labels([one]) else "") + sentence(one) for one in seen]
