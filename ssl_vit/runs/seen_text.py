"""Describe which images of an evaluation a run, and the runs before it, have seen. No torch.

The runs before it are those that its initial weights come from.
"""

from collections.abc import Iterable, Sequence

from ..formatting import SPLIT_NAMES
from ..recipe.records.run import Environment, Result, SeenImages

# Share of a split's images. Published sets have copies of training images among their test images.
# Up to this share, they change an accuracy by at most 0.1 percentage points, and are reported
# without a warning
FEW_COPIES = 0.001


def recorded(result: Result | None, environment: Environment) -> list[SeenImages]:
    """Return the record of seen images from result.json or, before the end, environment.json.

    environment.json does not contain the images of the run itself.
    """
    return (result and result.seen) or environment.seen or []


def learned_labels(seen: Iterable[SeenImages], split: str = "test") -> int:
    """Return how many images of a split have labels that were learned, the most of several runs.

    Return 0 up to the share FEW_COPIES.
    """
    counts = ((images.labels.get(split, 0), images.of.get(split, 0)) for images in seen)
    return max((count for count, of in counts if count > FEW_COPIES * of), default=0)


def sentence(one: SeenImages) -> str:
    """Describe what a run has seen, without a full stop."""
    if not any(one.images.values()):
        if one.unknown:
            return f"the images that {one.run} was trained on are unknown{one.unknown}"
        named = " and ".join(SPLIT_NAMES[split] for split in one.of)
        return f"{one.run} was trained on none of the {named} images"
    how = "without labels"
    if one.labels == one.images:
        how = "with their labels"
    elif any(one.labels.values()):
        how = f"with the labels of {_counted(one.labels, {})} images"
    more = f", and possibly on more{one.unknown}" if one.unknown else ""
    return f"{one.run} was trained on {_counted(one.images, one.of)} images, {how}{more}"


def cautions(seen: Iterable[SeenImages]) -> list[str]:
    """Return cautions for results on test images with labels that a run has learned."""
    caution = "Results on the test images do not hold for unseen images"
    return [f"{sentence(images)}. {caution}" for images in seen if learned_labels([images])]


def _counted(images: dict[str, int], of: dict[str, int]) -> str:
    """Describe counts, like `6 of 10 test and 1 held-out`.

    The total is given where it differs. Splits with no such image are left out.
    """
    texts = []
    for split, count in images.items():
        among = f" of {of[split]:,}" if of.get(split, count) != count else ""
        if count:
            texts.append(f"{count:,}{among} {SPLIT_NAMES[split]}")
    return " and ".join(texts)


def lines(seen: Sequence[SeenImages]) -> list[str]:
    """Return a sentence for each run, with a warning if labels of test images were learned."""
    return [("warning: " if learned_labels([images]) else "") + sentence(images) for images in seen]
