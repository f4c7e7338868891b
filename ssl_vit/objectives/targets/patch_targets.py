"""Compute the targets of masked patch prediction and masked autoencoders (paper, B.1.2).

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
from ..base import Complete
from ..teacher import Averages
from . import BINS

COLORS = 512  # 3 bits per channel
GREY = 128  # level that shows the value 0
CONTRAST = 48  # number of levels that show one standard deviation


def patch_sums(image_B3HW: Tensor, patch: int) -> Tensor:
    """Sum each channel over each patch: integers (B, C, H, W) -> int64 (B, N, C)."""
    return reduce(image_B3HW.long(), "b c (h p) (w q) -> b (h w) c", "sum", p=patch, q=patch)


def channel_bins(sum_C: Tensor, pixels: Tensor | int, pixel_range: tuple[int, int]) -> Tensor:
    """Return the bin of each channel's mean, int64 (..., C), 0 .. 7.

    The bin is floor(8 v), where v is the mean as a share of `pixel_range`, and 1.0 is in bin 7
    (paper, B.1.2: "3-bit mean color"). It is computed in integers, so it is exact for every sum,
    also at the edges of bins.

    Args:
        sum_C: sums of pixel values (..., C).
        pixels: number of pixels that were summed, (...,) or one number.
        pixel_range: the pixel values that correspond to 0 and 1.
    """
    lowest, highest = pixel_range
    count = torch.as_tensor(pixels, device=sum_C.device).unsqueeze(-1)
    bin_C = BINS * (sum_C - lowest * count) // ((highest - lowest) * count)
    return bin_C.clamp(0, BINS - 1)


def color_class(sum_3: Tensor, pixels: Tensor | int) -> Tensor:
    """Return the class 64 R + 8 G + B of a mean colour, int64 (...,), 0 .. 511.

    R, G and B are `channel_bins`.

    Args:
        sum_3: sums of bytes (..., 3).
        pixels: number of pixels that were summed.
    """
    bin_3 = channel_bins(sum_3, pixels, BYTES)
    return 64 * bin_3[..., 0] + 8 * bin_3[..., 1] + bin_3[..., 2]


def mean_color(image_B3HW: Tensor, patch: int) -> Tensor:
    """Return the class of each patch's mean colour: uint8 (B, 3, H, W) -> int64 (B, N).

    This is target 1 of B.1.2.
    """
    return color_class(patch_sums(image_B3HW, patch), patch * patch)


def grid_color(image_B3HW: Tensor, patch: int, cells: int) -> Tensor:
    """Return the classes of the mean colours of each patch's cells: uint8 (B, 3, H, W) -> int64 (B,
    N, cells^2).

    A patch has `cells` x `cells` cells, row by row (B.1.2, target 2, by area means). The side of a
    patch must be a multiple of `cells`.
    """
    side = patch // cells
    grid = rearrange(
        mean_color(image_B3HW, side), "b (h w) -> b h w", h=image_B3HW.shape[-2] // side
    )
    return rearrange(grid, "b (h c) (w d) -> b (h w) (c d)", c=cells, d=cells)


def class_color(class_N: Tensor) -> Tensor:
    """Return the middle of each class's bins as RGB bytes: int64 (...,) -> uint8 (..., 3)."""
    bins = torch.stack([class_N // 64, class_N // 8 % 8, class_N % 8], -1)
    return (bins * 255 // 8 + 16).to(torch.uint8)


def neighbors(image_B3HW: Tensor, patch: int, corrupted_BN: Tensor) -> Tensor:
    """Return which patches (last dimension) are uncorrupted neighbours of each patch: bool (B, N,
    N).

    The neighbours are all uncorrupted patches on the nearest square ring around the patch that has
    an uncorrupted patch. If all patches of an image are corrupted, no patch has neighbours.

    Args:
        image_B3HW: the images, for their size.
        patch: side of a patch in pixels.
        corrupted_BN: bool, the corrupted patches.
    """
    rows = image_B3HW.shape[-2] // patch
    columns = image_B3HW.shape[-1] // patch
    y, x = (
        rearrange(a, "h w -> (h w)")
        for a in torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    )
    ring_NN = torch.maximum((y[:, None] - y).abs(), (x[:, None] - x).abs()).to(image_B3HW.device)
    # Put the patch itself and corrupted patches beyond every ring
    outside = rows + columns
    corrupted_B1N = corrupted_BN[:, None, :]
    ring_BNN = ring_NN.masked_fill(ring_NN == 0, outside).masked_fill(corrupted_B1N, outside)
    return (ring_BNN == ring_BNN.amin(-1, keepdim=True)) & ~corrupted_B1N


def neighbor_sums(image_B3HW: Tensor, patch: int, corrupted_BN: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sums of values over each patch's `neighbors` and the number of summed pixels.

    Returns:
        Sums, int64 (B, N, C), and numbers of pixels, int64 (B, N). For a patch without neighbours,
        the sum is 0 and the number is that of one patch.
    """
    near_BNN = neighbors(image_B3HW, patch, corrupted_BN)
    sums_BN3 = patch_sums(image_B3HW, patch).double()  # exact: sums stay far below 2^53
    count_BN = near_BNN.sum(-1).clamp(min=1)
    return (near_BNN.double() @ sums_BN3).long(), count_BN * patch * patch


def neighbor_color(image_B3HW: Tensor, patch: int, corrupted_BN: Tensor) -> Tensor:
    """Return the class of the mean colour of each patch's neighbours, int64 (B, N), a baseline
    of MPP.
    """
    return color_class(*neighbor_sums(image_B3HW, patch, corrupted_BN))


def neighbor_mean(value_BNA: Tensor, near_BNN: Tensor) -> Tensor:
    """Return the mean (B, N, A) of a value over each patch's `neighbors`; 0 without neighbours."""
    with full_precision(value_BNA.device):
        near_BNA = near_BNN.to(value_BNA) @ value_BNA
    return near_BNA / near_BNN.sum(-1, keepdim=True).clamp(min=1)


def around_grey(value: Tensor) -> Tensor:
    """Show values of mean 0 and standard deviation 1 as uint8 levels around grey."""
    return (GREY + CONTRAST * value).round().clamp(0, 255).to(torch.uint8)


class Target(Complete):
    """Ground truth of a patch, loss of a prediction, and baselines that a trained model must beat.

    Buffers hold the statistics that `fit_baselines` computes.

    Attributes:
        num_outputs: how many numbers the head must return for a patch.
        drawn: how figures show the target, as in its declaration.
        moves: whether ground truth and `baselines` change during training.
    """

    num_outputs: int
    drawn: str = ""
    moves: bool = False

    @abstractmethod
    def ground_truth(self, image_B3HW: Tensor) -> Tensor:
        """Return the value to predict for every patch, (B, N, ...)."""

    @abstractmethod
    def metrics(self, output_BKA: Tensor, truth_BK: Tensor) -> dict[str, Tensor]:
        """Return the metrics of predictions, {name: (B, K)}.

        "loss" is required and is the mean over the patch's outputs. "accuracy" and the metrics of
        the target's declaration are optional.
        """

    def fit_baselines(self, images: Iterable[Tensor]) -> None:
        """Compute statistics of training images for `baselines`. The default computes nothing.

        Args:
            images: batches of images, cropped and augmented, uint8 (B, 3, H, W).
        """

    @abstractmethod
    def baselines(self, image_B3HW: Tensor, corrupted_BN: Tensor) -> dict[str, Tensor]:
        """Return scores of each patch without a model, (B, N), by the name of a `metrics.Baseline`.

        Baselines use the neighbours of a patch that are not in `corrupted_BN`, and the statistics
        of `fit_baselines`.
        """

    def averages(self, progress: float, encoder: Encoder) -> Averages:
        """Return what `Objective.averages` returns, for a target with a teacher of this encoder."""
        return 1.0, ()

    def predict(self, output_BKA: Tensor) -> Tensor:
        """Return the prediction in the form of `ground_truth`. The default returns the outputs
        unchanged.
        """
        return output_BKA.float()

    def certainty(self, output_BKA: Tensor) -> Tensor | None:
        """Return the probability that the model gives its prediction, (B, K, c, c) in [0, 1].

        Each of the patch's c x c cells has a probability. None for a target without probabilities,
        such as a regression.
        """
        return None

    @abstractmethod
    def render(self, truth_BN: Tensor) -> Tensor:
        """Render ground truths or predictions as images of patches, uint8 (B, N, c, c, 3).

        c is any divisor of the patch's side.
        """


class Classes(Target):
    """Target that classifies each part of a patch.

    The loss is the mean of the parts' cross-entropies, so that it does not grow with the number of
    parts.

    Args:
        patch: side of a patch in pixels.
        parts: A, number of parts of a patch.
        classes: V, number of classes of a part.
        rows: number of rows of the table in which classes of training patches are counted: a row
            for each part, or 1 for all parts together.
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
        """Predict the classes of a patch's parts from the neighbours: int64 (B, N, A), or (B, N, 1)
        for all parts.
        """

    def metrics(self, output_BKA: Tensor, truth_BK: Tensor) -> dict[str, Tensor]:
        logits = self._logits(output_BKA).flatten(0, -2)
        loss = F.cross_entropy(logits, truth_BK.flatten(), reduction="none").view_as(truth_BK)
        right = self.predict(output_BKA) == truth_BK
        return {"loss": loss.mean(-1), "accuracy": right.float().mean(-1)}

    def fit_baselines(self, images: Iterable[Tensor]) -> None:
        rows, classes = self.count_RV.shape
        first_R = classes * torch.arange(rows, device=self.count_RV.device)
        for image in images:
            place = (self.ground_truth(image) + first_R).flatten()
            self.count_RV += torch.bincount(place, minlength=rows * classes).view(rows, classes)

    def baselines(self, image_B3HW: Tensor, corrupted_BN: Tensor) -> dict[str, Tensor]:
        truth_BNA = self.ground_truth(image_B3HW)
        near_BNA = self.neighbors_class(image_B3HW, corrupted_BN)
        share_RV = self.count_RV.double() / self.count_RV.sum(-1, keepdim=True)
        entropy = torch.special.entr(share_RV).sum(-1).mean()
        return {
            "entropy": entropy.expand(truth_BNA.shape[:2]),
            "commonest": (truth_BNA == self.count_RV.argmax(-1)).double().mean(-1),
            "neighbors": (truth_BNA == near_BNA).double().mean(-1),
        }

    def predict(self, output_BKA: Tensor) -> Tensor:
        return self._logits(output_BKA).argmax(-1)

    def chance(self, output_BKA: Tensor) -> Tensor:
        """Return the probability of each part's predicted class, (B, K, A)."""
        return self._logits(output_BKA.float()).softmax(-1).amax(-1)

    def _logits(self, output_BKA: Tensor) -> Tensor:
        return rearrange(output_BKA, "b k (a v) -> b k a v", v=self.classes)


class Colors(Classes):
    """Target of the 3-bit mean colours of a patch's cells x cells cells, with 512 classes each.

    With one cell it is target 1 of the paper, with 4 x 4 cells target 2.
    """

    def __init__(self, patch: int, cells: int) -> None:
        super().__init__(patch, cells**2, COLORS, rows=1)
        self.cells = cells

    def ground_truth(self, image_B3HW: Tensor) -> Tensor:
        return grid_color(image_B3HW, self.patch, self.cells)

    def neighbors_class(self, image_B3HW: Tensor, corrupted_BN: Tensor) -> Tensor:
        return neighbor_color(image_B3HW, self.patch, corrupted_BN)[..., None]

    def certainty(self, output_BKA: Tensor) -> Tensor:
        return rearrange(self.chance(output_BKA), "b k (p q) -> b k p q", p=self.cells)

    def render(self, truth_BN: Tensor) -> Tensor:
        return class_color(rearrange(truth_BN, "b n (p q) -> b n p q", p=self.cells))


class Regression(Target):
    """Target that predicts numbers of a patch, by the mean of their errors."""

    # Turns a difference into an error, elementwise
    error: Callable[[Tensor], Tensor] = staticmethod(torch.square)

    @abstractmethod
    def guesses(
        self, truth_BNA: Tensor, image_B3HW: Tensor, corrupted_BN: Tensor
    ) -> dict[str, Tensor]:
        """Return what each baseline predicts, by name: (B, N, A), or a shape that broadcasts to
        it.
        """

    def metrics(self, output_BKA: Tensor, truth_BK: Tensor) -> dict[str, Tensor]:
        return {"loss": self.error(output_BKA - truth_BK).mean(-1)}

    def baselines(self, image_B3HW: Tensor, corrupted_BN: Tensor) -> dict[str, Tensor]:
        truth_BNA = self.ground_truth(image_B3HW)
        guesses = self.guesses(truth_BNA, image_B3HW, corrupted_BN)
        return {name: self.error(truth_BNA - guess).mean(-1) for name, guess in guesses.items()}


def mean_truth(truths: Iterable[Tensor]) -> Tensor:
    """Return the mean (A,) over the patches of all batches (B, N, A). The last batch may be
    smaller.
    """
    totals, counts = zip(*((truth.mean(1).sum(0), len(truth)) for truth in truths), strict=True)
    return torch.stack(totals).sum(0) / sum(counts)


class PixelValues(Regression):
    """Target of a patch's pixels in the model's input range, (p q c): by row, column and channel.

    Args:
        patch: side of a patch in pixels.
        mean, std: normalise the model's input, one value per channel.
        pixel_range: the pixel values that correspond to 0 and 1.
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
        low, scale = normalisation(self.mean, self.std, self.pixel_range)
        value_BCHW = image_B3HW.float().sub_(low.to(image_B3HW.device))
        value_BCHW = value_BCHW.div_(scale.to(image_B3HW.device))
        sides = {"p": self.patch, "q": self.patch}
        return rearrange(value_BCHW, "b c (h p) (w q) -> b (h w) (p q c)", **sides)

    def of_channels(self, value_C: Tensor) -> Tensor:
        """Repeat a value of each channel (..., C) for each pixel, (..., A)."""
        return value_C.repeat(*[1] * (value_C.ndim - 1), self.patch**2)

    def as_images(self, truth_BN: Tensor) -> Tensor:
        """Return patches as images (B, N, P, P, C)."""
        return rearrange(truth_BN, "b n (p q c) -> b n p q c", p=self.patch, q=self.patch)


class Pixels(PixelValues):
    """Target 3 of the paper: the pixels themselves.

    Args:
        patch, mean, std, pixel_range: see PixelValues.
        error: function of a difference: squared (B.1.2) or absolute (SimMIM: Xie et al., 2022,
            section 3.4).
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

    def guesses(
        self, truth_BNA: Tensor, image_B3HW: Tensor, corrupted_BN: Tensor
    ) -> dict[str, Tensor]:
        sums_BN3, count_BN = neighbor_sums(image_B3HW, self.patch, corrupted_BN)
        std, mean = (torch.tensor(v, device=sums_BN3.device) for v in (self.std, self.mean))
        lowest, highest = self.pixel_range
        share_BN3 = (sums_BN3 / count_BN[..., None] - lowest) / (highest - lowest)
        near_BN3 = (share_BN3 - mean) / std
        return {
            "variance": self.of_channels(self.mean_3),
            "neighbors_error": self.of_channels(near_BN3),
        }

    def render(self, truth_BN: Tensor) -> Tensor:
        std, mean = (torch.tensor(v, device=truth_BN.device) for v in (self.std, self.mean))
        levels = (255 * (self.as_images(truth_BN) * std + mean)).round().clamp(0, 255)
        return shown_channels(levels.to(torch.uint8), -1)


class NormalizedPixels(PixelValues):
    """Target of a patch's pixels, normalised by the patch's mean and standard deviation.

    This is `norm_pix_loss` (He et al., 2022, section 3). Mean and unbiased variance (+ 1e-6) are
    computed over the patch's C P^2 values in the model's input range, as in the authors' code.
    """

    EPSILON = 1e-6

    def ground_truth(self, image_B3HW: Tensor) -> Tensor:
        pixel_BNX = super().ground_truth(image_B3HW)
        variance_BN1, mean_BN1 = torch.var_mean(pixel_BNX, -1, correction=1, keepdim=True)
        return (pixel_BNX - mean_BN1) / (variance_BN1 + self.EPSILON).sqrt()

    def guesses(
        self, truth_BNA: Tensor, image_B3HW: Tensor, corrupted_BN: Tensor
    ) -> dict[str, Tensor]:
        """Return what the baselines predict.

        "zero" predicts 0, which is each patch's mean: the error is (n - 1) / n for n = C P^2
        values, and 0 for a patch of one grey. "neighbors_error" predicts for all pixels of a
        channel the mean of this channel in the normalised neighbours.
        """
        mean_BNC = reduce(truth_BNA, "b n (x c) -> b n c", "mean", c=self.channels)
        near_BNC = neighbor_mean(mean_BNC, neighbors(image_B3HW, self.patch, corrupted_BN))
        zero = truth_BNA.new_zeros(())
        return {"zero": zero, "neighbors_error": self.of_channels(near_BNC)}

    def render(self, truth_BN: Tensor) -> Tensor:
        """Show the normalised values, without the brightness and contrast of the patch."""
        return shown_channels(around_grey(self.as_images(truth_BN)), -1)
