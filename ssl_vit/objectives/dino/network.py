"""Train a student to assign views to prototypes as the teacher does (DINO: Caron et al., 2021).

The teacher is a running average of the student. It sees another view of the same image than the
student.

Legend: B images of this process, V views (2) and L local views of each image, S = V + L, X = V B
views of this process, T tokens, D width, K prototypes.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from ...data.augment import VIEWS
from ...data.batching import Batch
from ...models.encoder import Encoder
from .. import teacher
from ..base import Metrics, Objective, Output, both_views, sums
from ..building import Settings
from ..self_distillation import Assignment, Head, Prototypes, Teacher, cross_entropies, koleo
from . import DinoOptions

TEACHER = "teacher."  # prefix of the teacher's tensors in a state


class SelfDistillation(Objective):
    """DINO: the student predicts the teacher's distribution over prototypes from another view.

    The loss is the mean cross-entropy between the teacher's distribution for a global view and the
    student's softmax for every other view of the image (equation 3). Both distributions are
    computed from class tokens.

    Args:
        encoder: A Vision Transformer with patches.
        options: Options of head, temperatures and teacher.
    """

    encoder: Encoder

    def __init__(self, encoder: Encoder, options: DinoOptions) -> None:
        super().__init__(encoder)
        self.temperature = options.temperature
        self.first_momentum = options.momentum
        self.freeze = options.freeze
        self.koleo_weight = options.koleo
        self.koleo_group = options.koleo_group
        self.head = Head(encoder.width, options, **self.patch_head(options))
        self.assign = Assignment(options, options.teacher_temperature)
        self.teacher = Teacher(encoder, self.head)

    @staticmethod
    def patch_head(options: DinoOptions) -> dict[str, bool]:
        """Return the arguments of `Head` that give patches their own layers.

        DINO has no loss of patches, so there are no such arguments. A subclass may add some.
        """
        return {}

    @property
    def exported(self) -> Encoder:
        """Return the teacher's encoder.

        The teacher is better than the student throughout training (section 5.2).
        """
        return self.teacher.encoder

    def heads(self) -> dict[str, Tensor]:
        """Return the tensors that an export keeps in addition to the encoder, {name: tensor}.

        The exported encoder is the teacher's. So the exported head has the teacher's weights, with
        the student's names: `head.mlp.0.weight` has the values of `teacher.head.mlp.0.weight`.
        """
        tensors = super().heads()
        student_tensors = {name: value for name, value in tensors.items() if TEACHER not in name}
        # A tensor that the teacher does not have, such as iBOT's mask embedding, keeps its value
        return {name: tensors.get(TEACHER + name, value) for name, value in student_tensors.items()}

    def frozen_weights(self, progress: float) -> list[nn.Parameter]:
        """Return the weights of the prototypes at the beginning of the run, and no weights later.

        This follows the authors' `cancel_gradients_last_layer`.
        """
        if progress >= self.freeze:
            return []
        weights: list[nn.Parameter] = []
        for module in self.head.modules():
            if isinstance(module, Prototypes):
                weights += [p for p in module.parameters() if p.requires_grad]
        return weights

    def averages(self, progress: float) -> teacher.Averages:
        momentum = teacher.cosine_momentum(self.first_momentum, progress)
        copies = [(self.teacher.encoder, self.encoder), (self.teacher.head, self.head)]
        return momentum, teacher.pair_parameters(*copies)

    def forward(self, batch: Batch) -> Output:
        image_X3HW = self.global_views(batch)
        h_XTD = self.encoder.tokens(image_X3HW)
        loss_B, metrics = self.class_token_loss(h_XTD, self.teacher_tokens(image_X3HW), batch)
        return self.output(loss_B, metrics, h_XTD)

    def output(self, loss_B: Tensor, metrics: Metrics, h_XTD: Tensor) -> Output:
        """Return the output for a loss, after adding KoLeo of the class tokens.

        KoLeo is computed separately for each of the two views and then summed, so that two views of
        an image are never compared with each other. KoLeo is left out if its weight is 0. KoLeo is
        also left out in evaluation, because its value depends on which images share a batch.

        Args:
            loss_B: Loss of each image without KoLeo.
            metrics: Metrics of the images.
            h_XTD: The student's tokens of the global views.
        """
        if self.koleo_weight and self.training:
            views = h_XTD[:, 0].chunk(VIEWS)
            koleo_B = torch.stack([koleo(x_BD, self.koleo_group) for x_BD in views]).sum(0)
            loss_B = loss_B + self.koleo_weight * koleo_B
            metrics = sums(koleo_loss=koleo_B) | metrics
        return Output(loss_B.mean(), sums(loss=loss_B) | metrics)

    def global_views(self, batch: Batch) -> Tensor:
        """Return the first views of all images, then their second views, (V B, 3, H, W)."""
        return both_views(batch).transpose(0, 1).flatten(0, 1)

    @torch.no_grad()
    def teacher_tokens(self, image_X3HW: Tensor) -> Tensor:
        """Return the teacher's tokens (X, T, D)."""
        return self.teacher.encoder.tokens(image_X3HW)

    def class_token_loss(
        self, h_XTD: Tensor, teacher_XTD: Tensor, batch: Batch
    ) -> tuple[Tensor, Metrics]:
        """Return DINO's loss of each image (B,), computed from class tokens, and metrics.

        Args:
            h_XTD: The student's tokens of the global views.
            teacher_XTD: The teacher's tokens of the global views.
            batch: The batch. Its local views, if any, pass through the student's encoder here.

        Returns:
            The loss of each image, and the metric "same_prototype" as (sum, count).
        """
        images = len(batch.key)
        feature_YD = h_XTD[:, 0]  # Y = S B rows: the global views, then the local views if any
        if batch.local is not None:
            local_X3HW = batch.local.transpose(0, 1).flatten(0, 1)
            feature_YD = torch.cat([feature_YD, self.encoder.crop_tokens(local_X3HW)[:, 0]])
        logits_SBK = self.head(feature_YD).unflatten(0, (-1, images))
        with torch.no_grad():
            p_XK = self.assign(self.teacher.head(teacher_XTD[:, 0]))
        p_VBK = p_XK.unflatten(0, (VIEWS, images))
        cross_BVS = cross_entropies(p_VBK, logits_SBK, self.temperature)
        same_B = _same_prototype(p_VBK, logits_SBK)
        return _mean_of_others(cross_BVS), sums(same_prototype=same_B)

    @torch.no_grad()
    def assignments(self, batches: Iterable[Batch]) -> dict[str, Tensor]:
        """Compute the teacher's probabilities of K prototypes for each of X images.

        A run uses them to measure how much information the prototypes have about the images. The
        logits of all images are held in memory at once.

        Args:
            batches: Batches with X images in total.

        Returns:
            {metric: probabilities (X, K)}: "information" for the prototypes of images, and a second
            metric if patches have prototypes too (iBOT).
        """
        batch_logits: dict[str, list[Tensor]] = {}
        modules: dict[str, Assignment] = {}
        for batch in batches:
            entries = self.teacher_logits(self.teacher_tokens(batch.image))
            for name, (module, logits_BK) in entries.items():
                modules[name] = module
                batch_logits.setdefault(name, []).append(logits_BK)
        return {
            name: modules[name].assign_all(torch.cat(logits))
            for name, logits in batch_logits.items()
        }

    def teacher_logits(self, teacher_BTD: Tensor) -> dict[str, tuple[Assignment, Tensor]]:
        """Return the teacher's logits, and the modules that turn logits into probabilities.

        Args:
            teacher_BTD: The teacher's tokens of the images.

        Returns:
            {metric: (module, logits (B, K))}.
        """
        return {"information": (self.assign, self.teacher.head(teacher_BTD[:, 0]))}


def _mean_of_others(cross_BVS: Tensor) -> Tensor:
    """Return the mean cross-entropy of each image (B,), without pairs of a view with itself.

    Args:
        cross_BVS: Cross-entropies between the teacher's V views and the student's S views. The
            first V of the S views are the teacher's views.
    """
    _, teacher_views, student_views = cross_BVS.shape
    # 0 where teacher and student see the same view, else 1
    is_other_VS = 1 - torch.eye(teacher_views, student_views, device=cross_BVS.device)
    num_pairs = teacher_views * (student_views - 1)
    return (cross_BVS * is_other_VS).sum((1, 2)) / num_pairs


def _same_prototype(p_VBK: Tensor, logits_SBK: Tensor) -> Tensor:
    """Return the share of views for which student and teacher choose the same prototype, (B,).

    The student's most likely prototype for a global view is compared with the teacher's most likely
    prototype for the other global view of the image.

    Args:
        p_VBK: The teacher's probabilities.
        logits_SBK: The student's logits, global views first.
    """
    student_VB = logits_SBK[:VIEWS].detach().argmax(-1)
    # Swap the teacher's two views, so that each view of the student meets the other view
    teacher_VB = p_VBK.argmax(-1).flip(0)
    return (student_VB == teacher_VB).double().mean(0)


def build(settings: Settings, encoder: Encoder, classes: int) -> SelfDistillation:
    return SelfDistillation(encoder, settings.group(DinoOptions))
