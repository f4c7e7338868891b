"""What a run, and those that its initial weights come from, have seen of the images that it is
measured on, in words. No torch here."""

from collections.abc import Iterable, Sequence

from ..formatting import SPLIT_NAMES
from ..recipe.records.run import Environment, Result, SeenImages

# Of the images of a split. Published sets have copies of training images among their test images:
# so many change a share of them by 0.1 percentage points at most, and are said, not warned of.
FEW_COPIES = 0.001


def recorded(result: Result | None, environment: Environment) -> list[SeenImages]:
    """What a run's files have of it: result.json when it has finished, till then environment.json,
    without the run's own."""
    return (result and result.seen) or environment.seen or []


def learned_labels(seen: Iterable[SeenImages], split: str = "test") -> int:
    """Of how many images of a split the labels were learned; of several runs the most. 0 where they
    are FEW_COPIES at most."""
    counts = ((one.labels.get(split, 0), one.of.get(split, 0)) for one in seen)
    return max((count for count, of in counts if count > FEW_COPIES * of), default=0)


def sentence(one: SeenImages) -> str:
    """What one of these runs has seen, without a full stop."""
    if not any(one.images.values()):
        if one.unknown:
            return f"which images {one.run} was trained on is not known{one.unknown}"
        named = " and ".join(SPLIT_NAMES[split] for split in one.of)
        return f"{one.run} was trained on none of the {named} images"
    how = "without labels"
    if one.labels == one.images:
        how = "with their labels"
    elif any(one.labels.values()):
        how = f"with the labels of {_counted(one.labels, {})}"
    more = f"; on which others is not known{one.unknown}" if one.unknown else ""
    return f"{one.run} was trained on {_counted(one.images, one.of)} images, {how}{more}"


def cautions(seen: Iterable[SeenImages]) -> list[str]:
    """What to say beside results on test images whose labels were learned before."""
    caution = "what is measured on the test images is no measure of images that it has not seen"
    return [f"{sentence(one)}: {caution}" for one in seen if learned_labels([one])]


def _counted(images: dict[str, int], of: dict[str, int]) -> str:
    """As `6 of 10 test and 1 held-out`, with the number of all where it is another; a split of none
    is left out."""
    texts = []
    for split, count in images.items():
        among = f" of {of[split]:,}" if of.get(split, count) != count else ""
        if count:
            texts.append(f"{count:,}{among} {SPLIT_NAMES[split]}")
    return " and ".join(texts)


def lines(seen: Sequence[SeenImages]) -> list[str]:
    """A sentence for each, a warning where labels of test images were learned."""
    return [("warning: " if learned_labels([one]) else "") + sentence(one) for one in seen]
