"""DINO (Caron et al., 2021): the student gives a view the prototypes that the teacher, a running
average of it, gives another view of the image.

Legend: B images of this process, V views (2) and L local ones of each, S = V + L, D width, K
prototypes.
"""

import math
from collections.abc import Iterator
from typing import Self

import torch
from torch import Tensor, nn

from ...data.augment import VIEWS
from ...data.batching import Batch
from ...errors import UserError
from ...models.encoder import Encoder
from .. import teacher
from ..base import Metrics, Objective, Output
from ..building import Settings
from ..self_distillation import Assignment, Head, Teacher, cross_entropies
from . import DinoOptions

TEACHER = "teacher."  # of the teacher's names in a state


class SelfDistillation(Objective):
    """The loss is the mean cross-entropy of each view's softmax with what the teacher gives each of
    the two global views other than itself (equation 3), by their class tokens.

    Args:
        encoder: a Vision Transformer with patches.
        options: of head, temperatures and teacher.
    """

    encoder: Encoder
    collective = True

    def __init__(self, encoder: Encoder, options: DinoOptions) -> None:
        super().__init__(encoder)
        self.temperature = options.temperature
        self.first_momentum = options.momentum
        self.freeze = options.freeze
        sizes = (options.hidden, options.width, options.prototypes)
        self.head = Head(encoder.width, *sizes, options.lengths)
        first, last = options.teacher_temperature
        self.assign = Assignment(
            options.prototypes,
            options.balance,
            options.centre_momentum,
            (first, last),
            options.warmup,
        )
        self.teacher = Teacher(encoder, self.head)

    @classmethod
    def build(cls, settings: Settings, encoder: Encoder, classes: int) -> Self:
        return cls(encoder, settings.group(DinoOptions))

    def describe(self) -> str:
        count = self.head.prototypes.out_features
        first, last = self.assign.temperatures
        risen = f"{last:g}" if first == last else f"{first:g} to {last:g}"
        return (
            f"DINO: {count:,} prototypes, temperatures {self.temperature:g} and {risen} of the"
            f" teacher, {self.assign.balance}, momentum {self.first_momentum:g}"
        )

    @property
    def exported(self) -> Encoder:
        """The teacher's, which is the better one throughout training (section 5.2)."""
        return self.teacher.encoder

    def heads(self) -> dict[str, Tensor]:
        return {name: value for name, value in super().heads().items() if TEACHER not in name}

    def start_step(self, progress: float) -> None:
        self.assign.start_step(progress)
        self.head.prototypes.frozen.fill_(progress < self.freeze)

    def momentum_at(self, progress: float) -> float:
        return teacher.cosine_momentum(self.first_momentum, progress)

    def momentum_pairs(self) -> Iterator[tuple[nn.Parameter, nn.Parameter]]:
        yield from teacher.pairs(self.teacher.encoder, self.encoder)
        yield from teacher.pairs(self.teacher.head, self.head)

    def forward(self, batch: Batch) -> Output:
        views_VB3HW = _views(batch).transpose(0, 1)
        logits_SBK = self._student(views_VB3HW, batch.local)
        p_VBK = self._teach(views_VB3HW)
        cross_BVS = cross_entropies(p_VBK, logits_SBK, self.temperature)
        loss_B = _mean_of_others(cross_BVS)
        return Output(loss_B.mean(), _metrics(loss_B, p_VBK, logits_SBK))

    def _student(self, views_VB3HW: Tensor, local_BL3HW: Tensor | None) -> Tensor:
        """Logits (S, B, K): one pass of the encoder for each size of views, one of the head."""
        images = views_VB3HW.shape[1]
        feature_XD = self.encoder.tokens(views_VB3HW.flatten(0, 1))[:, 0]
        if local_BL3HW is not None:
            local_XD = self.encoder.crop_tokens(local_BL3HW.transpose(0, 1).flatten(0, 1))[:, 0]
            feature_XD = torch.cat([feature_XD, local_XD])
        return self.head(feature_XD).unflatten(0, (-1, images))

    @torch.no_grad()
    def assignments(self, batch: Batch) -> Tensor:
        """The teacher's."""
        return self.assign(self.teacher.head(self.exported.tokens(batch.image)[:, 0]))

    @torch.no_grad()
    def _teach(self, views_VB3HW: Tensor) -> Tensor:
        """The teacher's probabilities (V, B, K)."""
        feature_XD = self.teacher.encoder.tokens(views_VB3HW.flatten(0, 1))[:, 0]
        return self.assign(self.teacher.head(feature_XD)).unflatten(0, (VIEWS, -1))

    def baselines(self, batch: Batch) -> Metrics:
        """Guessing: all prototypes are equally likely."""
        images = _count(batch.key)
        return {"chance_loss": (images * math.log(self.head.prototypes.out_features), images)}


def _views(batch: Batch) -> Tensor:
    """Raises UserError where the batch has not two views of each image."""
    if batch.views is None or batch.views.shape[1] != VIEWS:
        found = 1 if batch.views is None else batch.views.shape[1]
        raise UserError(
            f"objective=dino: {found} view of each image; expected {VIEWS} (Batch.views)"
        )
    return batch.views


def _mean_of_others(cross_BVS: Tensor) -> Tensor:
    """The mean (B,) over pairs of the teacher's views and the student's, without those of one view
    with itself."""
    _, taught, seen = cross_BVS.shape
    other_VS = 1 - torch.eye(taught, seen, device=cross_BVS.device)
    return (cross_BVS * other_VS).sum((1, 2)) / (taught * (seen - 1))


def _count(like: Tensor) -> Tensor:
    return torch.full((), float(len(like)), dtype=torch.float64, device=like.device)


def _metrics(loss_B: Tensor, p_VBK: Tensor, logits_SBK: Tensor) -> Metrics:
    first_VB = logits_SBK[:VIEWS].detach().argmax(-1)
    same_VB = first_VB == p_VBK.argmax(-1).flip(0)
    return {
        "loss": (loss_B.detach().double().sum(), _count(loss_B)),
        "same_prototype": (same_VB.double().mean(0).sum(), _count(loss_B)),
    }
