"""Classify every image of a split once, on any number of processes.

Measures top-1, top-5 and ImageNet-ReaL, and saves the predictions.

Legend: M images, C classes, K predicted classes per image (the K highest scores, at most 5), L
labels of an image.
"""

import io
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from ..data.batching import Batch
from ..data.contents import count_copies
from ..data.source import Source
from ..errors import UserError
from ..measurements import MetricKey
from ..objectives.base import Objective
from ..recipe import records
from ..recipe.records.run import Measurement
from ..runs.files import write_atomically
from ..training.distributed import WatchedAccelerator
from ..training.loop import to_device
from . import baselines
from .features import ENCODER, check_finite, is_finite

IMAGENET = 50_000  # images in ImageNet's validation split
FEW_REAL = 10  # with fewer ReaL-labelled images, the numbering of the classes is not checked


class Predictions(NamedTuple):
    """Predictions of a classifier, int64.

    Attributes:
        index: Rows of the images in their split, ascending, (M,).
        label: Labels (M,), -1 for none, or lists of labels (M, L) as from `data.labels.pad_lists`.
        top5: Classes with the highest scores, best first, (M, K).
        content: Hash of each image's content, (M,).
        classes: Number of classes that the classifier knows.
    """

    index: np.ndarray  # type: ignore[assignment]
    label: np.ndarray
    top5: np.ndarray
    content: np.ndarray
    classes: int = 0

    def save(self, path: Path, source: Source) -> None:
        """Save the predictions as .npz. The array `image` (M,) has each image's file or name."""
        image = np.array([source.file_of(row) for row in self.index.tolist()], np.str_)
        arrays = {name: getattr(self, name) for name in ("index", "label", "top5", "content")}
        file = io.BytesIO()
        np.savez_compressed(file, image=image, **arrays)
        write_atomically(path, file.getvalue())


@torch.no_grad()
def predict(
    objective: Objective, batches: Iterable[Batch], accelerator: WatchedAccelerator
) -> Predictions:
    """Classify the images of all processes, and gather the predictions on every process.

    Args:
        objective: Classifier.
        batches: Batches of this process.
        accelerator: Processes that read images.

    Returns:
        The predictions, sorted by the images' rows in the split.

    Raises:
        NonFiniteError: Logits of an image are not finite, so the highest scores are not defined.
    """
    parts: list[tuple[np.ndarray | None, ...]] = []
    classes = 0
    for batch in batches:
        logits_BC = objective.logits(to_device(batch, accelerator.device)).float()
        classes = logits_BC.shape[1]
        top_BK = logits_BC.topk(min(5, classes), dim=1).indices.cpu().numpy()
        finite_B = is_finite(logits_BC).numpy()
        parts.append((batch.index.numpy(), batch.label.numpy(), top_BK, batch.content, finite_B))
    all_parts = accelerator.gather_parts(parts)
    index, label, top5, content, finite_M = (
        np.concatenate(arrays) for arrays in zip(*all_parts, strict=True)
    )
    check_finite(ENCODER, torch.from_numpy(finite_M))
    order = index.argsort()
    # A process without images counts 0 classes
    classes = max(accelerator.gather_parts([classes]))
    return Predictions(index[order], label[order], top5[order], content[order], classes)


def accuracies(predictions: Predictions, classes: int, paired: bool = True) -> list[Measurement]:
    """Measure the accuracies of a classifier on the labelled test images.

    For an image with several labels, a prediction is correct if it is any of the labels.

    Args:
        predictions: Predictions for the test images.
        classes: Number of classes.
        paired: Whether to measure by how much the classifier's top-1 accuracy exceeds that of
            always naming the commonest class. Set False if the interval of this difference would
            be wrong, see `baselines.metrics_with_baselines`.

    Returns:
        "top1", with more than five classes "top5", and the baseline "majority_top1", the accuracy
        of always naming the commonest class. Empty without labels.
    """
    # Single labels (M,) become (M, 1). Lists of labels (M, L) stay
    label_ML = predictions.label.reshape(len(predictions.label), -1)
    is_labelled_M = (label_ML >= 0).any(1)
    if not is_labelled_M.any():
        return []
    label_ML, top_MK = label_ML[is_labelled_M], predictions.top5[is_labelled_M]
    # Compare each of K predicted classes with each of L labels. No class equals the padding -1
    correct_MK = (top_MK[:, :, None] == label_ML[:, None]).any(2)
    top1, majority = MetricKey("top1"), MetricKey("top1", subject="majority_top1")
    right = {top1: correct_MK[:, :1].any(1)}
    if classes > 5:
        right[MetricKey("top5")] = correct_MK[:, :5].any(1)
    right[majority] = (label_ML == commonest_class(label_ML)).any(1)
    copies = count_copies(predictions.content[is_labelled_M], label_ML)
    # `baselines` takes tensors (random draws, images). A classifier counts as a single draw
    right_of_metric = {key: torch.from_numpy(right_M)[None] for key, right_M in right.items()}
    differences = {}
    if paired:
        difference = baselines.accuracy_difference(
            right_of_metric[top1], right_of_metric[majority], copies
        )
        differences[top1] = {majority.subject: difference}
    return [
        baselines.measure_accuracy(key, right_1M, "test", copies, differences.get(key))
        for key, right_1M in right_of_metric.items()
    ]


def commonest_class(label_ML: np.ndarray) -> int:
    """Return the class that labels the most images.

    For example, the lists [[2, 5], [5, -1]] give class 5, which labels two images.

    Args:
        label_ML: Lists of labels of M images, padded to length L with negative numbers.
    """
    images, positions = np.nonzero(label_ML >= 0)
    image_and_label = np.stack([images, label_ML[images, positions]])
    # A list may repeat a label. `unique` counts each label once per image
    _, labels = np.unique(image_and_label, axis=1)
    return int(np.bincount(labels).argmax())


def real_accuracy(predictions: Predictions, source: Source, path: str) -> list[Measurement]:
    """Compute the accuracy on ImageNet-ReaL's labels (Beyer et al., 2020).

    An image may have several ReaL labels. The top-1 class is correct if it is any of the labels.
    Images without a ReaL label are left out.

    Args:
        predictions: Predictions for ImageNet's validation images.
        source: ImageNet's validation images.
        path: The published real.json: a list of labels for each image, in the order of the numbers
            in ImageNet's file names.

    Returns:
        The accuracy "real". Empty if no image has a ReaL label.

    Raises:
        UserError: The file is not real.json, names of images lack ImageNet's numbers, or the
            classes are not numbered as in ImageNet.
    """
    try:
        real_labels = records.read(Path(path), list[list[int]])
    except (OSError, ValueError) as error:
        raise UserError(f"eval.real={path}: {error}") from None
    if len(real_labels) != IMAGENET:
        raise UserError(
            f"eval.real={path}: this file is not a list of {IMAGENET:,} lists. Name ImageNet-ReaL's"
            " real.json."
        )
    matches = [re.search(r"val_(\d{8})", source.name(int(row))) for row in predictions.index]
    if not all(matches):
        raise UserError(
            f"eval.real={path}: the names of the test images lack ImageNet's image numbers. Use"
            " file names such as ILSVRC2012_val_00000001.JPEG."
        )
    # The numbers in the names begin at 1. All names match here, so no image gets the list []: it
    # is only for the type checker
    labels = [real_labels[int(match[1]) - 1] if match else [] for match in matches]
    rows = np.flatnonzero([len(labels_of_image) > 0 for labels_of_image in labels])
    if not len(rows):
        return []
    label_ML = predictions.label.reshape(len(matches), -1)
    agreeing = 0
    for row in rows:
        common_labels = set(label_ML[row].tolist()) & set(labels[row])
        if common_labels:
            agreeing += 1
    # 90% of ImageNet's labels are also ReaL labels, so less than half means another numbering
    if len(rows) >= FEW_REAL and 2 * agreeing < len(rows):
        raise UserError(
            f"eval.real={path}: the label agrees with ImageNet-ReaL for only {agreeing:,} of"
            f" {len(rows):,} images. Name all 1,000 class folders by ImageNet's synsets, such as"
            " n01440764."
        )
    right_M = torch.tensor([int(predictions.top5[row, 0]) in labels[row] for row in rows])
    copies = count_copies(predictions.content[rows], predictions.label[rows])
    return [baselines.measure_accuracy(MetricKey("real"), right_M[None], "test", copies)]
