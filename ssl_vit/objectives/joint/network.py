"""Train several objectives on the same encoder, by a weighted sum of losses on the whole batch."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from ...data.batching import Batch
from ...models.encoder import Backbone
from .. import base, building
from ..base import Means, Metrics, Objective, Output
from ..building import Settings
from ..teacher import Averages
from . import DECLARATION, JointOptions


class Joint(Objective):
    """Weighted sum of the losses of objectives that share an encoder and run in sequence.

    A part of weight 0 does not run: weights (1, 0) give exactly what the first part gives alone.

    Args:
        encoder: the encoder of all parts.
        parts: name -> (objective, weight).
    """

    def __init__(self, encoder: Backbone, parts: Mapping[str, tuple[Objective, float]]) -> None:
        super().__init__(encoder)
        self.parts = nn.ModuleDict({name: part for name, (part, _) in parts.items()})
        self.weights = {name: weight for name, (_, weight) in parts.items()}
        self.mixes_images = next((p.mixes_images for _, p in self._all() if p.mixes_images), "")
        self.baselines_move = any(part.baselines_move for _, part in self._all())
        self._freeze_idle()

    def averages(self, progress: float) -> Averages:
        """Return the averages of the part with a teacher. Parts without a teacher have a
        momentum of 1.
        """
        return min(
            (part.averages(progress) for _, part in self._all()), key=lambda averages: averages[0]
        )

    def forward(self, batch: Batch) -> Output:
        steps = {name: part(batch) for name, part in self._all()}
        loss = torch.stack([self.weights[name] * step.loss for name, step in steps.items()]).sum()
        metrics = {
            f"{name}/{key}": pair
            for name, step in steps.items()
            for key, pair in step.metrics.items()
        }
        # `combine_means` replaces the mean and keeps the count: parts count patches or labels
        return Output(loss, base.sums(loss=loss.expand(len(batch.key))) | metrics)

    def combine_means(self, means: Means) -> Means:
        """Set the loss to the weighted sum of the parts' mean losses.

        The mean over device batches would depend on how labels are distributed over device batches.
        A part that saw no labelled image adds nothing, because it had no gradient. If no part has a
        loss, the result has none either.
        """
        losses = {name: f"{name}/loss" for name, _ in self._all() if f"{name}/loss" in means}
        if not losses:
            return {name: pair for name, pair in means.items() if name != "loss"}
        total = sum(self.weights[name] * means[loss][0] for name, loss in losses.items())
        return means | {"loss": (total, means["loss"][1])}

    def logits(self, batch: Batch) -> Tensor:
        return dict(self._all())["supervised"].logits(batch)

    def fit_baselines(self, batches: Iterable[Batch]) -> None:
        seen = list(batches)
        for _, part in self._all():
            part.fit_baselines(seen)

    def baselines(self, batch: Batch) -> Metrics:
        return {
            f"{name}/{key}": pair
            for name, part in self._all()
            for key, pair in part.baselines(batch).items()
        }

    def panels(self, batch: Batch) -> dict[str, Tensor]:
        """Return the panels of the first part that has panels."""
        return next(filter(None, (part.panels(batch) for _, part in self._all())), {})

    def _freeze_idle(self) -> None:
        """Freeze the parameters that only parts of weight 0 would train.

        Such parameters never get a gradient. DDP would wait for their gradients forever, and ZeRO,
        which updates flat tensors, would apply weight decay to them.
        """
        trained = {id(p) for _, part in self._all() for p in part.parameters()}
        for p in self.parameters():
            p.requires_grad_(p.requires_grad and id(p) in trained)

    def _all(self) -> list[tuple[str, Objective]]:
        """Return the parts whose weight is not 0."""
        return [
            (name, part)
            for name, part in self.parts.items()
            if isinstance(part, Objective) and self.weights[name]
        ]


def build(settings: Settings, encoder: Backbone, classes: int) -> Joint:
    weights = settings.group(JointOptions)
    parts: dict[str, tuple[Objective, float]] = {}
    for name in DECLARATION.parts:
        # Restore the random state, so that each part starts with the weights that it has alone
        # A plan builds on "meta", perhaps while another thread trains and draws random numbers
        is_real = torch.get_default_device().type != "meta"
        with torch.random.fork_rng(devices=[], enabled=is_real):
            part = building.build(settings, encoder, classes, name)
        parts[name] = (part, getattr(weights, name))
    return Joint(encoder, parts)
