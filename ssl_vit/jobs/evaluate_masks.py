"""What an evaluation measures on masks: a linear segmentation probe, on the whole test split."""

from collections.abc import Mapping

import torch
from torch import Tensor

from ..data import masks
from ..data.source import Source
from ..errors import UserError
from ..evaluation import dense
from ..evaluation.beside import ENCODER
from ..evaluation.dense import Counts, FittedSegmenter, PatchFeatures, SegmentationTask
from ..evaluation.probes import best_rate
from ..metrics import FRESH
from ..models.encoder import Backbone, Encoder
from ..recipe.probe import Probe
from ..recipe.records.run import Difference, Measured
from ..training.distributed import broadcast_from_main
from .evaluation_images import EvaluationImages


def measure(
    networks: Mapping[str, Backbone], images: EvaluationImages, paired: bool
) -> tuple[dict[str, Measured], int]:
    """The metrics on masks of an encoder (ENCODER), beside those of its network with fresh weights
    (FRESH) where it is given and of the commonest class; the same on all processes. And the number
    of images that the encoder forwarded. `paired`: as of `beside.compared`.

    Raises:
        UserError: a split has no masks, or masks that do not suit.
    """
    most, splits = images.recipe.probe.mask_images, images.splits
    assert splits.test is not None
    used = [masks.chosen(splits.train, most), masks.chosen(splits.validation, most), splits.test]
    counts = {name: _counts(network, images, *used) for name, network in networks.items()}
    return _compared(counts, paired), sum(map(len, used))


def _compared(counts: Mapping[str, Counts], paired: bool) -> dict[str, Measured]:
    """The metrics of ENCODER, and of what it is compared with on the same images."""
    own, fresh = counts[ENCODER], counts.get(FRESH)
    found: dict[str, Measured] = {}

    def add(name: str, number: int, confusion_CC: Tensor) -> Measured:
        value = dense.scores(confusion_CC)[number]
        found[name] = Measured(value=value, split="test", n=own.images)
        return found[name]

    for number, name in enumerate(dense.Scores._fields):
        measured = add(name, number, own.confusion_GCC[0])
        add(f"majority_{name}", number, own.commonest_CC)
        if fresh is None:
            continue
        other = add(FRESH + name, number, fresh.confusion_GCC[0])
        between = dense.difference(own.image_M3C, fresh.image_M3C, number)
        if paired and between is not None:
            mean = measured.value - other.value
            other.difference = Difference(mean=mean, low=between.low, high=between.high)
    return found


def _counts(
    network: Backbone, images: EvaluationImages, train: Source, held_out: Source, test: Source
) -> Counts:
    """Learn from the training images at each rate, choose the rate on the held-out ones; the counts
    of the test images.

    Raises:
        UserError: masks do not suit, too many cannot be read, or every rate diverges.
    """
    assert isinstance(network, Encoder)  # recipe/check.py refuses others
    recipe, accelerator = images.recipe, images.accelerator
    read_patches = dense.patch_reader(network, recipe.probe.layer)

    def read(image_B3HW: Tensor) -> Tensor:
        """Patch features (B, N, D) float32; autocast is for the encoder alone."""
        with torch.no_grad(), images.autocast():
            return read_patches(image_B3HW.to(accelerator.device)).float()

    def count(source: Source, fitted: FittedSegmenter) -> Counts:
        batches = images.with_masks(source, task.classes)
        return dense.count(read, batches, fitted.to(accelerator.device), task)

    classes = masks.known_classes(images.splits, recipe.data)
    features = dense.extract(read, images.with_masks(train, classes))
    task = _task(features, classes, images, network.grid)
    fitted = broadcast_from_main(
        accelerator, lambda: _fit(features, task, recipe.probe, accelerator.device)
    )
    miou_G = [dense.scores(one_CC).miou for one_CC in count(held_out, fitted).confusion_GCC]
    best = best_rate("segmentation", recipe.probe.rates, miou_G, fitted.weight_GAC)
    return count(test, fitted._replace(weight_GAC=fitted.weight_GAC[best : best + 1]))


def _task(
    train: PatchFeatures, classes: int | None, images: EvaluationImages, grid: tuple[int, int]
) -> SegmentationTask:
    """
    Raises:
        UserError: there is one class alone.
    """
    ignore = images.recipe.data.mask_ignore
    found = dense.count_classes(train.mask_ISS, ignore)
    if (classes or found) < 2:
        text = f"the training masks have {found} classes beside data.mask_ignore={ignore}"
        raise UserError(f"probe.measures=segmentation: {text}; expected at least 2")
    return SegmentationTask(classes or found, ignore, grid)


def _fit(
    train: PatchFeatures, task: SegmentationTask, probe: Probe, device: torch.device
) -> FittedSegmenter:
    """Learn from the training images on this process's device; on the CPU."""
    scale = dense.moments(train, device)
    weight_GAC = dense.train_segmenter(
        train,
        task,
        scale,
        rates=tuple(probe.rates),
        steps=probe.steps,
        batch=probe.batch,
        device=device,
    )
    count_C = torch.zeros(task.classes, dtype=torch.long)
    for mask_SS in train.mask_ISS:
        shown = mask_SS.long()  # else an ignored value beyond a byte is taken for another
        count_C += shown[shown != task.ignore].bincount(minlength=task.classes)
    commonest = int(count_C.argmax())
    return FittedSegmenter(scale, weight_GAC, commonest).to(torch.device("cpu"))
