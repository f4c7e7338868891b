"""Whether the runs that initial weights come from trained on the images that a run is measured
on."""

from collections.abc import Collection
from pathlib import Path

import numpy as np

from ..data import fingerprints, sources
from ..data.layout import role
from ..data.source import Source, labelled_images, same_store
from ..data.sources import Splits
from ..errors import UserError
from ..recipe.images import Data
from ..recipe.records.run import SeenImages
from ..recipe.schema import Recipe, learns_labels
from ..runs import identity
from ..runs.folder import Run
from ..training.distributed import WatchedAccelerator, on_main

MOST = 2**24  # training images whose rows are compared
CHANGED = ": its images have changed since"
STREAM = ": it read a stream"
NOT_HERE = ": it, its recipe or its images are not here"


def recorded_or_found(
    run: Run, splits: Splits, prints: dict[str, str], accelerator: WatchedAccelerator
) -> list[SeenImages]:
    """As `seen_images`, of the process that writes and prints it, and nothing of the others; what
    the run's folder records of it, as the weights may be gone since. It is looked for again where
    test images have come, with eval.test since the run began.

    Args:
        run: the run that is measured.
        splits: its images.
        prints: their fingerprints, as environment.json has them.
        accelerator: of its processes.
    """
    return on_main(accelerator, lambda: _recorded_or_found(run, splits, prints)) or []


def _recorded_or_found(run: Run, splits: Splits, prints: dict[str, str]) -> list[SeenImages]:
    if (run.folder / "environment.json").exists():
        facts = run.environment()
        if facts.seen is not None and prints.keys() <= facts.data.keys():
            return facts.seen
    return seen_images(run.recipe, splits, prints)


def recorded(seen: list[SeenImages]) -> list[SeenImages]:
    """What files have of it: no paths of this machine."""
    return [one.model_copy(update={"run": Path(one.run).name}) for one in seen]


def record(seen: list[SeenImages]) -> list[dict[str, object]]:
    """As `recorded`, for environment.json."""
    return [one.content() for one in recorded(seen)]


def seen_images(recipe: Recipe, splits: Splits, prints: dict[str, str]) -> list[SeenImages]:
    """Which test and held-out images of a run those runs have seen that its initial weights come
    from and that trained on images of the same place, or of the same fingerprint. Nothing of
    streams, and of more than MOST images."""
    if splits.stream or len(splits.train) > MOST:
        return []
    found: list[SeenImages] = []
    place = recipe.init
    try:
        for run, before in identity.runs_before(place):
            place = before.init
            found += _of_run(run, before, recipe, splits, prints)
    except UserError:  # what is not here any more, or of a plugin, keeps nobody from going on
        found.append(SeenImages(run=place, unknown=NOT_HERE))
    return found


def _of_run(
    run: Path, before: Recipe, recipe: Recipe, splits: Splits, prints: dict[str, str]
) -> list[SeenImages]:
    """What one run has seen, whose recipe is `before`; nothing where its images are others."""
    try:
        data = _same_images(run, before.data, recipe.data, prints)
        if data is None:
            return []
        if data.stream:
            return [SeenImages(run=str(run), unknown=STREAM)]
        was = identity.recorded(run, "data").get("train")
        trained = sources.load(data).train
        if was and was != fingerprints.fingerprint_train(trained, bool(data.group)):
            return [SeenImages(run=str(run), unknown=CHANGED)]
        learned = labelled_images(trained) if learns_labels(before) else None
        alike = {split for split, text in prints.items() if text == was}
        of_splits = _measured(recipe.data, splits, data, alike)
        if not of_splits:
            return []
        seen = [_counts(of_splits, one) for one in (trained, learned)]
        of = {split: len(part) for split, (part, _) in of_splits.items()}
        return [SeenImages(run=str(run), of=of, images=seen[0], labels=seen[1])]
    except UserError:  # of the runs before it they may be known
        return [SeenImages(run=str(run), unknown=NOT_HERE)]


def _same_images(run: Path, before: Data, now: Data, prints: dict[str, str]) -> Data | None:
    """The `data` of a run with the place that its images have now; None where they are others."""
    if _place(before) == _place(now):
        return before
    if before.stream or not (run / "environment.json").exists():
        return None
    was = identity.recorded(run, "data").get("train")
    names = {"train": now.train, "validation": now.validation, "test": now.test}
    for split, name in names.items():  # a copy of them in another place
        if was is not None and was == prints.get(split) and isinstance(name, str):
            there = before.model_copy(update={"name": now.name, "path": now.path, "hub": now.hub})
            return there.model_copy(update={"train": name})
    return None


def _measured(
    now: Data, splits: Splits, before: Data, alike: Collection[str]
) -> dict[str, tuple[Source, bool]]:
    """{split: its images, and whether their rows are those of what another run trained on}: of the
    test and the held-out images.

    Args:
        now, splits: of the run that is measured.
        before: the `data` of the other.
        alike: splits with the fingerprint of what it trained on.
    """
    found: dict[str, tuple[Source, bool]] = {}

    def add(split: str, part: Source, name: str) -> None:
        """`name` is empty of a share of the training images."""
        same = role(name or now.train) == role(before.train)
        found[split] = part, same or (bool(name) and split in alike)

    if splits.test is not None:
        add("test", splits.test, now.test if isinstance(now.test, str) else "")
    if now.validation != 0:
        named = now.validation if isinstance(now.validation, str) else "validation"
        shared = same_store(splits.validation, splits.train)
        add("validation", splits.validation, "" if shared else named)
    return found


def _counts(measured: dict[str, tuple[Source, bool]], among: Source | None) -> dict[str, int]:
    """{split: how many of its images are among others}."""
    return {
        split: int(np.isin(_rows(part), _rows(among)).sum()) if among is not None and same else 0
        for split, (part, same) in measured.items()
    }


def _rows(source: Source) -> np.ndarray:
    return source.store_rows()


def _place(data: Data) -> tuple[str | None, ...]:
    """Where images are."""
    if data.path:
        return (str(Path(data.path).resolve()),)
    return (None, data.hub or data.name)
