"""Define the contract of every objective: a module around an encoder that returns an `Output`."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from ..data.augment import VIEWS
from ..data.batching import Batch
from ..errors import UserError, suggest
from ..measurements import (
    SHARE,
    Metric,
    all_baselines,
    find_baseline,
    find_metric,
    has_row,
    read_flat_name,
)
from ..models.encoder import Backbone
from ..recipe.declaration import all_declared, is_from_plugin
from .teacher import Averages, Teacher

# Metric name -> (sum, count); sums and counts are added up over passes and processes
Metrics = dict[str, tuple[Tensor, Tensor]]
# Metric name -> (mean, count) over all passes and processes
Means = dict[str, tuple[float, int]]


def sums(**values: Tensor) -> Metrics:
    """Add up the values of the images in a batch, for each metric.

    For example, with the losses 1 and 2 of two images, `sums(loss=loss_B)` returns
    {"loss": (3, 2)}.

    Args:
        **values: {name of a metric: tensor (B,) with one value per image}.

    Returns:
        {name: (sum of the values, number of images)}, float64 scalars without a gradient.

    Raises:
        UserError: A tensor does not have exactly one dimension.
    """
    metrics: Metrics = {}
    for name, value_B in values.items():
        if value_B.ndim != 1:
            raise UserError(
                f"{_caller()}: sums({name}=...): the tensor has shape {(*value_B.shape,)}. "
                "Give one value per image, (B,)."
            )
        num_images = torch.full((), float(len(value_B)), dtype=torch.float64, device=value_B.device)
        metrics[name] = (value_B.detach().double().sum(), num_images)
    return metrics


def both_views(batch: Batch) -> Tensor:
    """Return the two random views of each image, (B, 2, 3, H, W).

    Raises:
        UserError: The batch does not have two views, for instance because the objective's
            declaration lacks shared=("views",).
    """
    num_views = 1 if batch.views is None else batch.views.shape[1]
    if batch.views is None or num_views != VIEWS:
        raise UserError(
            f"{_caller()}: expected {VIEWS} views of each image, and the batch has {num_views}. "
            'Add shared = ("views",) to the declaration, so that images are augmented twice.'
        )
    return batch.views


class Output(NamedTuple):
    """Result of an objective for a batch.

    Attributes:
        loss: The scalar to minimise.
        metrics: Pair (sum, count) of each metric, including "loss".
    """

    loss: Tensor
    metrics: Metrics


def describe_class(kind: type) -> str:
    """Return "FILE: CLASS" for a class, as the beginning of an error message."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", "")
    return f"{file}: {kind.__name__}"


def _caller() -> str:
    """Return "FILE: METHOD" for the method that called `sums` or `both_views`.

    Error messages begin with this text.
    """
    # Frame 0 is this function, frame 1 `sums` or `both_views`, frame 2 the method
    code = sys._getframe(2).f_code
    return f"{code.co_filename}: {code.co_qualname}"


class RequiresMethods(nn.Module, ABC):
    """Module whose class must define all abstract methods.

    Otherwise creating the module raises a UserError that names the missing methods in one line.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        missing = sorted(cls.__abstractmethods__)
        if missing:
            names = ", ".join(missing)
            raise UserError(f"{describe_class(cls)}: methods are missing. Define {names}.")
        return super().__new__(cls)


class StepHooks(nn.Module):
    """Part of an objective with a state that changes from one training step to the next."""

    def start_step(self, progress: float) -> None:
        """Prepare a training step.

        Args:
            progress: Share of the run that is done, from 0 to 1.
        """

    def after_step(self, found_inf: Tensor) -> None:
        """Finish an optimiser step.

        Args:
            found_inf: True if the optimiser skipped the step. Bool, on the device.
        """


class Objective(RequiresMethods):
    """Pre-training task around an encoder: `objective(batch) -> Output`.

    The objective owns all parameters except the encoder's, such as mask token and heads. A subclass
    must have `forward`; all other methods have defaults. A training step calls `start_step`, then
    `forward` and backward one or several times, then the optimiser, `after_step` and `averages`.

    Attributes:
        encoder: The network that is trained.
        mixing_option: The option, if any, that makes a step depend on which images share a device
            batch, else "".
        baselines_move: Whether `baselines` change during training, for instance because they are
            computed from a teacher's features.
    """

    encoder: Backbone
    mixing_option: str = ""
    baselines_move: bool = False

    def __init__(self, encoder: Backbone) -> None:
        super().__init__()
        self.encoder = encoder

    @abstractmethod
    def forward(self, batch: Batch) -> Output: ...

    def teachers(self) -> dict[str, Backbone]:
        """Return the frozen networks, by the name of the option that says which weights to load.

        For {"distill.teacher": network}, a new run loads the weights that the option
        `distill.teacher` names into the network, before the first step. Checkpoints contain the
        network, so a resumed run does not read the weights again.

        Returns:
            {option: network}. The option is declared with `key(names_weights=True)`.
        """
        return {}

    # In a step

    def start_step(self, progress: float) -> None:
        """Update values that follow a schedule, such as a temperature, before a training step.

        The default calls `start_step` of all `StepHooks` among the objective's modules. They must
        keep the values in buffers, because a compiled graph would treat other values as constants.

        Args:
            progress: Share of the run that is done, from 0 to 1.
        """
        for module in self._step_hooks():
            module.start_step(progress)

    def after_step(self, found_inf: Tensor) -> None:
        """Update buffers such as the running mean of a teacher's logits, after an optimiser step.

        The default calls `after_step` of all `StepHooks` among the objective's modules.

        Args:
            found_inf: True if the optimiser skipped the step. Then no buffer may change. Bool, on
                the device.
        """
        for module in self._step_hooks():
            module.after_step(found_inf)

    def _step_hooks(self) -> Iterator[StepHooks]:
        return (module for module in self.modules() if isinstance(module, StepHooks))

    def frozen_weights(self, progress: float) -> list[nn.Parameter]:
        """Return the weights that a training step does not change, by default none.

        An override must freeze all of these weights from the first step on, and release all of them
        in the same later step.

        Args:
            progress: Share of the run that is done before the step, from 0 to 1.
        """
        return []

    def averages(self, progress: float) -> Averages:
        """Return the teacher's momentum m, and pairs of the teacher's and the encoder's weights.

        After each optimiser step that was not skipped, the caller sets the teacher's weight to
        m * teacher's weight + (1 - m) * encoder's weight. The teacher's weights are parameters with
        requires_grad=False: checkpoints and sharding treat them as weights, and the optimiser does
        not contain them.

        Args:
            progress: Share of the run that is done after the step, from 0 to 1.

        Returns:
            m, and pairs (running average, averaged weight). No pairs without a teacher.
        """
        return 1.0, ()

    def combine_means(self, means: Means) -> Means:
        """Add metrics that are computed from the means of other metrics, such as a weighted sum.

        The default returns the means unchanged.

        Args:
            means: Mean and count of each metric over all batches and processes. The batches are
                those of training steps or of held-out images. Metrics whose count is 0 are missing.
        """
        return means

    # In evaluation

    def fit_baselines(self, batches: Iterable[Batch]) -> None:
        """Compute the statistics of training images that `baselines` needs.

        The caller does this once, before the first step.

        Args:
            batches: Training images, cropped and augmented, without views.
        """

    def baselines(self, batch: Batch) -> Metrics:
        """Return the scores of simple predictions, which a trained model must beat.

        The default has no scores.

        Returns:
            {name of a `Baseline`: (sum, count)} over the images of the batch. A sum may also be a
            tensor (C,) with the scores of C predictions. Then the prediction with the largest total
            over all batches is the baseline. For example, if each entry is the number of images of
            a class, the baseline is the accuracy of predicting the commonest class for each image.
        """
        return {}

    def assignments(self, batches: Iterable[Batch]) -> dict[str, Tensor]:
        """Compute the probabilities of K prototypes for each of B images.

        A run uses them to measure the mutual information of images and prototypes, which falls to 0
        when the encoder collapses. The default has no prototypes.

        Args:
            batches: Batches with B images in total.

        Returns:
            {metric: probabilities (B, K)}, for example {"information": probabilities}.
        """
        return {}

    def panels(self, batch: Batch) -> dict[str, Tensor]:
        """Draw what the objective predicts for the B images of a batch.

        Only objectives whose declaration has a `figure` need this method.

        Returns:
            {title: a picture for each image, uint8 (B, 3, H, W)}.
        """
        return {}

    def logits(self, batch: Batch) -> Tensor:
        """Return class scores (B, C), for an objective that learns labels.

        Raises:
            TypeError: The objective is not trained on labels.
        """
        raise TypeError(f"{type(self).__name__} is not trained on labels")

    # In the export

    @property
    def exported(self) -> Backbone:
        """Return the encoder that is probed and exported.

        Some objectives with a teacher return the teacher's encoder.
        """
        return self.encoder

    def heads(self) -> dict[str, Tensor]:
        """Return the tensors that an export keeps in addition to the encoder, {name: tensor}.

        These are all tensors of the state except those of the encoder and of teachers' encoders.
        """
        teachers = [module for module in self.modules() if isinstance(module, Teacher)]
        encoders = [self.encoder, *(teacher.encoder for teacher in teachers)]
        # An encoder that several modules share, as in a joint objective, has several names
        modules = self.named_modules(remove_duplicate=False)
        encoder_prefixes = tuple(f"{name}." for name, module in modules if module in encoders)
        state = self.state_dict().items()
        return {name: value for name, value in state if not name.startswith(encoder_prefixes)}

    def load_heads(self, heads: dict[str, Tensor]) -> None:
        """Load the tensors that `heads` has returned. The encoder is loaded separately.

        Args:
            heads: {name: tensor}.

        Raises:
            KeyError: Tensors are missing. The message names them.
            RuntimeError: The tensors have the shapes of another network.
        """
        missing = [name for name in self.heads() if name not in heads]
        if missing:
            raise KeyError(f"the tensors {', '.join(missing)} are missing")
        self.load_state_dict(heads, strict=False)


def check_output(objective: Objective, output: Output) -> None:
    """Check that a plugin's objective returns a scalar loss, and (sum, count) of each metric.

    The metrics must include "loss". Each metric must be declared, because other metrics would not
    be shown.

    Args:
        objective: The plugin's objective.
        output: What `forward` returned, which may be anything.

    Raises:
        UserError: The output is something else. The message names the plugin's file and class, and
            says what is expected.
    """
    place = describe_plugin_class(objective)
    if not isinstance(output, Output):
        returned = type(output).__name__
        raise UserError(f"{place}: forward returns {returned}. Return Output(loss, metrics).")
    if output.loss.ndim:
        raise UserError(
            f"{place}: the loss has shape {(*output.loss.shape,)}. "
            "Return a scalar, for example loss.mean()."
        )
    for name, pair in output.metrics.items():
        # A scalar tensor has ndim 0. Objects without ndim, such as floats, are no tensors
        is_pair = isinstance(pair, tuple) and [getattr(x, "ndim", 1) for x in pair] == [0, 0]
        if not is_pair:
            raise UserError(
                f"{place}: metric {name} is not a pair (sum, count) of scalars. Use sums(...)."
            )
        if not has_row(read_flat_name(name)):
            known = ["loss", "accuracy"]
            for declared in all_declared():
                if is_from_plugin(type(declared)):
                    known += [row.name for row in declared.metrics if isinstance(row, Metric)]
            near = suggest(name, known)
            raise UserError(
                f"{place}: metric {name} is not declared. "
                f"Add Metric({name!r}) to the metrics of the declaration, or return a declared "
                f"metric ({near})."
            )
    if "loss" not in output.metrics:
        names = ", ".join(output.metrics) or "{}"
        raise UserError(
            f"{place}: the metric 'loss' is missing among the metrics {names}. "
            "Return a metric with the name 'loss'."
        )


def check_gradient(objective: Objective, loss: Tensor) -> None:
    """Check that a training loss depends on weights.

    Args:
        objective: The objective that the error message names.
        loss: The loss, a scalar.

    Raises:
        UserError: The loss has no gradient.
    """
    if not loss.requires_grad:
        raise UserError(
            f"{describe_plugin_class(objective)}: the loss has no gradient. "
            "Compute the loss without detach() and no_grad()."
        )


def check_baselines(objective: Objective, values: Mapping[str, float]) -> None:
    """Check that each baseline is declared, and is between 0 and 1 if its unit is a share.

    Args:
        objective: The objective that computed the baselines, for the error message.
        values: {name of the baseline: mean over all images}.

    Raises:
        UserError: A baseline is not declared, or a share is out of range.
    """
    for name, value in values.items():
        baseline = find_baseline(read_flat_name(name))
        if baseline is None:
            near = suggest(name, [declared.name for declared in all_baselines()])
            raise UserError(
                f"{describe_plugin_class(objective)}: baseline {name} is not declared. "
                f"Add Baseline({name!r}, ...) to the metrics of the declaration, or return a "
                f"declared baseline ({near})."
            )
        check_share(objective, name, value)


def check_share(objective: Objective, name: str, value: float) -> None:
    """Check that a value is between 0 and 1 if its unit is a share.

    Args:
        objective: The objective that the error message names.
        name: Name of the metric or of the baseline. A baseline has the unit of the metric that it
            is compared with.
        value: The value to check.

    Raises:
        UserError: The value is out of range.
    """
    # How far the value is below 0 or above 1; negative inside of the range. An excess up to 1e-6 is
    # allowed, because the mean of float32 values may be rounded
    excess = max(-value, value - 1)
    metric = find_metric(read_flat_name(name))
    if metric.unit == SHARE and excess > 1e-6:
        raise UserError(
            f"{describe_plugin_class(objective)}: {name} is {value:.4g}. The metric {metric.name}"
            " is declared with unit=SHARE, which is for values between 0 and 1. Use unit=NUMBER for"
            " other values."
        )


def describe_plugin_class(objective: Objective) -> str:
    """Return "FILE: CLASS" of the class that an error message about an objective should name.

    This is the first class among objective and target that a plugin (a user's Python file) defines.
    Without a plugin, it is the class of the objective.
    """
    # Objectives and targets are the subclasses of RequiresMethods
    modules = [module for module in objective.modules() if isinstance(module, RequiresMethods)]
    plugin_classes = [type(module) for module in modules if is_from_plugin(type(module))]
    return describe_class(plugin_classes[0] if plugin_classes else type(objective))
