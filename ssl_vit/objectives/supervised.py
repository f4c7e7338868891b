"""Classification by labels (paper, 3.1 and 4.1), in pre-training with a hidden tanh layer in the
head.

Legend: B batch, T tokens, D width, C classes.
"""

import math

from torch import Tensor, nn
from torch.nn import functional as F

from ..data.batching import Batch
from ..models.encoder import Backbone
from .base import Objective, Step

SIGMOID_BIAS = -10.0  # the authors' code: every class starts as improbable


def _tanh_layer(width: int) -> nn.Sequential:
    layer = nn.Linear(width, width)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return nn.Sequential(layer, nn.Tanh())


class Supervised(Objective):
    """A head on the class token or the mean of the patches: an optional hidden layer (D, tanh),
    then a linear layer that starts at zero.

    `loss` is softmax (cross-entropy, with label smoothing) or sigmoid (binary cross-entropy summed
    over the classes). Images without a label (-1) take part in neither loss nor metrics.
    """

    uses_labels = True

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

    def describe(self) -> str:
        layers = "hidden tanh layer and " if isinstance(self.hidden, nn.Sequential) else ""
        on = "class token" if self.pool == "token" else "mean of the patches"
        return (
            f"supervised, {self.classes} classes: {layers}linear head on the {on}, {self.loss} loss"
        )

    def logits(self, batch: Batch) -> Tensor:
        """Scores (B, C)."""
        return self.head(self.hidden(self.encoder.feature(batch.image, self.pool)))

    def forward(self, batch: Batch) -> Step:
        logits_BC = self.logits(batch).float()
        known_B = batch.label >= 0
        label_B = batch.label.clamp(min=0)
        loss_B = self._loss(logits_BC, label_B) * known_B
        # images mixed in pairs: their labels are mixed in the same proportion
        if batch.partner_label is not None and batch.mix_lambda is not None:
            other_B = self._loss(logits_BC, batch.partner_label.clamp(min=0)) * known_B
            loss_B = batch.mix_lambda * loss_B + (1 - batch.mix_lambda) * other_B
        correct_B = (logits_BC.detach().argmax(-1) == label_B) & known_B
        count = known_B.double().sum()
        # see Batch.labels_per_pass; outside of training the batch's own count
        divisor = count if batch.labels_per_pass is None else batch.labels_per_pass
        metrics = {
            "loss": (loss_B.detach().double().sum(), count),
            "accuracy": (correct_B.double().sum(), count),
        }
        return Step(loss_B.sum() / divisor.clamp(min=1e-9), metrics)

    def _loss(self, logits_BC: Tensor, label_B: Tensor) -> Tensor:
        if self.loss == "softmax":
            return F.cross_entropy(
                logits_BC, label_B, reduction="none", label_smoothing=self.smoothing
            )
        one_hot_BC = F.one_hot(label_B, self.classes).to(logits_BC)
        return F.binary_cross_entropy_with_logits(logits_BC, one_hot_BC, reduction="none").sum(-1)

    def baselines(self, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        """Uniform predictions (1 / C): their loss in nats, and their accuracy."""
        count = (batch.label >= 0).double().sum()
        c = self.classes
        loss = math.log(c)
        if self.loss == "sigmoid" and c > 1:
            loss -= (c - 1) * math.log1p(-1 / c)
        return {"chance_loss": (count * loss, count), "chance": (count / c, count)}
