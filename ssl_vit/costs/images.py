"""How many images a run sees, and what that costs."""

from ..config.images import EMBEDDED, SIZES, Data
from ..config.schema import Recipe
from ..config.split_counts import held_out_count, share_count
from .work import exaflop

# Images of each split as published: JFT after the paper's 4.1, the others after their authors. A
# local copy may hold fewer.
PUBLISHED: dict[str, dict[str, int]] = {
    EMBEDDED: SIZES,
    "cifar10": {"train": 50_000, "test": 10_000},
    "cifar100": {"train": 50_000, "test": 10_000},
    "tinyimagenet": {"train": 100_000, "validation": 10_000},
    "imagenet": {"train": 1_281_167, "validation": 50_000},
    "imagenet21k": {"train": 14_197_122},
    "jft": {"train": 303_000_000},
    "pets": {"train": 3_680, "test": 3_669},
    "flowers102": {"train": 1_020, "validation": 1_020, "test": 6_149},
}


def training_images(data: Data, given: int | None = None) -> int | None:
    """Training images after shares of data.test, data.validation and data.share are taken, of the
    published set or of `given` images; None if neither is known."""
    whole = given or PUBLISHED.get(data.name, {}).get("train")
    if whole is None:
        return None
    whole -= _test_share(data, whole)
    if data.validation_from == "train":
        return share_count(data.share, whole - _held_out(data, whole))
    count = share_count(data.share, whole)
    return count - _held_out(data, count)


def _held_out(data: Data, count: int) -> int:
    """Of `count` images those that data.validation holds out; 0 where that is no share."""
    if not isinstance(data.validation, float) or data.validation == 0:
        return 0
    return held_out_count(data.validation, count)


def _test_share(data: Data, count: int) -> int:
    """Of `count` images those that data.test cuts off; 0 where it names a split."""
    return 0 if isinstance(data.test, str) else held_out_count(data.test, count)


def images_seen(recipe: Recipe, given: int | None = None) -> int | None:
    """Images that a run sends through the encoder: steps x batch, or for an evaluation every image
    once."""
    if recipe.objective != "probe":
        return recipe.optim.steps * recipe.optim.batch
    data = recipe.data
    splits = PUBLISHED.get(data.name, {})
    validation = data.validation if isinstance(data.validation, str) else None
    others = [splits.get(name) for name in (data.test, validation) if isinstance(name, str)]
    train = training_images(Data(name=data.name, share=data.share), given)
    if train is None or None in others:
        return None
    return train + sum(n for n in others if n)


def total_exaflop(recipe: Recipe, images: int | None) -> float | None:
    """ExaFLOP of the run: forward and backward, or for an evaluation forward alone; None where
    they are not counted."""
    work = None if images is None else exaflop(recipe, images)
    return work / 3 if work is not None and recipe.objective == "probe" else work
