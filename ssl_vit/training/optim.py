"""Build parameter groups, the optimiser and the schedule (paper, 4.1 and Table 3)."""

import math
import re
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from typing import assert_never

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from ..objectives.base import Objective
from ..recipe.schema import Optim

LINEAR_END = 1e-5  # last learning rate of the linear schedule, as in the authors' code

HEAD = -1  # layer id of all modules above the blocks


def groups(
    module: nn.Module, weight_decay: float, lr: float, layer_decay: float | None = None
) -> list[dict]:
    """Return parameter groups with weight decay on the weights of linear and convolution layers
    only.

    Biases, norms, tokens and positions have no weight decay. With `layer_decay` (Clark et al.,
    2020; as in BEiT and MAE), the learning rate is lr * layer_decay^k for a layer k layers below
    the head: the head and the final norm have `lr`, the last block lr * layer_decay, and so on down
    to the patch embedding. Weights that are frozen at first (`frozen_weights`) have separate
    groups.
    """
    kinds = (nn.Linear, nn.modules.conv._ConvNd)
    decayed = {id(m.weight) for m in module.modules() if isinstance(m, kinds)}
    # Only trained weights count, because a frozen teacher may be deeper.
    layer = {name: _layer_id(name) for name, p in module.named_parameters() if p.requires_grad}
    head = max(layer.values()) + 1
    frozen = module.frozen_weights(0.0) if isinstance(module, Objective) else []
    held = {id(p) for p in frozen}
    made: dict[tuple[int, bool, bool], dict] = {}
    # decayed weights first, then all remaining weights, each in the module's order
    for name, p in sorted(module.named_parameters(), key=lambda pair: id(pair[1]) not in decayed):
        if not p.requires_grad:
            continue
        is_decayed = id(p) in decayed
        below = 0
        group: dict = {"params": [], "weight_decay": weight_decay if is_decayed else 0.0}
        group["decayed"] = is_decayed
        group["held"] = id(p) in held
        if layer_decay is not None:
            below = head - layer[name] if layer[name] != HEAD else 0
            group["lr"] = lr * layer_decay**below
        made.setdefault((below, is_decayed, id(p) in held), group)["params"].append(p)
    return list(made.values())


def _layer_id(name: str) -> int:
    """Return the layer of a parameter as BEiT numbers layers: 0 for the embeddings, n + 1 for block
    n, HEAD for the final norm and everything outside the encoder.
    """
    if block := re.search(r"encoder\.backbone\.blocks\.(\d+)\.", name):
        return int(block[1]) + 1
    inside = "encoder.backbone." in name or "encoder.positions." in name
    return 0 if inside and "encoder.backbone.norm." not in name else HEAD


def share_of_lr(optim: Optim, step: int) -> float:
    """Return the learning rate at a step as a share of the peak: linear warm-up from 0, then the
    schedule.

    The formulas equal those of `transformers.optimization` to the last bit; importing that module
    takes a quarter of a second.
    """
    warmup, steps = optim.warmup, optim.steps
    if optim.schedule == "steps":  # Kolesnikov et al., 2020, section 3
        drops = sum(step >= share * steps for share in optim.drops)
        return min(1.0, step / max(1, warmup)) * 0.1**drops
    if step < warmup:
        return float(step) / float(max(1, warmup))
    match optim.schedule:
        case "cosine":
            progress = float(step - warmup) / float(max(1, steps - warmup))
            return max(0.0, 0.5 * (1.0 + math.cos(math.pi * progress)))
        case "wsd":
            if step < optim.decay_from:
                return 1.0
            progress = float(step - optim.decay_from) / float(max(1, steps - optim.decay_from))
            return max(0.0, 1.0 - math.sqrt(progress)) if step < steps else 0.0
        case "linear":
            end = min(LINEAR_END, optim.lr / 2)
            if step > steps:
                return end / optim.lr
            left = 1 - (step - warmup) / (steps - warmup)
            return ((optim.lr - end) * left + end) / optim.lr
        case _:
            assert_never(optim.schedule)


def build(module: nn.Module, optim: Optim) -> tuple[Optimizer, LambdaLR]:
    """Build the optimiser and the schedule, counted in optimiser steps.

    After a linear warm-up from 0, the learning rate follows a cosine to 0, falls linearly to
    LINEAR_END, falls to a tenth after each share in optim.drops, or stays constant until the last
    share optim.decay and then falls as 1 - sqrt to 0 (Hägele et al., 2024). Weight decay is
    decoupled and scaled by the learning rate in "adamw", and an L2 term in "sgd".
    """
    params = groups(module, optim.weight_decay, optim.lr, optim.layer_decay)
    module_name, _, name = optim.optimiser.made_by.partition(":")
    optimiser_class: Callable[..., Optimizer] = getattr(import_module(module_name), name)
    settings = optim.optimiser.settings(optim)
    optimizer = optimiser_class(params, lr=optim.lr, fused=True, **settings)
    return optimizer, LambdaLR(optimizer, partial(share_of_lr, optim))


def weight_decay_at(optim: Optim, step: int) -> float:
    """Return the weight decay of a step, counted from 0: half a cosine from optim.weight_decay to
    optim.weight_decay_end.

    Source: Caron et al., 2021, "Implementation details"; their utils.py, `cosine_scheduler`.
    """
    first, last = optim.weight_decay, optim.weight_decay_end
    if last is None:
        return first
    return last + (first - last) * (1 + math.cos(math.pi * step / optim.steps)) / 2


def set_weight_decay(optimizer: Optimizer, optim: Optim, step: int) -> None:
    """Set the weight decay of a step, if weight decay has a schedule."""
    if optim.weight_decay_end is None:
        return
    for group in optimizer.param_groups:
        if group["decayed"]:
            group["weight_decay"] = weight_decay_at(optim, step)


def hold(optimizer: Optimizer) -> None:
    """Make the next update leave the frozen weights unchanged, including weight decay.

    The schedule sets the learning rate of the update after the next.
    """
    for group in optimizer.param_groups:
        if group["held"]:
            group["lr"] = 0.0


def moments(optim: Optim, p: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the initial state of the optimiser for a parameter.

    PyTorch creates the state in the first update. If that update is skipped (`skip_next_update`),
    fused SGD would keep a buffer that was never written.
    """
    step = {"step": torch.zeros((), device=p.device)} if optim.optimiser.counts_steps else {}
    return step | {name: torch.zeros_like(p) for name in optim.optimiser.moments(optim)}


def skip_next_update(optimizer: Optimizer, found_inf: torch.Tensor) -> None:
    """Make the next update of a fused optimiser a no-op, moments included, if `found_inf` is true.

    `found_inf` (bool (), on the device) is what GradScaler sets. The kernel reads the flag, so the
    host need not wait for the device.
    """
    optimizer.found_inf = found_inf.float()  # type: ignore[attr-defined]


def averaged(module: nn.Module, decay: float | None) -> AveragedModel | None:
    """Return an exponential moving average of the weights, or None without `decay`.

    After each step, `update_average` sets average = decay * average + (1 - decay) * weights.
    """
    if decay is None:
        return None
    return AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(decay))


def update_average(average: AveragedModel, module: nn.Module, decay: float) -> None:
    """Update the moving average of the weights and of batch-norm statistics after a step.

    The running statistics are averaged because statistics of the last weights do not fit averaged
    weights. All other buffers are copies of the last ones.
    """
    named = average.module.named_buffers()
    running = [value for name, value in named if name.endswith(("running_mean", "running_var"))]
    before = [(value, value.clone()) for value in running] if average.n_averaged else []
    average.update_parameters(module)
    for value, was in before:
        value.lerp_(was, decay)


def clip(weights: Iterable[torch.Tensor], limit: float | None) -> torch.Tensor:
    """Clip the gradient to the global norm `limit` (None: no clipping) and return the norm before
    clipping.
    """
    if limit is None:  # clip_grad_norm_ would multiply every gradient by 1
        return nn.utils.get_total_norm(w.grad for w in weights if w.grad is not None)
    return nn.utils.clip_grad_norm_(weights, limit)
