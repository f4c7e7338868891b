"""Every picture of a split classified once, on one or many processes: top-1, top-5 and ImageNet-ReaL, and who was right where.

Legend: M pictures, C classes, K the classes told first (at most 5).
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object

from ..data.batches import Batch
from ..data.sources import Source
from ..engine import to_device
from ..files import read_json
from ..objectives import Objective
from ..recipe import UserError

IMAGENET = 50_000  # pictures of its validation split


class Predictions(NamedTuple):
    """int64: `index` (M,) of the pictures in their split, ascending; `label` (M,), -1 for none; `top5` (M, K), best first.
    `unread` names the pictures that could not be read: they have no label, and nothing is measured on them."""

    index: np.ndarray  # type: ignore[assignment]
    label: np.ndarray
    top5: np.ndarray
    unread: tuple[str, ...] = ()

    def save(self, path: Path) -> None:
        np.savez_compressed(path, index=self.index, label=self.label, top5=self.top5)


@torch.no_grad()
def predict(objective: Objective, batches: Iterable[Batch], accelerator: Accelerator) -> Predictions:
    """What the objective's classifier says of this process's batches, brought together on all processes."""
    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    unread: list[str] = []
    for batch in batches:
        unread += batch.unread
        logits_BC = objective.logits(to_device(batch, accelerator.device)).float()
        top_BK = logits_BC.topk(min(5, logits_BC.shape[1]), dim=1).indices.cpu().numpy()
        parts.append((batch.index.numpy(), batch.label.numpy(), top_BK))
    everyone = gather_object(parts)
    index, label, top5 = (np.concatenate(arrays) for arrays in zip(*everyone, strict=True))
    order = index.argsort()
    return Predictions(index[order], label[order], top5[order], tuple(gather_object(unread)))


def measure(told: Predictions, classes: int) -> dict[str, tuple[float, int]]:
    """{name: (value, n)} of top-1 and, with more than five classes, top-5, over the labelled pictures."""
    known_M = told.label >= 0
    hit_MK = (told.top5 == told.label[:, None])[known_M]
    ranks = {"top1": 1} | ({"top5": 5} if classes > 5 else {})
    return {name: (float(hit_MK[:, :rank].any(1).mean()), len(hit_MK)) for name, rank in ranks.items()}


def real(told: Predictions, source: Source, path: str) -> dict[str, tuple[float, int]]:
    """ImageNet-ReaL (Beyer et al., 2020): the share of pictures whose first class is among those that people saw in them.

    Pictures in which they saw none are left out. `path` is the published real.json: a list of lists, in the order of the
    numbers in the files' names.

    Raises:
        UserError: no such list, or pictures whose names lack ImageNet's numbers.
    """
    try:
        seen = read_json(Path(path), [[int]])
    except (OSError, ValueError) as error:
        raise UserError(f"eval.real={path}: {error}") from None
    if len(seen) != IMAGENET:
        raise UserError(f"eval.real={path}: a list of {IMAGENET:,} lists is asked for")
    numbers = [re.search(r"val_(\d{8})", source.name(int(row))) for row in told.index]
    if not all(numbers):
        raise UserError(f"eval.real={path}: data.test's pictures are not named as ImageNet's (ILSVRC2012_val_00000001.JPEG)")
    classes = [seen[int(number[1]) - 1] for number in numbers if number]
    right = [first in these for first, these in zip(told.top5[:, 0].tolist(), classes, strict=True) if these]
    return {"real": (float(np.mean(right)), len(right))}
