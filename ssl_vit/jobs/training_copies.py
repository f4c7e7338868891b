"""Count the test images that are copies of training images, and show them on a page."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from ..data import run_splits
from ..data.contents import count_copies, hashes_of
from ..data.pixel_values import decoder
from ..data.source import Source
from ..errors import UserError
from ..evaluation import near_copies
from ..evaluation.baselines import metrics_with_baselines
from ..evaluation.features import Right
from ..formatting import text_line
from ..pages import blocks
from ..pages.blocks import Block, Gallery, Section, Text
from ..recipe.records.run import TrainingCopies
from ..recipe.schema import Data, Recipe
from ..runs import seen_text
from ..runs.identity import runs_before
from .nearest_images import thumbnail

SHOWN = 500  # pairs on a page


class Images(NamedTuple):
    """Images of a split, and the options that say how their pixels are read."""

    source: Source
    data: Data


ShownPair = tuple[near_copies.CopyPair, Images]  # with the split of the training image


def training_images(recipe: Recipe, train: Source) -> tuple[list[Images], list[str]]:
    """Return the images that probes learn from, and the images of the earlier runs.

    Images of an earlier run are left out if the probes learn from them anyway.

    Args:
        recipe: Recipe of the evaluation.
        train: Images that probes learn from.

    Returns:
        The images, and the names of the earlier runs whose images cannot be read on this machine or
        are a stream.
    """
    found, missing = [Images(train, recipe.data)], []
    for folder, before in runs_before(recipe):
        if before is None or before.data.stream:
            missing.append(folder.name)
            continue
        try:
            source = run_splits.load(before.data, test=False).train
        except UserError:
            missing.append(folder.name)
            continue
        rows = np.arange(len(source))
        for other, options in found:
            if _place(before.data) == _place(options):  # otherwise, equal rows are other images
                rows = rows[~np.isin(source.store_rows()[rows], other.store_rows())]
        found.append(Images(source.subset(rows), before.data))
    return found, missing


def _place(data: Data) -> tuple[str | None, ...]:
    """Return the options that say where the images of a split are stored."""
    return str(data.location), data.train, data.image_column


def measure(
    test: Images,
    train: Sequence[Images],
    not_compared: list[str],
    right: dict[str, Right],
    paired: bool,
    device: torch.device,
) -> tuple[TrainingCopies, str]:
    """Count the copies, and measure the accuracies without the copies.

    Args:
        test: Labelled test images.
        train: Training images.
        not_compared: Earlier runs whose images are not among the training images.
        right: {encoder or baseline: {measure: bool (T, M)}}, for the M test images that can be
            read: whether a probe classifies each image correctly in each draw.
        paired: Whether differences from baselines are measured.
        device: Device that compares the images.

    Returns:
        The numbers of images and the accuracies, and a page that shows the copies as HTML. Without
        copies, the page is empty.
    """
    thumbnails = near_copies.read_thumbnails(*test)
    best: dict[int, ShownPair] = {}  # {row of a test image: the most similar training image}
    among = 0
    for images in train:
        compared = near_copies.read_thumbnails(*images)
        among += len(compared.row_N)
        for pair in near_copies.find_copies(thumbnails, compared, device):
            if pair.test not in best or pair.similarity > best[pair.test][0].similarity:
                best[pair.test] = pair, images
    row_M = thumbnails.row_N
    others_M = ~np.isin(row_M, [*best])
    measurements = []
    if best and others_M.any():
        remaining = row_M[others_M]
        hashes = hashes_of(test.source, remaining)
        repeated = count_copies(hashes, test.source.label_of(remaining))
        right_of_others = {
            name: {measure: right_TM[:, others_M] for measure, right_TM in by_measure.items()}
            for name, by_measure in right.items()
        }
        measurements = metrics_with_baselines(right_of_others, "test", repeated, paired)
    copies = TrainingCopies(
        images=len(best),
        of=len(row_M),
        among=among,
        measurements=measurements,
        not_compared=not_compared,
    )
    pairs = [best[row] for row in sorted(best)]
    return copies, _page(pairs, test, copies) if pairs else ""


def _page(pairs: Sequence[ShownPair], test: Images, copies: TrainingCopies) -> str:
    """Return a page with the two images of each pair side by side, as HTML."""
    content: list[Block] = [
        Text(f"{seen_text.describe_copies(copies)}. Each row shows a test image and the copy.")
    ]
    if len(pairs) > SHOWN:
        content.append(Text(f"The page shows the first {SHOWN:,} pairs."))
    for pair, train in pairs[:SHOWN]:
        pictures = []
        for split, images, row in (("test", test, pair.test), ("training", train, pair.train)):
            raw = images.source.fetch(np.array([row]))[0][0]
            png = thumbnail(decoder(images.data)(raw), images.data)
            caption = f"{split}: {text_line(images.source.file_of(row))}"
            pictures.append(blocks.Image(png, caption, caption))
        content.append(Gallery(pictures))
    return blocks.html("Test images that are copies of training images", [Section("", content)])
