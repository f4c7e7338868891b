"""Define a target in a single file: the mean brightness of a patch.

    python tools/pretrain.py recipe=mpp plugin=docs/examples/brightness.py target=brightness

Suffixes of names are the dimensions of a tensor: B images, N patches row by row, K corrupted
patches, A = num_outputs.
"""

import torch
from einops import reduce

from ssl_vit.extend import Target, declare


@declare
class MeanBrightness(Target):
    name = "brightness"
    sentence = "its mean brightness"  # shown in the help of target=
    num_outputs = 1

    def __init__(self, encoder):
        super().__init__()
        self.sides = {"p": encoder.patch_size, "q": encoder.patch_size}
        self.register_buffer("mean", torch.zeros(()))

    def ground_truth(self, image_B3HW):
        share_B3HW = image_B3HW.float() / 255
        return reduce(share_B3HW, "b c (h p) (w q) -> b (h w) 1", "mean", **self.sides)

    def metrics(self, output_BKA, truth_BK1):
        return {"loss": (output_BKA - truth_BK1).square().mean(-1)}

    def fit_baselines(self, images):
        # a target with several outputs needs a mean for each output: .mean((0, 1))
        self.mean.copy_(torch.cat([self.ground_truth(one) for one in images]).mean())

    def baselines(self, image_B3HW, corrupted_BN):
        return {"variance": (self.ground_truth(image_B3HW) - self.mean).square().mean(-1)}

    def render(self, truth_BN1):
        level_BN1 = (255 * truth_BN1).round().clamp(0, 255).byte()
        return level_BN1[:, :, None, None].expand(-1, -1, 1, 1, 3)
