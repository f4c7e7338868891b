"""Learners whose processes hold a share each of weights, gradients or moments: DeepSpeed's ZeRO,
FSDP2."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from importlib.metadata import version
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn import functional as F
from torch.optim import Optimizer

from ..config.schema import Optim
from ..data.batching import Batch, BatchLayout
from ..errors import UserError
from ..objectives import Objective
from . import optim
from .strategy import Saved, Strategy

RECIPE_SECTIONS = (
    "optimizer",
    "scheduler",
    "amp",
)  # sections of a DeepSpeed file on what the recipe says
PRECISIONS = ("bf16", "fp16", "torch_autocast")


class ShardedStrategy(Strategy, ABC):
    """A learner whose processes hold a share each; what differs is how one tensor is gathered and
    given out again."""

    # on the CPU, for looking at; None where the objective's own weights are whole
    full_copy: Objective | None = None

    @abstractmethod
    def gather(self, p: nn.Parameter) -> Tensor:
        """A weight, whole. As the next three, all processes call it together."""

    @abstractmethod
    def scatter(self, p: nn.Parameter, value: Tensor) -> None:
        """Each process its share of a whole weight."""

    @abstractmethod
    def gather_moments(self, p: nn.Parameter) -> dict[str, Tensor]:
        """A weight's moments, whole."""

    @abstractmethod
    def scatter_moments(self, p: nn.Parameter, values: dict[str, Tensor]) -> None:
        """Each process its share of a weight's whole moments."""

    def watch_progress(self, tick: Callable[[], None]) -> None:
        self.prepared.register_forward_hook(lambda *_: tick())

    def after_scatter(self) -> None:
        """Called when all has been given out."""
        return

    @contextmanager
    def full_weights(self) -> Iterator[Objective]:
        if self.full_copy is None:
            yield self.objective
            return
        self._each(self.gather, self.full_copy.state_dict())
        try:
            yield self.full_copy.to(self.accelerator.device)
        finally:
            self.full_copy.cpu()

    @torch.no_grad()
    def _each(self, get: Callable[[nn.Parameter], Tensor], into: dict[str, Tensor]) -> None:
        """Copy every weight, and the buffers, into a state of the same names."""
        for name, value in self.objective.named_buffers():
            if name in into:
                into[name].copy_(value)
        for name, p in self.objective.named_parameters():
            into[name].copy_(get(p))

    @torch.no_grad()
    def save(self) -> Saved:
        main = self.accelerator.is_main_process
        weights, moments = self._whole_state(), {}
        for name, p in self.objective.named_parameters():
            if p.requires_grad:
                values = self.gather_moments(p)  # together with the other processes
                if main:
                    moments[name] = {
                        key: value.to("cpu", copy=True) for key, value in values.items()
                    }
        return {"objective": weights, "moments": moments}

    def _whole_state(self) -> dict[str, Tensor]:
        """The objective's state on the CPU, a tensor that has several names under each of them."""
        known: dict[nn.Parameter, Tensor] = {}
        state = {name: value.detach().cpu() for name, value in self.objective.state_dict().items()}
        for name, p in self.objective.named_parameters(remove_duplicate=False):
            if p not in known:
                known[p] = self.gather(p).detach().to("cpu", copy=True)
            state[name] = known[p]
        return state

    @torch.no_grad()
    def load(self, saved: Saved) -> None:
        buffers = dict(self.objective.named_buffers(remove_duplicate=False))
        state = {name: value for name, value in saved["objective"].items() if name in buffers}
        self.objective.load_state_dict(state, strict=False)
        for name, p in self.objective.named_parameters():
            self.scatter(p, saved["objective"][name].to(self.accelerator.device))
        self.after_scatter()
        for name, p in self.objective.named_parameters():
            if p.requires_grad:
                self.scatter_moments(
                    p,
                    {
                        key: v.to(self.accelerator.device)
                        for key, v in saved["moments"][name].items()
                    },
                )


class ZeroStrategy(ShardedStrategy):
    """DeepSpeed's ZeRO: shares of the moments (stage 1), of the gradients too (2), of the weights
    too (3). All in float32; the recipe's precision is autocast's. An update that is not finite
    DeepSpeed leaves out itself."""

    def prepare(self) -> nn.Module:
        config = self.accelerator.state.deepspeed_plugin.deepspeed_config
        check_deepspeed(config)
        config |= deepspeed_values(self.settings.clip, self.bfloat16, self.batch_layout)
        self.accelerator.gradient_accumulation_steps = self.batch_layout.accumulation_steps
        self.stage = config["zero_optimization"]["stage"]
        if self.stage == 3:
            self.full_copy = deepcopy(self.objective).cpu()
        elif self.compiles:
            compile_blocks(self.objective)
        # an update left out is told by the engine
        logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
        engine, _ = self.accelerator.prepare(self.objective, self.optimizer)
        self.zero = engine.optimizer
        self.init_moments(self.local_shards)
        if self.stage < 3:
            _view_moments(self.zero)
        return engine

    def facts(self) -> dict[str, Any]:
        engine = self.prepared
        offloaded = {
            "optimizer": engine.zero_offload_optimizer(),
            "weights": engine.zero_offload_param(),
        }
        return {
            "strategy": f"ZeRO-{engine.zero_optimization_stage()}",
            "deepspeed": version("deepspeed"),
            "offload": {
                name: str(where.device) for name, where in offloaded.items() if _used(where)
            },
        }

    @property
    def local_shards(self) -> list[Tensor]:
        """This process's share of the weights, one flat tensor a group."""
        return (
            self.zero.fp32_partitioned_groups_flat
            if self.stage == 3
            else self.zero.single_partition_of_fp32_groups
        )

    def no_sync(self, last: bool) -> AbstractContextManager:
        return nullcontext()

    def backward(self, loss: Tensor, last: bool) -> None:
        """A loss that is not finite makes the gradient so too: that is what DeepSpeed looks at."""
        self.prepared.set_gradient_accumulation_boundary(last)
        self.prepared.backward(
            loss * torch.where(self.any_nonfinite(), torch.nan, 1.0) if last else loss
        )

    def update(self) -> tuple[Tensor, Tensor]:
        self.prepared.step()
        norm = torch.as_tensor(
            self.prepared.get_global_grad_norm(),
            dtype=torch.float64,
            device=self.accelerator.device,
        )
        return norm, ~norm.isfinite()

    def dry_run(self, batch: Batch, cast: AbstractContextManager) -> None:
        # so that the update is left out
        self.losses = [torch.full((), torch.nan, device=self.accelerator.device)]
        self.run_pass(batch, cast, last=True)
        self.prepared.step()

    def gather(self, p: nn.Parameter) -> Tensor:
        from deepspeed import zero

        with zero.GatheredParameters([p]):
            return p.detach().clone()

    def scatter(self, p: nn.Parameter, value: Tensor) -> None:
        from deepspeed import zero

        with zero.GatheredParameters([p], modifier_rank=0):
            p.copy_(value)

    def after_scatter(self) -> None:
        self.zero.refresh_fp32_params()

    def gather_moments(self, p: nn.Parameter) -> dict[str, Tensor]:
        from deepspeed.utils import safe_get_full_optimizer_state

        first = self.optimizer.state[self.local_shards[0]]
        values = {
            key: safe_get_full_optimizer_state(p, key) for key, value in first.items() if value.ndim
        }
        return values | {key: value for key, value in first.items() if not value.ndim}

    def scatter_moments(self, p: nn.Parameter, values: dict[str, Tensor]) -> None:
        from deepspeed.utils import safe_set_full_optimizer_state, safe_set_local_optimizer_state

        for key, value in values.items():
            if not value.ndim:  # the count of steps, one for all
                for flat in self.local_shards:
                    self.optimizer.state[flat][key].copy_(value)
            elif self.stage == 3:
                safe_set_local_optimizer_state(p, self._share(p, value), key)
            else:
                safe_set_full_optimizer_state(p, value, key)

    def _share(self, p: Any, value: Tensor) -> Tensor:
        """This process's share of a tensor, as stage 3 cuts it: equal parts, the last one
        padded."""
        size, batch_layout = p.ds_tensor.numel(), self.batch_layout
        return F.pad(value.flatten(), (0, size * batch_layout.processes - value.numel())).narrow(
            0, size * batch_layout.rank, size
        )


def _view_moments(zero: Any) -> None:
    """Make DeepSpeed's views of each weight's moments, which it makes late: a private name (0.19;
    bounded in pyproject)."""
    zero._lazy_init_hp_params_optimizer_state()


def _used(offload: Any) -> bool:
    """Whether DeepSpeed's section on offloading moves anything."""
    return offload is not None and str(getattr(offload.device, "value", offload.device)) != "none"


class Fsdp2Strategy(ShardedStrategy):
    """FSDP2: shares of weights, gradients and moments, block by block. The host waits once a step,
    to leave out an update."""

    def prepare(self) -> nn.Module:
        self.full_copy = deepcopy(self.objective).cpu()
        if self.compiles:
            compile_blocks(self.objective)
        for group in self.optimizer.param_groups:
            # the fused kernel for SGD knows no shares
            group["fused"] = self.settings.name == "adamw"
        prepared, _ = self.accelerator.prepare(self.objective, self.optimizer)
        self.init_moments(p for group in self.optimizer.param_groups for p in group["params"])
        return prepared

    def facts(self) -> dict[str, Any]:
        shared = all(isinstance(p, DTensor) for p in self.weights)
        on_cpu = {p.device.type for p in self.weights} == {
            "cpu"
        } and self.accelerator.device.type != "cpu"
        plugin = self.accelerator.state.fsdp_plugin
        return {
            "strategy": "FSDP2" if shared else "none",
            "reshard_after_forward": plugin.reshard_after_forward,
            "offload": {"weights": "cpu"} if on_cpu else {},
        }

    def update(self) -> tuple[Tensor, Tensor]:
        norm = _whole(optim.clip(self.weights, self.settings.clip)).double()
        bad = self.any_nonfinite(norm)
        if not bad:
            self.optimizer.step()
        self.optimizer.zero_grad()
        return norm, bad

    def gather(self, p: nn.Parameter) -> Tensor:
        return _whole(p.detach())

    def scatter(self, p: nn.Parameter, value: Tensor) -> None:
        p.copy_(_cut(value, p))

    def gather_moments(self, p: nn.Parameter) -> dict[str, Tensor]:
        return {key: _whole(value) for key, value in self.optimizer.state[p].items()}

    def scatter_moments(self, p: nn.Parameter, values: dict[str, Tensor]) -> None:
        for key, value in values.items():
            self.optimizer.state[p][key].copy_(_cut(value, p) if value.ndim else value)


def build_strategy(
    objective: Objective,
    optimizer: Optimizer,
    settings: Optim,
    precision: str,
    compiles: bool,
    batch_layout: BatchLayout,
    accelerator: Accelerator,
) -> Strategy:
    """The learner for what the accelerator says is running.

    Raises:
        UserError: the recipe or the DeepSpeed configuration asks for what this way of sharing does
        not give.
    """
    kinds: dict[DistributedType, type[Strategy]] = {
        DistributedType.DEEPSPEED: ZeroStrategy,
        DistributedType.FSDP: Fsdp2Strategy,
    }
    made = kinds.get(accelerator.distributed_type, Strategy)(
        objective, optimizer, settings, precision, compiles, batch_layout, accelerator
    )
    if (
        isinstance(made, ShardedStrategy)
        and made.full_copy is not None
        and settings.average is not None
    ):
        text = "the mean of weights that no process has whole is not kept; leave it out, or take DDP or ZeRO 1 or 2"
        raise UserError(f"optim.average={settings.average}: {text}")
    return made


def check_deepspeed(config: dict[str, Any]) -> None:
    """That a DeepSpeed configuration shares something, and says nothing that the recipe says.

    Raises:
        UserError: otherwise.
    """
    where = "the DeepSpeed configuration"
    if config["zero_optimization"]["stage"] not in (1, 2, 3):
        raise UserError(
            f"zero_stage={config['zero_optimization']['stage']}: nothing is shared; choices: 1, 2, 3, or DDP"
        )
    for name in RECIPE_SECTIONS:
        if name in config:
            raise UserError(
                f"{name}: {where} must not say it, the recipe's optim.* does; take that section out"
            )
    for name in PRECISIONS:
        if config.get(name, {}).get("enabled") is True:
            text = "weights and moments are float32, and compute.precision=bfloat16 casts; take that section out"
            raise UserError(f"{name}: {where} must not say it: {text}")


def deepspeed_values(
    clip: float | None, bfloat16: bool, batch_layout: BatchLayout
) -> dict[str, Any]:
    """What DeepSpeed is told from the recipe. Left alone it would clip at 1, and undo the recipe's
    autocast."""
    return {
        "train_batch_size": batch_layout.global_batch,
        "train_micro_batch_size_per_gpu": batch_layout.device_batch,
        "gradient_accumulation_steps": batch_layout.accumulation_steps,
        "gradient_clipping": clip or 0.0,
        "data_types": {"grad_accum_dtype": "fp32"},
        "communication_data_type": "fp32",
        "bf16": {"enabled": False},
        "fp16": {"enabled": False},
        "torch_autocast": {
            "enabled": bfloat16,
            "dtype": "bfloat16",
            "lower_precision_safe_modules": [],
        },
        "zero_force_ds_cpu_optimizer": False,  # torch's fused AdamW runs on the CPU too
    }


def compile_blocks(objective: Objective) -> None:
    """Compile the encoder block by block, where what stands between the blocks cannot be."""
    for block in getattr(objective.encoder.backbone, "blocks", []):
        block.compile(dynamic=False)


def _whole(x: Any) -> Tensor:
    return x.full_tensor() if isinstance(x, DTensor) else x


def _cut(value: Tensor, like: Any) -> Tensor:
    """A whole tensor spread over the processes as another one is."""
    return distribute_tensor(value, like.device_mesh, like.placements)
