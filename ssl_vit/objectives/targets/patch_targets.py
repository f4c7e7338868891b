"""Targets of masked patch prediction and masked autoencoders: colour classes, computed in integers
from the bytes, or pixels (paper, B.1.2).

Legend: B batch, N patches (row by row), K corrupted patches, P patch side in pixels, H = W image
side, A head outputs for a patch, X pixels of a patch.
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
GREY = 128  # 0 as it is shown
CONTRAST = 48  # levels that one standard deviation is shown as


def patch_sums(image_B3HW: Tensor, patch: int) -> Tensor:
    """Sum of each channel's values over each patch: integers (B, C, H, W) -> int64 (B, N, C)."""
    return reduce(image_B3HW.long(), "b c (h p) (w q) -> b (h w) c", "sum", p=patch, q=patch)


def channel_bins(sum_C: Tensor, pixels: Tensor | int, pixel_range: tuple[int, int]) -> Tensor:
    """The bin of each channel's mean, given as the sum (..., C) over `pixels` (...,) pixels: int64
    (..., C), 0 .. 7.

    It is floor(8 v) of the mean v as a share of `pixel_range`, with 1.0 in bin 7 (paper, B.1.2:
    "3-bit mean color"); in integers, so exact for every sum, edges included.
    """
    lowest, highest = pixel_range
    count = torch.as_tensor(pixels, device=sum_C.device).unsqueeze(-1)
    bin_C = BINS * (sum_C - lowest * count) // ((highest - lowest) * count)
    return bin_C.clamp(0, BINS - 1)


def color_class(sum_3: Tensor, pixels: Tensor | int) -> Tensor:
    """Class 64 R + 8 G + B of mean colours given as byte sums (..., 3) over `pixels` pixels: int64
    (...,), 0 .. 511.

    A channel's bin is that of `channel_bins`.
    """
    bin_3 = channel_bins(sum_3, pixels, BYTES)
    return 64 * bin_3[..., 0] + 8 * bin_3[..., 1] + bin_3[..., 2]


def mean_color(image_B3HW: Tensor, patch: int) -> Tensor:
    """Class of each patch's mean colour (B.1.2, target 1): uint8 (B, 3, H, W) -> int64 (B, N)."""
    return color_class(patch_sums(image_B3HW, patch), patch * patch)


def grid_color(image_B3HW: Tensor, patch: int, cells: int) -> Tensor:
    """Classes of the mean colours of each patch's `cells` x `cells` cells, row by row (B.1.2,
    target 2, area means): uint8 (B, 3, H, W) -> int64 (B, N, cells^2). The patch's side must be a
    multiple of `cells`."""
    side = patch // cells
    grid = rearrange(
        mean_color(image_B3HW, side), "b (h w) -> b h w", h=image_B3HW.shape[-2] // side
    )
    return rearrange(grid, "b (h c) (w d) -> b (h w) (c d)", c=cells, d=cells)


def class_color(class_N: Tensor) -> Tensor:
    """The middle of each class's bin as RGB bytes: int64 (...,) -> uint8 (..., 3)."""
    bins = torch.stack([class_N // 64, class_N // 8 % 8, class_N % 8], -1)
    return (bins * 255 // 8 + 16).to(torch.uint8)


def neighbors(image_B3HW: Tensor, patch: int, corrupted_BN: Tensor) -> Tensor:
    """Which patches (the last dimension) are each patch's uncorrupted neighbours: bool (B, N, N).

    They are the patches not in `corrupted_BN` (bool) on the nearest square ring around the patch
    that has one. An image with every patch corrupted has none.
    """
    rows = image_B3HW.shape[-2] // patch
    columns = image_B3HW.shape[-1] // patch
    y, x = (
        rearrange(a, "h w -> (h w)")
        for a in torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    )
    ring_NN = torch.maximum((y[:, None] - y).abs(), (x[:, None] - x).abs()).to(image_B3HW.device)
    # the patch itself and corrupted ones lie beyond every ring
    outside = rows + columns
    corrupted_B1N = corrupted_BN[:, None, :]
    ring_BNN = ring_NN.masked_fill(ring_NN == 0, outside).masked_fill(corrupted_B1N, outside)
    return (ring_BNN == ring_BNN.amin(-1, keepdim=True)) & ~corrupted_B1N


def neighbor_sums(image_B3HW: Tensor, patch: int, corrupted_BN: Tensor) -> tuple[Tensor, Tensor]:
    """Sums of the values, int64 (B, N, C), of each patch's `neighbors`, and how many pixels they
    have, int64 (B, N); without any, sum 0 over one patch's pixels."""
    near_BNN = neighbors(image_B3HW, patch, corrupted_BN)
    sums_BN3 = patch_sums(image_B3HW, patch).double()  # exact: sums stay far below 2^53
    count_BN = near_BNN.sum(-1).clamp(min=1)
    return (near_BNN.double() @ sums_BN3).long(), count_BN * patch * patch


def neighbor_color(image_B3HW: Tensor, patch: int, corrupted_BN: Tensor) -> Tensor:
    """Class of the mean colour of each patch's uncorrupted neighbours, a baseline for
    MPP: int64 (B, N)."""
    return color_class(*neighbor_sums(image_B3HW, patch, corrupted_BN))


def neighbor_mean(value_BNA: Tensor, near_BNN: Tensor) -> Tensor:
    """The mean (B, N, A) of a value of each patch's `neighbors`; 0 without any."""
    with full_precision(value_BNA.device):
        near_BNA = near_BNN.to(value_BNA) @ value_BNA
    return near_BNA / near_BNN.sum(-1, keepdim=True).clamp(min=1)


def around_grey(value: Tensor) -> Tensor:
    """Values of a mean of 0 and a deviation of 1 as uint8 levels."""
    return (GREY + CONTRAST * value).round().clamp(0, 255).to(torch.uint8)


class Target(Complete):
    """The ground truth of a patch, the loss of a prediction, and baselines that a trained model
    must beat. Buffers hold the statistics that `fit_baselines` computes."""

    num_outputs: int  # numbers that the head gives for a patch
    drawn: str = ""  # as of its declaration
    moves: bool = False  # whether the ground truth, and so `baselines`, follow training

    @abstractmethod
    def ground_truth(self, image_B3HW: Tensor) -> Tensor:
        """The value to predict for every patch: (B, N, ...)."""

    @abstractmethod
    def metrics(self, output_BKA: Tensor, truth_BK: Tensor) -> dict[str, Tensor]:
        """{"loss": (B, K), optionally "accuracy": (B, K)}, and its declaration's metrics; the loss
        is the mean over the patch's outputs."""

    def fit_baselines(self, images: Iterable[Tensor]) -> None:
        """Compute statistics of training images, cropped and augmented, uint8 (B, 3, H, W) each,
        for `baselines`; by default none."""

    @abstractmethod
    def baselines(self, image_B3HW: Tensor, corrupted_BN: Tensor) -> dict[str, Tensor]:
        """Name -> (B, N): the score of each patch without a model, from its neighbours that are not
        in `corrupted_BN` and from the statistics. Names of rows of metrics.Baseline."""

    def averages(self, progress: float, encoder: Encoder) -> Averages:
        """`Objective.averages` of one with a teacher of this encoder."""
        return 1.0, ()

    def predict(self, output_BKA: Tensor) -> Tensor:
        """The prediction, in the form of `ground_truth`: by default the outputs themselves."""
        return output_BKA.float()

    def certainty(self, output_BKA: Tensor) -> Tensor | None:
        """The probability that the model gives its prediction: (B, K, c, c) in [0, 1], for each of
        the patch's c x c cells; None for a target without probabilities, such as a regression."""
        return None

    @abstractmethod
    def render(self, truth_BN: Tensor) -> Tensor:
        """Ground truths or predictions as images of patches: uint8 (B, N, c, c, 3) for some c that
        divides the patch's side."""


class Classes(Target):
    """Classes of each of a patch's parts, by the mean of their cross-entropies, so that the loss
    does not grow with their number.

    Args:
        patch: side in pixels.
        parts: A, of a patch.
        classes: V, of each part.
        rows: in which training patches are counted: one of each part, or 1 of all parts together.
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
        """What a patch's neighbours say of its parts: int64 (B, N, A), or (B, N, 1) of all."""

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
        """The probability of each part's predicted class: (B, K, A)."""
        return self._logits(output_BKA.float()).softmax(-1).amax(-1)

    def _logits(self, output_BKA: Tensor) -> Tensor:
        return rearrange(output_BKA, "b k (a v) -> b k a v", v=self.classes)


class Colors(Classes):
    """Targets 1 and 2: the 3-bit mean colour of each of the patch's cells x cells cells, a class of
    512 each."""

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
    """Values of a patch, by the mean of their errors."""

    # of a difference, elementwise
    error: Callable[[Tensor], Tensor] = staticmethod(torch.square)

    @abstractmethod
    def guesses(
        self, truth_BNA: Tensor, image_B3HW: Tensor, corrupted_BN: Tensor
    ) -> dict[str, Tensor]:
        """What `baselines` predict, by their names: (B, N, A), or what broadcasts to that."""

    def metrics(self, output_BKA: Tensor, truth_BK: Tensor) -> dict[str, Tensor]:
        return {"loss": self.error(output_BKA - truth_BK).mean(-1)}

    def baselines(self, image_B3HW: Tensor, corrupted_BN: Tensor) -> dict[str, Tensor]:
        truth_BNA = self.ground_truth(image_B3HW)
        guesses = self.guesses(truth_BNA, image_B3HW, corrupted_BN)
        return {name: self.error(truth_BNA - guess).mean(-1) for name, guess in guesses.items()}


def mean_truth(truths: Iterable[Tensor]) -> Tensor:
    """The mean (A,) over the patches of all batches (B, N, A), of which the last may be smaller."""
    totals, counts = zip(*((one.mean(1).sum(0), len(one)) for one in truths), strict=True)
    return torch.stack(totals).sum(0) / sum(counts)


class PixelValues(Regression):
    """The patch's pixels in the model's input range, (p q c): by row, column and channel.

    Args:
        patch: side in pixels.
        mean, std: normalise the model's input, one value a channel.
        pixel_range: the values of a pixel that stand for 0 and 1.
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
        """A value of each channel (..., C) as one of each of its pixels (..., A)."""
        return value_C.repeat(*[1] * (value_C.ndim - 1), self.patch**2)

    def as_images(self, truth_BN: Tensor) -> Tensor:
        """(B, N, P, P, C)."""
        return rearrange(truth_BN, "b n (p q c) -> b n p q c", p=self.patch, q=self.patch)


class Pixels(PixelValues):
    """Target 3: the pixels themselves.

    Args:
        patch, mean, std, pixel_range: as of PixelValues.
        error: of a difference: squared (B.1.2) or absolute (SimMIM: Xie et al., 2022, section 3.4).
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
    """The patch's pixels less their mean, over their standard deviation (`norm_pix_loss`: He et
    al., 2022, section 3). Mean and unbiased variance (+ 1e-6) are over the patch's C P^2 values in
    the model's input range, as in the authors' code."""

    EPSILON = 1e-6

    def ground_truth(self, image_B3HW: Tensor) -> Tensor:
        pixel_BNX = super().ground_truth(image_B3HW)
        variance_BN1, mean_BN1 = torch.var_mean(pixel_BNX, -1, correction=1, keepdim=True)
        return (pixel_BNX - mean_BN1) / (variance_BN1 + self.EPSILON).sqrt()

    def guesses(
        self, truth_BNA: Tensor, image_B3HW: Tensor, corrupted_BN: Tensor
    ) -> dict[str, Tensor]:
        """`zero`: zero, each patch's own mean; its error is (n - 1) / n of n = C P^2 values, and 0
        of a patch of one grey. `neighbors_error`: for all pixels of a channel that channel's mean
        of the normalised neighbours, whose colour they share."""
        mean_BNC = reduce(truth_BNA, "b n (x c) -> b n c", "mean", c=self.channels)
        near_BNC = neighbor_mean(mean_BNC, neighbors(image_B3HW, self.patch, corrupted_BN))
        zero = truth_BNA.new_zeros(())
        return {"zero": zero, "neighbors_error": self.of_channels(near_BNC)}

    def render(self, truth_BN: Tensor) -> Tensor:
        """The normalised values, without the patch's brightness and contrast."""
        return shown_channels(around_grey(self.as_images(truth_BN)), -1)
