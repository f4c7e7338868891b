"""Compute the targets of masked patch prediction and masked autoencoders.

"The paper" is that of the Vision Transformer (Dosovitskiy et al., 2021), appendix B.1.2.

Targets are colour classes, computed in integers from the bytes, or pixels.

Legend: B batch, N patches (row by row), K corrupted patches, P side of a patch in pixels, H = W
side of the image, A head outputs for a patch, X pixels of a patch.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable

import torch
from einops import rearrange, reduce
from torch import Tensor
from torch.nn import functional as F

from ...data.pixel_values import normalisation, shown_channels
from ...models.encoder import Encoder
from ...models.full_precision import full_precision
from ...recipe.images import BYTES
from ..base import RequiresMethods
from ..teacher import Averages
from . import BINS

COLORS = 512  # 3 bits per channel
GREY = 128  # level that shows the value 0
CONTRAST = 48  # number of levels that show one standard deviation


def patch_sums(image_B3HW: Tensor, patch: int) -> Tensor:
    """Return the sum of each channel over each patch, int64 (B, N, C)."""
    return reduce(image_B3HW.long(), "b c (h p) (w q) -> b (h w) c", "sum", p=patch, q=patch)


def channel_bins(sum_C: Tensor, pixels: Tensor | int, pixel_range: tuple[int, int]) -> Tensor:
    """Return the bin of each channel's mean, int64 (..., C), 0 .. 7.

    This is the "3-bit mean color" of Dosovitskiy et al. (2021, B.1.2). The bin is floor(8 v), where
    v is the mean, scaled from `pixel_range` to [0, 1]. For example, bytes with the mean 100 have
    v = 100 / 255 and the bin floor(3.14) = 3. The value v = 1 belongs to bin 7. The bin is computed
    in integers, so it is exact for every sum, also at the edges of bins.

    Args:
        sum_C: Sums of pixel values, integers (..., C).
        pixels: Number of pixels in each sum, (...,), or a single number for all sums.
        pixel_range: The pixel values that correspond to 0 and 1.
    """
    lowest, highest = pixel_range
    num_pixels = torch.as_tensor(pixels, device=sum_C.device).unsqueeze(-1)
    bin_C = BINS * (sum_C - lowest * num_pixels) // ((highest - lowest) * num_pixels)
    return bin_C.clamp(0, BINS - 1)


def color_class(sum_3: Tensor, pixels: Tensor | int) -> Tensor:
    """Return the class 64 R + 8 G + B of a mean colour, int64 (...,), 0 .. 511.

    R, G and B are the bins that `channel_bins` returns.

    Args:
        sum_3: Sums of bytes, integers (..., 3).
        pixels: Number of pixels in each sum, (...,), or a single number for all sums.
    """
    bin_3 = channel_bins(sum_3, pixels, BYTES)
    return 64 * bin_3[..., 0] + 8 * bin_3[..., 1] + bin_3[..., 2]


def mean_color(image_B3HW: Tensor, patch: int) -> Tensor:
    """Return the class of each patch's mean colour, int64 (B, N).

    The 512 classes are the colours with 3 bits per channel (`color_class`). This is the first
    target of Dosovitskiy et al. (2021, B.1.2).

    Args:
        image_B3HW: Images, uint8.
        patch: Side of a patch in pixels.
    """
    return color_class(patch_sums(image_B3HW, patch), patch * patch)


def grid_color(image_B3HW: Tensor, patch: int, cells: int) -> Tensor:
    """Return the class of each cell's mean colour, int64 (B, N, cells^2).

    A patch is divided into cells x cells squares. With 4 x 4 cells, this is the second target of
    Dosovitskiy et al. (2021, B.1.2).

    Args:
        image_B3HW: Images, uint8.
        patch: Side of a patch in pixels, a multiple of `cells`.
        cells: Number of cells along the side of a patch. Cells are numbered row by row.
    """
    side = patch // cells
    rows = image_B3HW.shape[-2] // side
    # `mean_color` of patches with the size of a cell: R rows and C columns of cells in an image
    class_BRC = rearrange(mean_color(image_B3HW, side), "b (h w) -> b h w", h=rows)
    return rearrange(class_BRC, "b (h c) (w d) -> b (h w) (c d)", c=cells, d=cells)


def class_color(class_N: Tensor) -> Tensor:
    """Return an RGB colour for each colour class, the middle of the class's bins.

    Args:
        class_N: Classes 64 R + 8 G + B, int64 (...,).

    Returns:
        Colours, uint8 (..., 3).
    """
    bins = torch.stack([class_N // 64, class_N // 8 % 8, class_N % 8], -1)
    # A bin is 255 / 8 levels wide, about 32, so its middle is 16 levels above its beginning
    return (bins * 255 // 8 + 16).to(torch.uint8)


def neighbors(image_B3HW: Tensor, patch: int, corrupted_BN: Tensor) -> Tensor:
    """Find the nearest uncorrupted patches of each patch.

    Square rings of patches surround each patch: ring 1 has up to 8 patches, ring 2 up to 16. The
    neighbours of a patch are the uncorrupted patches of the nearest ring that has any. If all
    patches of an image are corrupted, no patch has neighbours. If a patch is the only uncorrupted
    patch of the image, this patch is its own neighbour.

    Args:
        image_B3HW: The images, of which only the size is used.
        patch: Side of a patch in pixels.
        corrupted_BN: Whether each patch is corrupted, bool.

    Returns:
        Bool (B, N, N). The entry (b, i, j) is true if patch j of image b is a neighbour of patch i.
    """
    rows = image_B3HW.shape[-2] // patch
    columns = image_B3HW.shape[-1] // patch
    index_N = torch.arange(rows * columns, device=image_B3HW.device)
    row_N, column_N = index_N // columns, index_N % columns
    rows_apart_NN = (row_N[:, None] - row_N).abs()
    columns_apart_NN = (column_N[:, None] - column_N).abs()
    ring_NN = torch.maximum(rows_apart_NN, columns_apart_NN)
    # Give the patch itself and corrupted patches the number of a ring beyond all others
    outside = rows + columns
    corrupted_B1N = corrupted_BN[:, None, :]
    ring_BNN = ring_NN.masked_fill(ring_NN == 0, outside).masked_fill(corrupted_B1N, outside)
    # If a patch has no other uncorrupted patch, the smallest number is `outside`, which all patches
    # have. The last line then leaves only the patch itself, if it is not corrupted
    is_nearest_BNN = ring_BNN == ring_BNN.amin(-1, keepdim=True)
    return is_nearest_BNN & ~corrupted_B1N


def neighbor_sums(image_B3HW: Tensor, patch: int, corrupted_BN: Tensor) -> tuple[Tensor, Tensor]:
    """Sum the pixels of each patch's `neighbors`, and count these pixels.

    Args:
        image_B3HW: Images, integers.
        patch: Side of a patch in pixels.
        corrupted_BN: Whether each patch is corrupted, bool.

    Returns:
        Sums, int64 (B, N, C), and numbers of pixels, int64 (B, N). For a patch without neighbours,
        the sum is 0 and the number of pixels is that of a single patch.
    """
    near_BNN = neighbors(image_B3HW, patch, corrupted_BN)
    # float64, because GPUs have no matrix product of integers. It is exact, as sums are below 2^53
    sums_BNC = patch_sums(image_B3HW, patch).double()
    num_patches_BN = near_BNN.sum(-1).clamp(min=1)
    return (near_BNN.double() @ sums_BNC).long(), num_patches_BN * patch * patch


def neighbor_color(image_B3HW: Tensor, patch: int, corrupted_BN: Tensor) -> Tensor:
    """Return the class of the mean colour of each patch's `neighbors`, int64 (B, N)."""
    return color_class(*neighbor_sums(image_B3HW, patch, corrupted_BN))


def neighbor_mean(value_BNA: Tensor, near_BNN: Tensor) -> Tensor:
    """Return the mean of values over the neighbours of each patch, (B, N, A).

    Args:
        value_BNA: Values of the patches.
        near_BNN: The neighbours that `neighbors` returns. A patch without neighbours gets 0.
    """
    with full_precision(value_BNA.device):
        near_BNA = near_BNN.to(value_BNA) @ value_BNA
    return near_BNA / near_BNN.sum(-1, keepdim=True).clamp(min=1)


def to_grey_levels(value: Tensor) -> Tensor:
    """Convert values of mean 0 and standard deviation 1 to grey levels around 128, uint8."""
    return (GREY + CONTRAST * value).round().clamp(0, 255).to(torch.uint8)


class Target(RequiresMethods):
    """Ground truth of a patch, loss of a prediction, and baselines that a trained model must beat.

    Buffers hold the statistics that `fit_baselines` computes.

    Attributes:
        num_outputs: Number of outputs A of the head for a patch.
        drawn: Text for captions of figures that says how the target is drawn, from the target's
            declaration.
        moves: Whether ground truth and `baselines` change during training.
    """

    num_outputs: int
    drawn: str = ""
    moves: bool = False

    @abstractmethod
    def ground_truth(self, image_B3HW: Tensor) -> Tensor:
        """Return the value to predict for each patch, (B, N, ...)."""

    @abstractmethod
    def metrics(self, output_BKA: Tensor, truth_BK: Tensor) -> dict[str, Tensor]:
        """Return metrics of each predicted patch.

        Args:
            output_BKA: Outputs of the head, float32.
            truth_BK: Ground truth of the same patches, (B, K, ...).

        Returns:
            {name: values (B, K)}. "loss" is required: for each patch, the loss averaged over the
            outputs of the patch. "accuracy" and the metrics of the target's declaration are
            optional.
        """

    def fit_baselines(self, images: Iterable[Tensor]) -> None:
        """Compute statistics of training images for `baselines`. The default computes nothing.

        Args:
            images: Batches of images, cropped and augmented, uint8 (B, 3, H, W).
        """

    @abstractmethod
    def baselines(self, image_B3HW: Tensor, corrupted_BN: Tensor) -> dict[str, Tensor]:
        """Return the score of each patch under simple predictions that need no network.

        The predictions may use uncorrupted neighbours of a patch and the statistics of
        `fit_baselines`.

        Args:
            image_B3HW: Images, uint8.
            corrupted_BN: Whether each patch is corrupted, bool.

        Returns:
            {name of a `measurements.Baseline`: scores (B, N)}.
        """

    def averages(self, progress: float, encoder: Encoder) -> Averages:
        """Return the momentum of the target's teacher, and pairs (teacher's, encoder's weight).

        After each optimiser step, the teacher's weight becomes momentum * teacher's weight + (1 -
        momentum) * encoder's weight. The default is for targets without a teacher: no pairs.

        Args:
            progress: Share of the run that is done after the step, from 0 to 1.
            encoder: The encoder whose weights the teacher averages.
        """
        return 1.0, ()

    def predict(self, output_BKA: Tensor) -> Tensor:
        """Convert outputs of the head to predictions in the form of `ground_truth`.

        The default returns the outputs unchanged, in float32.
        """
        return output_BKA.float()

    def certainty(self, output_BKA: Tensor) -> Tensor | None:
        """Return the probability of the predicted value of each cell, (B, K, c, c) in [0, 1].

        A patch has c x c cells. The default returns None, for a target without probabilities, such
        as a regression.
        """
        return None

    @abstractmethod
    def render(self, truth_BN: Tensor) -> Tensor:
        """Draw ground truths or predictions as small images of patches, uint8 (B, N, c, c, 3).

        The side c may be any divisor of the patch's side.
        """


class Classes(Target):
    """Target that classifies each part of a patch.

    The loss is the mean cross-entropy over parts, so it does not grow with the number of parts.

    Args:
        patch: Side of a patch in pixels.
        parts: Number A of parts of a patch.
        classes: Number V of classes of a part.
        rows: Number R of rows of the table that counts the classes in training patches. A: each
            part is counted in a row of its own. 1: all parts are counted in the same row.
    """

    count_RV: Tensor

    def __init__(self, patch: int, parts: int, classes: int, rows: int) -> None:
        super().__init__()
        self.patch = patch
        self.classes = classes
        self.num_outputs = parts * classes
        self.register_buffer("count_RV", torch.zeros(rows, classes, dtype=torch.int64))

    @abstractmethod
    def neighbors_class(self, image_B3HW: Tensor, corrupted_BN: Tensor) -> Tensor:
        """Predict the class of each part of a patch from the patch's `neighbors`.

        Returns:
            Classes, int64 (B, N, A), or (B, N, 1) if all parts of a patch get the same class.
        """

    def metrics(self, output_BKA: Tensor, truth_BK: Tensor) -> dict[str, Tensor]:
        logits = self._logits(output_BKA).flatten(0, -2)
        loss = F.cross_entropy(logits, truth_BK.flatten(), reduction="none").view_as(truth_BK)
        is_correct = self.predict(output_BKA) == truth_BK
        return {"loss": loss.mean(-1), "accuracy": is_correct.float().mean(-1)}

    def fit_baselines(self, images: Iterable[Tensor]) -> None:
        rows, classes = self.count_RV.shape
        # Number the cells of the table row by row, so that a single bincount counts all rows
        first_R = classes * torch.arange(rows, device=self.count_RV.device)
        for image_B3HW in images:
            cell = (self.ground_truth(image_B3HW) + first_R).flatten()
            self.count_RV += torch.bincount(cell, minlength=rows * classes).view(rows, classes)

    def baselines(self, image_B3HW: Tensor, corrupted_BN: Tensor) -> dict[str, Tensor]:
        """Return the scores (B, N) of three simple predictions of a patch's classes.

        Args:
            image_B3HW: Images, uint8.
            corrupted_BN: Whether each patch is corrupted, bool.

        Returns:
            "entropy": Entropy in nats of the classes of training patches, which is the loss of
                predicting each class with its frequency.
            "commonest": Accuracy of predicting the most frequent class of training patches.
            "neighbors": Accuracy of the class that `neighbors_class` predicts.
        """
        truth_BNA = self.ground_truth(image_B3HW)
        near_BNA = self.neighbors_class(image_B3HW, corrupted_BN)
        # Frequencies of the V classes: R = A rows for the A parts, or a single row (R = 1) for all
        # parts. In both cases, a result with R values broadcasts with the A parts of `truth_BNA`
        share_RV = self.count_RV.double() / self.count_RV.sum(-1, keepdim=True)
        entropy = torch.special.entr(share_RV).sum(-1).mean()
        return {
            "entropy": entropy.expand(truth_BNA.shape[:2]),
            "commonest": (truth_BNA == self.count_RV.argmax(-1)).double().mean(-1),
            "neighbors": (truth_BNA == near_BNA).double().mean(-1),
        }

    def predict(self, output_BKA: Tensor) -> Tensor:
        return self._logits(output_BKA).argmax(-1)

    def class_probability(self, output_BKA: Tensor) -> Tensor:
        """Return the probability of the predicted class of each part, (B, K, A)."""
        return self._logits(output_BKA.float()).softmax(-1).amax(-1)

    def _logits(self, output_BKA: Tensor) -> Tensor:
        return rearrange(output_BKA, "b k (a v) -> b k a v", v=self.classes)


class Colors(Classes):
    """Target that classifies the 3-bit mean colour of each cell of a patch, with 512 classes.

    A single cell is target 1 of the paper, and 4 x 4 cells are target 2.

    Args:
        patch: Side of a patch in pixels.
        cells: Number of cells along the side of a patch.
    """

    def __init__(self, patch: int, cells: int) -> None:
        super().__init__(patch, cells**2, COLORS, rows=1)
        self.cells = cells

    def ground_truth(self, image_B3HW: Tensor) -> Tensor:
        return grid_color(image_B3HW, self.patch, self.cells)

    def neighbors_class(self, image_B3HW: Tensor, corrupted_BN: Tensor) -> Tensor:
        return neighbor_color(image_B3HW, self.patch, corrupted_BN)[..., None]

    def certainty(self, output_BKA: Tensor) -> Tensor:
        return rearrange(self.class_probability(output_BKA), "b k (p q) -> b k p q", p=self.cells)

    def render(self, truth_BN: Tensor) -> Tensor:
        return class_color(rearrange(truth_BN, "b n (p q) -> b n p q", p=self.cells))


class Regression(Target):
    """Target that predicts A numbers for a patch. The loss is the mean of their errors."""

    # Turns a difference into an error, elementwise
    error: Callable[[Tensor], Tensor] = staticmethod(torch.square)

    @abstractmethod
    def baseline_predictions(
        self, truth_BNA: Tensor, image_B3HW: Tensor, corrupted_BN: Tensor
    ) -> dict[str, Tensor]:
        """Predict the ground truth of all patches in simple ways that need no network.

        The method `baselines` returns the errors of these predictions, under the same names.

        Args:
            truth_BNA: Ground truth of all patches.
            image_B3HW: Images, uint8.
            corrupted_BN: Whether each patch is corrupted, bool.

        Returns:
            {name of a baseline: predictions}, with a shape that broadcasts to (B, N, A).
        """

    def metrics(self, output_BKA: Tensor, truth_BK: Tensor) -> dict[str, Tensor]:
        return {"loss": self.error(output_BKA - truth_BK).mean(-1)}

    def baselines(self, image_B3HW: Tensor, corrupted_BN: Tensor) -> dict[str, Tensor]:
        truth_BNA = self.ground_truth(image_B3HW)
        predictions = self.baseline_predictions(truth_BNA, image_B3HW, corrupted_BN)
        return {
            name: self.error(truth_BNA - prediction).mean(-1)
            for name, prediction in predictions.items()
        }


def mean_truth(truths: Iterable[Tensor]) -> Tensor:
    """Return the mean (A,) over all patches of all images.

    Args:
        truths: Ground truths of batches of images, (B, N, A). Batches may have different sizes.
    """
    totals: list[Tensor] = []
    images = 0
    for truth_BNA in truths:
        totals.append(truth_BNA.mean(1).sum(0))
        images += len(truth_BNA)
    return torch.stack(totals).sum(0) / images


class PixelValues(Regression):
    """Target that predicts a patch's pixels, normalised like the input of the encoder.

    The A values of a patch are ordered by row, column and channel.

    Args:
        patch: Side of a patch in pixels.
        mean: Mean of each channel for the normalisation, in [0, 1].
        std: Standard deviation of each channel for the normalisation, in [0, 1].
        pixel_range: The pixel values that correspond to 0 and 1.
    """

    def __init__(
        self,
        patch: int,
        mean: list[float],
        std: list[float],
        pixel_range: tuple[int, int] = BYTES,
    ) -> None:
        super().__init__()
        self.patch = patch
        self.mean = mean
        self.std = std
        self.pixel_range = pixel_range
        self.channels = len(mean)
        self.num_outputs = self.channels * patch**2

    def ground_truth(self, image_B3HW: Tensor) -> Tensor:
        mean_C11, std_C11 = normalisation(self.mean, self.std, self.pixel_range)
        value_BCHW = image_B3HW.float().sub_(mean_C11.to(image_B3HW.device))
        value_BCHW = value_BCHW.div_(std_C11.to(image_B3HW.device))
        sides = {"p": self.patch, "q": self.patch}
        return rearrange(value_BCHW, "b c (h p) (w q) -> b (h w) (p q c)", **sides)

    def repeat_for_pixels(self, value_C: Tensor) -> Tensor:
        """Repeat values of channels (..., C) for each pixel of a patch, and return (..., A)."""
        return value_C.repeat(*[1] * (value_C.ndim - 1), self.patch**2)

    def as_images(self, truth_BN: Tensor) -> Tensor:
        """Reshape values of patches (B, N, A) to images of patches (B, N, P, P, C)."""
        return rearrange(truth_BN, "b n (p q c) -> b n p q c", p=self.patch, q=self.patch)


class Pixels(PixelValues):
    """Target 3 of the paper: the pixels themselves.

    Args:
        patch: Side of a patch in pixels.
        mean: Mean of each channel for the normalisation, in [0, 1].
        std: Standard deviation of each channel for the normalisation, in [0, 1].
        pixel_range: The pixel values that correspond to 0 and 1.
        error: Function that turns a difference into an error, elementwise: `torch.square` (B.1.2)
            or `torch.abs` (SimMIM: Xie et al., 2022, section 3.4).
    """

    mean_3: Tensor

    def __init__(
        self,
        patch: int,
        mean: list[float],
        std: list[float],
        pixel_range: tuple[int, int] = BYTES,
        *,
        error: Callable[[Tensor], Tensor] = torch.square,
    ) -> None:
        super().__init__(patch, mean, std, pixel_range)
        self.error = error
        self.register_buffer("mean_3", torch.zeros(self.channels))

    def fit_baselines(self, images: Iterable[Tensor]) -> None:
        mean_A = mean_truth(map(self.ground_truth, images))
        self.mean_3.copy_(reduce(mean_A, "(x c) -> c", "mean", c=self.channels))

    def baseline_predictions(
        self, truth_BNA: Tensor, image_B3HW: Tensor, corrupted_BN: Tensor
    ) -> dict[str, Tensor]:
        """Predict every pixel as the mean colour of training images, or of neighbouring patches.

        Returns:
            Two predictions of the normalised pixels:

            - "variance": the mean colour of the training images, computed by `fit_baselines`. The
              mean squared error of this prediction is the variance of the pixels.
            - "neighbors_error": the mean colour of the patch's `neighbors`.
        """
        near_BN3 = self._mean_color_of_neighbors(image_B3HW, corrupted_BN)
        return {
            "variance": self.repeat_for_pixels(self.mean_3),
            "neighbors_error": self.repeat_for_pixels(near_BN3),
        }

    def _mean_color_of_neighbors(self, image_B3HW: Tensor, corrupted_BN: Tensor) -> Tensor:
        """Return the mean of the pixels of each patch's `neighbors`, (B, N, C).

        The result is normalised like the ground truth.
        """
        sums_BN3, num_pixels_BN = neighbor_sums(image_B3HW, self.patch, corrupted_BN)
        mean = torch.tensor(self.mean, device=sums_BN3.device)
        std = torch.tensor(self.std, device=sums_BN3.device)
        lowest, highest = self.pixel_range
        # scale pixel values to [0, 1], as `self.mean` and `self.std` expect
        scaled_BN3 = (sums_BN3 / num_pixels_BN[..., None] - lowest) / (highest - lowest)
        return (scaled_BN3 - mean) / std

    def render(self, truth_BN: Tensor) -> Tensor:
        mean = torch.tensor(self.mean, device=truth_BN.device)
        std = torch.tensor(self.std, device=truth_BN.device)
        levels = (255 * (self.as_images(truth_BN) * std + mean)).round().clamp(0, 255)
        return shown_channels(levels.to(torch.uint8), -1)


class NormalizedPixels(PixelValues):
    """Target that predicts a patch's pixels, normalised by the patch's mean and standard deviation.

    This is `norm_pix_loss` (He et al., 2022, section 3). Mean and unbiased variance (+ 1e-6) are
    computed over the patch's C P^2 values in the model's input range, as in the authors' code.
    """

    EPSILON = 1e-6

    def ground_truth(self, image_B3HW: Tensor) -> Tensor:
        pixel_BNX = super().ground_truth(image_B3HW)
        variance_BN1, mean_BN1 = torch.var_mean(pixel_BNX, -1, correction=1, keepdim=True)
        return (pixel_BNX - mean_BN1) / (variance_BN1 + self.EPSILON).sqrt()

    def baseline_predictions(
        self, truth_BNA: Tensor, image_B3HW: Tensor, corrupted_BN: Tensor
    ) -> dict[str, Tensor]:
        """Predict every value as 0, or as the mean of the neighbouring patches.

        A patch has n = C P^2 values. The mean squared error of predicting 0 is almost (n - 1) / n,
        and not 1, because the normalisation uses the unbiased variance, which divides by n - 1. If
        all values of a patch are equal, the error is 0.

        Returns:
            Two predictions of the normalised values:

            - "zero": 0, which is the mean of every patch after the normalisation.
            - "neighbors_error": for each channel, the mean of the ground truth of the patch's
              `neighbors`.
        """
        mean_BNC = reduce(truth_BNA, "b n (x c) -> b n c", "mean", c=self.channels)
        near_BNC = neighbor_mean(mean_BNC, neighbors(image_B3HW, self.patch, corrupted_BN))
        zero = truth_BNA.new_zeros(())
        return {"zero": zero, "neighbors_error": self.repeat_for_pixels(near_BNC)}

    def render(self, truth_BN: Tensor) -> Tensor:
        """Show the normalised values, without the brightness and contrast of the patch."""
        return shown_channels(to_grey_levels(self.as_images(truth_BN)), -1)
