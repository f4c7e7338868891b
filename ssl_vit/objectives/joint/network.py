"""Train several objectives on the same encoder, by a weighted sum of losses on the whole batch."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from ...data.batching import Batch
from ...measurements import MetricKey, flat_name
from ...models.encoder import Backbone
from .. import base, building
from ..base import Means, Metrics, Objective, Output
from ..building import Settings
from ..teacher import Averages
from . import DECLARATION, JointOptions


class Joint(Objective):
    """Weighted sum of the losses of objectives that share an encoder and run in sequence.

    Each objective is called a part. A part of weight 0 does not run, so with weights (1, 0) the
    first part trains exactly as if it were the only objective.

    Args:
        encoder: The encoder that all parts share.
        parts: {name: (objective, weight)}.
    """

    def __init__(self, encoder: Backbone, parts: Mapping[str, tuple[Objective, float]]) -> None:
        super().__init__(encoder)
        self.parts = nn.ModuleDict({name: part for name, (part, _) in parts.items()})
        self.weights = {name: weight for name, (_, weight) in parts.items()}
        mixing_options = [
            part.mixing_option for _, part in self._trained_parts() if part.mixing_option
        ]
        self.mixing_option = mixing_options[0] if mixing_options else ""
        self.baselines_move = any(part.baselines_move for _, part in self._trained_parts())
        self._freeze_idle()

    def averages(self, progress: float) -> Averages:
        """Return the momentum and the averages of the part with a teacher, if there is one."""
        averages = [part.averages(progress) for _, part in self._trained_parts()]
        # Parts without a teacher have a momentum of 1, which is the largest momentum
        return min(averages, key=lambda pair: pair[0])

    def forward(self, batch: Batch) -> Output:
        losses: list[Tensor] = []
        metrics: Metrics = {}
        for name, part in self._trained_parts():
            output = part(batch)
            losses.append(self.weights[name] * output.loss)
            metrics |= _of_part(name, output.metrics)
        loss = torch.stack(losses).sum()
        # `combine_means` replaces the mean and keeps the count: parts count patches or labels
        return Output(loss, base.sums(loss=loss.expand(len(batch.key))) | metrics)

    def combine_means(self, means: Means) -> Means:
        """Return the means, in which "loss" is the sum of weight * mean loss of each part.

        The sum replaces the mean of the losses that `forward` returned. That mean would depend on
        how labelled images are distributed over device batches (the images that a process computes
        at once). A part that saw no labelled image has no mean loss and adds nothing, because it
        had no gradient. If no part has a mean loss, the result has no "loss".
        """
        weighted_losses = []
        for name, _ in self._trained_parts():
            loss_name = flat_name(MetricKey("loss", part=name))
            if loss_name in means:
                mean_loss, _ = means[loss_name]
                weighted_losses.append(self.weights[name] * mean_loss)
        if not weighted_losses:
            return {name: pair for name, pair in means.items() if name != "loss"}
        _, num_images = means["loss"]
        return means | {"loss": (sum(weighted_losses), num_images)}

    def logits(self, batch: Batch) -> Tensor:
        return dict(self._trained_parts())["supervised"].logits(batch)

    def fit_baselines(self, batches: Iterable[Batch]) -> None:
        batches = list(batches)  # an iterator could be read only once
        for _, part in self._trained_parts():
            part.fit_baselines(batches)

    def baselines(self, batch: Batch) -> Metrics:
        metrics: Metrics = {}
        for name, part in self._trained_parts():
            metrics |= _of_part(name, part.baselines(batch))
        return metrics

    def panels(self, batch: Batch) -> dict[str, Tensor]:
        """Return the panels of the first part that has panels."""
        for _, part in self._trained_parts():
            panels = part.panels(batch)
            if panels:
                return panels
        return {}

    def _freeze_idle(self) -> None:
        """Freeze the parameters that are used only by parts of weight 0.

        A part of weight 0 does not run, so its parameters never get a gradient. If they were not
        frozen, DDP would wait for their gradients forever. ZeRO updates flat tensors, and would
        apply weight decay to these parameters.
        """
        trained = {id(p) for _, part in self._trained_parts() for p in part.parameters()}
        for p in self.parameters():
            p.requires_grad_(p.requires_grad and id(p) in trained)

    def _trained_parts(self) -> list[tuple[str, Objective]]:
        """Return the parts whose weight is not 0."""
        return [
            (name, part)
            for name, part in self.parts.items()
            if isinstance(part, Objective) and self.weights[name]
        ]


def _of_part(part: str, metrics: Metrics) -> Metrics:
    """Return metrics or baselines, renamed to belong to a part of the joint objective."""
    return {flat_name(MetricKey(name, part=part)): pair for name, pair in metrics.items()}


def build(settings: Settings, encoder: Backbone, classes: int) -> Joint:
    weights = settings.group(JointOptions)
    parts: dict[str, tuple[Objective, float]] = {}
    for name in DECLARATION.parts:
        # Restore the random state after each part, so that each part has the initial weights that
        # it has as the only objective. On "meta", weights have no values. There a plan may build
        # while another thread draws random numbers, so leave the random state alone
        is_real = torch.get_default_device().type != "meta"
        with torch.random.fork_rng(devices=[], enabled=is_real):
            part = building.build_objective(settings, encoder, classes, name)
        parts[name] = (part, getattr(weights, name))
    return Joint(encoder, parts)
