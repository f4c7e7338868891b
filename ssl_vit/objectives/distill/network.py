"""Distillation: from its class token the student predicts the teacher's feature of the image, and
from its patches, where both have the same grid, the teacher's patches (after AM-RADIO: Ranzinger et
al., 2024, with one teacher and linear heads).

Legend: B images of this process, N patches, T tokens, D width of the student, C of the teacher.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...data.batching import Batch
from ...errors import NonFiniteError, UserError
from ...models.encoder import Backbone, Encoder, build_encoder
from ...models.full_precision import full_precision
from ...models.weights import set_eps
from ...recipe.init_source import DESCRIBED
from ..base import Metrics, Objective, Output, sums
from ..building import Settings
from ..teacher import Teacher
from . import DistillOptions, teacher_of


class Distillation(Objective):
    """The loss is the mean distance from the teacher's feature and, times `patches`, from those of
    its patches.

    Args:
        encoder: a Vision Transformer with patches.
        teacher: another one, for images of its own size; its normalisation is its own.
        pool: the teacher's feature of an image: token or avg.
        loss: cosine or smooth_l1.
        patches: weight; None: 1 where both have the same grid, else 0.
    """

    encoder: Encoder
    mean_token_C: Tensor
    mean_patch_C: Tensor

    def __init__(
        self, encoder: Encoder, teacher: Encoder, pool: str, loss: str, patches: float | None
    ) -> None:
        super().__init__(encoder)
        self.pool, self.loss = pool, loss
        fits = encoder.grid == teacher.grid
        self.patches = float(fits) if patches is None else patches
        self.token_head = nn.Linear(encoder.width, teacher.width)
        self.patch_head = nn.Linear(encoder.width, teacher.width) if self.patches else None
        self.teacher = Teacher(teacher)
        # of training images: what a prediction without looking would be
        self.register_buffer("mean_token_C", torch.zeros(teacher.width))
        self.register_buffer("mean_patch_C", torch.zeros(teacher.width))

    def teachers(self) -> dict[str, Backbone]:
        return {"distill.teacher": self.teacher.encoder}

    def forward(self, batch: Batch) -> Output:
        token_BC, patch_BNC = self.taught(batch.image)
        h_BTD = self.encoder.tokens(batch.image)
        predicted_BNC = None
        if self.patch_head is not None:
            predicted_BNC = self.patch_head(h_BTD[:, self.encoder.prefix :])
        losses = self._losses((self.token_head(h_BTD[:, 0]), token_BC), (predicted_BNC, patch_BNC))
        return Output(losses["loss"].mean(), sums(**losses))

    @torch.no_grad()
    def taught(self, image_BCHW: Tensor) -> tuple[Tensor, Tensor]:
        """The teacher's feature of each image (B, C) and of its patches (B, N, C), in float32, as
        the loss compares them. On a GPU they are computed in bfloat16."""
        teacher = self.teacher.encoder
        with _teacher_precision(image_BCHW.device):
            h_BTC = teacher.tokens(resized(image_BCHW, teacher.data.size))
            token_BC = teacher.pooled(h_BTC, self.pool)
        patch_BNC = h_BTC[:, teacher.prefix :]
        with full_precision(image_BCHW.device):
            return self._standard(token_BC.float()), self._standard(patch_BNC.float())

    def _standard(self, x: Tensor) -> Tensor:
        if self.loss == "cosine":
            return F.normalize(x, dim=-1)
        return F.layer_norm(x, x.shape[-1:])

    def _losses(
        self, token: tuple[Tensor, Tensor], patch: tuple[Tensor | None, Tensor]
    ) -> dict[str, Tensor]:
        """Of each image (B,), from pairs of what is predicted and what is taught."""
        losses = {"token_loss": self._distance(*token)}
        loss_B = losses["token_loss"]
        predicted_BNC, taught_BNC = patch
        if predicted_BNC is not None:
            losses["patch_loss"] = self._distance(predicted_BNC, taught_BNC).mean(1)
            loss_B = loss_B + self.patches * losses["patch_loss"]
        return {"loss": loss_B} | losses

    def _distance(self, predicted: Tensor, taught: Tensor) -> Tensor:
        """Over the last dimension, of what `_standard` gave."""
        with full_precision(taught.device):
            if self.loss == "cosine":
                return 1 - F.cosine_similarity(predicted.float(), taught, dim=-1)
            return F.smooth_l1_loss(predicted.float(), taught, reduction="none").mean(-1)

    @torch.no_grad()
    def fit_baselines(self, batches: Iterable[Batch]) -> None:
        """Compute the mean of what the teacher gives for training images.

        Raises:
            NonFiniteError: what it gives for some of these images is not finite.
        """
        count, finite = 0, 0
        for batch in batches:
            token_BC, patch_BNC = self.taught(batch.image)
            self.mean_token_C += token_BC.sum(0)
            self.mean_patch_C += patch_BNC.mean(1).sum(0)
            count += len(token_BC)
            finite += int((token_BC.isfinite().all(1) & patch_BNC.isfinite().all(2).all(1)).sum())
        if finite < count:
            raise NonFiniteError.of("distill.teacher", count - finite, count)
        self.mean_token_C /= count
        self.mean_patch_C /= count

    @torch.no_grad()
    def baselines(self, batch: Batch) -> Metrics:
        """The loss where each image gets the training images' mean."""
        token_BC, patch_BNC = self.taught(batch.image)
        mean_BNC = None if self.patch_head is None else self.mean_patch_C.expand_as(patch_BNC)
        losses = self._losses(
            (self.mean_token_C.expand_as(token_BC), token_BC), (mean_BNC, patch_BNC)
        )
        return sums(**{f"mean_{name}": loss_B for name, loss_B in losses.items()})


def resized(image_BCHW: Tensor, size: int) -> Tensor:
    """Images of that side, bilinear with antialiasing, of the same integers."""
    if image_BCHW.shape[-1] == size:
        return image_BCHW
    whole = F.interpolate(image_BCHW.float(), (size, size), mode="bilinear", antialias=True)
    return whole.round().to(image_BCHW.dtype)


def _teacher_precision(device: torch.device) -> AbstractContextManager:
    """Of a GPU bfloat16; elsewhere the run's own."""
    return torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else nullcontext()


def build(settings: Settings, encoder: Encoder, classes: int) -> Distillation:
    own = settings.group(DistillOptions)
    if own.network is None:
        raise UserError(f"distill.teacher= is missing; choices: {DESCRIBED}")
    described = teacher_of(own, encoder.data.size)
    teacher = build_encoder(described.model, described.data)
    if (eps := own.network.get("eps")) is not None:
        set_eps(teacher, eps)
    return Distillation(encoder, teacher, own.network["pool"], own.loss, own.patches)
