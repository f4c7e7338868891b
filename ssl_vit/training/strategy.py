"""Train an objective on one process or with DDP.

The class `Strategy` is also the interface for the loop and for checkpoints. sharding.py implements
ZeRO and FSDP2. Every strategy saves the same whole, named float32 tensors, so that a run can be
resumed under another strategy.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ..data.batch_layout import BatchLayout
from ..data.batching import Batch
from ..errors import ReportedError, UserError
from ..objectives.base import Objective, Output, check_gradient
from ..recipe.schema import Optim
from . import optim

Saved = dict[str, Any]  # {"objective": {name: weight}, "moments": {name: {moment: value}}}


@dataclass(eq=False, repr=False)
class Strategy:
    """Strategy for one process and for DDP: every process holds all weights and moments.

    Args:
        objective: Objective on the device, which `prepare` wraps.
        optimizer: Optimiser of the objective's parameters.
        settings: The group `optim` of the recipe.
        precision: float32 or bfloat16.
        compiles: Whether to use torch.compile.
        batch_layout: How a global batch is divided.
        accelerator: Accelerator of the run.
    """

    objective: Objective
    optimizer: Optimizer
    settings: Optim
    precision: str
    compiles: bool
    batch_layout: BatchLayout
    accelerator: Accelerator

    def __post_init__(self) -> None:
        self.bfloat16 = self.precision == "bfloat16"
        self.losses: list[Tensor] = []  # losses of this step's passes so far
        self.prepared: Any = self.prepare()
        self.weights = list(self.prepared.parameters())

    def prepare(self) -> nn.Module:
        """Return the objective wrapped for training."""
        if self.compiles:
            self.objective.compile(fullgraph=True, dynamic=False)
        self.init_moments(p for group in self.optimizer.param_groups for p in group["params"])
        return self.accelerator.prepare(self.objective)

    def facts(self) -> dict[str, Any]:
        """Return {"strategy": name of the strategy that was set up}, for environment.json."""
        is_ddp = isinstance(self.prepared, DistributedDataParallel)
        return {"strategy": "DDP" if is_ddp else "none"}

    def init_moments(self, weights: Iterable[Tensor]) -> None:
        """Allocate the optimiser's moments for the weights or shards of this process.

        Call this method after sharding, because the moments of all weights may not fit into memory.
        """
        for weight in weights:
            assert weight.dtype == torch.float32
            self.optimizer.state[weight] = optim.initial_state(self.settings, weight)

    def watch_progress(self, tick: Callable[[], None]) -> None:
        """Register hooks that call `tick` where processes may wait for each other.

        `tick` is called before and after each forward pass, and when the gradients of this process
        are complete. A process that is late has thus called `tick` less often than the others.
        """
        self._watch_forward(tick)
        # The backward pass completes the gradient of the first parameter last
        first_parameter = next(p for p in self.objective.parameters() if p.requires_grad)
        first_parameter.register_post_accumulate_grad_hook(lambda _: tick())

    def _watch_forward(self, tick: Callable[[], None]) -> None:
        self.prepared.register_forward_pre_hook(lambda *_: tick())
        self.prepared.register_forward_hook(lambda *_: tick())

    def state_of(self, p: nn.Parameter) -> dict[str, Tensor]:
        """Return the optimiser's state of a weight, or of this process's shard of the weight."""
        return self.optimizer.state[p]

    def run_pass(self, batch: Batch, cast: AbstractContextManager, last: bool) -> Output:
        """Run the forward and backward pass of a batch, and accumulate the gradients.

        Args:
            batch: Batch on the device.
            cast: Context of autocast for the forward pass.
            last: Whether this is the last pass of a step. Only this pass averages the gradients
                over the processes.

        Raises:
            UserError: The loss has no gradient (`check_gradient`).
        """
        with self.sync_gradients_if(last):
            with cast:
                output = self.prepared(batch)
            check_gradient(self.objective, output.loss)
            self.losses.append(output.loss.detach())
            self.backward(output.loss, last)
        return output

    def sync_gradients_if(self, last: bool) -> AbstractContextManager:
        """Return a context that averages gradients over the processes only if `last` is true."""
        return nullcontext() if last else self.accelerator.no_sync(self.prepared)

    def backward(self, loss: Tensor, last: bool) -> None:
        """Accumulate the gradients of one pass."""
        (loss / self.batch_layout.accumulation_steps).backward()

    def update(self) -> tuple[Tensor, Tensor]:
        """Clip the gradients, update the weights and zero the gradients.

        If the norm or a loss is not finite on any process, the weights stay unchanged.

        Returns:
            The gradient norm before clipping, a float64 scalar on the device, and whether the
            update was skipped, a bool scalar on the device.
        """
        norm = optim.clip(self.weights, self.settings.clip).double()
        found_inf = self.find_nonfinite_and_clear(norm)
        optim.skip_next_update(self.optimizer, found_inf)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return norm, found_inf

    @torch.no_grad()
    def reset_moments(self, weights: Iterable[nn.Parameter]) -> None:
        """Set the optimiser's state of some weights to zero, as before the first update.

        The state includes the number of steps. Adam divides moments by 1 - beta^steps to correct
        the bias of the first steps after zero.
        """
        for p in weights:
            for value in self.state_of(p).values():
                value.zero_()

    @torch.no_grad()
    def update_momentum(self, progress: float, found_inf: Tensor) -> None:
        """Call the objective's `after_step`, then update its moving averages of weights, if any.

        The objective returns a momentum, and pairs of an average (for example, a teacher's weight)
        and a trained weight. An average becomes momentum * average + (1 - momentum) * weight.

        Args:
            progress: Share of the run that is done, 0 to 1.
            found_inf: Whether the update was skipped, a bool scalar on the device. If true, the
                averages stay unchanged.
        """
        self.objective.after_step(found_inf)
        momentum, pairs = self.objective.averages(progress)
        # With weight 0 after a skipped update, `blend` leaves the averages unchanged
        weight = (1 - momentum) * (~found_inf).float()
        for average, p in pairs:
            self.blend(average, p, weight)

    def blend(self, average: nn.Parameter, p: Tensor, weight: Tensor) -> None:
        """Set average = (1 - weight) average + weight p, in place."""
        average.lerp_(p, weight)

    def find_nonfinite_and_clear(self, *values: Tensor) -> Tensor:
        """Return whether a loss of this step or one of `values` is not finite on any process.

        Empty the list of losses for the next step. Collective.

        Args:
            *values: Scalars on the device to check together with the losses.

        Returns:
            A bool scalar on the device.
        """
        found_inf = torch.stack([~value.isfinite() for value in (*values, *self.losses)]).any()
        self.losses = []
        if self.accelerator.num_processes == 1:
            return found_inf
        return self.accelerator.reduce(found_inf.float(), "sum") > 0

    def dry_run(self, batch: Batch, cast: AbstractContextManager) -> None:
        """Run the forward and backward pass of a batch, and drop the gradients.

        Args:
            batch: Batch on the device.
            cast: Context of autocast for the forward pass.

        Raises:
            UserError: A weight got no gradient (`_check_gradients`).
        """
        self.run_pass(batch, cast, last=True)
        self._check_gradients()
        self.losses = []
        self.optimizer.zero_grad()

    def _check_gradients(self) -> None:
        """Check that each weight got a gradient, if there are several processes.

        Otherwise, DDP would fail only in the next pass, after all processes had waited for missing
        gradients.

        Raises:
            UserError: A weight got no gradient. All processes but the first raise ReportedError.
        """
        unused = [
            name
            for name, p in self.objective.named_parameters()
            if p.requires_grad and p.grad is None
        ]
        if unused and self.accelerator.num_processes > 1:
            error_class = UserError if self.accelerator.is_main_process else ReportedError
            raise error_class(
                f"no gradient for {', '.join(unused[:3])}: the objective does not use these "
                "weights. Freeze the weights with requires_grad_(False), or use a single process."
            )

    @contextmanager
    def full_weights(self) -> Iterator[Objective]:
        """Yield the objective for evaluation, with whole weights on every process. Collective."""
        yield self.objective

    @torch.no_grad()
    def save(self) -> Saved:
        """Return the whole weights and moments for a checkpoint. Collective.

        Returns:
            {"objective": {name: weight}, "moments": {name: {moment: value}}}. On the first process,
            a sharded strategy returns weights and moments on the CPU. On all other processes, a
            sharded strategy returns None for each weight and moment.
        """
        weights = self.whole_weights()
        moments = {}
        for name, p in self.objective.named_parameters():
            if p.requires_grad:
                values = self.gather_moments(p)
                moments[name] = {key: self.prepare_to_save(value) for key, value in values.items()}
        return {"objective": weights, "moments": moments}

    @torch.no_grad()
    def load(self, saved: Saved) -> None:
        """Restore weights and moments that `save` of any strategy returned. Collective."""
        self.load_whole_weights(saved["objective"])
        for name, p in self.objective.named_parameters():
            if p.requires_grad:
                self.scatter_moments(p, saved["moments"][name])

    def prepare_to_save(self, value: Tensor) -> Tensor | None:
        """Convert a whole tensor for `save`. Without sharding, the tensor stays unchanged."""
        return value

    def whole_weights(self) -> dict[str, Any]:
        """Return the objective's state_dict with whole weights. Collective.

        A weight that several modules share is included under each name.
        """
        return self.objective.state_dict()

    def load_whole_weights(self, weights: dict[str, Tensor]) -> None:
        """Load a state_dict with whole weights into the objective. Collective."""
        self.objective.load_state_dict(weights)

    def gather_moments(self, p: nn.Parameter) -> dict[str, Tensor]:
        """Return the optimiser's state of a weight, with whole moments. Collective."""
        return self.state_of(p)

    def scatter_moments(self, p: nn.Parameter, values: dict[str, Tensor]) -> None:
        """Restore the optimiser's state of a weight from whole moments. Collective."""
        for key, value in self.state_of(p).items():
            value.copy_(values[key])
