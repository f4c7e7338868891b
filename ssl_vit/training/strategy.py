"""What trains an objective: one seam for the loop and the checkpoint. Here every process holds
everything; sharding.py has the others.

What is saved is the same everywhere: whole, named float32 tensors. So a run stopped under one way
goes on under another.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ..config.schema import Optim
from ..data.batching import Batch, BatchLayout
from ..errors import ReportedError, UserError
from ..objectives import Objective, Step
from . import optim

Saved = dict[str, Any]  # {"objective": {name: weight}, "moments": {name: {moment: value}}}


class Strategy:
    """Trains an objective: one process, or DDP. Every process holds everything."""

    def __init__(
        self,
        objective: Objective,
        optimizer: Optimizer,
        settings: Optim,
        precision: str,
        compiles: bool,
        batch_layout: BatchLayout,
        accelerator: Accelerator,
    ) -> None:
        self.objective, self.optimizer, self.accelerator = objective, optimizer, accelerator
        self.settings, self.batch_layout = settings, batch_layout
        self.bfloat16 = precision == "bfloat16"
        self.compiles = compiles
        self.losses: list[Tensor] = []  # of this step's passes so far
        self.prepared: Any = self.prepare()
        self.weights = list(self.prepared.parameters())

    def prepare(self) -> nn.Module:
        """The objective as it trains, with what the other processes need of it."""
        if self.compiles:
            self.objective.compile(fullgraph=True, dynamic=False)
        self.init_moments(p for group in self.optimizer.param_groups for p in group["params"])
        return self.accelerator.prepare(self.objective)

    def facts(self) -> dict[str, Any]:
        """How the weights lie on the processes, as what was set up says, not what was
        configured."""
        return {"strategy": "DDP" if isinstance(self.prepared, DistributedDataParallel) else "none"}

    def init_moments(self, held: Iterable[Tensor]) -> None:
        """Moments for what this process holds of the weights. Not earlier: whole ones may not
        fit."""
        for x in held:
            assert x.dtype == torch.float32
            self.optimizer.state[x] = optim.moments(self.settings, x)

    def watch_progress(self, tick: Callable[[], None]) -> None:
        """Call `mark` whenever this process has gone forward through a pass, and when its own
        gradients are complete."""
        self.prepared.register_forward_hook(lambda *_: tick())
        # whose gradient comes last
        first = next(p for p in self.objective.parameters() if p.requires_grad)
        first.register_post_accumulate_grad_hook(lambda _: tick())

    def run_pass(self, batch: Batch, cast: AbstractContextManager, last: bool) -> Step:
        """Forward and backward of one pass; with the last of a step the processes' gradients are
        averaged."""
        with self.no_sync(last):
            with cast:
                step = self.prepared(batch)
            self.losses.append(step.loss.detach())
            self.backward(step.loss, last)
        return step

    def no_sync(self, last: bool) -> AbstractContextManager:
        return nullcontext() if last else self.accelerator.no_sync(self.prepared)

    def backward(self, loss: Tensor, last: bool) -> None:
        (loss / self.batch_layout.accumulation_steps).backward()

    def update(self) -> tuple[Tensor, Tensor]:
        """Clip, update the weights, forget the gradients: the gradient's norm before it was clipped
        (float64), and whether it or a loss was not finite on any process (bool), so that nothing
        was changed. Both stay on the device."""
        norm = optim.clip(self.weights, self.settings.clip).double()
        bad = self.any_nonfinite(norm)
        optim.leave_out(self.optimizer, bad)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return norm, bad

    def any_nonfinite(self, *more: Tensor) -> Tensor:
        """Whether one of these or of the step's losses is not finite on any process: bool, on the
        device."""
        mine = torch.stack([~value.isfinite() for value in (*more, *self.losses)]).any()
        self.losses = []
        return (
            self.accelerator.reduce(mine.float(), "sum") > 0
            if self.accelerator.num_processes > 1
            else mine
        )

    def dry_run(self, batch: Batch, cast: AbstractContextManager) -> None:
        """Forward and backward of a pass that leaves nothing behind.

        Raises:
            UserError: as `_check_gradients`.
        """
        self.run_pass(batch, cast, last=True)
        self._check_gradients()
        self.losses = []
        self.optimizer.zero_grad()

    def _check_gradients(self) -> None:
        """That each weight got a gradient: the next pass of DDP would fail, after all processes
        waited for it.

        Raises:
            UserError: one did not, and there are several processes.
        """
        named = self.objective.named_parameters()
        idle = [name for name, p in named if p.requires_grad and p.grad is None]
        if idle and self.accelerator.num_processes > 1:
            text = "their objective does not use them; call requires_grad_(False) on them, or take one process"
            kind = UserError if self.accelerator.is_main_process else ReportedError
            raise kind(f"no gradient for {', '.join(idle[:3])}: {text}")

    @contextmanager
    def full_weights(self) -> Iterator[Objective]:
        """The objective with all weights on this process, to be looked at. All processes enter and
        leave together."""
        yield self.objective

    def save(self) -> Saved:
        """What a checkpoint keeps, whole at least on the first process. All processes call it."""
        named = self.objective.named_parameters()
        moments = {
            name: dict(self.optimizer.state[p]) for name, p in named if p in self.optimizer.state
        }
        return {"objective": self.objective.state_dict(), "moments": moments}

    @torch.no_grad()
    def load(self, saved: Saved) -> None:
        self.objective.load_state_dict(saved["objective"])
        for name, p in self.objective.named_parameters():
            for key, value in self.optimizer.state.get(p, {}).items():
                value.copy_(saved["moments"][name][key])
