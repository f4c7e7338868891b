"""Measure segmentation by a linear probe on patch features of a frozen encoder.

Legend: I training images, M images of a split, B images of a batch, N patches, D width, A width and
constant, C classes, G learning rates, F = G C, S side of image and mask in pixels, H W rows and
columns of patches.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import torch
from accelerate.utils import gather_object
from einops import rearrange
from torch import Tensor
from torch.nn import functional as F

from ..data import masks
from ..data.batching import Batch
from ..data.contents import NO_HASHES, count_copies
from ..data.source import Source
from ..errors import UserError
from ..measurements import COMMONEST, UNTRAINED, MetricKey
from ..models.encoder import Backbone, Encoder
from ..recipe.probe import Probe
from ..recipe.records.run import Difference, Measurement, known
from ..stats import Interval, resampled_difference
from ..training.distributed import broadcast_from_main
from . import probes
from .features import ENCODER, CheckedReader, Reader
from .images import EvaluationImages
from .probes import Scale

# A difference has an interval only for at least this number of distinct images. With fewer images,
# resamples vary too little
FEWEST = 30
SCORES = ("miou", "pixel_accuracy")


class SegmentationTask(NamedTuple):
    """Segmentation task.

    Attributes:
        classes: Number of classes of pixels.
        ignore: Value that marks the pixels of a mask that are not counted.
        grid: Rows and columns of patches.
    """

    classes: int
    ignore: int
    grid: tuple[int, int]


class PatchFeatures(NamedTuple):
    """Patch features and masks of the training images.

    Attributes:
        x_IND: Features, float32 (I, N, D).
        mask_ISS: Masks (I, S, S), in the smallest type that holds all classes.
    """

    x_IND: Tensor
    mask_ISS: Tensor


class FittedSegmenter(NamedTuple):
    """Segmentation probe fitted to training images.

    Attributes:
        scale: Standardises features.
        weight_GAC: Weights of the probe at each learning rate.
        pixel_class: The commonest class of the training pixels.
    """

    scale: Scale
    weight_GAC: Tensor
    pixel_class: int

    def to(self, device: torch.device) -> "FittedSegmenter":
        return self._replace(scale=self.scale.to(device), weight_GAC=self.weight_GAC.to(device))


class PixelCounts(NamedTuple):
    """Pixel counts of a split: three counts for each class, see `class_pixel_counts`.

    Attributes:
        total_G3C: Counts of the predictions at each learning rate, summed over images.
        commonest_3C: Counts of always predicting the commonest class, summed over images.
        image_M3C: Counts of each image, for the predictions at the first learning rate.
        content_M: Hash of each image's content.
    """

    total_G3C: Tensor
    commonest_3C: Tensor
    image_M3C: Tensor
    content_M: np.ndarray


def measure(network: Backbone, images: EvaluationImages, name: str = ENCODER) -> PixelCounts:
    """Measure the segmentation of test images by a linear probe on an encoder's patch features.

    The probe is fitted to the training images at each learning rate. The rate with the highest mIoU
    on held-out images is used for the test images. Collective.

    Args:
        network: Encoder or baseline, a Vision Transformer.
        images: Images of the evaluation, with masks.
        name: ENCODER, or the name of the baseline.

    Returns:
        The counts of the test images at the chosen learning rate (G = 1), the same on all
        processes.

    Raises:
        UserError: A split has no masks, masks are unsuitable, too many images cannot be read,
            features are not finite, or training diverges at every rate.
    """
    assert isinstance(network, Encoder)  # recipe/check.py refuses convolutional networks
    recipe, accelerator, splits = images.recipe, images.accelerator, images.splits
    probe = recipe.probe
    train = masks.choose_images(splits.train, probe.mask_images)
    validation = masks.choose_images(splits.validation, probe.mask_images)

    def read(image_B3HW: Tensor) -> Tensor:
        """Return patch features (B, N, D) in float32, with autocast for the encoder only."""
        with torch.no_grad(), images.autocast():
            h_BTD = network.tokens(image_B3HW.to(accelerator.device), probe.layer)
            return h_BTD[:, network.prefix :].float()

    checked = CheckedReader(name, read, accelerator)

    def count_split(source: Source, fitted: FittedSegmenter) -> PixelCounts:
        """Count the pixels that a fitted probe classifies in a split."""
        batches = images.read_batches_with_masks(source, task.classes)
        counts = count_pixels(checked, batches, fitted.to(accelerator.device), task)
        checked.check()
        return counts

    classes = masks.known_classes(splits, recipe.data)
    features = extract(checked, images.read_batches_with_masks(train, classes))
    checked.check()
    task = _task(features, classes, recipe.data.mask_ignore, network.grid)
    fitted = broadcast_from_main(
        accelerator, lambda: _fit(features, task, probe, accelerator.device)
    )
    miou_G = scores(count_split(validation, fitted).total_G3C)["miou"]
    best = probes.best_rate("segmentation", probe.rates, miou_G.tolist(), fitted.weight_GAC)
    best_fitted = fitted._replace(weight_GAC=fitted.weight_GAC[best : best + 1])
    return count_split(images.test, best_fitted)


def segmentation_metrics(counts: Mapping[str, PixelCounts], paired: bool) -> list[Measurement]:
    """Return the segmentation metrics of an encoder and of the baselines, on the same images.

    Args:
        counts: Counts of the encoder (ENCODER) and, if measured, of untrained weights (UNTRAINED).
        paired: Whether to measure differences, see `baselines.metrics_with_baselines`.

    Returns:
        The metrics "miou" and "pixel_accuracy" of the encoder. Each metric is followed by the
        same metric of always predicting the commonest class (for example "majority_miou") and of
        untrained weights.
    """
    encoder_counts, fresh = counts[ENCODER], counts.get(UNTRAINED)
    totals = {
        ENCODER: encoder_counts.total_G3C,
        COMMONEST: encoder_counts.commonest_3C[None],
    }
    if fresh is not None:
        totals[UNTRAINED] = fresh.total_G3C
    # G is 1 in all totals: the chosen learning rate, or always the commonest class
    scores_of = {subject: scores(total_G3C) for subject, total_G3C in totals.items()}
    # `count_copies` also counts images whose copies have different labels. Masks are not compared,
    # so all images get the same label, 0
    same_label_M = np.zeros_like(encoder_counts.content_M)
    copies = count_copies(encoder_counts.content_M, same_label_M)
    images = len(encoder_counts.image_M3C)
    distinct = copies.distinct if copies else images
    measurements = []
    for name in SCORES:
        value_of = {subject: by_name[name].item() for subject, by_name in scores_of.items()}
        differences = {}
        # With fewer distinct images, the interval of a difference would be too narrow
        if fresh is not None and paired and distinct >= FEWEST:
            low, high = score_interval(encoder_counts, fresh, name)
            mean = value_of[ENCODER] - value_of[UNTRAINED]
            differences[UNTRAINED] = Difference(mean=mean, low=low, high=high)
        for subject, value in value_of.items():
            if subject == COMMONEST:
                key = MetricKey(name, f"majority_{name}")
            else:
                key = MetricKey(name, subject)
            fields = known(**key._asdict(), copies=copies)
            if subject == ENCODER:
                fields |= known(differences=differences)
            measurements.append(Measurement(split="test", value=value, n=images, **fields))
    return measurements


def _task(
    train: PatchFeatures, classes: int | None, ignore: int, grid: tuple[int, int]
) -> SegmentationTask:
    """Return the segmentation task, and check that there are at least two classes.

    Args:
        train: Training images with masks.
        classes: Number of classes that the recipe or the data set states. None: count the classes
            in the training masks.
        ignore: Value of ignored pixels.
        grid: Rows and columns of patches.

    Raises:
        UserError: There are fewer than two classes.
    """
    classes_in_masks = count_classes(train.mask_ISS, ignore)
    if classes is None:
        classes = classes_in_masks
    if classes < 2:
        raise UserError(
            "probe.measures=segmentation: the number of classes in the training masks is"
            f" {classes_in_masks}. Pixels of the ignored value (data.mask_ignore={ignore}) are not"
            " counted. Use masks with at least 2 classes."
        )
    return SegmentationTask(classes, ignore, grid)


def _fit(
    train: PatchFeatures, task: SegmentationTask, probe: Probe, device: torch.device
) -> FittedSegmenter:
    """Fit a segmentation probe to the training images, and find the commonest class of pixels.

    Args:
        train: Training images with masks.
        task: Classes and ignored value.
        probe: Learning rates, steps and batch size.
        device: Device to train on.

    Returns:
        The fitted probe, on the CPU.
    """
    scale = probes.mean_and_std(rearrange(train.x_IND, "i n d -> (i n) d")).to(device)
    weight_GAC = train_segmenter(train, task, scale, probe, device)
    count_C = torch.zeros(task.classes, dtype=torch.long)
    for mask_SS in train.mask_ISS:
        # Compare as int64: in a uint8 comparison, an ignored value of 300 would become 300 - 256
        class_SS = mask_SS.long()
        count_C += class_SS[class_SS != task.ignore].bincount(minlength=task.classes)
    commonest = int(count_C.argmax())
    return FittedSegmenter(scale, weight_GAC, commonest).to(torch.device("cpu"))


def extract(read: Reader, batches: Iterable[Batch]) -> PatchFeatures:
    """Gather the features and masks of all processes' images, in the order of the split.

    Masks are stored in the smallest integer type that holds their values.

    Args:
        read: Reader of patch features (B, N, D).
        batches: Batches of this process, with masks.
    """
    parts = []
    for batch in batches:
        assert batch.mask is not None
        x_BND = read(batch.image).cpu().numpy()
        parts.append((batch.index.numpy(), x_BND, _to_smallest_type(batch.mask).numpy()))
    all_parts = gather_object(parts)
    index, x_IND, mask_ISS = (np.concatenate(arrays) for arrays in zip(*all_parts, strict=True))
    order = index.argsort()
    return PatchFeatures(torch.from_numpy(x_IND[order]), torch.from_numpy(mask_ISS[order]))


def _to_smallest_type(mask: Tensor) -> Tensor:
    """Convert a mask to uint8 if all values fit, else to int32, to save memory."""
    fits_uint8 = int(mask.min()) >= 0 and int(mask.max()) < 256
    return mask.to(torch.uint8 if fits_uint8 else torch.int32)


def count_classes(mask_ISS: Tensor, ignore: int) -> int:
    """Return the highest class in the masks plus 1, or 0 if no pixel has a class.

    Args:
        mask_ISS: Class of each pixel.
        ignore: Value of pixels without a class.
    """
    values = mask_ISS.unique().tolist()
    return max((value + 1 for value in values if value != ignore), default=0)


def upsampled(
    x_BND: Tensor, scale: Scale, weight_AF: Tensor, task: SegmentationTask, side: int
) -> Tensor:
    """Return the logits (B, F, S, S) of a linear layer on patches, upsampled to the mask's size.

    This is the linear decoder of Strudel et al. (2021, section 3.2) and Oquab et al. (2023, section
    7.4), with bilinear upsampling. Standardised features (`scale`) replace the batch norm of Oquab
    et al.

    Args:
        x_BND: Patch features.
        scale: Mean and standard deviation of the training features.
        weight_AF: Weights of the layer.
        task: Rows and columns of patches.
        side: Side S of the mask, in pixels.
    """
    # The constant 1 that is appended to the features multiplies the bias, the last row of weights
    low_BNF = scale(rearrange(x_BND, "b n d -> (b n) d"), constant=1.0) @ weight_AF
    rows, columns = task.grid
    low_BFHW = rearrange(low_BNF, "(b h w) f -> b f h w", h=rows, w=columns)
    return F.interpolate(low_BFHW, size=(side, side), mode="bilinear", align_corners=False)


def train_segmenter(
    train: PatchFeatures,
    task: SegmentationTask,
    scale: Scale,
    probe: Probe,
    device: torch.device,
) -> Tensor:
    """Train a linear layer from patch features to class scores, once for each learning rate.

    The loss is the mean cross-entropy over all pixels that are not ignored, at the resolution of
    the masks. All rates see the same batches.

    Args:
        train: Training images with masks.
        task: Classes and ignored value.
        scale: Mean and standard deviation of the training features.
        probe: Learning rates, steps and batch size.
        device: Device of the weights.

    Returns:
        Weights (G, A, C) of G learning rates, A = D + 1 (D features and the bias) and C classes.
    """
    images, side = len(train.x_IND), train.mask_ISS.shape[-1]
    logits_per_image = len(probe.rates) * task.classes * side**2
    images_at_once = max(1, probes.ELEMENTS // logits_per_image)

    def gradient(step: int, weight_AF: Tensor) -> Tensor:
        row_B = probes.rows_of_batch(step, min(probe.batch, images), images)
        total_AF = torch.zeros_like(weight_AF)
        # If all pixels are ignored, the gradient is 0. At least 1 avoids a division by 0
        counted_pixels = (train.mask_ISS[row_B].long() != task.ignore).sum().clamp(min=1).item()
        for rows in row_B.split(images_at_once):
            x_BND, mask_BSS = train.x_IND[rows].to(device), train.mask_ISS[rows].to(device)
            total_AF += _gradient(x_BND, mask_BSS, scale, weight_AF, task)
        return total_AF / counted_pixels

    return probes.train_by_sgd(gradient, train.x_IND.shape[2], task.classes, probe, device)


def _gradient(
    x_BND: Tensor, mask_BSS: Tensor, scale: Scale, weight_AF: Tensor, task: SegmentationTask
) -> Tensor:
    """Return the gradient (A, F) of the cross-entropy, summed over the pixels of a batch.

    One matrix has the weights of all G learning rates, C columns for each. The loss of a rate
    depends only on the columns of the rate. Therefore, the gradient of the sum over all rates gives
    each rate the gradient of the rate's own loss.

    Args:
        x_BND: Patch features.
        mask_BSS: Class of each pixel.
        scale: Mean and standard deviation of the training features.
        weight_AF: Weights of all rates.
        task: Classes and ignored value.
    """
    weight_AF = weight_AF.detach().requires_grad_()
    with torch.enable_grad():
        logits = upsampled(x_BND, scale, weight_AF, task, mask_BSS.shape[-1])
        logits = rearrange(logits, "b (g c) h w -> b c g h w", c=task.classes)
        target = mask_BSS.long()[:, None].expand(-1, logits.shape[2], -1, -1)
        loss = F.cross_entropy(logits, target, ignore_index=task.ignore, reduction="sum")
        (gradient_AF,) = torch.autograd.grad(loss, weight_AF)
    return gradient_AF


def class_pixel_counts(mask: Tensor, pred: Tensor, task: SegmentationTask) -> Tensor:
    """Count the correct, true and predicted pixels of each class, without ignored pixels.

    Args:
        mask: True classes.
        pred: Predicted classes, of the same shape.
        task: Number of classes and ignored value.

    Returns:
        Counts int64 (3, C), on the CPU: the pixels of a class that are predicted correctly, all
        pixels of the class, and all pixels that are predicted as the class.
    """
    is_counted = mask != task.ignore
    truth, predicted = mask[is_counted].long(), pred[is_counted]
    correct = truth[truth == predicted]
    counts = [values.bincount(minlength=task.classes) for values in (correct, truth, predicted)]
    return torch.stack(counts).cpu()


def count_pixels(
    read: Reader, batches: Iterable[Batch], fitted: FittedSegmenter, task: SegmentationTask
) -> PixelCounts:
    """Count the pixels that fitted probes classify correctly, over all processes. Collective.

    For each class, the three counts of `class_pixel_counts` are summed over all images, at each of
    the G learning rates. Intervals also need the counts of each image. These counts are returned
    only for the first rate, because intervals are computed only for test images, which are
    classified at a single rate.

    Args:
        read: Reader of patch features (B, N, D).
        batches: Batches of this process, with masks.
        fitted: Probes of G learning rates, on the device of the features.
        task: Classes and ignored value.
    """
    total_G3C = torch.zeros(len(fitted.weight_GAC), 3, task.classes, dtype=torch.int64)
    commonest_3C = torch.zeros_like(total_G3C[0])
    # A process may have no image, but `cat` and `concatenate` need an array
    counts_of_images = [total_G3C[:0]]
    contents = [NO_HASHES]
    for batch in batches:
        x_BND = read(batch.image)
        assert batch.mask is not None and batch.content is not None
        contents.append(batch.content)
        mask_BSS = batch.mask.to(x_BND.device)
        for rate, weight_AC in enumerate(fitted.weight_GAC):
            pred_BSS = upsampled(x_BND, fitted.scale, weight_AC, task, mask_BSS.shape[-1]).argmax(1)
            image_B3C = torch.stack(
                [
                    class_pixel_counts(mask_SS, pred_SS, task)
                    for mask_SS, pred_SS in zip(mask_BSS, pred_BSS, strict=True)
                ]
            )
            total_G3C[rate] += image_B3C.sum(0)
            if rate == 0:
                counts_of_images.append(image_B3C)
        constant_BSS = torch.full_like(mask_BSS, fitted.pixel_class).long()
        commonest_3C += class_pixel_counts(mask_BSS, constant_BSS, task)
    counts = PixelCounts(
        total_G3C, commonest_3C, torch.cat(counts_of_images), np.concatenate(contents)
    )
    all_counts = gather_object([counts])  # one for each process
    return PixelCounts(
        sum(process.total_G3C for process in all_counts),
        sum(process.commonest_3C for process in all_counts),
        torch.cat([process.image_M3C for process in all_counts]),
        np.concatenate([process.content_M for process in all_counts]),
    )


def scores(total_R3C: Tensor) -> dict[str, np.ndarray]:
    """Compute mIoU and pixel accuracy from pixel counts.

    "miou" is the intersection over union, averaged over the classes that occur in the masks or in
    the predictions, as in mmsegmentation. "pixel_accuracy" is the share of correct pixels. Without
    pixels, both scores are NaN.

    Args:
        total_R3C: R tables of pixel counts, for example for R learning rates or R resamples of the
            images. A table has three counts for each class (`class_pixel_counts`), summed over
            images.

    Returns:
        {"miou": float64 (R,), "pixel_accuracy": float64 (R,)}, a score for each table.
    """
    # The three counts are correct pixels, true pixels and predicted pixels of each class
    right_RC, true_RC, predicted_RC = total_R3C.double().numpy().swapaxes(0, 1)
    union_RC = true_RC + predicted_RC - right_RC
    occurs_RC = union_RC > 0
    # A class that does not occur has IoU 0 / 1 and adds nothing to the sum below
    iou_RC = right_RC / np.where(occurs_RC, union_RC, 1)
    classes_R, pixels_R = occurs_RC.sum(1), true_RC.sum(1)
    miou_R = iou_RC.sum(1) / np.where(classes_R > 0, classes_R, np.nan)
    accuracy_R = right_RC.sum(1) / np.where(pixels_R > 0, pixels_R, np.nan)
    return {"miou": miou_R, "pixel_accuracy": accuracy_R}


def score_interval(a: PixelCounts, b: PixelCounts, name: str) -> Interval:
    """Return a bootstrap interval of the difference in a score, encoder `a` minus encoder `b`.

    Both encoders are scored on the same resamples of the M images. Copies of an image are resampled
    together.

    Args:
        a: Counts of an encoder.
        b: Counts of another encoder on the same images.
        name: Score to compare, "miou" or "pixel_accuracy".
    """
    # Flatten the counts of each image to K = 3 C numbers
    a_MK, b_MK = (counts.image_M3C.flatten(1).double().numpy() for counts in (a, b))

    # Takes counts summed over the images of each of R resamples, and returns R scores
    def score(sum_RK: np.ndarray) -> np.ndarray:
        return scores(torch.from_numpy(sum_RK).unflatten(1, a.image_M3C.shape[1:]))[name]

    return resampled_difference(a_MK, b_MK, score, content_M=a.content_M)
