"""Add the loss SwAV (Caron et al., 2020), without a queue of features and without multi-crop.

    ssl-vit pretrain recipe=moco_v3 plugin=docs/examples/swav.py objective=swav

Suffixes: X views, V = 2, B images, G images of all processes, D and C channels, K prototypes.
"""

import torch
from torch import nn
from torch.nn import functional as F

from ssl_vit.extend import SHARE, Baseline, Count, GlobalBatchNorm, Metric, Objective, Options
from ssl_vit.extend import Output, Width, both_views, declare, full_precision, global_rows
from ssl_vit.extend import option, sums


@declare
class SwAV(Objective):
    name, title = "swav", "Swapped assignments of views to prototypes (SwAV)"
    paper, shared = "Caron et al., 2020, arXiv:2006.09882", ("views",)
    metrics = Metric("found", "views found", unit=SHARE), Baseline("guess", "guessing", ("found",))

    class Options(Options):
        temperature: float = option(0.1, "Temperature of the predictions.", gt=0)
        epsilon: float = option(0.05, "Smoothness of the assignments.", gt=0.02)
        prototypes: Count = option(32, "Number of prototypes, below the batch (paper: 3000).")
        width: Width = option(64, "Width of the projections (paper: 128).")

    def __init__(self, encoder, temperature, epsilon, prototypes, width):
        super().__init__(encoder)
        self.temperature, self.epsilon = temperature, epsilon
        hidden = nn.Linear(encoder.width, encoder.width), GlobalBatchNorm(encoder.width), nn.ReLU()
        self.projector = nn.Sequential(*hidden, nn.Linear(encoder.width, width))
        self.prototypes = nn.Linear(width, prototypes, bias=False)

    @torch.no_grad()
    def assign(self, score_BK):
        """Return the shares of the prototypes for each image, by Sinkhorn's algorithm."""
        score_GK, row_B = global_rows(score_BK, self.training)
        q_GK = (score_GK / self.epsilon).exp()
        for _ in range(3):
            q_GK = q_GK / q_GK.sum(0)  # all prototypes are equally likely
            q_GK = q_GK / q_GK.sum(1, keepdim=True)  # the shares of an image add up to 1
        return q_GK[row_B]

    def forward(self, batch):
        view_X3HW = both_views(batch).transpose(0, 1).flatten(0, 1)  # first views, second views
        z_VBC = torch.stack([*map(self.projector, self.encoder.feature(view_X3HW).chunk(2))])
        with full_precision(z_VBC.device):
            z_VBC, c_KC = F.normalize(z_VBC.float(), dim=2), F.normalize(self.prototypes.weight)
            score_VBK = z_VBC @ c_KC.T
            q_VBK = torch.stack([self.assign(score_BK) for score_BK in score_VBK]).flip(0)
            logp_VBK = (score_VBK / self.temperature).log_softmax(2)
            loss_B = -(q_VBK * logp_VBK).sum(2).mean(0)  # swapped: q is from the other view
            z_GC, row_B = global_rows(z_VBC[1], self.training)
            found_B = ((z_VBC[0] @ z_GC.T).argmax(1) == row_B).double()
        return Output(loss_B.mean(), sums(loss=loss_B, found=found_B))

    def baselines(self, batch):
        return sums(guess=torch.full_like(batch.key, 1 / len(batch.key), dtype=torch.double))
