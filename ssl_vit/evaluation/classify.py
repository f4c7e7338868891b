"""Classifies every image of a split once, on any number of processes: top-1, top-5, ImageNet-ReaL,
and the predictions themselves.

Legend: M images, C classes, K the highest-scored classes (at most 5).
"""

import io
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from ..data.batching import Batch
from ..data.source import Source
from ..errors import UserError
from ..objectives.base import Objective
from ..recipe import records
from ..runs.files import write_atomically
from ..training.distributed import WatchedAccelerator
from ..training.loop import to_device

IMAGENET = 50_000  # images of its validation split


class Predictions(NamedTuple):
    """int64: `index` (M,) of the images in their split, ascending; `label` (M,), -1 for none, or
    lists of labels (M, L), as `data.labels.padded`; `top5` (M, K), best first. `classes` is how
    many the classifier knows."""

    index: np.ndarray  # type: ignore[assignment]
    label: np.ndarray
    top5: np.ndarray
    classes: int = 0

    def save(self, path: Path, source: Source) -> None:
        """As .npz, with `image` (M,): the files of the images, or their names, in the split."""
        image = np.array([source.file_of(row) for row in self.index.tolist()], np.str_)
        content = io.BytesIO()
        np.savez_compressed(
            content, index=self.index, label=self.label, top5=self.top5, image=image
        )
        write_atomically(path, content.getvalue())


@torch.no_grad()
def predict(
    objective: Objective, batches: Iterable[Batch], accelerator: WatchedAccelerator
) -> Predictions:
    """The classifier's predictions for the batches of all processes, gathered on each of them."""
    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    classes = 0
    for batch in batches:
        logits_BC = objective.logits(to_device(batch, accelerator.device)).float()
        classes = logits_BC.shape[1]
        top_BK = logits_BC.topk(min(5, logits_BC.shape[1]), dim=1).indices.cpu().numpy()
        parts.append((batch.index.numpy(), batch.label.numpy(), top_BK))
    everyone = accelerator.gather_parts(parts)
    index, label, top5 = (np.concatenate(arrays) for arrays in zip(*everyone, strict=True))
    order = index.argsort()
    most = max(accelerator.gather_parts([classes]))  # a process may have had no image
    return Predictions(index[order], label[order], top5[order], most)


def accuracies(predictions: Predictions, classes: int) -> dict[str, tuple[float, int]]:
    """{name: (value, n)} of top-1 and, with more than five classes, top-5, over the images with a
    class: of lists, the share whose highest class, or any of the five, is one of their labels; and
    what top-1 is (`majority_top1`) if the commonest class is always named."""
    label_ML = predictions.label.reshape(len(predictions.label), -1)
    known_M = (label_ML >= 0).any(1)
    if not known_M.any():
        return {}
    label_ML, top_MK = label_ML[known_M], predictions.top5[known_M]
    correct_MK = (top_MK[:, :, None] == label_ML[:, None]).any(2)
    ranks = {"top1": 1} | ({"top5": 5} if classes > 5 else {})
    right = {name: correct_MK[:, :rank].any(1).mean() for name, rank in ranks.items()}
    row, place = np.nonzero(label_ML >= 0)
    named = np.unique(np.stack([row, label_ML[row, place]]), axis=1)[1]  # once by each image
    right["majority_top1"] = np.bincount(named).max() / len(label_ML)
    return {name: (float(share), len(label_ML)) for name, share in right.items()}


def real_accuracy(
    predictions: Predictions, source: Source, path: str
) -> dict[str, tuple[float, int]]:
    """Accuracy on ImageNet-ReaL's labels (Beyer et al., 2020): the share of images whose top-1
    class is one of their labels. Images without a label are left out.

    `path` is the published real.json: a list of lists, in the order of the numbers in the files'
    names.

    Raises:
        UserError: another file, or images whose names lack ImageNet's numbers.
    """
    try:
        seen = records.read(Path(path), list[list[int]])
    except (OSError, ValueError) as error:
        raise UserError(f"eval.real={path}: {error}") from None
    if len(seen) != IMAGENET:
        raise UserError(f"eval.real={path}: expected a list of {IMAGENET:,} lists")
    numbers = [re.search(r"val_(\d{8})", source.name(int(row))) for row in predictions.index]
    if not all(numbers):
        raise UserError(
            f"eval.real={path}: expected images of data.test named as ImageNet's"
            " (ILSVRC2012_val_00000001.JPEG)"
        )
    right = []
    for number, first in zip(numbers, predictions.top5[:, 0].tolist(), strict=True):
        labels = seen[int(number[1]) - 1] if number else []
        if labels:
            right.append(first in labels)
    return {"real": (float(np.mean(right)), len(right))} if right else {}
