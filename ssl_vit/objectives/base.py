"""What every objective is: a module around one encoder that turns a Batch into a Step."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import NamedTuple

from torch import Tensor, nn

from ..data.batches import Batch
from ..encoder import Backbone

Metrics = dict[str, tuple[Tensor, Tensor]]  # name -> (sum, count), which add up over passes and processes


class Step(NamedTuple):
    """`loss`, a scalar to go down; `metrics`, among them "loss" itself."""

    loss: Tensor
    metrics: Metrics


class Objective(nn.Module, ABC):
    """`objective(batch) -> Step`. Everything trained besides the encoder (tokens, heads) is the objective's own."""

    encoder: Backbone
    pool: str = "token"  # what an export gives as a picture's feature: "token" or "avg"
    uses_labels: bool = False  # whether a loss is over labelled pictures only, and needs their count (Batch.labelled)

    def __init__(self, encoder: Backbone) -> None:
        super().__init__()
        self.encoder = encoder

    @abstractmethod
    def forward(self, batch: Batch) -> Step: ...

    @abstractmethod
    def describe(self) -> str:
        """One line for people."""

    def logits(self, batch: Batch) -> Tensor:
        """Scores (B, C) of the classes, for an objective that learns labels."""
        raise TypeError(f"{type(self).__name__} learns no labels")

    def fit_baselines(self, batches: Iterable[Batch]) -> None:
        """Learn from training pictures what `baselines` needs to know. Called once, before the first step."""
        return

    def baselines(self, batch: Batch) -> Metrics:
        """What a trained model must beat on this batch; nothing unless an objective says so."""
        return {}
