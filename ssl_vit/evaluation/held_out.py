"""Evaluates the objective on fixed held-out images with fixed corruption, beside its baselines."""

from collections.abc import Iterator

import torch
from accelerate import Accelerator
from torch import Tensor

from ..callbacks import Row
from ..data.batching import Batch
from ..objectives.base import Objective, check_baselines, check_output
from ..training.loop import means, to_device


class HeldOutEvaluator:
    """An evaluator. `latest` is {name: (value, n)} of its last evaluation."""

    def __init__(self, batches: list[Batch], accelerator: Accelerator) -> None:
        self.batches = batches
        self.accelerator = accelerator
        self.latest: dict[str, tuple[float, int]] = {}
        self.baselines: dict[str, tuple[float, int]] = {}

    def measure_baselines(self, objective: Objective) -> dict[str, tuple[float, int]]:
        """Compute the objective's baselines; the images never change, so once is enough, but where
        they move.

        Raises:
            UserError: as `check_baselines`.
        """
        self.baselines = self._mean(objective.baselines(self._there(b)) for b in self.batches)
        check_baselines(objective, {name: value for name, (value, _) in self.baselines.items()})
        return self.baselines

    def names(self, objective: Objective) -> list[str]:
        """The names of the objective's metrics, without its baselines.

        Raises:
            UserError: as `check_output`.
        """
        output = objective(self._there(self.batches[0]))
        check_output(objective, output)
        return list(output.metrics)

    def __call__(self, step: int, row: Row, objective: Objective) -> Iterator[tuple[str, float]]:
        self.latest = {}  # after a failure no older values are left
        measured = self._mean(objective(self._there(b)).metrics for b in self.batches)
        if objective.baselines_move:
            self.measure_baselines(objective)
        self.latest = measured | self.baselines
        for name, (value, _) in self.latest.items():
            yield f"validation/{name}", value

    def _there(self, batch: Batch) -> Batch:
        return to_device(batch, self.accelerator.device)

    def _mean(
        self, all_metrics: Iterator[dict[str, tuple[Tensor, Tensor]]]
    ) -> dict[str, tuple[float, int]]:
        names: list[str] = []
        total: Tensor | None = None
        for metrics in all_metrics:
            if not metrics:  # an objective without baselines
                return {}
            names = [name for name, (a, _) in metrics.items() for _ in range(a.numel())]
            sums = torch.cat([_pairs(a, b) for a, b in metrics.values()])
            total = sums if total is None else total + sums
        return {} if total is None else means(names, total, self.accelerator)


def _pairs(sums: Tensor, count: Tensor) -> Tensor:
    """Each of the sums beside the count: (C, 2)."""
    return torch.stack([sums.double().flatten(), count.double().expand(sums.numel())], 1)
