"""What an evaluation measures on masks: a linear segmentation probe, on the whole test split."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, cast

import psutil
import torch
from accelerate.utils import gather_object
from torch import Tensor

from ..data import batching, masks, sources
from ..data.batch_layout import BatchLayout
from ..data.batching import Batch
from ..data.source import Source
from ..data.workers import InterruptibleLoader
from ..errors import UserError
from ..evaluation import dense
from ..evaluation.beside import ENCODER
from ..evaluation.dense import PatchFeatures, Reader, SegmentationTask
from ..evaluation.probes import Scale
from ..metrics import FRESH
from ..models.encoder import Backbone, Encoder
from ..recipe.probe import Probe
from ..recipe.records.run import Difference, Measured
from ..recipe.schema import Data, Recipe
from ..training import loop
from ..training.distributed import WatchedAccelerator, broadcast_from_main


class Fitted(NamedTuple):
    """What was learned from the training images, on the CPU: the probe's weights (G, A, C), and the
    commonest class of the pixels."""

    scale: Scale
    weight_GAC: Tensor
    pixel_class: int

    def to(self, device: torch.device) -> "Fitted":
        scale = Scale(*(value.to(device) for value in self.scale))
        return self._replace(scale=scale, weight_GAC=self.weight_GAC.to(device))


class Counts(NamedTuple):
    """Of a split: the confusion matrices (G, C, C) of the weights' predictions and that (C, C) of
    the commonest class; of each image and class the pixels that the first weights have right, that
    are its, and that were predicted to be (M, 3, C); and the number of images."""

    confusion_GCC: Tensor
    commonest_CC: Tensor
    image_M3C: Tensor
    images: int


def measure(
    networks: Mapping[str, Backbone],
    splits: sources.Splits,
    batch_layout: BatchLayout,
    recipe: Recipe,
    accelerator: WatchedAccelerator,
    paired: bool = True,
) -> tuple[dict[str, Measured], int]:
    """The metrics on masks of an encoder (ENCODER), beside those of its network with fresh weights
    (FRESH) where it is given and of the commonest class; the same on all processes. And the number
    of images that the encoder forwarded. `paired`: as of `beside.compared`.

    Raises:
        UserError: a split has no masks, or masks that do not suit.
    """
    counts: dict[str, Counts] = {}
    forwarded = 0
    for name, network in networks.items():
        assert isinstance(network, Encoder)  # recipe/check.py refuses others
        one = MaskEvaluation(network, splits, batch_layout, recipe, accelerator)
        counts[name] = one.run()
        forwarded = forwarded or one.seen  # fresh weights come second
    return compared(counts, paired), forwarded


def compared(counts: Mapping[str, Counts], paired: bool) -> dict[str, Measured]:
    """The metrics of ENCODER, and of what it is compared with on the same images."""
    own = counts[ENCODER]
    alike = dense.scores(own.commonest_CC)
    found: dict[str, Measured] = {}
    for number, name in enumerate(dense.Scores._fields):

        def measured(value: float, difference: Difference | None = None) -> Measured:
            made = Measured(value=value, split="test", n=own.images)
            if difference:
                made.difference = difference
            return made

        found[name] = measured(dense.scores(own.confusion_GCC[0])[number])
        found[f"majority_{name}"] = measured(alike[number])
        if (fresh := counts.get(FRESH)) is not None:
            value = dense.scores(fresh.confusion_GCC[0])[number]
            mean, ends = found[name].value - value, None
            between = dense.difference(own.image_M3C, fresh.image_M3C, number)
            if paired and between is not None:
                ends = Difference(mean=mean, low=between.low, high=between.high)
            found[FRESH + name] = measured(value, ends)
    return found


@dataclass(eq=False, repr=False)
class MaskEvaluation:
    """One evaluation on masks, on all processes."""

    network: Encoder
    splits: sources.Splits
    batch_layout: BatchLayout
    recipe: Recipe
    accelerator: WatchedAccelerator
    unreadable: list[str] = field(init=False, default_factory=list)
    seen: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.data: Data = self.recipe.data
        self.probe: Probe = self.recipe.probe
        self.workers = self.recipe.compute.workers or 0
        self.precision = self.recipe.compute.precision
        self.reader: Reader = dense.patch_reader(self.network, self.recipe.probe.layer)

    def run(self) -> Counts:
        """Learn from the training images; the counts of the test images."""
        most = self.probe.mask_images
        source = masks.chosen(self.splits.train, most)
        self._check_memory(len(source))
        known = masks.known_classes(self.splits, self.data)
        with self._batches(source, known) as batches:
            watched = self.accelerator.watch_loader(batches)
            read = cast(Iterable[Batch], watched)
            extracted, unreadable = dense.extract(self._read, read)
        if extracted is None:
            text = f"none of {len(source):,} training images can be read with its mask"
            raise UserError(f"probe.measures=segmentation: {text}, the last {unreadable[-1]}")
        train: PatchFeatures = extracted
        self._note(unreadable, len(source))
        task = self._task(train)
        fitted = broadcast_from_main(self.accelerator, lambda: self._fit(train, task))
        fitted = fitted._replace(weight_GAC=self._choose(fitted, task))
        assert self.splits.test is not None
        counts = self._count(self.splits.test, fitted, task)
        self._report_unreadable()
        return counts

    def _read(self, image_B3HW: Tensor) -> Tensor:
        """Patch features (B, N, D) float32; autocast is for the encoder alone."""
        with torch.no_grad(), loop.autocast(self.precision, self.accelerator):
            return self.reader(image_B3HW.to(self.accelerator.device)).float()

    def _check_memory(self, images: int) -> None:
        """Check that the training images' features and masks fit into half of the memory.

        Raises:
            UserError: they do not.
        """
        size = 4 * self.network.patches * self.network.width + self.data.size**2
        room = psutil.virtual_memory().total // 2 // self.batch_layout.processes
        if images * size > room:
            text = f"features of {images:,} images take {images * size / 1e9:.1f} GB"
            choices = f"expected at most {room // size:,}, half of the memory"
            raise UserError(f"probe.mask_images={self.probe.mask_images}: {text}; {choices}")

    def _batches(self, source: Source, classes: int | None) -> InterruptibleLoader:
        return InterruptibleLoader(
            masks.loader(source, self.data, self.batch_layout, self.workers, classes)
        )

    def _note(self, unreadable: tuple[str, ...], images: int) -> None:
        self.unreadable += unreadable
        self.seen += images

    def _report_unreadable(self) -> None:
        """Name the images that were left out.

        Raises:
            UserError: they are more than data.unreadable.
        """
        if not self.unreadable:
            return
        if self.accelerator.is_main_process:
            for text in self.unreadable:
                print(f"warning: left out: {text}", flush=True)
        count = len(self.unreadable)
        batching.check_unreadable(count, self.seen, self.data, self.unreadable[-1])

    def _task(self, train: PatchFeatures) -> SegmentationTask:
        ignore = self.data.mask_ignore
        found = dense.count_classes(train.mask_ISS, ignore)
        classes = masks.known_classes(self.splits, self.data) or found
        if classes < 2:
            text = f"the training masks have {found} classes beside data.mask_ignore={ignore}"
            raise UserError(f"probe.measures=segmentation: {text}; expected at least 2")
        return SegmentationTask(classes, ignore, self.network.grid)

    def _fit(self, train: PatchFeatures, task: SegmentationTask) -> Fitted:
        """Learn from the training images, on this process's device."""
        device = self.accelerator.device
        scale = dense.moments(train, device)
        weight_GAC = dense.train_segmenter(
            train,
            task,
            scale,
            rates=tuple(self.probe.rates),
            steps=self.probe.steps,
            batch=self.probe.batch,
            device=device,
        )
        shown = train.mask_ISS[train.mask_ISS != task.ignore].long()
        return Fitted(scale, weight_GAC, int(shown.bincount().argmax())).to(torch.device("cpu"))

    def _choose(self, fitted: Fitted, task: SegmentationTask) -> Tensor:
        """Of the weights (G, A, C) those (1, A, C) of the rate with the highest mIoU on held-out
        images (ties: the first).

        Raises:
            UserError: every rate diverges.
        """
        finite = fitted.weight_GAC.isfinite().all((1, 2)).tolist()
        if not any(finite):
            text = "the segmentation probe diverges at each; expected smaller ones"
            raise UserError(f"probe.rates={list(self.probe.rates)}: {text}")
        source = masks.chosen(self.splits.validation, self.probe.mask_images)
        counts = self._count(source, fitted, task)
        miou = [dense.scores(one).miou for one in counts.confusion_GCC]
        best = max((g for g, ok in enumerate(finite) if ok), key=lambda g: miou[g])
        return fitted.weight_GAC[best : best + 1]

    def _count(self, source: Source, fitted: Fitted, task: SegmentationTask) -> Counts:
        """Over all processes' images of a split."""
        device = self.accelerator.device
        groups = len(fitted.weight_GAC)
        confusion_GCC = torch.zeros(groups, task.classes, task.classes, dtype=torch.int64)
        commonest_CC = torch.zeros(task.classes, task.classes, dtype=torch.int64)
        images = 0
        of_images = [torch.zeros(0, 3, task.classes, dtype=torch.int64)]
        unreadable: list[str] = []
        fitted = fitted.to(device)
        with self._batches(source, task.classes) as batches:
            watched = self.accelerator.watch_loader(batches)
            for batch in cast(Iterable[Batch], watched):
                unreadable += batch.unreadable
                images += len(batch.image)
                if not len(batch.image):
                    continue
                x_BND = self._read(batch.image)
                assert batch.mask is not None
                mask_BSS = batch.mask.to(device)
                for g, weight_AC in enumerate(fitted.weight_GAC):
                    side = mask_BSS.shape[-1]
                    pred_BSS = dense.predicted(x_BND, fitted.scale, weight_AC, task, side)
                    one_BCC = [
                        dense.confusion(mask_SS, pred_SS, task)
                        for mask_SS, pred_SS in zip(mask_BSS, pred_BSS, strict=True)
                    ]
                    confusion_GCC[g] += sum(one_BCC[1:], one_BCC[0])
                    if g == 0:
                        of_images.append(torch.stack([dense.marginals(one) for one in one_BCC]))
                alike_BSS = torch.full_like(mask_BSS, fitted.pixel_class).long()
                commonest_CC += dense.confusion(mask_BSS, alike_BSS, task)
        image_M3C = torch.cat(of_images)
        found = (confusion_GCC, commonest_CC, image_M3C, images, tuple(unreadable))
        everyone = gather_object([found])
        for *_, texts in everyone:
            self._note(texts, 0)
        self.seen += len(source)
        confusions, commonest, image_parts, numbers, _ = zip(*everyone, strict=True)
        return Counts(
            sum(confusions[1:], confusions[0]),
            sum(commonest[1:], commonest[0]),
            torch.cat(image_parts),
            sum(numbers),
        )
