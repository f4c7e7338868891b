"""Parameter groups, the optimiser and its schedule (paper, 4.1 and Table 3)."""

import re
from collections.abc import Iterable

import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from transformers.optimization import (
    get_cosine_schedule_with_warmup,
    get_polynomial_decay_schedule_with_warmup,
)

from ..config.schema import Optim

LINEAR_END = 1e-5  # the authors' code


def groups(
    module: nn.Module, weight_decay: float, lr: float, layer_decay: float | None = None
) -> list[dict]:
    """Groups for the optimiser: decay on weights of linear and convolution layers; none on biases,
    norms, tokens, positions.

    With `layer_decay` each block learns at that times the rate of the one above it (Clark et al.,
    2020; as BEiT and MAE): heads and final norm at `lr`, the last block at lr layer_decay, and so
    on down to what stands before the first.
    """
    kinds = (nn.Linear, nn.modules.conv._ConvNd)
    decayed = {id(m.weight) for m in module.modules() if isinstance(m, kinds)}
    depth = {name: _height(name) for name, _ in module.named_parameters()}
    top = max(depth.values()) + 1
    made: dict[tuple[int, bool], dict] = {}
    for name, p in sorted(module.named_parameters(), key=lambda pair: id(pair[1]) not in decayed):
        below = 0 if layer_decay is None or depth[name] < 0 else top - depth[name]
        rate = {"lr": lr * layer_decay**below} if layer_decay is not None else {}
        decay = weight_decay if id(p) in decayed else 0.0
        if p.requires_grad:
            group = made.setdefault(
                (below, id(p) in decayed), {"params": [], "weight_decay": decay, **rate}
            )
            group["params"].append(p)
    return list(made.values())


def _height(name: str) -> int:
    """How far up a parameter stands: 0 before the blocks, from 1 in them, -1 for what comes
    after."""
    if found := re.search(r"encoder\.backbone\.blocks\.(\d+)\.", name):
        return int(found[1]) + 1
    before = "encoder.backbone." in name and "encoder.backbone.norm." not in name
    return 0 if before else -1


def build(module: nn.Module, optim: Optim) -> tuple[Optimizer, LambdaLR]:
    """The optimiser and its schedule: linear warm-up from 0, then cosine to 0 or linear to 1e-5,
    counted in optimiser steps.

    "adamw": Adam with decoupled weight decay, scaled by the learning rate. "sgd": with momentum;
    weight decay as an L2 term.
    """
    fused = all(p.device.type in ("cuda", "cpu") for p in module.parameters())
    sets = groups(module, optim.weight_decay, optim.lr, optim.layer_decay)
    optimizer: Optimizer
    if optim.name == "adamw":
        optimizer = AdamW(sets, lr=optim.lr, betas=(optim.betas[0], optim.betas[1]), fused=fused)
    else:
        optimizer = SGD(sets, lr=optim.lr, momentum=optim.momentum, fused=fused)
    if optim.schedule == "cosine":
        return optimizer, get_cosine_schedule_with_warmup(optimizer, optim.warmup, optim.steps)
    end = min(LINEAR_END, optim.lr / 2)
    return optimizer, get_polynomial_decay_schedule_with_warmup(
        optimizer, optim.warmup, optim.steps, lr_end=end, power=1.0
    )


def moments(optim: Optim, p: torch.Tensor) -> dict[str, torch.Tensor]:
    """What the optimiser keeps of a parameter before its first update, so that a first one may be
    left out."""
    if optim.name == "adamw":
        step = torch.zeros((), device=p.device)
        return {"step": step, "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
    return {"momentum_buffer": torch.zeros_like(p)} if optim.momentum else {}


def leave_out(optimizer: Optimizer, bad: torch.Tensor) -> None:
    """Make the next update of a fused optimiser change nothing, moments included, where `bad`
    (bool, on the device)."""
    optimizer.found_inf = bad.float()  # type: ignore[attr-defined]


def averaged(module: nn.Module, decay: float | None) -> AveragedModel | None:
    """A running mean of the weights (Polyak): after each step decay x itself + (1 - decay) x the
    weights; or None."""
    return (
        None if decay is None else AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(decay))
    )


def clip(weights: Iterable[torch.Tensor], limit: float | None) -> torch.Tensor:
    """The gradient's global norm before it is clipped to `limit` (None: not clipped)."""
    return nn.utils.clip_grad_norm_(weights, float("inf") if limit is None else limit)
