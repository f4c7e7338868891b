"""What an evaluation measures on masks: a linear segmentation probe and k-NN over patches, on the
whole test split."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, cast

import psutil
import torch
from accelerate.utils import gather_object
from torch import Tensor

from ..config.probe import DENSE, Probe
from ..config.schema import Data, Recipe
from ..data import batching, masks, sources
from ..data.base import Source
from ..data.batch_layout import BatchLayout
from ..data.batching import Batch
from ..data.workers import InterruptibleLoader
from ..errors import UserError
from ..evaluation import dense, probes
from ..evaluation.dense import Bank, PatchFeatures, Reader, SegmentationTask
from ..evaluation.probes import Scale
from ..models.encoder import Encoder
from ..training import loop
from ..training.distributed import WatchedAccelerator, broadcast_from_main

Metrics = dict[str, tuple[float, int]]  # {name: (value, images)}


class Fitted(NamedTuple):
    """What was learned from the training images, on the CPU: the probe's weights (G, A, C), the
    bank, and the commonest class of the pixels and of the patches."""

    scale: Scale
    weight_GAC: Tensor | None
    bank: Bank | None
    pixel_class: int
    patch_class: int

    @property
    def weights(self) -> Sequence[Tensor]:
        """Those (A, C) of each rate; none where segmentation is not measured."""
        return () if self.weight_GAC is None else self.weight_GAC.unbind()

    def to(self, device: torch.device) -> "Fitted":
        return self._replace(
            scale=Scale(*(value.to(device) for value in self.scale)),
            weight_GAC=None if self.weight_GAC is None else self.weight_GAC.to(device),
            bank=None if self.bank is None else Bank(*(value.to(device) for value in self.bank)),
        )


class Counts(NamedTuple):
    """Of a split: the confusion matrices (G, C, C) of the weights' predictions and that (C, C) of
    the commonest class; patches with a class, those right by k-NN and by the commonest class; and
    the images."""

    confusion_GCC: Tensor
    commonest_CC: Tensor
    patches_3: Tensor
    images: int


def measure(
    network: Encoder,
    splits: sources.Splits,
    batch_layout: BatchLayout,
    recipe: Recipe,
    accelerator: WatchedAccelerator,
) -> tuple[Metrics, int]:
    """The metrics of probe.measures on masks, the same on all processes, and the number of images
    that were forwarded.

    Raises:
        UserError: a split has no masks, or masks that do not suit.
    """
    return MaskEvaluation(network, splits, batch_layout, recipe, accelerator).run()


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

    def run(self) -> tuple[Metrics, int]:
        most = self.probe.mask_images
        source = masks.chosen(self.splits.train, most, self.data)
        self._check_memory(len(source))
        known = masks.known_classes(self.splits, self.data)
        with self._batches(source, known) as batches:
            watched = self.accelerator.watch_loader(batches)
            read = cast(Iterable[Batch], watched)
            extracted, unreadable = dense.extract(self._read, read)
        if extracted is None:
            text = f"none of {len(source):,} training images can be read with its mask"
            raise UserError(f"probe.measures={self._measures}: {text}, the last {unreadable[-1]}")
        train: PatchFeatures = extracted
        self._note(unreadable, len(source))
        task = self._task(train)
        fitted = broadcast_from_main(self.accelerator, lambda: self._fit(train, task))
        if fitted.weight_GAC is not None:
            fitted = fitted._replace(weight_GAC=self._choose(fitted, task))
        assert self.splits.test is not None
        counts = self._count(self.splits.test, fitted, task)
        self._report_unreadable()
        return dict(self._metrics(counts)), self.seen

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
            raise UserError(f"probe.measures={self._measures}: {text}; expected at least 2")
        return SegmentationTask(classes, ignore, self.network.grid)

    @property
    def _measures(self) -> str:
        return ",".join(name for name in self.probe.measures if name in DENSE)

    def _fit(self, train: PatchFeatures, task: SegmentationTask) -> Fitted:
        """Learn from the training images, on this process's device."""
        device = self.accelerator.device
        scale = dense.moments(train, device)
        weight_GAC = None
        bank = None
        if "segmentation" in self.probe.measures:
            weight_GAC = dense.train_segmenter(
                train,
                task,
                scale,
                rates=tuple(self.probe.rates),
                steps=self.probe.steps,
                batch=self.probe.batch,
                device=device,
            )
        if "patch_knn" in self.probe.measures:
            bank = dense.make_bank(train, task, self.probe.bank, torch.device("cpu"))
            if len(bank.x_PD) < self.probe.neighbors:
                text = f"the bank has {len(bank.x_PD):,} patches"
                raise UserError(f"probe.neighbors={self.probe.neighbors}: {text}")
        shown = train.mask_ISS[train.mask_ISS != task.ignore].long()
        everywhere = bank.class_P if bank else shown
        found = Fitted(scale, weight_GAC, bank, _commonest(shown), _commonest(everywhere))
        return found.to(torch.device("cpu"))

    def _choose(self, fitted: Fitted, task: SegmentationTask) -> Tensor:
        """Of the weights (G, A, C) those (1, A, C) of the rate with the highest mIoU on held-out
        images (ties: the first).

        Raises:
            UserError: every rate diverges.
        """
        assert fitted.weight_GAC is not None
        finite = fitted.weight_GAC.isfinite().all((1, 2)).tolist()
        if not any(finite):
            text = "the segmentation probe diverges at each; expected smaller ones"
            raise UserError(f"probe.rates={list(self.probe.rates)}: {text}")
        source = masks.chosen(self.splits.validation, self.probe.mask_images, self.data)
        counts = self._count(source, fitted._replace(bank=None), task)
        miou = [dense.scores(one).miou for one in counts.confusion_GCC]
        best = max((g for g, ok in enumerate(finite) if ok), key=lambda g: miou[g])
        return fitted.weight_GAC[best : best + 1]

    def _count(self, source: Source, fitted: Fitted, task: SegmentationTask) -> Counts:
        """Over all processes' images of a split."""
        device = self.accelerator.device
        groups = len(fitted.weights)
        confusion_GCC = torch.zeros(groups, task.classes, task.classes, dtype=torch.int64)
        commonest_CC = torch.zeros(task.classes, task.classes, dtype=torch.int64)
        patches_3 = torch.zeros(3, dtype=torch.int64)
        images = 0
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
                for g, weight_AC in enumerate(fitted.weights):
                    side = mask_BSS.shape[-1]
                    pred_BSS = dense.predicted(x_BND, fitted.scale, weight_AC, task, side)
                    confusion_GCC[g] += dense.confusion(mask_BSS, pred_BSS, task)
                alike_BSS = torch.full_like(mask_BSS, fitted.pixel_class).long()
                commonest_CC += dense.confusion(mask_BSS, alike_BSS, task)
                if fitted.bank is not None:
                    patches_3 += self._patches(x_BND, mask_BSS, fitted, task)
        everyone = gather_object(
            [(confusion_GCC, commonest_CC, patches_3, images, tuple(unreadable))]
        )
        for *_, texts in everyone:
            self._note(texts, 0)
        self.seen += len(source)
        sums = [sum(parts[1:], parts[0]) for parts in list(zip(*everyone, strict=True))[:4]]
        return Counts(*sums)

    def _patches(
        self, x_BND: Tensor, mask_BSS: Tensor, fitted: Fitted, task: SegmentationTask
    ) -> Tensor:
        """Patches with a class, those right by k-NN, and those right by the commonest class."""
        assert fitted.bank is not None
        class_P = dense.patch_classes(mask_BSS, task).flatten()
        known = class_P >= 0
        x_PD = x_BND.flatten(0, 1)[known]
        if not len(x_PD):
            return torch.zeros(3, dtype=torch.int64)
        found_P = probes.knn(
            fitted.bank.x_PD,
            fitted.bank.class_P,
            x_PD,
            classes=task.classes,
            k=self.probe.neighbors,
        )
        truth_P = class_P[known]
        right = (found_P == truth_P).sum()
        alike = (truth_P == fitted.patch_class).sum()
        return torch.stack([known.sum(), right, alike]).cpu()

    def _metrics(self, counts: Counts) -> Iterator[tuple[str, tuple[float, int]]]:
        """Each metric, and that of predicting the commonest training class everywhere."""
        n = counts.images
        if len(counts.confusion_GCC):
            found = dense.scores(counts.confusion_GCC[0])
            alike = dense.scores(counts.commonest_CC)
            yield "miou", (found.miou, n)
            yield "pixel_accuracy", (found.pixel_accuracy, n)
            yield "majority_miou", (alike.miou, n)
            yield "majority_pixel_accuracy", (alike.pixel_accuracy, n)
        if "patch_knn" in self.probe.measures:
            patches, right, alike_patches = counts.patches_3.tolist()
            yield "patch_knn", (right / max(1, patches), n)
            yield "majority_patch_knn", (alike_patches / max(1, patches), n)


def _commonest(class_P: Tensor) -> int:
    return int(class_P.bincount().argmax())
