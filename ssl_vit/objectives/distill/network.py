"""Distil a frozen teacher, as AM-RADIO with one teacher and linear heads (Ranzinger et al., 2024).

The student predicts the teacher's feature of the image from the student's class token. If both
have the same grid of patches, the student also predicts the teacher's patch features.

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
    """Distillation of a frozen teacher.

    The loss is the mean distance to the teacher's image feature, plus `patches` times the mean
    distance to the teacher's patch features.

    Args:
        encoder: The student, a Vision Transformer with patches.
        teacher: The frozen Vision Transformer. Its image size and normalisation may differ from the
            student's.
        pool: How the teacher pools its tokens into an image's feature, "token" or "avg".
        loss: Distance between features, "cosine" or "smooth_l1".
        patches: Weight of the distance of patch features. None: 1 if student and teacher have the
            same grid of patches, else 0.
    """

    encoder: Encoder
    mean_token_C: Tensor
    mean_patch_C: Tensor

    def __init__(
        self, encoder: Encoder, teacher: Encoder, pool: str, loss: str, patches: float | None
    ) -> None:
        super().__init__(encoder)
        self.pool, self.loss = pool, loss
        is_same_grid = encoder.grid == teacher.grid
        self.patch_weight = float(is_same_grid) if patches is None else patches
        self.token_head = nn.Linear(encoder.width, teacher.width)
        self.patch_head = nn.Linear(encoder.width, teacher.width) if self.patch_weight else None
        self.teacher = Teacher(teacher)
        # Mean features of training images: the best prediction that ignores the image
        self.register_buffer("mean_token_C", torch.zeros(teacher.width))
        self.register_buffer("mean_patch_C", torch.zeros(teacher.width))

    def teachers(self) -> dict[str, Backbone]:
        return {"distill.teacher": self.teacher.encoder}

    def forward(self, batch: Batch) -> Output:
        token_BC, patch_BNC = self.teacher_features(batch.image)
        h_BTD = self.encoder.tokens(batch.image)
        predicted_BNC = None
        if self.patch_head is not None:
            predicted_BNC = self.patch_head(h_BTD[:, self.encoder.prefix :])
        losses = self._losses((self.token_head(h_BTD[:, 0]), token_BC), (predicted_BNC, patch_BNC))
        return Output(losses["loss"].mean(), sums(**losses))

    @torch.no_grad()
    def teacher_features(self, image_BCHW: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the teacher's features, normalised for the loss.

        On a GPU the teacher runs in bfloat16.

        Returns:
            Features of the images (B, C) and of their patches (B, N, C), float32.
        """
        teacher = self.teacher.encoder
        with _teacher_precision(image_BCHW.device):
            h_BTC = teacher.tokens(resize(image_BCHW, teacher.data.size))
            token_BC = teacher.pooled(h_BTC, self.pool)
        patch_BNC = h_BTC[:, teacher.prefix :]
        with full_precision(image_BCHW.device):
            return self._normalize(token_BC.float()), self._normalize(patch_BNC.float())

    def _normalize(self, x: Tensor) -> Tensor:
        if self.loss == "cosine":
            return F.normalize(x, dim=-1)
        return F.layer_norm(x, x.shape[-1:])

    def _losses(
        self, token: tuple[Tensor, Tensor], patch: tuple[Tensor | None, Tensor]
    ) -> dict[str, Tensor]:
        """Compute each image's loss, token_loss + patch_weight * patch_loss, and the two terms.

        Args:
            token: The predicted image features (B, C), and the teacher's image features (B, C).
            patch: The predicted patch features (B, N, C), and the teacher's patch features
                (B, N, C). If the prediction is None, the loss of patches is left out.

        Returns:
            {name: (B,)} with "loss", "token_loss" and, unless it is left out, "patch_loss".
        """
        losses = {"token_loss": self._distance(*token)}
        loss_B = losses["token_loss"]
        predicted_BNC, target_BNC = patch
        if predicted_BNC is not None:
            losses["patch_loss"] = self._distance(predicted_BNC, target_BNC).mean(1)
            loss_B = loss_B + self.patch_weight * losses["patch_loss"]
        return {"loss": loss_B} | losses

    def _distance(self, predicted: Tensor, target: Tensor) -> Tensor:
        """Return the distances between features, computed over the last dimension.

        Args:
            predicted: The student's features, not normalised.
            target: The teacher's features, normalised by `_normalize`.
        """
        with full_precision(target.device):
            if self.loss == "cosine":
                return 1 - F.cosine_similarity(predicted.float(), target, dim=-1)
            return F.smooth_l1_loss(predicted.float(), target, reduction="none").mean(-1)

    @torch.no_grad()
    def fit_baselines(self, batches: Iterable[Batch]) -> None:
        """Compute the mean of the teacher's features over training images, for `baselines`.

        Args:
            batches: Training images.

        Raises:
            NonFiniteError: The teacher's features of some of the images are not finite.
        """
        num_images, num_finite = 0, 0
        for batch in batches:
            token_BC, patch_BNC = self.teacher_features(batch.image)
            self.mean_token_C += token_BC.sum(0)
            self.mean_patch_C += patch_BNC.mean(1).sum(0)
            num_images += len(token_BC)
            is_finite_B = token_BC.isfinite().all(1) & patch_BNC.isfinite().all(2).all(1)
            num_finite += int(is_finite_B.sum())
        if num_finite < num_images:
            raise NonFiniteError.of("distill.teacher", num_images - num_finite, num_images)
        self.mean_token_C /= num_images
        self.mean_patch_C /= num_images

    @torch.no_grad()
    def baselines(self, batch: Batch) -> Metrics:
        """Return the loss of predicting the mean feature of training images for every image."""
        token_BC, patch_BNC = self.teacher_features(batch.image)
        mean_BC = self.mean_token_C.expand_as(token_BC)
        mean_BNC = None if self.patch_head is None else self.mean_patch_C.expand_as(patch_BNC)
        losses = self._losses((mean_BC, token_BC), (mean_BNC, patch_BNC))
        return sums(**{f"mean_{name}": loss_B for name, loss_B in losses.items()})


def resize(image_BCHW: Tensor, size: int) -> Tensor:
    """Return square integer images, resized bilinearly with antialiasing and rounded again.

    Args:
        image_BCHW: The images.
        size: New side in pixels.
    """
    if image_BCHW.shape[-1] == size:
        return image_BCHW
    float_BCHW = F.interpolate(image_BCHW.float(), (size, size), mode="bilinear", antialias=True)
    return float_BCHW.round().to(image_BCHW.dtype)


def _teacher_precision(device: torch.device) -> AbstractContextManager:
    """Return the context manager in which the teacher runs: bfloat16 on a GPU, else no change."""
    return torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else nullcontext()


def build(settings: Settings, encoder: Encoder, classes: int) -> Distillation:
    options = settings.group(DistillOptions)
    if options.network is None:
        raise UserError(f"distill.teacher=: no teacher is named. Choices: {DESCRIBED}")
    teacher_recipe = teacher_of(options, encoder.data.size)
    teacher = build_encoder(teacher_recipe.model, teacher_recipe.data)
    eps = options.network.get("eps")
    if eps is not None:
        set_eps(teacher, eps)
    return Distillation(encoder, teacher, options.network["pool"], options.loss, options.patches)
