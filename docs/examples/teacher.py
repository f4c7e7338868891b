"""Define an objective with a moving-average teacher in a single file, after I-JEPA.

I-JEPA (Assran et al., 2023) hides blocks of patches, and this example hides single patches. The
encoder sees only the visible patches of an image. A predictor then predicts the features that a
teacher has for the hidden patches. The teacher is an exponential moving average (EMA) of the
encoder.

    accelerate launch tools/pretrain.py recipe=mpp plugin=docs/examples/teacher.py objective=teacher

Suffixes of names are the dimensions of a tensor: B images, N patches, V visible and K hidden
patches, T tokens (prefix and patches), D the encoder's width, W the predictor's width.
"""

import torch
from torch import nn
from torch.nn import functional as F

from ssl_vit.extend import Decoder, Metric, Objective, Options, Output, Share, Teacher, corruption
from ssl_vit.extend import declare, fewer_than, linear_momentum, option, pair_parameters
from ssl_vit.extend import selected_count, sums

HEADS = 4  # attention heads of the predictor


def predictor_size(width, depth):
    """Return the width and the number of blocks of the predictor: half of the encoder's."""
    return width // 2, max(1, depth // 2)


@declare
class FeaturePrediction(Objective):
    name = "teacher"
    title = "Prediction of an EMA teacher's features"
    pool = "avg"  # the loss does not train the class token, so the export must not use it
    figure = (
        "held-out images, and how near the predicted features of hidden patches are to the"
        " teacher's: white the same direction, black the opposite one, or a visible patch's image"
    )
    metrics = (
        # standard deviation of the teacher's features over the patches of an image
        Metric("teacher_spread", "teacher spread (near 0: collapsed)"),
    )
    no_measure = ("loss",)  # the loss is also low if the teacher has collapsed

    class Options(Options):  # the options teacher.rate= and teacher.momentum=
        """Hidden patches and the teacher."""

        rate: float = option(0.6, "Share of the patches that are hidden.", gt=0, lt=1)
        momentum: Share = option(
            0.996, "Momentum of the teacher in the first step, rising linearly to 1."
        )

    @classmethod
    def check(cls, recipe):  # refuse recipes that the objective cannot train
        model = recipe.model
        if model.convolutional or model.hybrid or model.width % (2 * HEADS):
            text = "objective=teacher needs patches of pixels and a width that is a multiple of 8"
            raise recipe.error("model", text, model.name)
        if selected_count(recipe.group(cls.Options).rate, recipe.patches) >= recipe.patches:
            raise recipe.error(
                "teacher.rate", f"leaves no patch visible. {fewer_than(recipe.patches)}."
            )

    def __init__(self, encoder, rate, momentum):
        super().__init__(encoder)
        self.rate, self.momentum = rate, momentum
        width, depth = predictor_size(encoder.width, len(encoder.backbone.blocks))
        self.predictor = Decoder(
            encoder.width, encoder.prefix, encoder.grid, width=width, depth=depth, heads=HEADS
        )
        self.head = nn.Linear(width, encoder.width)
        nn.init.xavier_uniform_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        # a copy of the initial weights (also of init=), saved and sharded but not optimised
        self.teacher = Teacher(encoder)

    def averages(self, progress):
        """Return the momentum m of the teacher, and the pairs (average, weight).

        After each optimiser step, average = m average + (1 - m) weight.
        """
        momentum = linear_momentum(self.momentum, progress)
        return momentum, pair_parameters((self.teacher.encoder, self.encoder))

    @torch.no_grad()
    def teach(self, image):
        """Return the teacher's features (B, N, D), normalised over channels."""
        h_BTD = self.teacher.encoder.tokens(image).float()
        return F.layer_norm(h_BTD[:, self.encoder.prefix :], h_BTD.shape[-1:])

    def predict(self, batch):
        """Return the hidden patches, and their predicted and teacher's features.

        Both features have shape (B, K, D).
        """
        patches = self.encoder.patches
        # depends only on the samples' keys, so a resumed run draws the same on any processes
        drawn = corruption.sample(batch.key, patches, self.rate, mask=1.0, random=0.0)
        visible_BV = corruption.visible_patches(drawn, patches)
        h_BTD = self.encoder(self.encoder.patch(batch.image), visible_BV)
        h_BNW = self.predictor(h_BTD, visible_BV)
        predicted_BKD = self.head(corruption.gather_corrupted(h_BNW, drawn)).float()
        return drawn, predicted_BKD, corruption.gather_corrupted(self.teach(batch.image), drawn)

    def forward(self, batch):
        _, predicted_BKD, wanted_BKD = self.predict(batch)
        loss_B = F.smooth_l1_loss(predicted_BKD, wanted_BKD, reduction="none").mean((1, 2))
        spread_B = wanted_BKD.std(1, correction=0).mean(-1)
        return Output(loss_B.mean(), sums(loss=loss_B, teacher_spread=spread_B))

    def panels(self, batch):
        """Return the pictures that the text `figure` describes."""
        drawn, predicted_BKD, wanted_BKD = self.predict(batch)
        near_BK = (1 + F.cosine_similarity(predicted_BKD, wanted_BKD, dim=-1)) / 2
        nothing_BN = near_BK.new_full((len(near_BK), self.encoder.patches), -1)
        near_BN = nothing_BN.scatter(1, drawn.corrupted_BK, near_BK)
        near_B1HW = near_BN.unflatten(1, self.encoder.grid)[:, None]
        for side in (2, 3):
            near_B1HW = near_B1HW.repeat_interleave(self.encoder.patch_size, side)
        level_B1HW = (255 * near_B1HW).round().clamp(0).byte()
        shown = torch.where(near_B1HW < 0, batch.image, level_B1HW)
        return {"original": batch.image, "similarity": shown}
