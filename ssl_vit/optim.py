"""Parameter groups, the optimiser and its schedule (paper, 4.1 and Table 3)."""

import torch
from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from transformers.optimization import get_cosine_schedule_with_warmup, get_polynomial_decay_schedule_with_warmup

from .recipe import Optim

LINEAR_END = 1e-5  # the authors' code


def groups(module: nn.Module, weight_decay: float) -> list[dict]:
    """Two groups: decay on the weights of linear and convolution layers; none on biases, norms, tokens, positions."""
    kinds = (nn.Linear, nn.modules.conv._ConvNd)
    decayed = {id(m.weight) for m in module.modules() if isinstance(m, kinds)}
    trained = [p for p in module.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trained if id(p) in decayed], "weight_decay": weight_decay},
        {"params": [p for p in trained if id(p) not in decayed], "weight_decay": 0.0},
    ]


def build(module: nn.Module, optim: Optim) -> tuple[AdamW, LambdaLR]:
    """Adam with decoupled weight decay (scaled by the learning rate), and its schedule: linear warm-up from 0, then cosine
    to 0 or linear to 1e-5. The schedule counts optimiser steps."""
    fused = all(p.device.type in ("cuda", "cpu") for p in module.parameters())
    optimizer = AdamW(groups(module, optim.weight_decay), lr=optim.lr, betas=(optim.betas[0], optim.betas[1]), fused=fused)
    if optim.schedule == "cosine":
        return optimizer, get_cosine_schedule_with_warmup(optimizer, optim.warmup, optim.steps)
    end = min(LINEAR_END, optim.lr / 2)
    return optimizer, get_polynomial_decay_schedule_with_warmup(optimizer, optim.warmup, optim.steps, lr_end=end, power=1.0)


def clip(module: nn.Module, limit: float | None) -> torch.Tensor:
    """The gradient's global norm before it is clipped to `limit` (None: not clipped)."""
    return nn.utils.clip_grad_norm_(module.parameters(), float("inf") if limit is None else limit)
