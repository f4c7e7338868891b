"""Describe which evaluation images a run and its earlier runs were trained on. No torch.

Earlier runs are the runs that the initial weights come from.
"""

from collections.abc import Iterable, Sequence

from ..formatting import SPLIT_NAMES, list_names
from ..recipe.records.run import Environment, Result, SeenImages, TrainingCopies

# Published data sets have copies of training images among the test images. Up to this share of a
# split, copies change an accuracy by at most 0.1 percentage points and cause no warning.
FEW_COPIES = 0.001
COPIES_PAGE = "copies.html"


def recorded(result: Result | None, environment: Environment) -> list[SeenImages]:
    """Return the record of seen images from result.json or, for unfinished runs, environment.json.

    environment.json has only the counts of earlier runs. Only result.json also has the counts of
    the run itself.
    """
    return (result and result.seen) or environment.seen or []


def learned_labels(seen: Iterable[SeenImages], split: str = "test") -> int:
    """Return the number of images of a split whose labels a run has learned.

    If several runs have learned labels, the result is the largest of their numbers. A number up to
    the share `FEW_COPIES` of the split counts as 0, because so few images barely change an
    accuracy.

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
        seen: Numbers of images for each split of the evaluation: all images (`of`), images that the
            run was trained on (`images`), and images whose label the run has learned (`labels`).
            `unknown` says why the numbers may be too small, or is empty.

    Returns:
        One or two sentences without the last full stop, such as `mae was trained on 6 of 10 test
        images, with their labels`.
    """
    if not any(seen.images.values()):
        if seen.unknown:
            return f"the images that {seen.run} was trained on are unknown ({seen.unknown})"
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


def describe_copies(copies: TrainingCopies) -> str:
    """Describe how many test images are copies of training images, without the last full stop."""
    count = f"{copies.images:,}" if copies.images else "none"
    among = f"{copies.among:,} training images"
    sentence = f"{count} of {copies.of:,} test images are copies of one of {among}"
    if copies.not_compared:
        runs = list_names(copies.not_compared)
        return f"{sentence}. The training images of {runs} were not compared"
    return sentence


def cautions(seen: Iterable[SeenImages]) -> list[str]:
    """Return a caution for each run that has learned labels of test images."""
    return [
        f"{describe_seen(images)}. Results on the test images do not hold for unseen images"
        for images in seen
        if learned_labels([images])
    ]


def _counted(images: dict[str, int], totals: dict[str, int]) -> str:
    """Describe numbers of images, such as `6 of 10 test and 1 held-out`.

    The total of a split ("of 10") is named only if it differs from the number. Splits with 0 images
    are left out.

    Args:
        images: `{split: number of images}`.
        totals: `{split: number of all images}`. A split without an entry has no total.
    """
    texts = []
    for split, count in images.items():
        total = totals.get(split, count)
        of_total = "" if count == total else f" of {total:,}"
        if count:
            texts.append(f"{count:,}{of_total} {SPLIT_NAMES[split]}")
    return " and ".join(texts)


def lines(seen: Sequence[SeenImages]) -> list[str]:
    """Describe the seen images of each run, as a warning if labels of test images were learned."""
    return [
        f"warning: {describe_seen(images)}" if learned_labels([images]) else describe_seen(images)
        for images in seen
    ]
