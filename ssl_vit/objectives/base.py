"""The contract of every objective: a module around one encoder, `objective(batch) -> Output`."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..data.batching import Batch
from ..models.encoder import Backbone

# name -> (sum, count), which add up over passes and processes
Metrics = dict[str, tuple[Tensor, Tensor]]


def sums(**values: Tensor) -> Metrics:
    """Metrics by name of a value of each image (B,)."""
    found: Metrics = {}
    for name, value_B in values.items():
        images = torch.full((), float(len(value_B)), dtype=torch.float64, device=value_B.device)
        found[name] = (value_B.detach().double().sum(), images)
    return found


class Output(NamedTuple):
    """A scalar `loss` to minimise, and `metrics`, among them "loss" itself."""

    loss: Tensor
    metrics: Metrics


class Objective(nn.Module, ABC):
    """`objective(batch) -> Output`. Parameters besides the encoder's (mask token, heads) belong to
    the objective."""

    encoder: Backbone
    pool: str = "token"  # an image's feature in the exported encoder: "token" or "avg"
    # whether the loss is over labelled images only and needs Batch.labels_per_pass
    uses_labels: bool = False
    # whether processes wait for one another in a training forward pass
    collective: bool = False
    # whether its loss and guessing depend on how many images are compared with one another
    compares_images: bool = False
    # the option that makes a step depend on which images share a device batch; "" for none
    mixes_images: str = ""

    def __init__(self, encoder: Backbone) -> None:
        super().__init__()
        self.encoder = encoder

    @abstractmethod
    def forward(self, batch: Batch) -> Output: ...

    @abstractmethod
    def describe(self) -> str:
        """One line for the log."""

    def logits(self, batch: Batch) -> Tensor:
        """Class scores (B, C), for an objective that learns labels.

        Raises:
            TypeError: it learns none.
        """
        raise TypeError(f"{type(self).__name__} learns no labels")

    def heads(self) -> dict[str, Tensor]:
        """What an export keeps beside the encoder: {name: tensor} of this objective's state."""
        return {name: value for name, value in self.state_dict().items() if "encoder." not in name}

    def panels(self, batch: Batch) -> dict[str, Tensor]:
        """What it makes of images, beside them, as pictures: {title: uint8 (B, 3, H, W)}; of one
        whose declaration has a `figure`."""
        return {}

    def load_heads(self, heads: dict[str, Tensor]) -> None:
        """Take what `heads` of a trained one gave; the encoder has its weights already.

        Raises:
            KeyError: some are missing; the message names them.
            RuntimeError: they are another network's.
        """
        if missing := [name for name in self.heads() if name not in heads]:
            raise KeyError(f"lacks {', '.join(missing)}")
        self.load_state_dict(heads, strict=False)

    @property
    def exported(self) -> Backbone:
        """The encoder that is probed and exported: of some with a teacher the teacher's."""
        return self.encoder

    def assignments(self, batches: Iterable[Batch]) -> dict[str, Tensor]:
        """Probabilities of prototypes (X, K) of all these images without views, in evaluation, by
        the metric that they are measured by (`features/...`); none of an objective without
        prototypes. Collective."""
        return {}

    def start_step(self, progress: float) -> None:
        """Set what follows a schedule of its own. Called before each training step with the share
        of the run that is done; what is set is a buffer, which a compiled graph reads."""
        return

    def finish_step(self, bad: Tensor) -> None:
        """Move buffers that follow training, after an optimiser step; not if it was skipped, as
        `bad` (bool, on the device) says."""
        return

    def summands(self) -> "Iterable[Objective]":
        """The objectives that this one is a sum of; itself."""
        return (self,)

    def momentum_pairs(self) -> Iterable[tuple[nn.Parameter, nn.Parameter]]:
        """(running average, the weight that it averages) of an objective with a momentum copy.

        After each optimiser step average = m average + (1 - m) weight, with m of `momentum_at`,
        unless the step was skipped. The averages are parameters with requires_grad=False, so that
        checkpoints and sharding treat them as weights, and the optimiser does not have them.
        """
        return ()

    def momentum_at(self, progress: float) -> float:
        """The momentum m after the step that completes this share of the run."""
        return 1.0

    def fit_baselines(self, batches: Iterable[Batch]) -> None:
        """Compute from training images what `baselines` needs. Called once, before the first
        step."""
        return

    def baselines(self, batch: Batch) -> Metrics:
        """Metrics that a trained model must beat on this batch; none by default."""
        return {}
