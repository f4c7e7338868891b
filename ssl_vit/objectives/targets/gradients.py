"""Compute histograms of oriented gradients as a target (MaskFeat: Wei et al., 2022, section 3.2).

This follows the authors' code: SlowFast's models/operators.py (`HOGLayerC`) and models/masked.py.
Each channel of the image, reflected at the edges, has 3 x 3 Sobel gradients. Each pixel adds the
length of the gradient to one of 9 bins of the direction, regardless of sign. The sums over a cell
of 8 x 8 pixels are scaled to length 1. Scaling or shifting a channel changes nothing, so bytes are
used as they are.

Legend: B batch, N patches, K corrupted patches, C channels, H W height and width of the image, Y X
rows and columns of cells, A values of a patch, by channel, bin, row and column of cells.
"""

import math
from collections.abc import Iterable

import torch
from einops import einsum, rearrange, reduce
from torch import Tensor
from torch.nn import functional as F

from ...data.pixel_values import shown_channels
from . import CELL
from .patch_targets import Regression, mean_truth, neighbor_mean, neighbors

ORIENTATIONS = 9


def cell_histograms(image_BCHW: Tensor) -> Tensor:
    """Return the histogram of gradient directions of each cell, float32 (B, C, Y, X, 9).

    The cells are squares of CELL x CELL pixels, in Y rows and X columns. The direction of a
    gradient is its angle from the y axis, which points downwards. Opposite directions count as
    equal, so the angle is between 0 and pi. The 9 bins divide this range equally. Each histogram is
    a vector of length 1, or of length 0 in a cell without gradients.

    For images of 16 bits or less, float32 holds the differences of pixels exactly. So no gradient
    gets into a wrong bin because of rounded differences.

    Args:
        image_BCHW: Integer images, with sides that are multiples of CELL.
    """
    padded = F.pad(image_BCHW.float(), (1, 1, 1, 1), mode="reflect")
    # Sobel filters: smooth along one axis, then take differences along the other axis
    smoothed_along_x = padded[..., :-2] + 2 * padded[..., 1:-1] + padded[..., 2:]
    smoothed_along_y = padded[..., :-2, :] + 2 * padded[..., 1:-1, :] + padded[..., 2:, :]
    dx_BCHW = smoothed_along_y[..., :-2] - smoothed_along_y[..., 2:]
    dy_BCHW = smoothed_along_x[..., :-2, :] - smoothed_along_x[..., 2:, :]
    length_BCHW = (dx_BCHW.square() + dy_BCHW.square()).sqrt()
    # Reverse gradients with an angle of pi or more. The comparisons with 0 are exact, because
    # differences of pixels are integers
    opposite = (dx_BCHW < 0) | ((dx_BCHW == 0) & (dy_BCHW < 0))
    dx = torch.where(opposite, -dx_BCHW, dx_BCHW).double()
    dy = torch.where(opposite, -dy_BCHW, dy_BCHW).double()
    # atan2(dx, dy) is the angle from the y axis; atan2(dy, dx) would be the angle from the x axis
    bin_BCHW = (torch.atan2(dx, dy) * (ORIENTATIONS / math.pi)).floor()
    cells = {"p": CELL, "q": CELL}
    sums = [
        reduce(length_BCHW * (bin_BCHW == number), "b c (y p) (x q) -> b c y x", "sum", **cells)
        for number in range(ORIENTATIONS)
    ]
    return F.normalize(torch.stack(sums, -1), dim=-1)


class GradientHistograms(Regression):
    """Target that predicts the histograms of a patch's cells, by squared error.

    Args:
        patch: Side of a patch in pixels, a multiple of CELL.
        channels: Number of channels C.
    """

    mean_A: Tensor

    def __init__(self, patch: int, channels: int) -> None:
        super().__init__()
        self.patch = patch
        self.cells_of_patch = {"y": patch // CELL, "x": patch // CELL}
        self.num_outputs = channels * ORIENTATIONS * (patch // CELL) ** 2
        self.register_buffer("mean_A", torch.zeros(self.num_outputs))

    def ground_truth(self, image_B3HW: Tensor) -> Tensor:
        histograms = cell_histograms(image_B3HW)
        return rearrange(
            histograms, "b c (h y) (w x) k -> b (h w) (c k y x)", **self.cells_of_patch
        )

    def fit_baselines(self, images: Iterable[Tensor]) -> None:
        self.mean_A.copy_(mean_truth(map(self.ground_truth, images)))

    def baseline_predictions(
        self, truth_BNA: Tensor, image_B3HW: Tensor, corrupted_BN: Tensor
    ) -> dict[str, Tensor]:
        """Predict the histograms of a patch as the mean of training patches, or of its neighbours.

        Returns:
            Two predictions of the histograms:

            - "variance": the mean over the patches of training images, computed by `fit_baselines`.
            - "neighbors_error": the mean over the patch's `neighbors`.
        """
        near_BNN = neighbors(image_B3HW, self.patch, corrupted_BN)
        return {"variance": self.mean_A, "neighbors_error": neighbor_mean(truth_BNA, near_BNN)}

    def render(self, truth_BN: Tensor) -> Tensor:
        """Draw the histogram of each cell as strokes, uint8 (B, N, P, P, 3).

        Each of the 9 bins of a cell has a stroke through the middle of the cell. The stroke is
        perpendicular to the bin's gradients, like the edges that the bin counts, and as bright as
        the bin's value.

        Args:
            truth_BN: Histograms of the cells of each patch, as `ground_truth` returns them.
        """
        bins = torch.arange(ORIENTATIONS, device=truth_BN.device)
        # Middle of each bin, as the angle of the gradient from the y axis
        angle_K = (bins + 0.5) * math.pi / ORIENTATIONS
        offset = torch.arange(CELL, device=truth_BN.device) - (CELL - 1) / 2
        y, x = offset[:, None, None], offset[:, None]
        # The angle is measured from the y axis, so the gradient has x = sin and y = cos. The stroke
        # is perpendicular to it, and its brightness falls linearly to 0 at a distance of 1 pixel
        distance_PQK = (x * angle_K.sin() + y * angle_K.cos()).abs()
        stroke_PQK = (1 - distance_PQK).clamp(min=0)
        # `ground_truth` orders a patch's values by channel, bin, and row and column of the cell
        histograms = rearrange(
            truth_BN.float(), "b n (c k y x) -> b n y x k c", k=ORIENTATIONS, **self.cells_of_patch
        )
        # b images, n patches, y x cells of a patch, p q pixels of a cell, k bins, c channels
        picture = einsum(histograms, stroke_PQK, "b n y x k c, p q k -> b n y p x q c")
        levels = (255 * picture).round().clamp(0, 255).to(torch.uint8)
        return shown_channels(rearrange(levels, "b n y p x q c -> b n (y p) (x q) c"), -1)
