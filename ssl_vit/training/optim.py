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


def parameter_groups(
    module: nn.Module, weight_decay: float, lr: float, layer_decay: float | None = None
) -> list[dict]:
    """Divide the trained parameters into groups with a weight decay and a learning rate each.

    Only the weights of linear and convolution layers have weight decay. Biases, norms, tokens and
    positions have none.

    `layer_decay` follows Clark et al. (2020), as in BEiT and MAE. The learning rate of a layer k
    layers below the head is lr * layer_decay^k. For example, the head and the final norm have `lr`,
    the last block has lr * layer_decay, and the block before it has lr * layer_decay^2.

    Args:
        module: Module to train.
        weight_decay: Weight decay of linear and convolution layers.
        lr: Learning rate of the head.
        layer_decay: Factor from one layer to the layer below. None: `lr` for all layers.

    Returns:
        Parameter groups for a torch optimiser. In each group, the entry `decayed` says whether the
        parameters have weight decay, and `held` whether the objective freezes the parameters in the
        first steps (`frozen_weights`).
    """
    decayed_layers = (nn.Linear, nn.modules.conv._ConvNd)
    decayed_ids = {id(m.weight) for m in module.modules() if isinstance(m, decayed_layers)}
    # Only trained weights have a layer here. A frozen teacher may be deeper than the student
    layer = {name: _layer_id(name) for name, p in module.named_parameters() if p.requires_grad}
    head = max(layer.values()) + 1
    frozen = module.frozen_weights(0.0) if isinstance(module, Objective) else []
    held_ids = {id(p) for p in frozen}
    groups: dict[tuple[int, bool, bool], dict] = {}
    # Decayed weights come first, then all remaining weights, both in the module's order
    decayed_first = sorted(
        module.named_parameters(), key=lambda name_and_p: id(name_and_p[1]) not in decayed_ids
    )
    for name, p in decayed_first:
        if not p.requires_grad:
            continue
        is_decayed, is_held = id(p) in decayed_ids, id(p) in held_ids
        layers_below_head = 0
        group: dict = {"params": [], "weight_decay": weight_decay if is_decayed else 0.0}
        group["decayed"] = is_decayed
        group["held"] = is_held
        if layer_decay is not None:
            if layer[name] != HEAD:
                layers_below_head = head - layer[name]
            group["lr"] = lr * layer_decay**layers_below_head
        key = (layers_below_head, is_decayed, is_held)
        groups.setdefault(key, group)["params"].append(p)
    return list(groups.values())


def _layer_id(name: str) -> int:
    """Return the number of a parameter's layer, as BEiT numbers layers.

    For example, a weight of encoder.backbone.blocks.0 has the number 1.

    Args:
        name: Full name of the parameter.

    Returns:
        0 for the embeddings, n + 1 for block n, and HEAD for the final norm and all parameters
        outside the encoder.
    """
    block = re.search(r"encoder\.backbone\.blocks\.(\d+)\.", name)
    if block:
        return int(block[1]) + 1
    in_encoder = "encoder.backbone." in name or "encoder.positions." in name
    is_final_norm = "encoder.backbone.norm." in name
    return 0 if in_encoder and not is_final_norm else HEAD


def share_of_lr(optim: Optim, step: int) -> float:
    """Return the learning rate at a step as a share of optim.lr.

    The learning rate rises linearly from 0 during the warm-up, then follows optim.schedule (see
    `build_optimizer`). The results equal those of `transformers.optimization` to the last bit,
    because the code converts to float at the same points. The import of `transformers` would take a
    quarter of a second.

    Args:
        optim: Group `optim` of the recipe.
        step: Optimiser step, from 0.
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
            if step < optim.decay_from:  # the step at which the learning rate begins to fall
                return 1.0
            progress = float(step - optim.decay_from) / float(max(1, steps - optim.decay_from))
            return max(0.0, 1.0 - math.sqrt(progress)) if step < steps else 0.0
        case "linear":
            # The last rate is LINEAR_END, or half of optim.lr if that is less than LINEAR_END.
            # Otherwise a learning rate below LINEAR_END would rise
            last_lr = min(LINEAR_END, optim.lr / 2)
            if step > steps:
                return last_lr / optim.lr
            remaining = 1 - (step - warmup) / (steps - warmup)
            return ((optim.lr - last_lr) * remaining + last_lr) / optim.lr
        case _:
            assert_never(optim.schedule)


def build_optimizer(module: nn.Module, optim: Optim) -> tuple[Optimizer, LambdaLR]:
    """Build the optimiser and the schedule of the learning rate, which counts optimiser steps.

    After a linear warm-up from 0, optim.schedule decides how the learning rate falls:
    - "cosine": along a cosine to 0;
    - "linear": linearly to LINEAR_END;
    - "steps": to a tenth at each step in optim.drops, which are shares of all steps;
    - "wsd": constant until the decay begins, then lr * (1 - sqrt(p)), where p goes from 0 to 1 over
      the last steps, a share optim.decay of all steps (Hägele et al., 2024).

    In "adamw", weight decay is decoupled and scaled by the learning rate. In "sgd", weight decay is
    added to the gradient (L2 regularisation).

    Args:
        module: Module to train.
        optim: Group `optim` of the recipe.

    Returns:
        The optimiser, and the schedule, whose `step` is called after each optimiser step.
    """
    params = parameter_groups(module, optim.weight_decay, optim.lr, optim.layer_decay)
    # made_by is "MODULE:CLASS", for example "torch.optim:AdamW"
    module_name, _, name = optim.optimiser.made_by.partition(":")
    optimiser_class: Callable[..., Optimizer] = getattr(import_module(module_name), name)
    settings = optim.optimiser.settings(optim)
    optimizer = optimiser_class(params, lr=optim.lr, fused=True, **settings)
    return optimizer, LambdaLR(optimizer, partial(share_of_lr, optim))


def weight_decay_at(optim: Optim, step: int) -> float:
    """Return the weight decay at a step, on a cosine from weight_decay to weight_decay_end.

    Source: Caron et al., 2021, "Implementation details"; their utils.py, `cosine_scheduler`.

    Args:
        optim: Group `optim` of the recipe. Without weight_decay_end, weight decay is constant.
        step: Optimiser step, from 0.
    """
    first, last = optim.weight_decay, optim.weight_decay_end
    if last is None:
        return first
    return last + (first - last) * (1 + math.cos(math.pi * step / optim.steps)) / 2


def set_weight_decay(optimizer: Optimizer, optim: Optim, step: int) -> None:
    """Set the weight decay of a step in the optimiser, if weight decay has a schedule."""
    if optim.weight_decay_end is None:
        return
    for group in optimizer.param_groups:
        if group["decayed"]:
            group["weight_decay"] = weight_decay_at(optim, step)


def freeze_next_update(optimizer: Optimizer) -> None:
    """Make the next update leave the frozen weights unchanged, including weight decay.

    The objective chooses the frozen weights (`frozen_weights`), such as a last layer in the first
    steps. Parameter groups with frozen weights have the entry "held". Call this function before
    each update with frozen weights, because the schedule sets all learning rates after each update.
    """
    for group in optimizer.param_groups:
        if group["held"]:
            group["lr"] = 0.0


def initial_state(optim: Optim, p: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the optimiser's state of a parameter before the first update: all moments are 0.

    If the optimiser counts updates, the state also has the count ("step"). Without this function,
    PyTorch would create the state in the first update. If the first update were then skipped
    (`skip_next_update`), fused SGD would keep a buffer that was never written.

    Args:
        optim: Group `optim` of the recipe.
        p: Parameter, or a shard of parameters.
    """
    state = {"step": torch.zeros((), device=p.device)} if optim.optimiser.counts_steps else {}
    return state | {name: torch.zeros_like(p) for name in optim.optimiser.moments(optim)}


def skip_next_update(optimizer: Optimizer, found_inf: torch.Tensor) -> None:
    """Make the next update leave weights and moments unchanged if `found_inf` is true.

    The fused kernel reads the flag on the device, as with GradScaler, so the host need not wait for
    the device.

    Args:
        optimizer: Fused optimiser.
        found_inf: Whether the gradient is not finite, a bool scalar on the device.
    """
    optimizer.found_inf = found_inf.float()  # type: ignore[attr-defined]


def build_average(module: nn.Module, decay: float | None) -> AveragedModel | None:
    """Create an exponential moving average of the weights, or return None without `decay`.

    After each step, call `update_average`, which sets
    average = decay * average + (1 - decay) * weights.

    Args:
        module: Module with the weights.
        decay: Weight of the old average (optim.average).
    """
    if decay is None:
        return None
    return AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(decay))


def update_average(average: AveragedModel, module: nn.Module, decay: float) -> None:
    """Update the moving average of the weights and of batch-norm statistics after a step.

    Batch-norm statistics are averaged, too, because statistics of the last weights do not fit
    averaged weights. All other buffers are copied.

    Args:
        average: Moving average, changed in place.
        module: Module with the weights of the last step.
        decay: Weight of the old average.
    """
    statistics = [
        value
        for name, value in average.module.named_buffers()
        if name.endswith(("running_mean", "running_var"))
    ]
    # The first update copies all values, because there is no old average
    old_statistics = [(value, value.clone()) for value in statistics] if average.n_averaged else []
    average.update_parameters(module)  # copies all buffers, also the statistics of the last step
    for value, old_average in old_statistics:
        value.lerp_(old_average, decay)  # decay * old_average + (1 - decay) * value


def clip(weights: Iterable[torch.Tensor], limit: float | None) -> torch.Tensor:
    """Clip the gradient in place and return its norm before clipping.

    Args:
        weights: Weights whose gradients are clipped together.
        limit: Largest norm over all weights. None: no clipping.
    """
    if limit is None:  # with an infinite limit, clip_grad_norm_ would multiply all gradients by 1
        return nn.utils.get_total_norm(w.grad for w in weights if w.grad is not None)
    return nn.utils.clip_grad_norm_(weights, limit)
