"""Whether the runs that first weights come from trained on the images that a run is measured on."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ..config import recipe_files
from ..config.images import Data
from ..config.init_source import InitSource
from ..config.schema import Recipe, learns_labels
from ..data import fingerprints, sources
from ..data.base import Source, View, origin
from ..data.layout import ROLE
from ..data.sources import Splits
from ..errors import UserError
from ..runs import identity

MOST = 2**24  # training images whose rows are compared


def seen_images(recipe: Recipe, splits: Splits) -> list[str]:
    """What to say of the runs that a run's first weights come from and that trained on images of
    the same place: which of its test and held-out images they have seen; a warning where they have
    learned labels of its test images. Nothing of streams, and of more than MOST images."""
    if splits.stream or len(splits.train) > MOST:
        return []
    found: list[str] = []
    known: set[Path] = set()
    place = recipe.init
    try:
        while (run := InitSource(place).locate().run) and run.resolve() not in known:
            known.add(run.resolve())
            place = str(run)
            before = recipe_files.read(run / "recipe.yaml")
            found += _of_run(run, before, recipe, splits)
            place = before.init
    except UserError:  # what is not here any more, or of a plugin, keeps nobody from going on
        found.append(f"which images {place} was trained on cannot be told")
    return found


def _of_run(run: Path, before: Recipe, recipe: Recipe, splits: Splits) -> list[str]:
    """What to say of one run, whose recipe is `before`."""
    if before.data.stream or _place(before.data) != _place(recipe.data):
        return []
    try:
        return list(_compared(run, before, recipe, splits))
    except UserError:  # the runs that it comes from may be told all the same
        return [f"which images {run} was trained on cannot be told"]


def _compared(run: Path, before: Recipe, recipe: Recipe, splits: Splits) -> Iterator[str]:
    trained = sources.load(before.data).train
    was = identity.recorded(run, "data").get("train")
    if was and was != fingerprints.fingerprint_train(trained, bool(before.data.group)):
        yield (f"which images {run} was trained on cannot be told: its images have changed since")
        return
    seen = {}
    if splits.test is not None:
        named = recipe.data.test if isinstance(recipe.data.test, str) else ""
        seen["test"] = _seen(splits.test, named, trained, before.data, recipe.data)
    if recipe.data.validation != 0:
        named = recipe.data.validation if isinstance(recipe.data.validation, str) else "validation"
        if origin(splits.validation) is origin(splits.train):
            named = ""
        seen["held-out"] = _seen(splits.validation, named, trained, before.data, recipe.data)
    how = "with their labels" if learns_labels(before) else "without labels"
    saw = [f"{count:,} {kind}" for kind, count in seen.items() if count]
    if seen and not saw:
        yield f"{run} was trained on none of the {' and '.join(seen)} images"
    if not saw:
        return
    warns = "warning: " if seen.get("test") and learns_labels(before) else ""
    yield f"{warns}{run} was trained on {' and '.join(saw)} images, {how}"


def _seen(part: Source, named: str, trained: Source, before: Data, now: Data) -> int:
    """How many images of a split, or of a share of the training images (`named` is empty), are
    among those that another run trained on."""
    if _role(named or now.train) != _role(before.train):
        return 0
    return int(np.isin(_rows(part), _rows(trained)).sum())


def _rows(source: Source) -> np.ndarray:
    return source.full_rows() if isinstance(source, View) else np.arange(len(source))


def _role(split: str) -> str:
    return ROLE.get(split.lower(), split)


def _place(data: Data) -> tuple[str | None, ...]:
    """Where images are."""
    if data.path:
        return (str(Path(data.path).resolve()),)
    return (None, data.hub or data.name)
