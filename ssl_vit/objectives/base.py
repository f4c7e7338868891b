"""The contract of every objective: a module around one encoder, `objective(batch) -> Output`."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn, Self

import torch
from torch import Tensor, nn

from ..data.augment import VIEWS
from ..data.batching import Batch
from ..errors import UserError, suggest
from ..metrics import SHARE, Metric, all_baselines, find_baseline, find_metric, has_row
from ..models.encoder import Backbone
from ..recipe.declaration import all_declared, is_plugins
from .teacher import Averages

# name -> (sum, count), which add up over passes and processes
Metrics = dict[str, tuple[Tensor, Tensor]]
# name -> (mean, count), over passes and processes
Means = dict[str, tuple[float, int]]


def sums(**values: Tensor) -> Metrics:
    """Metrics by name of a value of each image (B,).

    Raises:
        UserError: one has another number of dimensions.
    """
    found: Metrics = {}
    for name, value_B in values.items():
        if value_B.ndim != 1:
            text = f"shape {(*value_B.shape,)}; expected (B,), a value of each image"
            raise UserError(f"{_caller()}: sums({name}=...): {text}")
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
        expected = 'which shared=("views",) of its declaration gives'
        raise UserError(f"{_caller()}: {text}, {expected}")
    return batch.views


class Output(NamedTuple):
    """A scalar `loss` to minimise, and `metrics`, among them "loss" itself."""

    loss: Tensor
    metrics: Metrics


def place(kind: type) -> str:
    """File and name of a class; opens errors."""
    return f"{getattr(sys.modules.get(kind.__module__), '__file__', '')}: {kind.__name__}"


def _caller() -> str:
    """File and name of the method that has called a function of this file; opens its errors."""
    code = sys._getframe(2).f_code
    return f"{code.co_filename}: {code.co_qualname}"


class Complete(nn.Module, ABC):
    """A module that says in one line which of the methods that it must have are missing."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        if missing := sorted(cls.__abstractmethods__):
            raise UserError(f"{place(cls)}: expected a method {', '.join(missing)}")
        return super().__new__(cls)


class Stepped(nn.Module):
    """A part of an objective that training steps change."""

    def start_step(self, progress: float) -> None:
        """Called before a training step with the share of the run that is done."""

    def after_step(self, found_inf: Tensor) -> None:
        """Called after an optimiser step, which was skipped where `found_inf` (bool, on the
        device) is true."""


class Objective(Complete):
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
        for part in self._stepped():
            part.start_step(progress)

    def after_step(self, found_inf: Tensor) -> None:
        """Move buffers that follow training, after an optimiser step; not if it was skipped, as
        `found_inf` (bool, on the device) says."""
        for part in self._stepped():
            part.after_step(found_inf)

    def _stepped(self) -> Iterator[Stepped]:
        return (part for part in self.modules() if isinstance(part, Stepped))

    def averages(self, progress: float) -> Averages:
        """A momentum m and pairs (running average, the weight that it averages), of an objective
        with a teacher.

        After the optimiser step that completes this share of the run, average = m average +
        (1 - m) weight, unless the step was skipped. The averages are parameters with
        requires_grad=False, so that checkpoints and sharding treat them as weights, and the
        optimiser does not have them.
        """
        return 1.0, ()

    def combine_means(self, means: Means) -> Means:
        """Compute metrics that follow from the means of other metrics, such as a weighted sum.

        Called with the means over all batches and processes, for the rows of training and for
        held-out images. A metric without any case (count 0) is not among them.
        """
        return means

    # In evaluation

    def fit_baselines(self, batches: Iterable[Batch]) -> None:
        """Compute what `baselines` needs from training images, cropped and augmented, without
        views. Called once, before the first step."""

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


def check_output(objective: Objective, output: Output) -> None:
    """Check what an objective with a plugin gives of a batch: a scalar loss, and (sum, count) of
    each metric, among them "loss" and none without a row, which would not be shown.

    Raises:
        UserError: it is something else; the plugin's file and class, and what is expected.
    """

    def refuse(text: str) -> NoReturn:
        raise UserError(f"{own_place(objective)}: {text}")

    if not isinstance(output, Output):
        refuse(f"forward gives {type(output).__name__}; expected Output(loss, metrics)")
    if output.loss.ndim:
        refuse(f"a loss of shape {(*output.loss.shape,)}; expected a scalar, as of mean()")
    for name, pair in output.metrics.items():
        if not isinstance(pair, tuple) or [getattr(x, "ndim", 1) for x in pair] != [0, 0]:
            refuse(f"metric {name}: expected (sum, count), scalar tensors, as of sums(...)")
        if not has_row(name):
            plugins = (one for one in all_declared() if is_plugins(type(one)))
            rows = [row.name for one in plugins for row in one.metrics if isinstance(row, Metric)]
            near = suggest(name, ["loss", "accuracy", *rows])
            refuse(f"metric {name}: the declaration's metrics do not have it; {near}")
    if "loss" not in output.metrics:
        refuse(f"metrics {', '.join(output.metrics) or '{}'}: expected loss among them")


def check_gradient(objective: Objective, loss: Tensor) -> None:
    """Check that a loss of training depends on weights.

    Raises:
        UserError: it has no gradient.
    """
    if not loss.requires_grad:
        text = "the loss has no gradient; expected one of weights, not of detach() or no_grad()"
        raise UserError(f"{own_place(objective)}: {text}")


def check_baselines(objective: Objective, values: Mapping[str, float]) -> None:
    """Check that baselines {name: value} have rows, and that those of shares are between 0 and 1.

    Raises:
        UserError: one is not so.
    """
    for name, value in values.items():
        row = find_baseline(name)
        if row is None:
            near = suggest(name, [one.name for one in all_baselines()])
            text = "neither one of the package nor in the declaration's metrics"
            raise UserError(f"{own_place(objective)}: baseline {name}: {text}; {near}")
        check_share(objective, name, value, row.compared_with[0])


def check_share(objective: Objective, name: str, value: float, metric: str = "") -> None:
    """Check that a value of a metric, or of a baseline of `metric`, is between 0 and 1 if that is a
    share.

    Raises:
        UserError: it is not.
    """
    above = max(-value, value - 1)  # of a mean in float32 by rounding
    if find_metric(metric or name).unit == SHARE and above > 1e-6:
        text = f"metric {name}: {value:.4g}; expected 0 to 1, as its unit is SHARE"
        raise UserError(f"{own_place(objective)}: {text}")


def own_place(objective: Objective) -> str:
    """Place of the plugin's class: the objective, or its target."""
    kinds = (type(one) for one in objective.modules() if isinstance(one, Complete))
    return place(next(filter(is_plugins, kinds), type(objective)))
