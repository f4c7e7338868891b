"""I-JEPA (Assran et al., 2023): from the features of visible patches a predictor gives those that a
teacher, a running average of the encoder, has for the hidden ones.

Hidden are single patches, those that MPP would corrupt at the same rate; the authors hide blocks.

Legend: B batch, N patches, K hidden and V = N - K visible patches, T tokens, D width.
"""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Self

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn import functional as F

from ...data.batching import Batch
from ...data.pixel_values import shown_image
from ...models.encoder import Encoder
from .. import corruption, teacher
from ..base import Metrics, Objective, Output
from ..building import Settings
from ..mae.network import Decoder
from ..reconstruction import GREY
from . import HEADS, IjepaOptions, predictor_width

TEACHER = "teacher."  # of the teacher's names in a state


class FeaturePrediction(Objective):
    """The loss is the mean smooth L1 distance (the authors' code) between predicted features and
    the teacher's, normalised over their channels.

    Args:
        encoder: a Vision Transformer with patches.
        rate: share of each image's patches that are hidden.
        momentum: of the teacher in the first step; it rises to 1 linearly (section 4).
    """

    encoder: Encoder
    pool = "avg"  # the class token has no loss

    def __init__(self, encoder: Encoder, *, rate: float, momentum: float) -> None:
        super().__init__(encoder)
        self.rate = rate
        self.first_momentum = momentum
        width = predictor_width(encoder.width)
        depth = max(1, len(encoder.backbone.blocks) // 2)
        self.predictor = Decoder(
            encoder.width, encoder.prefix, encoder.grid, width=width, depth=depth, heads=HEADS
        )
        self.head = nn.Linear(width, encoder.width)
        nn.init.xavier_uniform_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.teacher = teacher.copy_of(encoder)

    @classmethod
    def build(cls, settings: Settings, encoder: Encoder, classes: int) -> Self:
        return cls(encoder, **asdict(settings.group(IjepaOptions)))

    def describe(self) -> str:
        patches = self.encoder.patches
        count = corruption.num_corrupted(self.rate, patches)
        return (
            f"I-JEPA: of {patches} patches {patches - count} are seen by the encoder, the teacher's"
            f" features of {count} predicted; predictor of {len(self.predictor.blocks)} blocks,"
            f" {self.head.in_features} wide"
        )

    def heads(self) -> dict[str, Tensor]:
        return {name: value for name, value in super().heads().items() if TEACHER not in name}

    def momentum_at(self, progress: float) -> float:
        return teacher.linear_momentum(self.first_momentum, progress)

    def momentum_pairs(self) -> Iterator[tuple[nn.Parameter, nn.Parameter]]:
        yield from teacher.pairs(self.teacher, self.encoder)

    def _predict(self, batch: Batch) -> tuple[corruption.Corruption, Tensor, Tensor]:
        """What is hidden, and its features (B, K, D): predicted, and the teacher's."""
        patches = self.encoder.patches
        drawn = corruption.sample(batch.key, patches, self.rate, mask=1.0, random=0.0)
        visible_BV = corruption.visible_patches(drawn, patches)
        h_BTD = self.encoder(self.encoder.patch(batch.image), visible_BV)
        h_BNW = self.predictor(h_BTD, visible_BV)
        predicted_BKD = self.head(corruption.gather_corrupted(h_BNW, drawn)).float()
        return drawn, predicted_BKD, corruption.gather_corrupted(self._teach(batch.image), drawn)

    def panels(self, batch: Batch) -> dict[str, Tensor]:
        drawn, predicted_BKD, wanted_BKD = self._predict(batch)
        near_BK = (1 + F.cosine_similarity(predicted_BKD, wanted_BKD, dim=-1)) / 2
        p, (rows, columns) = self.encoder.patch_size, self.encoder.grid
        cut = {"h": rows, "w": columns, "p": p, "q": p}
        image_B3HW = shown_image(batch.image, self.encoder.pixel_range)
        pixel_BNX = rearrange(image_B3HW, "b c (h p) (w q) -> b (h w) (p q c)", **cut)
        grey_X = torch.full_like(pixel_BNX[0, 0], GREY)
        level_BKX = (255 * near_BK).round().byte()[..., None].expand(-1, -1, pixel_BNX.shape[-1])
        hidden_BKX = drawn.corrupted_BK[..., None].expand_as(level_BKX)
        titles = {
            "original": pixel_BNX,
            "visible": corruption.apply(pixel_BNX, drawn, grey_X),
            "similarity": pixel_BNX.scatter(1, hidden_BKX, level_BKX),
        }
        whole = "b (h w) (p q c) -> b c (h p) (w q)"
        return {title: rearrange(one_BNX, whole, **cut) for title, one_BNX in titles.items()}

    def forward(self, batch: Batch) -> Output:
        _, predicted_BKD, wanted_BKD = self._predict(batch)
        loss_B = F.smooth_l1_loss(predicted_BKD, wanted_BKD, reduction="none").mean((1, 2))
        return Output(loss_B.mean(), self._metrics(loss_B, wanted_BKD))

    @torch.no_grad()
    def _teach(self, image_B3HW: Tensor) -> Tensor:
        """The teacher's features (B, N, D), normalised over the channels."""
        h_BTD = self.teacher(self.teacher.patch(image_B3HW)).float()
        return F.layer_norm(h_BTD[:, self.encoder.prefix :], h_BTD.shape[-1:])

    def _metrics(self, loss_B: Tensor, wanted_BKD: Tensor) -> Metrics:
        """`feature_spread`: the standard deviation of a channel over an image's patches, which
        goes to 0 where the teacher gives all patches one feature."""
        images = torch.full((), float(len(loss_B)), dtype=torch.float64, device=loss_B.device)
        spread_B = wanted_BKD.std(1, correction=0).mean(-1)
        return {
            "loss": (loss_B.detach().double().sum(), images),
            "feature_spread": (spread_B.double().sum(), images),
        }
