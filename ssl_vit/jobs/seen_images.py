"""How many of the images that a run is measured on it has trained on, or the runs that its initial
weights come from: by their contents (`trained_on`), wherever they lie."""

from functools import cached_property
from pathlib import Path

import numpy as np

from ..data import loaders
from ..data.contents import hashes_of, is_among
from ..data.run_splits import Splits
from ..data.source import Source
from ..evaluation import split_images
from ..recipe.records.run import SeenImages
from ..recipe.schema import Recipe, chosen_on_held_out
from ..runs import identity
from ..runs.folder import Run
from ..training.distributed import WatchedAccelerator, on_main
from . import trained_on

NO_RECORD = ": it has no record of its images"
NOT_HERE = ": it or its recipe is not here"
FIRST_STEPS = " for all: it has no record of its first steps"


class MeasuredImages:
    """The test images of a run, and the held-out ones that it is measured on.

    Args:
        recipe: of the run.
        splits: its images.
    """

    def __init__(self, recipe: Recipe, splits: Splits) -> None:
        self.parts: dict[str, tuple[Source, np.ndarray]] = {}  # {split: images, rows of them}
        if splits.test is not None:
            self.parts["test"] = splits.test, np.arange(len(splits.test))
        apart = split_images.held_out_split(recipe) == "validation"
        if apart and (recipe.trains or chosen_on_held_out(recipe)):
            held_out = splits.validation
            most = recipe.eval.images if recipe.trains else len(held_out)
            if recipe.checkpoint.best:  # k-NN takes others than those that chose (online.prepare)
                most *= 2
            self.parts["validation"] = held_out, loaders.held_out_rows(held_out, most)

    @cached_property
    def hashes(self) -> dict[str, np.ndarray]:
        """{split: the hash of each image}; they are read when they are first asked for."""
        return {split: hashes_of(*part) for split, part in self.parts.items()}

    def seen_by(self, run: str, record: trained_on.Record | None) -> list[SeenImages]:
        """How many of them are in a run's record; nothing where there are none.

        Args:
            run: the run's folder.
            record: what it has trained on; None: it has no record.
        """
        if not self.parts:
            return []
        if record is None:
            return [SeenImages(run=run, unknown=NO_RECORD)]
        of = {split: len(rows) for split, (_, rows) in self.parts.items()}
        images, labels = (
            {split: int(is_among(one, known).sum()) for split, one in self.hashes.items()}
            for known in (record.images, record.labels)
        )
        unknown = "" if record.complete else FIRST_STEPS
        if len(record.images) >= trained_on.LIMIT and not record.complete:
            unknown = f" for all: it has more than {trained_on.LIMIT:,}"
        return [SeenImages(run=run, of=of, images=images, labels=labels, unknown=unknown)]


def load_or_find(
    run: Run, measured: MeasuredImages, prints: dict[str, str], accelerator: WatchedAccelerator
) -> list[SeenImages]:
    """As `seen_images`, of the process that writes and prints it, and nothing of the others; what
    the run's folder records of it, as the weights may be gone since. It is looked for again where
    test images have come, with eval.test since the run began.

    Args:
        run: the run that is measured.
        measured: the images that it is measured on.
        prints: the fingerprints of its splits, as environment.json has them.
        accelerator: of its processes.
    """

    def find() -> list[SeenImages]:
        if (run.folder / "environment.json").exists():
            facts = run.environment()
            if facts.seen is not None and prints.keys() <= facts.data.keys():
                return facts.seen
        return seen_images(run.recipe, measured)

    return on_main(accelerator, find) or []


def without_paths(seen: list[SeenImages]) -> list[SeenImages]:
    """What files have of it: no paths of this machine."""
    return [one.model_copy(update={"run": Path(one.run).name}) for one in seen]


def seen_images(recipe: Recipe, measured: MeasuredImages) -> list[SeenImages]:
    """What the runs that a run's initial weights and teachers come from have seen of the images
    that it is measured on, the latest first."""
    found: list[SeenImages] = []
    for run, before in identity.runs_before(recipe):
        if before:
            found += measured.seen_by(str(run), trained_on.read(run))
        else:  # what is not here any more, or of a plugin, keeps nobody from going on
            found.append(SeenImages(run=str(run), unknown=NOT_HERE))
    return found
