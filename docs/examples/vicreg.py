"""Add the loss VICReg (Bardes, Ponce and LeCun, 2022, algorithm 1).

    ssl-vit pretrain recipe=moco_v3 plugin=docs/examples/vicreg.py objective=vicreg

Suffixes: X views, B images of this process, G images of all processes, D and C channels.
"""

import torch
from torch import nn
from torch.nn import functional as F

from ssl_vit.extend import SHARE, Baseline, GlobalBatchNorm, Metric, Objective, Options, Output
from ssl_vit.extend import Width, both_views, declare, full_precision, global_rows, option, sums


def spread(z_GC):
    """Return the variance term (0.99 if all features are equal) and the covariance term."""
    z_GC = z_GC - z_GC.mean(0)
    covariance_CC = z_GC.T @ z_GC / max(1, len(z_GC) - 1)
    variance_C = covariance_CC.diagonal()
    covariance = (covariance_CC - variance_C.diag()).square().sum() / len(variance_C)
    return F.relu(1 - (variance_C + 1e-4).sqrt()).mean(), covariance


@declare
class VICReg(Objective):
    name, title = "vicreg", "Variance, invariance and covariance of views (VICReg)"
    paper, shared = "Bardes, Ponce and LeCun, 2022, arXiv:2105.04906", ("views",)
    metrics = Metric("found", "views found", unit=SHARE), Baseline("guess", "guessing", ("found",))
    metrics += (Baseline("same_feature", "the same feature for all images", ("loss",)),)

    class Options(Options):
        invariance: float = option(25.0, "Weight of the distance between the views.", ge=0)
        variance: float = option(25.0, "Weight of the variance term.", ge=0)
        covariance: float = option(1.0, "Weight of the covariance term.", ge=0)
        width: Width = option(256, "Width of the projector (paper: 8192).")

    def __init__(self, encoder, invariance, variance, covariance, width):
        super().__init__(encoder)
        self.weights = invariance, variance, covariance
        first = nn.Linear(encoder.width, width), GlobalBatchNorm(width), nn.ReLU()
        second = nn.Linear(width, width), GlobalBatchNorm(width), nn.ReLU()
        self.projector = nn.Sequential(*first, *second, nn.Linear(width, width))

    def forward(self, batch):
        view_X3HW = both_views(batch).transpose(0, 1).flatten(0, 1)  # first views, second views
        a_BC, b_BC = (self.projector(h_BD) for h_BD in self.encoder.feature(view_X3HW).chunk(2))
        with full_precision(a_BC.device):
            a_BC, b_BC = a_BC.float(), b_BC.float()
            (a_GC, row_B), (b_GC, _) = (global_rows(z_BC, self.training) for z_BC in (a_BC, b_BC))
            variance, covariance = (x + y for x, y in zip(spread(a_GC), spread(b_GC), strict=True))
            distance_B = (a_BC - b_BC).square().mean(1)
            loss_B = self.weights[0] * distance_B + self.weights[1] * variance
            loss_B = loss_B + self.weights[2] * covariance
            found_B = (torch.cdist(a_BC, b_GC).argmin(1) == row_B).double()
        return Output(loss_B.mean(), sums(loss=loss_B, found=found_B))

    def baselines(self, batch):
        guess_B = torch.full_like(batch.key, 1 / len(batch.key), dtype=torch.double)
        return sums(guess=guess_B, same_feature=torch.full_like(guess_B, 1.98 * self.weights[1]))
