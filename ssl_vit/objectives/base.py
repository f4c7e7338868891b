"""The contract of every objective: a module around one encoder, `objective(batch) -> Output`."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..data.augment import VIEWS
from ..data.batching import Batch
from ..errors import UserError
from ..models.encoder import Backbone
from .global_batch import GlobalBatchNorm
from .teacher import Averages

# name -> (sum, count), which add up over passes and processes
Metrics = dict[str, tuple[Tensor, Tensor]]


def sums(**values: Tensor) -> Metrics:
    """Metrics by name of a value of each image (B,)."""
    found: Metrics = {}
    for name, value_B in values.items():
        images = torch.full((), float(len(value_B)), dtype=torch.float64, device=value_B.device)
        found[name] = (value_B.detach().double().sum(), images)
    return found


def both_views(batch: Batch) -> Tensor:
    """The two random views of each image, (B, 2, 3, H, W).

    Raises:
        UserError: there are not two, as where a declaration lacks shared=("views",).
    """
    found = 1 if batch.views is None else batch.views.shape[1]
    if batch.views is None or found != VIEWS:
        text = f"{found} view of each image; expected {VIEWS}"
        raise UserError(f'{text}, which shared=("views",) of its declaration gives')
    return batch.views


class Output(NamedTuple):
    """A scalar `loss` to minimise, and `metrics`, among them "loss" itself."""

    loss: Tensor
    metrics: Metrics


class Objective(nn.Module, ABC):
    """`objective(batch) -> Output`. Parameters besides the encoder's (mask token, heads) belong to
    the objective. `forward` is all that one must have; a step is `start_step`, `forward` and
    backward once or several times, the optimiser's update, `after_step`, `averages`.

    One whose weights stay as they are at first has a method `frozen_weights`; one with prototypes
    `assignments` (self-distillation has both: dino/network.py).
    """

    encoder: Backbone
    # the option that makes a step depend on which images share a device batch; "" for none
    mixes_images: str = ""
    # whether `baselines` follow training, as those of a teacher's features
    baselines_move: bool = False

    def __init__(self, encoder: Backbone) -> None:
        super().__init__()
        self.encoder = encoder

    @abstractmethod
    def forward(self, batch: Batch) -> Output: ...

    def teachers(self) -> dict[str, Backbone]:
        """{dotted key: frozen network} of those whose weights a key of the recipe names (`key` with
        names_weights). They are read before the first step alone: checkpoints have them."""
        return {}

    # In a step

    def start_step(self, progress: float) -> None:
        """Set what follows a schedule of its own. Called before each training step with the share
        of the run that is done; what is set is a buffer, which a compiled graph reads."""
        for norm in self._norms():
            norm.start_step()

    def after_step(self, found_inf: Tensor) -> None:
        """Move buffers that follow training, after an optimiser step; not if it was skipped, as
        `found_inf` (bool, on the device) says."""
        for norm in self._norms():
            norm.after_step(found_inf)

    def _norms(self) -> Iterator[GlobalBatchNorm]:
        return (one for one in self.modules() if isinstance(one, GlobalBatchNorm))

    def averages(self, progress: float) -> Averages:
        """A momentum m and pairs (running average, the weight that it averages), of an objective
        with a teacher.

        After the optimiser step that completes this share of the run, average = m average +
        (1 - m) weight, unless the step was skipped. The averages are parameters with
        requires_grad=False, so that checkpoints and sharding treat them as weights, and the
        optimiser does not have them.
        """
        return 1.0, ()

    # In evaluation

    def fit_baselines(self, batches: Iterable[Batch]) -> None:
        """Compute from training images what `baselines` needs. Called once, before the first
        step."""

    def baselines(self, batch: Batch) -> Metrics:
        """What a trained model must beat on this batch, by the names of rows of metrics.Baseline;
        none by default. Of one with several sums (C,) the largest over all batches counts."""
        return {}

    def panels(self, batch: Batch) -> dict[str, Tensor]:
        """What it makes of images, beside them, as pictures: {title: uint8 (B, 3, H, W)}; of one
        whose declaration has a `figure`."""
        return {}

    def logits(self, batch: Batch) -> Tensor:
        """Class scores (B, C), for an objective that learns labels.

        Raises:
            TypeError: it learns none.
        """
        raise TypeError(f"{type(self).__name__} learns no labels")

    # In the export

    @property
    def exported(self) -> Backbone:
        """The encoder that is probed and exported: of some with a teacher the teacher's."""
        return self.encoder

    def heads(self) -> dict[str, Tensor]:
        """What an export keeps beside the encoder: {name: tensor} of this objective's state."""
        state = self.state_dict().items()
        return {name: value for name, value in state if "encoder" not in name.split(".")}

    def load_heads(self, heads: dict[str, Tensor]) -> None:
        """Take what `heads` of a trained one gave; the encoder has its weights already.

        Raises:
            KeyError: some are missing; the message names them.
            RuntimeError: they are another network's.
        """
        if missing := [name for name in self.heads() if name not in heads]:
            raise KeyError(f"lacks {', '.join(missing)}")
        self.load_state_dict(heads, strict=False)
