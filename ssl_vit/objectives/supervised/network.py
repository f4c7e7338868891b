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
    """Build the hidden layer of the head."""
    layer = nn.Linear(width, width)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return nn.Sequential(layer, nn.Tanh())


class Supervised(Objective):
    """Classification head on the class token or on the mean of the patches.

    The head has an optional hidden layer (D, tanh), then a linear layer that starts at zero. Images
    without a label (-1) count neither in the loss nor in metrics. For lists of labels, the accuracy
    is the share of images whose most likely class is in the list (precision at 1). Images with an
    empty list do not count in the accuracy.

    Args:
        encoder: Network that computes the features.
        classes: Number of classes C.
        loss: "softmax" (cross-entropy) or "sigmoid" (binary cross-entropy summed over classes).
            Sigmoid also takes lists of labels: every class of the list has the target 1, and all
            other classes have the target 0.
        smoothing: Label smoothing of the softmax loss, from 0 to 1.
        hidden: Whether the head has the hidden layer.
        pool: "token" (the class token) or "avg" (the mean of the patch tokens).
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
        # An export can store a linear head as timm's classifier
        self.has_linear_head = not hidden and isinstance(encoder, Encoder)

    def logits(self, batch: Batch) -> Tensor:
        """Return class scores (B, C)."""
        return self.head(self.hidden(self.encoder.feature(batch.image, self.pool)))

    def forward(self, batch: Batch) -> Output:
        logits_BC = self.logits(batch).float()
        labelled_B = is_labelled(batch.label)
        loss_B = self._loss(logits_BC, batch.label) * labelled_B
        # With mixup, the losses for the labels of both images are mixed in the proportion in which
        # the images were mixed
        if batch.partner_label is not None and batch.mix_lambda is not None:
            partner_loss_B = self._loss(logits_BC, batch.partner_label) * labelled_B
            loss_B = batch.mix_lambda * loss_B + (1 - batch.mix_lambda) * partner_loss_B
        label_BL = _rows(batch.label)
        # A prediction is never -1, so images without a label and the padding of lists do not match
        predicted_B1 = logits_BC.detach().argmax(-1, keepdim=True)
        correct_B = (predicted_B1 == label_BL).any(1).double()
        num_labelled = labelled_B.double().sum()
        # In training, `loss_denominator` gives all labelled images of the global batch the same
        # weight. Outside of training, divide by the number of labelled images
        divisor = num_labelled if batch.loss_denominator is None else batch.loss_denominator
        metrics = {
            "loss": (loss_B.detach().double().sum(), num_labelled),
            "accuracy": (correct_B.sum(), (label_BL >= 0).any(1).double().sum()),
        }
        return Output(loss_B.sum() / divisor.clamp(min=1e-9), metrics)

    def _loss(self, logits_BC: Tensor, label: Tensor) -> Tensor:
        """Return the loss of each image (B,).

        The loss of an image without a label is finite but has no meaning.

        Args:
            logits_BC: Class scores.
            label: Labels (B,) or lists of labels (B, L), int64.
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
        """Return which classes each image has, bool (B, C)."""
        label_BL = _rows(label)
        has_class_BC = label_BL.new_zeros(len(label_BL), self.classes + 1, dtype=torch.bool)
        # Negative labels, which pad lists, go into an additional column that is cut off
        return has_class_BC.scatter_(1, label_BL.where(label_BL >= 0, self.classes), True)[:, :-1]

    def baselines(self, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        """Return the scores of two predictions that do not look at the image.

        Returns:
            "chance_loss": The loss in nats if every class gets the probability 1 / C: its sum over
                the labelled images, and the number of labelled images.
            "majority": The accuracy of predicting the commonest class for every image: the number
                of images of each class (C,), of which the largest is used (see
                `Objective.baselines`), and the number of images with a class.
        """
        num_labelled = is_labelled(batch.label).double().sum()
        target_BC = self.targets(batch.label).double()
        labels_B = target_BC.sum(1)
        num_with_class = (labels_B > 0).double().sum()
        classes = self.classes
        loss = math.log(classes)  # of an image with one label
        further_labels_loss: Tensor | float = 0.0  # of all labels after an image's first label
        if self.loss == "sigmoid" and classes > 1:
            # Each class of an image costs -log(1 / C), and each other class -log(1 - 1 / C). So the
            # loss of an image with n labels is n log C - (C - n) log(1 - 1 / C), and each label
            # after the first adds log C + log(1 - 1 / C)
            log_absent = math.log1p(-1 / classes)
            loss -= (classes - 1) * log_absent
            further_labels_loss = (labels_B.sum() - num_labelled) * (math.log(classes) + log_absent)
        return {
            "chance_loss": (num_labelled * loss + further_labels_loss, num_labelled),
            "majority": (target_BC.sum(0), num_with_class),
        }


def _rows(label: Tensor) -> Tensor:
    """Return single labels (B,) as lists (B, 1), and lists of labels (B, L) unchanged."""
    return label[:, None] if label.ndim == 1 else label


def build(settings: Settings, encoder: Backbone, classes: int) -> Supervised:
    return Supervised(encoder, classes, **settings.group(SupervisedOptions).model_dump())
