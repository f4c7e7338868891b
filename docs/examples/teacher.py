"""An objective in one file, after I-JEPA (Assran et al., 2023) but with single patches in place of
blocks: from the visible patches of an image a predictor gives the features that a teacher has for
the hidden ones. The teacher is an exponential moving average (EMA) of the encoder.

    accelerate launch tools/pretrain.py recipe=mpp plugin=docs/examples/teacher.py objective=teacher

Suffixes are the dimensions of a tensor: B images, N patches, V visible and K hidden ones, T tokens
(prefix and patches), D the encoder's width, W the predictor's.
"""

from ssl_vit.metrics import Metric
from ssl_vit.recipe.declaration import Group, ObjectiveDeclaration, declare
from ssl_vit.recipe.keys import Keys, Share, key
from ssl_vit.recipe.split_counts import fewer_than, selected_count

HEADS = 4  # of the predictor


class TeacherOptions(Keys):  # teacher.rate=, teacher.momentum=: --help, bounds, recipe.yaml
    """What is hidden, and the teacher.

    Attributes:
        rate: Share of the patches that are hidden.
        momentum: Of the teacher in the first step; it rises to 1 linearly.
    """

    rate: float = key(0.6, gt=0, lt=1)
    momentum: Share = key(0.996)


def predictor_size(width, depth):
    """Width and blocks of the predictor of an encoder of a width and depth: half of both."""
    return width // 2, max(1, depth // 2)


def hidden_patches(recipe):
    return selected_count(recipe.group(TeacherOptions).rate, recipe.patches)


class TeacherDeclaration(ObjectiveDeclaration):
    name = "teacher"
    title = "Prediction of an EMA teacher's features"
    options = Group("teacher", TeacherOptions)
    pool = "avg"  # an image's feature in the export: the class token has no loss
    figure = (
        "held-out images, and how near the predicted features of hidden patches are to the"
        " teacher's: white the same direction, black the opposite one, or a visible patch's image"
    )
    metrics = (
        # how far the teacher's features of an image's patches lie apart: near 0 it has collapsed
        Metric("teacher_spread", "teacher spread (near 0: collapsed)"),
    )
    no_measure = ("loss",)  # a teacher that has collapsed is easily predicted

    def check(self, recipe):  # what a recipe must not be, and the end of the error
        model = recipe.model
        if model.convolutional or model.hybrid or model.width % (2 * HEADS):
            text = "objective=teacher needs patches of pixels and a width that is a multiple of 8"
            raise recipe.error("model", text, model.name)
        if hidden_patches(recipe) >= recipe.patches:
            raise recipe.error(
                "teacher.rate", f"leaves no patch visible. {fewer_than(recipe.patches)}."
            )

    def build(self, settings, encoder, classes):
        return build(settings.group(TeacherOptions), encoder)


def build(options, encoder):
    """The network. What brings torch is imported here, so that --help and plans do without."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    from ssl_vit.objectives import corruption, teacher
    from ssl_vit.objectives.base import Objective, Output, sums
    from ssl_vit.objectives.mae.network import Decoder

    class FeaturePrediction(Objective):
        def __init__(self):
            super().__init__(encoder)
            width, depth = predictor_size(encoder.width, len(encoder.backbone.blocks))
            self.predictor = Decoder(
                encoder.width, encoder.prefix, encoder.grid, width=width, depth=depth, heads=HEADS
            )
            self.head = nn.Linear(width, encoder.width)
            nn.init.xavier_uniform_(self.head.weight)
            nn.init.zeros_(self.head.bias)
            # a copy of the initial weights, those of init= too: saved and sharded, not optimised
            self.teacher = teacher.Teacher(encoder)

        def averages(self, progress):
            """After each optimiser step, average = m average + (1 - m) weight: m, and the pairs."""
            momentum = teacher.linear_momentum(options.momentum, progress)
            return momentum, teacher.pairs((self.teacher.encoder, self.encoder))

        @torch.no_grad()
        def teach(self, image):
            """The teacher's features (B, N, D), normalised over their channels."""
            h_BTD = self.teacher.encoder.tokens(image).float()
            return F.layer_norm(h_BTD[:, self.encoder.prefix :], h_BTD.shape[-1:])

        def predict(self, batch):
            """Which patches are hidden, and their features (B, K, D): predicted, the teacher's."""
            patches = self.encoder.patches
            # a function of the samples' keys alone: the same after a resume, on any processes
            drawn = corruption.sample(batch.key, patches, options.rate, mask=1.0, random=0.0)
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
            """The pictures of `figure`."""
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

    return FeaturePrediction()


declare(TeacherDeclaration())
