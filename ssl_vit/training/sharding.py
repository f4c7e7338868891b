"""Train with weights, gradients or moments sharded over the processes: DeepSpeed ZeRO and FSDP2."""

import logging
import warnings
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

from ..data.batch_layout import BatchLayout
from ..data.batching import Batch
from ..errors import UserError
from ..models.trained_part import low_rank_layers
from ..objectives.base import Objective
from ..recipe.schema import Optim
from . import optim
from .strategy import Strategy

# Sections of a DeepSpeed file that would repeat optim.* and compute.precision of the recipe
RECIPE_SECTIONS = ("optimizer", "scheduler", "amp", "bf16", "fp16", "torch_autocast")


class ShardedStrategy(Strategy, ABC):
    """Strategy that shards weights, gradients or moments over the processes.

    Attributes:
        full_copy: Copy of the objective on the CPU, into which whole weights are gathered for
            evaluation. None if every process holds the whole weights.
    """

    full_copy: Objective | None = None

    @abstractmethod
    def gather(self, p: Tensor) -> Tensor:
        """Gather a whole weight from the shards of all processes. Collective."""

    @abstractmethod
    def scatter(self, p: nn.Parameter, value: Tensor) -> None:
        """Copy a whole weight, on the device, into the shards of all processes. Collective."""

    def watch_progress(self, tick: Callable[[], None]) -> None:
        self._watch_forward(tick)

    @contextmanager
    def full_weights(self) -> Iterator[Objective]:
        if self.full_copy is None:
            yield self.objective
            return
        with torch.no_grad():
            full_weights = self.full_copy.state_dict()  # shares memory with the copy
            for name, value in self.objective.named_buffers():
                if name in full_weights:  # a state_dict lacks non-persistent buffers
                    full_weights[name].copy_(value)
            for name, p in self.objective.named_parameters():
                full_weights[name].copy_(self.gather(p))
        try:
            yield self.full_copy.to(self.accelerator.device)
        finally:
            self.full_copy.cpu()

    def prepare_to_save(self, value: Tensor) -> Tensor | None:
        """Return a copy on the CPU on the first process, and None on all other processes.

        The whole tensor then needs no memory of the device, which the next tensor may use.
        """
        return value.to("cpu", copy=True) if self.accelerator.is_main_process else None

    def whole_weights(self) -> dict[str, Any]:
        weights: dict[str, Any] = self.objective.state_dict()
        gathered: dict[nn.Parameter, Tensor | None] = {}
        for name, p in self.objective.named_parameters(remove_duplicate=False):
            if p not in gathered:  # gather a shared weight, which has several names, only once
                gathered[p] = self.prepare_to_save(self.gather(p).detach())
            weights[name] = gathered[p]
        return weights

    def load_whole_weights(self, weights: dict[str, Tensor]) -> None:
        buffer_names = dict(self.objective.named_buffers(remove_duplicate=False))
        buffers = {name: value for name, value in weights.items() if name in buffer_names}
        self.objective.load_state_dict(buffers, strict=False)
        for name, p in self.objective.named_parameters():
            self.scatter(p, weights[name].to(self.accelerator.device))


class ZeroStrategy(ShardedStrategy):
    """DeepSpeed ZeRO: shard the moments (stage 1), also the gradients (2), also the weights (3).

    All stored tensors are float32. The precision of the recipe applies only to autocast. DeepSpeed
    itself skips an update that is not finite.
    """

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
        # The training loop reports skipped updates, so hide DeepSpeed's warnings about them
        logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
        # torch 2.14 renames two collectives that DeepSpeed 0.19 calls in every pass
        warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)
        engine, _ = self.accelerator.prepare(self.objective, self.optimizer)
        self.zero = engine.optimizer
        # DeepSpeed joins the weights of a parameter group into one flat tensor and shards it. Map
        # each weight to this process's shard
        groups = self.zero.fp16_groups if self.stage == 3 else self.zero.bit16_groups
        self.flat: dict[nn.Parameter, Tensor] = {}
        for weights, flat in zip(groups, self.local_shards, strict=True):
            self.flat |= dict.fromkeys(weights, flat)
        self.init_moments(self.local_shards)
        if self.stage < 3:
            # DeepSpeed would create the views of the moments later. The method is private to
            # DeepSpeed (version 0.19, see pyproject.toml)
            self.zero._lazy_init_hp_params_optimizer_state()
        return engine

    def facts(self) -> dict[str, Any]:
        return {"strategy": f"ZeRO-{self.stage}", "deepspeed": version("deepspeed")}

    @property
    def local_shards(self) -> list[Tensor]:
        """Return this process's shards of the weights: one flat tensor per parameter group."""
        if self.stage == 3:
            return self.zero.fp32_partitioned_groups_flat
        return self.zero.single_partition_of_fp32_groups

    def state_of(self, p: nn.Parameter) -> dict[str, Tensor]:
        """Return the optimiser's state that all weights of the parameter group share."""
        return self.optimizer.state[self.flat[p]]

    def sync_gradients_if(self, last: bool) -> AbstractContextManager:
        return nullcontext()

    def backward(self, loss: Tensor, last: bool) -> None:
        """Accumulate the gradients of one pass."""
        self.prepared.set_gradient_accumulation_boundary(last)
        if last:
            # DeepSpeed skips an update whose gradient is NaN. Make the gradient NaN if any loss of
            # the step is not finite
            loss = loss * torch.where(self.find_nonfinite_and_clear(), torch.nan, 1.0)
        self.prepared.backward(loss)

    def update(self) -> tuple[Tensor, Tensor]:
        self.prepared.step()
        norm = torch.as_tensor(
            self.prepared.get_global_grad_norm(),
            dtype=torch.float64,
            device=self.accelerator.device,
        )
        return norm, ~norm.isfinite()

    def dry_run(self, batch: Batch, cast: AbstractContextManager) -> None:
        # Because of this loss, `backward` makes the gradient NaN, and DeepSpeed skips the update
        self.losses = [torch.full((), torch.nan, device=self.accelerator.device)]
        self.run_pass(batch, cast, last=True)
        self.prepared.step()

    def gather(self, p: Tensor) -> Tensor:
        from deepspeed import zero

        with zero.GatheredParameters([p]):
            return p.detach().clone()

    def blend(self, average: nn.Parameter, p: Tensor, weight: Tensor) -> None:
        if self.stage < 3:
            super().blend(average, p, weight)
            return
        # Gather weight by weight, so that memory holds only one whole weight and its average
        self.scatter(average, self.gather(average).lerp_(self.gather(p), weight))

    def scatter(self, p: nn.Parameter, value: Tensor) -> None:
        from deepspeed import zero

        with zero.GatheredParameters([p], modifier_rank=0):
            p.copy_(value)

    def load_whole_weights(self, weights: dict[str, Tensor]) -> None:
        super().load_whole_weights(weights)
        self.zero.refresh_fp32_params()

    def gather_moments(self, p: nn.Parameter) -> dict[str, Tensor]:
        from deepspeed.utils import safe_get_full_optimizer_state

        state = self.state_of(p)
        moments = {
            key: safe_get_full_optimizer_state(p, key) for key, value in state.items() if value.ndim
        }
        scalars = {key: value for key, value in state.items() if not value.ndim}
        return moments | scalars

    def scatter_moments(self, p: nn.Parameter, values: dict[str, Tensor]) -> None:
        from deepspeed.utils import safe_set_full_optimizer_state, safe_set_local_optimizer_state

        for key, value in values.items():
            value = value.to(self.accelerator.device)
            if not value.ndim:  # the count of steps is shared by the whole flat tensor
                self.state_of(p)[key].copy_(value)
            elif self.stage == 3:
                safe_set_local_optimizer_state(p, self._shard(p, value), key)
            else:
                safe_set_full_optimizer_state(p, value, key)

    def _shard(self, p: Any, value: Tensor) -> Tensor:
        """Cut this process's shard from a whole tensor, as stage 3 of DeepSpeed's ZeRO does.

        The tensor is flattened, padded with zeros at the end, and divided into equal shards, one
        for each process.

        Args:
            p: Weight that the tensor belongs to.
            value: Whole tensor, of the weight's shape.
        """
        shard_size = p.ds_tensor.numel()
        padding = shard_size * self.batch_layout.processes - value.numel()
        flat = F.pad(value.flatten(), (0, padding))
        return flat.narrow(0, shard_size * self.batch_layout.rank, shard_size)


class Fsdp2Strategy(ShardedStrategy):
    """FSDP2: shard weights, gradients and moments, block by block.

    The host waits for the device once per step, to decide whether to skip the update.
    """

    def prepare(self) -> nn.Module:
        self.full_copy = deepcopy(self.objective).cpu()
        if self.compiles:
            compile_blocks(self.objective)
        for group in self.optimizer.param_groups:
            group["fused"] = self.settings.optimiser.fuses_shards
        # FSDP2 wraps modules of the given class names. Replace the name in launch/fsdp2.yaml by the
        # classes of this network's blocks: timm's Eva has another class, a ResNet has no blocks,
        # and Accelerate refuses an unknown name.
        block_classes = set()
        for module in self.objective.modules():
            blocks = getattr(module, "blocks", None)
            if isinstance(blocks, nn.Module):
                block_classes |= {type(block).__name__ for block in blocks.children()}
        self.accelerator.state.fsdp_plugin.transformer_cls_names_to_wrap = sorted(block_classes)
        prepared, _ = self.accelerator.prepare(self.objective, self.optimizer)
        self.init_moments(p for group in self.optimizer.param_groups for p in group["params"])
        return prepared

    def facts(self) -> dict[str, Any]:
        sharded = all(isinstance(p, DTensor) for p in self.weights)
        return {"strategy": "FSDP2" if sharded else "none"}

    def update(self) -> tuple[Tensor, Tensor]:
        norm = _whole(optim.clip(self.weights, self.settings.clip)).double()
        found_inf = self.find_nonfinite_and_clear(norm)
        if not found_inf:
            self.optimizer.step()
        self.optimizer.zero_grad()
        return norm, found_inf

    def blend(self, average: Any, p: Any, weight: Tensor) -> None:
        average.to_local().lerp_(p.to_local(), weight.to(average.device))

    def gather(self, p: Tensor) -> Tensor:
        return _whole(p.detach())

    def scatter(self, p: nn.Parameter, value: Tensor) -> None:
        p.copy_(_cut(value, p))

    def gather_moments(self, p: nn.Parameter) -> dict[str, Tensor]:
        return {key: _whole(value) for key, value in self.state_of(p).items()}

    def scatter_moments(self, p: nn.Parameter, values: dict[str, Tensor]) -> None:
        device = self.accelerator.device
        for key, value in values.items():
            is_scalar = not value.ndim  # such as the count of steps, which is not sharded
            local_value = value if is_scalar else _cut(value.to(device), p)
            self.state_of(p)[key].copy_(local_value)


def build_strategy(
    objective: Objective,
    optimizer: Optimizer,
    settings: Optim,
    precision: str,
    compiles: bool,
    batch_layout: BatchLayout,
    accelerator: Accelerator,
) -> Strategy:
    """Build the strategy for the launcher's configuration: DDP, ZeRO, FSDP2 or a single process.

    Args:
        objective: Objective on the device.
        optimizer: Optimiser of the objective's parameters.
        settings: Group `optim` of the recipe.
        precision: float32 or bfloat16.
        compiles: Whether to use torch.compile.
        batch_layout: How a global batch is divided.
        accelerator: Accelerator with the launcher's configuration.

    Raises:
        UserError: The strategy does not support the recipe or the DeepSpeed configuration.
    """
    sharded_strategies: dict[DistributedType, type[Strategy]] = {
        DistributedType.DEEPSPEED: ZeroStrategy,
        DistributedType.FSDP: Fsdp2Strategy,
    }
    strategy_class = sharded_strategies.get(accelerator.distributed_type, Strategy)
    _, averages = objective.averages(0.0)
    follows_factors = low_rank_layers(objective) and any(True for _ in averages)
    strategy = strategy_class(
        objective, optimizer, settings, precision, compiles, batch_layout, accelerator
    )
    if follows_factors and isinstance(strategy, ZeroStrategy) and strategy.stage == 3:
        raise UserError(
            f"model.train={objective.encoder.model.train}: ZeRO 3 cannot update this objective's"
            " teacher from low-rank factors. Use DDP, ZeRO 1, ZeRO 2 or FSDP2."
        )
    # Only strategies that shard the weights (ZeRO 3 and FSDP2) have a full copy
    has_sharded_weights = isinstance(strategy, ShardedStrategy) and strategy.full_copy is not None
    if has_sharded_weights and settings.average is not None:
        raise UserError(
            f"optim.average={settings.average}: sharded weights cannot be averaged. "
            "Use optim.average=null, or train with DDP, ZeRO 1 or ZeRO 2."
        )
    return strategy


def check_deepspeed(config: dict[str, Any]) -> None:
    """Check that a DeepSpeed configuration shards the training state and repeats no recipe setting.

    Sections with values that the recipe sets (RECIPE_SECTIONS, such as "optimizer") must be missing
    or disabled.

    Args:
        config: Content of the DeepSpeed file.

    Raises:
        UserError: The stage is not 1, 2 or 3, or a section repeats settings of the recipe.
    """
    stage = config["zero_optimization"]["stage"]
    if stage not in (1, 2, 3):
        raise UserError(f"zero_stage={stage}: nothing is sharded. Use stage 1, 2 or 3, or DDP.")
    for name in RECIPE_SECTIONS:
        if name in config and config[name].get("enabled", True) is True:
            raise UserError(
                f"{name}: the recipe sets these values with optim.* and compute.precision=. "
                "Remove this section from the DeepSpeed configuration."
            )


def deepspeed_values(
    clip: float | None, bfloat16: bool, batch_layout: BatchLayout
) -> dict[str, Any]:
    """Return the values of DeepSpeed's configuration that the recipe determines.

    Without these values, DeepSpeed would clip at norm 1 and disable autocast.

    Args:
        clip: Largest norm of the gradient (optim.clip). None: no clipping.
        bfloat16: Whether to use autocast to bfloat16.
        batch_layout: How a global batch is divided.
    """
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
        "zero_force_ds_cpu_optimizer": False,  # torch's fused AdamW also runs on the CPU
    }


def compile_blocks(objective: Objective) -> None:
    """Compile each block of the encoder.

    The encoder cannot be compiled as a whole, because hooks run between the blocks.
    """
    for block in getattr(objective.encoder.backbone, "blocks", []):
        block.compile(dynamic=False)


def _whole(x: Any) -> Tensor:
    """Return the whole tensor of a DTensor, and a plain tensor unchanged."""
    return x.full_tensor() if isinstance(x, DTensor) else x


def _cut(value: Tensor, like: Any) -> Tensor:
    """Shard a whole tensor like the DTensor `like`."""
    return distribute_tensor(value, like.device_mesh, like.placements)
