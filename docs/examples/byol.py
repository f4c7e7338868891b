"""Add the loss BYOL (Grill et al., 2020): predict a teacher's projection of the other view.

    ssl-vit pretrain recipe=moco_v3 plugin=docs/examples/byol.py objective=byol

Suffixes: X views, V = 2, B images of this process, G images of all processes, D and C channels.
"""

import torch
from torch import nn
from torch.nn import functional as F

from ssl_vit.extend import SHARE, Baseline, GlobalBatchNorm, Metric, Objective, Options, Output
from ssl_vit.extend import Share, Teacher, Width, both_views, cosine_momentum, declare, frozen_copy
from ssl_vit.extend import full_precision, global_rows, option, pair_parameters, sums


def mlp(inputs, hidden, outputs):
    first = [nn.Linear(inputs, hidden), GlobalBatchNorm(hidden), nn.ReLU()]
    return nn.Sequential(*first, nn.Linear(hidden, outputs, bias=False))


@declare
class BYOL(Objective):
    name, title = "byol", "Prediction of a teacher's view (BYOL)"
    paper, shared = "Grill et al., 2020, arXiv:2006.07733", ("views",)
    metrics = Metric("found", "views found", unit=SHARE), Baseline("guess", "guessing", ("found",))
    no_measure = ("loss",)  # 0 if the features have collapsed

    class Options(Options):
        momentum: Share = option(0.996, "Momentum in the first step, which rises to 1.")
        hidden: Width = option(256, "Width of the hidden layers (paper: 4096).")
        width: Width = option(64, "Width of the projections (paper: 256).")

    def __init__(self, encoder, momentum, hidden, width):
        super().__init__(encoder)
        self.momentum = momentum
        self.projector = mlp(encoder.width, hidden, width)
        self.predictor = mlp(width, hidden, width)
        self.teacher, self.teacher_projector = Teacher(encoder), frozen_copy(self.projector)

    def averages(self, progress):
        copies = (self.teacher.encoder, self.encoder), (self.teacher_projector, self.projector)
        return cosine_momentum(self.momentum, progress), pair_parameters(*copies)

    def forward(self, batch):
        view_X3HW = both_views(batch).transpose(0, 1).flatten(0, 1)  # first views, second views
        student_VBD = self.encoder.feature(view_X3HW).chunk(2)
        q_VBC = torch.stack([self.predictor(self.projector(h_BD)) for h_BD in student_VBD])
        with torch.no_grad():
            teacher_VBD = self.teacher.encoder.feature(view_X3HW).chunk(2)
            k_VBC = torch.stack([self.teacher_projector(h_BD) for h_BD in teacher_VBD]).flip(0)
        with full_precision(q_VBC.device):
            q_VBC, k_VBC = F.normalize(q_VBC.float(), dim=2), F.normalize(k_VBC.float(), dim=2)
            loss_B = (2 - 2 * (q_VBC * k_VBC).sum(2)).sum(0)  # of both views (equation 2)
            k_GC, row_B = global_rows(k_VBC[0], self.training)
            found_B = ((q_VBC[0] @ k_GC.T).argmax(1) == row_B).double()
        return Output(loss_B.mean(), sums(loss=loss_B, found=found_B))

    def baselines(self, batch):
        return sums(guess=torch.full_like(batch.key, 1 / len(batch.key), dtype=torch.double))
