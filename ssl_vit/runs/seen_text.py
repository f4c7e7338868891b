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
    """Return the number of images of a split whose labels a run has learned.

    Of several runs, the largest number is returned. A number up to the share `FEW_COPIES` of the
    split counts as 0, because so few images barely change an accuracy.

    Args:
        seen: Counts of images that each run was trained on.
        split: Name of the split.
    """
    largest = 0
    for images in seen:
        count = images.labels.get(split, 0)
        if count > FEW_COPIES * images.of.get(split, 0):
            largest = max(largest, count)
    return largest


def describe_seen(seen: SeenImages) -> str:
    """Describe which images of an evaluation a run was trained on.

    Args:
        seen: Numbers for each split of the evaluation: of all its images (`of`), of the images that
            the run was trained on (`images`), and of those whose label the run has learned
            (`labels`). `unknown` says why the numbers may be too small, or is empty.

    Returns:
        A sentence or two without the last full stop, such as `mae was trained on 6 of 10 test
        images, with their labels`.
    """
    has_seen_images = any(seen.images.values())
    if not has_seen_images and seen.unknown:
        return f"the images that {seen.run} was trained on are unknown ({seen.unknown})"
    if not has_seen_images:
        split_names = " and ".join(SPLIT_NAMES[split] for split in seen.of)
        return f"{seen.run} was trained on none of the {split_names} images"
    counts = f"{seen.run} was trained on {_counted(seen.images, seen.of)} images"
    if seen.labels == seen.images:
        counts = f"{counts}, with their labels"
    elif any(seen.labels.values()):
        counts = f"{counts} and learned the labels of {_counted(seen.labels, {})} images"
    else:
        counts = f"{counts}, without labels"
    if seen.unknown:
        return f"{counts}. It may have been trained on more images ({seen.unknown})"
    return counts


def cautions(seen: Iterable[SeenImages]) -> list[str]:
    """Return cautions for results on test images with labels that a run has learned."""
    return [
        f"{describe_seen(images)}. Results on the test images do not hold for unseen images"
        for images in seen
        if learned_labels([images])
    ]


def _counted(images: dict[str, int], of: dict[str, int]) -> str:
    """Describe numbers of images, such as `6 of 10 test and 1 held-out`.

    A total is named if it differs from the number. Splits with 0 images are left out.

    Args:
        images: `{split: number of images}`.
        of: `{split: number of all images}`.
    """
    texts = []
    for split, count in images.items():
        total = of.get(split, count)
        of_total = "" if count == total else f" of {total:,}"
        if count:
            texts.append(f"{count:,}{of_total} {SPLIT_NAMES[split]}")
    return " and ".join(texts)


def lines(seen: Sequence[SeenImages]) -> list[str]:
    """Return a sentence for each run, with a warning if labels of test images were learned."""
    return [
        f"warning: {describe_seen(images)}" if learned_labels([images]) else describe_seen(images)
        for images in seen
    ]
