"""Add the loss of Barlow Twins (Zbontar, Jing, Misra, LeCun and Deny, 2021, algorithm 1).

    ssl-vit pretrain recipe=moco_v3 plugin=docs/examples/barlow_twins.py objective=barlow_twins

Suffixes: X views, B images of this process, G images of all processes, D and C channels.
"""

import torch
from torch import nn

from ssl_vit.extend import SHARE, Baseline, GlobalBatchNorm, Metric, Objective, Options, Output
from ssl_vit.extend import Width, both_views, declare, full_precision, global_rows, option, sums


def standardise(z_GC):
    """Return each channel with mean 0 and variance 1 (with 1e-5 as in the authors' code)."""
    return (z_GC - z_GC.mean(0)) / (z_GC.var(0, correction=0) + 1e-5).sqrt()


@declare
class BarlowTwins(Objective):
    name, title = "barlow_twins", "Cross-correlation of views (Barlow Twins)"
    paper, shared = "Zbontar et al., 2021, arXiv:2103.03230", ("views",)
    metrics = Metric("found", "views found", unit=SHARE), Baseline("guess", "guessing", ("found",))
    metrics += (Baseline("same_feature", "the same feature for all images", ("loss",)),)

    class Options(Options):
        redundancy: float = option(0.005, "Weight of the entries off the diagonal.", ge=0)
        width: Width = option(256, "Width of the projector (paper: 8192).")

    def __init__(self, encoder, redundancy, width):
        super().__init__(encoder)
        self.redundancy, self.width = redundancy, width
        first = nn.Linear(encoder.width, width, bias=False), GlobalBatchNorm(width), nn.ReLU()
        second = nn.Linear(width, width, bias=False), GlobalBatchNorm(width), nn.ReLU()
        self.projector = nn.Sequential(*first, *second, nn.Linear(width, width, bias=False))

    def forward(self, batch):
        view_X3HW = both_views(batch).transpose(0, 1).flatten(0, 1)  # first views, second views
        z_VBC = [self.projector(h_BD).float() for h_BD in self.encoder.feature(view_X3HW).chunk(2)]
        with full_precision(view_X3HW.device):
            (a_GC, row_B), (b_GC, _) = (global_rows(z_BC, self.training) for z_BC in z_VBC)
            a_GC, b_GC = standardise(a_GC), standardise(b_GC)
            correlation_CC = a_GC.T @ b_GC / len(a_GC)
            equal_C = correlation_CC.diagonal()
            redundant_CC = correlation_CC - equal_C.diag()
            loss = (1 - equal_C).square().sum() + self.redundancy * redundant_CC.square().sum()
            found_B = (torch.cdist(a_GC[row_B], b_GC).argmin(1) == row_B).double()
        return Output(loss, sums(loss=loss.expand(len(row_B)), found=found_B))

    def baselines(self, batch):
        value_B = torch.ones_like(batch.key, dtype=torch.double)
        return sums(guess=value_B / len(value_B), same_feature=self.width * value_B)
