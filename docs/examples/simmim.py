"""Define an objective that predicts patches in a single file: SimMIM (Xie et al., 2022).

The losses are the losses of recipe=simmim.

    python tools/pretrain.py recipe=simmim plugin=docs/examples/simmim.py objective=own_simmim
"""

import torch
from torch import nn

from ssl_vit.extend import CorruptionOptions, PatchPrediction, corruption, declare


@declare
class SimMIM(PatchPrediction):  # the base class has the loss, the metrics and the baselines
    name = "own_simmim"
    title = "SimMIM of my own"
    shared = ("corruption", "target")
    pool = "avg"  # the loss does not train the class token

    @classmethod
    def build(cls, settings, encoder, classes):
        own = settings.group(CorruptionOptions)
        return cls(encoder, settings.build_target(encoder), own.rate, own.side)

    def __init__(self, encoder, target, rate, side):
        super().__init__(encoder, target, rate)
        self.side = side
        self.mask_token = nn.Parameter(torch.randn(encoder.width) * 0.02)
        self.head = nn.Linear(encoder.width, target.num_outputs)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def sample_corruption(self, batch):  # depends only on the samples' keys
        patches = self.encoder.patches
        return corruption.sample(
            batch.key, patches, self.rate, mask=1.0, random=0.0, side=self.side
        )

    def patch_logits(self, batch, drawn):
        x_BND = self.encoder.patch(batch.image)
        x_BND = corruption.replace_masked(x_BND, drawn, self.mask_token)
        return self.head(self.encoder(x_BND, wanted_BK=drawn.corrupted_BK))
