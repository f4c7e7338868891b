"""Train a classifier (paper, 3.1 and 4.1). In pre-training the head has a hidden tanh layer.

Legend: B batch, T tokens, D width, C classes, L labels of an image.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...data.batching import Batch, is_labelled
from ...models.encoder import Backbone, Encoder
from ..base import Objective, Output
from ..building import Settings
from . import SupervisedOptions

SIGMOID_BIAS = -10.0  # from the authors' code: at first every class is improbable


def _tanh_layer(width: int) -> nn.Sequential:
    layer = nn.Linear(width, width)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return nn.Sequential(layer, nn.Tanh())


class Supervised(Objective):
    """Classification head on the class token or on the mean of the patches.

    The head has an optional hidden layer (D, tanh), then a linear layer that starts at zero. Images
    without a label (-1) count neither in the loss nor in metrics. For lists of labels, the accuracy
    is the precision at 1, over images with at least one class.

    Args:
        encoder: gives the features.
        classes: C.
        loss: "softmax" (cross-entropy) or "sigmoid" (binary cross-entropy summed over classes).
            Sigmoid also takes lists of labels: every class of the list is a 1, and all other
            classes are 0.
        smoothing: label smoothing of the softmax loss.
        hidden: add the hidden layer.
        pool: "token" or "avg".
    """

    def __init__(
        self,
        encoder: Backbone,
        classes: int,
        *,
        loss: str,
        smoothing: float,
        hidden: bool,
        pool: str,
    ) -> None:
        super().__init__(encoder)
        self.pool = pool
        self.loss = loss
        self.smoothing = smoothing
        self.classes = classes
        width = encoder.width
        self.hidden: nn.Module = _tanh_layer(width) if hidden else nn.Identity()
        self.head = nn.Linear(width, classes)
        nn.init.zeros_(self.head.weight)
        nn.init.constant_(self.head.bias, SIGMOID_BIAS if loss == "sigmoid" else 0.0)
        # True if an export can store the head as timm's classifier
        self.has_linear_head = not hidden and isinstance(encoder, Encoder)

    def logits(self, batch: Batch) -> Tensor:
        """Return class scores (B, C)."""
        return self.head(self.hidden(self.encoder.feature(batch.image, self.pool)))

    def forward(self, batch: Batch) -> Output:
        logits_BC = self.logits(batch).float()
        known_B = is_labelled(batch.label)
        loss_B = self._loss(logits_BC, batch.label) * known_B
        # With mixup, the labels of a pair of images are mixed in the same proportion
        if batch.partner_label is not None and batch.mix_lambda is not None:
            other_B = self._loss(logits_BC, batch.partner_label) * known_B
            loss_B = batch.mix_lambda * loss_B + (1 - batch.mix_lambda) * other_B
        label_BL = _rows(batch.label)
        correct_B = (logits_BC.detach().argmax(-1, keepdim=True) == label_BL).any(1).double()
        count = known_B.double().sum()
        # See Batch.loss_denominator. Outside of training, divide by the number of labelled images
        divisor = count if batch.loss_denominator is None else batch.loss_denominator
        metrics = {
            "loss": (loss_B.detach().double().sum(), count),
            "accuracy": (correct_B.sum(), (label_BL >= 0).any(1).double().sum()),
        }
        return Output(loss_B.sum() / divisor.clamp(min=1e-9), metrics)

    def _loss(self, logits_BC: Tensor, label: Tensor) -> Tensor:
        """Return the loss of each image (B,). For an image without a label it is any finite
        number.
        """
        if self.loss == "softmax":
            if label.ndim > 1:
                raise ValueError("the softmax loss needs one label per image, not lists")
            return F.cross_entropy(
                logits_BC, label.clamp(min=0), reduction="none", label_smoothing=self.smoothing
            )
        target_BC = self.targets(label).to(logits_BC)
        return F.binary_cross_entropy_with_logits(logits_BC, target_BC, reduction="none").sum(-1)

    def targets(self, label: Tensor) -> Tensor:
        """Return a bool tensor (B, C) that is true for each class of an image."""
        label_BL = _rows(label)
        one_BC = label_BL.new_zeros(len(label_BL), self.classes + 1, dtype=torch.bool)
        # Negative labels, which pad lists, go into an additional column that is cut off
        return one_BC.scatter_(1, label_BL.where(label_BL >= 0, self.classes), True)[:, :-1]

    def baselines(self, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        """Return the scores of guessing.

        Returns:
            "chance_loss", the loss in nats of uniform predictions 1 / C, and "majority", for each
            class the number of images for which it is right (C,). The commonest class counts.
        """
        count = is_labelled(batch.label).double().sum()
        target_BC = self.targets(batch.label).double()
        labels_B = target_BC.sum(1)
        with_class = (labels_B > 0).double().sum()
        c = self.classes
        loss = math.log(c)
        more: Tensor | float = 0.0  # from labels beyond the first label of an image
        if self.loss == "sigmoid" and c > 1:
            loss -= (c - 1) * math.log1p(-1 / c)
            more = (labels_B.sum() - count) * (math.log(c) + math.log1p(-1 / c))
        return {
            "chance_loss": (count * loss + more, count),
            "majority": (target_BC.sum(0), with_class),
        }


def _rows(label: Tensor) -> Tensor:
    """Return labels as rows (B, L), with L = 1 if each image has one label."""
    return label[:, None] if label.ndim == 1 else label


def build(settings: Settings, encoder: Backbone, classes: int) -> Supervised:
    return Supervised(encoder, classes, **settings.group(SupervisedOptions).model_dump())
